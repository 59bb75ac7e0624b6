//! How a journal ends: drained and marked clean, given up at a deadline, or dropped.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Journal;
use crate::committer::Committer;

impl Journal {
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
            // First: a thread that is awake must not come to a clean end in between.
            self.shared.with(Committer::abandon);
            self.begin_close();
        }
        for thread in threads {
            let _ = thread.join();
        }
        self.wait_for_ring();
        self.unlock();
    }
}
