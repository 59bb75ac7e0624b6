//! gRPC messages that begin and never end, on as many streams as there can be.

use std::time::Instant;

use clad_e2e::tool::resident;
use clad_e2e::web::metrics;
use clad_e2e::{PATIENCE, STRANGER, Setup, as_user, is_root};

use super::http2::{DATA, GOAWAY, Http2, RST_STREAM};
use super::streams::{append, hello, record, send};
use super::{SLACK, attack};

/// Streams that each connection opens.
const STREAMS: u32 = 100;
/// Bytes of each message, and how many of them come.
const MESSAGE: u32 = 64_000;
const COMES: usize = 60_000;
/// `[limits] max_inflight_bytes` of a daemon that is not told otherwise.
const INFLIGHT: u64 = 16 << 20;
/// What docs/OPERATIONS.md allows the daemon beside twice that.
const BESIDE: u64 = 64 << 20;
/// Appends over gRPC beside the attack, and their bytes: each comes in one DATA frame.
const APPENDS: u64 = 50;
const APPEND_BYTES: usize = 8000;

/// How many streams each connection opens.
#[derive(Clone, Copy, Debug)]
enum Opens {
    /// A hundred, whatever it was told.
    All,
    /// As many as it was told that it may.
    WhatItMay,
}

/// Each connection begins a message on each of its streams, and ends none of them.
fn half_messages(connections: usize, opens: Opens) {
    let daemon = Setup::new().set("limits.max_connections", &(connections + 10).to_string()).start();
    let (pages, address) = (daemon.port("metrics"), daemon.port("grpc"));
    let memory = || resident(daemon.pid()).anonymous;
    let before = memory();
    let bound = 2 * INFLIGHT + BESIDE - SLACK - before;
    let mut first = hello();
    first.push(0);
    first.extend(MESSAGE.to_be_bytes());
    let piece = vec![b'h'; COMES / 4];
    attack(&format!("half messages on {connections} connections, {opens:?}"), &daemon, bound, || {
        let mut beside = Http2::connect(address);
        beside.open(1);
        send(&mut beside, 1, &hello());
        answer(&mut beside);
        let mut crowd: Vec<Http2> = Vec::with_capacity(connections);
        let mut sent = 0;
        // Of an ordinary user: root may have all that there is.
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
            crowd.push(connection);
        }
        for _ in 0..COMES / piece.len() {
            for connection in &mut crowd {
                for stream in (0..connection.streams).map(|n| 2 * n + 1) {
                    sent += connection.data_within(stream, &piece);
                }
            }
        }
        println!("hostile: {sent} bytes of half messages were sent");
        assert!(sent as u64 > INFLIGHT / 4, "{sent} bytes: too few to fill anything");
        // Whoever opens more than it may is thrown out soon, and fills nothing for long.
        let refused = metrics(pages)["clad_rejected_records_total{reason=\"busy\"}"];
        assert!(refused > 0.0 || matches!(opens, Opens::All), "there is room for every message");
        // Who was there before goes on, with the network's part of all memory taken by others.
        for first_seq in 0..APPENDS {
            send(&mut beside, 1, &append(first_seq, vec![record(APPEND_BYTES)]));
            answer(&mut beside);
        }
    });
    daemon.wait_until("everything is let go", |s| s.connections.values().sum::<u64>() == 0);
    let began = Instant::now();
    while memory() > before + SLACK {
        assert!(began.elapsed() < PATIENCE, "{} bytes are kept, {before} before", memory());
        std::thread::yield_now();
    }
    println!("hostile: {} bytes afterwards, {before} before", memory());
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
