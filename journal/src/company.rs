//! Whether those who were just answered come along with the next write.
//!
//! Threads that append and wait fall into two groups by themselves: while the write of one is under way the other gathers,
//! and leaves in the moment in which the first is answered, so that each write carries half of them. Beside a disk that
//! takes as long for all as for half, that halves the rate. So what has gathered waits for those who were just answered,
//! and the last of them to come takes it along.
//!
//! What must hold:
//! - **A lone thread never waits**, nor does anybody before the first write, nor for more than [`MOST_EXPECTED`], nor what is
//!   worth a write beside another.
//! - It waits no longer than the write before took, and [`LONGEST_NS`]: if all come within that time, one write for all is
//!   the shorter way, else two are. When they did not, it is not tried for the next writes: 1, 3, 7, up to [`MOST_PASSED`].
//! - It is a matter of speed alone: who counts wrong here makes a write leave earlier or, by that time, later.

/// The longest that a write waits for company.
const LONGEST_NS: u64 = 100_000;
/// The most that are waited for: what more of them do before they come keeps the processors busy for as long as a write
/// takes, and is done meanwhile.
const MOST_EXPECTED: u32 = 8;
/// Most writes that pass before it is tried again.
const MOST_PASSED: u32 = 63;

/// Counts of threads that append and wait.
#[derive(Debug, Default)]
pub(crate) struct Company {
    /// In what gathers.
    gathering: u32,
    /// In the write under way.
    writing: u32,
    /// Were answered, and did not come again yet.
    expected: u32,
    began_ns: u64,
    until_ns: u64,
    /// What gathers has waited for them.
    waited: bool,
    passed: u32,
    to_pass: u32,
}

impl Company {
    /// A thread has brought an append, and will wait for it or not.
    pub(crate) fn came(&mut self, waits: bool) {
        self.gathering += u32::from(waits);
        self.expected = self.expected.saturating_sub(1);
    }

    /// What has gathered leaves.
    pub(crate) fn left(&mut self, now_ns: u64) {
        if std::mem::take(&mut self.waited) {
            self.passed = if self.expected == 0 { 0 } else { (self.passed * 2 + 1).min(MOST_PASSED) };
            self.to_pass = self.passed;
        }
        (self.writing, self.gathering, self.expected) = (self.gathering, 0, 0);
        self.began_ns = now_ns;
    }

    /// Who was in the write is answered now.
    pub(crate) fn answered(&mut self, now_ns: u64) {
        self.expected = std::mem::take(&mut self.writing);
        if self.expected > MOST_EXPECTED {
            self.expected = 0;
        } else if self.to_pass > 0 {
            self.to_pass -= 1;
            self.expected = 0;
        }
        self.until_ns = now_ns + now_ns.saturating_sub(self.began_ns).min(LONGEST_NS);
    }

    /// Nobody is told what he waits for: a write has failed.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Until when what gathers may wait for who was answered last.
    pub(crate) fn awaited(&self, now_ns: u64) -> Option<u64> {
        (self.expected > 0 && now_ns < self.until_ns).then_some(self.until_ns)
    }

    /// It does.
    pub(crate) fn wait(&mut self, until_ns: u64) -> u64 {
        self.waited = true;
        until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write of so many that takes 40 µs, and leaves as many expected.
    fn write(company: &mut Company, at_ns: u64) -> u64 {
        company.left(at_ns);
        company.answered(at_ns + 40_000);
        at_ns + 40_000
    }

    fn come(company: &mut Company, threads: u32) {
        (0..threads).for_each(|_| company.came(true));
    }

    #[test]
    fn a_lone_thread_never_waits() {
        let (mut company, mut now) = (Company::default(), 0);
        for _ in 0..10 {
            company.came(true);
            assert_eq!(company.awaited(now), None);
            now = write(&mut company, now);
        }
    }

    #[test]
    fn the_last_who_was_answered_takes_all_along() {
        let mut company = Company::default();
        company.came(true);
        company.left(0);
        come(&mut company, 7); // while the first is written
        company.answered(40_000);
        assert_eq!(company.awaited(40_001), Some(80_000), "the first is to come again, for as long as its write took");
        company.came(true);
        assert_eq!(company.awaited(40_002), None, "here it is");
        let now = write(&mut company, 40_002);
        for _ in 0..7 {
            company.came(true);
            assert_eq!(company.awaited(now + 1), Some(now + 40_000));
        }
        company.came(true);
        assert_eq!(company.awaited(now + 1), None, "all eight leave together");
    }

    #[test]
    fn it_does_not_wait_for_ever_and_not_again_soon_for_who_did_not_come() {
        let (mut company, mut now, mut waits) = (Company::default(), 0, Vec::new());
        come(&mut company, 2);
        now = write(&mut company, now);
        for batch in 1..=140 {
            come(&mut company, 1); // of two; the other one is somebody else the next time
            if let Some(until) = company.awaited(now) {
                company.wait(until);
                waits.push(batch);
                assert_eq!(company.awaited(now + 40_000), None, "the time is over");
            }
            company.gathering = 2;
            now = write(&mut company, now + 50_000);
        }
        assert_eq!(waits, [1, 3, 7, 15, 31, 63, 127], "1, 3, 7, 15, 31 and 63 writes are passed over");
        // They come: it is tried after each write from then on.
        for _ in 0..64 {
            company.gathering = 2;
            now = write(&mut company, now);
        }
        come(&mut company, 1);
        company.awaited(now).map(|until| company.wait(until)).expect("it is tried again");
        come(&mut company, 1);
        for _ in 0..3 {
            now = write(&mut company, now);
            come(&mut company, 1);
            company.awaited(now).map(|until| company.wait(until)).expect("they came the last time");
            come(&mut company, 1);
        }
    }

    #[test]
    fn a_slow_write_is_no_reason_to_wait_long_and_a_failed_one_for_nobody() {
        let mut company = Company::default();
        come(&mut company, 3);
        company.left(0);
        company.answered(1_000_000_000);
        come(&mut company, 1);
        assert_eq!(company.awaited(1_000_000_000), Some(1_000_000_000 + LONGEST_NS));
        company.forget();
        come(&mut company, 1);
        assert_eq!(company.awaited(1_000_000_001), None);
    }

    #[test]
    fn a_crowd_is_not_waited_for_nor_who_did_not_wait() {
        for (waiting, others, waits) in [(8, 0, true), (9, 0, false), (0, 3, false), (2, 30, true)] {
            let mut company = Company::default();
            come(&mut company, waiting);
            (0..others).for_each(|_| company.came(false));
            let now = write(&mut company, 0);
            company.came(true);
            assert_eq!(company.awaited(now).is_some(), waits, "{waiting} and {others}");
        }
    }
}
