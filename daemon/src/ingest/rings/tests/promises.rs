//! Promises of the drain to ring clients, one at a time. The watermarks are made up here, so that each is seen alone.

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use clad_journal::{Wants, Watermarks};
use clad_proto::ErrorCode;

use super::super::cycle::{Batch, Fill};
use super::*;
use crate::fdstore::StoredRing;

/// Takes what is in the rings and hands it to the journal, as one drain cycle does; returns true if there was anything.
pub(super) fn take(harness: &Harness, rings: &mut [Ring]) -> bool {
    let mut batch = Batch::default();
    batch.fill(rings, clock::now());
    let any = !batch.is_empty();
    if any {
        let admission = harness.shared.admission();
        batch.hand_over(rings, &admission, admission.arrival());
    }
    any
}

/// Waits until so many records are written.
pub(super) fn written(harness: &Harness, records: usize) {
    let end = Instant::now() + TEST_TIMEOUT;
    while harness.journal.watermarks().written < records as u64 {
        assert!(Instant::now() < end, "they are never written");
        std::thread::yield_now();
    }
}

/// Content of the completion page, as the client reads it.
fn completion_page(program: &Program) -> (u64, u64, u64) {
    let watermarks = program.ring.watermarks();
    (watermarks.received, watermarks.written, watermarks.durable)
}

#[test]
fn each_level_is_announced_by_its_own_mark_and_space_comes_back_after_it() {
    let harness = Harness::new(16);
    let (program, ring) = harness.ring(1);
    let rings = &mut [ring];
    program.push(AckLevel::Durable, "waits for durable");
    assert!(take(&harness, rings));
    program.push(AckLevel::Posted, "waits for nothing");
    assert!(take(&harness, rings));
    let at = |written, durable| Watermarks { received: 2, written, durable, ..Watermarks::default() };
    // The watermarks; if there is something to announce; what is announced; up to where space is given back.
    let steps = [
        (at(0, 0), false, (2, 0, 0), 0),
        (at(1, 0), true, (2, 1, 0), 0),
        (at(2, 0), true, (2, 2, 0), 0), // the one behind has all that it needs, and waits for the one before it
        (at(2, 1), true, (2, 2, 1), 2),
        (at(2, 2), true, (2, 2, 2), 2),
    ];
    for (watermarks, any, announced, given_back) in steps {
        assert_eq!(rings[0].release(&watermarks), Some(any), "{watermarks:?}");
        assert_eq!((completion_page(&program), rings[0].drain().released()), (announced, given_back), "{watermarks:?}");
    }
}

/// What a ring waits for is named by watermarks: nothing else wakes its drain. Once it has ended it does not wait for
/// what nobody asked for: an idle log makes that `durable` much later.
#[test]
fn a_ring_that_ends_waits_for_no_level_that_nobody_asked_for() {
    const NEVER: u64 = u64::MAX;
    let mut harness = Harness::new(16);
    let (program, ring) = harness.ring(1);
    let rings = &mut [ring];
    assert_eq!(rings[0].in_flight.wants(), Wants { written: NEVER, durable: NEVER });
    program.push(AckLevel::Written, "written");
    assert!(take(&harness, rings));
    assert_eq!(rings[0].in_flight.wants(), Wants { written: 1, durable: 1 });
    let at = |written, durable| Watermarks { received: 1, written, durable, ..Watermarks::default() };
    rings[0].release(&at(1, 0));
    assert_eq!(rings[0].drain().released(), 1, "its space is back");
    assert_eq!(rings[0].in_flight.wants(), Wants { written: NEVER, durable: 1 });
    rings[0].leave(false);
    rings[0].look(clock::now());
    assert!(!rings[0].is_over(), "it may have somebody who waits");
    rings[0].release(&at(1, 0));
    assert!(rings[0].is_over());
    // The drain looks at it without a new watermark.
    let other = harness.program(2);
    let last = other.push(AckLevel::Written, "written");
    harness.all_written(&other, last);
    harness.drainage.turn();
    harness.shared.order(Order::Retire { id: other.id, forget: false, done: None });
    harness.drainage.turn();
    assert!(harness.shared.registry.of_producer(&other.producer).is_none());
}

#[test]
fn what_was_not_written_when_the_journal_failed_is_taken_again_and_stored_once() {
    let harness = Harness::new(16);
    let (program, ring) = harness.ring(1);
    let rings = &mut [ring];
    program.push(AckLevel::Written, "once");
    assert!(take(&harness, rings) && !take(&harness, rings));
    // Watermarks after a recovery: that offset may belong to another by now.
    let after = Watermarks { received: 1, written: 1, durable: 1, failures: 1, ..Watermarks::default() };
    assert_eq!(rings[0].release(&after), None);
    assert_eq!((completion_page(&program), rings[0].drain().released()), ((1, 0, 0), 0));
    assert_eq!(rings[0].unwritten_from(1), 0, "its offset is below what is written");
    rings[0].rewind(0);
    assert_eq!(rings[0].unwritten_from(0), 1, "it lies in the ring");
    assert!(take(&harness, rings), "it is still in the ring");
    written(&harness, 1);
    assert_eq!((rings[0].unwritten_from(0), rings[0].unwritten_from(1)), (1, 0), "counted once");
    assert_eq!(rings[0].release(&harness.journal.watermarks()), Some(true));
    assert_eq!((completion_page(&program).1, rings[0].drain().released(), rings[0].unwritten_from(0)), (1, 1, 0));
    assert_eq!(harness.stored(program.producer), ["once"]);
}

/// The daemon that took it died before it gave space back; the fd store gives the ring to the next one.
#[test]
fn what_an_earlier_daemon_had_taken_is_stored_once() {
    let mut harness = Harness::new(16);
    let (program, ring) = harness.ring(1);
    for text in &numbered(3) {
        program.push(AckLevel::Posted, text);
    }
    let mut rings = [ring];
    assert!(take(&harness, &mut rings));
    let [ring] = rings;
    let fds = ring.drain().client_fds();
    let fds = [fds.ring, fds.waker].map(|fd| duplicate(fd).expect("a descriptor")).into();
    let stored_ring = StoredRing { note: ring.registered.note, fds };
    harness.shared.registry.deregister(&ring.registered);
    let _ring = std::mem::ManuallyDrop::new(ring); // it did not end, it was killed
    program.push(AckLevel::Posted, "3");
    let again = harness.shared.adopt(stored_ring).expect("its ring is sound");
    harness.add(again);
    harness.until("all is given back", |harness| {
        let watermarks = harness.journal.watermarks();
        !harness.is_behind(program.id) && watermarks.written == watermarks.received
    });
    let all: Vec<_> = numbered(4).into_iter().map(|text| (program.producer, text)).collect();
    assert_eq!(harness.log(), all);
}

/// A FLUSH covers what was reserved in its own ring when it came: neither what comes later nor another's ring.
#[tokio::test]
async fn a_flush_waits_for_what_its_own_ring_had_when_it_came() {
    let mut harness = Harness::new(16);
    let (program, other) = (harness.program(1), harness.program(2));
    let registered = harness.registered(program.id).expect("a ring");
    let ring_ref = RingRef::of(&harness.shared, &registered).expect("it lives");
    assert!(ring_ref.is_drained());
    program.push(AckLevel::Posted, "before");
    other.push(AckLevel::Posted, "of another");
    assert!(!ring_ref.is_drained());
    let mut waiting = pin!(ring_ref.drained());
    let mut poll = || waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(poll(), Poll::Pending);
    assert_eq!(harness.journal.watermarks().received, 0);
    let mut announced = Poll::Pending;
    harness.until("it is reported", |_| {
        announced = poll();
        announced.is_ready()
    });
    assert_eq!((announced, harness.journal.watermarks().received), (Poll::Ready(Ok(())), 2));
}

/// A writer that stopped between reservation and commit is no reason to wait: its push has not returned.
#[test]
fn a_flush_does_not_wait_for_a_slot_that_nobody_commits() {
    let mut harness = Harness::new(16);
    let program = harness.program(1);
    program.push(AckLevel::Posted, "committed");
    program.reserve();
    assert!(harness.is_drained(program.id));
    harness.until("written", |harness| harness.stored(program.producer) == ["committed"]);
    assert!(harness.is_behind(program.id), "the slot is still its writer's");
}

/// Appends behind a slot that nobody commits wait for a moment; those in other rings do not wait for it.
#[test]
fn an_uncommitted_slot_holds_up_its_own_ring_only() {
    let mut harness = Harness::new(16);
    let (slow, other) = (harness.program(1), harness.program_of(UID + 1, 2));
    slow.reserve();
    let behind = slow.push(AckLevel::Received, "behind the slot");
    assert_eq!(harness.drainage.turn(), Next::Soon, "it is looked at again by the clock");
    let received = |program: &Program| program.ring.watermarks().received;
    assert_eq!(received(&slow), 0);
    let theirs = other.push(AckLevel::Received, "of another");
    harness.drainage.turn();
    assert_eq!(received(&other), theirs + 1);
    harness.until("the slot is abandoned", |_| received(&slow) > behind);
    harness.until("written", |harness| harness.stored(slow.producer) == ["behind the slot"]);
}

/// A user with many rings gets no more of a batch than one with one ring, and within a user each ring has its turn.
#[test]
fn owners_take_turns_and_so_do_an_owners_rings() {
    const MANY: u8 = 5;
    let harness = Harness::new(16);
    let (floods, mut rings): (Vec<_>, Vec<_>) = (1..=MANY).map(|name| harness.ring_of(UID, name)).unzip();
    let (lone, ring) = harness.ring_of(UID + 1, 9);
    rings.push(ring);
    for program in floods.iter().chain([&lone]) {
        numbered(2000).iter().for_each(|text| _ = program.push(AckLevel::Posted, text));
    }
    let (mut batch, admission) = (Batch::default(), harness.shared.admission());
    for round in 1..=2 {
        assert_eq!(batch.fill(&mut rings, clock::now()), Fill::More);
        let records = batch.len() * round;
        batch.hand_over(&mut rings, &admission, admission.arrival());
        written(&harness, records);
        let count = |program: &Program| harness.stored(program.producer).len();
        assert_eq!(count(&lone), records / 2, "half of it is the other user's");
        let each: Vec<_> = floods.iter().map(count).collect();
        let (least, most) = (each.iter().min().expect("some"), each.iter().max().expect("some"));
        assert!(*least > 0 && most - least <= 64, "{each:?}");
    }
}

/// Records posted to an earlier daemon are in the log before anything that comes to this one.
#[tokio::test]
async fn stored_rings_are_drained_once_before_anybody_is_served() {
    let mut harness = Harness::new(16);
    let program = harness.program(1);
    program.push(AckLevel::Posted, "posted before");
    let rings = Rings(Some(harness.shared.clone()));
    let mut first = pin!(rings.first_drain());
    let mut poll = || first.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(poll(), Poll::Pending);
    let mut drained = Poll::Pending;
    harness.until("drained", |_| {
        drained = poll();
        drained.is_ready()
    });
    assert_eq!(harness.journal.watermarks().received, 1);
}

/// Posted to a daemon whose log had `durable`, drained by one whose log does not: it is stored, and its owner notified.
#[test]
fn what_waits_for_a_level_that_is_gone_is_stored_and_its_owner_notified() {
    let harness = Harness::new(16);
    let (program, mut ring) = harness.ring(1);
    ring.admission =
        Arc::new(Admission { highest: AckLevel::Written, ..Admission::clone(&harness.shared.admission()) });
    let rings = &mut [ring];
    let levels = [AckLevel::Durable, AckLevel::Written, AckLevel::Posted];
    let [durable, wants_written, _] = levels.map(|level| program.push(level, level.name()));
    assert!(take(&harness, rings));
    written(&harness, 3);
    assert_eq!(harness.stored(program.producer), ["durable", "written", "posted"], "in their order, none left out");
    assert_eq!(rings[0].release(&harness.journal.watermarks()), Some(true));
    assert_eq!(rings[0].drain().released(), 3, "its space comes back with `written`");
    let unreachable = Some(u32::from(ErrorCode::LevelUnreachable.number()));
    assert_eq!((program.code(durable), program.code(wants_written)), (unreachable, Some(0)));
    assert_eq!(program.ring.refused(), durable + 1);
}

/// A thread that waits for `durable` is not woken for `received`, nor for `written`: it would look, and sleep again.
#[test]
fn a_client_is_woken_for_the_level_that_it_asked_for() {
    const ACK_BELL: u64 = 232; // `shm/src/layout/`
    const ACK_WAITERS: u64 = 128;
    let harness = Harness::new(16);
    let (program, ring) = harness.ring(1);
    let rings = &mut [ring];
    program.memory.write_all_at(&1_u64.to_ne_bytes(), ACK_WAITERS).expect("writable");
    let bell = || {
        let mut bell = [0; 8];
        program.memory.read_exact_at(&mut bell, ACK_BELL).expect("readable");
        u64::from_ne_bytes(bell)
    };
    program.push(AckLevel::Durable, "durable");
    assert!(take(&harness, rings));
    let at = |written, durable| Watermarks { received: 3, written, durable, ..Watermarks::default() };
    assert_eq!((rings[0].release(&at(1, 0)), bell()), (Some(true), 0), "it waits on");
    rings[0].release(&at(1, 1));
    assert_eq!(bell(), 1);
    program.push(AckLevel::Received, "received");
    assert!(take(&harness, rings));
    assert_eq!(bell(), 2);
    program.push(AckLevel::Written, "written");
    assert!(take(&harness, rings));
    rings[0].release(&at(2, 1));
    assert_eq!(bell(), 2);
    rings[0].release(&at(3, 1));
    assert_eq!(bell(), 3);
    program.push_bad(AckLevel::Durable);
    assert!(take(&harness, rings));
    assert_eq!(bell(), 4, "a refusal is an answer");
}

/// A time that has passed would wake the drain again and again, for what only room can bring on.
#[test]
fn a_held_ring_that_waits_for_room_is_woken_by_no_clock() {
    let harness = Harness::new(16);
    for waits in [false, true] {
        let (program, mut ring) = harness.ring(1 + u8::from(waits));
        program.push(AckLevel::Written, "waits");
        ring.look(clock::now());
        let entry = ring.take(&mut Vec::new()).expect("it is there");
        ring.hold(ErrorInfo::new(ErrorCode::Busy, "for now"));
        if waits {
            ring.wait_for_room(&entry);
        }
        assert_eq!(Drainage::new(harness.shared.clone(), vec![ring]).deadline().is_none(), waits);
    }
}
