//! Time in a model, where the clock does not advance: the next moment at which a sleeping thread looks by itself.
//!
//! Invariant: only a thread with a due timer is woken, at the moment that it named. So a lost wake-up is not healed,
//! and a deadline without a watching thread is found.

use super::Journal;

impl Journal {
    /// Earliest moment (boot time, nanoseconds) at which a sleeping thread looks without being woken.
    pub fn alarm(&self) -> Option<u64> {
        let core = self.shared.core();
        core.watch.alarm()
    }

    /// Notes that the clock has reached [`Self::alarm`].
    pub fn ring_alarm(&self) {
        self.shared.wake_all();
    }
}
