//! Giving records out: a READ becomes a task that reads batches and sends frames.
//!
//! Invariants: disk reads are made off the runtime's workers. One block of frames is in memory for each of the
//! channel's places and no more: a slow reader holds only its own place in the log. A cursor of an abandoned history is
//! refused with the place where the histories part, never skipped over in silence. Whatever the number of READs and the
//! records that they pass over, other users of the runtime's blocking threads find some. An owner's READs hold up only
//! themselves: at most [`CONCURRENT_LOOKS_MAX`] of [`stream::LOOK_BYTES_MAX`] bytes are made at once, in turn, and half
//! of them for one owner.

mod cursor;
mod item;
mod named_cursors;
mod sieve;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use clad_journal::{Journal, Level};
use clad_proto::frame::{Read, ReadFrom};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo, LogId};
use tokio::sync::Semaphore;

use crate::ingest::quota::{Owner, Quota, QuotaUsage};
use crate::ingest::slots::Slots;
use crate::ops::metrics;
use sieve::{FILTER_EXPRESSIONS_MAX, Sieve};
use stream::ReadSlots;

pub(crate) use cursor::is_there;
pub(crate) use item::{Block, Item};
pub(crate) use named_cursors::NamedCursors;
pub(crate) use stream::{Ended, ReadStream};

/// Looks at the log at once, over all READs; half of them for one owner who is alone.
const CONCURRENT_LOOKS_MAX: usize = 16;
/// Open READs over all connections; half of them for one owner who is alone.
const OPEN_READS_MAX: usize = 512;

/// Starts reads.
pub(crate) struct Reads {
    journal: Arc<Journal>,
    /// The highest level that the log's storage can keep.
    reach: AckLevel,
    looks: Arc<Quota>,
    open: Arc<Slots>,
    /// Regular expressions in filters.
    expressions: Arc<Semaphore>,
    pub(crate) cursors: NamedCursors,
}

impl Reads {
    pub(crate) fn new(journal: Arc<Journal>, reach: AckLevel) -> Arc<Self> {
        Arc::new(Self {
            cursors: NamedCursors::new(journal.clone(), reach),
            journal,
            reach,
            looks: Quota::new(CONCURRENT_LOOKS_MAX),
            open: Slots::new(OPEN_READS_MAX, 0, usize::MAX),
            expressions: Arc::new(Semaphore::new(FILTER_EXPRESSIONS_MAX)),
        })
    }

    /// READs of each owner.
    pub(crate) fn quota_usage(&self) -> QuotaUsage {
        self.open.quota_usage()
    }

    /// Checks a READ and finds its place.
    ///
    /// # Errors
    /// A cursor that is not of this log, or of an abandoned history; a level that has no reads, or that this log cannot
    /// keep; a filter that is not evaluated; too many READs.
    pub(crate) fn start(&self, read: &Read, owner: Owner) -> Result<ReadStream, ErrorInfo> {
        let level = match read.min_level {
            AckLevel::Written => Level::Written,
            AckLevel::Durable if self.reach < AckLevel::Durable => {
                let text = "nothing is durable on this log's storage (`clactl status`); read at `written`";
                return Err(ErrorInfo::new(ErrorCode::LevelUnreachable, text));
            }
            AckLevel::Durable => Level::Durable,
            other => {
                let text = format!("records are read at `written` or `durable`, not at `{other}`");
                return Err(ErrorInfo::new(ErrorCode::LevelUnreachable, text));
            }
        };
        let meta = self.journal.meta();
        let watermarks = self.journal.watermarks();
        let end = watermarks.of(level);
        let from = match read.from {
            // An offset that was given may be read before it has reached the level; any other is a mistake.
            ReadFrom::Offset(offset) if offset > watermarks.received => {
                let text = format!("the offset is {offset}, this log ends at {}", watermarks.received);
                return Err(ErrorInfo::new(ErrorCode::CursorUnknown, text));
            }
            ReadFrom::Offset(offset) => offset,
            ReadFrom::Cursor(cursor) => cursor::resolve(&meta, watermarks.received, cursor)?,
            ReadFrom::Tail(n) => end.saturating_sub(n).max(meta.lowest_offset),
        };
        let sieve = read.filter.as_ref().map(|filter| Sieve::new(filter, &self.expressions)).transpose()?;
        // A READ that does not follow gets the records that there are now, and an end, however fast the log grows.
        let stop_at = if read.follow { u64::MAX } else { end };
        let Some(open) = self.open.take(owner) else {
            metrics::refused_for_share(metrics::Share::Reads);
            let text = format!(
                "too many READs are open ({OPEN_READS_MAX} over all connections; a user, or the network, has at most half of what \
                 others leave)"
            );
            return Err(ErrorInfo::new(ErrorCode::Busy, text).retry_after_ms(1000));
        };
        let slots = ReadSlots::new(self.looks.handle(owner), open);
        let log_id = LogId::from_bytes(meta.log_id);
        Ok(ReadStream::new(self.journal.clone(), log_id, read.clone(), (from, stop_at), level, sieve, slots))
    }
}
