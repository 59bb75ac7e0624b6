//! Ten thousand connections that all append.

use clad_e2e::raw::hello;
use clad_e2e::{Raw, Setup, max_connections_for, not_run};
use clad_proto::{AckLevel, ErrorCode};

use super::{attack, files};

const CONNECTIONS: usize = 10_000;
/// What a framed connection with nothing under way takes, at most: its task, its read buffer (`CHUNK_BYTES_MIN`, twice while it
/// grows), its answers, its place among the producers.
const CONNECTION_BYTES_MAX: u64 = 24 << 10;

#[test]
#[ignore = "cargo xtask ci hostile"]
fn ten_thousand_connections() {
    let reached = CONNECTIONS.min(files());
    if reached < CONNECTIONS {
        not_run("10000 connections", &format!("the hard limit of open files allows {reached}: these are tried"));
    }
    let most = max_connections_for(reached + 1);
    let daemon = Setup::new().set("limits.max_connections", &most).set("limits.max_producers", "20000").start();
    let connect = |index: usize| match index % 2 {
        0 => Raw::unix(&daemon.socket()),
        _ => Raw::tcp(daemon.port("tcp")),
    };
    let (_, offsets) =
        attack(&format!("{reached} connections"), &daemon, reached as u64 * CONNECTION_BYTES_MAX, || {
            let mut peers: Vec<Raw> = Vec::with_capacity(reached);
            for index in 0..reached {
                let mut raw = connect(index);
                raw.greet(&hello()).expect("WELCOME");
                peers.push(raw);
            }
            // All of them are in; the next is refused.
            let error = connect(0).end();
            assert_eq!((error.code, error.retryable), (ErrorCode::TooManyConnections, true));
            for raw in &mut peers {
                raw.append(0, AckLevel::Durable, &[b"one of ten thousand"]);
            }
            let mut offsets = Vec::with_capacity(reached);
            for raw in &mut peers {
                let accepted = raw.accepted();
                raw.wait_watermark(AckLevel::Durable, accepted.epoch, accepted.first_offset);
                offsets.push(accepted.first_offset);
            }
            offsets
        });
    let distinct: std::collections::BTreeSet<_> = offsets.iter().collect();
    assert_eq!(distinct.len(), reached, "each has an offset of its own");
    let durable = daemon.status().offsets.expect("offsets").durable;
    assert!(offsets.iter().all(|offset| *offset < durable));
}
