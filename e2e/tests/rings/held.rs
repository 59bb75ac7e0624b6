//! What waits in a ring because the journal takes nothing now, or because the drain does not get on, is not overtaken in
//! its ring, and nobody else is held up by it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clad_client::AckLevel;
use clad_e2e::hold::{Holder, threads};
use clad_e2e::{Raw, Setup, TEST_TIMEOUT, readback, web};
use clad_proto::ErrorCode;
use clad_proto::frame::Frame;

use crate::{producer, runtime, submit};

/// More than any disk has: then no further segment is made.
const NO_ROOM: &str = "1000TiB";
/// Records of each kind.
const ROUNDS: u64 = 120;
/// Bytes of a record that soon finds no room.
const LARGE_RECORD_BYTES: usize = 100_000;

/// A large record finds no room, and a small one behind it in the ring would. Both are there in that order when there is
/// room again.
#[test]
fn a_small_record_does_not_overtake_the_large_one_before_it() {
    let runtime = runtime();
    // A ring that holds all of it.
    let mut daemon = Setup::new().with_fd_store().set("ingest.shm.ring_bytes", "32MiB").start();
    assert_eq!(daemon.term(), Some(0));
    daemon.restart_with("journal.reserve_free", NO_ROOM);
    let client = producer(&runtime, &daemon, "shm");
    let (mut socket, _) = Raw::producer(&daemon.socket());
    let mut bodies = Vec::new();
    let mut taken = 0;
    for round in 0..ROUNDS {
        for text in ["x".repeat(LARGE_RECORD_BYTES), "small".to_owned()] {
            let body = format!("{round}:{text}");
            submit(&client, AckLevel::Posted, body.clone()).wait(Duration::ZERO).expect("posted");
            bodies.push(body);
        }
        // Who comes by a socket is answered at once, by what there is room for.
        socket.append(taken, AckLevel::Received, &[b"by the socket"]);
        match socket.answer() {
            Frame::Accepted(_) => taken += 1,
            Frame::Refused(answer) => assert_eq!(answer.error.code, ErrorCode::NoSpace, "{}", answer.error),
            other => panic!("{other:?}"),
        }
        socket.ping();
    }
    let drained = || daemon.metric("clad_appended_records_total{transport=\"shm\"}");
    assert!(drained() < bodies.len() as f64, "there was room for all");
    let rings = daemon.status().rings.expect("reported");
    assert!(rings.waiting_appends > 0 && rings.used_bytes > LARGE_RECORD_BYTES as u64, "it is seen: {rings:?}");
    // The truth of a flush does not depend on the disk.
    let flush = async { tokio::time::timeout(Duration::from_millis(500), client.flush(AckLevel::Written)).await };
    assert!(!matches!(runtime.block_on(flush), Ok(Ok(()))), "what waits in its ring is said to be written");
    daemon.kill9();
    daemon.restart_with("journal.reserve_free", "1MiB");
    runtime.block_on(client.flush(AckLevel::Written)).expect("written");
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    let text = |body: Vec<u8>| String::from_utf8(body).expect("text");
    // What came by the socket was `received`, which ends with the daemon.
    let found: Vec<_> =
        all.into_iter().map(|stored| text(stored.body)).filter(|body| body != "by the socket").collect();
    let wrong = found.iter().zip(&bodies).position(|(found, pushed)| found != pushed);
    assert_eq!((found.len(), wrong), (bodies.len(), None), "each is there once, in the order of its ring");
}

/// In a flood there is always more in the rings than one drain cycle takes. Who comes by a socket waits for none of it.
#[test]
fn a_flood_by_rings_delays_no_socket_client() {
    let runtime = runtime();
    let daemon = Setup::new().with_fd_store().set("ingest.shm.ring_bytes", "4MiB").start();
    let (mut socket, _) = Raw::producer(&daemon.socket());
    let floods: Vec<_> = (0..3).map(|_| producer(&runtime, &daemon, "shm")).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for flood in &floods {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    drop(submit(flood, AckLevel::Posted, "x".repeat(1000)));
                }
            });
        }
        while daemon.metric("clad_appended_records_total{transport=\"shm\"}") < 10_000.0 {
            std::thread::yield_now();
        }
        for sequence in 0..50 {
            socket.append(sequence, AckLevel::Received, &[b"by the socket"]);
            let answer = socket.answer();
            if !matches!(answer, Frame::Accepted(_)) {
                over.store(true, Ordering::Relaxed);
                panic!("{answer:?}");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// While the threads that drain do not get on, that is seen, and clients over gRPC are served as ever. What is posted
/// waits, and is taken afterwards.
#[test]
fn a_drain_that_does_not_get_on_is_seen_and_holds_up_no_grpc_client() {
    let runtime = runtime();
    let daemon = Setup::new().with_fd_store().start();
    let until = |what: &str, state: &str| {
        let began = Instant::now();
        loop {
            let (code, page) = web::page(daemon.port("metrics"), "/healthz");
            if code == 200 && page.starts_with(state) {
                return page;
            }
            assert!(began.elapsed() < TEST_TIMEOUT, "{what}: {code} {page}\n{}", daemon.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let other = producer(&runtime, &daemon, "grpc");
    let producer = producer(&runtime, &daemon, "shm");
    let frozen = Holder::freeze(&threads(daemon.pid(), |name| name.starts_with("clad-ingest")));
    runtime.block_on(submit(&producer, AckLevel::Posted, "posted".to_owned())).expect("in the ring");
    let posted = submit(&producer, AckLevel::Written, "behind it".to_owned());
    runtime.block_on(submit(&other, AckLevel::Durable, "over gRPC".to_owned())).expect("durable");
    let page = until("nobody sees it", "degraded");
    assert!(page.contains("the drain of the rings has made no progress for"), "{page}");
    assert_eq!(web::page(daemon.port("metrics"), "/readyz").0, 200, "appends are taken");
    drop(frozen);
    runtime.block_on(posted).expect("written");
    until("it gets on", "ok");
}
