//! Death and stops at every step, one after the other.
//!
//! A writer is killed or stopped before each store and at each point of a push, and a drain before each store and at
//! each point of its work. Invariants each time: no other append is lost, late or changed. Nothing waits for the dead.
//! The ring continues for laps. The next drain resumes exactly where space was given back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::steps::{Died, Gate, Step, Steps, Then};
use crate::client::producer::push_once;
use crate::client::writer;
use crate::client::writer::Content;
use crate::daemon::reader::{Entry, Peek, Reader};
use crate::daemon::tail::Stored;
use crate::layout::{Shape, at};
use crate::memory::{Memory, Ordering};
use crate::{PushError, checksum};

const SHAPE: Shape = Shape::tiny(1024, 16);
const NOW_NS: u64 = u64::MAX / 2;
/// Appends of a lap: three of the longest fit beside a stopped one.
const LAPS: u64 = 40;

/// The payload of an append by its number among all that were ever pushed: 9 to 100 bytes that say which it is.
fn payload(n: u64) -> Vec<u8> {
    (0..9 + (n * 13) % 92).map(|i| (n * 7 + i) as u8).collect()
}

fn push(ring: &Steps, n: u64) -> Result<Option<u64>, PushError> {
    let bytes = payload(n);
    let (a, b) = bytes.split_at(bytes.len() / 2);
    let (summed, trailer) = bytes.split_last_chunk().expect("nine bytes at least");
    let content = match n % 2 {
        0 => Content::Parts(&[a, b]),
        _ => Content::Summed { bytes: summed, sum: checksum::of(&bytes), trailer: u64::from_le_bytes(*trailer) },
    };
    push_once(ring, SHAPE, content, 1 + (n % 3) as u32)
}

fn reader(ring: &Steps) -> Reader {
    let mut reader = Reader::create(ring, SHAPE, 100);
    reader.set_commit_timeout_ns(0);
    reader
}

fn take(ring: &Steps, reader: &mut Reader) -> Vec<(Entry, Vec<u8>)> {
    let mut taken = Vec::new();
    while let Peek::Ready = reader.peek(ring, NOW_NS).expect("an honest ring is never corrupt") {
        let mut bytes = Vec::new();
        let entry = reader.take(ring, &mut bytes).expect("an honest ring is never corrupt").expect("it was seen");
        taken.push((entry, bytes));
    }
    taken
}

/// Pushes, takes and gives back, for laps; says what was taken.
fn resume(ring: &Steps, reader: &mut Reader, from: u64) -> Vec<Vec<u8>> {
    let mut taken = Vec::new();
    for n in from..from + LAPS {
        assert!(push(ring, n).expect("there is space").is_some(), "given up, though it was never stopped");
        if n % 2 == 0 {
            taken.extend(take(ring, reader).into_iter().map(|(_, bytes)| bytes));
            reader.release(ring, reader.next());
        }
    }
    taken.extend(take(ring, reader).into_iter().map(|(_, bytes)| bytes));
    reader.release(ring, reader.next());
    taken
}

fn expected(numbers: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    numbers.map(payload).collect()
}

/// Dies with the user, or gives what it gave.
fn until_death<T>(user: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(user)) {
        Ok(value) => Some(value),
        Err(why) if why.is::<Died>() => None,
        Err(why) => std::panic::resume_unwind(why),
    }
}

/// True if the user's append was committed: its slot was exchanged.
fn committed(trace: &[Step]) -> bool {
    trace.contains(&Step::Point("push: committed"))
        || matches!(trace.last(), Some(Step::Store(at)) if (at::SLOT_TABLE..SHAPE.data_at()).contains(at))
}

#[test]
fn a_writer_dies_at_every_step() {
    for steps in 0.. {
        let ring = Steps::ring(SHAPE);
        let mut reader = reader(&ring);
        assert_eq!(resume(&ring, &mut reader, 0), expected(0..LAPS));
        let victim = ring.user(steps, Then::Die);
        let died = until_death(|| push(&victim, 1000)).is_none();
        let there = committed(&victim.trace());
        for n in 40..43 {
            assert!(push(&ring, n).expect("there is space").is_some());
        }
        let taken: Vec<_> = take(&ring, &mut reader).into_iter().map(|(_, bytes)| bytes).collect();
        let own = if there { vec![payload(1000)] } else { Vec::new() };
        assert_eq!(taken, [own, expected(40..43)].concat(), "died after {steps} steps");
        reader.release(&ring, reader.next());
        // Its threads may be stopped only: the ring continues around where it was.
        assert_eq!(resume(&ring, &mut reader, 43), expected(43..43 + LAPS), "died after {steps} steps");
        // Now it is known to be dead, and so are the others: what is reserved is abandoned at once.
        let second = ring.user(1, Then::Die);
        assert!(until_death(|| push(&second, 1001)).is_none());
        assert_eq!(reader.peek(&ring, NOW_NS), Ok(Peek::Empty));
        reader.set_gone();
        assert_eq!(reader.peek(&ring, NOW_NS), Ok(Peek::Empty));
        if !died {
            assert!(steps > 10, "a push has more steps than {steps}");
            return;
        }
    }
}

#[test]
fn a_writer_stops_at_every_step_and_goes_on_much_later() {
    for steps in 0.. {
        let ring = Steps::ring(SHAPE);
        let mut reader = reader(&ring);
        assert_eq!(resume(&ring, &mut reader, 0), expected(0..LAPS));
        let gate = Arc::new(Gate::default());
        let victim = ring.user(steps, Then::Stop(Arc::clone(&gate)));
        let (ended, last, pushed) = std::thread::scope(|threads| {
            let victim = &victim;
            let stopped = threads.spawn({
                let gate = Arc::clone(&gate);
                move || {
                    let pushed = push(victim, 1000);
                    gate.ended();
                    pushed
                }
            });
            gate.stopped();
            let ended = stopped.is_finished() || committed(&victim.trace());
            let taken = resume(&ring, &mut reader, 40);
            let own = if ended { vec![payload(1000)] } else { Vec::new() };
            assert_eq!(taken, [own, expected(40..40 + LAPS)].concat(), "stopped after {steps} steps");
            // It continues while all other space is full of what was not taken yet.
            let mut last = 80;
            while push(&ring, last) != Err(PushError::Full) {
                last += 1;
            }
            gate.open();
            (ended, last, stopped.join().expect("no panic"))
        });
        // It wrote where it had reserved, and no other was there; or it had reserved nothing, and did so behind them.
        assert!(last > 86, "only {} appends fit beside it", last - 80);
        let now: Vec<_> = take(&ring, &mut reader).into_iter().map(|(_, bytes)| bytes).collect();
        let late = if !ended && matches!(pushed, Ok(Some(_))) { vec![payload(1000)] } else { Vec::new() };
        assert_eq!(now, [expected(80..last), late].concat(), "stopped after {steps} steps");
        reader.release(&ring, reader.next());
        assert_eq!(resume(&ring, &mut reader, last), expected(last..last + LAPS), "stopped after {steps} steps");
        assert_eq!(
            ring.load(at::ABANDONED_REGION_COUNT, Ordering::Relaxed),
            0,
            "an abandoned region is left, stopped after {steps} steps"
        );
        if victim.trace().len() < steps as usize {
            return;
        }
    }
}

#[test]
fn as_many_stopped_writers_as_there_are_abandoned_regions_hold_nobody_up() {
    let shape = Shape::tiny(64 << 10, 256);
    let ring = Steps::ring(shape);
    let mut reader = Reader::create(&ring, shape, 0);
    reader.set_commit_timeout_ns(0);
    let stopped: Vec<_> = (0..crate::ABANDONED_REGIONS_MAX)
        .map(|n| {
            let reserved = writer::reserve(&ring, shape, 100).expect("there is space");
            push_once(&ring, shape, Content::Parts(&[&payload(n as u64)]), 1).expect("there is space");
            reserved
        })
        .collect();
    let mut count = 0;
    for n in 0..5000 {
        push_once(&ring, shape, Content::Parts(&[&payload(n)]), 1)
            .expect("there is space")
            .expect("it was not stopped");
        count += take(&ring, &mut reader).len();
        reader.release(&ring, reader.next());
    }
    assert_eq!(count, 5000 + crate::ABANDONED_REGIONS_MAX);
    for reserved in stopped {
        writer::fill(&ring, shape, reserved, Content::Parts(&[&[0xEE; 100]]), 1);
        assert!(!writer::commit(&ring, shape, reserved), "given up");
    }
    push_once(&ring, shape, Content::Parts(&[b"one more"]), 1).expect("there is space").expect("it was not stopped");
    assert_eq!(take(&ring, &mut reader).len(), 1);
    reader.release(&ring, reader.next());
    assert_eq!(ring.load(at::ABANDONED_REGION_COUNT, Ordering::Relaxed), 0);
}

/// Where lies what the drain of before gave back.
const BEFORE: Stored = Stored { log_id: [1; 16], epoch: 1, end: 500 };

/// Where lies what a drain gives back that has another log.
const fn now_up_to(append: u64) -> Stored {
    Stored { log_id: [2; 16], epoch: 2, end: 1000 + append }
}

/// Work of a drain in `a_drain_dies_at_every_step`: takes, gives back in three goes, closes nothing.
fn work(ring: &Steps, reader: &mut Reader, asked: &mut u64) -> Vec<(Entry, Vec<u8>)> {
    let (first, taken) = (reader.released(), take(ring, reader));
    for upto in [first + 1, first + 4, reader.next()] {
        *asked = upto;
        reader.note_stored(now_up_to(upto));
        reader.release(ring, upto);
    }
    taken
}

/// A ring with a history: six appends of which the third was reserved and never filled.
fn with_uncommitted_slot() -> (Steps, Reader, writer::Reserved) {
    let ring = Steps::ring(SHAPE);
    let mut reader = reader(&ring);
    reader.note_stored(BEFORE);
    resume(&ring, &mut reader, 0);
    let push_all = |numbers: std::ops::Range<u64>| {
        numbers.for_each(|n| assert!(push(&ring, n).expect("there is space").is_some()));
    };
    push_all(40..42);
    let reserved = writer::reserve(&ring, SHAPE, 50).expect("there is space");
    push_all(42..46);
    (ring, reader, reserved)
}

#[test]
fn a_drain_dies_at_every_step_and_the_next_one_takes_up() {
    let (ring, mut reader, _) = with_uncommitted_slot();
    let all = work(&ring, &mut reader, &mut 0);
    assert_eq!(all.len(), 6);
    let mut unknown = 0;
    for steps in 0.. {
        let (ring, mut reader, _) = with_uncommitted_slot();
        let first = reader.released();
        let dying = ring.user(steps, Then::Die);
        let mut asked = first;
        let died = until_death(|| work(&dying, &mut reader, &mut asked)).is_none();
        let mut next = Reader::adopt(&ring, SHAPE).expect("the tail is whole at every step");
        next.set_commit_timeout_ns(0);
        let tail = next.released();
        assert!(first <= tail && tail <= asked.max(first), "tail {tail} after {steps} steps");
        let stored = next.stored();
        let whole = if tail == first { BEFORE } else { now_up_to(tail) };
        // What is known is true; while it becomes another log's, nothing is.
        assert!(stored.is_none_or(|stored| stored == whole), "{stored:?} at tail {tail} after {steps} steps");
        unknown += u32::from(stored.is_none());
        let again = take(&ring, &mut next);
        let rest: Vec<_> = all.iter().filter(|(entry, _)| entry.append >= tail).cloned().collect();
        assert_eq!(again, rest, "died after {steps} steps");
        next.release(&ring, next.next());
        assert_eq!(resume(&ring, &mut next, 46), expected(46..46 + LAPS), "died after {steps} steps");
        if !died {
            assert!(steps > 40, "a drain has more steps than {steps}");
            assert!(stored.is_some() && (1..25).contains(&unknown), "said once, for {unknown} steps");
            return;
        }
    }
}

/// The names of the points that a push (summed before, as the SDK's) and a drain come past, and how often.
pub(super) fn points() -> [Vec<(&'static str, u64)>; 2] {
    let (ring, mut reader, reserved) = with_uncommitted_slot();
    let writer = ring.user(u64::MAX, Then::Die);
    push(&writer, 47).expect("there is space").expect("it was not stopped");
    let drain = ring.user(u64::MAX, Then::Die);
    work(&drain, &mut reader, &mut 0);
    assert!(!writer::commit(&ring, SHAPE, reserved), "it was given up");
    work(&drain, &mut reader, &mut 0);
    [&writer, &drain].map(|user| {
        let mut names: Vec<(&'static str, u64)> = Vec::new();
        for step in user.trace() {
            let Step::Point(name) = step else { continue };
            match names.iter_mut().find(|(known, _)| *known == name) {
                Some((_, times)) => *times += 1,
                None if name.starts_with("write:") => {}
                None => names.push((name, 1)),
            }
        }
        names
    })
}

#[test]
fn there_is_a_point_between_any_two_stores() {
    let (ring, mut reader, reserved) = with_uncommitted_slot();
    let user = ring.user(u64::MAX, Then::Die);
    push(&user, 46).expect("there is space").expect("it was not stopped");
    work(&user, &mut reader, &mut 0);
    // A late writer, which leaves its abandoned region.
    let late = ring.user(u64::MAX, Then::Die);
    assert!(!writer::commit(&late, SHAPE, reserved));
    reader.release(&user, reader.next());
    for trace in [user.trace(), late.trace()] {
        assert!(trace.len() >= 3, "{trace:?}");
        for pair in trace.windows(2) {
            assert!(!matches!(pair, [Step::Store(_), Step::Store(_)]), "two stores and no point between: {pair:?}");
        }
    }
}
