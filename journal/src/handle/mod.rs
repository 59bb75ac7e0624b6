//! The open journal: the shell around the committer.
//!
//! Threads wait for jobs and carry them out themselves (`workers.rs`): with an empty queue the woken thread makes the
//! write, with no further hand-over. A background thread prepares segments and applies retention. No thread works for
//! another part: a slow disk delays these threads alone.
//!
//! Invariant: the lock is held for decisions and for copies of one append or one burst, never over a call to the disk.
//! The watermarks are published after its release, and an older value never replaces a newer one.

mod close;
mod cursors;
pub(crate) mod losses;
#[cfg(feature = "models")]
mod model;
pub(crate) mod open;
pub(crate) mod status;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::clock::{Clock, Moment, SystemClock};
use crate::config::{JournalConfig, Policy, Retention};
use crate::env::{Event, Observer};
use crate::error::{AppendError, OpenError};
use crate::format::meta::Meta;
use crate::format::origin::OriginEntry;
use crate::io::{EngineOptions, OsStorage, Storage, device};
use crate::read::reader::Reader;
use crate::recover::Report;
use crate::run::background;
use crate::run::waiters::Watcher;
use crate::run::workers;
use crate::sync::atomic::Ordering;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Mutex, unpoisoned};
use crate::write::batch::BurstPermits;
use crate::write::committer::{Accepted, AfterRefusal, Append, Item, RotateAnswer, Sender};
use crate::write::permits::Permit;
use crate::write::producer::{ProducerId, ProducerState};
use crate::write::watermarks::{Level, Watermarks};

use self::losses::{AbandonedSegments, Losses, abandoned_of};
use self::open::open_shared;
use crate::run::deferred::AppendOutcome;
use crate::run::presence::Present;
use crate::run::shared::Shared;

/// An open journal. Dropping it without [`Journal::close`] is an unclean end.
pub struct Journal {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    report: Report,
    abandoned: Mutex<AbandonedSegments>,
}

impl Journal {
    /// Opens or creates the log in a folder of a real file system, and recovers it.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_dir(dir: &Path, config: JournalConfig, observer: Observer) -> Result<Self, OpenError> {
        config.check().map_err(OpenError::Config)?;
        let substrate = device::discover(dir);
        if let Policy::SyncFileRange { .. } = config.policy {
            substrate.range_sync(config.power_loss_protected).map_err(|e| OpenError::Config(e.to_string()))?;
        }
        let callback = observer.clone();
        let options = EngineOptions {
            wish: config.io_engine,
            in_flight: config.policy.in_flight(),
            on_fallback: Arc::new(move |fallback| callback(&Event::Fallback(fallback.clone()))),
        };
        let storage = OsStorage::open_with(dir, substrate.block_size, substrate.zeroing_pays(), &options)
            .map_err(OpenError::io(dir.display().to_string()))?;
        Self::open(Arc::new(storage), &dir.display().to_string(), SystemClock::shared(), config, observer)
    }

    /// Opens or creates the log on any storage. Blocks for as long as recovery takes.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        storage: Arc<dyn Storage>,
        dir: &str,
        clock: Arc<dyn Clock>,
        config: JournalConfig,
        observer: Observer,
    ) -> Result<Self, OpenError> {
        let (shared, report) = open_shared(storage, dir, clock, config, observer)?;
        let journal = Self { shared, threads: Mutex::new(Vec::new()), report, abandoned: Mutex::default() };
        journal.spawn_threads().map_err(OpenError::io("start the journal's threads"))?;
        Ok(journal)
    }

    fn spawn_threads(&self) -> std::io::Result<()> {
        let mut threads = unpoisoned(self.threads.lock());
        if let Some(ring) = self.shared.storage().ring() {
            ring.attach(workers::on_ring(&self.shared));
        }
        self.add_thread(&mut threads, "clad-prepare".to_owned(), background::run)?;
        self.add_writers(&mut threads, self.shared.env().config.policy.in_flight())
    }

    /// Starts the writing threads: one more than there may be writes in flight, or a single one beside a ring. The
    /// preparing thread is added to them.
    fn add_writers(&self, threads: &mut Vec<JoinHandle<()>>, in_flight: usize) -> std::io::Result<()> {
        let beside = if self.shared.storage().ring().is_some() { 0 } else { in_flight };
        for i in threads.len() - 1..=beside {
            self.add_thread(threads, format!("clad-write-{i}"), workers::run)?;
        }
        Ok(())
    }

    fn add_thread(
        &self,
        threads: &mut Vec<JoinHandle<()>>,
        name: String,
        run: fn(&Arc<Shared>),
    ) -> std::io::Result<()> {
        let present = Present::new(&self.shared);
        threads.push(thread::Builder::new().name(name).spawn(move || run(present.shared()))?);
        Ok(())
    }

    /// Findings and actions of the start.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Returns the acknowledged data that is known to be lost. Once a minute it scans `quarantine/`, which waits for
    /// the file system; if that fails, the last values stay.
    pub fn losses(&self) -> Losses {
        let abandoned = abandoned_of(&self.shared, &self.abandoned);
        Losses::of(&self.shared.env().meta.get(), &self.report, abandoned.into_iter())
    }

    /// The journal's clocks now, for [`Self::append`].
    pub fn now(&self) -> Moment {
        self.shared.env().now()
    }

    /// Takes runs of appends and gives each append its offset, without waiting for the disk; or refuses it, without a
    /// trace. All of one run, which has one sender, are taken before any of the next, and no other append comes between.
    /// `answer` is called for each in their order, under the lock: it must be quick. The lock is taken once and held
    /// over a copy of all of them, so the caller must bound them.
    ///
    /// `permit` is what admission counted for all of them together. Each accepted append holds its share as long as
    /// the journal holds its memory; the rest (of refused and resent appends) is released here.
    pub fn append<'a>(
        &self,
        runs: impl IntoIterator<Item = (&'a Sender<'a>, &'a [Item<'a>])>,
        after: AfterRefusal,
        permit: Option<Permit>,
        now: Moment,
        answer: impl FnMut(Result<Accepted, AppendError>),
    ) -> AppendOutcome {
        // What is left of it is returned after the lock.
        let mut permits = BurstPermits::new(permit);
        let mut core = self.shared.core();
        let before = core.committer.writer.pending_bytes();
        core.committer.append(runs, after, now, &mut permits, answer);
        AppendOutcome { deferred_write: self.shared.defer_write(core, before, now) }
    }

    /// The watermarks now.
    pub fn watermarks(&self) -> Watermarks {
        self.shared.watermarks()
    }

    /// The watermarks as they move: the newest value, not every one.
    pub fn subscribe(&self) -> watch::Receiver<Watermarks> {
        self.shared.watermarks.subscribe()
    }

    /// Returns a watcher that waits for offsets and is woken for no others.
    pub fn watcher(&self) -> Watcher {
        self.shared.watermarks.watcher()
    }

    /// State of a producer.
    ///
    /// # Errors
    /// [`AppendError::NotOwner`].
    pub fn producer(&self, id: &ProducerId, owner: u64) -> Result<Option<ProducerState>, AppendError> {
        self.shared.core().committer.sequencer.producer(id, owner)
    }

    /// State of a producer that is about to append by another way than before: checked as its next append will be.
    ///
    /// # Errors
    /// Errors that its next append would get for reasons of its producer: [`AppendError::NotOwner`],
    /// [`AppendError::Fenced`], [`AppendError::TooManyProducers`]. Acceptance by the log as a whole is not checked.
    pub fn may_append(&self, id: &ProducerId, owner: u64, epoch: u32) -> Result<Option<ProducerState>, AppendError> {
        self.shared.core().committer.sequencer.may_append(id, owner, epoch, self.now())
    }

    /// True if a record of a producer that was once taken is (still) in the log, by its sequence: a recovery may have
    /// dropped it. Nothing if unknown, as for a producer that is not remembered.
    pub fn is_stored(&self, id: &ProducerId, owner: u64, sequence: u64) -> Option<bool> {
        self.shared.core().committer.sequencer.is_stored(id, owner, sequence, self.now())
    }

    /// Begins a producer's session: earlier epochs are fenced. While it lasts, the producer is not forgotten and does
    /// not pass to another owner, even if nothing of it is stored yet. End it by [`Journal::disconnect`].
    ///
    /// `counted` is the owner whose share of the producers it counts in: its uid, or
    /// [`NETWORK`](crate::write::owner_bytes::NETWORK).
    ///
    /// # Errors
    /// [`AppendError::NotOwner`], [`AppendError::Forgetting`]; there is no session then.
    pub fn connect(&self, id: &ProducerId, owner: u64, epoch: u32, counted: u64) -> Result<(), AppendError> {
        self.shared.core().committer.sequencer.connect(id, owner, epoch, counted)
    }

    /// Waits while a recently forgotten earlier life of a producer blocks its session: until the log durably contains
    /// its tombstone. Takes a write and a sync at most, where the disk works and has room. Cancel safe.
    pub async fn forgotten(&self, id: &ProducerId) {
        let mut watermarks = self.subscribe();
        while self.shared.core().committer.sequencer.is_forgetting(id) {
            self.shared.work.notify_one();
            if watermarks.changed().await.is_err() {
                return;
            }
        }
    }

    /// Ends a session. `forget`: the producer said that it will not come back, and has nothing unacknowledged. It is
    /// unknown from now on, and after a crash once the log contains its tombstone ([`Self::forgotten`]).
    pub fn disconnect(&self, id: &ProducerId, forget: bool) {
        let looks = self.shared.core().committer.disconnect(id, forget);
        if looks {
            self.shared.work.notify_one();
        }
    }

    /// An origin, as it is now: what was received of it counts.
    pub fn origin(&self, owner: u64, producer: &ProducerId) -> Option<OriginEntry> {
        self.shared.core().committer.sequencer.origins().get(owner, producer)
    }

    /// All origins.
    pub fn origins(&self) -> Vec<OriginEntry> {
        self.shared.core().committer.sequencer.origins().all()
    }

    /// Forgets an origin: its next append must begin it again. `false` where it is not known. It is unknown from now on,
    /// and after a crash once the log contains its tombstone ([`Self::forgotten`] of its tombstone id).
    pub fn drop_origin(&self, origin: &OriginEntry) -> bool {
        let dropped = self.shared.core().committer.drop_origin(origin.owner, &origin.producer);
        if dropped == Some(true) {
            self.shared.work.notify_one();
        }
        dropped.is_some()
    }

    /// Replaces the number of origins that are taken. None is forgotten.
    pub fn set_max_origins(&self, max: usize) {
        self.shared.with(|c| c.sequencer.origins_mut().set_max(max));
    }

    /// Number of producers of each owner, in no order, and the total above which newcomers are judged by their owner's
    /// share.
    pub fn producers_by_owner(&self) -> (Vec<(u64, usize)>, usize) {
        self.shared.core().committer.sequencer.producers_by_owner()
    }

    /// Requests that everything received so far becomes durable, and returns the end that `durable` then reaches.
    pub fn request_sync(&self) -> u64 {
        let target = self.shared.core().committer.request_sync();
        self.shared.wake_all();
        target
    }

    /// Seals the active segment. The answer is (number, first offset, end), or nothing if it held no record.
    pub fn rotate(&self) -> oneshot::Receiver<RotateAnswer> {
        let (reply, answer) = oneshot::channel();
        self.shared.core().committer.request_rotate(reply);
        self.shared.wake_all();
        answer
    }

    /// Returns a reader from `from` on, of records below `level`.
    pub fn reader(&self, from: u64, level: Level) -> Reader {
        Reader::new(self.shared.clone(), from, level)
    }

    /// The longest payload of an append that this journal takes: a longer one is refused with [`AppendError::Size`].
    pub fn max_append_bytes(&self) -> u32 {
        self.shared.core().committer.max_append_bytes
    }

    /// Content of `clad.meta`: log id, epochs, offsets removed by retention.
    pub fn meta(&self) -> Meta {
        self.shared.env().meta.get()
    }

    /// The rules of retention.
    pub fn retention(&self) -> Retention {
        self.shared.retention()
    }

    /// Replaces the rules of retention.
    pub fn set_retention(&self, retention: Retention) {
        self.shared.set_retention(retention);
    }

    /// Replaces the age at which the active segment is sealed.
    pub fn set_rotate_after(&self, age: Duration) {
        self.shared.with(|c| c.rotate_after = age);
        self.shared.wake_all();
    }

    /// Replaces the settings of batches under `group_commit` and `sync_file_range`; does nothing under another policy.
    /// `max_delay` and `max_bytes` hold from the next batch on, as do fewer writes in flight; more of them begin with
    /// the next segment.
    ///
    /// # Errors
    /// Where a thread for a further write cannot be started; then nothing was changed.
    pub fn set_group_commit(&self, max_delay: Duration, max_bytes: u32, in_flight: usize) -> std::io::Result<()> {
        if !matches!(self.shared.env().config.policy, Policy::GroupCommit { .. } | Policy::SyncFileRange { .. }) {
            return Ok(());
        }
        let in_flight = in_flight.max(1);
        let mut threads = unpoisoned(self.threads.lock());
        if !threads.is_empty() {
            self.add_writers(&mut threads, in_flight)?;
        }
        drop(threads);
        self.shared.env().in_flight.store(in_flight, Ordering::Relaxed);
        self.shared.with(|c| c.set_group_commit(max_delay, max_bytes, in_flight));
        self.shared.wake_all();
        Ok(())
    }

    /// Replaces the number of producers that are remembered. If it is less than there are, none is forgotten early:
    /// newcomers are refused until enough have been silent for [`JournalConfig::keep_producer`].
    pub fn set_max_producers(&self, max: usize) {
        self.shared.with(|c| c.sequencer.set_max_producers(max));
    }
}

impl Append<'_> {
    /// [`Journal::append`] of a run of one, now; a thread of the journal makes the write.
    ///
    /// # Errors
    /// [`AppendError`].
    pub fn submit(self, journal: &Journal) -> Result<Accepted, AppendError> {
        let (from, item, permit) = self.split();
        let mut answer = None;
        let runs = [(&from, &[item][..])];
        drop(journal.append(runs, AfterRefusal::Judge, permit, journal.now(), |a| answer = Some(a)));
        answer.expect("a run of one has one answer")
    }
}
