//! Syslog and RELP: messages that never end, messages of a byte in masses, and datagrams faster than they are read.

use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use clad_e2e::{STRANGER, Setup, as_user, is_root};

use super::attack;
use super::way::{Target, Way};

/// Buffer and task of a connection, as docs/ARCHITECTURE.md has it.
const CONNECTION_BYTES_MAX: u64 = 16 << 10;
/// The shared buffers at their default: reads, records that are made of them, begins of long messages.
const BUFFERS_BYTES: u64 = 32 << 20;
/// `[limits] max_inflight_bytes` of a daemon without another setting.
const INFLIGHT_BYTES: u64 = 16 << 20;
/// Messages of one connection of a flood.
const MESSAGES: usize = 32 << 10;

/// A daemon with a listener of each protocol, by the protocol's plain name.
fn start(way: Way, setup: Setup) -> Target {
    let listen = |setup: Setup, [tcp, relp]: [&str; 2]| {
        [("udp", "udp"), ("tcp", tcp), ("relp", relp)].into_iter().fold(setup, |setup, (name, protocol)| {
            setup.set(&format!("ingest.syslog.{name}.listen"), &format!("{protocol}://127.0.0.1:0"))
        })
    };
    match way {
        Way::Plain => Target::start(way, listen(setup, ["tcp", "relp"]), |setup| setup),
        Way::Tls => Target::start(way, setup, |setup| listen(setup, ["tls", "relps"])),
    }
}

fn address(target: &Target, name: &str) -> SocketAddr {
    let listeners = target.daemon.status().listeners;
    let address = listeners[&format!("syslog.{name}")].split_once("://").expect("a protocol").1;
    target.at_as_stranger(address.parse().expect("an address"))
}

fn connect(address: SocketAddr) -> TcpStream {
    let come = || TcpStream::connect(address).expect("a daemon");
    if is_root() { as_user(STRANGER, come) } else { come() }
}

fn endless(way: Way) {
    const CONNECTIONS: usize = 200;
    let target = start(way, Setup::new().set("limits.max_connections", &(2 * CONNECTIONS + 20).to_string()));
    let (tcp, relp, daemon) = (address(&target, "tcp"), address(&target, "relp"), &target.daemon);
    let connections = CONNECTIONS as u64;
    let bound = connections * CONNECTION_BYTES_MAX + BUFFERS_BYTES + way.bytes(connections);
    attack(&format!("{CONNECTIONS} messages that never end{}", way.words()), daemon, bound, || {
        let mut peers = Vec::new();
        for index in 0..CONNECTIONS {
            let (to, head) = match index % 3 {
                0 => (tcp, "<13>"),
                1 => (tcp, "65000 <13>"),
                _ => (relp, "1 open 65000 "),
            };
            let mut peer = connect(to);
            peer.set_nonblocking(true).expect("a socket");
            // What is not read stays in the socket.
            let _ = peer.write(head.as_bytes());
            let _ = peer.write(&[b'x'; 60_000]);
            peers.push(peer);
        }
        thread::sleep(Duration::from_millis(500)); // so that there is something to see
    });
    daemon.wait_until("everything is let go", |s| s.connections.values().sum::<u64>() == 0);
    assert_eq!(daemon.said().matches("panicked").count(), 0, "{}", daemon.said());
}

#[test]
fn messages_that_never_end() {
    endless(Way::Plain);
}

#[test]
fn messages_that_never_end_within_tls() {
    endless(Way::Tls);
}

/// A record is longer than such a message by far.
fn flood(way: Way) {
    const CONNECTIONS: usize = 8;
    let target = start(way, Setup::new());
    let (tcp, relp, daemon) = (address(&target, "tcp"), address(&target, "relp"), &target.daemon);
    let listeners = daemon.status().listeners;
    let udp: SocketAddr = listeners["syslog.udp"].split_once("://").expect("udp").1.parse().expect("an address");
    let connections = 2 * CONNECTIONS as u64;
    let bound = connections * CONNECTION_BYTES_MAX + BUFFERS_BYTES + INFLIGHT_BYTES + way.bytes(connections);
    attack(&format!("a flood of messages of one byte{}", way.words()), daemon, bound, || {
        thread::scope(|scope| {
            for _ in 0..CONNECTIONS {
                scope.spawn(|| {
                    let mut peer = connect(tcp);
                    peer.write_all(&b"x\n".repeat(MESSAGES)).expect("sent");
                });
                // Who never reads an answer of RELP is not read from for ever.
                scope.spawn(|| {
                    let mut peer = connect(relp);
                    peer.set_write_timeout(Some(Duration::from_millis(300))).expect("a timeout");
                    let _ = peer.write_all(b"1 open 30 relp_version=0\ncommands=syslog\n");
                    let mut number = 2_u32;
                    while number < MESSAGES as u32 {
                        let message = format!("{number} syslog 1 x\n");
                        if peer.write_all(message.as_bytes()).is_err() {
                            break;
                        }
                        number += 1;
                    }
                });
            }
            scope.spawn(|| {
                let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
                for _ in 0..MESSAGES {
                    let _ = socket.send_to(b"x", udp);
                }
            });
        });
    });
    assert_eq!(daemon.said().matches("panicked").count(), 0, "{}", daemon.said());
}

#[test]
fn a_flood_of_messages_of_one_byte() {
    flood(Way::Plain);
}

#[test]
fn a_flood_of_messages_of_one_byte_within_tls() {
    flood(Way::Tls);
}
