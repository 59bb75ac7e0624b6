//! The drain with real rings and a real journal, turn by turn: no thread, no socket, no client's process.

mod aside;
mod ends;
mod lead;
mod promises;
mod world;

use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use clad_journal::format::checksum;
use clad_journal::{Append, Hand, Journal, JournalConfig, Level};
use clad_proto::frame::{Hello, RingAppendTrailer, RingId};
use clad_proto::{AckLevel, DurabilityPolicy, Group, Payload, PayloadBuilder, PayloadView, ProducerId, Record};
use clad_shm::{Drain, Producer as Client};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use tokio::sync::oneshot;

use super::lead::{Lead, Left, Watch};
use super::ring::Ring;
use super::roll::Roll;
use super::thread::Drainage;
use super::{CatchUp, Held, Order, Rings, Settings, Shared, clock, duplicate, member, peer_of, shape};
use crate::ingest::quota::{Owner, Quota};
use crate::ingest::{Door, Producer};
use crate::keep::{Keeper, Kept, Note};
use world::{Program, World, payload};

/// Only what hangs takes longer.
const PATIENCE: Duration = Duration::from_secs(60);
const UID: u32 = 1000;

fn numbered(many: usize) -> Vec<String> {
    (0..many).map(|n| n.to_string()).collect()
}

/// Who has many rings can make no more holes than who has one, and what one user spends is not another's.
#[test]
fn the_rings_of_a_user_have_one_allowance_for_their_holes() {
    let mut world = World::new(16);
    let _programs = [(UID, 1), (UID, 2), (UID + 1, 3), (UID, 4)].map(|(uid, name)| world.program_of(uid, name));
    let allowances: Vec<_> = world.drainage.rings().iter().map(|ring| ring.drain().allowance()).collect();
    assert!(allowances[0] == allowances[1] && allowances[0] == allowances[3]);
    assert!(allowances[0] != allowances[2]);
}

/// A client comes back before the end of its old connection is seen: the ring is the new one's.
#[test]
fn the_end_of_an_old_connection_leaves_the_ring_to_the_new_one() {
    let mut world = World::new(16);
    let program = world.program(1);
    let member = world.shared.roll.of_producer(&program.producer).expect("a ring");
    let hello = Hello { producer_id: program.producer, ..Hello::default() };
    let peer = peer_of(&member.note);
    let rings = Rings(Some(world.shared.clone()));
    let waits = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let old = waits.block_on(rings.meet(&hello, &peer)).expect("its own").expect("it may go on");
    let new = waits.block_on(rings.meet(&hello, &peer)).expect("its own").expect("it may go on");
    drop(old);
    world.drainage.turn();
    let last = program.push(AckLevel::Written, "still here");
    world.all_written(&program, last);
    drop(new);
    assert!(Held::of(&world.shared, &member).is_none(), "it is ending, though the drain has not heard of it");
    world.until("the ring is gone", |world| world.shared.roll.of_producer(&program.producer).is_none());
    assert!(program.ring.is_closed());
    assert_eq!(world.stored(program.producer), ["still here"]);
}

/// More than a batch holds, from a producer for whom there is no place: the others' rings are drained, whoever comes by a
/// socket does not wait, and it is stored when there is a place.
#[test]
fn a_ring_that_is_refused_for_now_holds_up_nobody() {
    let mut world = World::new(4); // of which one user has two
    let busy = world.program(1);
    busy.push(AckLevel::Written, "first");
    world.append(9);
    world.journal.connect(&[9; 16], UID.into(), 0, UID.into()).expect("its own");
    let poor = world.program(2);
    for text in &numbered(2000) {
        poor.push(AckLevel::Posted, text);
    }
    let last = busy.push(AckLevel::Written, "last");
    world.all_written(&busy, last);
    assert!(world.catch_up(None), "nobody waits for it");
    assert!(world.catch_up(Some(busy.id)));
    assert!(!world.catch_up(Some(poor.id)), "but its own client is told that it is not taken");
    assert!(!world.shared.roll.is_behind(None) && world.shared.roll.is_behind(Some(poor.id)));
    assert_eq!(poor.ring.marks().received, 0);

    world.journal.disconnect(&[9; 16], true);
    let last = poor.push(AckLevel::Written, "2000");
    world.all_written(&poor, last);
    assert!(world.catch_up(Some(poor.id)));
    assert_eq!(world.stored(poor.producer), numbered(2001), "each once, in order");
    assert_eq!(world.stored(busy.producer), ["first", "last"]);
}

/// One whose checksum is wrong ends its ring, where it lies; what was pushed before it is stored,
/// and nobody else waits.
#[test]
fn an_append_that_is_nonsense_ends_its_ring_and_nothing_else() {
    let mut world = World::new(16);
    let (scribbler, other) = (world.program(1), world.program(2));
    scribbler.push(AckLevel::Written, "before");
    scribbler.push(AckLevel::Written, "nonsense");
    scribbler.push(AckLevel::Written, "behind");
    scribbler.scribble("nonsense");
    let last = other.push(AckLevel::Written, "of another");
    // In a thread, because what was wrong here once was a pass that never ended.
    let (ended, turned) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        world.drainage.turn();
        let _ = ended.send(world);
    });
    let mut world = turned.recv_timeout(PATIENCE).expect("the pass ends");
    world.all_written(&other, last);
    assert!(world.catch_up(None) && world.catch_up(Some(other.id)));
    world.until("the ring is gone", |world| world.shared.roll.of_producer(&scribbler.producer).is_none());
    assert!(scribbler.ring.is_closed());
    assert_eq!(world.stored(scribbler.producer), ["before"]);
    assert_eq!(world.stored(other.producer), ["of another"]);
}

/// What is whole and no append at all has an answer too.
#[test]
fn content_that_is_no_append_is_refused_and_the_ring_goes_on() {
    let mut world = World::new(16);
    let program = world.program(1);
    let odd: [&[u8]; 3] = [&[7; 12], &[1], b"\x02\x00\x00\x01\x00\x00\x00\x00 and more"];
    let odd = odd.map(|content| program.ring.push(&[content], 1).expect("room"));
    let last = program.push(AckLevel::Written, "last");
    world.all_written(&program, last);
    let bad = Some(u32::from(clad_proto::ErrorCode::BadRecord.number()));
    assert_eq!(odd.map(|append| program.code(append)), [bad; 3]);
    assert_eq!(world.stored(program.producer), ["last"]);
}

#[test]
fn a_drain_that_does_not_get_on_is_seen_and_so_is_what_a_stop_leaves() {
    let mut world = World::new(16);
    let program = world.program(1);
    let rings = Rings(Some(world.shared.clone()));
    assert_eq!(rings.silent_for(), Duration::ZERO, "it is asked now");
    std::thread::sleep(Duration::from_millis(2));
    assert!(rings.silent_for() > Duration::ZERO);
    world.drainage.turn();
    assert_eq!(rings.silent_for(), Duration::ZERO);
    program.push(AckLevel::Posted, "in the ring");
    assert_eq!(rings.stop(Instant::now()), 1, "nobody drains it");
    world.until("drained", |_| rings.stop(Instant::now()) == 0);
    assert_eq!(world.stored(program.producer), ["in the ring"]);
}

/// The log has lost its producer, or what it had stored: what comes behind is taken all the same.
#[test]
fn what_the_log_has_lost_is_jumped_over() {
    let mut world = World::new(16);
    let program = world.program(1);
    let first = program.push(AckLevel::Durable, "lost");
    world.until("given back", |_| program.ring.marks().durable > first);
    world.journal.disconnect(program.producer.as_bytes(), true);
    let next = program.push(AckLevel::Written, "next");
    world.all_written(&program, next);
    assert_eq!(program.code(next), Some(0));
    assert!(world.catch_up(Some(program.id)));
}

/// A hole behind what is refused, in a batch that has to wait for room: nothing is asked twice with another answer.
#[test]
fn a_hole_in_a_batch_that_waits_for_room_loses_nothing() {
    let mut world = World::new(16);
    let program = world.program(1);
    let bad = program.push_bad(AckLevel::Written);
    world.until("refused", |_| program.ring.marks().received > bad);
    let budget = world.shared.door().budget.clone();
    let all = budget.part(Owner::Uid(0)).try_take(budget.total()).expect("all of it");
    let good = program.push(AckLevel::Written, "good");
    program.push_bad(AckLevel::Written);
    let last = program.push(AckLevel::Written, "last");
    for _ in 0..3 {
        world.drainage.turn();
    }
    drop(all);
    world.all_written(&program, last);
    assert!(program.code(bad).is_some_and(|code| code != 0));
    assert_eq!(program.ring.refused(), last, "the one before the last");
    assert_eq!((program.code(good), program.code(last)), (Some(0), Some(0)));
    assert_eq!(world.stored(program.producer), ["good", "last"]);
}

/// In one batch: an append that is refused for now, one that is refused for good, and one that would be taken. What is
/// refused for now is not jumped over.
#[test]
fn nothing_overtakes_what_is_refused_for_now() {
    let mut world = World::new(1);
    world.append(9);
    world.journal.connect(&[9; 16], UID.into(), 0, UID.into()).expect("its own");
    let program = world.program(1);
    program.push(AckLevel::Written, "a");
    program.push_bad(AckLevel::Written);
    let last = program.push(AckLevel::Written, "b");
    assert!(!world.catch_up(Some(program.id)));
    for _ in 0..3 {
        world.drainage.turn();
    }
    let marks = program.ring.marks();
    assert_eq!(
        (marks.received, marks.written, marks.durable),
        (0, 0, 0),
        "of what is behind it nothing is told either"
    );
    world.journal.disconnect(&[9; 16], true);
    world.all_written(&program, last);
    assert_eq!(world.stored(program.producer), ["a", "b"]);
}

/// A client that rings though nobody sleeps, or rings late: its doorbell is read, and does not ring for ever.
#[test]
fn a_doorbell_rings_once() {
    let mut world = World::new(16);
    let program = world.program(1);
    rustix::io::write(&program.waker, &1_u64.to_ne_bytes()).expect("rung");
    world.drainage.rest(Some(PATIENCE));
    let mut fds = [PollFd::new(&program.waker, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&at_once)), Ok(0));
}

/// Who waits alone for the disk is written for by the thread that drained it. What comes while that one is at the disk
/// wakes the other, for what needs no disk does not wait for it.
#[test]
fn what_comes_while_the_drain_writes_wakes_the_other_thread() {
    let world = World::new(16);
    let (program, ring) = world.ring(1);
    let told = world.shared.clone();
    world.journal.on_marks(move || told.marks_moved());
    let lead = Arc::new(Lead::new(world.shared.clone(), vec![ring]).expect("a lead"));
    let end = Instant::now() + PATIENCE;
    // The journal's own threads may be on their way still, from its start or from a write: then they make the next one.
    let owed = loop {
        let append = program.push(AckLevel::Durable, "durable");
        let owed = {
            let mut drainage = lead.drainage();
            drainage.look();
            drainage.goes()
        };
        // Dropped, it is made by one of those, who may also have come by themselves: for the vouch of an idle log, say.
        if let Some(owed) = owed.filter(|_| program.ring.marks().durable == append) {
            break owed;
        }
        while program.ring.marks().durable <= append {
            assert!(Instant::now() < end, "nobody writes");
            lead.drainage().turn();
        }
    };
    // This thread is at the disk now, for as long as it likes.
    lead.arm();
    let other = std::thread::spawn({
        let lead = lead.clone();
        move || lead.stand_by()
    });
    let append = program.push(AckLevel::Received, "received");
    while program.ring.marks().received <= append {
        assert!(Instant::now() < end, "what needs no disk waits for it");
        std::thread::yield_now();
    }
    assert!(lead.try_lead().is_none(), "the other leads");
    drop(owed.write(&mut Hand::default()));
    let last = program.push(AckLevel::Durable, "last");
    while program.ring.marks().durable <= last {
        assert!(Instant::now() < end, "the other leads, and nobody is told");
        std::thread::yield_now();
    }
    world.shared.order(Order::Stop);
    other.join().expect("it ends");
    assert_eq!(world.stored(program.producer)[last as usize - 1..], ["received", "last"]);
}

/// Whoever asks for something when the drain has ended, or just as it ends, is not kept waiting.
#[test]
fn nobody_waits_for_a_drain_that_has_ended() {
    let mut world = World::new(16);
    let (early, mut told) = oneshot::channel();
    world.shared.order(Order::Stop);
    let shared = world.shared.clone();
    assert!(matches!(world.drainage.lead(), Left::Over));
    shared.order(Order::GoOn(RingId::default(), early));
    assert_eq!(told.try_recv().err(), Some(oneshot::error::TryRecvError::Closed));
}

impl Program {
    /// Where the head of the ring lies (`shm/src/layout.rs`), and the bit that says closed.
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

/// The connection has ended and the process writes on, over the mark that the ring is closed: what was there then is
/// stored, and the ring ends.
#[test]
fn a_ring_ends_where_it_was_closed_whatever_its_process_writes() {
    let mut world = World::new(16);
    let (orphan, other) = (world.program(1), world.program(2));
    for text in &numbered(100) {
        orphan.push(AckLevel::Posted, text);
    }
    world.shared.order(Order::Retire { id: orphan.id, forget: false, done: None });
    world.drainage.turn();
    assert!(orphan.ring.is_closed());
    world.until("the ring is gone", |world| {
        orphan.reopen();
        let trailer = RingAppendTrailer { level: AckLevel::Posted, payload_crc: 0 }.encode();
        let _ = orphan.ring.push(&[b"late", &trailer], 1);
        world.shared.roll.of_producer(&orphan.producer).is_none()
    });
    let last = other.push(AckLevel::Written, "of another");
    world.all_written(&other, last);
    assert_eq!(world.stored(orphan.producer), numbered(100));
    assert!(world.catch_up(None));
}

/// Of an earlier daemon's rings: one that was closed is let go at once; one whose client nobody can watch lives, and ends
/// when that has not come back in time.
#[test]
fn a_ring_whose_client_does_not_come_back_is_closed_in_time() {
    let mut world = World::new(16);
    let adopt = |world: &mut World, program: &Program| {
        // Not known to the kernel: it can be neither watched nor said to be gone.
        let note = Note { id: RingId::from_bytes([9; 16]), producer: program.producer, uid: UID, ..Note::default() };
        let fds = vec![
            program.memory.try_clone().expect("a descriptor").into(),
            program.waker.try_clone().expect("a descriptor"),
        ];
        world.shared.adopt(Kept { note, fds }).expect("adopted")
    };
    let program = world.program(1);
    let mut ring = adopt(&mut world, &program);
    let (now, until) = (Instant::now(), ring.expected().expect("it is waited for"));
    assert!(until > now + Duration::from_secs(30) && !program.ring.is_closed());
    ring.came_back();
    assert_eq!(ring.expected(), None);
    ring.is_expected_by(now);
    program.push(AckLevel::Posted, "posted meanwhile");
    let watch = Watch::new(world.shared.bell.as_fd()).expect("a watch");
    world.drainage = Drainage::new(world.shared.clone(), Arc::new(watch), vec![ring]);
    assert!(program.ring.is_closed(), "nobody came back");
    let closed = adopt(&mut world, &program);
    assert_eq!(closed.expected(), None, "it is over as it comes");
    world.until("stored", |world| world.stored(program.producer) == ["posted meanwhile"]);
}

/// All of the budget is taken, and others queue for it behind the drain: it has its turn before them.
#[test]
fn the_drain_waits_for_room_in_line() {
    let mut world = World::new(16);
    let program = world.program(1);
    let budget = world.shared.door().budget.clone();
    let all = budget.part(Owner::Uid(0)).try_take(budget.total()).expect("all of it");
    let last = program.push(AckLevel::Written, "in line");
    world.drainage.turn();
    assert!(world.drainage.rings().iter().all(Ring::waits_for_room));
    let mut behind: Vec<_> = (0..3).map(|_| Box::pin(budget.part(Owner::Network).take(usize::MAX))).collect();
    let mut served = 0;
    drop(all);
    // As sockets do: each has all of it as soon as it can, and gives it back.
    world.until("it had its turn", |_| {
        let mut context = Context::from_waker(Waker::noop());
        while let Some(first) = behind.first_mut()
            && let Poll::Ready(room) = first.as_mut().poll(&mut context)
        {
            drop((room, behind.remove(0)));
            served += 1;
        }
        assert!(served == 0 || program.ring.marks().received > last, "{served} who came later were served before it");
        program.ring.marks().written > last
    });
    assert_eq!(world.stored(program.producer), ["in line"]);
}

/// A user who has used his share up waits alone: neither another's ring, nor who comes by a socket, waits with him. His own
/// FLUSH does.
#[test]
fn who_has_no_room_holds_up_nobody_else() {
    let mut world = World::new(16);
    let (full, other) = (world.program_of(UID, 1), world.program_of(UID + 1, 2));
    let budget = world.shared.door().budget.clone();
    let half = budget.part(Owner::Uid(UID)).try_take(budget.total() / 2).expect("half of it");
    let last = numbered(20).iter().map(|text| full.push(AckLevel::Written, text)).last().expect("some");
    let theirs = other.push(AckLevel::Written, "goes on");
    world.all_written(&other, theirs);
    assert_eq!(full.ring.marks().received, 0);
    assert!(world.catch_up(None) && world.catch_up(Some(other.id)), "nobody else waits");
    let (done, mut told) = oneshot::channel();
    world.shared.order(Order::CatchUp(CatchUp { time: clock::now(), of: Some(full.id), done }));
    // What comes meanwhile is behind it, and is no reason to look.
    full.push(AckLevel::Written, "later");
    (0..3).for_each(|_| _ = world.drainage.turn());
    assert_eq!(full.ring.marks().received, 0);
    assert!(told.try_recv().is_err(), "what lies there was not handed over");
    drop(half);
    world.all_written(&full, last + 1);
    assert!(told.try_recv().is_ok_and(|told| told.is_ok()));
    assert_eq!(world.stored(full.producer), [numbered(20), vec!["later".to_owned()]].concat());
    world.until("it is given back", |_| budget.in_use() == 0);
}

/// While it waits for room its thread sleeps; counted by the times that it left the processor.
#[test]
fn a_drain_that_waits_for_room_looks_for_nothing() {
    let mut world = World::new(16);
    let program = world.program(1);
    let budget = world.shared.door().budget.clone();
    let all = budget.part(Owner::Uid(0)).try_take(budget.total()).expect("all of it");
    let last = program.push(AckLevel::Written, "waits");
    let (tell, thread) = std::sync::mpsc::sync_channel(1);
    let World { shared, mut drainage, dir: _dir, journal } = world;
    let told = shared.clone();
    journal.on_marks(move || told.marks_moved());
    let drain = std::thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero()).expect("somebody listens");
        while let Left::Owing(owed) = drainage.lead() {
            drop(owed);
        }
    });
    let status = format!("/proc/self/task/{}/status", thread.recv().expect("told"));
    let left = || -> u64 {
        let status = std::fs::read_to_string(&status).expect("its thread");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.expect("counted").trim().parse().expect("a number")
    };
    let until = Instant::now() + PATIENCE;
    while !shared.asleep.load(std::sync::atomic::Ordering::SeqCst) {
        assert!(Instant::now() < until, "it never sleeps");
        std::thread::yield_now();
    }
    let before = left();
    for text in &numbered(100) {
        program.push(AckLevel::Posted, text); // nothing that it could take
    }
    std::thread::sleep(Duration::from_millis(300)); // 3,000 looks, were it to look every 100 us
    assert!(left() - before < 20, "it woke {} times for nothing", left() - before);
    assert_eq!(program.ring.marks().received, 0);
    drop(all);
    let until = Instant::now() + PATIENCE;
    while program.ring.marks().written <= last {
        assert!(Instant::now() < until, "it was not woken");
        std::thread::yield_now();
    }
    shared.order(Order::Stop);
    drain.join().expect("it ends");
}
