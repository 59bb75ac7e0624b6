//! The front of a ring and its times, with a clock that is turned by hand.

use std::collections::VecDeque;

use super::steps::Steps;
use crate::client::producer::push_once;
use crate::client::writer::{self, Content, Reserved};
use crate::clock;
use crate::daemon::reader::{Peek, Reader, TimestampSource};
use crate::daemon::stall_budget::{StallBudget, StallLimits};
use crate::layout::{Cursor, Shape, at};
use crate::memory::{Memory, Ordering::Relaxed};

const SHAPE: Shape = Shape::tiny(1 << 16, 1 << 10);

fn ring(stall_limits: StallLimits) -> (Steps, Reader) {
    let ring = Steps::ring(SHAPE);
    let mut reader = Reader::create(&ring, SHAPE, 0);
    reader.set_stall_budget(StallBudget::new(stall_limits));
    (ring, reader)
}

fn push(ring: &Steps, timestamp: u64) {
    push_once(ring, SHAPE, Content::Parts(&[b"x"]), 1, timestamp).expect("there is space").expect("it was not stopped");
}

fn reserve_uncommitted(ring: &Steps, timestamp: u64) -> Reserved {
    writer::reserve(ring, SHAPE, 1, timestamp).expect("there is space")
}

fn take(ring: &Steps, reader: &mut Reader) -> u64 {
    let entry = reader.take(ring, &mut Vec::new()).expect("a sound ring").expect("it was seen");
    reader.release(ring, entry.append + 1);
    entry.time
}

const STERN: StallLimits = StallLimits { each_ns: 1000, percent: 100 };

#[test]
fn times_never_fall_and_only_what_is_older_is_taken() {
    let (ring, mut reader) = ring(STERN);
    [50, 20, 60].into_iter().for_each(|timestamp| push(&ring, timestamp));
    assert_eq!(reader.peek(&ring, 50), Ok(Peek::Later { time: 50 }));
    assert_eq!(reader.peek(&ring, 51), Ok(Peek::Ready { time: 50 }));
    assert_eq!(take(&ring, &mut reader), 50);
    assert_eq!(reader.peek(&ring, 51), Ok(Peek::Ready { time: 50 }), "stamped 20, committed after that of 50");
    assert_eq!(take(&ring, &mut reader), 50);
    assert_eq!(reader.peek(&ring, 60), Ok(Peek::Later { time: 60 }));
}

#[test]
fn an_uncommitted_slot_with_nothing_committed_behind_holds_nobody_and_is_left_alone() {
    let (ring, mut reader) = ring(STERN);
    let reserved = reserve_uncommitted(&ring, 10);
    reserve_uncommitted(&ring, 11);
    for now in (0..1_000_000).step_by(10_000) {
        assert_eq!(reader.peek(&ring, now), Ok(Peek::Empty));
    }
    writer::fill(&ring, SHAPE, reserved, Content::Parts(&[b"x"]), 1);
    assert!(writer::commit(&ring, SHAPE, reserved), "it was given up for nothing");
    assert_eq!(reader.peek(&ring, 1_000_000), Ok(Peek::Ready { time: 989_999 }), "it was not there at the look before");
}

#[test]
fn an_uncommitted_slot_holds_back_what_is_not_older_than_those_behind_it_and_not_for_long() {
    let (ring, mut reader) = ring(STERN);
    push(&ring, 50);
    reserve_uncommitted(&ring, 55);
    push(&ring, 70);
    push(&ring, 60);
    assert_eq!(reader.peek(&ring, 2000), Ok(Peek::Ready { time: 50 }));
    take(&ring, &mut reader);
    // An entry with a time below 70 elsewhere may go; what lies behind the uncommitted slot was not over before that.
    assert_eq!(reader.peek(&ring, 2000), Ok(Peek::Blocked { bound: 70 }));
    assert_eq!(reader.peek(&ring, 2999), Ok(Peek::Blocked { bound: 70 }));
    assert_eq!(reader.peek(&ring, 3000), Ok(Peek::Ready { time: 70 }), "given up after 1000 ns");
    take(&ring, &mut reader);
    assert_eq!(reader.peek(&ring, 3000), Ok(Peek::Ready { time: 70 }));
    take(&ring, &mut reader);
    assert_eq!(reader.peek(&ring, 3000), Ok(Peek::Empty));
}

#[test]
fn what_lies_behind_an_uncommitted_slot_and_is_not_old_enough_yet_abandons_nobody() {
    let (ring, mut reader) = ring(StallLimits { each_ns: 0, percent: 0 });
    let reserved = reserve_uncommitted(&ring, 5);
    push(&ring, 5000);
    assert_eq!(reader.peek(&ring, 4000), Ok(Peek::Blocked { bound: 5000 }));
    writer::fill(&ring, SHAPE, reserved, Content::Parts(&[b"x"]), 1);
    assert!(writer::commit(&ring, SHAPE, reserved), "nothing waits for it yet");
}

#[test]
fn who_leaves_uncommitted_slots_all_the_time_holds_up_others_for_a_share_of_it() {
    const END: u64 = 10_000_000;
    const STEP: u64 = 100;
    let stall_limits = StallLimits { each_ns: 2000, percent: 10 };
    let (ring, mut reader) = ring(stall_limits);
    let (mut held, mut stopped) = (0, None);
    for now in (0..END).step_by(STEP as usize) {
        loop {
            match reader.peek(&ring, now + 1).expect("a sound ring") {
                Peek::Ready { .. } => {
                    if let Some(reserved) = stopped.take() {
                        assert!(!writer::commit(&ring, SHAPE, reserved), "it was given up");
                    }
                    take(&ring, &mut reader);
                }
                Peek::Blocked { .. } => {
                    held += STEP;
                    break;
                }
                Peek::Later { .. } | Peek::Empty => {
                    stopped = Some(reserve_uncommitted(&ring, now));
                    push(&ring, now);
                    break;
                }
            }
        }
    }
    let share = END * stall_limits.percent / 100;
    // The steps of this clock are coarse: a hold ends one step late.
    assert!(held > share / 4 && held < share * 3 / 2 + stall_limits.each_ns, "held up for {held} of {END}");
}

#[test]
fn the_dead_hold_nobody() {
    let (ring, mut reader) = ring(StallLimits { each_ns: u64::MAX, percent: 100 });
    reserve_uncommitted(&ring, 1);
    push(&ring, 2);
    reserve_uncommitted(&ring, 3);
    assert_eq!(reader.peek(&ring, 100), Ok(Peek::Blocked { bound: 2 }));
    reader.set_gone();
    assert_eq!(reader.peek(&ring, 100), Ok(Peek::Ready { time: 2 }));
    take(&ring, &mut reader);
    assert_eq!(reader.peek(&ring, 100), Ok(Peek::Empty));
    assert_eq!(reader.next(), 3, "the last hole was given up, too");
}

#[test]
fn a_foreign_clock_is_not_believed() {
    let (ring, mut reader) = ring(STERN);
    reader.set_timestamp_source(TimestampSource::Drain);
    [u64::MAX, 3].into_iter().for_each(|timestamp| push(&ring, timestamp));
    assert_eq!(reader.peek(&ring, 500), Ok(Peek::Ready { time: 499 }));
    take(&ring, &mut reader);
    assert_eq!(reader.peek(&ring, 700), Ok(Peek::Ready { time: 699 }));
}

/// An entry that was not there at a look is no older than that look, whatever it says; and one that is seen now is not
/// in the future.
#[test]
fn a_timestamp_is_believed_within_what_the_drain_has_seen_itself() {
    let (ring, mut reader) = ring(STERN);
    push(&ring, 900);
    assert_eq!(reader.peek(&ring, 1000), Ok(Peek::Ready { time: 900 }));
    take(&ring, &mut reader);
    assert_eq!(reader.peek(&ring, 1000), Ok(Peek::Empty));
    let late = reserve_uncommitted(&ring, 0);
    assert_eq!(reader.peek(&ring, 2000), Ok(Peek::Empty), "reserved, and nothing there");
    push(&ring, 0);
    assert_eq!(reader.peek(&ring, 2500), Ok(Peek::Blocked { bound: 1999 }));
    assert_eq!(reader.peek(&ring, 2600), Ok(Peek::Blocked { bound: 1999 }), "what was there then is not younger now");
    writer::fill(&ring, SHAPE, late, Content::Parts(&[b"x"]), 1);
    assert!(writer::commit(&ring, SHAPE, late));
    for _ in 0..2 {
        assert_eq!(reader.peek(&ring, 3000), Ok(Peek::Ready { time: 1999 }), "not that of a look that saw it");
        take(&ring, &mut reader);
    }
}

/// One push with a future timestamp must not keep a drain looking until then, nor behind an uncommitted slot.
#[test]
fn a_timestamp_that_is_to_come_is_now() {
    let (ring, mut reader) = ring(StallLimits { each_ns: u64::MAX, percent: 100 });
    let now = clock::now();
    push(&ring, now + 900_000_000);
    let Ok(Peek::Later { time }) = reader.peek(&ring, now) else { panic!("it is not older than the pass") };
    assert!(time > now && time <= clock::now());
    assert_eq!(reader.peek(&ring, time + 1), Ok(Peek::Ready { time }), "the next pass takes it");
    take(&ring, &mut reader);
    reserve_uncommitted(&ring, now);
    push(&ring, now + 900_000_000);
    let Ok(Peek::Blocked { bound }) = reader.peek(&ring, clock::now()) else { panic!("it is held") };
    let next = clock::now() + 1;
    assert!(bound < next);
    assert_eq!(reader.peek(&ring, next), Ok(Peek::Blocked { bound }), "from here on it is spent what may be");
}

#[test]
fn what_is_read_again_has_the_times_that_it_had_or_older_ones() {
    let (ring, mut reader) = ring(STERN);
    let taken = |reader: &mut Reader| reader.take(&ring, &mut Vec::new()).expect("sound").expect("seen").time;
    push(&ring, 500);
    assert_eq!(reader.peek(&ring, 1000), Ok(Peek::Ready { time: 500 }));
    take(&ring, &mut reader);
    push(&ring, 700);
    push(&ring, 800);
    for time in [700, 800] {
        assert_eq!(reader.peek(&ring, 1000), Ok(Peek::Ready { time }));
        assert_eq!(taken(&mut reader), time);
    }
    assert_eq!(reader.peek(&ring, 9000), Ok(Peek::Empty));
    reader.rewind_to(2);
    assert_eq!(reader.peek(&ring, 9001), Ok(Peek::Ready { time: 800 }), "that it was not there at 9000 is not so");
    reader.rewind_to(0);
    assert_eq!(reader.peek(&ring, 9001), Ok(Peek::Ready { time: 700 }));
    taken(&mut reader);
    push(&ring, 0);
    reader.rewind_to(2);
    for _ in 0..2 {
        assert_eq!(reader.peek(&ring, 9002), Ok(Peek::Ready { time: 800 }));
        taken(&mut reader);
    }
}

/// The ring is never empty, and every timestamp is 0: its entries get older than what is there by two laps at most.
#[test]
fn a_flood_with_old_timestamps_does_not_come_before_all_others_for_ever() {
    for payload in [1, 4000] {
        let (ring, mut reader) = ring(STERN);
        let bytes = vec![0; payload];
        let (mut now, mut oldest) = (0, 0);
        let mut lap = 0; // the longest time from a push to its look
        let mut pushed = VecDeque::new();
        for _ in 0..5000 {
            while push_once(&ring, SHAPE, Content::Parts(&[&bytes]), 1, 0).is_ok() {
                pushed.push_back(now);
            }
            now += 10;
            let Ok(Peek::Ready { time }) = reader.peek(&ring, now) else { panic!("it is full") };
            take(&ring, &mut reader);
            lap = lap.max(now - pushed.pop_front().expect("pushed"));
            oldest = oldest.max(now - time);
            assert!(now < 3 * lap || now - time <= 2 * lap + 20, "{time} at {now}, laps of {lap}");
        }
        assert!(oldest > lap, "nothing was made up");
    }
}

/// Each ring leaves uncommitted slots all the time, and claims the greatest age for everything: an entry in another
/// ring waits for all of them together as long as for one.
#[test]
fn many_rings_hold_up_others_no_longer_than_one() {
    const END: u64 = 100_000_000;
    const STEP: u64 = 10_000;
    let waits = |rings: u64, users: u64| {
        let stall_limits = StallLimits { each_ns: 200_000, percent: 10 };
        let all = StallBudget::new(StallLimits { percent: 50, ..stall_limits });
        let users: Vec<_> = (0..users).map(|_| all.part(stall_limits, 0)).collect();
        let mut rings: Vec<_> = (0..rings)
            .map(|n| {
                let (ring, mut reader) = ring(stall_limits);
                reader.set_stall_budget(users[n as usize % users.len()].clone());
                (ring, reader)
            })
            .collect();
        let period = 20 * stall_limits.each_ns;
        let phase = period / rings.len() as u64;
        let mut held = 0;
        for now in (1..END).step_by(STEP as usize) {
            let mut frontier = now;
            for ((ring, reader), at) in rings.iter_mut().zip(0..) {
                if (now + at * phase) % period < STEP {
                    reserve_uncommitted(ring, 0);
                    push(ring, 0);
                }
                loop {
                    match reader.peek(ring, now).expect("a sound ring") {
                        Peek::Ready { .. } => drop(take(ring, reader)),
                        Peek::Blocked { bound } => break frontier = frontier.min(bound),
                        _ => break,
                    }
                }
            }
            held += if frontier < now { STEP } else { 0 };
        }
        held * 100 / END
    };
    let (one, many) = (waits(1, 1), waits(32, 1));
    assert!(one > 2 && many > 5, "nobody waited: {one} and {many} %");
    assert!(many <= 13, "{many} % of the time");
    assert!(waits(32, 16) <= 57, "of all users together");
}

#[test]
fn a_ring_that_ends_spends_nothing_more() {
    let all = StallBudget::new(StallLimits { each_ns: 1000, percent: 100 });
    let held = || {
        let (ring, mut reader) = ring(STERN);
        reader.set_stall_budget(all.clone());
        reserve_uncommitted(&ring, 0);
        push(&ring, 0);
        assert_eq!(reader.peek(&ring, 10_000), Ok(Peek::Blocked { bound: 0 }));
        (ring, reader)
    };
    drop(held());
    let (_ring, mut gone) = held();
    gone.set_gone();
    let (_other, mut restarted) = held();
    restarted.rewind_to(0);
    assert!(all.lasts(1_000_000), "no hole is held any more");
    let _held = held();
    assert!(!all.lasts(2_000_000));
}

/// Numbers and places have fewer bits in a ring than their counts: past each end it continues.
#[test]
fn counts_go_on_past_the_width_of_their_words() {
    for (append, place) in
        [((1 << 30) - 5, 0), ((1 << 31) - 5, 64), ((1 << 32) - 5, u32::MAX - 39), (7 << 31, u32::MAX - 7)]
    {
        let shape = Shape::tiny(1024, 16);
        let ring = Steps::ring(shape);
        Reader::create(&ring, shape, 0);
        let tail = Cursor::new(append, place).0;
        for at in [at::HEAD, at::TAIL, at::CHECKPOINTS[0]] {
            ring.store(at, tail, Relaxed);
        }
        ring.store(at::CHECKPOINTS[0] + 8, append, Relaxed);
        ring.store(at::RELEASED, append, Relaxed);
        let mut reader = Reader::adopt(&ring, shape).expect("a sound tail");
        reader.set_stall_budget(StallBudget::new(StallLimits { each_ns: 0, percent: 0 }));
        let (mut expected, mut stopped) = (append, None);
        for n in 0..200_u64 {
            if n % 7 == 3 {
                stopped = Some(writer::reserve(&ring, shape, 40, n).expect("there is space"));
                expected += 1;
            }
            let payload = vec![n as u8; 1 + (n % 90) as usize];
            let pushed = push_once(&ring, shape, Content::Parts(&[&payload]), 1, n).expect("there is space");
            assert_eq!(pushed, Some(expected));
            assert!(matches!(reader.peek(&ring, 1000), Ok(Peek::Ready { .. })), "push {n} from {append}");
            let mut taken = Vec::new();
            let entry = reader.take(&ring, &mut taken).expect("a sound ring").expect("it was seen");
            assert_eq!((entry.append, entry.sequence, taken), (expected, n, payload));
            reader.release(&ring, expected + 1);
            assert_eq!(reader.released(), expected + 1);
            if let Some(reserved) = stopped.take_if(|_| n % 7 == 5) {
                assert!(!writer::commit(&ring, shape, reserved), "it was given up");
            }
            expected += 1;
            if n % 50 == 49 {
                reader = Reader::adopt(&ring, shape).expect("a sound tail");
                reader.set_stall_budget(StallBudget::new(StallLimits { each_ns: 0, percent: 0 }));
            }
        }
        let last = stopped.expect("the last push was beside one");
        assert!(!writer::commit(&ring, shape, last), "it was given up");
        reader.release(&ring, reader.next());
        assert_eq!(ring.load(at::ABANDONED_REGION_COUNT, Relaxed), 0, "an island without a writer");
    }
}
