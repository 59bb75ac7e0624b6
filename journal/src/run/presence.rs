//! Presence of the journal's threads: who is still at work, and when the folder is free.
//!
//! Invariant: the lock on the folder ends with the last thread, or with the process. A thread that was left at the disk
//! must still remove its half-made file, whose name another journal would use again.

use std::sync::Arc;
use std::time::Duration;

use super::live_threads::LiveThreads;
use super::shared::Shared;
use crate::sync::{MutexGuard, unpoisoned};

/// A thread of the journal, from before its start until its end, also by a panic.
pub(crate) struct Present(Arc<Shared>);

impl Present {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        shared.live_threads().present += 1;
        Self(Arc::clone(shared))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
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
    pub(crate) fn live_threads(&self) -> MutexGuard<'_, LiveThreads> {
        unpoisoned(self.live_threads.lock())
    }

    pub(crate) fn unlock(&self) {
        drop(unpoisoned(self.lock.lock()).take());
    }

    /// Time until then (boot time).
    pub(crate) fn left_until(&self, until: Duration) -> Duration {
        until.saturating_sub(Duration::from_nanos(self.env().clock.boot_ns()))
    }

    /// True if all threads of the journal, and all ring operations, have ended by then.
    pub(crate) fn is_alone_by(&self, until: Duration) -> bool {
        let live_threads = self.live_threads();
        let left = self.left_until(until);
        let waited = self.gone.wait_timeout_while(live_threads, left, |live_threads| live_threads.present > 0);
        let alone = unpoisoned(waited).0.present == 0;
        alone && self.storage().ring().is_none_or(|ring| ring.is_done_within(self.left_until(until)))
    }

    /// Stops waiting for the threads: the last of them releases the folder.
    pub(crate) fn leave_threads(&self) {
        let mut live_threads = self.live_threads();
        live_threads.left = true;
        if live_threads.present == 0 {
            drop(live_threads);
            self.unlock();
        }
    }
}
