//! The front of a ring, with a clock that is turned by hand.

use super::steps::Steps;
use crate::client::producer::push_once;
use crate::client::writer::{self, Content, Reserved};
use crate::daemon::reader::{Peek, Reader};
use crate::layout::{Cursor, Shape, at};
use crate::memory::{Memory, Ordering::Relaxed};

const SHAPE: Shape = Shape::tiny(1 << 16, 1 << 10);
const TIMEOUT_NS: u64 = 1000;

fn ring() -> (Steps, Reader) {
    let ring = Steps::ring(SHAPE);
    let mut reader = Reader::create(&ring, SHAPE, 0);
    reader.set_commit_timeout_ns(TIMEOUT_NS);
    (ring, reader)
}

fn push(ring: &Steps, payload: &[u8]) {
    push_once(ring, SHAPE, Content::Parts(&[payload]), 1).expect("there is space").expect("it was not stopped");
}

fn reserve_uncommitted(ring: &Steps) -> Reserved {
    writer::reserve(ring, SHAPE, 1).expect("there is space")
}

fn commit(ring: &Steps, reserved: Reserved, payload: &[u8]) -> bool {
    writer::fill(ring, SHAPE, reserved, Content::Parts(&[payload]), 1);
    writer::commit(ring, SHAPE, reserved)
}

/// Takes the front, which is there; its payload.
fn taken(ring: &Steps, reader: &mut Reader) -> Vec<u8> {
    let mut bytes = Vec::new();
    reader.take(ring, &mut bytes).expect("a sound ring").expect("it was seen");
    bytes
}

#[test]
fn appends_come_in_the_order_of_reservation_whichever_was_committed_first() {
    let (ring, mut reader) = ring();
    let first = reserve_uncommitted(&ring);
    push(&ring, b"b");
    assert_eq!(reader.peek(&ring, 10), Ok(Peek::Blocked));
    assert!(commit(&ring, first, b"a"));
    for expected in [b"a", b"b"] {
        assert_eq!(reader.peek(&ring, 10), Ok(Peek::Ready));
        assert_eq!(taken(&ring, &mut reader), expected);
    }
    assert_eq!(reader.peek(&ring, 10), Ok(Peek::Empty));
}

#[test]
fn an_uncommitted_slot_with_nothing_committed_behind_holds_nobody_and_is_left_alone() {
    let (ring, mut reader) = ring();
    let reserved = reserve_uncommitted(&ring);
    reserve_uncommitted(&ring);
    for now in (0..1_000_000).step_by(10_000) {
        assert_eq!(reader.peek(&ring, now), Ok(Peek::Empty));
        assert!(reader.is_idle(&ring));
    }
    assert!(commit(&ring, reserved, b"x"), "it was given up for nothing");
    assert_eq!(reader.peek(&ring, 1_000_000), Ok(Peek::Ready));
}

#[test]
fn an_uncommitted_slot_holds_back_what_is_behind_it_in_its_ring_and_not_for_long() {
    let (ring, mut reader) = ring();
    push(&ring, b"a");
    let slow = reserve_uncommitted(&ring);
    push(&ring, b"b");
    assert_eq!(reader.peek(&ring, 2000), Ok(Peek::Ready));
    assert_eq!(taken(&ring, &mut reader), b"a");
    assert_eq!(reader.peek(&ring, 2000), Ok(Peek::Blocked));
    assert!(!reader.is_idle(&ring), "somebody must look again");
    assert_eq!(reader.peek(&ring, 1999 + TIMEOUT_NS), Ok(Peek::Blocked));
    assert_eq!(reader.peek(&ring, 2000 + TIMEOUT_NS), Ok(Peek::Ready), "given up");
    assert!(!commit(&ring, slow, b"x"));
    assert_eq!(taken(&ring, &mut reader), b"b");
    assert_eq!(reader.peek(&ring, 3000), Ok(Peek::Empty));
}

/// Each append that waits does so once, however many uncommitted slots are before it.
#[test]
fn a_row_of_uncommitted_slots_is_waited_for_once() {
    let (ring, mut reader) = ring();
    (0..5).for_each(|_| _ = reserve_uncommitted(&ring));
    push(&ring, b"a");
    assert_eq!(reader.peek(&ring, 0), Ok(Peek::Blocked));
    assert_eq!(reader.peek(&ring, TIMEOUT_NS), Ok(Peek::Ready));
    assert_eq!(taken(&ring, &mut reader), b"a");
    reserve_uncommitted(&ring);
    push(&ring, b"b");
    assert_eq!(reader.peek(&ring, TIMEOUT_NS), Ok(Peek::Blocked), "the next one has its own time");
}

#[test]
fn the_dead_hold_nobody() {
    let (ring, mut reader) = ring();
    reader.set_commit_timeout_ns(u64::MAX);
    reserve_uncommitted(&ring);
    push(&ring, b"a");
    reserve_uncommitted(&ring);
    assert_eq!(reader.peek(&ring, 100), Ok(Peek::Blocked));
    reader.set_gone();
    assert_eq!(reader.peek(&ring, 100), Ok(Peek::Ready));
    taken(&ring, &mut reader);
    assert_eq!(reader.peek(&ring, 100), Ok(Peek::Empty));
    assert_eq!(reader.next(), 3, "the last uncommitted slot was given up, too");
}

#[test]
fn what_is_read_again_is_what_it_was() {
    let (ring, mut reader) = ring();
    [b"a", b"b", b"c"].into_iter().for_each(|payload| push(&ring, payload));
    for (again, expected) in [(0, [b"a", b"b", b"c"].as_slice()), (1, &[b"b", b"c"]), (2, &[b"c"]), (3, &[])] {
        reader.rewind_to(again);
        for expected in expected {
            assert_eq!(reader.peek(&ring, 10), Ok(Peek::Ready));
            assert_eq!(taken(&ring, &mut reader), *expected);
        }
        assert_eq!(reader.peek(&ring, 10), Ok(Peek::Empty));
    }
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
        reader.set_commit_timeout_ns(0);
        let (mut expected, mut stopped) = (append, None);
        for n in 0..200_u64 {
            if n % 7 == 3 {
                stopped = Some(writer::reserve(&ring, shape, 40).expect("there is space"));
                expected += 1;
            }
            let payload = vec![n as u8; 1 + (n % 90) as usize];
            let pushed = push_once(&ring, shape, Content::Parts(&[&payload]), 1).expect("there is space");
            assert_eq!(pushed, Some(expected));
            assert!(matches!(reader.peek(&ring, 1000), Ok(Peek::Ready)), "push {n} from {append}");
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
                reader.set_commit_timeout_ns(0);
            }
        }
        let last = stopped.expect("the last push was beside one");
        assert!(!writer::commit(&ring, shape, last), "it was given up");
        reader.release(&ring, reader.next());
        assert_eq!(ring.load(at::ABANDONED_REGION_COUNT, Relaxed), 0, "an abandoned region without a writer");
    }
}
