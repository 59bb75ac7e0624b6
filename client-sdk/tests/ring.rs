//! The producer with a ring, against a daemon played by hand that drains it: nobody waits for an answer that is there.

mod support;

use std::future::Future;
use std::os::fd::OwnedFd;
use std::time::Duration;

use clad_client::*;
use clad_proto::ErrorCode;
use clad_proto::frame::{ErrorFrame, Frame, RingGiven, RingId};
use clad_shm::{Answer, Drain, Level, Peek, Shape, clock};
use support::*;

const RING: RingId = RingId::from_bytes([3; 16]);

/// The other end of a ring.
struct Drained {
    drain: Drain,
    next_offset: u64,
}

impl Drained {
    fn new() -> Self {
        let shape = Shape::new(64 * 1024, 64).expect("a shape");
        Self { drain: Drain::create(shape, 0, *LOG.as_bytes(), 1).expect("a ring"), next_offset: 0 }
    }

    /// As the next daemon finds it.
    fn adopted(&self) -> Self {
        self.adopted_by(LOG)
    }

    /// By a daemon that has this log.
    fn adopted_by(&self, log: LogId) -> Self {
        let fds = self.drain.client_fds();
        let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
        let drain = Drain::adopt(own(fds.ring), own(fds.waker), *log.as_bytes(), 2).expect("a sound ring");
        Self { drain, next_offset: self.next_offset }
    }

    /// What a client gets: `known` is its own ring's new completion page.
    fn fds(&self, known: bool) -> Vec<OwnedFd> {
        let fds = self.drain.client_fds();
        let all = [fds.completion_page, fds.ring, fds.waker];
        let wanted = if known { &all[..1] } else { &all[..] };
        wanted.iter().map(|fd| fd.try_clone_to_owned().expect("a descriptor")).collect()
    }

    fn given(&self, known: bool) -> RingGiven {
        let shape = self.drain.shape();
        RingGiven {
            request_id: 0,
            id: RING,
            known,
            stored: true,
            bytes: shape.data_bytes(),
            max_payload_bytes: shape.max_payload() as u32,
        }
    }

    /// Takes so many appends, all records at all levels, and wakes whoever sleeps on the completion page.
    async fn answers(&mut self, appends: u64) {
        let until = self.drain.next() + appends;
        soon(async {
            while self.drain.next() < until {
                self.take();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        for level in [Level::Received, Level::Written, Level::Durable] {
            self.drain.raise(level, until);
        }
        self.drain.release(until);
        self.drain.announce();
    }

    /// Takes so many appends and refuses those that are not `good`; no level but `received` is published.
    async fn judges(&mut self, appends: u64, good: impl Fn(u64) -> bool) {
        let until = self.drain.next() + appends;
        soon(async {
            while self.drain.next() < until {
                let Ok(Peek::Ready) = self.drain.peek(clock::now()) else {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                };
                let entry = self.drain.take(&mut Vec::new()).expect("a sound ring").expect("what was seen");
                let answer = Answer { first_offset: self.next_offset, epoch: 1, code: 0, detail: entry.records.into() };
                match good(entry.append) {
                    true => self.drain.answer(entry.append, answer),
                    false => {
                        let code = ErrorCode::RecordTooLarge.number().into();
                        self.drain.refuse(entry.append, Answer { first_offset: 0, code, detail: 0, ..answer });
                    }
                }
                self.next_offset += u64::from(entry.records);
            }
        })
        .await;
        self.drain.raise(Level::Received, until);
        self.drain.announce();
    }

    /// All that was taken has these levels, and its space is given back.
    fn all_have(&mut self, levels: &[Level]) {
        levels.iter().for_each(|level| self.drain.raise(*level, self.drain.next()));
        self.drain.release(self.drain.next());
        self.drain.announce();
    }

    fn take(&mut self) {
        while let Ok(Peek::Ready) = self.drain.peek(clock::now()) {
            let Some(entry) = self.drain.take(&mut Vec::new()).expect("a sound ring") else { return };
            let answer = Answer { first_offset: self.next_offset, epoch: 1, code: 0, detail: entry.records.into() };
            self.next_offset += u64::from(entry.records);
            self.drain.answer(entry.append, answer);
        }
    }
}

/// Hears RING and gives the ring.
async fn give(peer: &mut Peer, ring: &Drained) {
    let Frame::Ring(wanted) = peer.next().await else { panic!("RING comes after WELCOME") };
    let known = wanted.known.is_some();
    let given = RingGiven { request_id: wanted.request_id, ..ring.given(known) };
    peer.send_with_fds(Frame::RingGiven(given), &ring.fds(known)).await;
}

fn submit(producer: &Producer, level: AckLevel, text: &str) -> Ticket {
    let room = producer.try_reserve(100).expect("room");
    room.at(level).submit(&record(text)).expect("handed over")
}

#[tokio::test]
async fn a_ticket_polled_once_before_there_was_a_ring_is_woken() {
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let levels = [AckLevel::Received, AckLevel::Written, AckLevel::Durable];
    let tickets = levels.map(|level| tokio::spawn(submit(&producer, level, "early")));
    // Each is polled now, and there is no ring yet; nothing but the answer will have it polled again.
    tokio::task::yield_now().await;

    let mut ring = Drained::new();
    let mut peer = fake.accept().await;
    give(&mut peer, &ring).await;
    ring.answers(3).await;
    for (ticket, offset) in tickets.into_iter().zip(0..) {
        let receipt = soon(ticket).await.expect("a task").expect("an ack");
        assert_eq!((receipt.log_id, receipt.first_offset), (LOG, Some(offset)));
    }
}

#[tokio::test]
async fn a_ticket_polled_once_is_woken_after_waiting_for_room() {
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let mut ring = Drained::new();
    let mut peer = fake.accept().await;
    give(&mut peer, &ring).await;
    // Posted until the ring is full: these have their receipts, and nobody looks at the completion page for them.
    let posted = u64::from(ring.drain.shape().slots());
    for _ in 0..posted {
        soon(submit(&producer, AckLevel::Posted, "fills it")).await.expect("in the ring");
    }
    let late = tokio::spawn(submit(&producer, AckLevel::Written, "has no room"));
    tokio::task::yield_now().await;
    ring.answers(posted).await;
    ring.answers(1).await;
    let receipt = soon(late).await.expect("a task").expect("an ack");
    assert_eq!(receipt.first_offset, Some(posted));
}

/// What lies in the ring stays there; what waits for room in it is dropped for newer records, oldest first.
#[tokio::test]
async fn what_waits_for_room_in_the_ring_makes_room() {
    let fake = Fake::with_ring();
    let builder = fake.builder().overload(Overload::DropOldest).max_buffered_bytes(8192);
    let producer = builder.start().expect("a producer");
    let mut ring = Drained::new();
    let mut peer = fake.accept().await;
    give(&mut peer, &ring).await;
    soon(submit(&producer, AckLevel::Posted, "there is a ring")).await.expect("in the ring");
    let slots = u64::from(ring.drain.shape().slots());
    let offer = |number: u64| {
        let record = record(format!("{number} {}", "x".repeat(400)));
        producer.offer(&record, &Call::new().at(AckLevel::Received)).expect("room is made")
    };
    let tickets: Vec<_> = (1..slots + 100).map(offer).collect();
    let dropped = producer.stats().dropped_by.of(DropReason::Oldest);
    assert!(dropped > 50, "{:?}", producer.stats());
    ring.answers(slots).await;
    // Those that waited; their room is free then, and the report of the drops comes.
    ring.answers(100 - dropped).await;
    ring.answers(1).await;
    let mut lost = Vec::new();
    for (number, ticket) in (1..).zip(tickets) {
        match soon(ticket).await {
            Ok(_) => {}
            Err(AppendError::Dropped { reason: DropReason::Oldest }) => lost.push(number),
            Err(error) => panic!("{number}: {error}"),
        }
    }
    assert_eq!(lost, Vec::from_iter(slots..slots + dropped), "the oldest that were not in the ring");
    assert_eq!(producer.stats().drop_reports, 1);
}

#[tokio::test]
async fn a_ticket_polled_once_is_woken_by_the_next_daemon() {
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let ring = Drained::new();
    let mut peer = fake.accept().await;
    give(&mut peer, &ring).await;
    soon(submit(&producer, AckLevel::Posted, "the ring is there")).await.expect("in the ring");
    let waits = tokio::spawn(submit(&producer, AckLevel::Durable, "not drained by the first"));
    tokio::task::yield_now().await;
    drop(peer);
    let mut ring = ring.adopted();
    let mut peer = fake.accept().await;
    give(&mut peer, &ring).await;
    ring.answers(2).await;
    assert_eq!(soon(waits).await.expect("a task").expect("an ack").first_offset, Some(1));
}

/// The daemon has ended, and nobody but the client has the ring: the next one gets its memory, makes another doorbell,
/// and is woken by it.
#[tokio::test]
async fn a_ring_is_handed_back_to_the_next_daemon() {
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let ring = Drained::new();
    let mut peer = fake.accept().await;
    give(&mut peer, &ring).await;
    soon(submit(&producer, AckLevel::Posted, "the ring is there")).await.expect("in the ring");
    let waits = tokio::spawn(submit(&producer, AckLevel::Durable, "not drained by the first"));
    tokio::task::yield_now().await;
    drop((peer, ring));

    let mut peer = fake.accept().await;
    let (Frame::Ring(wanted), mut fds) = peer.next_with_fds().await else { panic!("RING comes after WELCOME") };
    assert_eq!((wanted.known, fds.len()), (Some(RING), 1));
    let waker = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("a doorbell");
    let mut drain = Drain::adopt(fds.remove(0), waker, *LOG.as_bytes(), 2).expect("a sound ring");
    assert!(!drain.sleep(), "it has not taken what is there");
    drain.awake();
    let mut ring = Drained { drain, next_offset: 0 };
    ring.take();
    assert!(ring.drain.sleep(), "it has taken all");
    let given = RingGiven { request_id: wanted.request_id, ..ring.given(true) };
    let fds: Vec<OwnedFd> = [ring.drain.client_fds().completion_page, ring.drain.client_fds().waker]
        .map(|fd| fd.try_clone_to_owned().expect("a descriptor"))
        .into();
    peer.send_with_fds(Frame::RingGiven(given), &fds).await;
    // Whoever pushed before the new doorbell was there has rung the old one.
    let rung = || {
        let mut doorbell = [rustix::event::PollFd::new(&fds[1], rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut doorbell, Some(&rustix::event::Timespec::default())).expect("polled") == 1
    };
    soon(async {
        while !rung() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    ring.drain.awake();
    ring.all_have(&[Level::Received, Level::Written, Level::Durable]);
    assert_eq!(soon(waits).await.expect("a task").expect("an ack").first_offset, Some(1));
    assert!(ring.drain.sleep(), "nothing came meanwhile");
    soon(submit(&producer, AckLevel::Posted, "wakes it")).await.expect("in the ring");
    assert!(rung(), "by the new doorbell");
}

/// Where no store has the ring, `posted` is refused before it is in the ring; every other level is as it was.
#[tokio::test]
async fn posted_is_refused_where_the_ring_is_not_stored() {
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let mut ring = Drained::new();
    let waits = submit(&producer, AckLevel::Posted, "before there is a ring");
    let mut peer = fake.accept().await;
    let Frame::Ring(wanted) = peer.next().await else { panic!("RING comes after WELCOME") };
    let given = RingGiven { request_id: wanted.request_id, stored: false, ..ring.given(false) };
    peer.send_with_fds(Frame::RingGiven(given), &ring.fds(false)).await;
    let error = soon(waits).await.expect_err("refused");
    assert_eq!((code(&error), error.maybe_written()), (Some(ErrorCode::LevelUnreachable), false));
    assert!(producer.has_ring() && !producer.offers_posted());
    let error = soon(submit(&producer, AckLevel::Posted, "in the caller's thread")).await.expect_err("refused");
    assert_eq!((code(&error), error.maybe_written()), (Some(ErrorCode::LevelUnreachable), false));
    soon(submit(&producer, AckLevel::None, "the lowest that is offered")).await.expect("in the ring");
    let written = tokio::spawn(submit(&producer, AckLevel::Written, "written"));
    ring.answers(2).await;
    assert_eq!(soon(written).await.expect("a task").expect("an ack").first_offset, Some(1), "two are in the ring");
}

fn code(error: &AppendError) -> Option<ErrorCode> {
    error.code()
}

/// No mark has to pass it: a log that does not offer the level, or a disk that stands still, never moves one.
#[tokio::test]
async fn a_refusal_is_reported_at_once() {
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let mut peer = fake.accept().await;
    let mut ring = Drained::new();
    give(&mut peer, &ring).await;
    let levels = [AckLevel::Received, AckLevel::Written, AckLevel::Durable];
    let good = tokio::spawn(submit(&producer, AckLevel::Durable, "good"));
    let bad = levels.map(|level| tokio::spawn(submit(&producer, level, "bad")));
    ring.judges(4, |append| append == 0).await;
    for ticket in bad {
        let error = soon(ticket).await.expect("a task").expect_err("it was refused");
        assert_eq!((code(&error), error.maybe_written()), (Some(ErrorCode::RecordTooLarge), false));
    }
    // Refused before anybody waits for it.
    let late = submit(&producer, AckLevel::Durable, "late");
    ring.judges(1, |_| false).await;
    assert_eq!(code(&soon(late).await.expect_err("refused")), Some(ErrorCode::RecordTooLarge));
    ring.all_have(&[Level::Written, Level::Durable]);
    assert_eq!(soon(good).await.expect("a task").expect("an ack").first_offset, Some(0));
}

#[tokio::test]
async fn a_level_that_the_log_does_not_offer_is_refused_before_it_is_posted() {
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let mut peer = fake.accept_with(|welcome| welcome.highest_ack = AckLevel::Written).await;
    let mut ring = Drained::new();
    give(&mut peer, &ring).await;
    soon(submit(&producer, AckLevel::Posted, "the ring is there")).await.expect("in the ring");
    let error = soon(submit(&producer, AckLevel::Durable, "too much")).await.expect_err("refused");
    assert_eq!((code(&error), error.maybe_written()), (Some(ErrorCode::LevelUnreachable), false));
    let ticket = submit(&producer, AckLevel::Written, "the next in the ring");
    ring.answers(2).await;
    assert_eq!(soon(ticket).await.expect("an ack").first_offset, Some(1));
}

/// A daemon takes one and refuses the other, gives the space back and dies before its client has met it. The next one has
/// the watermarks, and no answers.
#[tokio::test]
async fn what_may_have_been_refused_by_a_daemon_that_is_gone_is_not_acknowledged() {
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let mut peer = fake.accept().await;
    let first = Drained::new();
    give(&mut peer, &first).await;
    soon(submit(&producer, AckLevel::Posted, "the ring is there")).await.expect("in the ring");
    let refused = tokio::spawn(submit(&producer, AckLevel::Durable, "refused"));
    let mut unmet = first.adopted();
    drop(peer);
    unmet.judges(2, |append| append == 0).await;
    unmet.all_have(&[Level::Written, Level::Durable]);
    let mut third = unmet.adopted();
    third.drain.raise(Level::Durable, third.drain.released());
    let mut peer = fake.accept().await;
    give(&mut peer, &third).await;
    let error = soon(refused).await.expect("a task").expect_err("nobody knows that it is stored");
    assert!(error.maybe_written(), "{error}");
    // What comes behind it is as ever.
    let next = submit(&producer, AckLevel::Durable, "next");
    third.answers(1).await;
    assert!(soon(next).await.expect("an ack").first_offset.is_some());
}

/// An append in the ring is never abandoned; a waiting call returns after a while that there is no daemon.
#[tokio::test]
async fn a_flush_or_close_without_a_daemon_returns_an_error() {
    let fake = Fake::with_ring();
    let timeout = Duration::from_secs(2); // also for the ring itself, at first
    let producer = fake.builder().delivery_timeout(timeout).start().expect("a producer");
    let mut peer = fake.accept().await;
    let mut ring = Drained::new();
    give(&mut peer, &ring).await;
    let posted = soon(submit(&producer, AckLevel::Posted, "the ring is there")).await.expect("in the ring");
    assert_eq!(posted.level, AckLevel::Posted);
    let waits = tokio::spawn(submit(&producer, AckLevel::Durable, "in the ring"));
    // One is asked when the daemon goes, the others never.
    let flushing = |level| {
        let producer = producer.clone();
        tokio::spawn(async move { producer.flush(level).await })
    };
    let asked = flushing(AckLevel::Written);
    peer.flush().await;
    drop((peer, fake));
    for flushed in [asked, flushing(AckLevel::Written), flushing(AckLevel::Durable)] {
        let error = soon(flushed).await.expect("a task").expect_err("nobody has answered");
        assert!(matches!(&error, AppendError::DeliveryTimeout { waited, .. } if *waited == timeout), "{error}");
        assert!(error.maybe_written(), "a daemon that comes takes it");
    }
    assert!(!waits.is_finished(), "it is posted");
    let error = soon(producer.close()).await.expect_err("nobody has answered");
    assert!(matches!(error, AppendError::DeliveryTimeout { .. }), "{error}");
    assert!(soon(waits).await.expect("a task").expect_err("it was closed").maybe_written());
    // It is there for whoever comes.
    ring.judges(2, |_| true).await;
}

/// The thread that is to wake the task sleeps on; it is another one that finds the answers on the completion page.
#[tokio::test]
async fn a_flush_and_a_close_end_whoever_finds_the_answers() {
    for closes in [false, true] {
        let fake = Fake::with_ring();
        let producer = fake.builder().start().expect("a producer");
        let mut peer = fake.accept().await;
        let mut ring = Drained::new();
        give(&mut peer, &ring).await;
        soon(submit(&producer, AckLevel::Posted, "the ring is there")).await.expect("in the ring");
        drop(submit(&producer, AckLevel::Durable, "nobody waits for it"));
        let mut looks = submit(&producer, AckLevel::Durable, "its ticket looks");
        let other = producer.clone();
        let ends = tokio::spawn(async move {
            match closes {
                true => other.close().await.map(|summary| summary.stats.acked),
                false => other.flush(AckLevel::Durable).await.map(|()| 3),
            }
        });
        let flush = peer.flush().await;
        peer.watermark(flush.request_id, flush.level, 0, 1, 0).await;
        // The task has that, and waits.
        tokio::time::sleep(Duration::from_millis(50)).await;
        ring.take();
        for level in [Level::Received, Level::Written, Level::Durable] {
            ring.drain.raise(level, 3); // in silence
        }
        assert!(looks.try_wait().is_some_and(|outcome| outcome.is_ok()));
        assert_eq!(soon(ends).await.expect("a task").expect("all is durable"), 3);
    }
}

/// The thread that reads the completion page takes no signals where the library's threads do not: it is not begun by a
/// caller, whose mask it would have. (Processors are inherited in the same way.)
#[tokio::test]
async fn no_caller_begins_the_thread_of_the_ring() {
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let mut peer = fake.accept().await;
    let mut ring = Drained::new();
    give(&mut peer, &ring).await;
    soon(submit(&producer, AckLevel::Posted, "the ring is there")).await.expect("in the ring");
    let all = rustix::thread::sched_getaffinity(None).expect("the processors");
    let ticket = submit(&producer, AckLevel::Durable, "polled by a thread with one processor");
    let polled = std::thread::spawn(move || {
        let mut one = rustix::thread::CpuSet::new();
        one.set((0..).find(|at| all.is_set(*at)).expect("a processor"));
        rustix::thread::sched_setaffinity(None, &one).expect("one of them");
        let mut ticket = Box::pin(ticket);
        let waker = std::task::Waker::noop();
        assert!(ticket.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
        ticket
    });
    let ticket = polled.join().expect("it is polled");
    let allowed = || {
        let threads = std::fs::read_dir("/proc/self/task").expect("threads");
        let ids = threads.flatten().filter(|thread| {
            std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "clad-ring")
        });
        let ids = ids.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
        let pids = ids.filter_map(rustix::process::Pid::from_raw);
        pids.filter_map(|pid| rustix::thread::sched_getaffinity(Some(pid)).ok()).collect::<Vec<_>>()
    };
    soon(async {
        while allowed().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert!(allowed().iter().all(|processors| processors.count() == all.count()));
    ring.answers(2).await;
    soon(ticket).await.expect("an ack");
}

/// RING for a ring that the daemon does not have.
async fn have_none(peer: &mut Peer) {
    let Frame::Ring(wanted) = peer.next().await else { panic!("RING comes after WELCOME") };
    assert_eq!(wanted.known, Some(RING));
    let error = ErrorInfo::new(ErrorCode::RingUnavailable, "there is no such ring any more");
    peer.send(Frame::Error(ErrorFrame { request_id: wanted.request_id, error })).await;
}

#[tokio::test]
async fn a_flush_reports_a_lost_ring_and_does_not_wait_for_it() {
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let mut peer = fake.accept().await;
    give(&mut peer, &Drained::new()).await;
    soon(submit(&producer, AckLevel::Posted, "the ring is there")).await.expect("in the ring");
    for _ in 0..5 {
        drop(submit(&producer, AckLevel::Durable, "nobody hears of it"));
    }
    let flushing = tokio::spawn({
        let producer = producer.clone();
        async move { producer.flush(AckLevel::Durable).await }
    });
    let asked = peer.flush().await;
    drop(peer);

    let mut peer = fake.accept().await;
    have_none(&mut peer).await;
    let mut ring = Drained::new();
    give(&mut peer, &ring).await;
    let waits = tokio::spawn(submit(&producer, AckLevel::Durable, "by the next ring"));
    let again = peer.flush().await;
    assert_eq!((again.request_id, again.level), (asked.request_id, AckLevel::Durable));
    peer.watermark(again.request_id, AckLevel::Durable, 0, 1, 0).await;
    // The record of the next ring came after the flush: the flush does not wait for it.
    let error = soon(flushing).await.expect("a task").expect_err("five appends were lost with the ring");
    assert!(matches!(error, AppendError::Forgotten), "{error}");
    ring.answers(1).await;
    soon(waits).await.expect("a task").expect("an ack");
    // Reported once.
    let flushing = tokio::spawn(async move { producer.flush(AckLevel::Durable).await });
    let flush = peer.flush().await;
    peer.watermark(flush.request_id, AckLevel::Durable, 1, 1, 0).await;
    soon(flushing).await.expect("a task").expect("nothing since");
}

/// Nobody waits for what is posted; with its ring it is gone all the same, and no flush says that it is in the log. Where its
/// space was given back it is there.
#[tokio::test]
async fn a_flush_reports_what_was_posted_in_a_lost_ring() {
    for released in [false, true] {
        let fake = Fake::with_ring();
        let producer = fake.builder().start().expect("a producer");
        let mut peer = fake.accept().await;
        let mut first = Drained::new();
        give(&mut peer, &first).await;
        for _ in 0..3 {
            soon(submit(&producer, AckLevel::Posted, "posted")).await.expect("in the ring");
        }
        if released {
            first.answers(3).await;
        }
        drop(peer);
        let mut peer = fake.accept().await;
        have_none(&mut peer).await;
        give(&mut peer, &Drained::new()).await;
        for again in [false, true] {
            let producer = producer.clone();
            let flushing = tokio::spawn(async move { producer.flush(AckLevel::Durable).await });
            let flush = peer.flush().await;
            peer.watermark(flush.request_id, AckLevel::Durable, 0, 1, 0).await;
            match (soon(flushing).await.expect("a task"), released || again) {
                (Ok(()), true) | (Err(AppendError::Forgotten), false) => {}
                (flushed, _) => panic!("{flushed:?}, given back: {released}, asked again: {again}"),
            }
        }
    }
}

/// Its ticket is dropped when there is another ring; and there may be an error before there is a ticket at all.
#[tokio::test]
async fn a_flush_reports_what_nobody_has_heard_of_whichever_ring_it_was() {
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let mut peer = fake.accept().await;
    give(&mut peer, &Drained::new()).await;
    soon(submit(&producer, AckLevel::Posted, "the ring is there")).await.expect("in the ring");
    let held = submit(&producer, AckLevel::Durable, "lost with it");
    drop(peer);
    let mut peer = fake.accept().await;
    have_none(&mut peer).await;
    let Frame::Ring(wanted) = peer.next().await else { panic!("RING comes again") };
    let ring = Drained::new();
    let given = RingGiven { request_id: wanted.request_id, stored: false, ..ring.given(false) };
    peer.send_with_fds(Frame::RingGiven(given), &ring.fds(false)).await;
    let mut flushed = async || {
        let producer = producer.clone();
        let flushing = tokio::spawn(async move { producer.flush(AckLevel::Durable).await });
        let flush = peer.flush().await;
        peer.watermark(flush.request_id, AckLevel::Durable, 0, 1, 0).await;
        soon(flushing).await.expect("a task")
    };
    assert!(matches!(flushed().await, Err(AppendError::Forgotten)), "what was posted");
    assert!(flushed().await.is_ok());
    drop(held);
    assert!(matches!(flushed().await, Err(AppendError::Forgotten)), "the ticket's");
    assert!(flushed().await.is_ok());
    let mut batch = producer.batch();
    batch.push(&record("asks for too much")).expect("room");
    producer.post_batch(&mut batch, &Call::new().at(AckLevel::Posted)).expect("handed over");
    let error = flushed().await.expect_err("no ticket");
    assert_eq!(code(&error), Some(ErrorCode::LevelUnreachable));
    assert!(flushed().await.is_ok());
}

/// A daemon that has no time for the ring says nothing of what is in it.
#[tokio::test]
async fn a_daemon_that_is_busy_has_not_lost_the_ring() {
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let ring = Drained::new();
    let mut peer = fake.accept().await;
    give(&mut peer, &ring).await;
    soon(submit(&producer, AckLevel::Posted, "the ring is there")).await.expect("in the ring");
    let waits = tokio::spawn(submit(&producer, AckLevel::Durable, "in the ring"));
    tokio::task::yield_now().await;
    drop(peer);
    let mut peer = fake.accept().await;
    let Frame::Ring(wanted) = peer.next().await else { panic!("RING comes after WELCOME") };
    let error = ErrorInfo::new(ErrorCode::Busy, "come again").retry_after_ms(1);
    peer.send(Frame::Error(ErrorFrame { request_id: wanted.request_id, error })).await;
    let mut ring = ring.adopted();
    let mut peer = fake.accept().await;
    give(&mut peer, &ring).await;
    ring.answers(2).await;
    assert_eq!(soon(waits).await.expect("a task").expect("an ack").first_offset, Some(1));
}

/// The daemon says once that it has lost what it had given back.
#[tokio::test]
async fn a_flush_reports_what_the_log_has_lost() {
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let mut peer = fake.accept().await;
    let mut ring = Drained::new();
    give(&mut peer, &ring).await;
    let ticket = submit(&producer, AckLevel::Written, "written, and lost");
    ring.answers(1).await;
    soon(ticket).await.expect("an ack");
    let flushing = || {
        let producer = producer.clone();
        tokio::spawn(async move { producer.flush(AckLevel::Durable).await })
    };
    let flushed = flushing();
    let request_id = peer.flush().await.request_id;
    let mut error = ErrorInfo::new(ErrorCode::JournalFailed, "it is lost");
    (error.retryable, error.maybe_written) = (false, false);
    peer.send(Frame::Error(ErrorFrame { request_id, error })).await;
    let error = soon(flushed).await.expect("a task").expect_err("it is lost");
    assert!(matches!(error, AppendError::Lost), "{error}");
    let flushed = flushing();
    let request_id = peer.flush().await.request_id;
    peer.watermark(request_id, AckLevel::Durable, 1, 1, 0).await;
    soon(flushed).await.expect("a task").expect("nothing since");
}

/// Receipts name the log that has the record: after a restart it may be another one.
#[tokio::test]
async fn receipts_name_the_log_of_the_daemon_that_gave_them() {
    let other = LogId::from_bytes([0xfe; 16]);
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let mut ring = Drained::new();
    let mut peer = fake.accept().await;
    give(&mut peer, &ring).await;
    let ticket = submit(&producer, AckLevel::Written, "in the first");
    ring.answers(1).await;
    assert_eq!(soon(ticket).await.expect("an ack").log_id, LOG);
    drop(peer);
    let mut ring = ring.adopted_by(other);
    let mut peer = fake.accept_with(|welcome| welcome.log_id = other).await;
    give(&mut peer, &ring).await;
    let ticket = submit(&producer, AckLevel::Written, "in the other");
    ring.answers(1).await;
    let receipt = soon(ticket).await.expect("an ack");
    assert_eq!((receipt.log_id, receipt.epoch), (other, 1), "its answer says the epoch");
}

fn adds_up(stats: &Stats, waiting: u64) {
    assert_eq!(stats.submitted, stats.acked + stats.failed + stats.dropped + waiting, "{stats:?}");
}

/// However a record ends, it is counted once.
#[tokio::test]
async fn what_is_counted_adds_up() {
    let fake = Fake::with_ring();
    let producer = fake.builder().drop_when_full(true).max_buffered_bytes(1 << 20).start().expect("a producer");
    let mut peer = fake.accept().await;
    let mut ring = Drained::new();
    give(&mut peer, &ring).await;
    soon(submit(&producer, AckLevel::Posted, "the ring is there")).await.expect("in the ring");
    // What was never handed over, none, asked for a level, posted until the ring is full; then refused, and dropped.
    let long = producer.try_reserve(21_000).expect("room").submit(&record("x".repeat(20_000)));
    assert!(matches!(long, Err(SubmitError::Record { .. })), "longer than the ring takes: {long:?}");
    assert!(producer.try_send(&record("none")));
    let waits = submit(&producer, AckLevel::Written, "answered");
    let refused = submit(&producer, AckLevel::Written, "refused");
    drop(submit(&producer, AckLevel::Durable, "lost with the ring"));
    adds_up(&producer.stats(), 3);
    let full = loop {
        let room = producer.try_reserve(100).expect("room");
        if let Err(error) = room.at(AckLevel::Posted).submit(&record("fills it")) {
            break error;
        }
    };
    assert!(matches!(full, SubmitError::RingFull), "{full}");
    assert!(!producer.try_send(&record("dropped")) && !producer.try_send(&record("dropped")));
    let stats = producer.stats();
    assert_eq!(stats.dropped, 3, "{stats:?}");
    adds_up(&stats, 3);
    // No room in the budget.
    let all = producer.try_reserve((1 << 20) - 1024).expect("room");
    let rest = producer.try_reserve(1024 - 2 * 256);
    assert!(rest.is_ok(), "{rest:?}");
    assert!(!producer.try_send(&record("goes straight into the ring, which is full")));
    drop((all, rest));
    adds_up(&producer.stats(), 3);
    ring.judges(4, |append| append < 3).await;
    ring.all_have(&[Level::Written]);
    soon(waits).await.expect("an ack");
    soon(refused).await.expect_err("refused");
    adds_up(&producer.stats(), 1);
    drop(peer);
    let mut peer = fake.accept().await;
    have_none(&mut peer).await;
    give(&mut peer, &Drained::new()).await;
    while producer.stats().failed < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    adds_up(&producer.stats(), 0);
}

#[tokio::test]
async fn a_flush_reports_what_expired_before_it_was_in_the_ring() {
    let fake = Fake::with_ring();
    let builder = fake.builder().delivery_timeout(Duration::from_secs(2)); // also for the ring itself, at first
    let producer = builder.start().expect("a producer");
    let ring = Drained::new();
    let mut peer = fake.accept().await;
    give(&mut peer, &ring).await;
    for _ in 0..ring.drain.shape().slots() {
        soon(submit(&producer, AckLevel::Posted, "fills it")).await.expect("in the ring");
    }
    drop(submit(&producer, AckLevel::Durable, "has no room"));
    while producer.stats().failed == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let flushing = tokio::spawn(async move { producer.flush(AckLevel::Durable).await });
    let flush = peer.flush().await;
    peer.watermark(flush.request_id, AckLevel::Durable, 0, 1, 0).await;
    let error = soon(flushing).await.expect("a task").expect_err("it was given up");
    assert!(
        matches!(&error, AppendError::DeliveryTimeout { maybe_written: false, reason, .. } if reason == "the ring is full"),
        "{error}"
    );
}

/// A daemon whose disk is full takes nothing of the ring. The completion page says why, and so do
/// waiting and abandoned calls.
#[tokio::test]
async fn the_reason_for_a_stalled_drain_is_reported() {
    let fake = Fake::with_ring();
    let builder = fake.builder().delivery_timeout(Duration::from_secs(2));
    let producer = builder.start().expect("a producer");
    let mut ring = Drained::new();
    let mut peer = fake.accept().await;
    give(&mut peer, &ring).await;
    soon(submit(&producer, AckLevel::Posted, "first")).await.expect("in the ring");
    assert_eq!(producer.why_waiting(), None, "nothing waits");
    ring.take();
    let mut waits = submit(&producer, AckLevel::Written, "waits");
    let says = |words: &str| {
        let why = producer.why_waiting();
        assert!(why.as_ref().is_some_and(|why| why.contains(words)), "{why:?} instead of {words}");
    };
    says("has not come to it");
    ring.drain.set_waits(ErrorCode::NoSpace.number().into());
    says("no_space: ");
    for _ in 2..ring.drain.shape().slots() {
        soon(submit(&producer, AckLevel::Posted, "fills it")).await.expect("in the ring");
    }
    let error = soon(submit(&producer, AckLevel::Durable, "has no room")).await.expect_err("it was given up");
    assert!(matches!(&error, AppendError::Refused { maybe_written: false, .. }), "{error}");
    assert_eq!((code(&error), error.is_retryable()), (Some(ErrorCode::NoSpace), true));
    ring.drain.set_waits(0);
    ring.take();
    ring.drain.raise(Level::Received, ring.drain.next());
    says("waits for its disk");
    ring.all_have(&[Level::Written]);
    assert_eq!(soon(&mut waits).await.expect("an ack").level, AckLevel::Written);
    assert_eq!(producer.why_waiting(), None);
    drop((peer, fake));
    soon(async {
        while producer.why_waiting().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

async fn is_busy(peer: &mut Peer) {
    let Frame::Ring(wanted) = peer.next().await else { panic!("RING comes after WELCOME") };
    let error = ErrorInfo::new(ErrorCode::Busy, "come again");
    peer.send(Frame::Error(ErrorFrame { request_id: wanted.request_id, error })).await;
}

/// What went over the socket is in the log before anything goes into the ring.
#[tokio::test]
async fn a_ring_that_was_refused_for_now_is_asked_for_again() {
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let mut peer = fake.accept().await;
    is_busy(&mut peer).await;
    let first = tokio::spawn(submit(&producer, AckLevel::Received, "by the socket"));
    let append = peer.append().await;
    peer.accepted(&append, 0, 1).await;
    assert_eq!(soon(first).await.expect("a task").expect("an ack").level, AckLevel::Received);
    assert!(producer.why_no_ring().is_some_and(|why| why.code == ErrorCode::Busy));

    let mut next = 1;
    let waits = loop {
        let flush = peer.flush().await;
        assert_eq!(flush.level, AckLevel::Written);
        let waits = tokio::spawn(submit(&producer, AckLevel::Received, "by the ring"));
        peer.watermark(flush.request_id, AckLevel::Written, next, 1, 0).await;
        let Some(frame) = peer.try_next().await else { break waits };
        // On a machine that stood still meanwhile it did not wait for the answer.
        let Frame::Append(append) = frame else { panic!("{frame:?} where APPEND was expected") };
        peer.accepted(&append, next, 1).await;
        soon(waits).await.expect("a task").expect("an ack");
        next += 1;
        assert!(next < 5, "it never waits for the ring");
    };
    let (mut peer, mut ring) = (fake.accept().await, Drained::new());
    ring.next_offset = next;
    give(&mut peer, &ring).await;
    ring.answers(1).await;
    assert_eq!(soon(waits).await.expect("a task").expect("an ack").first_offset, Some(next));
    assert!(producer.has_ring() && producer.why_no_ring().is_none());
}

/// Who waits for the ring waits no longer than a moment, and a loss that the asking finds is reported.
#[tokio::test]
async fn where_the_socket_cannot_be_left_it_is_used_on() {
    let fake = Fake::with_ring();
    let producer = fake.builder().start().expect("a producer");
    let mut peer = fake.accept().await;
    is_busy(&mut peer).await;
    let first = submit(&producer, AckLevel::Received, "by the socket");
    let append = peer.append().await;
    peer.accepted(&append, 0, 1).await;
    soon(first).await.expect("an ack");

    let unanswered = peer.flush().await.request_id;
    let by_the_socket = async |peer: &mut Peer, offset| {
        let waits = tokio::spawn(submit(&producer, AckLevel::Received, "also by the socket"));
        let append = loop {
            match peer.next().await {
                Frame::Append(append) => break append,
                Frame::Flush(_) => {} // it is asked again, of a machine that stood still
                other => panic!("{other:?} where APPEND was expected"),
            }
        };
        peer.accepted(&append, offset, 1).await;
        soon(waits).await.expect("a task").expect("an ack");
    };
    by_the_socket(&mut peer, 1).await;
    let mut error = ErrorInfo::new(ErrorCode::JournalFailed, "it is lost");
    (error.retryable, error.maybe_written) = (false, false);
    peer.send(Frame::Error(ErrorFrame { request_id: unanswered, error })).await;
    by_the_socket(&mut peer, 2).await; // the error came before this answer
    let error = soon(producer.flush(AckLevel::Received)).await.expect_err("it is lost");
    assert_eq!(code(&error), Some(ErrorCode::JournalFailed));
    soon(producer.flush(AckLevel::Received)).await.expect("it is reported once");
    assert!(!producer.has_ring());
}
