//! The row of completions beside a plain account of the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Wake, Waker};

use super::completions::{Asked, Completions, ENTRIES_EXAMINED, Log, Reached, Settled};
use crate::AppendError;
use clad_proto::{AckLevel, LogId};
use clad_shm::Watermarks;

const LOG: Log = (LogId::from_bytes([7; 16]), 1);

/// Known state of an append in the plain account.
#[derive(Clone, Debug, PartialEq)]
enum Known {
    Waits { held: bool, level: AckLevel },
    Reached,
    Refused,
}

struct Both {
    completions: Completions,
    plain: BTreeMap<u64, Known>,
    refusals: Vec<u64>,
    watermarks: Watermarks,
    settled: (u64, u64, u64),
    expected: (u64, u64, u64),
}

fn of(watermarks: &Watermarks, level: AckLevel) -> u64 {
    match level {
        AckLevel::Durable => watermarks.durable,
        AckLevel::Written => watermarks.written,
        _ => watermarks.received,
    }
}

impl Both {
    fn new(slots: u32) -> Self {
        Self {
            completions: Completions::new(slots, LOG),
            plain: BTreeMap::new(),
            refusals: Vec::new(),
            watermarks: Watermarks::default(),
            settled: (0, 0, 0),
            expected: (0, 0, 0),
        }
    }

    fn insert(&mut self, append: u64, level: AckLevel) {
        self.completions.insert(Asked { append, count: 1, level });
        self.plain.insert(append, Known::Waits { held: true, level });
    }

    fn look(&mut self) {
        let refused = self.refusals.iter().max().map_or(0, |last| last + 1);
        let (watermarks, refusals) = (self.watermarks, self.refusals.clone());
        let mut settled = Settled::default();
        if self.completions.has_news(&watermarks, refused) {
            let answer = |append: u64| match refusals.contains(&append) {
                true => Err(AppendError::Forgotten),
                false => Ok(Some((1, 1000 + append))),
            };
            self.completions.settle(&watermarks, refused, answer, |append| refusals.contains(&append), &mut settled);
        }
        self.settled.0 += settled.acked;
        self.settled.1 += settled.failed;
        self.settled.2 += u64::from(settled.undelivered.is_some());
        let mut undelivered = false;
        self.plain.retain(|append, known| {
            let Known::Waits { held, level } = *known else { return true };
            let no = refusals.contains(append) && *append < watermarks.received;
            if no {
                self.expected.1 += 1;
                undelivered |= !held;
                *known = Known::Refused;
            } else if *append < of(&watermarks, level) {
                self.expected.0 += 1;
                *known = Known::Reached;
            }
            held || matches!(known, Known::Waits { .. })
        });
        self.expected.2 += u64::from(undelivered);
        assert_eq!(self.settled, self.expected);
        let waiting = self.plain.iter().filter(|(_, known)| matches!(known, Known::Waits { .. }));
        assert_eq!(self.completions.len(), waiting.clone().count());
        assert_eq!(self.completions.oldest(), waiting.map(|(append, _)| *append).next());
    }

    fn fetch(&mut self, append: u64) {
        match (self.completions.take(append).map(|(outcome, _)| outcome), self.plain.get(&append)) {
            (Some(Ok(Reached { place, count: 1, log: LOG, .. })), Some(Known::Reached)) => {
                assert_eq!(place, Some((1, 1000 + append)));
                self.plain.remove(&append);
            }
            (Some(Err(AppendError::Forgotten)), Some(Known::Refused)) => drop(self.plain.remove(&append)),
            (None, Some(Known::Waits { .. }) | None) => {}
            other => panic!("append {append}: {other:?}"),
        }
        assert!(!self.plain.contains_key(&append) || matches!(self.plain[&append], Known::Waits { .. }));
    }

    fn release_ticket(&mut self, append: u64) {
        let undelivered = self.completions.release_ticket(append).0.is_some();
        match self.plain.get_mut(&append) {
            Some(Known::Waits { held, .. }) => {
                *held = false;
                assert!(!undelivered);
            }
            known => {
                assert_eq!(undelivered, known == Some(&mut Known::Refused), "append {append}");
                self.plain.remove(&append);
            }
        }
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn everything_is_settled_once_whatever_order_it_comes_in() {
    for seed in 1..=200 {
        let mut state = seed;
        let mut both = Both::new(8);
        let (mut next, mut late, mut tickets) = (0_u64, Vec::new(), Vec::new());
        for _ in 0..400 {
            match random(&mut state) % 10 {
                // Some are posted alone, and some threads come late.
                0 => next += random(&mut state) % 40,
                1 => {
                    late.push(next);
                    next += 1;
                }
                2 if !late.is_empty() => {
                    let append = late.swap_remove(random(&mut state) as usize % late.len());
                    both.insert(append, AckLevel::Written);
                    tickets.push(append);
                }
                3 | 4 => {
                    let step = |watermark: u64, most: u64, state: &mut u64| {
                        watermark.max((watermark + random(state) % 12).min(most))
                    };
                    both.watermarks.received = step(both.watermarks.received, next, &mut state);
                    both.watermarks.written = step(both.watermarks.written, both.watermarks.received, &mut state);
                    both.watermarks.durable = step(both.watermarks.durable, both.watermarks.written, &mut state);
                    both.look();
                }
                5 if !tickets.is_empty() => {
                    let append = tickets[random(&mut state) as usize % tickets.len()];
                    both.fetch(append);
                }
                6 if !tickets.is_empty() => {
                    let append = tickets.swap_remove(random(&mut state) as usize % tickets.len());
                    both.release_ticket(append);
                }
                7 if random(&mut state).is_multiple_of(3) && next >= both.watermarks.received => {
                    // The drain refuses what it has not passed yet.
                    both.refusals.push(next);
                }
                _ => {
                    let level =
                        [AckLevel::Received, AckLevel::Written, AckLevel::Durable][random(&mut state) as usize % 3];
                    both.insert(next, level);
                    tickets.push(next);
                    next += 1;
                }
            }
        }
        both.watermarks = Watermarks { received: next + 1, written: next + 1, durable: next + 1 };
        both.look();
        for append in tickets {
            both.fetch(append);
            both.release_ticket(append);
        }
        assert_eq!(both.completions.len(), 0, "seed {seed}");
    }
}

#[test]
fn a_ticket_that_nobody_fetches_costs_its_own_entry_alone() {
    let mut both = Both::new(8);
    both.insert(0, AckLevel::Written);
    for append in 1..100_000 {
        both.insert(append, AckLevel::Written);
        both.watermarks = Watermarks { received: append + 1, written: append + 1, durable: 0 };
        both.look();
        both.fetch(append);
    }
    assert!(both.completions.entries() <= 17, "{}", both.completions.entries());
    both.fetch(0);
    assert_eq!(both.completions.len(), 0);
}

/// A program may keep all its tickets and await them later: its log calls cost no more for it, whether all that lie
/// beside the row are answered, or one in the middle of them waits.
#[test]
fn a_log_call_looks_at_no_ticket_that_was_answered_before() {
    const UNFETCHED_TICKETS: u64 = 100_000;
    const UNWRITTEN_APPENDS: u64 = 5;
    for waits in [None, Some(UNFETCHED_TICKETS / 2)] {
        let (mut completions, mut settled, before) =
            (Completions::new(64, LOG), Settled::default(), ENTRIES_EXAMINED.get());
        for append in 0..UNFETCHED_TICKETS {
            let level = if waits == Some(append) { AckLevel::Durable } else { AckLevel::Written };
            completions.insert(Asked { append, count: 1, level });
            let written = append.saturating_sub(UNWRITTEN_APPENDS);
            let watermarks = Watermarks { received: append, written, durable: 0 };
            completions.settle(&watermarks, 0, |append| Ok(Some((1, append))), |_| false, &mut settled);
            assert_eq!(completions.oldest(), Some(waits.map_or(written, |waits| waits.min(written))));
            // As it is settled, as it goes beside, and twice by the search for the oldest.
            let (looks, calls) = (ENTRIES_EXAMINED.get() - before, append + 1);
            assert!(looks <= 5 * calls, "{looks} looks for {calls} log calls, waiting: {waits:?}");
        }
        assert_eq!(completions.entries() as u64, UNFETCHED_TICKETS);
    }
}

struct Nobody;

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

/// A poll of a ticket may find nothing, the outcome come by another look, and only then the waker be there.
#[test]
fn no_waker_remains_when_its_ticket_is_over() {
    let nobody = Arc::new(Nobody);
    let waker = Waker::from(nobody.clone());
    let kept = || Arc::strong_count(&nobody) - 2;
    let mut both = Both::new(8);
    for append in 0..4 {
        both.insert(append, AckLevel::Written);
    }
    assert!(both.completions.set_waker(0, &waker).is_none() && kept() == 1);
    both.refusals.push(2);
    both.watermarks = Watermarks { received: 3, written: 3, durable: 0 };
    both.look();
    assert_eq!(kept(), 0, "it was to be woken");
    for append in 1..4 {
        assert!(
            both.completions.set_waker(append, &waker).is_none()
                && both.completions.set_waker(append, &waker).is_none()
        );
    }
    assert_eq!(kept(), 3);
    (0..3).for_each(|append| both.fetch(append));
    assert_eq!(kept(), 1, "of the one that waits");
    let other = Waker::from(Arc::new(Nobody));
    assert!(both.completions.set_waker(3, &other).is_some_and(|before| before.will_wake(&waker)));
    assert_eq!(kept(), 0);
    assert!(both.completions.release_ticket(3).1.is_some_and(|last| last.will_wake(&other)));
}
