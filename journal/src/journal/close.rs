//! How a journal ends: drained and marked clean, given up at a deadline, or dropped.

use std::sync::PoisonError;
use std::time::Duration;

use super::Journal;
use crate::committer::Committer;
use crate::sync::atomic::Ordering;

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

    /// Drains, seals, marks a clean end, and says whether it came to that within `deadline`. Blocks.
    pub fn close(&self, deadline: Duration) -> bool {
        self.begin_close();
        let until = Duration::from_nanos(self.shared.env().clock.boot_ns()) + deadline;
        let clean = self.wait_until_closed(until);
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

    /// Whether it came to a clean end by then (boot time); if not, it is given up.
    fn wait_until_closed(&self, until: Duration) -> bool {
        let mut core = self.shared.core();
        loop {
            if let Some(clean) = core.committer.closed() {
                return clean;
            }
            let left = until.saturating_sub(Duration::from_nanos(self.shared.env().clock.boot_ns()));
            if left.is_zero() {
                core.committer.abandon();
                drop(core);
                self.shared.marks.end();
                self.shared.wake_all();
                self.shared.marks.end();
                return false;
            }
            core = self.shared.ended.wait_timeout(core, left).expect("the journal's state is whole").0;
        }
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
        if self.shared.core().committer.closed().is_none() {
            // In one step: a thread that was let close it first would mark it clean.
            self.end(Committer::abandon);
            self.shared.marks.end();
        }
        for thread in threads {
            let _ = thread.join();
        }
        self.wait_for_ring();
        self.unlock();
    }
}
