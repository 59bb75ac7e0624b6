//! Backoff of the drain thread when it finds nothing.
//!
//! Invariant: a client that asked for an answer waits for no doze, neither for that answer nor for what it sends next.
//! Only where no client has asked for a while is a record left to the next look. An answer is work like a record: its
//! receiver may send the next at once, so the spin begins again with it.
//!
//! Under load the thread rests between two drain cycles for [`BUSY_PAUSE`]. A cycle costs about as much as thirty
//! records, and a look takes the cache lines of the rings away from their writers. Load means that [`BUSY_APPENDS_MIN`]
//! appends come in that time. That is more than clients bring that each wait for their answer, so no answer waits for a
//! rest unless the drain is busy.

use std::time::{Duration, Instant};

/// Time for which it dozes after the last record before it sleeps. It does not doze for that time after the last that
/// wanted an answer.
pub(super) const DOZE_DURATION: Duration = Duration::from_millis(10);

/// The rest between two drain cycles under load.
pub(super) const BUSY_PAUSE: Duration = Duration::from_micros(50);
/// So many appends in [`BUSY_PAUSE`] are load.
const BUSY_APPENDS_MIN: u32 = 16;

/// Rest of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Looks again at once.
    Spin,
    /// Looks again after a while; no client wakes it.
    Doze,
    /// Until it is woken.
    Sleep,
}

/// Times of the last events.
#[derive(Debug)]
pub(super) struct Backoff {
    spin: Duration,
    worked: Instant,
    asked: Option<Instant>,
    /// Appends that were handed over since then.
    counted: (u32, Instant),
    /// There were enough of them.
    busy: bool,
}

impl Backoff {
    pub(super) fn new(spin: Duration, now: Instant) -> Self {
        Self { spin, worked: now, asked: None, counted: (0, now), busy: false }
    }

    /// Notes that so many appends were handed over; `asked`: an answer to some of them was asked for.
    pub(super) fn handed_over(&mut self, now: Instant, appends: usize, asked: bool) {
        self.worked = now;
        if asked {
            self.asked = Some(now);
        }
        self.counted.0 = self.counted.0.saturating_add(u32::try_from(appends).unwrap_or(u32::MAX));
        let time = now.saturating_duration_since(self.counted.1);
        if time >= BUSY_PAUSE {
            self.busy = BUSY_PAUSE.saturating_mul(self.counted.0) >= time.saturating_mul(BUSY_APPENDS_MIN);
            self.counted = (0, now);
        }
    }

    /// Returns true if more comes than is worth a drain cycle each.
    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Notes that moved watermarks were announced to clients.
    pub(super) fn answered(&mut self, now: Instant) {
        self.worked = now;
    }

    /// Nothing was found. `waits`: answers or space are due, for which the watermarks must move.
    pub(super) fn rest(&self, now: Instant, waits: bool) -> Rest {
        let since = |then: Instant| now.saturating_duration_since(then);
        let asked = self.asked.is_some_and(|asked| since(asked) < DOZE_DURATION);
        match since(self.worked) {
            idle if idle < self.spin => Rest::Spin,
            idle if idle < DOZE_DURATION && !waits && !asked => Rest::Doze,
            _ => Rest::Sleep,
        }
    }
}

/// Policy by which the draining thread makes a write itself: as long as no client has something for it meanwhile.
///
/// Each time that a client did, which woke another thread, the next writes are made by others: 1, 3, 7, up to
/// [`INLINE_WRITES_SKIPPED_MAX`]. Each time that none did, half as many.
#[derive(Debug, Default)]
pub(super) struct InlineWritePolicy {
    skips: u32,
    to_skip: u32,
}

/// Most writes that are left to others before it is tried again.
const INLINE_WRITES_SKIPPED_MAX: u32 = 255;

impl InlineWritePolicy {
    pub(super) fn may(&mut self) -> bool {
        let may = self.to_skip == 0;
        self.to_skip = self.to_skip.saturating_sub(1);
        may
    }

    /// Notes that it has come back from one; `woke`: a thread was woken meanwhile.
    pub(super) fn back(&mut self, woke: bool) {
        self.skips = if woke { (self.skips * 2 + 1).min(INLINE_WRITES_SKIPPED_MAX) } else { self.skips / 2 };
        self.to_skip = if woke { self.skips } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_is_disturbed_leaves_the_next_writes_to_others() {
        let mut inline_writes = InlineWritePolicy::default();
        let tries = |inline_writes: &mut InlineWritePolicy, writes: u32, woke: bool| {
            let mut made = 0;
            for _ in 0..writes {
                if inline_writes.may() {
                    made += 1;
                    inline_writes.back(woke);
                }
            }
            made
        };
        assert_eq!(tries(&mut inline_writes, 100, false), 100, "alone it makes them all");
        assert_eq!(tries(&mut inline_writes, 510 + 8 * 256, true), 8 + 8, "after 1, 3, 7 … 255, then one in 256");
        assert!(tries(&mut inline_writes, 1000, false) > 700, "and all of them again, once it is alone");
    }

    const SPIN: Duration = Duration::from_micros(50);
    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn what_asks_nobody_is_dozed_for_and_then_slept() {
        let start = Instant::now();
        let mut backoff = Backoff::new(SPIN, start);
        backoff.handed_over(start, 1, false);
        assert_eq!(backoff.rest(start + SPIN - MICRO, false), Rest::Spin);
        assert_eq!(backoff.rest(start + SPIN, false), Rest::Doze);
        assert_eq!(backoff.rest(start + SPIN, true), Rest::Sleep, "space is due: the watermarks wake it");
        assert_eq!(backoff.rest(start + DOZE_DURATION, false), Rest::Sleep);
    }

    #[test]
    fn who_asked_for_an_answer_finds_it_awake_or_asleep_but_never_in_a_doze() {
        let start = Instant::now();
        for spin in [Duration::ZERO, SPIN] {
            let mut backoff = Backoff::new(spin, start);
            backoff.handed_over(start, 1, true);
            backoff.handed_over(start + MICRO, 1, false); // of another client, which did not
            let answered = start + 3 * SPIN;
            backoff.answered(answered);
            let next: Vec<Rest> = (0..200).map(|step| backoff.rest(answered + step * SPIN / 2, false)).collect();
            assert!(!next.contains(&Rest::Doze), "{next:?}");
        }
    }

    #[test]
    fn an_answer_begins_the_spin_anew() {
        let start = Instant::now();
        let mut backoff = Backoff::new(SPIN, start);
        backoff.handed_over(start, 1, true);
        let answered = start + 2 * SPIN; // the disk took longer than the spin
        assert_eq!(backoff.rest(answered, true), Rest::Sleep);
        backoff.answered(answered);
        assert_eq!(backoff.rest(answered + SPIN - MICRO, false), Rest::Spin, "the next record is due now");
    }

    #[test]
    fn a_busy_drain_pauses_and_clients_that_wait_for_each_answer_are_not_busy() {
        let start = Instant::now();
        let mut backoff = Backoff::new(SPIN, start);
        // As many as a hundred clients in turn, an answer every four microseconds.
        for step in 1..=200 {
            backoff.handed_over(start + 4 * step * MICRO, 1, true);
            assert!(!backoff.is_busy(), "{step}");
        }
        let flood = start + 1000 * MICRO;
        for step in 1..=200 {
            backoff.handed_over(flood + step * MICRO, 1, true);
        }
        assert!(backoff.is_busy());
        // They rest between drain cycles, and more comes in one.
        backoff.handed_over(flood + 400 * MICRO, 60, true);
        assert!(backoff.is_busy());
        backoff.handed_over(flood + 4000 * MICRO, 60, true);
        assert!(!backoff.is_busy(), "a burst that is over");
    }
}
