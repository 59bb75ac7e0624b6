//! OTLP over HTTP: bodies that begin and never end, bodies that stand for a thousand times their bytes, and connections
//! that say a byte a request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use clad_e2e::web::metrics;
use clad_e2e::{STRANGER, Setup, TEST_TIMEOUT, as_user, is_root};

use super::attack;

/// What docs/ARCHITECTURE.md states of a connection over HTTP/1: its buffer, which grows by doubling, its task and
/// tables, and the piece of a body that it has without a share.
const CONNECTION_BYTES_MAX: u64 = 64 << 10;
/// `[limits] max_inflight_bytes` of a daemon without another setting: requests that are put together have as much.
const ASSEMBLY_BYTES: u64 = 16 << 20;
/// Bodies inflated at once, each within its share; the tables of its decoder are beside it.
pub(super) const TRANSFORMS: u64 = 2 * (1 << 20);
/// `[limits] max_message_bytes`: one request may have more than all shares.
pub(super) const MESSAGE_BYTES_MAX: u64 = 20 << 20;

fn connect(address: SocketAddr) -> TcpStream {
    let come = || TcpStream::connect(address).expect("a daemon");
    let stream = if is_root() { as_user(STRANGER, come) } else { come() };
    stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
    stream.set_write_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    stream
}

pub(super) fn head(headers: &str) -> Vec<u8> {
    format!("POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n{headers}\r\n\r\n")
        .into_bytes()
}

/// Status of an answer; nothing where the connection has ended.
pub(super) fn status(stream: &mut impl Read) -> Option<u16> {
    let mut first = [0; 12];
    stream.read_exact(&mut first).ok()?;
    std::str::from_utf8(&first[9..]).ok()?.parse().ok()
}

fn half_bodies(connections: usize) {
    let daemon = Setup::new().set("limits.max_connections", &(2 * connections + 20).to_string()).start();
    let address = daemon.port("grpc");
    let bound = connections as u64 * CONNECTION_BYTES_MAX + ASSEMBLY_BYTES;
    attack(&format!("{connections} half bodies"), &daemon, bound, || {
        let mut peers = Vec::new();
        for index in 0..connections {
            let mut peer = connect(address);
            peer.set_nonblocking(true).expect("a socket");
            let (headers, body) = match index % 3 {
                0 => ("content-length: 1000000".to_owned(), vec![b'h'; 900_000]),
                1 => ("transfer-encoding: chunked".to_owned(), b"fffff\r\nhalf".repeat(2)),
                _ => ("content-length: 17000\r\nexpect: 100-continue".to_owned(), vec![b'h'; 16_999]),
            };
            // What is not read stays in the socket.
            let _ = peer.write(&head(&headers));
            let _ = peer.write(&body);
            peers.push(peer);
        }
        thread::sleep(Duration::from_millis(500)); // so that there is something to see
    });
    daemon.wait_until("everything is let go", |s| s.connections.values().sum::<u64>() == 0);
    assert_eq!(daemon.said().matches("panicked").count(), 0, "{}", daemon.said());
}

#[test]
fn half_bodies_of_two_hundred() {
    half_bodies(200);
}

/// Bodies that stand for 64 MiB, and their encodings.
pub(super) fn bombs() -> [(&'static str, Vec<u8>); 2] {
    let zeroes = vec![0; 64 << 20];
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&zeroes).expect("memory");
    [("gzip", encoder.finish().expect("memory")), ("zstd", zstd::bulk::compress(&zeroes, 1).expect("memory"))]
}

/// Each request is answered that it is too long, or that there is no room now.
#[test]
fn bombs_on_many_connections() {
    const CONNECTIONS: usize = 24;
    const BOMBS: usize = 6;
    let daemon = Setup::new().start();
    let (address, pages) = (daemon.port("grpc"), daemon.port("metrics"));
    let bombs = bombs();
    let bound = CONNECTIONS as u64 * CONNECTION_BYTES_MAX + ASSEMBLY_BYTES + MESSAGE_BYTES_MAX + TRANSFORMS;
    attack("bombs", &daemon, bound, || {
        thread::scope(|scope| {
            for index in 0..CONNECTIONS {
                let (encoding, bomb) = &bombs[index % 2];
                scope.spawn(move || {
                    for _ in 0..BOMBS {
                        let mut peer = connect(address);
                        let length = format!("content-encoding: {encoding}\r\ncontent-length: {}", bomb.len());
                        peer.write_all(&[head(&length), bomb.clone()].concat()).expect("sent");
                        let status = status(&mut peer);
                        assert!(matches!(status, Some(413 | 429)), "{encoding}: {status:?}");
                    }
                });
            }
        });
    });
    let answers = metrics(pages);
    let count = |code| answers[format!("clad_otlp_requests_total{{code=\"{code}\"}}").as_str()] as usize;
    assert_eq!(count("too_large") + count("busy"), CONNECTIONS * BOMBS);
    assert_eq!(count("ok") + count("partial"), 0);
}

/// A connection after the other, each with one byte; and as many that stay, and say nothing behind it. By hand
/// `CLAD_HOSTILE_CONNECTIONS` says how many: 100,000 take eight minutes.
#[test]
fn connections_of_one_byte() {
    const CONNECTIONS: usize = 2000;
    let by_hand = std::env::var("CLAD_HOSTILE_CONNECTIONS").ok();
    let connections = by_hand.map_or(CONNECTIONS, |number| number.parse().expect("a number"));
    let daemon = Setup::new().set("limits.max_connections", "300").start();
    let address = daemon.port("grpc");
    attack(&format!("{connections} connections of one byte"), &daemon, 300 * CONNECTION_BYTES_MAX, || {
        let mut stay = Vec::new();
        for index in 0..connections {
            let mut peer = connect(address);
            let _ = peer.write(b"P");
            if index % 2 == 0 {
                stay.push(peer);
            }
            stay.drain(..stay.len().saturating_sub(400));
        }
    });
    daemon.wait_until("everything is let go", |s| s.connections.values().sum::<u64>() == 0);
}
