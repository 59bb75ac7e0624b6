//! The producer with a ring, against a daemon played by hand that drains it: nobody waits for an answer that is there.

mod support;

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

    /// What a client gets: `known` is its own ring's new board.
    fn fds(&self, known: bool) -> Vec<OwnedFd> {
        let fds = self.drain.client_fds();
        let all = [fds.completion_page, fds.ring, fds.waker];
        let wanted = if known { &all[..1] } else { &all[..] };
        wanted.iter().map(|fd| fd.try_clone_to_owned().expect("a descriptor")).collect()
    }

    /// Takes so many appends, all records at all levels, and tells whoever sleeps on the board.
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

    /// Takes so many appends and refuses those that are not `good`; no level but `received` is told.
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
    let shape = ring.drain.shape();
    let given = RingGiven {
        request_id: wanted.request_id,
        id: RING,
        known,
        other_clock: false,
        bytes: shape.data_bytes(),
        max_payload_bytes: shape.max_payload() as u32,
    };
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
    // Posted until the ring is full: these have their receipts, and nobody looks at the board for them.
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

/// What is in the ring is nobody's to give up; who waits for it is told after a while that there is no daemon.
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
    // Told once.
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
    // What was never handed over, none, asked for a level, posted until the ring is full; then told so, and dropped.
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

/// A daemon whose disk is full takes nothing of the ring: the board says why, and so does who waits, or was given up.
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
