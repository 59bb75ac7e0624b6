//! What the front of a ring says about times, with a clock that is turned by hand.

use super::steps::Steps;
use crate::layout::Shape;
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
