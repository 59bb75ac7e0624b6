//! State shared by the threads of a journal: the core with its lock, the watermarks with their listeners, and the job
//! results.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::executor::Executor;
use super::live_threads::LiveThreads;
use super::waiters::WatermarkPublisher;
use super::watch::Watch;
use crate::config::Retention;
use crate::env::{Env, Event};
use crate::format::segment::SegmentHeader;
use crate::io::{File, IoBuf, Storage};
use crate::read::catalog::Catalog;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, unpoisoned};
use crate::write::batch::Batch;
use crate::write::committer::{Committer, Done, Failure, Step};
use crate::write::cursor_table::CursorTable;
use crate::write::watermarks::Watermarks;

/// An unchanged complaint is reported again after this time.
const REPEATED_EVENT_INTERVAL_NS: u64 = 60_000_000_000;

/// Expectation of everybody who locks the core.
const WHOLE: &str = "the journal's state is whole";

/// State that the threads share.
pub(crate) struct Shared {
    pub(crate) core: Mutex<Core>,
    pub(crate) work: Condvar,
    /// Signals that no job begins any more: the journal is closed, cleanly or not.
    pub(crate) ended: Condvar,
    pub(crate) watermarks: WatermarkPublisher,
    pub(crate) executor: Executor,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) retention: Mutex<Retention>,
    pub(crate) cursors: CursorTable,
    /// Half of the file system's free space at the start: bytes that cursors may hold, where no rule says how many.
    pub(crate) half_free_at_start: u64,
    /// Bytes that retention would have removed, and that stay for a cursor, as last seen.
    pub(crate) held_bytes: AtomicU64,
    /// The first segment that this start creates: those below were sealed when it found them, or by it.
    pub(crate) first_own: u64,
    pub(crate) background: (Mutex<bool>, Condvar),
    pub(crate) closing: AtomicBool,
    pub(crate) live_threads: Mutex<LiveThreads>,
    /// A thread of the journal has ended.
    pub(crate) gone: Condvar,
    /// Threads inside a call to the disk: as slow as the disk, and beyond our control.
    pub(crate) at_disk: AtomicUsize,
    /// Last reported failure to prepare a segment, and its time (boot time).
    pub(crate) last_segment_failure: Mutex<(String, u64)>,
    /// Segments that were used again.
    pub(crate) recycled: AtomicU64,
    /// Locks out a second daemon until the journal is gone; a reader that outlives the journal does not hold it.
    pub(crate) lock: Mutex<Option<Arc<dyn File>>>,
}

pub(crate) struct Core {
    pub(crate) committer: Committer,
    pub(crate) watch: Watch,
    /// Result of a write that failed in a thread which does not report it itself.
    pub(crate) failed: Option<Result<Done, Failure>>,
    pub(crate) active_header: Option<SegmentHeader>,
    /// Heartbeats that were requested, and the last that a writing thread answered.
    pub(crate) asked: u64,
    pub(crate) given: u64,
}

/// The core, locked.
pub(crate) struct CoreGuard<'a> {
    // The first field is dropped first: a broken state is reported before another thread can lock it.
    alarm: BrokenStateAlarm<'a>,
    core: MutexGuard<'a, Core>,
}

/// Reports a panic that begins while the core is locked.
struct BrokenStateAlarm<'a> {
    env: &'a Env,
    /// The thread panicked already when it locked the core.
    panicked: bool,
}

impl Drop for BrokenStateAlarm<'_> {
    fn drop(&mut self) {
        if !self.panicked && thread::panicking() {
            self.env.emit(Event::StateBroken);
        }
    }
}

impl CoreGuard<'_> {
    /// Waits for a signal.
    pub(crate) fn wait(self, signal: &Condvar) -> Self {
        let Self { alarm, core } = self;
        Self { core: signal.wait(core).expect(WHOLE), alarm }
    }

    /// Waits for a signal, for so long at most.
    pub(crate) fn wait_timeout(self, signal: &Condvar, timeout: Duration) -> Self {
        let Self { alarm, core } = self;
        Self { core: signal.wait_timeout(core, timeout).expect(WHOLE).0, alarm }
    }
}

impl Deref for CoreGuard<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for CoreGuard<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

impl Shared {
    pub(crate) fn core(&self) -> CoreGuard<'_> {
        // A panic under the lock is a bug; continuing with a half-made decision would be worse.
        let core = self.core.lock().expect(WHOLE);
        CoreGuard { alarm: BrokenStateAlarm { env: self.env(), panicked: thread::panicking() }, core }
    }

    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Committer) -> T) -> T {
        f(&mut self.core().committer)
    }

    /// Limits reports of a task that is retried five times a second: reports a changed reason at once, the same one
    /// every minute.
    pub(crate) fn emit_rate_limited(&self, reason: String) {
        let now = self.env().clock.boot_ns();
        let mut reported = unpoisoned(self.last_segment_failure.lock());
        if reported.0 == reason && now.saturating_sub(reported.1) < REPEATED_EVENT_INTERVAL_NS {
            return;
        }
        *reported = (reason.clone(), now);
        drop(reported);
        self.env().emit(Event::SegmentFailed { reason });
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

    pub(crate) fn set_retention(&self, retention: Retention) {
        self.with(|c| c.quota.most = retention.per_owner_bytes);
        *unpoisoned(self.retention.lock()) = retention;
    }

    pub(crate) fn retention(&self) -> Retention {
        *unpoisoned(self.retention.lock())
    }

    pub(crate) fn watermarks(&self) -> Watermarks {
        self.core().committer.watermarks()
    }

    pub(crate) fn recent(&self, offset: u64) -> Option<Arc<Batch>> {
        self.core().committer.recent(offset)
    }

    pub(crate) fn seek_active(&self, offset: u64) -> Option<(u64, u64, Option<u64>)> {
        self.core().committer.segments.seek(offset)
    }

    /// As [`Committer::at_rest`](crate::write::committer::Committer::at_rest), with the state of retention.
    pub(crate) fn at_rest(&self) -> Option<(Option<u64>, u32, u64)> {
        let (active, epoch) = self.core().committer.at_rest()?;
        Some((active, epoch, self.catalog().removals()))
    }

    /// The active segment's number, first offset, and where its batches end so far.
    pub(crate) fn active_extent(&self) -> Option<(u64, u64, u64)> {
        self.core().committer.segments.active_extent()
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

    /// Publishes the newest watermarks.
    pub(crate) fn publish(&self) {
        let watermarks = self.with(Committer::next_watermarks);
        self.watermarks.publish(watermarks);
    }

    /// Waits for one tick; `true` when the journal closes.
    pub(crate) fn wait_background(&self, tick: Duration) -> bool {
        let (stop, signal) = &self.background;
        let stop = unpoisoned(stop.lock());
        match *stop {
            true => true,
            false => *unpoisoned(signal.wait_timeout(stop, tick)).0,
        }
    }

    /// Opens the first segment before the journal is announced.
    pub(crate) fn open_first(&self) {
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
        let (first, epoch) = (core.committer.lifecycle.failure().is_none(), core.committer.watermarks().epoch);
        let replies = match &result {
            Ok(Done::Rotated { .. } | Done::Recovered { .. }) => core.committer.lifecycle.take_rotate_replies(),
            _ => Vec::new(),
        };
        core.committer.complete(result, now);
        let known = core.active_header.take();
        core.active_header = core.committer.segments.active_header(known);
        let retry_in = Duration::from_nanos(core.committer.lifecycle.retry_in_ns());
        let (watermarks, ended) = (core.committer.watermarks(), core.committer.lifecycle.is_over());
        drop(core);
        self.watermarks.publish(watermarks);
        if ended {
            self.watermarks.end();
            self.ended.notify_all();
        }
        if new_segment {
            self.background.1.notify_all(); // the next one is wanted now, not at the next tick
        }
        if !replies.is_empty() {
            let last = self.catalog.all().last().cloned();
            let reported = last.and_then(|s| Some((s.number, s.summary(self.storage().as_ref()).ok()??)));
            let reported = reported.map(|(number, s)| (number, s.first_offset, s.end_offset));
            for reply in replies {
                let _ = reply.send(Ok(reported));
            }
        }
        if failed.is_some() {
            // The reporting thread may be delayed by the report: another thread watches the time until the recovery.
            self.wake_all();
        }
        match failed {
            Some((reason, true)) => self.env().emit(Event::RecoveryFailed { reason, retry_in }),
            Some((reason, false)) if first => {
                self.env().emit(Event::Failed { reason });
                // Best effort: a start after this must not believe `written`. A faster recovery has raised the epoch,
                // and thereby removed the reason for this mark.
                let _ = self.env().meta.update_both(|m| m.latched |= m.epoch() == epoch);
            }
            _ => {}
        }
    }
}
