//! What the drain thread does when it finds nothing.
//!
//! What must hold: whoever asked for an answer is not kept waiting for a doze, neither for that answer nor with what he
//! sends next; only where nobody has asked for a while is a record left to the next look. And an answer is work like a
//! record: who has it may send the next at once, so the spin begins anew with it.

use std::time::{Duration, Instant};

/// How long after the last record it dozes before it sleeps, and how long after the last that wanted an answer it does
/// not doze.
pub(super) const DOZES: Duration = Duration::from_millis(10);

/// What the thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Looks again at once.
    Spin,
    /// Looks again after a while; nobody wakes it.
    Doze,
    /// Until it is woken.
    Sleep,
}

/// When what was done last.
#[derive(Debug)]
pub(super) struct Pace {
    spin: Duration,
    worked: Instant,
    asked: Option<Instant>,
}

impl Pace {
    pub(super) fn new(spin: Duration, now: Instant) -> Self {
        Self { spin, worked: now, asked: None }
    }

    /// Records were handed over; `asked`: an answer to some of them was asked for.
    pub(super) fn handed_over(&mut self, now: Instant, asked: bool) {
        self.worked = now;
        if asked {
            self.asked = Some(now);
        }
    }

    /// Clients were told that the marks have moved.
    pub(super) fn told(&mut self, now: Instant) {
        self.worked = now;
    }

    /// Nothing was found. `waits`: answers or space are due, for which the marks must move.
    pub(super) fn rest(&self, now: Instant, waits: bool) -> Rest {
        let since = |then: Instant| now.saturating_duration_since(then);
        let asked = self.asked.is_some_and(|asked| since(asked) < DOZES);
        match since(self.worked) {
            idle if idle < self.spin => Rest::Spin,
            idle if idle < DOZES && !waits && !asked => Rest::Doze,
            _ => Rest::Sleep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN: Duration = Duration::from_micros(50);
    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn what_asks_nobody_is_dozed_for_and_then_slept() {
        let start = Instant::now();
        let mut pace = Pace::new(SPIN, start);
        pace.handed_over(start, false);
        assert_eq!(pace.rest(start + SPIN - MICRO, false), Rest::Spin);
        assert_eq!(pace.rest(start + SPIN, false), Rest::Doze);
        assert_eq!(pace.rest(start + SPIN, true), Rest::Sleep, "space is due: the marks wake it");
        assert_eq!(pace.rest(start + DOZES, false), Rest::Sleep);
    }

    #[test]
    fn who_asked_for_an_answer_finds_it_awake_or_asleep_but_never_in_a_doze() {
        let start = Instant::now();
        for spin in [Duration::ZERO, SPIN] {
            let mut pace = Pace::new(spin, start);
            pace.handed_over(start, true);
            pace.handed_over(start + MICRO, false); // somebody else's, who did not
            let told = start + 3 * SPIN;
            pace.told(told);
            let next: Vec<Rest> = (0..200).map(|step| pace.rest(told + step * SPIN / 2, false)).collect();
            assert!(!next.contains(&Rest::Doze), "{next:?}");
        }
    }

    #[test]
    fn an_answer_begins_the_spin_anew() {
        let start = Instant::now();
        let mut pace = Pace::new(SPIN, start);
        pace.handed_over(start, true);
        let told = start + 2 * SPIN; // the disk took longer than the spin
        assert_eq!(pace.rest(told, true), Rest::Sleep);
        pace.told(told);
        assert_eq!(pace.rest(told + SPIN - MICRO, false), Rest::Spin, "the next record is due now");
    }
}
