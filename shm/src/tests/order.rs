//! What the front of a ring says about times, with a clock that is turned by hand.

use super::steps::Steps;
use crate::layout::{Cursor, Shape, at};
use crate::memory::{Memory, Ordering::Relaxed};
use crate::producer::push_once;
use crate::reader::{Patience, Peek, Reader, Stamps};
use crate::writer::{self, Reserved};

const SHAPE: Shape = Shape::tiny(1 << 16, 1 << 10);

fn ring(patience: Patience) -> (Steps, Reader) {
    let ring = Steps::ring(SHAPE);
    let mut reader = Reader::create(&ring, SHAPE, 0);
    reader.set_patience(patience);
    (ring, reader)
}

fn push(ring: &Steps, stamp: u64) {
    push_once(ring, SHAPE, &[b"x"], 1, stamp).expect("there is space").expect("it was not stopped");
}

fn hole(ring: &Steps, stamp: u64) -> Reserved {
    writer::reserve(ring, SHAPE, 1, stamp).expect("there is space")
}

fn take(ring: &Steps, reader: &mut Reader) -> u64 {
    let entry = reader.take(ring, &mut Vec::new()).expect("a sound ring").expect("it was seen");
    reader.release(ring, entry.append + 1);
    entry.time
}

const STERN: Patience = Patience { each_ns: 1000, percent: 100 };

#[test]
fn times_never_fall_and_only_what_is_older_is_taken() {
    let (ring, mut reader) = ring(STERN);
    [50, 20, 60].into_iter().for_each(|stamp| push(&ring, stamp));
    assert_eq!(reader.peek(&ring, 50), Ok(Peek::Later { time: 50 }));
    assert_eq!(reader.peek(&ring, 51), Ok(Peek::Ready { time: 50 }));
    assert_eq!(take(&ring, &mut reader), 50);
    assert_eq!(reader.peek(&ring, 51), Ok(Peek::Ready { time: 50 }), "stamped 20, committed after that of 50");
    assert_eq!(take(&ring, &mut reader), 50);
    assert_eq!(reader.peek(&ring, 60), Ok(Peek::Later { time: 60 }));
}

#[test]
fn a_hole_with_nothing_committed_behind_holds_nobody_and_is_left_alone() {
    let (ring, mut reader) = ring(STERN);
    let reserved = hole(&ring, 10);
    hole(&ring, 11);
    for now in (0..1_000_000).step_by(10_000) {
        assert_eq!(reader.peek(&ring, now), Ok(Peek::Empty));
    }
    writer::fill(&ring, SHAPE, reserved, &[b"x"], 1);
    assert!(writer::commit(&ring, SHAPE, reserved), "it was given up for nothing");
    assert_eq!(reader.peek(&ring, 1_000_000), Ok(Peek::Ready { time: 10 }));
}

#[test]
fn a_hole_holds_back_what_is_not_older_than_those_behind_it_and_not_for_long() {
    let (ring, mut reader) = ring(STERN);
    push(&ring, 50);
    hole(&ring, 55);
    push(&ring, 70);
    push(&ring, 60);
    assert_eq!(reader.peek(&ring, 2000), Ok(Peek::Ready { time: 50 }));
    take(&ring, &mut reader);
    // What has a time below 70 elsewhere may go; what lies behind the hole was not over before that.
    assert_eq!(reader.peek(&ring, 2000), Ok(Peek::Held { bound: 70 }));
    assert_eq!(reader.peek(&ring, 2999), Ok(Peek::Held { bound: 70 }));
    assert_eq!(reader.peek(&ring, 3000), Ok(Peek::Ready { time: 70 }), "given up after 1000 ns");
    take(&ring, &mut reader);
    assert_eq!(reader.peek(&ring, 3000), Ok(Peek::Ready { time: 70 }));
    take(&ring, &mut reader);
    assert_eq!(reader.peek(&ring, 3000), Ok(Peek::Empty));
}

#[test]
fn what_lies_behind_a_hole_and_is_not_old_enough_yet_gives_nobody_up() {
    let (ring, mut reader) = ring(Patience { each_ns: 0, percent: 0 });
    let reserved = hole(&ring, 5);
    push(&ring, 5000);
    assert_eq!(reader.peek(&ring, 4000), Ok(Peek::Held { bound: 5000 }));
    writer::fill(&ring, SHAPE, reserved, &[b"x"], 1);
    assert!(writer::commit(&ring, SHAPE, reserved), "nothing waits for it yet");
}

#[test]
fn who_makes_holes_all_the_time_holds_up_others_for_a_share_of_it() {
    const END: u64 = 10_000_000;
    const STEP: u64 = 100;
    let patience = Patience { each_ns: 2000, percent: 10 };
    let (ring, mut reader) = ring(patience);
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
                Peek::Held { .. } => {
                    held += STEP;
                    break;
                }
                Peek::Later { .. } | Peek::Empty => {
                    stopped = Some(hole(&ring, now));
                    push(&ring, now);
                    break;
                }
            }
        }
    }
    let share = END * patience.percent / 100;
    // The steps of this clock are coarse: a hold ends one step late.
    assert!(held > share / 4 && held < share * 3 / 2 + patience.each_ns, "held up for {held} of {END}");
}

#[test]
fn the_dead_hold_nobody() {
    let (ring, mut reader) = ring(Patience { each_ns: u64::MAX, percent: 100 });
    hole(&ring, 1);
    push(&ring, 2);
    hole(&ring, 3);
    assert_eq!(reader.peek(&ring, 100), Ok(Peek::Held { bound: 2 }));
    reader.set_gone();
    assert_eq!(reader.peek(&ring, 100), Ok(Peek::Ready { time: 2 }));
    take(&ring, &mut reader);
    assert_eq!(reader.peek(&ring, 100), Ok(Peek::Empty));
    assert_eq!(reader.next(), 3, "the last hole was given up, too");
}

#[test]
fn a_foreign_clock_is_not_believed() {
    let (ring, mut reader) = ring(STERN);
    reader.set_stamps(Stamps::Drain);
    [u64::MAX, 3].into_iter().for_each(|stamp| push(&ring, stamp));
    assert_eq!(reader.peek(&ring, 500), Ok(Peek::Ready { time: 499 }));
    take(&ring, &mut reader);
    assert_eq!(reader.peek(&ring, 700), Ok(Peek::Ready { time: 699 }));
}

/// Numbers and places have fewer bits in a ring than their counts: past each end it goes on.
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
        reader.set_patience(Patience { each_ns: 0, percent: 0 });
        let (mut expected, mut stopped) = (append, None);
        for n in 0..200_u64 {
            if n % 7 == 3 {
                stopped = Some(writer::reserve(&ring, shape, 40, n).expect("there is space"));
                expected += 1;
            }
            let payload = vec![n as u8; 1 + (n % 90) as usize];
            let pushed = push_once(&ring, shape, &[&payload], 1, n).expect("there is space");
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
                reader.set_patience(Patience { each_ns: 0, percent: 0 });
            }
        }
        let last = stopped.expect("the last push was beside one");
        assert!(!writer::commit(&ring, shape, last), "it was given up");
        reader.release(&ring, reader.next());
        assert_eq!(ring.load(at::ISLAND_COUNT, Relaxed), 0, "an island without a writer");
    }
}
