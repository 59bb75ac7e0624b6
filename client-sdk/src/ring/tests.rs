//! Cases that no test from outside can bring about on purpose: a look between two steps of another thread.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use clad_proto::{AckLevel, LogId, frame::RingId, payload_checksum};
use clad_shm::{Answer, Drain, Level, Peek, Producer, Shape, clock};
use tokio::sync::{Semaphore, oneshot};

use super::handle::RingHandle;
use super::waiting::Waiting;
use super::{Posted, Pushed, Pushing, RingTicket};
use crate::producer::Shared;
use crate::session::Append;
use crate::stats::Book;
use crate::waiters::{Claim, Waiters};
use crate::{Address, AppendError, ProducerBuilder, Receipt, clock::now};

/// As a log call does; nothing where the receipt is there at once.
fn push(handle: &Arc<RingHandle>, payload: &[u8], level: AckLevel) -> Option<Pushed> {
    let unsettled = handle.push(Pushing::new(payload, 1), Some(level)).err()?;
    Some(RingTicket::settle(handle, unsettled, 1, Book::Common(&handle.counters)))
}

type OutcomeReceiver = oneshot::Receiver<Result<Receipt, AppendError>>;

fn ring() -> (Drain, Arc<RingHandle>) {
    let shape = Shape::new(4096, 8).expect("a shape");
    let drain = Drain::create(shape, 0, [7; 16], 1).expect("a ring");
    let fds = drain.client_fds();
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
    let producer = Producer::attach(&own(fds.ring), &own(fds.completion_page), own(fds.waker)).expect("attached");
    let log = LogId::from_bytes([7; 16]);
    let handle = RingHandle::new(
        RingId::from_bytes([1; 16]),
        producer,
        log,
        (AckLevel::Durable, true),
        Arc::default(),
        Arc::default(),
        Arc::default(),
    );
    (drain, Arc::new(handle))
}

fn append() -> Append {
    let level = Some(AckLevel::Written);
    let payload = Bytes::from_static(b"a record");
    Append { crc: payload_checksum(&payload), count: 1, payload, level, severity: 9, submitted: now() }
}

fn claim() -> (Claim, OutcomeReceiver) {
    let (ticket, receiver) = oneshot::channel();
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("room");
    (Claim { waiters: Waiters::Whole(ticket), permit }, receiver)
}

/// The next answer, from whichever thread it comes; no thread reads the completion page here.
fn soon(outcome: OutcomeReceiver) -> Result<Receipt, AppendError> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || sender.send(outcome.blocking_recv()));
    receiver.recv_timeout(Duration::from_secs(60)).expect("it hangs").expect("an outcome")
}

#[test]
fn a_wait_in_a_closed_ring_ends_with_its_error() {
    let (_drain, handle) = ring();
    let (before, outcome) = claim();
    assert!(matches!(handle.post(append(), before), Posted::Done));
    handle.end(&AppendError::Forgotten);
    assert!(matches!(soon(outcome), Err(AppendError::Forgotten)));
    // A thread that had its append in the ring before the end, and comes to wait for it only now.
    let (claim_late, outcome) = claim();
    handle.posted(Waiting { append: 1, count: 1, level: AckLevel::Written, claim: claim_late });
    assert!(matches!(soon(outcome), Err(AppendError::Forgotten)));
    // What comes after it is not put where nothing takes it: it waits for the next ring.
    let (claim_after, _outcome) = claim();
    assert!(matches!(handle.post(append(), claim_after), Posted::Wait(..)) && handle.is_closed());
    assert_eq!(handle.pending(), 0);
}

#[test]
fn what_waits_when_a_ring_is_shown_is_looked_after() {
    let (mut drain, handle) = ring();
    let options = ProducerBuilder::new(Address::shm("clad.sock")).finish();
    let shared = Shared::new(options).expect("a small group");
    let (waits, outcome) = claim();
    assert!(matches!(handle.post(append(), waits), Posted::Done));
    // A poll in this moment finds no ring, and looks no more.
    shared.poll_completion_page();
    shared.set_ring_handle(Some(handle));
    assert!(matches!(drain.peek(clock::now()), Ok(Peek::Ready)));
    drain.take(&mut Vec::new()).expect("a sound ring").expect("the record");
    drain.raise(Level::Written, 1);
    drain.announce();
    assert_eq!(soon(outcome).expect("an ack").level, AckLevel::Written);
}

/// Into a ring that is full, and into one that is closed: an append that is reported as posted is there.
#[test]
fn posted_is_reported_only_for_what_is_in_the_ring() {
    let (mut drain, handle) = ring();
    let post = |posted_count: &mut u64| loop {
        let (claim, mut outcome) = claim();
        let append = Append { level: Some(AckLevel::Posted), ..append() };
        let posted = matches!(handle.post(append, claim), Posted::Done);
        assert_eq!(posted, matches!(outcome.try_recv(), Ok(Ok(receipt)) if receipt.level == AckLevel::Posted));
        if !posted {
            return;
        }
        *posted_count += 1;
        assert!(*posted_count < 1000, "it is full at some time");
    };
    let (mut posted_count, mut taken) = (0, 0);
    post(&mut posted_count);
    while matches!(drain.peek(clock::now()), Ok(Peek::Ready)) {
        taken += u64::from(drain.take(&mut Vec::new()).expect("a sound ring").is_some());
    }
    assert_eq!((posted_count, taken, drain.next()), (taken, posted_count, posted_count));
    drain.release(drain.next());
    drain.close();
    let before = posted_count;
    post(&mut posted_count);
    assert_eq!(posted_count, before, "nothing is put into a ring that is closed");
}

/// Foreign code that runs when a ticket is answered, in the thread that answers it.
struct OnWake<F>(F);

impl<F: Fn() + Send + Sync> Wake for OnWake<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// A flush ends when nothing waits: then all is counted, and every error without a listener is there for it.
#[test]
fn what_waits_no_longer_is_counted_and_its_error_noted() {
    let (mut drain, handle) = ring();
    let (first, mut outcome) = claim();
    let (second, released) = claim();
    drop(released);
    let dropped = |claim| assert!(matches!(handle.post(append(), claim), Posted::Done));
    dropped(first);
    dropped(second);
    drop(push(&handle, b"a record", AckLevel::Written));
    let seen = Arc::new(std::sync::Mutex::new(None));
    let waker = Waker::from(Arc::new(OnWake({
        let (handle, seen) = (handle.clone(), seen.clone());
        move || {
            let stats = handle.counters.snapshot(0, true);
            let of_flush = (handle.is_answered_below(3), handle.undelivered.take().is_some());
            *seen.lock().expect("whole") = Some((of_flush, stats.acked, stats.failed));
        }
    })));
    assert!(std::pin::Pin::new(&mut outcome).poll(&mut Context::from_waker(&waker)).is_pending());
    while matches!(drain.peek(clock::now()), Ok(Peek::Ready)) {
        let entry = drain.take(&mut Vec::new()).expect("a sound ring").expect("the record");
        let answer = Answer { first_offset: entry.append, epoch: 1, code: 0, detail: 1 };
        match entry.append {
            1 => drain.refuse(1, Answer { first_offset: 0, code: 5, detail: 0, ..answer }),
            append => drain.answer(append, answer),
        }
    }
    [Level::Received, Level::Written].into_iter().for_each(|level| drain.raise(level, 3));
    handle.pump();
    assert_eq!(*seen.lock().expect("whole"), Some(((true, true), 2, 1)));
}

/// Whichever thread finds it; the task waits for what it has asked for, and for no thread.
#[test]
fn the_last_answer_wakes_the_task() {
    let (mut drain, handle) = ring();
    drop((push(&handle, b"a record", AckLevel::Written), push(&handle, b"a record", AckLevel::Written)));
    let is_woken = || {
        let mut woken = std::pin::pin!(handle.wake.notified());
        woken.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    write(&mut drain, 1);
    handle.pump();
    assert!(handle.is_answered_below(2) && !is_woken(), "nothing is asked for");
    drop(push(&handle, b"a record", AckLevel::Written));
    assert!(handle.is_answered_below(2) && !handle.is_answered_below(3));
    handle.pump();
    assert!(!is_woken(), "it is not answered");
    write(&mut drain, 1);
    handle.pump();
    assert!(is_woken());
}

/// Of a ring that was abandoned: a ticket that is dropped later, and a thread that comes to wait only then.
#[test]
fn an_error_of_an_abandoned_ring_is_noted_when_its_ticket_is_dropped() {
    let (_drain, handle) = ring();
    let Some(Pushed::Pending(held)) = push(&handle, b"a record", AckLevel::Written) else { panic!("there is room") };
    handle.end(&AppendError::Forgotten);
    assert!(handle.undelivered.take().is_none(), "its ticket is held");
    drop(held);
    assert!(handle.undelivered.take().is_some());
    let known = |heard: bool| {
        let mut ticket = crate::Ticket::failed(AppendError::Forgotten, &handle);
        assert!(!heard || ticket.try_wait().is_some_and(|outcome| outcome.is_err()));
        drop(ticket);
        handle.undelivered.take().is_some()
    };
    assert_eq!((known(false), known(true)), (true, false));
}

/// A ticket that is polled while its group is open looks no more: whoever closes the group has the ring looked after.
#[test]
fn a_group_that_is_closed_is_looked_after() {
    let (mut drain, handle) = ring();
    let options = ProducerBuilder::new(Address::shm("clad.sock")).max_append_records(8).finish();
    let shared = Arc::new(Shared::new(options).expect("a small group"));
    shared.set_ring_handle(Some(handle.clone()));
    shared.late().expect("nothing has come").post_directly(&handle);
    let (ticket, outcome) = oneshot::channel();
    let permit = shared.budget.clone().try_acquire_many_owned(512).expect("room");
    shared
        .submit_record(&clad_proto::Record::text(1, 9, "grouped"), Some(AckLevel::Written), permit, Some(ticket))
        .expect("handed over");
    shared.poll_completion_page();
    handle.start_watch();
    let rests = || {
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while handle.is_wanted() {
            assert!(std::time::Instant::now() < end, "it hangs");
            std::thread::yield_now();
        }
    };
    rests();
    shared.drain(now(), &mut std::collections::VecDeque::new());
    assert!(handle.is_wanted(), "for the group");
    write(&mut drain, 1);
    drain.announce();
    assert_eq!(soon(outcome).expect("an ack").level, AckLevel::Written);
    rests();
}

/// A task that holds a ticket, and goes with its last waker.
struct Task(#[expect(dead_code, reason = "it is dropped")] RingTicket);

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

/// The drop of a waker runs foreign code, for example another ticket of the same ring: that comes to the lock again.
#[test]
fn a_waker_is_dropped_without_the_lock() {
    let (mut drain, handle) = ring();
    let pushed = || match push(&handle, b"a record", AckLevel::Written) {
        Some(Pushed::Pending(ticket)) => ticket,
        _ => panic!("there is room"),
    };
    let task = || Waker::from(Arc::new(Task(pushed())));
    let (mut polled, mut moved) = (pushed(), pushed());
    let wakers = [task(), task(), task()];
    let (done, finished) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let [first, second, third] = wakers;
        assert!(moved.poll(&Context::from_waker(&first)).is_pending());
        drop(first);
        assert!(moved.poll(&Context::from_waker(&second)).is_pending(), "in another task's hands");
        drop(second);
        drop(moved);
        assert!(polled.poll(&Context::from_waker(&third)).is_pending());
        drop(third);
        done.send(polled).expect("it is waited for");
    });
    let polled = finished.recv_timeout(Duration::from_secs(60)).expect("it hangs");
    while matches!(drain.peek(clock::now()), Ok(Peek::Ready)) {
        drain.take(&mut Vec::new()).expect("a sound ring").expect("the record");
    }
    drain.raise(Level::Written, drain.next());
    drain.announce();
    polled.wait(Duration::ZERO, Duration::from_secs(60)).expect("written");
    handle.end(&AppendError::Forgotten);
}

/// The daemon comes back with another log, again and again: no receipt names a log that there never was.
#[test]
fn a_log_id_is_never_half_of_one_and_half_of_another() {
    let (_drain, handle) = ring();
    let others = [[0; 16], [0xff; 16]]
        .map(|log| Drain::create(Shape::new(4096, 8).expect("a shape"), 0, log, 1).expect("a ring"));
    let completion_pages =
        others.each_ref().map(|drain| drain.client_fds().completion_page.try_clone_to_owned().expect("a descriptor"));
    let known = [[7; 16], [0; 16], [0xff; 16]].map(LogId::from_bytes);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = [0_u64; 3];
            while !handle.is_closed() {
                let now = handle.log_id();
                let at = known.iter().position(|log| *log == now);
                seen[at.unwrap_or_else(|| panic!("{now} is no log's"))] += 1;
            }
            seen
        });
        for (completion_page, log) in completion_pages.iter().zip(&known[1..]).cycle().take(1000) {
            handle.attach_completion_page(completion_page, None, (AckLevel::Durable, true)).expect("its page");
            assert_eq!(handle.log_id(), *log);
        }
        handle.end(&AppendError::Forgotten);
        reader.join().expect("whole ones alone");
    });
}

/// The next daemon's end of the ring, with another log or the same; its completion page is the ring handle's from now
/// on.
fn adopted(drain: &Drain, handle: &RingHandle, log: [u8; 16]) -> Drain {
    let fds = drain.client_fds();
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
    let next = Drain::adopt(own(fds.ring), own(fds.waker), log, 9).expect("a sound ring");
    handle
        .attach_completion_page(&own(next.client_fds().completion_page), None, (AckLevel::Durable, true))
        .expect("its page");
    next
}

/// Takes and answers all that is there; says that it is written.
fn write(drain: &mut Drain, epoch: u32) {
    while let Ok(Peek::Ready) = drain.peek(clock::now()) {
        let entry = drain.take(&mut Vec::new()).expect("a sound ring").expect("the record");
        drain.answer(entry.append, Answer { first_offset: 40 + entry.append, epoch, code: 0, detail: 1 });
    }
    for level in [Level::Received, Level::Written] {
        drain.raise(level, drain.next());
    }
}

/// A ticket that is asked late has its answer of the log that gave it, and one that the next log answers has it of
/// that.
#[test]
fn a_receipt_that_is_fetched_late_names_the_log_that_has_the_record() {
    let (mut drain, handle) = ring();
    let pushed = || match push(&handle, b"a record", AckLevel::Written) {
        Some(Pushed::Pending(ticket)) => ticket,
        _ => panic!("there is room"),
    };
    let late = [pushed(), pushed()];
    write(&mut drain, 1);
    handle.pump();
    let unseen = pushed();
    write(&mut drain, 1);
    drain.release(drain.next());
    let waits = pushed();
    let mut next = adopted(&drain, &handle, [8; 16]);
    write(&mut next, 9);
    let receipt = |ticket: RingTicket| ticket.wait(Duration::ZERO, Duration::from_secs(60)).expect("written");
    let waits = receipt(waits); // and the completion page of the other log was read
    let [first, second] = late.map(receipt);
    let receipts =
        [first, second, receipt(unseen), waits].map(|receipt| (receipt.log_id, receipt.epoch, receipt.first_offset));
    let log = |log: u8| LogId::from_bytes([log; 16]);
    assert_eq!(receipts, [(log(7), 1, Some(40)), (log(7), 1, Some(41)), (log(7), 1, Some(42)), (log(8), 9, Some(43))]);
}

/// A thread that was stopped behind its push, while the record was written, its space given back, and the daemon
/// exchanged for another. With the same log it has its receipt; with another one it is notified which log has the
/// record.
#[test]
fn what_a_lost_log_had_released_is_not_the_next_ones() {
    for other in [false, true] {
        let (mut drain, handle) = ring();
        let payload = [&b"a record"[..], &[0; 8]].concat();
        push(&handle, &payload, AckLevel::Posted);
        write(&mut drain, 1);
        drain.release(drain.next());
        let _next = adopted(&drain, &handle, if other { [8; 16] } else { [7; 16] });
        let (late, outcome) = claim();
        handle.posted(Waiting { append: 0, count: 1, level: AckLevel::Written, claim: late });
        handle.pump();
        let (before, after) = (LogId::from_bytes([7; 16]), LogId::from_bytes([8; 16]));
        match soon(outcome) {
            Ok(receipt) => assert!(!other && (receipt.log_id, receipt.first_offset) == (before, None), "{receipt:?}"),
            Err(AppendError::LogChanged { before: was, now }) => assert!(other && (was, now) == (before, after)),
            Err(error) => panic!("{error}"),
        }
    }
}
