//! Many that stop in the middle of a frame, and many that never read what they are answered.

use std::time::Duration;

use bytes::BytesMut;
use clad_e2e::raw::payload;
use clad_e2e::web::metrics;
use clad_e2e::{Daemon, Raw, Setup, as_user, is_root, not_run, open_to_all, stranger};
use clad_proto::AckLevel;
use clad_proto::frame::{AppendHead, append_prefix, encode_append, encode_ping};

use super::{PROCESS_GROWTH_BYTES_MAX, attack};

/// The daemon's own bounds (docs/ARCHITECTURE.md): a frame up to this needs no share of a budget,
const UNSHARED_FRAME_BYTES_MAX: u64 = 64 << 10;
/// a read buffer is no larger than this, or than the frame under way,
const CHUNK_BYTES_MAX: u64 = 128 << 10;
/// of both what a connection has of its own, in buffers that grow to twice of it; more is a part of one budget,
const CONNECTION_OWN_BYTES: u64 = 2 * (16 << 10) + 2 * (16 << 10);
/// answers that wait for a peer,
const OUT_BYTES_MAX: u64 = 256 << 10;
/// and bytes of appends over all connections, once more of large frames that are put together, and twice of buffers.
const BUDGET_BYTES: u64 = 4 << 20;

fn daemon(connections: usize) -> Daemon {
    // A user has half of them.
    let setup = Setup::new().set("limits.max_connections", &(2 * connections + 20).to_string());
    let setup = setup.set("limits.max_inflight_bytes", &BUDGET_BYTES.to_string()).set("limits.max_producers", "4096");
    open_to_all(setup.set("limits.max_connection_inflight_bytes", &BUDGET_BYTES.to_string()).start())
}

/// All but the last byte of an append of so many bytes.
fn half(bytes: usize) -> Vec<u8> {
    let whole = payload(&[&vec![b'h'; bytes]]);
    let payload_crc = whole.checksum();
    let head = AppendHead { first_seq: 0, count: 1, level: AckLevel::Durable, gap: false, payload_crc };
    let mut frame = append_prefix(&head, whole.bytes.len() as u32).to_vec();
    frame.extend_from_slice(&whole.bytes[..whole.bytes.len() - 1]);
    frame
}

fn half_frames(connections: usize) {
    let daemon = daemon(connections);
    // Half of them send what needs no share, the others a megabyte, which few can have at a time.
    let (small, large) = (half(48 << 10), half(1 << 20));
    let bound = connections as u64 * (CONNECTION_OWN_BYTES + UNSHARED_FRAME_BYTES_MAX) + 2 * BUDGET_BYTES;
    attack(&format!("{connections} half frames"), &daemon, bound, || {
        let mut peers = Vec::new();
        for index in 0..connections {
            let mut raw = stranger(&daemon);
            // What is not read stays in the socket: a sender that blocks is let be.
            raw.send_some(if index % 2 == 0 { &small } else { &large }, Duration::from_millis(1));
            peers.push(raw);
        }
        std::thread::sleep(Duration::from_millis(500)); // so that there is something to see
        drop(peers);
    });
    daemon.wait_until("everything is let go", |s| s.connections.values().sum::<u64>() == 0);
    assert_eq!(daemon.said().matches("panicked").count(), 0, "{}", daemon.said());
}

#[test]
fn half_frames_of_a_hundred() {
    half_frames(100);
}

#[test]
#[ignore = "cargo xtask ci hostile"]
fn half_frames_of_thousands() {
    half_frames(3000);
}

/// A large append of somebody else is put together beside those that only claim much, and beside those of another owner
/// that begin and never end. None of them has run out of time by then: they are there, and did not make room.
#[test]
fn large_appends_during_half_frames() {
    const HALF_FRAMES: usize = 40;
    let daemon = daemon(2 * HALF_FRAMES);
    let large = half(1 << 20);
    let line = vec![b'l'; 100 << 10];
    let mut peers = Vec::new();
    let mut add_half_frames = |bytes: usize| {
        for _ in 0..HALF_FRAMES {
            let mut raw = stranger(&daemon);
            raw.send_some(&large[..bytes], Duration::from_millis(1));
            peers.push(raw);
        }
    };
    let served = |mut raw: Raw, first: u64| {
        raw.append_acked(first, AckLevel::Durable, &[line.as_slice()]);
        let there = daemon.status().connections.values().sum::<u64>() as usize;
        assert!(there > HALF_FRAMES, "{there} connections: they have made room, and it was waited for");
    };
    add_half_frames(100);
    served(Raw::producer(&daemon.socket()).0, 0);
    // These hold what one owner may, and wait for it.
    add_half_frames(70 << 10);
    if !is_root() {
        return not_run("large appends of another user", "only root can be somebody else");
    }
    served(as_user(60_001, || Raw::producer(&daemon.socket()).0), 0);
}

/// They append as fast as they can and never look at an answer.
fn who_never_reads(connections: usize) {
    const BURST: u64 = 1000;
    let daemon = daemon(connections);
    let mut burst = BytesMut::new();
    let one = payload(&[b"nobody listens"]);
    for first_seq in 0..BURST {
        let (count, level, payload_crc) = (1, AckLevel::Received, one.checksum());
        encode_append(&mut burst, &AppendHead { first_seq, count, level, gap: true, payload_crc }, &one.bytes);
    }
    let bound = connections as u64 * CONNECTION_OWN_BYTES + 4 * BUDGET_BYTES;
    let (_, sent) = attack(&format!("{connections} who never read"), &daemon, bound, || {
        let mut peers: Vec<_> = (0..connections).map(|_| Raw::producer(&daemon.socket()).0).collect();
        let mut stuck = vec![false; connections];
        let mut sent = 0;
        // Until the daemon takes no more of any of them. Sequences come again: resends are answered, too. A frame that was
        // cut in the middle goes on where it was.
        let mut at = vec![0; connections];
        for _ in 0..64 {
            for (index, raw) in peers.iter_mut().enumerate() {
                if stuck[index] {
                    continue;
                }
                let took = raw.send_some(&burst[at[index]..], Duration::from_millis(50));
                stuck[index] = took == 0;
                at[index] = (at[index] + took) % burst.len();
                sent += took;
            }
        }
        assert!(stuck.iter().all(|stuck| *stuck), "somebody is read from who does not read");
        sent
    });
    assert!(sent > connections * OUT_BYTES_MAX as usize, "{sent} bytes were sent: too few to fill anything");
}

/// What each may make the daemon hold is a part of what all may: a crowd of one user holds its own buffers, and half of the
/// budget for more. Each alone within its bounds, they would hold many times as much.
fn who_pings_and_reads_nothing(connections: usize) {
    let daemon = daemon(connections);
    let mut pings = BytesMut::new();
    (0..1000).for_each(|_| encode_ping(&mut pings, 1));
    let bound = connections as u64 * CONNECTION_OWN_BYTES + 2 * BUDGET_BYTES;
    assert!(
        connections as u64 * (OUT_BYTES_MAX + CHUNK_BYTES_MAX) > bound + PROCESS_GROWTH_BYTES_MAX,
        "too few to show anything"
    );
    attack(&format!("{connections} who ping and read nothing"), &daemon, bound, || {
        let mut peers: Vec<_> = (0..connections).map(|_| stranger(&daemon)).collect();
        for raw in &mut peers {
            // A frame that was cut in the middle goes on where it was.
            let mut at = 0;
            loop {
                match raw.send_some(&pings[at..], Duration::from_millis(10)) {
                    0 => break,
                    sent => at = (at + sent) % pings.len(),
                }
            }
        }
        let buffers = metrics(daemon.port("metrics"))["clad_connection_buffer_bytes"] as u64;
        assert!(
            (OUT_BYTES_MAX..=BUDGET_BYTES).contains(&buffers),
            "{buffers} bytes of buffers, and one user may have {BUDGET_BYTES}"
        );
    });
    daemon.wait_until("everything is let go", |s| s.connections.values().sum::<u64>() == 0);
    assert_eq!(metrics(daemon.port("metrics"))["clad_connection_buffer_bytes"] as u64, 0);
}

#[test]
fn two_hundred_who_ping_and_read_nothing() {
    who_pings_and_reads_nothing(200);
}

#[test]
#[ignore = "cargo xtask ci hostile"]
fn thousands_who_ping_and_read_nothing() {
    who_pings_and_reads_nothing(3000);
}

#[test]
fn ten_who_never_read() {
    who_never_reads(10);
}

#[test]
#[ignore = "cargo xtask ci hostile"]
fn a_hundred_who_never_read() {
    who_never_reads(100);
}
