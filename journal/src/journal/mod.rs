//! The open journal: the shell around the committer.
//!
//! Threads wait for jobs and carry them out themselves (`workers.rs`): with an empty queue the thread that is woken makes
//! the write, with no further hand-over. A background thread prepares segments and applies retention. None of them is
//! anybody else's worker: a slow disk holds up these threads alone.
//!
//! What must hold: the lock is held for decisions and copies of one append or one burst, never over a call to the disk; the watermarks
//! are published after it is released, and an older value never replaces a newer one.

mod close;
mod deferred_write;
mod losses;
#[cfg(feature = "models")]
mod model;
mod shared;
mod status;

use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::background;
use crate::batch_builder::BurstPermits;
use crate::clock::{Clock, Moment, SystemClock};
use crate::committer::{Accepted, Append, Committer, Item, RotateAnswer, Sender};
use crate::config::{JournalConfig, Policy, Retention};
use crate::env::{Event, Observer};
use crate::error::{AppendError, OpenError};
use crate::format::meta::Meta;
use crate::io::{EngineOptions, OsStorage, Storage, device};
use crate::permit::Permit;
use crate::producer::{ProducerId, ProducerState};
use crate::reader::Reader;
use crate::recovery::Report;
use crate::sync::atomic::Ordering;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Mutex, MutexGuard};
use crate::watcher::Watcher;
use crate::watermark::{Level, Watermarks};
use crate::workers;

use self::close::Present;
pub use deferred_write::{DeferredWrite, WriteBuffer};
pub use losses::Losses;
pub(crate) use shared::{Core, Shared, open_shared};
pub use status::{SegmentSummary, Stalled, Status};

/// An open journal. Dropping it without [`Journal::close`] is an unclean end.
pub struct Journal {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Journal {
    /// Opens or makes the log in a folder of a real file system, and recovers it.
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
            write_bytes: config.policy.batch_bytes(),
            on_fallback: Arc::new(move |fallback| callback(&Event::Fallback(fallback.clone()))),
        };
        let storage = OsStorage::open_with(dir, substrate.block_size, substrate.zeroing_pays(), &options)
            .map_err(OpenError::io(dir.display().to_string()))?;
        Self::open(Arc::new(storage), &dir.display().to_string(), SystemClock::shared(), config, observer)
    }

    /// Opens or makes the log on any storage. Blocks for as long as recovery takes.
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
        let shared = open_shared(storage, dir, clock, config, observer)?;
        let journal = Self { threads: Mutex::new(Vec::new()), shared };
        journal.spawn_threads().map_err(OpenError::io("start the journal's threads"))?;
        Ok(journal)
    }

    fn spawn_threads(&self) -> std::io::Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ring) = self.shared.storage().ring() {
            ring.attach(workers::on_ring(&self.shared));
        }
        self.add_thread(&mut threads, "clad-prepare".to_owned(), background::run)?;
        self.add_writers(&mut threads, self.shared.env().config.policy.in_flight())
    }

    /// One more thread than there may be writes in flight, or a single one beside a ring; with them stands the one that
    /// prepares.
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

    /// What the start found and did.
    pub fn report(&self) -> &Report {
        &self.shared.report
    }

    /// Takes an append and gives it its offset, without waiting for the disk; or refuses it, without a trace.
    ///
    /// # Errors
    /// [`AppendError`].
    pub fn append(&self, append: Append<'_>) -> Result<Accepted, AppendError> {
        self.append_at(append, self.now())
    }

    /// The journal's clocks now, for [`Self::append_at`].
    pub fn now(&self) -> Moment {
        self.shared.env().now()
    }

    /// As [`Self::append`], for who takes many at once and reads the clocks once for all of them.
    ///
    /// # Errors
    /// [`AppendError`].
    pub fn append_at(&self, append: Append<'_>, now: Moment) -> Result<Accepted, AppendError> {
        let (core, before, accepted) = self.taken_alone(append, now)?;
        self.shared.wake_after(core, before, now);
        Ok(accepted)
    }

    /// Has the committer take one append. The lock is given back held, with how much had gathered before.
    fn taken_alone(
        &self,
        append: Append<'_>,
        now: Moment,
    ) -> Result<(MutexGuard<'_, Core>, usize, Accepted), AppendError> {
        let mut core = self.shared.core();
        let before = core.committer.pending_bytes();
        let accepted = core.committer.append(append, now)?;
        Ok((core, before, accepted))
    }

    /// Takes the appends of one sender that came together: each is taken or refused exactly as if it had come alone, in
    /// their order, and `answer` is called for each in that order, under the lock: it must be quick. The lock is taken
    /// once and held over a copy of all of them, so who calls bounds the burst.
    ///
    /// `permit` is what admission counted for all of them together. Of it, each append that is taken keeps its share for
    /// as long as the journal holds its memory; what is left (of refused appends and of resent ones) is given back here.
    pub fn append_burst(
        &self,
        from: &Sender<'_>,
        burst: &[Item<'_>],
        permit: Option<Permit>,
        now: Moment,
        answer: impl FnMut(Result<Accepted, AppendError>),
    ) {
        self.with_burst_permits(permit, now, |committer, permits| {
            committer.append_burst(from, burst, now, permits, answer)
        });
    }

    /// As [`Self::append_burst`], for several senders in turn: all of one run are taken before any of the next, and
    /// nobody else's append comes between.
    ///
    /// What is refused for now is not overtaken: where the journal refuses whoever comes ([`AppendError::is_for_all`]), it
    /// refuses all that is behind, with the same error, and where it refuses one sender
    /// ([`AppendError::is_for_now`]), all of that sender's. So an item may have its gap mark where all before it is stored
    /// or refused for good: it jumps over nothing that waits.
    pub fn append_runs<'a>(
        &self,
        runs: impl IntoIterator<Item = (&'a Sender<'a>, &'a [Item<'a>])>,
        permit: Option<Permit>,
        now: Moment,
        answer: impl FnMut(Result<Accepted, AppendError>),
    ) {
        self.with_burst_permits(permit, now, |committer, permits| committer.append_runs(runs, now, permits, answer));
    }

    /// Has the committer take what came together, at one lock, and wakes whom that wants awake.
    fn with_burst_permits(
        &self,
        permit: Option<Permit>,
        now: Moment,
        take: impl FnOnce(&mut Committer, &mut BurstPermits),
    ) {
        let (core, before, _permits) = self.taken(permit, take);
        self.shared.wake_after(core, before, now);
    }

    /// Has the committer take what came together. The lock is given back held, with how much had gathered before, and what
    /// is left of the permit: it is to go after the lock.
    fn taken(
        &self,
        permit: Option<Permit>,
        take: impl FnOnce(&mut Committer, &mut BurstPermits),
    ) -> (MutexGuard<'_, Core>, usize, BurstPermits) {
        let mut permits = BurstPermits::new(permit);
        let mut core = self.shared.core();
        let before = core.committer.pending_bytes();
        take(&mut core.committer, &mut permits);
        (core, before, permits)
    }

    /// The watermarks now.
    pub fn watermarks(&self) -> Watermarks {
        self.shared.watermarks()
    }

    /// The watermarks as they move: the newest value, not every one.
    pub fn subscribe(&self) -> watch::Receiver<Watermarks> {
        self.shared.watermarks.subscribe()
    }

    /// Calls `callback` each time the watermarks have moved, in the thread that moved them: it must be quick. It is not told
    /// where they are: of two threads that move them, the later may be here first. For one listener: a second call
    /// changes nothing.
    pub fn on_watermarks(&self, callback: impl Fn() + Send + Sync + 'static) {
        self.shared.watermarks.listen(callback);
    }

    /// To wait for offsets, and be woken for no others.
    pub fn watcher(&self) -> Watcher {
        self.shared.watermarks.watcher()
    }

    /// Where a producer stands.
    ///
    /// # Errors
    /// [`AppendError::NotOwner`].
    pub fn producer(&self, id: &ProducerId, owner: u64) -> Result<Option<ProducerState>, AppendError> {
        self.shared.core().committer.producer(id, owner)
    }

    /// Where a producer stands that is about to append, by another way than before: asked as its next append will be.
    ///
    /// # Errors
    /// What its next append would be refused with for its producer's sake: [`AppendError::NotOwner`],
    /// [`AppendError::Fenced`], [`AppendError::TooManyProducers`]. Whether the log takes anything now is not asked.
    pub fn may_append(&self, id: &ProducerId, owner: u64, epoch: u32) -> Result<Option<ProducerState>, AppendError> {
        self.shared.core().committer.may_append(id, owner, epoch, self.now())
    }

    /// Whether a record of a producer that was taken once is (still) in the log, by its sequence: a recovery may have had to
    /// let go of it. Nothing where that cannot be said, as of a producer that is not remembered.
    pub fn is_stored(&self, id: &ProducerId, owner: u64, sequence: u64) -> Option<bool> {
        self.shared.core().committer.is_stored(id, owner, sequence, self.now())
    }

    /// A producer's session begins: earlier epochs are fenced, and while it lasts the producer is not forgotten, nor
    /// anybody else's, though nothing of it may be stored yet. To be ended by [`Journal::disconnect`].
    ///
    /// `counted` is the owner whose share of the producers it is of: his uid, or [`NETWORK`](crate::owner_bytes::NETWORK).
    ///
    /// # Errors
    /// [`AppendError::NotOwner`], [`AppendError::Forgetting`]; there is no session then.
    pub fn connect(&self, id: &ProducerId, owner: u64, epoch: u32, counted: u64) -> Result<(), AppendError> {
        self.shared.core().committer.connect(id, owner, epoch, counted)
    }

    /// Waits until nothing keeps a producer's session from beginning because an earlier life of it was forgotten a moment
    /// ago: until the log says so, durably. A write and a sync at most, where the disk works and has room. Cancel safe.
    pub async fn forgotten(&self, id: &ProducerId) {
        let mut watermarks = self.subscribe();
        while self.shared.core().committer.is_forgetting(id) {
            self.shared.work.notify_one();
            if watermarks.changed().await.is_err() {
                return;
            }
        }
    }

    /// A session ends. `forget`: the producer said that it will not come back, and has nothing unacknowledged. It is unknown
    /// from now on, and after a crash once the log says so ([`Self::forgotten`]).
    pub fn disconnect(&self, id: &ProducerId, forget: bool) {
        let looks = self.shared.core().committer.disconnect(id, forget);
        if looks {
            self.shared.work.notify_one();
        }
    }

    /// How many producers each owner has, in no order, and how many there may be before newcomers are judged by their
    /// owner's share.
    pub fn producers_by_owner(&self) -> (Vec<(u64, usize)>, usize) {
        self.shared.core().committer.producers_by_owner()
    }

    /// Asks for everything received so far to become durable, and returns the end that `durable` then reaches.
    pub fn request_sync(&self) -> u64 {
        let target = self.shared.core().committer.request_sync();
        self.shared.wake_all();
        target
    }

    /// Seals the active segment. The answer is (number, first offset, end), or nothing where it held no record.
    pub fn rotate(&self) -> oneshot::Receiver<RotateAnswer> {
        let (reply, answer) = oneshot::channel();
        self.shared.core().committer.request_rotate(reply);
        self.shared.wake_all();
        answer
    }

    /// A reader from `from` on, of what is below `level`.
    pub fn reader(&self, from: u64, level: Level) -> Reader {
        Reader::new(self.shared.clone(), from, level)
    }

    /// The longest payload of an append that this journal takes: whatever is longer is refused with [`AppendError::Size`].
    pub fn max_append_bytes(&self) -> u32 {
        self.shared.core().committer.max_append_bytes()
    }

    /// What `clad.meta` says: log id, epochs, what retention removed.
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
        self.shared.with(|c| c.set_rotate_after(age));
        self.shared.wake_all();
    }

    /// Replaces how batches gather, under `group_commit` and `sync_file_range`; does nothing under another policy. `max_delay` and `max_bytes` hold from
    /// the next batch on, as do fewer writes in flight; more of them begin with the next segment.
    ///
    /// # Errors
    /// Where a thread for a further write cannot be started; then nothing was changed.
    pub fn set_group_commit(&self, max_delay: Duration, max_bytes: u32, in_flight: usize) -> std::io::Result<()> {
        if !matches!(self.shared.env().config.policy, Policy::GroupCommit { .. } | Policy::SyncFileRange { .. }) {
            return Ok(());
        }
        let in_flight = in_flight.max(1);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if !threads.is_empty() {
            self.add_writers(&mut threads, in_flight)?;
        }
        drop(threads);
        self.shared.env().in_flight.store(in_flight, Ordering::Relaxed);
        self.shared.with(|c| c.set_group_commit(max_delay, max_bytes, in_flight));
        self.shared.wake_all();
        Ok(())
    }

    /// Replaces how many producers are remembered. Where it is less than there are, nobody is forgotten for it before its
    /// time: newcomers are refused until enough have been silent for [`JournalConfig::keep_producer`].
    pub fn set_max_producers(&self, max: usize) {
        self.shared.with(|c| c.set_max_producers(max));
    }
}
