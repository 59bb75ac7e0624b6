//! A thousand at once.

use clad_e2e::raw::hello;
use clad_e2e::{Raw, Setup, max_connections_for, not_run};
use clad_proto::{AckLevel, ErrorCode};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const CONNECTIONS: usize = 1000;
/// Files that the test needs beside its connections.
const OTHER_FILES: u64 = 100;

#[test]
fn a_thousand_connections() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("a soft limit may be raised to the hard one");
    let reached = CONNECTIONS.min(hard.saturating_sub(OTHER_FILES) as usize);
    if reached < CONNECTIONS {
        not_run("1000 connections", &format!("the hard limit of open files is {hard}: trying {reached}"));
    }
    // Of the producers, too, an ordinary user has at most half.
    let daemon = Setup::new()
        .set("limits.max_connections", &max_connections_for(reached))
        .set("limits.max_producers", &(2 * CONNECTIONS + 48).to_string())
        .start();
    let connect = |index: usize| match index % 2 {
        0 => Raw::unix(&daemon.socket()),
        _ => Raw::tcp(daemon.port("tcp")),
    };
    let mut peers: Vec<Raw> = (0..reached).map(connect).collect();
    for raw in &mut peers {
        raw.greet(&hello()).expect("WELCOME");
    }
    // All of them are in; the next is refused.
    for mut one in [connect(0), connect(1)] {
        let error = one.end();
        assert_eq!((error.code, error.retryable), (ErrorCode::TooManyConnections, true));
    }
    for raw in &mut peers {
        raw.append(0, AckLevel::Durable, &[b"one of a thousand"]);
    }
    let mut offsets = Vec::new();
    for raw in &mut peers {
        let accepted = raw.accepted();
        raw.wait_watermark(AckLevel::Durable, accepted.epoch, accepted.first_offset);
        offsets.push(accepted.first_offset);
    }
    offsets.sort_unstable();
    assert!(offsets.iter().copied().eq(0..reached as u64), "each has an offset of its own");
    // One leaves, and there is room for one.
    let leaver = peers.pop().expect("one of them");
    leaver.bye();
    daemon.wait_until("room", |status| status.connections.values().sum::<u64>() < reached as u64);
    connect(0).greet(&hello()).expect("WELCOME");
}
