//! What one user, or the network as a whole, may have of what is for all.
//!
//! What must hold: alone, it has nearly everything; beside others, nobody who has less is kept out by it.

use std::net::SocketAddr;

use clad_e2e::grpc::Call;
use clad_e2e::raw::hello;
use clad_e2e::{Daemon, Raw, Setup};
use clad_proto::{AckLevel, ErrorCode};

fn tcp(daemon: &Daemon) -> Raw {
    let mut raw = Raw::tcp(daemon.port("tcp"));
    raw.greet(&hello()).expect("WELCOME");
    raw
}

#[test]
fn places_of_connections_go_to_who_has_fewer() {
    const PLACES: usize = 4;
    let daemon = Setup::new().set("limits.max_connections", &PLACES.to_string()).start();
    let mut network: Vec<Raw> = (0..PLACES).map(|_| tcp(&daemon)).collect();
    assert_eq!(Raw::tcp(daemon.port("tcp")).end().code, ErrorCode::TooManyConnections, "alone it has all, and no more");
    for raw in network.iter_mut().skip(1) {
        std::thread::sleep(std::time::Duration::from_millis(5)); // so that it was longer ago that the first was heard
        raw.ping();
    }
    // Somebody on the host comes: who was silent for longest makes room, and hears why.
    let (mut local, _) = Raw::producer(&daemon.socket());
    local.append_acked(0, AckLevel::Durable, &[b"let in"]);
    let error = network.remove(0).end();
    assert_eq!((error.code, error.retryable), (ErrorCode::TooManyConnections, true), "{error}");
    assert!(error.text.contains("makes room"), "{error}");
    for raw in &mut network {
        raw.append_acked(0, AckLevel::Durable, &[b"they stay"]);
    }
    // Another one: then both have as many, and none goes to and fro.
    let (mut second, _) = Raw::producer(&daemon.socket());
    network.remove(0).end();
    assert_eq!(Raw::unix(&daemon.socket()).end().code, ErrorCode::TooManyConnections);
    assert_eq!(Raw::tcp(daemon.port("tcp")).end().code, ErrorCode::TooManyConnections);
    for (raw, sequence) in network.iter_mut().map(|raw| (raw, 1)).chain([(&mut local, 1), (&mut second, 0)]) {
        raw.append_acked(sequence, AckLevel::Durable, &[b"all of them"]);
    }
}

/// HTTP/2 has no word for it that a call would hear: the connection ends, and the client comes again.
#[test]
fn a_connection_over_grpc_makes_room_as_well() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let daemon = Setup::new().set("limits.max_connections", "2").start();
    let address = daemon.port("grpc").to_string();
    let _idle = runtime.block_on(Call::open(&address));
    std::thread::sleep(std::time::Duration::from_millis(5)); // so that it was silent for longer
    let mut busy = runtime.block_on(Call::open(&address));
    runtime.block_on(busy.append(0, AckLevel::Durable, "before")).expect("taken");
    let (mut local, _) = Raw::producer(&daemon.socket());
    daemon.wait_until("it is gone", |status| status.connections["grpc"] == 1);
    local.append_acked(0, AckLevel::Durable, &[b"let in"]);
    runtime.block_on(busy.append(1, AckLevel::Durable, "after")).expect("it stays");
}

#[test]
fn who_stores_under_many_ids_leaves_others_some() {
    const PRODUCERS: usize = 16;
    let daemon = Setup::new().set("limits.max_producers", &PRODUCERS.to_string()).start();
    let mut stored = 0;
    let refused = loop {
        // Without a BYE: each is remembered.
        let (mut raw, _) = Raw::producer(&daemon.socket());
        raw.append(0, AckLevel::Received, &[b"one of many"]);
        match raw.answer() {
            clad_proto::frame::Frame::Accepted(_) => stored += 1,
            clad_proto::frame::Frame::Refused(refused) => break refused.error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((refused.code, refused.retryable), (ErrorCode::TooManyProducers, true), "{refused}");
    assert_eq!(stored, PRODUCERS - PRODUCERS / 8, "nearly all of them");
    tcp(&daemon).append_acked(0, AckLevel::Durable, &[b"there is a place for others"]);
}

/// A peer that vanishes says nothing: the kernel asks it, as long as nothing else does.
#[test]
fn a_silent_peer_on_tcp_is_asked_whether_it_is_there() {
    let daemon = Daemon::start();
    let mut raw = tcp(&daemon);
    raw.ping();
    let listening = daemon.port("tcp");
    // What is under way is over soon, and then one timer is left.
    let asked = (0..6000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        timers(listening) == [KEEPALIVE]
    });
    assert!(asked, "timers of the daemon's connections: {:?}", timers(listening));
    raw.ping();
}

/// What the kernel calls the timer of a connection on which nothing is under way and that it will ask.
const KEEPALIVE: &str = "02";

/// The kind of the timer of each open connection to a port, at the port's end.
fn timers(port: SocketAddr) -> Vec<String> {
    const ESTABLISHED: &str = "01";
    let table = std::fs::read_to_string("/proc/net/tcp").expect("a table of connections");
    let local = format!(":{:04X}", port.port());
    let of_port = table.lines().skip(1).map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let open = of_port.filter(|fields| fields[1].ends_with(&local) && fields[3] == ESTABLISHED);
    open.map(|fields| fields[5].split(':').next().unwrap_or_default().to_owned()).collect()
}
