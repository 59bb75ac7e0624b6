//! Rings of shared memory, with real daemons and real processes.
//!
//! `order`: what happened before stays before, over rings and sockets. `death`: what was posted outlives its client and the
//! daemon. `hostile`: who scribbles is cut off, and nobody else. `wakeups` and `calls`: wake-ups and system calls, counted.
//! `orphan`: a connection has ended and its process pushes on. `held` and `refused`: what the journal does not take now is
//! waited for, and passed by nobody. `sdk`: long records, threads, forks, other clocks. `forked`: what a child of `fork` is
//! reported where there is no ring. `fd_store`: rings lie in the service manager's descriptor store. `stored_rings`: what a start
//! cannot go on with stays there. `places`: whose rings they are. `lost`: the log is. `unstored`: without a store.

mod calls;
mod death;
mod fd_store;
mod forked;
mod held;
mod hostile;
mod lost;
mod order;
mod orphan;
mod places;
mod refused;
mod sdk;
mod stored_rings;
mod unstored;
mod wakeups;

use clad_client::{AckLevel, AnyValue, Producer, Record, ReserveError, Ticket};
use clad_e2e::Daemon;

/// A runtime for producers.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// A producer with a ring, or over another transport.
fn producer(runtime: &tokio::runtime::Runtime, daemon: &Daemon, transport: &str) -> Producer {
    let address = daemon.address(transport).parse().expect("an address");
    let producer = runtime.block_on(Producer::builder(address).component("rings").connect()).expect("connected");
    if transport == "shm" {
        assert!(producer.has_ring(), "{:?}", producer.why_no_ring());
    }
    producer
}

fn record(body: String) -> Record {
    Record { body: Some(AnyValue::String(body)), ..Record::default() }
}

/// Hands a record over, without a runtime; waits where there is no room.
fn submit(producer: &Producer, level: AckLevel, body: String) -> Ticket {
    let record = record(body);
    loop {
        match producer.try_reserve(1024) {
            Ok(room) => return room.at(level).submit(&record).expect("submitted"),
            Err(ReserveError::Full { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}
