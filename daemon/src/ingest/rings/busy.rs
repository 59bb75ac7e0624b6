//! Rest of the drain's task when it has taken what there was.
//!
//! Invariant: a client that asked for an answer waits for no doze, neither for that answer nor for what it sends next.
//! Only where no client has asked for a while is a record left to the next look. Then nobody has to ring: a log call
//! makes no system call.
//!
//! Under load the task rests between two drain cycles for [`BUSY_PAUSE`], or until the watermarks move, and no client
//! rings. A cycle costs about as much as thirty records, and a look takes the cache lines of the rings away from their
//! writers. Load means that a client sends on while it has no answer. Clients that wait for each answer find the drain
//! asleep, and wake it.
//!
//! The task never spins. Where waits are short, the leader of the ingest threads does ([`crate::ingest::reactor`]).

use std::time::{Duration, Instant};

/// Time for which it dozes after the last record before it sleeps. It does not doze for that time after the last that
/// wanted an answer.
const DOZE_DURATION: Duration = Duration::from_millis(10);
/// Between two looks of a doze.
pub(super) const DOZE_INTERVAL: Duration = Duration::from_micros(500);
/// The rest between two drain cycles under load.
pub(super) const BUSY_PAUSE: Duration = Duration::from_micros(50);
/// Answers that clients ask for by appends, from the least on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Asked {
    #[default]
    Nothing,
    /// Answers, and they wait for each.
    Answers,
    /// Answers, and one sends on meanwhile.
    Stream,
}

/// Times of the last events.
#[derive(Debug, Default)]
pub(super) struct Load {
    handed_over: Option<Instant>,
    asked: Option<Instant>,
    /// A client sends on while it has no answer.
    streams: bool,
}

impl Load {
    /// Notes that appends were handed over.
    pub(super) fn handed_over(&mut self, now: Instant, asked: Asked) {
        self.handed_over = Some(now);
        if asked > Asked::Nothing {
            self.asked = Some(now);
        }
        self.streams = asked == Asked::Stream;
    }

    /// Returns the time after which the task looks again, though nobody wakes it: after a cycle that has left nothing;
    /// `worked`: it has taken something. `None`: it sleeps until it is woken.
    pub(super) fn rest(&self, now: Instant, worked: bool) -> Option<Duration> {
        let recent = |then: Option<Instant>| then.is_some_and(|then| now.duration_since(then) < DOZE_DURATION);
        match worked && self.streams {
            true => Some(BUSY_PAUSE),
            false => (recent(self.handed_over) && !recent(self.asked)).then_some(DOZE_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn what_asks_nobody_is_dozed_for_and_then_slept() {
        let start = Instant::now();
        let mut load = Load::default();
        assert_eq!(load.rest(start, false), None, "nothing has come yet");
        load.handed_over(start, Asked::Nothing);
        assert_eq!(load.rest(start, true), Some(DOZE_INTERVAL));
        assert_eq!(load.rest(start + DOZE_DURATION - MICRO, false), Some(DOZE_INTERVAL));
        assert_eq!(load.rest(start + DOZE_DURATION, false), None);
    }

    #[test]
    fn who_asked_for_an_answer_finds_it_asleep_but_never_in_a_doze() {
        let start = Instant::now();
        let mut load = Load::default();
        load.handed_over(start, Asked::Answers);
        load.handed_over(start + MICRO, Asked::Nothing); // of another client, which did not
        assert!((0..100).all(|step| load.rest(start + step * 100 * MICRO, false).is_none()));
    }

    #[test]
    fn who_sends_on_without_an_answer_need_not_ring() {
        let start = Instant::now();
        let mut load = Load::default();
        load.handed_over(start, Asked::Stream);
        assert_eq!(load.rest(start, true), Some(BUSY_PAUSE));
        assert_eq!(load.rest(start + BUSY_PAUSE, false), None, "it has sent no more");
        load.handed_over(start + 2 * BUSY_PAUSE, Asked::Answers);
        assert_eq!(load.rest(start + 2 * BUSY_PAUSE, true), None);
    }
}
