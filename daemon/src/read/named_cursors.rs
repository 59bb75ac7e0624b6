//! Named cursors: where readers go on, kept by the daemon.
//!
//! Invariants:
//! - A commit is answered when it is on the disk. Its place is in this log's history, and what it has read is on stable
//!   storage, or written where this log reaches no further: a cursor is never ahead of what a start may find.
//! - All commits that come within [`COMMIT_INTERVAL`] are one write: readers that commit often cost no flush each. A commit
//!   that comes alone waits for nothing.
//! - A caller that goes away leaves its commit to be made, or not; the cursor is then at one of the two places.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clad_journal::{CursorChange, CursorError, Journal, Level, NamedCursor};
use clad_proto::frame::{CommitCursor, CursorState, NamedCursor as Shown};
use clad_proto::{AckLevel, Cursor, ErrorCode, ErrorInfo, LogId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::cursor;
use crate::config::Right;
use crate::ingest::Peer;

/// Least time between two writes of the table.
const COMMIT_INTERVAL: Duration = Duration::from_millis(100);
/// Changes that wait for the next write.
const WAITING_MAX: usize = 1024;

struct Wanted {
    change: CursorChange,
    done: oneshot::Sender<Result<(), ErrorInfo>>,
}

/// The cursors.
pub(crate) struct NamedCursors {
    journal: Arc<Journal>,
    /// The level at which a record counts as read.
    level: Level,
    max: Arc<AtomicUsize>,
    /// To the task that writes, from the first change on.
    wanted: OnceLock<mpsc::Sender<Wanted>>,
}

/// A cursor as it is now.
pub(crate) struct Look {
    pub(crate) cursor: NamedCursor,
    /// Offset of the first record that it has not read.
    pub(crate) unread_from: u64,
    /// Records that are written and not read.
    pub(crate) lag_records: u64,
    /// Records that it has not read are gone.
    pub(crate) lost: bool,
}

impl NamedCursors {
    /// The cursors of a log that reaches this level.
    pub(super) fn new(journal: Arc<Journal>, reach: AckLevel) -> Self {
        let level = if reach < AckLevel::Durable { Level::Written } else { Level::Durable };
        Self { journal, level, max: Arc::default(), wanted: OnceLock::new() }
    }

    /// Replaces the number of cursors that there may be. None is removed.
    pub(crate) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Sets a cursor of a peer, or removes it.
    ///
    /// # Errors
    /// The answer to the peer.
    pub(crate) async fn commit(&self, peer: &Peer, wanted: &CommitCursor) -> Result<CursorState, ErrorInfo> {
        peer.check(Right::Read)?;
        if wanted.hold {
            peer.check(Right::Hold)?;
        }
        let (name, owner) = (wanted.name.clone(), peer.owner(&[]));
        let change = match wanted.place {
            None => CursorChange::Drop { name, owner: Some(owner) },
            Some(place) => {
                self.check(place)?;
                let (note, hold) = (wanted.note.to_vec(), wanted.hold);
                CursorChange::Commit { name, owner, epoch: place.epoch, offset: place.offset, hold, note }
            }
        };
        self.change(change).await?;
        Ok(self.state(wanted.request_id, &wanted.name))
    }

    /// Removes any cursor; `false` where there is none.
    ///
    /// # Errors
    /// It could not be written.
    pub(crate) async fn drop_by_admin(&self, name: &str) -> Result<bool, ErrorInfo> {
        let was_there = self.find(name).is_some();
        self.change(CursorChange::Drop { name: name.to_owned(), owner: None }).await?;
        Ok(was_there)
    }

    async fn change(&self, change: CursorChange) -> Result<(), ErrorInfo> {
        let (done, answer) = oneshot::channel();
        let busy =
            || ErrorInfo::new(ErrorCode::Busy, "too many commits of cursors wait for the disk").retry_after_ms(1000);
        let wanted = self.wanted.get_or_init(|| {
            let (wanted, waiting) = mpsc::channel(WAITING_MAX);
            tokio::spawn(write(self.journal.clone(), waiting, self.max.clone()));
            wanted
        });
        wanted.try_send(Wanted { change, done }).map_err(|_| busy())?;
        answer.await.map_err(|_| ErrorInfo::new(ErrorCode::ShuttingDown, "clad is stopping"))?
    }

    /// The place is one of this log, and what lies below it is there to stay.
    fn check(&self, place: Cursor) -> Result<(), ErrorInfo> {
        let watermarks = self.journal.watermarks();
        let offset = cursor::resolve(&self.journal.meta(), watermarks.received, place)?;
        let end = watermarks.of(self.level);
        if offset > end {
            let text =
                format!("the records below offset {offset} are stored up to {end} so far: commit it a little later");
            return Err(ErrorInfo::new(ErrorCode::Busy, text).retry_after_ms(100));
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Option<NamedCursor> {
        let all = self.journal.cursors();
        let at = all.binary_search_by(|cursor| cursor.name.as_str().cmp(name)).ok()?;
        Some(all[at].clone())
    }

    /// The answer about a cursor.
    pub(crate) fn state(&self, request_id: u32, name: &str) -> CursorState {
        let log_id = LogId::from_bytes(self.journal.meta().log_id);
        let shown = |cursor: NamedCursor| {
            let look = self.look(cursor);
            Shown {
                place: Cursor { log_id, epoch: look.cursor.epoch, offset: look.cursor.offset },
                hold: look.cursor.hold,
                lost: look.lost,
                committed_ns: u64::try_from(look.cursor.committed_ns).unwrap_or(0),
                unread_from: look.unread_from,
                note: look.cursor.note.into(),
            }
        };
        CursorState { request_id, named: self.find(name).map(shown) }
    }

    fn look(&self, cursor: NamedCursor) -> Look {
        let unread_from = self.journal.unread_from(&cursor);
        let end = self.journal.watermarks().written;
        let lost = unread_from < self.journal.meta().lowest_offset;
        Look { unread_from, lag_records: end.saturating_sub(unread_from), lost, cursor }
    }

    /// All cursors, by name.
    pub(crate) fn all(&self) -> Vec<Look> {
        self.journal.cursors().iter().map(|cursor| self.look(cursor.clone())).collect()
    }

    /// Cursors that there may be.
    pub(crate) fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }
}

/// Writes the changes, those of one interval together.
async fn write(journal: Arc<Journal>, mut waiting: mpsc::Receiver<Wanted>, max: Arc<AtomicUsize>) {
    let mut next = Instant::now();
    let mut together = Vec::new();
    while let Some(first) = waiting.recv().await {
        sleep_until(next).await;
        together.push(first);
        while let Ok(more) = waiting.try_recv() {
            together.push(more);
        }
        let (changes, done): (Vec<_>, Vec<_>) = together.drain(..).map(|wanted| (wanted.change, wanted.done)).unzip();
        let (journal, max) = (journal.clone(), max.load(Ordering::Relaxed));
        let written = tokio::task::spawn_blocking(move || journal.change_cursors(&changes, max)).await;
        next = Instant::now() + COMMIT_INTERVAL;
        let answers = match written {
            Ok(Ok(answers)) => answers.into_iter().map(|answer| answer.or_else(refusal)).collect(),
            Ok(Err(error)) => vec![Err(failed(&error)); done.len()],
            Err(_) => vec![Err(ErrorInfo::new(ErrorCode::Internal, "the write of the cursors panicked")); done.len()],
        };
        done.into_iter().zip(answers).for_each(|(done, answer)| drop(done.send(answer)));
    }
}

fn failed(error: &io::Error) -> ErrorInfo {
    ErrorInfo::new(ErrorCode::JournalFailed, format!("the cursor could not be written: {error}")).retry_after_ms(1000)
}

fn refusal(error: CursorError) -> Result<(), ErrorInfo> {
    let code = match error {
        // It is not there: as it was asked for.
        CursorError::NotThere => return Ok(()),
        CursorError::BadName => ErrorCode::CursorInvalid,
        CursorError::NotOwner => ErrorCode::CursorNotYours,
        CursorError::TooMany { .. } => ErrorCode::TooManyCursors,
    };
    Err(ErrorInfo::new(code, error.to_string()))
}
