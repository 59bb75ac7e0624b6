//! gRPC messages that begin and never end, on as many streams as there can be.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clad_e2e::tool::resident;
use clad_e2e::web::metrics;
use clad_e2e::{Daemon, Raw, STRANGER, Setup, TEST_TIMEOUT, as_user, is_root};
use clad_proto::AckLevel;

use super::http2::{DATA, GOAWAY, Http2, RST_STREAM};
use super::streams::{append, hello, record, send};
use super::{Over, PROCESS_GROWTH_BYTES_MAX, attack, p99};

/// Streams that each connection opens.
const STREAMS: u32 = 100;
/// Bytes of each message, and how many of them come.
const MESSAGE_BYTES: u32 = 64_000;
const SENT_MESSAGES: usize = 60_000;
/// `[limits] max_inflight_bytes` of a daemon without another setting.
const INFLIGHT_BYTES_MAX: u64 = 16 << 20;
/// What docs/OPERATIONS.md allows the daemon beside twice that.
const RESIDENT_MARGIN_BYTES: u64 = 64 << 20;
/// Appends over gRPC beside the attack, and their bytes: each comes in one DATA frame.
const APPENDS: u64 = 50;
const APPEND_BYTES: usize = 8000;

/// How many streams each connection opens.
#[derive(Clone, Copy, Debug)]
enum Opens {
    /// A hundred, whatever is allowed.
    All,
    /// As many as are allowed.
    WhatItMay,
}

/// Each connection begins a message on each of its streams, and ends none of them.
fn half_messages(connections: usize, opens: Opens) {
    let daemon = Setup::new().set("limits.max_connections", &(connections + 10).to_string()).start();
    let (pages, address) = (daemon.port("metrics"), daemon.port("grpc"));
    let memory = || resident(daemon.pid()).anonymous;
    let before = memory();
    let bound = 2 * INFLIGHT_BYTES_MAX + RESIDENT_MARGIN_BYTES - PROCESS_GROWTH_BYTES_MAX - before;
    attack(&format!("half messages on {connections} connections, {opens:?}"), &daemon, bound, || {
        let mut bystander = Http2::connect(address);
        bystander.open(1);
        send(&mut bystander, 1, &hello());
        answer(&mut bystander);
        let (_peers, sent) = begin(address, connections, opens);
        println!("hostile: {sent} bytes of half messages were sent");
        assert!(sent as u64 > INFLIGHT_BYTES_MAX / 4, "{sent} bytes: too few to fill anything");
        // Whoever opens more than it may is thrown out soon, and fills nothing for long.
        let refused = metrics(pages)["clad_rejected_records_total{reason=\"busy\"}"];
        assert!(refused > 0.0 || matches!(opens, Opens::All), "there is room for every message");
        // Who was there before goes on, with the network's part of all memory taken by others.
        for first_seq in 0..APPENDS {
            send(&mut bystander, 1, &append(first_seq, vec![record(APPEND_BYTES)]));
            answer(&mut bystander);
        }
    });
    daemon.wait_until("everything is let go", |s| s.connections.values().sum::<u64>() == 0);
    let began = Instant::now();
    while memory() > before + PROCESS_GROWTH_BYTES_MAX {
        assert!(began.elapsed() < TEST_TIMEOUT, "{} bytes are kept, {before} before", memory());
        thread::yield_now();
    }
    println!("hostile: {} bytes afterwards, {before} before", memory());
}

/// Opens the connections, as an ordinary user where this is root, who may have all that there is. Begins a message on each
/// stream, and ends none. Returns them with the bytes that were sent.
fn begin(address: SocketAddr, connections: usize, opens: Opens) -> (Vec<Http2>, usize) {
    let mut first = hello();
    first.push(0);
    first.extend(MESSAGE_BYTES.to_be_bytes());
    let piece = vec![b'h'; SENT_MESSAGES / 4];
    let mut peers: Vec<Http2> = Vec::with_capacity(connections);
    let mut sent = 0;
    let come = || Http2::connect(address);
    for _ in 0..connections {
        let mut connection = if is_root() { as_user(STRANGER, come) } else { come() };
        if matches!(opens, Opens::All) {
            connection.streams = STREAMS;
        }
        for stream in (0..connection.streams).map(|n| 2 * n + 1) {
            connection.try_open(stream);
            sent += connection.data_within(stream, &first);
        }
        peers.push(connection);
    }
    for _ in 0..SENT_MESSAGES / piece.len() {
        for connection in &mut peers {
            for stream in (0..connection.streams).map(|n| 2 * n + 1) {
                sent += connection.data_within(stream, &piece);
            }
        }
    }
    (peers, sent)
}

/// Waits for the next answer on the first stream.
fn answer(connection: &mut Http2) {
    loop {
        let got = connection.frame().expect("the connection goes on");
        match (got.stream, got.kind) {
            (1, DATA) => return,
            (1, RST_STREAM) | (_, GOAWAY) => panic!("{got:?}"),
            _ => {}
        }
    }
}

#[test]
fn half_messages_on_two_hundred_connections() {
    half_messages(200, Opens::WhatItMay);
}

#[test]
fn a_hundred_half_messages_on_each_of_two_hundred_connections() {
    half_messages(200, Opens::All);
}

#[test]
#[ignore = "cargo xtask ci hostile"]
fn half_messages_on_a_thousand_connections() {
    half_messages(1000, Opens::WhatItMay);
    half_messages(1000, Opens::All);
}

/// Appends to a daemon while something runs, at least so many times. Returns how long each took.
fn appends_during<T>(daemon: &Daemon, least: usize, run: impl FnOnce() -> T) -> (Vec<Duration>, T) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let appends = scope.spawn(|| {
            let (mut producer, mut took) = (Raw::producer(&daemon.socket()).0, Vec::new());
            while !over.load(Ordering::Relaxed) || took.len() < least {
                let began = Instant::now();
                producer.append_acked(took.len() as u64, AckLevel::Durable, &[b"timed"]);
                took.push(began.elapsed());
            }
            took
        });
        let ended = Over(&over);
        let result = run();
        drop(ended);
        (appends.join().expect("every append is acknowledged"), result)
    })
}

/// Appends that are timed where nothing else runs.
const TIMED_APPENDS: usize = 500;

/// How long another client's appends take. The crowd takes processor time wherever it sends: so the same crowd also comes
/// to a second daemon, and what differs is what it does to the daemon's other clients. The times are printed, not judged.
#[test]
#[ignore = "cargo xtask ci hostile"]
fn appends_during_half_messages_on_a_thousand_connections() {
    const CONNECTIONS: usize = 1000;
    let start = || Setup::new().set("limits.max_connections", &(CONNECTIONS + 10).to_string()).start();
    let (attacked, other) = (start(), start());
    for opens in [Opens::WhatItMay, Opens::All] {
        let (mut baseline, ()) = appends_during(&attacked, TIMED_APPENDS, || ());
        let (mut elsewhere, peers) =
            appends_during(&attacked, TIMED_APPENDS, || begin(other.port("grpc"), CONNECTIONS, opens));
        drop(peers);
        other.wait_until("everything is let go", |s| s.connections.values().sum::<u64>() == 0);
        let (mut comes, peers) =
            appends_during(&attacked, TIMED_APPENDS, || begin(attacked.port("grpc"), CONNECTIONS, opens));
        let (mut stays, ()) = appends_during(&attacked, TIMED_APPENDS, || ());
        let counts = [&baseline, &elsewhere, &comes, &stays].map(|times| times.len());
        let [baseline, elsewhere, comes, stays] =
            [&mut baseline, &mut elsewhere, &mut comes, &mut stays].map(|times| p99(times));
        println!(
            "hostile: p99 of durable appends beside half messages on {CONNECTIONS} connections, {opens:?}: alone {baseline:?}, \
             a crowd that comes to another daemon {elsewhere:?}, one that comes here {comes:?}, one that stays here {stays:?}, \
             of {counts:?} appends"
        );
        drop(peers.0);
        attacked.wait_until("everything is let go", |s| s.connections.values().sum::<u64>() == 0);
    }
}
