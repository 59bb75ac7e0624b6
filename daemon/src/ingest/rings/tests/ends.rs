//! Rings: given, limited, shared between users, and lost; and the reports while they are not drained.

use clad_proto::frame::RingWanted;
use clad_proto::{ErrorCode, ErrorInfo};

use super::super::Asker;
use super::super::registry::{Registration, RingQuota};
use super::super::shared::memory;
use super::*;
use crate::ingest::Peer;

fn asker(producer: u8, producer_epoch: u32) -> Asker {
    let peer = Peer::unix(UID, UID, (Some(std::process::id()), crate::ingest::start_time(std::process::id())), true);
    let owner = peer.owner(b"");
    let producer = ProducerId::from_bytes([producer; 16]);
    Asker { peer, producer, producer_epoch, owner, handed_back: None }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}

const NEW: RingWanted = RingWanted { request_id: 1, known: None, clock_ns: 1, bytes: 0 };

/// Refusal of a request for a ring. No thread drains.
fn refusal_of(shared: &Arc<Shared>, wanted: RingWanted, asker: Asker) -> ErrorInfo {
    let rings = Rings(Some(shared.clone()));
    runtime().block_on(rings.give(wanted, asker)).map(drop).expect_err("no ring")
}

/// The drain does not respond: a client that asks for a ring, or comes back to its own, gets an error in time. The
/// error says nothing of the content of the ring. An answer that comes too late does not count.
#[test]
fn nobody_waits_for_ever_for_a_drain_that_does_not_get_on() {
    let mut harness = Harness::new(16);
    let program = harness.program(1);
    let known = RingWanted { known: Some(program.id), ..NEW };
    std::thread::scope(|scope| {
        for (wanted, producer) in [(known, 1), (NEW, 2)] {
            let shared = &harness.shared;
            scope.spawn(move || {
                let error = refusal_of(shared, wanted, asker(producer, 0));
                assert_eq!((error.code, error.retryable), (ErrorCode::Busy, true), "{error}");
            });
        }
    });
    program.push(AckLevel::Posted, "still there");
    harness.until("both rings have ended", |harness| harness.shared.registry.totals().0 == 0);
    assert_eq!(harness.stored(program.producer), ["still there"]);
}

/// An obstacle to a ring's first record is reported where the ring is asked for.
#[test]
fn the_table_of_producers_is_asked_before_a_ring_is_given() {
    let mut harness = Harness::new(1);
    let first = harness.program(1);
    first.push(AckLevel::Written, "there is no place for another");
    harness.all_written(&first, 0);
    assert_eq!(refusal_of(&harness.shared, NEW, asker(2, 0)).code, ErrorCode::TooManyProducers);
    harness.journal.connect(&[3; 16], u64::from(UID) + 1, 0, UID.into()).expect("its own");
    assert_eq!(refusal_of(&harness.shared, NEW, asker(3, 0)).code, ErrorCode::ProducerNotYours);
    harness.journal.connect(&[4; 16], UID.into(), 7, UID.into()).expect("its own");
    assert_eq!(refusal_of(&harness.shared, NEW, asker(4, 6)).code, ErrorCode::ProducerFenced);
    assert_eq!(harness.shared.registry.totals().0, 1, "nothing was given");
}

/// A reload applies to the rings that are given out from then on, as it does to connections.
#[test]
fn a_ring_keeps_the_limits_that_it_was_given_with() {
    let mut harness = Harness::new(16);
    let before = harness.program(1);
    let admission = Admission { max_append: 100, ..Admission::clone(&harness.shared.admission()) };
    Rings(Some(harness.shared.clone())).set_admission(Arc::new(admission));
    let after = harness.program(2);
    let long = "x".repeat(200);
    for program in [&before, &after] {
        let last = program.push(AckLevel::Written, &long);
        harness.all_written(program, last);
    }
    assert_eq!((before.code(0), after.code(0)), (Some(0), Some(ErrorCode::AppendTooLarge.number().into())));
}

/// Rings of an earlier daemon may be larger than any that are given out now: they count with their own size.
#[test]
fn a_user_has_a_share_of_the_memory_too() {
    let harness = Harness::new(16);
    let members: Vec<_> = (1..=4).map(|name| harness.ring(name).1.registered.clone()).collect();
    let one = memory(shape(1 << 20).expect("a shape"));
    let register = |rings, bytes| {
        let registry = RingRegistry::default();
        let all = RingQuota { rings, bytes };
        members
            .iter()
            .map(|registered| registry.register(registered.clone(), all))
            .filter(|e| *e == Registration::Done)
            .count()
    };
    // As many, and as much, are left for others.
    assert_eq!(
        [register(9, 9 * one), register(6, 9 * one), register(9, 4 * one), register(9, 4 * one - 1)],
        [4, 3, 2, 1]
    );
}

/// The ring of a program as the fd store gives it to the next daemon, which waits for its client.
fn stored(ring: &Ring) -> StoredRing {
    let fds = ring.drain().client_fds();
    let fds = [fds.ring, fds.waker].map(|fd| duplicate(fd).expect("a descriptor")).into();
    // Not known to the kernel: it can be neither watched nor said to be gone.
    StoredRing { note: Note { pid: 0, pid_start: 0, ..ring.registered.note }, fds }
}

/// The next daemon has another log, or has lost the end of its own: what the ring had given back is in neither. Where
/// its producer was forgotten, it is still there.
#[test]
fn a_flush_reports_once_that_what_was_given_back_is_not_in_the_log() {
    let mut harness = Harness::new(16);
    let program = harness.program(1);
    program.push(AckLevel::Written, "written");
    program.push_bad(AckLevel::Written);
    let last = program.push(AckLevel::Written, "written, too");
    harness.all_written(&program, last);
    let ring = &harness.drainage.rings()[0];
    assert_eq!(ring.drain().released(), 3, "they were given back");
    let same = harness.shared.adopt(stored(ring)).expect("a sound ring");
    assert!(!same.registered.take_lost(), "it is there");
    for _session in [ring, &same] {
        harness.journal.disconnect(program.producer.as_bytes(), true);
    }
    assert!(harness.journal.producer(program.producer.as_bytes(), UID.into()).is_ok_and(|known| known.is_none()));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(harness.journal.forgotten(program.producer.as_bytes()));
    let forgotten = harness.shared.adopt(stored(ring)).expect("a sound ring");
    assert!(!forgotten.registered.take_lost(), "its producer may have been silent for long");
    let next = Harness::new(16);
    let other = next.shared.adopt(stored(ring)).expect("a sound ring");
    let ring_ref = RingRef::of(&next.shared, &other.registered).expect("it is not ending");
    assert!(ring_ref.take_lost() && !ring_ref.take_lost(), "once, also where something was refused");
}

/// A daemon that has seen the loss and has resumed the ring dies: the next daemon sees the loss, too.
#[test]
fn an_unreported_loss_is_seen_by_the_next_daemon() {
    let mut harness = Harness::new(16);
    let program = harness.program(1);
    let last = program.push(AckLevel::Written, "written in a log that is lost");
    harness.all_written(&program, last);
    for reported in [false, true] {
        let mut next = Harness::new(16);
        let ring = next.shared.adopt(stored(&harness.drainage.rings()[0])).expect("a sound ring");
        assert!(ring.registered.has_unreported_loss());
        assert!(ring.registered.take_lost());
        if !reported {
            ring.registered.has_lost(); // as if nobody had asked
        }
        let released = ring.drain().released();
        next.add(ring);
        let completion_page =
            duplicate(next.drainage.rings()[0].drain().client_fds().completion_page).expect("a descriptor");
        program.ring.attach_completion_page(&completion_page, drop).expect("its page");
        program.push(AckLevel::Written, "in the next");
        next.until("given back", |next| next.drainage.rings()[0].drain().released() > released);
        let again = next.shared.adopt(stored(&next.drainage.rings()[0])).expect("a sound ring");
        assert_eq!(again.registered.take_lost(), !reported);
        harness = next;
    }
}

/// An append `posted` under one daemon's limits is stored by the next, whatever the limits of the next are.
#[test]
fn what_was_posted_is_not_refused_for_the_limits_of_the_next_daemon() {
    let harness = Harness::new(16);
    let (program, ring) = harness.ring(1);
    let long = "x".repeat(200);
    program.push(AckLevel::Posted, &long);
    let last = program.push(AckLevel::Written, &long);
    let mut next = Harness::new(16);
    let admission = Admission { max_append: 100, max_record: 50, ..Admission::clone(&next.shared.admission()) };
    Rings(Some(next.shared.clone())).set_admission(Arc::new(admission));
    let again = next.shared.adopt(stored(&ring)).expect("a sound ring");
    let _ring = std::mem::ManuallyDrop::new(ring); // it did not end, it was killed
    let completion_page = duplicate(again.drain().client_fds().completion_page).expect("a descriptor");
    program.ring.attach_completion_page(&completion_page, drop).expect("its page");
    next.add(again);
    next.all_written(&program, last);
    assert_eq!((next.stored(program.producer).len(), program.code(last)), (2, Some(0)));
}

/// No thread would drain, and everybody would wait: a separate process shows how that ends.
#[test]
fn a_panic_of_the_drain_ends_the_process() {
    const HERE: &str = "CLAD_TEST_PANIC_OF_THE_DRAIN";
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose, where somebody is notified that it has caught up");
        }
    }
    if std::env::var_os(HERE).is_some() {
        let (harness, fd_store) = (Harness::new(16), FdStore::for_test(64));
        let (_runtime, reactor) = running::threads();
        let (settings, admission) = (harness.shared.settings, harness.shared.admission());
        let rings = Rings::start(&reactor, settings, admission, fd_store, Vec::new()).expect("a drain");
        let (done, mut reply) = oneshot::channel();
        let panics = Waker::from(Arc::new(Panics));
        assert!(std::pin::Pin::new(&mut reply).poll(&mut Context::from_waker(&panics)).is_pending());
        let shared = rings.0.as_ref().expect("there are rings");
        shared.order(Order::Reach(Reach { id: RingId::default(), upto: 0, done }));
        std::thread::sleep(TEST_TIMEOUT);
        return;
    }
    crate::defect::tests::ends_by_a_panic(
        module_path!(),
        "a_panic_of_the_drain_ends_the_process",
        HERE,
        super::super::task::TASK_DESCRIPTION,
    );
}
