//! How a journal ends: drained and marked clean, given up at a deadline, or dropped.
//!
//! What must hold:
//! - **A deadline is kept whatever the disk does.** Who is in a call to a disk that hangs is in it for as long as that takes,
//!   the thread that prepares segments too, which may be there when all else has come to its end. [`Journal::close`] waits for
//!   nobody longer than until its deadline, and dropping the journal after that waits for nobody at all.
//! - **The folder is free when none of the journal's threads is there any more.** One that was left at the disk has yet to
//!   remove what it made half, by a name that another journal would have given anew: the lock on the folder goes with the
//!   last of them, or with the process.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::{Journal, Shared};
use crate::committer::Committer;
use crate::env::Event;
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;

/// The journal's threads.
#[derive(Default)]
pub(super) struct LiveThreads {
    /// Those that have not ended.
    present: usize,
    /// A deadline passed with some of them, or something in the ring, in calls to the disk: nobody waits for them any more.
    left: bool,
}

/// A thread of the journal, from before it is started until it has ended, by a panic too.
pub(super) struct Present(Arc<Shared>);

impl Present {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        shared.live_threads().present += 1;
        Self(Arc::clone(shared))
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut live_threads = self.0.live_threads();
        live_threads.present -= 1;
        let is_last = live_threads.present == 0 && live_threads.left;
        drop(live_threads);
        self.0.gone.notify_all();
        if is_last {
            self.0.unlock();
        }
    }
}

impl Shared {
    fn live_threads(&self) -> MutexGuard<'_, LiveThreads> {
        self.live_threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unlock(&self) {
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Until then (boot time).
    fn left_until(&self, until: Duration) -> Duration {
        until.saturating_sub(Duration::from_nanos(self.env().clock.boot_ns()))
    }

    /// Whether all threads of the journal have ended by then, and all that the ring had.
    fn is_alone_by(&self, until: Duration) -> bool {
        let live_threads = self.live_threads();
        let left = self.left_until(until);
        let waited = self.gone.wait_timeout_while(live_threads, left, |live_threads| live_threads.present > 0);
        let alone = waited.unwrap_or_else(PoisonError::into_inner).0.present == 0;
        alone && self.storage().ring().is_none_or(|ring| ring.is_done_within(self.left_until(until)))
    }

    /// Nobody waits for the threads any more: the last of them lets go of the folder.
    fn leave_threads(&self) {
        let mut live_threads = self.live_threads();
        live_threads.left = true;
        if live_threads.present == 0 {
            drop(live_threads);
            self.unlock();
        }
    }
}

impl Journal {
    /// Stops taking appends; what was taken goes on to the disk. [`Journal::close`] waits for it.
    pub fn begin_close(&self) {
        self.end(Committer::close);
    }

    /// Tells the committer how it ends, and everybody that it does.
    fn end(&self, how: fn(&mut Committer)) {
        self.shared.closing.store(true, Ordering::Relaxed);
        self.shared.with(how);
        self.shared.publish();
        self.shared.wake_all();
        *self.shared.background.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.background.1.notify_all();
    }

    /// Drains, seals, marks a clean end, and says whether it came to that within `deadline`. Blocks, for no longer than that.
    ///
    /// Whoever is in a call to the disk when the deadline passes is left there, and the folder stays locked until that call
    /// is over or the process ends; dropping the journal waits for it no more. Where only a segment that was being prepared
    /// hangs, the end is a clean one, and [`Event::SegmentFailed`] says what was left.
    pub fn close(&self, deadline: Duration) -> bool {
        self.begin_close();
        let shared = &self.shared;
        let until = Duration::from_nanos(shared.env().clock.boot_ns()) + deadline;
        let ended = self.wait_until_closed(until);
        let alone = ended.is_some() && shared.is_alone_by(until);
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        if alone {
            for thread in threads {
                let _ = thread.join();
            }
            shared.unlock();
        } else {
            shared.leave_threads();
        }
        let clean = ended == Some(true);
        if clean && !alone {
            let reason =
                "the disk does not answer whoever prepares a segment: left there, behind a clean end".to_owned();
            shared.env().emit(Event::SegmentFailed { reason });
        }
        clean
    }

    /// Whether it came to an end by then (boot time), and to a clean one; if not, it is given up.
    fn wait_until_closed(&self, until: Duration) -> Option<bool> {
        let mut core = self.shared.core();
        loop {
            if let Some(clean) = core.committer.closed() {
                return Some(clean);
            }
            let left = self.shared.left_until(until);
            if left.is_zero() {
                core.committer.abandon();
                drop(core);
                self.shared.watermarks.end();
                self.shared.wake_all();
                return None;
            }
            core = self.shared.ended.wait_timeout(core, left).expect("the journal's state is whole").0;
        }
    }
}

impl Drop for Journal {
    /// Ends without a clean mark: what waits is dropped, as if the process had been killed. Waits for the calls to the
    /// disk that are under way, so that the folder is free when this returns; but not where [`Journal::close`] has waited
    /// for them until its deadline.
    fn drop(&mut self) {
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        if self.shared.core().committer.closed().is_none() {
            // In one step: a thread that was let close it first would mark it clean.
            self.end(Committer::abandon);
            self.shared.watermarks.end();
        }
        if self.shared.live_threads().left {
            return;
        }
        for thread in threads {
            let _ = thread.join();
        }
        // What the ring has in flight ends before anybody else may have the folder.
        if let Some(ring) = self.shared.storage().ring() {
            ring.wait_done();
        }
        self.shared.unlock();
    }
}
