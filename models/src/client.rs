//! A client with a ring: callers that post, wait for tickets and flush; its task; its thread on the completion page; a daemon.
//!
//! What must hold in every order, with no time passing:
//! - **Who waits is answered**: a ticket, also one that was polled once before its group was in the ring; a flush; the close.
//!   Where one is not, all threads sleep at last, and the scheduler says so.
//! - **A flush has counted what was posted before it**, whichever thread found the answers; the close has counted all.

use std::time::Duration;

use clad_client::models::{client, wake_page};
use clad_client::{AckLevel, Address, Call, LogId, Producer, ProducerBuilder, Record, Ticket};
use clad_shm::{Answer, Drain, Level, Peek, Shape, clock};
use shuttle::future::block_on;
use shuttle::thread;

/// Records of each caller.
const RECORDS: u64 = 3;
const CALLERS: usize = 2;
const ALL: u64 = CALLERS as u64 * RECORDS;
/// No time passes.
const NEVER: Duration = Duration::from_secs(3600);
const LOG: [u8; 16] = [7; 16];

/// A caller that waits for tickets, beside one that flushes.
pub fn mixed() {
    model(builder(), [flushes, awaits]);
}

/// A group is full when both have come to it: the first one polls its ticket before anything is in the ring.
pub fn in_pairs() {
    model(builder().max_append_records(2).linger(NEVER), [awaits_in_turn, awaits_in_turn]);
}

/// A caller looks for its tickets again and again, beside one that flushes: it is mostly the one who finds the answers.
pub fn looked_for() {
    model(builder(), [flushes, looks]);
}

/// Records are grouped.
pub fn grouped() {
    model(builder().max_append_records(4), [flushes, awaits]);
}

fn builder() -> ProducerBuilder {
    Producer::builder(Address::shm("clad.sock"))
}

fn model(builder: ProducerBuilder, callers: [fn(&Producer); CALLERS]) {
    let drain = Drain::create(Shape::new(4096, 8).expect("a shape"), 0, LOG, 1).expect("a ring");
    let fds = drain.client_fds();
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
    let ring = clad_shm::Producer::attach(&own(fds.ring), &own(fds.completion_page), own(fds.waker)).expect("attached");
    let (producer, task) = client(builder, ring, LogId::from_bytes(LOG)).expect("a small group");
    let served = thread::spawn(move || block_on(task.run()));
    let daemon = thread::spawn(move || take(drain, ALL));
    let callers = callers.map(|calls| {
        let producer = producer.clone();
        thread::spawn(move || calls(&producer))
    });
    callers.into_iter().for_each(|caller| caller.join().expect("it ends"));
    let stats = block_on(producer.close()).expect("all is durable").stats;
    assert_eq!((stats.submitted, stats.acked), (ALL, ALL), "{stats:?}");
    served.join().expect("it ends");
    daemon.join().expect("it ends");
}

/// Posts without tickets, then flushes.
fn flushes(producer: &Producer) {
    let mut batch = producer.batch();
    for _ in 0..RECORDS {
        batch.push(&Record::text(1, 9, "posted")).expect("room");
        producer.post_batch(&mut batch, &Call::new()).expect("room");
    }
    block_on(producer.flush(AckLevel::Durable)).expect("all is durable");
    let stats = producer.stats();
    assert!(stats.acked >= RECORDS, "{stats:?}");
}

fn offer(producer: &Producer) -> Ticket {
    producer.offer(&Record::text(1, 9, "awaited"), &Call::new()).expect("room")
}

/// Looks for each ticket in turn.
fn looks(producer: &Producer) {
    for _ in 0..RECORDS {
        let mut ticket = offer(producer);
        let outcome = loop {
            match ticket.try_wait() {
                Some(outcome) => break outcome,
                None => thread::yield_now(),
            }
        };
        outcome.expect("durable");
    }
}

/// Waits for each ticket before the next.
fn awaits_in_turn(producer: &Producer) {
    for _ in 0..RECORDS {
        block_on(offer(producer)).expect("durable");
    }
}

/// Waits for each ticket: it is polled again only when it was woken.
fn awaits(producer: &Producer) {
    let offer = || offer(producer);
    let wait = |ticket: Ticket| block_on(ticket).expect("durable");
    let first = offer();
    wait(offer());
    wait(first);
    for _ in 2..RECORDS {
        wait(offer());
    }
}

/// The daemon takes so many records, and answers them.
fn take(mut drain: Drain, records: u64) {
    let mut taken = 0;
    while taken < records {
        let Ok(Peek::Ready) = drain.peek(clock::now()) else {
            thread::yield_now();
            continue;
        };
        let entry = drain.take(&mut Vec::new()).expect("a sound ring").expect("what was seen");
        let answer = Answer { first_offset: taken, epoch: 1, code: 0, detail: entry.records.into() };
        drain.answer(entry.append, answer);
        taken += u64::from(entry.records);
        for level in [Level::Received, Level::Written, Level::Durable] {
            drain.raise(level, drain.next());
        }
        drain.release(drain.next());
        thread::yield_now(); // whoever looks for himself sees it
        drain.announce();
        wake_page(false);
    }
}
