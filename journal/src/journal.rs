//! The open journal: the shell around the committer.
//!
//! Threads wait for jobs and carry them out themselves (`workers.rs`): with an empty queue the thread that is woken makes
//! the write, with no further hand-over. A background thread prepares segments and applies retention. None of them is
//! anybody else's worker: a slow disk holds up these threads alone.
//!
//! What must hold: the lock is held for decisions and copies of one append or one burst, never over a call to the disk; the marks
//! are published after it is released, and an older value never replaces a newer one.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

use crate::background;
use crate::catalog::{Catalog, Sealed};
use crate::clock::{Clock, Moment, SystemClock};
use crate::committer::{Accepted, Append, Committer, Done, Failure, Item, RotateAnswer, Sender, Step};
use crate::config::{JournalConfig, Policy, Retention};
use crate::env::{Env, Event, Observer};
use crate::error::{AppendError, OpenError};
use crate::executor::Executor;
use crate::format::meta::Meta;
use crate::format::segment::SegmentHeader;
use crate::gather::{Batch, Purse};
use crate::io::{EngineOptions, EngineReport, IoBuf, OsStorage, Storage, device};
use crate::marks::{Level, Marks};
use crate::prepare;
use crate::producer::{ProducerId, ProducerState};
use crate::reader::Reader;
use crate::recovery::{self, Report};
use crate::workers::{self, Watch};

/// An open journal. Dropping it without [`Journal::close`] is an unclean end.
pub struct Journal {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What the threads share.
pub(crate) struct Shared {
    core: Mutex<Core>,
    pub(crate) work: Condvar,
    marks: watch::Sender<Marks>,
    pub(crate) executor: Executor,
    catalog: Arc<Catalog>,
    retention: Mutex<Retention>,
    background: (Mutex<bool>, Condvar),
    closing: AtomicBool,
    /// Threads that are inside a call to the disk: as slow as it is, and not ours to hurry.
    pub(crate) at_disk: AtomicUsize,
    /// Segments that were used again.
    pub(crate) recycled: AtomicU64,
    pub(crate) report: Report,
    /// Keeps a second daemon out until the journal is gone; a reader that outlives it does not hold it.
    lock: Mutex<Option<Arc<dyn crate::io::File>>>,
}

pub(crate) struct Core {
    pub(crate) committer: Committer,
    pub(crate) watch: Watch,
    active_header: Option<SegmentHeader>,
    /// Signs of life that were asked for, and the last that a writing thread gave.
    pub(crate) asked: u64,
    pub(crate) given: u64,
}

/// Why a journal does not get on by itself any more, for a watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stalled {
    /// A thread has ended though the journal is open.
    #[error("a thread of the journal has ended")]
    Ended,
    /// No writing thread answered since the last question, and not all of them wait for the disk.
    #[error("the journal's writing threads do not get on, and it is not the disk that they wait for")]
    Silent,
}

/// A journal's numbers at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// The log's id.
    pub log_id: [u8; 16],
    /// The watermarks.
    pub marks: Marks,
    /// Offsets below this were removed by retention.
    pub lowest_offset: u64,
    /// Segments in the folder, the prepared one included.
    pub segments: usize,
    /// Bytes that they hold.
    pub bytes: u64,
    /// Whether the next segment is ready.
    pub prepared: bool,
    /// Greatest append time in the oldest sealed segment, real: everything appended later is kept. `None` before one is
    /// sealed, or in the moment after a start or a removal in which its footer was not read yet.
    pub oldest_segment_ns: Option<i64>,
    /// Why the journal does not take appends, if it failed.
    pub failure: Option<String>,
    /// Bytes that wait for the disk.
    pub in_flight_bytes: usize,
    /// How long the oldest record has been waiting to become durable.
    pub oldest_undurable: Option<Duration>,
    /// Producers that are remembered.
    pub producers: usize,
    /// Room in the file system.
    pub space: crate::io::Space,
    /// What issues the writes, why, and what had to be done without.
    pub engine: EngineReport,
    /// Batches that the thread which took them wrote itself, because nothing was in flight.
    pub inline_batches: u64,
    /// Segments since the start that were written over one that retention removed.
    pub recycled: u64,
}

/// One segment, for a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSummary {
    /// Its number.
    pub number: u64,
    /// Its first offset.
    pub first_offset: u64,
    /// One past its last offset.
    pub end_offset: u64,
    /// Bytes of its file (of its batches, where it is active).
    pub bytes: u64,
    /// Sealed, or active.
    pub sealed: bool,
    /// Least and greatest record time, where it is sealed and holds a record.
    pub times_ns: Option<(i64, i64)>,
    /// Its header and footer cannot be believed.
    pub damaged: bool,
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
        let told = observer.clone();
        let options = EngineOptions {
            wish: config.io_engine,
            in_flight: config.policy.in_flight(),
            write_bytes: config.policy.batch_bytes(),
            on_fallback: Arc::new(move |fallback| told(&Event::Fallback(fallback.clone()))),
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
        let shared = self.shared.clone();
        let name = "clad-prepare".to_owned();
        threads.push(std::thread::Builder::new().name(name).spawn(move || background::run(&shared))?);
        self.add_writers(&mut threads, self.shared.env().config.policy.in_flight())
    }

    /// One more thread than there may be writes in flight, or a single one beside a ring; with them stands the one that
    /// prepares.
    fn add_writers(&self, threads: &mut Vec<JoinHandle<()>>, in_flight: usize) -> std::io::Result<()> {
        let beside = if self.shared.storage().ring().is_some() { 0 } else { in_flight };
        for i in threads.len() - 1..=beside {
            let shared = self.shared.clone();
            let named = std::thread::Builder::new().name(format!("clad-write-{i}"));
            threads.push(named.spawn(move || workers::run(&shared))?);
        }
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
        let mut core = self.shared.core();
        let before = core.committer.gathered_bytes();
        let accepted = core.committer.append(append, now)?;
        let wake = self.shared.wants_waking(&mut core, before, now);
        drop(core);
        self.shared.wake_one(wake);
        Ok(accepted)
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
        permit: Option<OwnedSemaphorePermit>,
        now: Moment,
        answer: impl FnMut(Result<Accepted, AppendError>),
    ) {
        let mut purse = Purse::new(permit);
        let mut core = self.shared.core();
        let before = core.committer.gathered_bytes();
        core.committer.append_burst(from, burst, now, &mut purse, answer);
        let wake = self.shared.wants_waking(&mut core, before, now);
        drop(core);
        self.shared.wake_one(wake);
    }

    /// The watermarks now.
    pub fn marks(&self) -> Marks {
        self.shared.marks()
    }

    /// The watermarks as they move: the newest value, not every one.
    pub fn subscribe(&self) -> watch::Receiver<Marks> {
        self.shared.marks.subscribe()
    }

    /// Where a producer stands.
    ///
    /// # Errors
    /// [`AppendError::NotOwner`].
    pub fn producer(&self, id: &ProducerId, owner: u64) -> Result<Option<ProducerState>, AppendError> {
        self.shared.core().committer.producer(id, owner)
    }

    /// A producer's session begins: earlier epochs are fenced, and it is not forgotten while it lasts.
    pub fn connect(&self, id: &ProducerId, epoch: u32) {
        self.shared.core().committer.connect(id, epoch);
    }

    /// A session ends. `forget`: the producer said that it will not come back, and has nothing unacknowledged.
    pub fn disconnect(&self, id: &ProducerId, forget: bool) {
        self.shared.core().committer.disconnect(id, forget);
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

    /// Asks the writing threads for a sign of life, and tells whether the one asked for by the call before came. To be
    /// called every few seconds: between two calls a thread that can run has run.
    ///
    /// A slow disk is no stall: threads inside a call to it answer when it is over.
    ///
    /// # Errors
    /// [`Stalled`]: a restart may help, waiting will not.
    pub fn heartbeat(&self) -> Result<(), Stalled> {
        if self.shared.is_closing() {
            return Ok(()); // threads end, and the drain has a deadline of its own
        }
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.iter().any(JoinHandle::is_finished) {
            return Err(Stalled::Ended);
        }
        let writers = threads.len().saturating_sub(1); // one prepares
        drop(threads);
        let mut core = self.shared.core();
        let answered = core.given == core.asked;
        if answered {
            core.asked += 1;
        }
        drop(core);
        self.shared.work.notify_one();
        let all_at_disk = writers > 0 && self.shared.at_disk.load(Ordering::Relaxed) >= writers;
        if answered || all_at_disk { Ok(()) } else { Err(Stalled::Silent) }
    }

    /// A reader from `from` on, of what is below `level`.
    pub fn reader(&self, from: u64, level: Level) -> Reader {
        Reader::new(self.shared.clone(), from, level)
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
        *self.shared.retention.lock().unwrap_or_else(PoisonError::into_inner) = retention;
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

    /// The numbers of the moment.
    pub fn status(&self) -> Status {
        let shared = &self.shared;
        let meta = shared.env().meta.get();
        let (sealed, sealed_bytes) = shared.catalog.totals();
        let oldest_segment_ns = shared.catalog.first().and_then(|s| s.known_summary()).map(|s| s.max_append_ns);
        let capacity = shared.env().config.segment_bytes;
        let now = shared.env().clock.boot_ns();
        let core = shared.core();
        let c = &core.committer;
        Status {
            log_id: meta.log_id,
            marks: c.marks(),
            lowest_offset: meta.lowest_offset,
            segments: sealed + c.segments_held(),
            bytes: sealed_bytes + c.segments_held() as u64 * capacity,
            prepared: c.has_prepared(),
            oldest_segment_ns,
            failure: c.failure(),
            in_flight_bytes: c.in_flight_bytes(),
            oldest_undurable: c.oldest_undurable_boot_ns().map(|t| Duration::from_nanos(now.saturating_sub(t))),
            producers: c.producers_len(),
            space: shared.storage().space().unwrap_or_default(),
            engine: shared.storage().engine(),
            inline_batches: shared.executor.inline_batches(),
            recycled: shared.recycled.load(Ordering::Relaxed),
        }
    }

    /// The number of the active segment, if there is one at this moment.
    pub fn active_segment(&self) -> Option<u64> {
        self.shared.core().committer.active_summary().map(|s| s.0)
    }

    /// All segments with records, oldest first. Reads the footers that were not needed before.
    pub fn segments(&self) -> Vec<SegmentSummary> {
        let storage = self.shared.storage();
        let mut all: Vec<_> = self.shared.catalog.all().iter().map(|s| summary(s, storage.as_ref())).collect();
        let core = self.shared.core();
        if let Some((number, first_offset, pos, _)) = core.committer.active_summary() {
            let end_offset = core.committer.marks().written.max(first_offset);
            let active = SegmentSummary {
                number,
                first_offset,
                end_offset,
                bytes: pos,
                sealed: false,
                times_ns: None,
                damaged: false,
            };
            all.push(active);
        }
        all
    }

    /// Stops taking appends; what was taken goes on to the disk. [`Journal::close`] waits for it.
    pub fn begin_close(&self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        self.shared.with(Committer::close);
        self.shared.publish();
        self.shared.wake_all();
        *self.shared.background.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.background.1.notify_all();
    }

    /// Drains, seals, marks a clean end, and says whether it came to that within `deadline`. Blocks.
    pub fn close(&self, deadline: Duration) -> bool {
        self.begin_close();
        let until = Duration::from_nanos(self.shared.env().clock.boot_ns()) + deadline;
        let clean = loop {
            if let Some(clean) = self.shared.with(|c| c.closed()) {
                break clean;
            }
            if Duration::from_nanos(self.shared.env().clock.boot_ns()) >= until {
                self.shared.with(Committer::abandon);
                self.shared.wake_all();
                break false;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        if clean {
            // A disk that hangs holds its thread; only a clean end waits for all of them.
            for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                let _ = thread.join();
            }
            self.wait_for_ring();
            self.unlock();
        }
        clean
    }

    /// What the ring has in flight ends before anybody else may have the folder.
    fn wait_for_ring(&self) {
        if let Some(ring) = self.shared.storage().ring() {
            ring.wait_done();
        }
    }

    fn unlock(&self) {
        drop(self.shared.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Drop for Journal {
    /// Ends without a clean mark: what waits is dropped, as if the process had been killed. Waits for the calls to the
    /// disk that are under way, so that the folder is free when this returns.
    fn drop(&mut self) {
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        if !threads.is_empty() {
            self.begin_close();
            self.shared.with(Committer::abandon);
            self.shared.wake_all();
        }
        for thread in threads {
            let _ = thread.join();
        }
        self.wait_for_ring();
        self.unlock();
    }
}

/// Recovers the log and opens its first segment; no thread is started.
pub(crate) fn open_shared(
    storage: Arc<dyn Storage>,
    dir: &str,
    clock: Arc<dyn Clock>,
    config: JournalConfig,
    observer: Observer,
) -> Result<Arc<Shared>, OpenError> {
    config.check().map_err(OpenError::Config)?;
    let r = recovery::start(storage.as_ref(), dir, clock.as_ref(), &config, &observer)?;
    let in_flight = Arc::new(AtomicUsize::new(config.policy.in_flight()));
    let env = Env { storage, clock, config, observer, in_flight, meta: Arc::new(r.meta), making: Arc::default() };
    let left_over = recovery_left_over(&env)?;
    let catalog = Arc::new(Catalog::new(r.sealed));
    let executor = Executor::new(env.clone(), catalog.clone(), r.before);
    let now = env.clock.boot_ns();
    let mut committer = Committer::new(config, r.producers, r.next_offset, env.meta.get().epoch(), now);
    if let Some(prepared) = left_over {
        committer.adopt(prepared);
    }
    let marks = committer.marks();
    let core = Core { committer, watch: Watch::default(), active_header: None, asked: 0, given: 0 };
    let shared = Arc::new(Shared {
        core: Mutex::new(core),
        work: Condvar::new(),
        marks: watch::channel(marks).0,
        executor,
        catalog,
        retention: Mutex::new(config.retention),
        background: (Mutex::new(false), Condvar::new()),
        closing: AtomicBool::new(false),
        at_disk: AtomicUsize::new(0),
        recycled: AtomicU64::new(0),
        report: r.report,
        lock: Mutex::new(Some(r.lock)),
    });
    shared.open_first();
    Ok(shared)
}

fn recovery_left_over(env: &Env) -> Result<Option<prepare::Prepared>, OpenError> {
    let next = match env.meta.get().highest_segment {
        crate::format::meta::NONE => 0,
        n => n + 1,
    };
    let found = prepare::find_left_over(env, next).map_err(OpenError::io("look at the prepared segment"))?;
    let keep = found.as_ref().map(|p| p.header.number);
    prepare::remove_left_over(env.storage.as_ref(), next, keep).map_err(OpenError::io("remove unused segments"))?;
    Ok(found)
}

fn summary(sealed: &Sealed, storage: &dyn Storage) -> SegmentSummary {
    let f = sealed.summary(storage).ok().flatten();
    SegmentSummary {
        number: sealed.number,
        first_offset: f.map_or(0, |f| f.first_offset),
        end_offset: f.map_or(0, |f| f.end_offset),
        bytes: sealed.bytes,
        sealed: true,
        times_ns: f.filter(|f| f.min_time_ns <= f.max_time_ns).map(|f| (f.min_time_ns, f.max_time_ns)),
        damaged: f.is_none_or(|f| f.damaged),
    }
}

impl Shared {
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        // A panic under the lock is a bug; going on with a half-made decision would be a worse one.
        self.core.lock().expect("the journal's state is whole")
    }

    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Committer) -> T) -> T {
        f(&mut self.core().committer)
    }

    pub(crate) fn env(&self) -> &Env {
        &self.executor.env
    }

    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.executor.env.storage
    }

    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    pub(crate) fn retention(&self) -> Retention {
        *self.retention.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn marks(&self) -> Marks {
        self.core().committer.marks()
    }

    pub(crate) fn recent(&self, offset: u64) -> Option<Arc<Batch>> {
        self.core().committer.recent(offset)
    }

    pub(crate) fn seek_active(&self, offset: u64) -> Option<(u64, u64, Option<u64>)> {
        self.core().committer.seek(offset)
    }

    pub(crate) fn active_header(&self, number: u64) -> Option<SegmentHeader> {
        self.core().active_header.clone().filter(|h| h.number == number)
    }

    pub(crate) fn lowest_offset(&self) -> u64 {
        self.env().meta.get().lowest_offset
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    pub(crate) fn wake_all(&self) {
        self.work.notify_all();
        if let Some(ring) = self.storage().ring() {
            ring.wake();
        }
    }

    /// Tells the newest marks; of two tellers, the later value wins.
    pub(crate) fn publish(&self) {
        self.tell(self.marks());
    }

    fn tell(&self, marks: Marks) {
        self.marks.send_if_modified(|old| {
            let changed = marks.version == old.version && marks.accepting != old.accepting;
            let newer = marks.version > old.version || changed;
            if newer {
                *old = marks;
            }
            newer
        });
    }

    /// Waits for one tick; `true` when the journal closes.
    pub(crate) fn wait_background(&self, tick: Duration) -> bool {
        let (stop, signal) = &self.background;
        let stop = stop.lock().unwrap_or_else(PoisonError::into_inner);
        match *stop {
            true => true,
            false => *signal.wait_timeout(stop, tick).unwrap_or_else(PoisonError::into_inner).0,
        }
    }

    /// The first segment is opened before anybody is told that the journal is there.
    fn open_first(&self) {
        let mut core = self.core();
        if let Step::Run(job) = core.committer.step(self.env().now()) {
            drop(core);
            let (done, _) = self.executor.run(job, IoBuf::with_capacity(0));
            self.finish(done);
        }
    }

    pub(crate) fn finish(&self, result: Result<Done, Failure>) {
        let now = self.env().now();
        let new_segment = matches!(&result, Ok(Done::Rotated { .. } | Done::Opened { .. } | Done::Recovered { .. }));
        let failed = result.as_ref().err().map(|f| (f.reason.clone(), f.was_rescue));
        let mut core = self.core();
        let first = core.committer.failure().is_none();
        let replies = match &result {
            Ok(Done::Rotated { .. } | Done::Recovered { .. }) => core.committer.take_rotate_replies(),
            _ => Vec::new(),
        };
        core.committer.complete(result, now);
        let known = core.active_header.take();
        core.active_header = core.committer.active_header(known);
        let retry_in = Duration::from_nanos(core.committer.retry_in_ns());
        let marks = core.committer.marks();
        drop(core);
        self.tell(marks);
        if new_segment {
            self.background.1.notify_all(); // the next one is wanted now, not at the next tick
        }
        if !replies.is_empty() {
            let last = self.catalog.all().last().cloned();
            let told = last.and_then(|s| Some((s.number, s.summary(self.storage().as_ref()).ok()??)));
            let told = told.map(|(number, s)| (number, s.first_offset, s.end_offset));
            for reply in replies {
                let _ = reply.send(Ok(told));
            }
        }
        match failed {
            Some((reason, true)) => self.env().tell(Event::RecoveryFailed { reason, retry_in }),
            Some((reason, false)) if first => {
                self.env().tell(Event::Failed { reason });
                // As well as the disk still can: a start after this must not believe `written`.
                let _ = self.env().meta.update(|m| m.latched = true);
            }
            _ => {}
        }
    }
}
