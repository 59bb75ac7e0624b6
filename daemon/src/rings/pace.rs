//! What the drain thread does when it finds nothing.
//!
//! What must hold: whoever asked for an answer is not kept waiting for a doze, neither for that answer nor with what he
//! sends next; only where nobody has asked for a while is a record left to the next look. And an answer is work like a
//! record: who has it may send the next at once, so the spin begins anew with it.
//!
//! Under load it rests between two passes for [`GATHER`]: a pass costs about as much as thirty records, and a look takes
//! the lines of the rings away from who writes there. That is load where [`CROWD`] appends come in that time: more than
//! clients that each wait for their answer bring, so nobody's answer waits for a rest but in a crowd.

use std::time::{Duration, Instant};

/// How long after the last record it dozes before it sleeps, and how long after the last that wanted an answer it does
/// not doze.
pub(super) const DOZES: Duration = Duration::from_millis(10);

/// The rest between two passes under load.
pub(super) const GATHER: Duration = Duration::from_micros(50);
/// So many appends in [`GATHER`] are load.
const CROWD: u32 = 16;

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
    /// Appends that were handed over since then.
    counted: (u32, Instant),
    /// There were enough of them.
    crowd: bool,
}

impl Pace {
    pub(super) fn new(spin: Duration, now: Instant) -> Self {
        Self { spin, worked: now, asked: None, counted: (0, now), crowd: false }
    }

    /// So many appends were handed over; `asked`: an answer to some of them was asked for.
    pub(super) fn handed_over(&mut self, now: Instant, appends: usize, asked: bool) {
        self.worked = now;
        if asked {
            self.asked = Some(now);
        }
        self.counted.0 = self.counted.0.saturating_add(u32::try_from(appends).unwrap_or(u32::MAX));
        let time = now.saturating_duration_since(self.counted.1);
        if time >= GATHER {
            self.crowd = GATHER.saturating_mul(self.counted.0) >= time.saturating_mul(CROWD);
            self.counted = (0, now);
        }
    }

    /// Whether more comes than is worth a pass each.
    pub(super) fn is_crowd(&self) -> bool {
        self.crowd
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

/// Whether the thread that drains makes a write itself: as long as nobody else has something for it meanwhile.
///
/// Each time that somebody did, which woke another thread, the next writes are made by others: 1, 3, 7, up to
/// [`MOST_PASSED`]. Each time that nobody did, half as many.
#[derive(Debug, Default)]
pub(super) struct Lone {
    passes: u32,
    to_pass: u32,
}

/// Most writes that are left to others before it is tried again.
const MOST_PASSED: u32 = 255;

impl Lone {
    pub(super) fn may(&mut self) -> bool {
        let may = self.to_pass == 0;
        self.to_pass = self.to_pass.saturating_sub(1);
        may
    }

    /// It has come back from one, or somebody was woken meanwhile.
    pub(super) fn back(&mut self, woke: bool) {
        self.passes = if woke { (self.passes * 2 + 1).min(MOST_PASSED) } else { self.passes / 2 };
        self.to_pass = if woke { self.passes } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_is_disturbed_leaves_the_next_writes_to_others() {
        let mut lone = Lone::default();
        let tries = |lone: &mut Lone, writes: u32, woke: bool| {
            let mut made = 0;
            for _ in 0..writes {
                if lone.may() {
                    made += 1;
                    lone.back(woke);
                }
            }
            made
        };
        assert_eq!(tries(&mut lone, 100, false), 100, "alone it makes them all");
        assert_eq!(tries(&mut lone, 510 + 8 * 256, true), 8 + 8, "after 1, 3, 7 … 255, then one in 256");
        assert!(tries(&mut lone, 1000, false) > 700, "and all of them again, once it is alone");
    }

    const SPIN: Duration = Duration::from_micros(50);
    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn what_asks_nobody_is_dozed_for_and_then_slept() {
        let start = Instant::now();
        let mut pace = Pace::new(SPIN, start);
        pace.handed_over(start, 1, false);
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
            pace.handed_over(start, 1, true);
            pace.handed_over(start + MICRO, 1, false); // somebody else's, who did not
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
        pace.handed_over(start, 1, true);
        let told = start + 2 * SPIN; // the disk took longer than the spin
        assert_eq!(pace.rest(told, true), Rest::Sleep);
        pace.told(told);
        assert_eq!(pace.rest(told + SPIN - MICRO, false), Rest::Spin, "the next record is due now");
    }

    #[test]
    fn a_crowd_is_let_gather_and_one_that_waits_for_each_answer_is_none() {
        let start = Instant::now();
        let mut pace = Pace::new(SPIN, start);
        // As many as a hundred clients in turn, an answer every four microseconds.
        for step in 1..=200 {
            pace.handed_over(start + 4 * step * MICRO, 1, true);
            assert!(!pace.is_crowd(), "{step}");
        }
        let flood = start + 1000 * MICRO;
        for step in 1..=200 {
            pace.handed_over(flood + step * MICRO, 1, true);
        }
        assert!(pace.is_crowd());
        // They rest between passes, and more comes in one.
        pace.handed_over(flood + 400 * MICRO, 60, true);
        assert!(pace.is_crowd());
        pace.handed_over(flood + 4000 * MICRO, 60, true);
        assert!(!pace.is_crowd(), "a burst that is over");
    }
}
