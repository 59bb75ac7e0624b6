//! Syslog and RELP: messages that never end, messages of a byte in masses, and datagrams faster than they are read.

use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use clad_e2e::{Daemon, STRANGER, Setup, as_user, is_root};

use super::attack;

/// Buffer and task of a connection, as docs/ARCHITECTURE.md has it.
const CONNECTION_BYTES_MAX: u64 = 16 << 10;
/// The shared buffers at their default: reads, records that are made of them, begins of long messages.
const BUFFERS_BYTES: u64 = 32 << 20;
/// `[limits] max_inflight_bytes` of a daemon without another setting.
const INFLIGHT_BYTES: u64 = 16 << 20;
/// Messages of one connection of a flood.
const MESSAGES: usize = 32 << 10;

fn setup() -> Setup {
    ["udp", "tcp", "relp"].into_iter().fold(Setup::new(), |setup, protocol| {
        setup.set(&format!("ingest.syslog.{protocol}.listen"), &format!("{protocol}://127.0.0.1:0"))
    })
}

fn address(daemon: &Daemon, name: &str) -> SocketAddr {
    let listeners = daemon.status().listeners;
    listeners[&format!("syslog.{name}")].split_once("://").expect("a protocol").1.parse().expect("an address")
}

fn connect(address: SocketAddr) -> TcpStream {
    let come = || TcpStream::connect(address).expect("a daemon");
    if is_root() { as_user(STRANGER, come) } else { come() }
}

#[test]
fn messages_that_never_end() {
    const CONNECTIONS: usize = 200;
    let daemon = setup().set("limits.max_connections", &(2 * CONNECTIONS + 20).to_string()).start();
    let (tcp, relp) = (address(&daemon, "tcp"), address(&daemon, "relp"));
    let bound = CONNECTIONS as u64 * CONNECTION_BYTES_MAX + BUFFERS_BYTES;
    attack(&format!("{CONNECTIONS} messages that never end"), &daemon, bound, || {
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

/// A record is longer than such a message by far.
#[test]
fn a_flood_of_messages_of_one_byte() {
    const CONNECTIONS: usize = 8;
    let daemon = setup().start();
    let (tcp, udp) = (address(&daemon, "tcp"), address(&daemon, "udp"));
    let bound = CONNECTIONS as u64 * CONNECTION_BYTES_MAX + BUFFERS_BYTES + INFLIGHT_BYTES;
    attack("a flood of messages of one byte", &daemon, bound, || {
        thread::scope(|scope| {
            for _ in 0..CONNECTIONS {
                scope.spawn(|| {
                    let mut peer = connect(tcp);
                    peer.write_all(&b"x\n".repeat(MESSAGES)).expect("sent");
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
