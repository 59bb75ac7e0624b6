//! The drain with real rings and a real journal, turn by turn: no thread, no socket, no client's process. `running.rs`
//! has it as the task that it is.

mod ends;
mod hand_back;
mod harness;
mod promises;
mod running;
mod stalled;

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use clad_journal::format::checksum;
use clad_journal::{Append, Journal, JournalConfig, Level};
use clad_proto::frame::{Hello, RingAppendTrailer, RingId};
use clad_proto::{
    AckLevel, DurabilityPolicy, ErrorInfo, Group, Payload, PayloadBuilder, PayloadView, ProducerId, Record,
};
use clad_shm::{Drain, Producer as Client, clock};
use tokio::sync::oneshot;

use super::bells::RingBells;
use super::drainage::{Drainage, Next};
use super::given::duplicate;
use super::registry::{RegisteredRing, RingRegistry};
use super::ring::Ring;
use super::shared::{Order, Reach, Shared, peer_of, registered_ring, shape};
use super::{RingRef, Rings, Settings};
use crate::fdstore::{FdStore, Note, StoredRing};
use crate::ingest::quota::{Owner, Quota};
use crate::ingest::reactor::Bells;
use crate::ingest::{Admission, Producer, Reactor};
use harness::{Harness, Program};

/// Only a test that hangs takes longer.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const UID: u32 = 1000;

fn numbered(many: usize) -> Vec<String> {
    (0..many).map(|n| n.to_string()).collect()
}

/// A client comes back before the end of its old connection is seen: the ring is the new one's.
#[test]
fn the_end_of_an_old_connection_leaves_the_ring_to_the_new_one() {
    let mut harness = Harness::new(16);
    let program = harness.program(1);
    let registered = harness.shared.registry.of_producer(&program.producer).expect("a ring");
    let hello = Hello { producer_id: program.producer, ..Hello::default() };
    let peer = peer_of(&registered.note);
    let rings = Rings(Some(harness.shared.clone()));
    let waits = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let old = waits.block_on(rings.meet(&hello, &peer)).expect("its own").expect("it may go on");
    let new = waits.block_on(rings.meet(&hello, &peer)).expect("its own").expect("it may go on");
    drop(old);
    harness.drainage.turn();
    let last = program.push(AckLevel::Written, "still here");
    harness.all_written(&program, last);
    drop(new);
    assert!(RingRef::of(&harness.shared, &registered).is_none(), "it is ending, though the drain has not heard of it");
    harness.until("the ring is gone", |harness| harness.shared.registry.of_producer(&program.producer).is_none());
    assert!(program.ring.is_closed());
    assert_eq!(harness.stored(program.producer), ["still here"]);
}

/// More than a batch holds, from a producer without a place: the others' rings are drained. It is stored when there is a
/// place.
#[test]
fn a_ring_that_is_refused_for_now_holds_up_nobody() {
    let mut harness = Harness::new(4); // of which one user has two
    let busy = harness.program(1);
    busy.push(AckLevel::Written, "first");
    harness.append(9);
    harness.journal.connect(&[9; 16], UID.into(), 0, UID.into()).expect("its own");
    let poor = harness.program(2);
    for text in &numbered(2000) {
        poor.push(AckLevel::Posted, text);
    }
    harness.drainage.turn();
    assert!(harness.drainage.rings().iter().any(|ring| ring.held().is_some()), "it is held by itself");
    let last = busy.push(AckLevel::Written, "last");
    harness.all_written(&busy, last);
    assert!(harness.is_drained(busy.id), "nobody else waits for it");
    assert!(!harness.is_drained(poor.id), "but its own client sees that it is not taken");
    assert!(!harness.is_behind(busy.id) && harness.is_behind(poor.id));
    assert_eq!(poor.ring.watermarks().received, 0);

    harness.journal.disconnect(&[9; 16], true);
    let last = poor.push(AckLevel::Written, "2000");
    harness.all_written(&poor, last);
    assert!(harness.is_drained(poor.id));
    assert_eq!(harness.stored(poor.producer), numbered(2001), "each once, in order");
    assert_eq!(harness.stored(busy.producer), ["first", "last"]);
}

/// An append with a wrong checksum ends its ring, where it lies. What was pushed before it is stored, and nobody else
/// waits.
#[test]
fn an_append_that_is_nonsense_ends_its_ring_and_nothing_else() {
    let mut harness = Harness::new(16);
    let (scribbler, other) = (harness.program(1), harness.program(2));
    scribbler.push(AckLevel::Written, "before");
    scribbler.push(AckLevel::Written, "nonsense");
    scribbler.push(AckLevel::Written, "behind");
    scribbler.scribble("nonsense");
    let last = other.push(AckLevel::Written, "of another");
    // In a thread, because the defect here once was a drain cycle that never ended.
    let (ended, turned) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        harness.drainage.turn();
        let _ = ended.send(harness);
    });
    let mut harness = turned.recv_timeout(TEST_TIMEOUT).expect("the pass ends");
    harness.all_written(&other, last);
    assert!(harness.is_drained(scribbler.id) && harness.is_drained(other.id));
    harness.until("the ring is gone", |harness| harness.shared.registry.of_producer(&scribbler.producer).is_none());
    assert!(scribbler.ring.is_closed());
    assert_eq!(harness.stored(scribbler.producer), ["before"]);
    assert_eq!(harness.stored(other.producer), ["of another"]);
}

/// Content that is whole and no append at all has an answer too.
#[test]
fn content_that_is_no_append_is_refused_and_the_ring_goes_on() {
    let mut harness = Harness::new(16);
    let program = harness.program(1);
    let odd: [&[u8]; 3] = [&[7; 12], &[1], b"\x02\x00\x00\x01\x00\x00\x00\x00 and more"];
    let odd = odd.map(|content| program.ring.push(&[content], 1).expect("room"));
    let last = program.push(AckLevel::Written, "last");
    harness.all_written(&program, last);
    let bad = Some(u32::from(clad_proto::ErrorCode::BadRecord.number()));
    assert_eq!(odd.map(|append| program.code(append)), [bad; 3]);
    assert_eq!(harness.stored(program.producer), ["last"]);
}

#[test]
fn a_drain_that_does_not_get_on_is_seen_and_so_is_what_a_stop_leaves() {
    let mut harness = Harness::new(16);
    let program = harness.program(1);
    let rings = Rings(Some(harness.shared.clone()));
    assert_eq!(rings.silent_for(), Duration::ZERO, "it is asked now");
    std::thread::sleep(Duration::from_millis(2));
    assert!(rings.silent_for() > Duration::ZERO);
    harness.drainage.turn();
    assert_eq!(rings.silent_for(), Duration::ZERO);
    program.push(AckLevel::Posted, "in the ring");
    assert_eq!(rings.stop(Instant::now()), 1, "nobody drains it");
    harness.until("drained", |_| rings.stop(Instant::now()) == 0);
    assert_eq!(harness.stored(program.producer), ["in the ring"]);
}

/// The log has lost its producer, or what it had stored: what comes behind is still taken.
#[test]
fn what_the_log_has_lost_is_jumped_over() {
    let mut harness = Harness::new(16);
    let program = harness.program(1);
    let first = program.push(AckLevel::Durable, "lost");
    harness.until("given back", |_| program.ring.watermarks().durable > first);
    harness.journal.disconnect(program.producer.as_bytes(), true);
    let next = program.push(AckLevel::Written, "next");
    harness.all_written(&program, next);
    assert_eq!(program.code(next), Some(0));
    assert!(harness.is_drained(program.id));
}

/// An uncommitted slot behind what is refused, in a batch that has to wait for room: no append gets two different
/// answers.
#[test]
fn a_hole_in_a_batch_that_waits_for_room_loses_nothing() {
    let mut harness = Harness::new(16);
    let program = harness.program(1);
    let bad = program.push_bad(AckLevel::Written);
    harness.until("refused", |_| program.ring.watermarks().received > bad);
    let budget = harness.shared.admission().budget.clone();
    let all = budget.handle(Owner::Uid(0)).try_take(budget.total()).expect("all of it");
    let good = program.push(AckLevel::Written, "good");
    program.push_bad(AckLevel::Written);
    let last = program.push(AckLevel::Written, "last");
    for _ in 0..3 {
        harness.drainage.turn();
    }
    drop(all);
    harness.all_written(&program, last);
    assert!(program.code(bad).is_some_and(|code| code != 0));
    assert_eq!(program.ring.refused(), last, "the one before the last");
    assert_eq!((program.code(good), program.code(last)), (Some(0), Some(0)));
    assert_eq!(harness.stored(program.producer), ["good", "last"]);
}

/// One batch with an append that is refused for now, one that is refused for good, and one that would be taken. No
/// append jumps over the one that is refused for now.
#[test]
fn nothing_overtakes_what_is_refused_for_now() {
    let mut harness = Harness::new(1);
    harness.append(9);
    harness.journal.connect(&[9; 16], UID.into(), 0, UID.into()).expect("its own");
    let program = harness.program(1);
    program.push(AckLevel::Written, "a");
    program.push_bad(AckLevel::Written);
    let last = program.push(AckLevel::Written, "b");
    assert!(!harness.is_drained(program.id));
    for _ in 0..3 {
        harness.drainage.turn();
    }
    let watermarks = program.ring.watermarks();
    assert_eq!(
        (watermarks.received, watermarks.written, watermarks.durable),
        (0, 0, 0),
        "of what is behind it nothing is reported either"
    );
    harness.journal.disconnect(&[9; 16], true);
    harness.all_written(&program, last);
    assert_eq!(harness.stored(program.producer), ["a", "b"]);
}

/// A request that comes when the drain has ended, or just as it ends, does not wait.
#[test]
fn nobody_waits_for_a_drain_that_has_ended() {
    let mut harness = Harness::new(16);
    let (early, mut reply) = oneshot::channel();
    harness.shared.order(Order::Stop);
    let shared = harness.shared.clone();
    harness.drainage.turn();
    assert!(harness.drainage.is_over());
    shared.order(Order::Resume(RingId::default(), early));
    assert_eq!(reply.try_recv().err(), Some(oneshot::error::TryRecvError::Closed));
}

impl Program {
    /// Place of the head of the ring (`shm/src/layout/`), and the bit that says closed.
    const HEAD: u64 = 64;
    const CLOSED: u64 = 1 << 63;

    /// Takes the ring for open again, as no honest client does.
    fn reopen(&self) {
        let mut head = [0; 8];
        self.memory.read_exact_at(&mut head, Self::HEAD).expect("a head");
        let head = u64::from_le_bytes(head) & !Self::CLOSED;
        self.memory.write_all_at(&head.to_le_bytes(), Self::HEAD).expect("writable");
    }
}

/// The connection has ended and the process writes on, over the closed bit of the ring: what was there then is stored,
/// and the ring ends.
#[test]
fn a_ring_ends_where_it_was_closed_whatever_its_process_writes() {
    let mut harness = Harness::new(16);
    let (orphan, other) = (harness.program(1), harness.program(2));
    for text in &numbered(100) {
        orphan.push(AckLevel::Posted, text);
    }
    harness.shared.order(Order::Retire { id: orphan.id, forget: false, done: None });
    harness.drainage.turn();
    assert!(orphan.ring.is_closed());
    harness.until("the ring is gone", |harness| {
        orphan.reopen();
        let trailer = RingAppendTrailer { level: AckLevel::Posted, payload_crc: 0 }.encode();
        let _ = orphan.ring.push(&[b"late", &trailer], 1);
        harness.shared.registry.of_producer(&orphan.producer).is_none()
    });
    let last = other.push(AckLevel::Written, "of another");
    harness.all_written(&other, last);
    assert_eq!(harness.stored(orphan.producer), numbered(100));
    assert!(harness.is_drained(orphan.id), "there is none any more");
}

/// Rings of an earlier daemon: a closed one is released at once. One whose client cannot be watched lives, and ends
/// when the client has not come back in time.
#[test]
fn a_ring_whose_client_does_not_come_back_is_closed_in_time() {
    let mut harness = Harness::new(16);
    let adopt = |harness: &mut Harness, program: &Program| {
        // Not known to the kernel: it can be neither watched nor said to be gone.
        let note = Note { id: RingId::from_bytes([9; 16]), producer: program.producer, uid: UID, ..Note::default() };
        let fds = vec![
            program.memory.try_clone().expect("a descriptor").into(),
            program.waker.try_clone().expect("a descriptor"),
        ];
        harness.shared.adopt(StoredRing { note, fds }).expect("adopted")
    };
    let program = harness.program(1);
    let mut ring = adopt(&mut harness, &program);
    let (now, until) = (Instant::now(), ring.expected().expect("it is waited for"));
    assert!(until > now + Duration::from_secs(30) && !program.ring.is_closed());
    ring.came_back();
    assert_eq!(ring.expected(), None);
    ring.is_expected_by(now);
    program.push(AckLevel::Posted, "posted meanwhile");
    harness.drainage = Drainage::new(harness.shared.clone(), vec![ring]);
    assert!(program.ring.is_closed(), "nobody came back");
    let closed = adopt(&mut harness, &program);
    assert_eq!(closed.expected(), None, "it is over as it comes");
    harness.until("stored", |harness| harness.stored(program.producer) == ["posted meanwhile"]);
}

/// All of the budget is taken, and others queue for it behind the drain: the drain has its turn before them.
#[test]
fn the_drain_waits_for_room_in_line() {
    let mut harness = Harness::new(16);
    let program = harness.program(1);
    let budget = harness.shared.admission().budget.clone();
    let all = budget.handle(Owner::Uid(0)).try_take(budget.total()).expect("all of it");
    let last = program.push(AckLevel::Written, "in line");
    harness.drainage.turn();
    assert!(harness.drainage.rings().iter().all(Ring::waits_for_room));
    let mut behind: Vec<_> = (0..3).map(|_| Box::pin(budget.handle(Owner::Network).take(usize::MAX))).collect();
    let mut served = 0;
    drop(all);
    // As sockets do: each takes all of it as soon as it can, and gives it back.
    harness.until("it had its turn", |_| {
        let mut context = Context::from_waker(Waker::noop());
        while let Some(first) = behind.first_mut()
            && let Poll::Ready(room) = first.as_mut().poll(&mut context)
        {
            drop((room, behind.remove(0)));
            served += 1;
        }
        assert!(
            served == 0 || program.ring.watermarks().received > last,
            "{served} who came later were served before it"
        );
        program.ring.watermarks().written > last
    });
    assert_eq!(harness.stored(program.producer), ["in line"]);
}

/// A user whose share is used up waits alone: another's ring does not wait too. The user's own FLUSH waits.
#[test]
fn who_has_no_room_holds_up_nobody_else() {
    let mut harness = Harness::new(16);
    let (full, other) = (harness.program_of(UID, 1), harness.program_of(UID + 1, 2));
    let budget = harness.shared.admission().budget.clone();
    let half = budget.handle(Owner::Uid(UID)).try_take(budget.total() / 2).expect("half of it");
    let last = numbered(20).iter().map(|text| full.push(AckLevel::Written, text)).last().expect("some");
    let theirs = other.push(AckLevel::Written, "goes on");
    harness.all_written(&other, theirs);
    assert_eq!(full.ring.watermarks().received, 0);
    assert!(harness.is_drained(other.id), "nobody else waits");
    let mut reply = harness.asks(full.id);
    // Appends that come meanwhile are behind it, and are no reason to look.
    full.push(AckLevel::Written, "later");
    (0..3).for_each(|_| _ = harness.drainage.turn());
    assert_eq!(full.ring.watermarks().received, 0);
    assert!(reply.try_recv().is_err(), "what lies there was not handed over");
    drop(half);
    harness.all_written(&full, last + 1);
    assert!(reply.try_recv().is_ok_and(|reply| reply.is_ok()));
    assert_eq!(harness.stored(full.producer), [numbered(20), vec!["later".to_owned()]].concat());
    harness.until("it is given back", |_| budget.in_use() == 0);
}
