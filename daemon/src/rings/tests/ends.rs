//! How rings are given, limited, shared between users, and lost; and what is said while they are not drained.

use clad_proto::frame::RingWanted;
use clad_proto::{ErrorCode, ErrorInfo};

use super::super::pass::Batch;
use super::super::roll::{Entry, Share};
use super::super::{Asker, memory};
use super::*;
use crate::ingest::Peer;

fn asker(producer: u8, producer_epoch: u32) -> Asker {
    let peer = Peer::unix(UID, UID, (Some(std::process::id()), crate::ingest::start_time(std::process::id())), true);
    let owner = peer.owner(b"");
    Asker { peer, producer: ProducerId::from_bytes([producer; 16]), producer_epoch, owner, between: (0, u64::MAX) }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}

const NEW: RingWanted = RingWanted { request_id: 1, known: None, clock_ns: 1, bytes: 0 };

/// What somebody who asks for a ring is told. Nobody drains.
fn told(shared: &Arc<Shared>, wanted: RingWanted, asker: Asker) -> ErrorInfo {
    let rings = Rings(Some(shared.clone()));
    runtime().block_on(rings.give(wanted, asker)).map(drop).expect_err("no ring")
}

/// The drain does not get on: who asks for a ring, or comes back to the one he has, is told so in time, and that says nothing
/// of what is in it. What comes too late is not taken for an answer.
#[test]
fn nobody_waits_for_ever_for_a_drain_that_does_not_get_on() {
    let mut world = World::new(16);
    let _keeper = crate::keep::tests::real(&world.dir.path().join(crate::keep::HOLDER_SOCKET));
    let program = world.program(1);
    let known = RingWanted { known: Some(program.id), ..NEW };
    std::thread::scope(|scope| {
        for (wanted, producer) in [(known, 1), (NEW, 2)] {
            let shared = &world.shared;
            scope.spawn(move || {
                let error = told(shared, wanted, asker(producer, 0));
                assert_eq!((error.code, error.retryable), (ErrorCode::Busy, true), "{error}");
            });
        }
    });
    program.push(AckLevel::Posted, "still there");
    world.until("both rings have ended", |world| world.shared.roll.totals().0 == 0);
    assert_eq!(world.stored(program.producer), ["still there"]);
}

/// What would hold up a ring from its first record on is told where it is asked for.
#[test]
fn the_table_of_producers_is_asked_before_a_ring_is_given() {
    let mut world = World::new(1);
    let first = world.program(1);
    first.push(AckLevel::Written, "there is no place for another");
    world.all_written(&first, 0);
    assert_eq!(told(&world.shared, NEW, asker(2, 0)).code, ErrorCode::TooManyProducers);
    world.journal.connect(&[3; 16], u64::from(UID) + 1, 0, UID.into()).expect("its own");
    assert_eq!(told(&world.shared, NEW, asker(3, 0)).code, ErrorCode::ProducerNotYours);
    world.journal.connect(&[4; 16], UID.into(), 7, UID.into()).expect("its own");
    assert_eq!(told(&world.shared, NEW, asker(4, 6)).code, ErrorCode::ProducerFenced);
    assert_eq!(world.shared.roll.totals().0, 1, "nothing was given");
}

/// A reload is for the rings that are given out from then on, as it is for connections.
#[test]
fn a_ring_keeps_the_limits_that_it_was_given_with() {
    let mut world = World::new(16);
    let before = world.program(1);
    let door = Door { max_append: 100, ..Door::clone(&world.shared.door()) };
    Rings(Some(world.shared.clone())).set_door(Arc::new(door));
    let after = world.program(2);
    let long = "x".repeat(200);
    for program in [&before, &after] {
        let last = program.push(AckLevel::Written, &long);
        world.all_written(program, last);
    }
    assert_eq!((before.code(0), after.code(0)), (Some(0), Some(ErrorCode::AppendTooLarge.number().into())));
}

/// Rings of an earlier daemon may be larger than any that are given out now: they count as what they are.
#[test]
fn a_user_has_a_share_of_the_memory_too() {
    let world = World::new(16);
    let members: Vec<_> = (1..=4).map(|name| world.ring(name).1.member.clone()).collect();
    let one = memory(shape(1 << 20).expect("a shape"));
    let enter = |rings, bytes| {
        let roll = Roll::default();
        let all = Share { rings, bytes };
        members.iter().map(|member| roll.enter(member.clone(), all)).filter(|e| *e == Entry::Done).count()
    };
    // As many, and as much, are left for others.
    assert_eq!([enter(9, 9 * one), enter(6, 9 * one), enter(9, 4 * one), enter(9, 4 * one - 1)], [4, 3, 2, 1]);
}

/// One user's rings are full, and filled again as soon as there is room. Another's record is behind what was there before
/// it, and before all that comes later: nobody's flood is endless for anybody else.
#[test]
fn a_users_flood_goes_before_nobody_who_was_there_first() {
    const FLOODS: u8 = 4;
    let world = World::new(16);
    let text = "x".repeat(10_000);
    let (floods, mut rings): (Vec<_>, Vec<_>) = (1..=FLOODS).map(|name| world.ring_of(UID, name)).unzip();
    let (other, ring) = world.ring_of(UID + 1, 9);
    rings.push(ring);
    let flood = payload(&text);
    let trailer = RingAppendTrailer { level: AckLevel::Posted, payload_crc: flood.checksum() }.encode();
    // As many as there is room for.
    let fill = || {
        let fills =
            floods.iter().map(|program| (0..).take_while(|_| program.ring.push(&[&flood.bytes, &trailer], 1).is_ok()));
        fills.map(Iterator::count).sum::<usize>()
    };
    let before = fill();
    other.push(AckLevel::Posted, "of another user");
    let mut batch = Batch::default();
    let (door, mut after) = (world.shared.door(), 0);
    while !world.log().iter().any(|(of, _)| *of == other.producer) {
        batch.fill(&mut rings, clock::now_before_looking());
        batch.hand_over(&mut rings, &door, door.arrival());
        let end = Instant::now() + PATIENCE;
        while world.journal.marks().written < world.journal.marks().received {
            assert!(Instant::now() < end, "it is never written");
            std::thread::yield_now();
        }
        let marks = world.journal.marks();
        rings.iter_mut().for_each(|ring| assert!(ring.release(&marks).is_some()));
        after += fill();
    }
    let place = world.log().iter().position(|(of, _)| *of == other.producer);
    assert_eq!(place, Some(before), "behind all that was there before it, and nothing else");
    assert!(after > 0, "the flood went on");
}

/// What an append by a socket waits for is looked at every second: so the pages know that all of them are refused.
#[test]
fn it_is_seen_that_whoever_comes_by_a_socket_waits_for_the_rings() {
    let mut world = World::new(16);
    let program = world.program(1);
    let rings = Rings(Some(world.shared.clone()));
    let looks = || (rings.behind_for(), rings.behind_for());
    assert_eq!(looks(), (None, None), "there is nothing to wait for");
    program.push(AckLevel::Posted, "nobody drains it");
    assert_eq!(rings.behind_for(), None, "it has just come");
    let first = rings.behind_for().expect("it waits");
    assert!(rings.behind_for().expect("it waits") > first, "since then");
    world.until("drained", |_| rings.behind_for().is_none());
    world.until("nobody waits", |_| looks() == (None, None));
}

/// The ring of a program as the keeper gives it to the next daemon, which waits for its client.
fn kept(ring: &Ring) -> Kept {
    let fds = ring.drain().client_fds();
    let fds = [fds.ring, fds.waker].map(|fd| duplicate(fd).expect("a descriptor")).into();
    // Not known to the kernel: it can be neither watched nor said to be gone.
    Kept { note: Note { pid: 0, pid_start: 0, ..ring.member.note }, fds }
}

/// The next daemon has another log, or has lost the end of its own: what the ring had given back is in neither. Where its
/// producer was forgotten, it is there all the same.
#[test]
fn a_flush_is_told_once_that_what_was_given_back_is_not_in_the_log() {
    let mut world = World::new(16);
    let program = world.program(1);
    program.push(AckLevel::Written, "written");
    program.push_bad(AckLevel::Written);
    let last = program.push(AckLevel::Written, "written, too");
    world.all_written(&program, last);
    let ring = &world.drainage.rings()[0];
    assert_eq!(ring.drain().released(), 3, "they were given back");
    let same = world.shared.adopt(kept(ring)).expect("a sound ring");
    assert!(!same.member.take_lost(), "it is there");
    for _session in [ring, &same] {
        world.journal.disconnect(program.producer.as_bytes(), true);
    }
    assert!(world.journal.producer(program.producer.as_bytes(), UID.into()).is_ok_and(|known| known.is_none()));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(world.journal.forgotten(program.producer.as_bytes()));
    let forgotten = world.shared.adopt(kept(ring)).expect("a sound ring");
    assert!(!forgotten.member.take_lost(), "its producer may have been silent for long");
    let next = World::new(16);
    let other = next.shared.adopt(kept(ring)).expect("a sound ring");
    let held = Held::of(&next.shared, &other.member).expect("it is not ending");
    assert!(held.take_lost() && !held.take_lost(), "once, also where something was refused");
}

/// Another daemon dies, which has seen the loss, and has gone on with the ring: the one that comes then sees it, too.
#[test]
fn a_loss_of_which_no_flush_has_told_is_seen_by_the_next_daemon() {
    let mut world = World::new(16);
    let program = world.program(1);
    let last = program.push(AckLevel::Written, "written in a log that is lost");
    world.all_written(&program, last);
    for told in [false, true] {
        let mut next = World::new(16);
        let ring = next.shared.adopt(kept(&world.drainage.rings()[0])).expect("a sound ring");
        assert!(ring.member.has_untold_loss());
        assert!(ring.member.take_lost());
        if !told {
            ring.member.has_lost(); // as if nobody had asked
        }
        let released = ring.drain().released();
        next.add(ring);
        let board = duplicate(next.drainage.rings()[0].drain().client_fds().board).expect("a descriptor");
        program.ring.attach_board(&board, drop).expect("its board");
        program.push(AckLevel::Written, "in the next");
        next.until("given back", |next| next.drainage.rings()[0].drain().released() > released);
        let again = next.shared.adopt(kept(&next.drainage.rings()[0])).expect("a sound ring");
        assert_eq!(again.member.take_lost(), !told);
        world = next;
    }
}

/// What was `posted` under one daemon's limits is stored by the next, whatever those of that one are.
#[test]
fn what_was_posted_is_not_refused_for_the_limits_of_the_next_daemon() {
    let world = World::new(16);
    let (program, ring) = world.ring(1);
    let long = "x".repeat(200);
    program.push(AckLevel::Posted, &long);
    let last = program.push(AckLevel::Written, &long);
    let mut next = World::new(16);
    let door = Door { max_append: 100, max_record: 50, ..Door::clone(&next.shared.door()) };
    Rings(Some(next.shared.clone())).set_door(Arc::new(door));
    let again = next.shared.adopt(kept(&ring)).expect("a sound ring");
    let _ring = std::mem::ManuallyDrop::new(ring); // it did not end, it was killed
    let board = duplicate(again.drain().client_fds().board).expect("a descriptor");
    program.ring.attach_board(&board, drop).expect("its board");
    next.add(again);
    next.all_written(&program, last);
    assert_eq!((next.stored(program.producer).len(), program.code(last)), (2, Some(0)));
}

/// Nobody would drain, and everybody would wait: a process of its own shows how that ends.
#[test]
fn a_panic_of_the_drain_ends_the_process() {
    const HERE: &str = "CLAD_TEST_PANIC_OF_THE_DRAIN";
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose, where somebody is told that it has caught up");
        }
    }
    if std::env::var_os(HERE).is_some() {
        let world = World::new(16);
        let keeper = Keeper::for_test(world.dir.path());
        let rings = Rings::start(world.shared.settings, world.shared.door(), keeper, Vec::new()).expect("a drain");
        let (done, mut told) = oneshot::channel();
        let panics = Waker::from(Arc::new(Panics));
        assert!(std::pin::Pin::new(&mut told).poll(&mut Context::from_waker(&panics)).is_pending());
        let shared = rings.0.as_ref().expect("there are rings");
        shared.order(Order::CatchUp(CatchUp { time: clock::now(), of: None, done }));
        std::thread::sleep(PATIENCE);
        return;
    }
    crate::defect::tests::ends_by_a_panic(
        module_path!(),
        "a_panic_of_the_drain_ends_the_process",
        HERE,
        super::super::WHO,
    );
}
