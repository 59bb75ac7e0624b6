//! Trust in the wall clock, for retention by age.
//!
//! A wall clock that is ahead makes every segment look old, and what retention removes is gone. So after a start, and
//! after the clock has jumped against boot time, nothing is removed by age until the kernel says that the clock is
//! synchronised, or [`SETTLE_NS`] have passed: a host without time synchronisation keeps its rule all the same. A
//! kernel that said so before a jump may not have noticed yet: behind a jump the rest lasts [`JUMP_REST_NS`] at least.
//!
//! A synchronised clock may be wrong too. In the first minute of trust ([`FIRST_NS`]) at most [`FIRST_SEGMENTS`]
//! segments go by age, so that an operator can stop it.

use crate::clock::Clock;

const MINUTE_NS: u64 = 60_000_000_000;
/// Boot time after which an unsynchronised clock counts as right.
const SETTLE_NS: u64 = 10 * MINUTE_NS;
/// Least boot time without removals behind a jump.
const JUMP_REST_NS: u64 = MINUTE_NS;
/// The wall clock and boot time may part by this much between two looks.
const JUMP_NS: i64 = MINUTE_NS as i64;
/// Boot time of the first removals.
const FIRST_NS: u64 = MINUTE_NS;
/// Segments that go by age in that time.
const FIRST_SEGMENTS: u32 = 8;

/// Reason why the wall clock is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Nothing says since the start that it is right.
    Start,
    /// It has jumped against boot time.
    Jump,
}

/// State of the clock between two checks.
#[derive(Debug, Default)]
pub(crate) struct ClockTrust {
    /// Real time minus boot time at the last look.
    offset_ns: Option<i64>,
    /// Reason why it is not trusted, and the boot time since then.
    doubt: Option<(Doubt, u64)>,
    /// Boot time from which it is believed.
    trusted_ns: u64,
    /// Segments that went by age since then.
    removed: u32,
}

impl ClockTrust {
    /// Looks at the clock. While it returns a doubt, nothing is removed by age.
    pub(crate) fn look(&mut self, clock: &dyn Clock) -> Option<Doubt> {
        let boot = clock.boot_ns();
        let offset = clock.real_ns().saturating_sub(boot as i64);
        match self.offset_ns.replace(offset) {
            None => self.doubt = Some((Doubt::Start, boot)),
            Some(before) if offset.saturating_sub(before).saturating_abs() > JUMP_NS => {
                self.doubt = Some((Doubt::Jump, boot));
            }
            Some(_) => {}
        }
        let (doubt, since) = self.doubt?;
        let rested = boot.saturating_sub(since);
        let enough = doubt == Doubt::Start || rested >= JUMP_REST_NS;
        if rested >= SETTLE_NS || enough && clock.is_synchronised() {
            (self.doubt, self.trusted_ns, self.removed) = (None, boot, 0);
        }
        self.doubt.map(|(doubt, _)| doubt)
    }

    /// True if a further segment may be removed by age now.
    pub(crate) fn allows(&self, boot_ns: u64) -> bool {
        let first = boot_ns.saturating_sub(self.trusted_ns) < FIRST_NS;
        self.doubt.is_none() && !(first && self.removed >= FIRST_SEGMENTS)
    }

    /// Notes that a segment went by age.
    pub(crate) fn removed(&mut self) {
        self.removed = self.removed.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Real time, boot time, synchronised.
    struct Set(Mutex<(i64, u64, bool)>);

    impl Clock for Set {
        fn real_ns(&self) -> i64 {
            self.0.lock().unwrap().0
        }
        fn boot_ns(&self) -> u64 {
            self.0.lock().unwrap().1
        }
        fn boot_id(&self) -> [u8; 16] {
            [0; 16]
        }
        fn is_synchronised(&self) -> bool {
            self.0.lock().unwrap().2
        }
    }

    impl Set {
        fn new(synchronised: bool) -> Self {
            Self(Mutex::new((1_700_000_000_000_000_000, 5 * MINUTE_NS, synchronised)))
        }
        fn pass(&self, ns: u64) {
            let mut now = self.0.lock().unwrap();
            (now.0, now.1) = (now.0 + ns as i64, now.1 + ns);
        }
        fn jump(&self, ns: i64) {
            self.0.lock().unwrap().0 += ns;
        }
        fn synchronise(&self, yes: bool) {
            self.0.lock().unwrap().2 = yes;
        }
    }

    #[test]
    fn a_start_waits_for_the_clock_or_for_the_stated_time() {
        let (clock, mut trust) = (Set::new(false), ClockTrust::default());
        assert_eq!(trust.look(&clock), Some(Doubt::Start));
        clock.pass(SETTLE_NS - 1);
        assert_eq!(trust.look(&clock), Some(Doubt::Start));
        clock.pass(1);
        assert_eq!(trust.look(&clock), None);
        // A clock that is synchronised is believed at once, also where it becomes so later.
        let mut trust = ClockTrust::default();
        assert_eq!(trust.look(&clock), Some(Doubt::Start));
        clock.synchronise(true);
        assert_eq!(trust.look(&clock), None);
        assert_eq!(ClockTrust::default().look(&clock), None);
    }

    #[test]
    fn a_jump_takes_the_trust_away_for_a_minute_at_least() {
        for back in [-1, 1] {
            let (clock, mut trust) = (Set::new(true), ClockTrust::default());
            assert_eq!(trust.look(&clock), None);
            clock.jump(back * JUMP_NS);
            assert_eq!(trust.look(&clock), None, "as much as a look may be late");
            clock.jump(back * (JUMP_NS + 1));
            assert_eq!(trust.look(&clock), Some(Doubt::Jump));
            clock.pass(JUMP_REST_NS - 1);
            assert_eq!(trust.look(&clock), Some(Doubt::Jump));
            clock.synchronise(false);
            clock.pass(1);
            assert_eq!(trust.look(&clock), Some(Doubt::Jump));
            // Corrected by another jump: the rest begins again.
            clock.jump(-back * (JUMP_NS + 1));
            clock.synchronise(true);
            assert_eq!(trust.look(&clock), Some(Doubt::Jump));
            clock.pass(JUMP_REST_NS);
            assert_eq!(trust.look(&clock), None);
        }
    }

    #[test]
    fn the_first_minute_of_trust_has_a_bound() {
        let (clock, mut trust) = (Set::new(true), ClockTrust::default());
        assert!(trust.look(&clock).is_none());
        (0..FIRST_SEGMENTS).for_each(|_| {
            assert!(trust.allows(clock.boot_ns()));
            trust.removed();
        });
        assert!(!trust.allows(clock.boot_ns()));
        clock.pass(FIRST_NS - 1);
        assert!(!trust.allows(clock.boot_ns()));
        clock.pass(1);
        assert!(trust.allows(clock.boot_ns()));
        clock.jump(2 * JUMP_NS);
        assert!(trust.look(&clock).is_some() && !trust.allows(clock.boot_ns()));
    }
}
