//! Models of the protocol: the code of both ends, under every interleaving that loom finds (with at most
//! [`PREEMPTIONS`] forced switches), on memory as weak as the language allows.
//!
//! Each model is also run on a protocol that is broken on purpose ([`memory::Flaw`]), and must fail then.

mod memory;

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::thread;

use self::memory::{Flaw, Modelled, Setting};
use crate::client::producer::push_once;
use crate::client::writer::{self, Content, NoSpace};
use crate::daemon::reader::{Peek, Reader};
use crate::layout::completion_page::{self, Answer};
use crate::layout::{Shape, at};
use crate::memory::{Memory, Ordering};
use crate::wake::{self, Event};

const PREEMPTIONS: usize = 4;
/// Four entries of 8 bytes fit; the fifth goes where the first was, and has its slot.
const SHAPE: Shape = Shape::tiny(128, 4);
/// The time of each look.
const NOW_NS: u64 = 1000;

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    let bound = std::env::var("CLAD_SHM_PREEMPTIONS").map(|text| text.parse().expect("a number"));
    builder.preemption_bound = Some(bound.unwrap_or(PREEMPTIONS));
    builder.check(model);
}

/// The model holds as it is, and fails with each of these flaws.
fn holds_but_for(flaws: &[Flaw], model: impl Fn(Setting) + Copy + Sync + Send + 'static) {
    for linked in [false, true] {
        explore(move || model(Setting { flaw: None, linked }));
    }
    for flaw in flaws.iter().copied() {
        let fails = |linked| {
            let broken = Setting { flaw: Some(flaw), linked };
            catch_unwind(AssertUnwindSafe(|| explore(move || model(broken)))).is_err()
        };
        assert!(fails(false) || fails(true), "the model does not see {flaw:?}");
    }
}

fn payload(n: u64) -> [u8; 8] {
    (0x0101_0101_0101_0101 * (n + 1)).to_le_bytes()
}

fn push(ring: &Modelled, n: u64) -> Option<u64> {
    push_once(ring, SHAPE, Content::Parts(&[&payload(n)]), 1).expect("there is space")
}

fn reader(ring: &Modelled) -> Reader {
    let mut reader = Reader::create(ring, SHAPE, 0);
    reader.set_commit_timeout_ns(0);
    reader
}

/// Takes what is there; the payloads, which must be whole.
fn take(ring: &Modelled, reader: &mut Reader) -> Vec<[u8; 8]> {
    let mut taken = Vec::new();
    while let Peek::Ready = reader.peek(ring, NOW_NS).expect("an honest ring is never corrupt") {
        let mut bytes = Vec::new();
        reader.take(ring, &mut bytes).expect("an honest ring is never corrupt").expect("it was seen");
        taken.push(bytes.try_into().expect("eight bytes"));
    }
    taken
}

#[test]
fn what_is_seen_committed_is_whole() {
    holds_but_for(&[Flaw::CommitRelaxed, Flaw::SlotLoadRelaxed], |setting| {
        let ring = Modelled::ring(SHAPE, setting);
        let mut reader = reader(&ring);
        let theirs = ring.clone();
        let writer = thread::spawn(move || (push(&theirs, 1), push(&theirs, 2)));
        let mut taken = take(&ring, &mut reader);
        writer.join().expect("no panic");
        taken.extend(take(&ring, &mut reader));
        assert_eq!(taken, [payload(1), payload(2)]);
    });
}

#[test]
fn two_threads_never_share_space_or_numbers() {
    holds_but_for(&[Flaw::ReserveByStore], |setting| {
        let ring = Modelled::ring(SHAPE, setting);
        let mut reader = reader(&ring);
        let theirs = ring.clone();
        let writer = thread::spawn(move || push(&theirs, 1));
        let own = push(&ring, 2);
        let other = writer.join().expect("no panic");
        assert_ne!(own, other);
        let mut taken = take(&ring, &mut reader);
        taken.sort_unstable();
        assert_eq!(taken, [payload(1), payload(2)]);
    });
}

#[test]
fn space_is_used_again_only_after_it_was_read() {
    holds_but_for(&[Flaw::TailStoreRelaxed, Flaw::TailLoadRelaxed], |setting| {
        let ring = Modelled::ring(SHAPE, setting);
        let mut reader = reader(&ring);
        for n in 0..4 {
            push(&ring, n);
        }
        let theirs = ring.clone();
        // The fifth fits when the first was given back, and not before.
        let writer = thread::spawn(move || match push_once(&theirs, SHAPE, Content::Parts(&[&payload(4)]), 1) {
            Ok(pushed) => pushed,
            Err(crate::PushError::Full) => None,
            Err(error) => panic!("{error}"),
        });
        let mut taken = take(&ring, &mut reader);
        reader.release(&ring, 4);
        let fifth = writer.join().expect("no panic");
        taken.extend(take(&ring, &mut reader));
        let expected: Vec<_> = (0..4 + u64::from(fifth.is_some())).map(payload).collect();
        assert_eq!(taken, expected);
    });
}

#[test]
fn an_append_is_delivered_or_its_push_fails() {
    holds_but_for(&[Flaw::CommitByStore], |setting| {
        let ring = Modelled::ring(SHAPE, setting);
        let mut reader = reader(&ring);
        let reserved = writer::reserve(&ring, SHAPE, 8).expect("there is space");
        push(&ring, 1);
        let theirs = ring.clone();
        let stopped = thread::spawn(move || {
            writer::fill(&theirs, SHAPE, reserved, Content::Parts(&[&payload(0)]), 1);
            writer::commit(&theirs, SHAPE, reserved)
        });
        let mut taken = take(&ring, &mut reader);
        let committed = stopped.join().expect("no panic");
        taken.extend(take(&ring, &mut reader));
        let expected = if committed { vec![payload(0), payload(1)] } else { vec![payload(1)] };
        assert_eq!(taken, expected);
    });
}

#[test]
fn nobody_gets_the_space_of_a_writer_that_may_still_write() {
    holds_but_for(&[Flaw::AbandonedRegionsIgnored, Flaw::NoFences], |setting| {
        let ring = Modelled::ring(SHAPE, setting);
        let mut reader = reader(&ring);
        let reserved = writer::reserve(&ring, SHAPE, 8).expect("there is space");
        push(&ring, 1);
        let theirs = ring.clone();
        let stopped = thread::spawn(move || {
            writer::fill(&theirs, SHAPE, reserved, Content::Parts(&[&payload(0)]), 1);
            writer::commit(&theirs, SHAPE, reserved)
        });
        let mut taken = take(&ring, &mut reader);
        reader.release(&ring, reader.next());
        // The next lap: where the stopped writer is, if it is still there, nothing may go.
        let mut expected = vec![payload(1)];
        for n in 2..6 {
            match push_once(&ring, SHAPE, Content::Parts(&[&payload(n)]), 1) {
                Ok(Some(_)) => expected.push(payload(n)),
                Ok(None) => panic!("only the stopped one is ever given up"),
                Err(error) => assert_eq!(error, crate::PushError::Full),
            }
        }
        taken.extend(take(&ring, &mut reader));
        if stopped.join().expect("no panic") {
            expected.insert(0, payload(0));
        }
        assert_eq!(taken, expected);
        // It has left: the abandoned region goes with the next release.
        reader.release(&ring, reader.next());
        assert_eq!(ring.load(at::ABANDONED_REGION_COUNT, Ordering::Relaxed), 0, "an abandoned region without a writer");
    });
}

#[test]
fn nobody_sleeps_on_what_was_committed() {
    holds_but_for(&[Flaw::NoFences], |setting| {
        let ring = Modelled::ring(SHAPE, setting);
        let reader = reader(&ring);
        let theirs = ring.clone();
        let writer = thread::spawn(move || {
            push(&theirs, 0);
            let word = wake::sleeper(&theirs);
            if let Some(word) = word {
                wake::woken(&theirs, word);
            }
            word.is_some()
        });
        wake::fall_asleep(&ring);
        let sleeps = reader.is_idle(&ring);
        let woken = writer.join().expect("no panic");
        assert!(woken || !sleeps, "the drain sleeps, the append lies there");
    });
}

#[test]
fn nobody_waits_for_what_was_announced() {
    holds_but_for(&[Flaw::NoFences], |setting| {
        let ring = Modelled::ring(SHAPE, setting);
        let completion_page = Modelled::completion_page(0, setting);
        let (theirs, mark) = (ring.clone(), completion_page.clone());
        let daemon = thread::spawn(move || {
            completion_page::raise(&mark, completion_page::Level::Written, 1);
            wake::ring_bell(&theirs, Event::Ack)
        });
        wake::begin_wait(&ring, Event::Ack);
        let seen = wake::bell(&ring, Event::Ack);
        let there = completion_page::watermarks(&completion_page).written == 1;
        let rung = daemon.join().expect("no panic");
        // The futex lets no thread sleep whose bell has changed, and wakes each that sleeps on it.
        let woken = rung || ring.load(Event::Ack.bell(), Ordering::Relaxed) as u32 != seen;
        assert!(there || woken, "the client sleeps, the mark is raised");
    });
}

#[test]
fn an_answer_is_never_half_of_another() {
    holds_but_for(&[Flaw::NoFences], |setting| {
        let completion_page = Modelled::completion_page(8, setting);
        let answer = |n: u64| Answer { first_offset: n, epoch: n as u32, code: n as u32, detail: n };
        completion_page::set_answer(&completion_page, SHAPE, 0, answer(1));
        let theirs = completion_page.clone();
        let daemon = thread::spawn(move || completion_page::set_answer(&theirs, SHAPE, 0, answer(2)));
        if let Some(found) = completion_page::answer(&completion_page, SHAPE, 0) {
            assert!(found == answer(1) || found == answer(2), "{found:?}");
        }
        daemon.join().expect("no panic");
    });
}

/// A thread logs twice beside another that is in the middle of a push. Whatever the drain saw of that in between, it
/// takes all of it in the order of reservation.
#[test]
fn a_ring_keeps_its_order_around_an_uncommitted_slot() {
    holds_but_for(&[Flaw::CommitRelaxed], |setting| {
        let ring = Modelled::ring(SHAPE, setting);
        let mut reader = reader(&ring);
        reader.set_commit_timeout_ns(u64::MAX);
        let reserved = writer::reserve(&ring, SHAPE, 8).expect("there is space");
        let theirs = ring.clone();
        let logger = thread::spawn(move || (push(&theirs, 1), push(&theirs, 2)));
        let mut taken = take(&ring, &mut reader);
        writer::fill(&ring, SHAPE, reserved, Content::Parts(&[&payload(0)]), 1);
        assert!(writer::commit(&ring, SHAPE, reserved), "given up");
        taken.extend(take(&ring, &mut reader));
        logger.join().expect("no panic");
        taken.extend(take(&ring, &mut reader));
        assert_eq!(taken, [payload(0), payload(1), payload(2)]);
    });
}

#[test]
fn a_closed_ring_reserves_nothing_more() {
    holds_but_for(&[], |setting| {
        let ring = Modelled::ring(SHAPE, setting);
        let mut reader = reader(&ring);
        let theirs = ring.clone();
        let writer = thread::spawn(move || match writer::reserve(&theirs, SHAPE, 8) {
            Ok(reserved) => {
                writer::fill(&theirs, SHAPE, reserved, Content::Parts(&[&payload(0)]), 1);
                writer::commit(&theirs, SHAPE, reserved)
            }
            Err(why) => {
                assert_eq!(why, NoSpace::Closed);
                false
            }
        });
        ring.set_bits(at::HEAD, crate::layout::Cursor::CLOSED);
        let committed = writer.join().expect("no panic");
        assert_eq!(take(&ring, &mut reader).len(), usize::from(committed));
        assert_eq!(reader.peek(&ring, NOW_NS), Ok(Peek::Empty));
    });
}
