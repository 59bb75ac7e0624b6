//! What the log does not take for now waits in its ring: no FLUSH answers for it, and nothing of its producer goes past it.

use std::time::{Duration, Instant};

use clad_client::{AckLevel, Producer, ProducerId};
use clad_e2e::raw::hello;
use clad_e2e::{Daemon, Raw, Setup, TEST_TIMEOUT, readback};
use clad_proto::ErrorCode;
use clad_proto::frame::{Frame, RingAppendTrailer};

use crate::{producer, runtime, submit};
use clad_e2e::by_hand::{ByHand, push};

/// What fills the log begins with.
const FILLER_PREFIX: &str = "fills";
/// Bytes of what finds no room then: a little is left between two blocks of the disk.
const LARGE_RECORD_BYTES: usize = 20_000;

/// A daemon that takes nothing: more is to be left free than any disk has, and the segments that it has are full.
fn without_room() -> Daemon {
    let setup = Setup::new().with_fd_store().fixed_ports().set("journal.segment_bytes", "1MiB");
    let mut daemon = setup.set("limits.max_append_bytes", "256KiB").set("journal.max_record_bytes", "128KiB").start();
    assert_eq!(daemon.term(), Some(0));
    daemon.restart_with("journal.reserve_free", "8000TiB");
    // From now on there are no more than it has: one that was prepared before may be among them.
    daemon.wait_said("no space for another segment");
    let (mut raw, mut sequence) = (Raw::producer(&daemon.socket()).0, 0);
    for more in [100_000, 1000] {
        let body = format!("{FILLER_PREFIX}{}", "x".repeat(more));
        loop {
            raw.append(sequence, AckLevel::Received, &[body.as_bytes()]);
            match raw.answer() {
                Frame::Accepted(_) => sequence += 1,
                Frame::Refused(refused) => break assert_eq!(refused.error.code, ErrorCode::NoSpace),
                other => panic!("{other:?}"),
            }
        }
    }
    daemon
}

fn large(text: &str) -> String {
    format!("{text}:{}", "x".repeat(LARGE_RECORD_BYTES))
}

/// There is room again, after a crash.
fn make_room(daemon: &mut Daemon) {
    daemon.kill9();
    daemon.restart_with("journal.reserve_free", "1MiB");
}

fn bodies(daemon: &Daemon) -> Vec<String> {
    let all = runtime().block_on(readback::served(&daemon.address("unix")));
    let all = all.into_iter().map(|stored| String::from_utf8(stored.body).expect("text"));
    let all = all.filter(|body| !body.starts_with(FILLER_PREFIX));
    all.map(|body| body.split(':').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_flush_speaks_of_what_is_in_the_ring() {
    let mut daemon = without_room();
    let mut client = ByHand::at(&daemon.socket(), &hello());
    let ring = client.attach();
    push(&ring, AckLevel::None, &large("there is no room for it"));
    for level in [AckLevel::Received, AckLevel::Written, AckLevel::Durable] {
        let refused = client.flush(level).expect_err("it is in no file");
        assert_eq!((refused.code, refused.retryable), (ErrorCode::NoSpace, true), "{level}: {refused}");
    }
    drop(client);

    // The client of the SDK asks again, for as long as that is the answer.
    let runtime = runtime();
    let other = producer(&runtime, &daemon, "shm");
    runtime.block_on(submit(&other, AckLevel::Posted, large("nor for this"))).expect("in the ring");
    let flushing = other.clone();
    let flushing = runtime.spawn(async move { flushing.flush(AckLevel::Durable).await });
    make_room(&mut daemon);
    let flushed = runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, flushing).await });
    flushed.expect("in time").expect("a task").expect("durable");
    let mut found = bodies(&daemon);
    found.sort();
    assert_eq!(found, ["nor for this", "there is no room for it"]);
}

/// The second would count the sequences of what waits in the first one's ring again, and fence it off.
#[test]
fn a_resumed_producer_waits_for_its_ring() {
    let mut daemon = without_room();
    let runtime = runtime();
    let _entered = runtime.enter();
    let id = ProducerId::from_bytes([9; 16]);
    let address = || daemon.address("shm").parse().expect("an address");
    let first = runtime.block_on(Producer::builder(address()).producer(id, 0).connect()).expect("connected");
    assert!(first.has_ring(), "{:?}", first.why_no_ring());
    let of_first: Vec<String> = (0..20).map(|number| format!("first {number}")).collect();
    for body in &of_first {
        runtime.block_on(submit(&first, AckLevel::Posted, large(body))).expect("in the ring");
    }
    let ms = Duration::from_millis;
    let builder = || Producer::builder(address()).producer(id, 1).connect_timeout(TEST_TIMEOUT).backoff(ms(5), ms(50));
    let error = runtime.block_on(builder().connect()).expect_err("the first one's ring holds something").to_string();
    assert!(error.contains("logged by its ring"), "{error}");
    let second = builder().start().expect("a producer");
    let of_second = "second, after all of them".to_owned();
    let waits = runtime.spawn(submit(&second, AckLevel::Durable, of_second.clone()));
    make_room(&mut daemon);
    let receipt = runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, waits).await });
    receipt.expect("in time").expect("a task").expect("durable");
    assert_eq!(bodies(&daemon), [of_first, vec![of_second]].concat());
}

/// A reload is for the rings that are given out from then on; those that are there keep what they were given with.
#[test]
fn a_reload_of_what_an_append_may_be_holds_for_the_next_ring() {
    let setup = Setup::new().unset("limits.max_append_bytes").set("journal.max_record_bytes", "64KiB");
    std::fs::write(setup.config(), "[limits]\nmax_append_bytes = \"2MiB\"\n").expect("written");
    let daemon = setup.start();
    let at = || ByHand::at(&daemon.socket(), &hello());
    let mut before = at();
    std::fs::write(daemon.setup().config(), "[limits]\nmax_append_bytes = \"128KiB\"\n").expect("written");
    daemon.signal(nix::sys::signal::Signal::SIGHUP);
    daemon.wait_said("HUP: reloaded");
    let mut after = at();
    let body = vec![b'x'; 50_000];
    let payload = clad_e2e::raw::payload(&[&body, &body, &body, &body]);
    let level = AckLevel::Written;
    let codes = [&mut before, &mut after].map(|client| {
        let ring = client.attach();
        let trailer = RingAppendTrailer { level, payload_crc: payload.checksum() }.encode();
        let append = ring.push(&[&payload.bytes, &trailer], payload.count).expect("room");
        client.flush(level).expect("all that was taken is written");
        ring.answer(append).expect("an answer").code
    });
    assert_eq!(codes, [0, ErrorCode::AppendTooLarge.number().into()]);
}

/// A full log, then no daemon, then a full log: who asks why its append waits hears each time what is so now.
#[test]
fn of_the_reasons_to_wait_the_newest_is_reported() {
    let mut daemon = Setup::new().with_fd_store().fixed_ports().set("journal.reserve_free", "1024TiB").start();
    let runtime = runtime();
    let waiting = ["unix", "tcp", "grpc", "shm"].map(|transport| {
        let producer = producer(&runtime, &daemon, transport);
        let ticket = submit(&producer, AckLevel::Durable, "waits".to_owned());
        (transport, producer, ticket)
    });
    let all_say = |full: bool| {
        for (transport, producer, _) in &waiting {
            let began = Instant::now();
            loop {
                let why = producer.why_waiting();
                if why.as_ref().is_some_and(|why| why.starts_with("no_space: ") == full) {
                    break;
                }
                assert!(began.elapsed() < TEST_TIMEOUT, "{transport}, full: {full}: {why:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    };
    all_say(true);
    daemon.kill9();
    all_say(false);
    daemon.restart();
    all_say(true);
}
