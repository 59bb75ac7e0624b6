//! What a model is told of time, which stands still there: when somebody would look by himself.
//!
//! What must hold: nobody is woken but whom a timer would wake, at the moment that he named; so a wake-up that is lost is
//! not healed, and a time that nobody keeps is found.

use super::Journal;

impl Journal {
    /// The moment (boot time, nanoseconds) at which the first of those who sleep looks though nobody has woken him.
    pub fn alarm(&self) -> Option<u64> {
        let core = self.shared.core();
        core.watch.alarm()
    }

    /// The clock has come to [`Self::alarm`].
    pub fn ring_alarm(&self) {
        self.shared.wake_all();
    }
}
