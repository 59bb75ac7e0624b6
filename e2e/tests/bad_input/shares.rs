//! What one user, or the network as a whole, may have of what is for all.
//!
//! Invariants: by whatever he comes, a user is one owner; he grows only while as much is left for others; beside others,
//! nobody who has less is kept out by him; who has how much is named, and that somebody was refused is seen.

use std::fs;
use std::net::SocketAddr;

use clad_e2e::grpc::Call;
use clad_e2e::hold::{Holder, threads};
use clad_e2e::raw::{hello, payload};
use clad_e2e::web::page;
use clad_e2e::{Daemon, Raw, Setup, as_user, is_root, not_run, open_to_all, stranger};
use clad_proto::frame::Frame;
use clad_proto::{AckLevel, ErrorCode};

/// Users that need not be known to anybody.
const ONE: u32 = 60_001;
const OTHER: u32 = 60_002;
/// Connections that root has beside all others.
const ROOT_RESERVE: usize = 16;

fn tcp(daemon: &Daemon) -> Raw {
    let mut raw = Raw::tcp(daemon.port("tcp"));
    raw.greet(&hello()).expect("WELCOME");
    raw
}

/// A daemon with so many places, to which every user can connect.
fn daemon(places: usize) -> Daemon {
    open_to_all(Setup::new().set("limits.max_connections", &places.to_string()).start())
}

fn unix_of(daemon: &Daemon, uid: u32) -> Raw {
    as_user(uid, || Raw::producer(&daemon.socket()).0)
}

fn tcp_of(daemon: &Daemon, uid: u32) -> Raw {
    as_user(uid, || tcp(daemon))
}

fn refused(daemon: &Daemon, uid: u32) -> [ErrorCode; 2] {
    as_user(uid, || [Raw::tcp(daemon.port("tcp")).end().code, Raw::unix(&daemon.socket()).end().code])
}

/// Who has how many connections, who has most first.
fn holders(daemon: &Daemon) -> Vec<(String, u64)> {
    let status = daemon.status();
    let share = status.shares.iter().find(|share| share.what == "connections").expect("connections");
    share.largest.iter().map(|holder| (holder.owner.clone(), holder.amount)).collect()
}

#[test]
fn a_user_is_one_owner_on_every_transport_and_leaves_slots_for_others() {
    if !is_root() {
        return not_run("connections of several users", "only root can be somebody else");
    }
    const FULL: [ErrorCode; 2] = [ErrorCode::TooManyConnections; 2];
    let daemon = daemon(8);
    let mut one = [unix_of(&daemon, ONE), tcp_of(&daemon, ONE), unix_of(&daemon, ONE), tcp_of(&daemon, ONE)];
    assert_eq!(refused(&daemon, ONE), FULL, "half of them, though the others are free");
    assert_eq!(holders(&daemon), [(format!("uid {ONE}"), 4)]);
    let why = as_user(ONE, || Raw::unix(&daemon.socket()).end().text);
    assert!(
        why.starts_with(&format!("the share that uid {ONE} has of [limits] max_connections is used up: 4 of 8")),
        "{why}"
    );
    // That he was refused is seen, and no record was.
    assert!(daemon.metric("clad_rejected_records_total{reason=\"busy\"}") < 1.0);
    assert!(daemon.metric("clad_refused_for_share_total{what=\"connections\"}") >= 2.0);
    daemon.wait_until("it is degraded", |status| status.degraded.contains_key("shares"));
    let (code, said) = page(daemon.port("metrics"), "/healthz");
    assert!(code == 200 && said.contains("degraded: ") && said.contains("a connection"), "{said}");
    // Whoever comes finds places, until all have their part, and root whatever the others do.
    let _fill: Vec<_> = (0..4).map(|n| unix_of(&daemon, OTHER + 1 + n)).collect();
    let mut root: Vec<_> = (0..ROOT_RESERVE).map(|_| Raw::producer(&daemon.socket()).0).collect();
    for raw in one.iter_mut().chain(&mut root) {
        raw.append_acked(0, AckLevel::Durable, &[b"all of them"]);
    }
    // Now somebody must make room: who was silent for longest of him who has most and is not root's.
    for raw in one.iter_mut().skip(1).chain(&mut root) {
        raw.ping();
    }
    drop(root);
    daemon.wait_until("root is gone", |status| status.connections["unix"] == 6);
    let mut other = tcp_of(&daemon, OTHER);
    other.append_acked(0, AckLevel::Durable, &[b"let in"]);
    let [mut idlest, mut rest @ ..] = one;
    let error = idlest.end();
    assert_eq!((error.code, error.retryable), (ErrorCode::TooManyConnections, true), "{error}");
    assert!(error.text.contains("makes room"), "{error}");
    for raw in &mut rest {
        raw.append_acked(1, AckLevel::Durable, &[b"they stay"]);
    }
}

/// The disk stands still. What one user sends fills his share and waits there; another is answered as if nobody else was there.
#[test]
fn a_flood_of_one_user_leaves_others_their_room() {
    if !is_root() {
        return not_run("a flood beside another user", "only root can be somebody else, and hold threads");
    }
    const BUDGET_BYTES: usize = 1 << 20;
    const BODY_BYTES: usize = 60 << 10;
    let budget = BUDGET_BYTES.to_string();
    let small = ["limits.max_inflight_bytes", "limits.max_connection_inflight_bytes"];
    let setup = small.into_iter().fold(Setup::new(), |setup, key| setup.set(key, &budget));
    let records = ["limits.max_append_bytes", "journal.max_record_bytes"];
    let setup = records.into_iter().fold(setup, |setup, key| setup.set(key, "128KiB"));
    let daemon = open_to_all(setup.set("journal.io_engine", "blocking").start());
    let (mut flood, mut other) = (unix_of(&daemon, ONE), tcp_of(&daemon, OTHER));
    // Those that may be at the disk for an append: who read it may write it.
    let writes = |name: &str| name.starts_with("clad-write") || name.starts_with("clad-ingest");
    let holder = Holder::of_flushes(&threads(daemon.pid(), writes));
    holder.hold();
    let body = payload(&[&[b'f'; BODY_BYTES]]);
    let taken = |raw: &mut Raw, most: u64| {
        for sequence in 0..most {
            raw.append_payload(sequence, AckLevel::Received, false, &body);
            match raw.answer() {
                Frame::Accepted(_) => {}
                Frame::Refused(refused) => return (sequence, Some(refused.error)),
                other => panic!("{other:?}"),
            }
        }
        (most, None)
    };
    let (his, error) = taken(&mut flood, 2 * (BUDGET_BYTES / BODY_BYTES) as u64);
    let error = error.expect("his share ends");
    assert_eq!((error.code, error.retryable, error.maybe_written), (ErrorCode::Busy, true, false), "{error}");
    assert!((6..=8).contains(&his), "{his} appends: half of all");
    let (theirs, error) = taken(&mut other, 3);
    assert_eq!((theirs, error), (3, None), "another has room");
    let status = daemon.status();
    let share = status.shares.iter().find(|share| share.what == "inflight_bytes").expect("inflight_bytes");
    let largest: Vec<_> = share.largest.iter().map(|holder| holder.owner.clone()).collect();
    assert_eq!(largest, [format!("uid {ONE}"), format!("uid {OTHER}")]);
    holder.release();
    flood.flush(AckLevel::Durable).expect("durable");
    other.append_acked(3, AckLevel::Durable, &[b"and goes on"]);
    daemon.wait_until("it is given back", |status| {
        status.shares.iter().all(|share| share.what != "inflight_bytes" || share.in_use == 0)
    });
}

/// HTTP/2 has no word for it that a call would hear: the connection ends, and the client comes again.
#[test]
fn a_connection_over_grpc_makes_room_as_well() {
    if !is_root() {
        return not_run("connections of several users over gRPC", "only root can be somebody else");
    }
    let daemon = daemon(4);
    let address = daemon.port("grpc").to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    // Connections are made by the thread that waits here.
    let (_idle, mut busy) = as_user(ONE, || {
        runtime.block_on(async {
            let idle = Call::open(&address).await;
            let mut busy = Call::open(&address).await;
            busy.append(0, AckLevel::Durable, "before").await.expect("taken");
            (idle, busy)
        })
    });
    assert_eq!(holders(&daemon), [(format!("uid {ONE}"), 2)]);
    let _fill = [unix_of(&daemon, OTHER + 1), unix_of(&daemon, OTHER + 2)];
    let mut local = unix_of(&daemon, OTHER);
    daemon.wait_until("it is gone", |status| status.connections["grpc"] == 1);
    local.append_acked(0, AckLevel::Durable, &[b"let in"]);
    runtime.block_on(busy.append(1, AckLevel::Durable, "after")).expect("it stays");
}

#[test]
fn who_stores_under_many_ids_leaves_others_some() {
    const PRODUCERS: usize = 16;
    let daemon = open_to_all(Setup::new().set("limits.max_producers", &PRODUCERS.to_string()).start());
    let mut stored = 0;
    let refused = loop {
        // Without a BYE: each is remembered.
        let mut raw = stranger(&daemon);
        raw.append(0, AckLevel::Received, &[b"one of many"]);
        match raw.answer() {
            Frame::Accepted(_) => stored += 1,
            Frame::Refused(refused) => break refused.error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((refused.code, refused.retryable), (ErrorCode::TooManyProducers, true), "{refused}");
    assert_eq!(stored, PRODUCERS / 2, "as many as are left for others");
    assert!(refused.text.contains(&format!("is used up: {} of {PRODUCERS}", PRODUCERS / 2)), "{refused}");
    if is_root() {
        Raw::producer(&daemon.socket()).0.append_acked(0, AckLevel::Durable, &[b"there is a place for others"]);
    } else {
        not_run("a place for others", "only root can be somebody else");
    }
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
    let table = fs::read_to_string("/proc/net/tcp").expect("a table of connections");
    let local = format!(":{:04X}", port.port());
    let of_port = table.lines().skip(1).map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let open = of_port.filter(|fields| fields[1].ends_with(&local) && fields[3] == ESTABLISHED);
    open.map(|fields| fields[5].split(':').next().unwrap_or_default().to_owned()).collect()
}
