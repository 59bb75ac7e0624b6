//! What waits in a ring because the journal takes nothing now is not overtaken by what it caused, and nobody else is held
//! up by it.

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
/// How often a small record is refused for the sake of a large one.
const REFUSED: u64 = 5;
/// Bytes of a record that soon finds no room.
const LARGE_RECORD_BYTES: usize = 100_000;

/// A logs what there is no room for, and tells B, whose record is small enough. Both are there in that order when there is
/// room again.
#[test]
fn a_small_record_does_not_overtake_the_large_one_that_caused_it() {
    let runtime = runtime();
    // A ring that holds all of it.
    let mut daemon = Setup::new().set("ingest.shm.ring_bytes", "32MiB").start();
    assert_eq!(daemon.term(), Some(0));
    daemon.restart_with("journal.reserve_free", NO_ROOM);
    let (a, b) = (producer(&runtime, &daemon, "shm"), producer(&runtime, &daemon, "shm"));
    let (mut socket, _) = Raw::producer(&daemon.socket());
    let drained = || daemon.metric("clad_appended_records_total{transport=\"shm\"}");
    let (mut large, mut by_socket, mut refused) = (0_u64, Vec::new(), 0);
    for round in 0..120 {
        let body = format!("{round}:{}", "x".repeat(LARGE_RECORD_BYTES));
        submit(&a, AckLevel::Posted, body).wait(Duration::ZERO).expect("posted");
        large += 1;
        // B has heard of A's, by whatever way.
        submit(&b, AckLevel::Posted, format!("{round}:ring")).wait(Duration::ZERO).expect("posted");
        socket.append(by_socket.len() as u64, AckLevel::Received, &[format!("{round}:socket").as_bytes()]);
        match socket.answer() {
            Frame::Accepted(_) => by_socket.push(round),
            Frame::Refused(answer) => {
                let error = answer.error;
                assert_eq!(
                    (error.code, error.retryable, error.maybe_written),
                    (ErrorCode::NoSpace, true, false),
                    "{error}"
                );
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
        if refused == REFUSED {
            break;
        }
        // Who asks for something else is not kept waiting.
        socket.ping();
    }
    assert!(refused == REFUSED && drained() < 2.0 * large as f64, "there was room for all");
    let rings = daemon.status().rings.expect("told");
    assert!(rings.waiting_appends > 0 && rings.used_bytes > LARGE_RECORD_BYTES as u64, "it is seen: {rings:?}");
    // The truth of a flush does not depend on the disk.
    let flushed =
        runtime.block_on(async { tokio::time::timeout(Duration::from_millis(500), a.flush(AckLevel::Written)).await });
    assert!(!matches!(flushed, Ok(Ok(()))), "what waits in its ring is said to be written");
    daemon.kill9();
    daemon.restart_with("journal.reserve_free", "1MiB");
    runtime.block_on(a.flush(AckLevel::Written)).expect("written");
    runtime.block_on(b.flush(AckLevel::Written)).expect("written");
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    let number = |body: &[u8]| -> u64 {
        std::str::from_utf8(body).ok().and_then(|body| body.split(':').next()?.parse().ok()).expect("a number")
    };
    let mut largest = None;
    for stored in &all {
        let number = number(&stored.body);
        match stored.body.len() > LARGE_RECORD_BYTES {
            true => largest = Some(number),
            false => assert!(
                Some(number) <= largest,
                "{:?} before what it was caused by",
                String::from_utf8_lossy(&stored.body)
            ),
        }
    }
    // What came by the socket was `received`, which ends with the daemon.
    let by_rings = all.iter().filter(|stored| !stored.body.ends_with(b"socket")).count();
    assert_eq!(by_rings as u64, 2 * large, "each is there once");
}

/// In a flood there is always more in the rings than one pass takes. Who comes by a socket waits for what was there before
/// him, not for the end of the flood; nobody is refused.
#[test]
fn a_flood_by_rings_delays_no_socket_client() {
    let runtime = runtime();
    let daemon = Setup::new().set("ingest.shm.ring_bytes", "4MiB").start();
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

/// While the drain does not get on, everybody who comes by a socket is refused, and the daemon is not ready.
#[test]
fn a_daemon_whose_drain_does_not_get_on_is_not_ready() {
    let runtime = runtime();
    let daemon = Setup::new().start();
    let ready = || web::page(daemon.port("metrics"), "/readyz");
    let until = |what: &str, code: u16| {
        let began = Instant::now();
        while ready().0 != code {
            assert!(began.elapsed() < TEST_TIMEOUT, "{what}: {:?}\n{}", ready(), daemon.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let (mut socket, _) = Raw::producer(&daemon.socket());
    let producer = producer(&runtime, &daemon, "shm");
    let frozen = Holder::freeze(&threads(daemon.pid(), |name| name == "clad-drain"));
    runtime.block_on(submit(&producer, AckLevel::Posted, "posted".to_owned())).expect("in the ring");
    let posted = submit(&producer, AckLevel::Written, "behind it".to_owned());
    assert_eq!(ready().0, 200, "nobody was refused yet");
    socket.append(0, AckLevel::Received, &[b"by the socket"]);
    let Frame::Refused(refused) = socket.answer() else { panic!("it passed what was posted before") };
    assert_eq!(refused.error.code, ErrorCode::Busy, "{}", refused.error);
    until("it refuses", 503);
    let (_, why) = ready();
    assert!(why.contains("logged by rings of shared memory has waited"), "{why}");
    drop(frozen);
    until("it gets on", 200);
    runtime.block_on(posted).expect("written");
    socket.append_acked(0, AckLevel::Received, &[b"by the socket"]);
}
