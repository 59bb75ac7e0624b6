//! What the log does not take for now waits in its ring: nothing is said of it that is not so, nothing of its producer goes
//! past it, and nobody else waits with it.

use std::time::Duration;

use clad_client::{AckLevel, Producer, ProducerId};
use clad_e2e::raw::hello;
use clad_e2e::{Daemon, PATIENCE, Raw, Setup, readback};
use clad_proto::ErrorCode;

use crate::by_hand::{ByHand, push};
use crate::{producer, runtime, submit};

/// What the daemon says when a ring's front is refused for now.
const HELD_UP: &str = "what a ring holds is refused for now";
/// The first record of a log that is full.
const FIRST: &str = "in the log before";

/// A daemon that takes nothing: more is to be left free than any disk has.
fn without_room() -> Daemon {
    let mut daemon = Setup::new().fixed_ports().start();
    // A log with something in it: its clean end seals the segment, and there is no other one.
    Raw::producer(&daemon.socket()).0.append_acked(0, AckLevel::Durable, &[FIRST.as_bytes()]);
    assert_eq!(daemon.term(), Some(0));
    daemon.restart_with("journal.reserve_free", "8000TiB");
    daemon
}

/// There is room again, after a crash.
fn make_room(daemon: &mut Daemon) {
    daemon.kill9();
    daemon.restart_with("journal.reserve_free", "1MiB");
}

fn bodies(daemon: &Daemon) -> Vec<String> {
    let all = runtime().block_on(readback::served(&daemon.address("unix")));
    all.into_iter().map(|stored| String::from_utf8(stored.body).expect("text")).collect()
}

#[test]
fn a_flush_speaks_of_what_is_in_the_ring() {
    let mut daemon = without_room();
    let mut client = ByHand::at(&daemon.socket(), &hello(), clad_shm::clock::now());
    let ring = client.attach();
    push(&ring, AckLevel::None, "there is no room for it");
    for level in [AckLevel::Received, AckLevel::Written, AckLevel::Durable] {
        let refused = client.flush(level).expect_err("it is in no file");
        assert_eq!((refused.code, refused.retryable), (ErrorCode::Busy, true), "{level}: {refused}");
    }
    drop(client);

    // The client of the SDK asks again, for as long as it is told so.
    let runtime = runtime();
    let other = producer(&runtime, &daemon, "shm");
    runtime.block_on(submit(&other, AckLevel::Posted, "nor for this".to_owned())).expect("in the ring");
    let flushing = other.clone();
    let flushing = runtime.spawn(async move { flushing.flush(AckLevel::Durable).await });
    daemon.wait_said(HELD_UP);
    make_room(&mut daemon);
    let flushed = runtime.block_on(async { tokio::time::timeout(PATIENCE, flushing).await });
    flushed.expect("in time").expect("a task").expect("durable");
    let mut found = bodies(&daemon);
    found.sort();
    assert_eq!(found, [FIRST, "nor for this", "there is no room for it"]);
}

/// The second would count the sequences of what waits in the first one's ring again, and fence it off.
#[test]
fn who_goes_on_as_a_producer_waits_for_its_ring() {
    let mut daemon = without_room();
    let runtime = runtime();
    let _entered = runtime.enter();
    let id = ProducerId::from_bytes([9; 16]);
    let address = || daemon.address("shm").parse().expect("an address");
    let first = runtime.block_on(Producer::builder(address()).producer(id, 0).connect()).expect("connected");
    assert!(first.has_ring(), "{:?}", first.why_no_ring());
    let of_first: Vec<String> = (0..20).map(|number| format!("first {number}")).collect();
    for body in &of_first {
        runtime.block_on(submit(&first, AckLevel::Posted, body.clone())).expect("in the ring");
    }
    daemon.wait_said(HELD_UP);
    let ms = Duration::from_millis;
    let builder = || Producer::builder(address()).producer(id, 1).connect_timeout(PATIENCE).backoff(ms(5), ms(50));
    let told = runtime.block_on(builder().connect()).expect_err("the first one's ring holds something").to_string();
    assert!(told.contains("logged by its ring"), "{told}");
    let second = builder().start().expect("a producer");
    let of_second = "second, after all of them".to_owned();
    let waits = runtime.spawn(submit(&second, AckLevel::Durable, of_second.clone()));
    make_room(&mut daemon);
    let receipt = runtime.block_on(async { tokio::time::timeout(PATIENCE, waits).await });
    receipt.expect("in time").expect("a task").expect("durable");
    assert_eq!(bodies(&daemon), [vec![FIRST.to_owned()], of_first, vec![of_second]].concat());
}

/// Without that it came to five seconds for each thing that a socket brings.
#[test]
fn nobody_waits_for_the_ring_of_a_producer_that_is_refused() {
    let daemon = Setup::new().set("limits.max_producers", "1").start();
    let runtime = runtime();
    let socket = producer(&runtime, &daemon, "unix");
    runtime.block_on(submit(&socket, AckLevel::Written, "takes the only place".to_owned())).expect("written");
    let ring = producer(&runtime, &daemon, "shm");
    runtime.block_on(submit(&ring, AckLevel::Posted, "waits for it".to_owned())).expect("in the ring");
    daemon.wait_said(HELD_UP);
    let all = async {
        for number in 0..100 {
            submit(&socket, AckLevel::Written, format!("{number}")).await.expect("written");
        }
    };
    runtime.block_on(async { tokio::time::timeout(PATIENCE, all).await }).expect("nobody waits for the ring");
    // When there is a place, it is taken.
    runtime.block_on(socket.close()).expect("closed");
    runtime.block_on(submit(&ring, AckLevel::Written, "goes behind it".to_owned())).expect("written");
    let found = bodies(&daemon);
    assert_eq!(found[101..], ["waits for it", "goes behind it"]);
}
