//! The producer with a ring, against a daemon played by hand that drains it: nobody waits for an answer that is there.

mod support;

use std::os::fd::OwnedFd;
use std::time::Duration;

use clad_client::*;
use clad_proto::frame::{Frame, RingGiven, RingId};
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
        let fds = self.drain.client_fds();
        let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
        let drain = Drain::adopt(own(fds.ring), own(fds.waker), *LOG.as_bytes(), 2).expect("a sound ring");
        Self { drain, next_offset: self.next_offset }
    }

    /// What a client gets: `known` is its own ring's new board.
    fn fds(&self, known: bool) -> Vec<OwnedFd> {
        let fds = self.drain.client_fds();
        let all = [fds.board, fds.ring, fds.waker];
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

    fn take(&mut self) {
        while let Ok(Peek::Ready { .. }) = self.drain.peek(clock::now()) {
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
async fn who_asked_once_before_there_was_a_ring_is_told() {
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
async fn who_asked_once_and_waited_for_room_is_told() {
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
async fn who_asked_once_is_told_by_the_daemon_that_comes_after() {
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
