//! End of a journal: drained and clean, abandoned at a deadline, or dropped.
//!
//! Invariants:
//! - **A deadline holds whatever the disk does.** A thread in a call to a hanging disk stays there as long as the call
//!   lasts. This includes the thread that prepares segments, which may be there when all else has ended.
//!   [`Journal::close`] waits at most until its deadline; dropping the journal after that waits for nothing.
//! - **The folder is free when no thread of the journal runs any more.** A thread left at the disk must still remove
//!   its half-made file, whose name another journal would use again. The lock on the folder ends with the last thread,
//!   or with the process.

use std::time::Duration;

use super::Journal;
use crate::env::Event;
use crate::sync::atomic::Ordering;
use crate::sync::unpoisoned;
use crate::write::committer::Committer;

impl Journal {
    /// Stops taking appends; accepted appends are still written to the disk. [`Journal::close`] waits for it.
    pub fn begin_close(&self) {
        self.end(Committer::close);
    }

    /// Ends the committer by `how`, and notifies all waiters.
    fn end(&self, how: fn(&mut Committer)) {
        self.shared.closing.store(true, Ordering::Relaxed);
        self.shared.with(how);
        self.shared.publish();
        self.shared.wake_all();
        *unpoisoned(self.shared.background.0.lock()) = true;
        self.shared.background.1.notify_all();
    }

    /// Drains, seals, records a clean end, and returns true if that succeeded within `deadline`. Blocks at most that
    /// long.
    ///
    /// A thread in a call to the disk when the deadline passes is left there. The folder stays locked until that call
    /// ends or the process ends; dropping the journal does not wait for it. If only a segment in preparation hangs,
    /// the end is clean, and [`Event::SegmentFailed`] names the segment left.
    pub fn close(&self, deadline: Duration) -> bool {
        self.begin_close();
        let shared = &self.shared;
        let until = Duration::from_nanos(shared.env().clock.boot_ns()) + deadline;
        let ended = self.wait_until_closed(until);
        let alone = ended.is_some() && shared.is_alone_by(until);
        let threads = std::mem::take(&mut *unpoisoned(self.threads.lock()));
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
                "the disk does not answer while a segment is prepared: the segment is left as it is, and the log was closed cleanly".to_owned();
            shared.env().emit(Event::SegmentFailed { reason });
        }
        clean
    }

    /// Waits for the end until then (boot time) and returns true if it was clean; without an end by then, abandons the
    /// journal.
    fn wait_until_closed(&self, until: Duration) -> Option<bool> {
        let mut core = self.shared.core();
        loop {
            if let Some(clean) = core.committer.lifecycle.closed() {
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
            core = core.wait_timeout(&self.shared.ended, left);
        }
    }
}

impl Drop for Journal {
    /// Ends without a clean record: waiting data is dropped, as if the process had been killed. Waits for running
    /// calls to the disk, so that the folder is free on return; but not where [`Journal::close`] has waited for them
    /// until its deadline.
    fn drop(&mut self) {
        let threads = std::mem::take(unpoisoned(self.threads.get_mut()));
        if self.shared.core().committer.lifecycle.closed().is_none() {
            // In one step: otherwise a thread could close it first and record it as clean.
            self.end(Committer::abandon);
            self.shared.watermarks.end();
        }
        if self.shared.live_threads().left {
            return;
        }
        for thread in threads {
            let _ = thread.join();
        }
        // Ring operations in flight end before another journal may take the folder.
        if let Some(ring) = self.shared.storage().ring() {
            ring.wait_done();
        }
        self.shared.unlock();
    }
}
