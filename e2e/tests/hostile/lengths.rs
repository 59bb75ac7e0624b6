//! Lengths, counts and numbers up to the largest that their fields hold, wherever a client may put one.
//!
//! Invariants: each is answered precisely or ends its own connection, nothing is taken for it, and nothing in the
//! daemon overflows (it is built with overflow checks here).

use clad_e2e::raw::{hello, payload};
use clad_e2e::{Daemon, Raw};
use clad_proto::frame::{AppendHead, Frame, FrameHeader, FrameType, Read, ReadFrom, append_prefix, encode_append};
use clad_proto::limits::FRAME_HEADER_BYTES;
use clad_proto::{AckLevel, ErrorCode};

use super::attack;
use super::http2::{Http2, message};

/// The interesting numbers of a width.
fn numbers(bits: u32) -> Vec<u64> {
    let most = u64::MAX >> (64 - bits);
    let mut all = vec![0, 1, most, most - 1];
    for power in [7, 8, 15, 16, 20, 23, 24, 28, 31, 32, 48, 62, 63] {
        all.extend([(1_u64 << power) - 1, 1 << power, (1 << power) + 1].map(|n| n & most));
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Sends bytes as a producer and takes what comes until the daemon closes or answers a PING.
fn answered(daemon: &Daemon, what: &str, bytes: &[u8]) {
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.send_bytes(bytes).expect("sent");
    match raw.frame() {
        Some(Frame::Error(error)) => assert_ne!(error.error.code, ErrorCode::Internal, "{error:?}"),
        Some(Frame::Refused(refused)) => assert_ne!(refused.error.code, ErrorCode::Internal, "{refused:?}"),
        Some(Frame::Accepted(_) | Frame::ReadEnd(_) | Frame::CaughtUp(_) | Frame::Records(_) | Frame::Watermark(_)) => {
        }
        other => panic!("{what}: {other:?}"),
    }
}

fn lives(daemon: &Daemon) {
    assert!(!daemon.said().contains("panicked"), "{}", daemon.said());
}

#[test]
fn of_frames() {
    let daemon = Daemon::start();
    // Whatever they announce, nothing of it comes; they all stay, so that what is taken for one stays too.
    let (_, tried) = attack("lengths of frames", &daemon, 8 << 20, || {
        let mut peers = Vec::new();
        for kind in FrameType::ALL.into_iter().filter(|kind| kind.code() < 0x40) {
            for length in numbers(32) {
                let header = FrameHeader { kind, body_len: length as u32, request_id: u32::MAX }.encode();
                let (mut raw, _) = Raw::producer(&daemon.socket());
                raw.send_bytes(&header).expect("sent");
                peers.push(raw);
            }
        }
        peers.len()
    });
    assert!(tried > 150, "{tried}");
    lives(&daemon);
}

#[test]
fn of_numbers_in_frames() {
    let daemon = Daemon::start();
    let one = payload(&[b"x"]);
    attack("numbers in frames", &daemon, 4 << 20, || {
        for number in numbers(64) {
            let head = AppendHead {
                first_seq: number,
                count: 1,
                level: AckLevel::Received,
                gap: true,
                payload_crc: one.checksum(),
            };
            let mut bytes = bytes::BytesMut::new();
            encode_append(&mut bytes, &head, &one.bytes);
            answered(&daemon, &format!("append {number}"), &bytes);
            // As many records as fit the number, which the payload does not hold.
            let mut prefix =
                append_prefix(&AppendHead { count: number as u32, ..head }, one.bytes.len() as u32).to_vec();
            prefix.extend_from_slice(&one.bytes);
            answered(&daemon, &format!("count {number}"), &prefix);
            let (from, limit) = (ReadFrom::Offset(number), std::num::NonZeroU64::new(number));
            let time = Some(number as i64);
            let mut bytes = bytes::BytesMut::new();
            let min_level = AckLevel::Written;
            Read { request_id: 1, from, follow: true, limit, min_level, since: time, until: time, filter: None }
                .encode(&mut bytes);
            answered(&daemon, &format!("read {number}"), &bytes);
        }
    });
    // A sequence at the very end is not followed by one that has come round.
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_after_gap(u64::MAX - 1, AckLevel::Received, &[b"last but one"]);
    raw.answer();
    raw.append(0, AckLevel::Received, &[b"come round"]);
    assert!(matches!(raw.answer(), Frame::Refused(_)));
    lives(&daemon);
}

/// Numbers of a handshake: each eight bytes of a HELLO in turn, its checksum made right.
#[test]
fn of_numbers_in_a_handshake() {
    let daemon = Daemon::start();
    let mut good = bytes::BytesMut::new();
    hello().encode(&mut good);
    attack("numbers in a handshake", &daemon, 2 << 20, || {
        let body = FRAME_HEADER_BYTES..good.len() - 4;
        for at in body.clone() {
            for number in [u64::MAX, i64::MAX as u64, u64::from(u32::MAX)] {
                let mut bad = good.to_vec();
                for (byte, with) in bad[at..body.end.min(at + 8)].iter_mut().zip(number.to_le_bytes()) {
                    *byte = with;
                }
                let crc = clad_proto::crc32c(&bad[body.clone()]).to_le_bytes();
                bad[body.end..].copy_from_slice(&crc);
                let mut raw = Raw::unix(&daemon.socket());
                raw.send_bytes(&bad).expect("sent");
                match raw.frame() {
                    Some(Frame::Welcome(_)) | None => {}
                    Some(Frame::Error(error)) => assert_ne!(error.error.code, ErrorCode::Internal, "{error:?}"),
                    other => panic!("{other:?}"),
                }
            }
        }
    });
    lives(&daemon);
}

/// Lengths of gRPC messages and of the protobuf inside of them.
#[test]
fn of_messages() {
    let daemon = Daemon::start();
    let address = daemon.port("grpc");
    attack("lengths of messages", &daemon, 4 << 20, || {
        for length in numbers(32) {
            let mut connection = Http2::connect(address);
            connection.open(1);
            let mut bytes = vec![0];
            bytes.extend((length as u32).to_be_bytes());
            connection.data(1, &bytes, true);
            connection.until_answered(1);
        }
        for length in numbers(64) {
            // Fields 1 (Hello) and 2 (Append), length-delimited, as long as the number says.
            for field in [0x0A, 0x12] {
                let mut inside = vec![field];
                prost::encoding::encode_varint(length, &mut inside);
                inside.extend(b"short");
                let mut connection = Http2::connect(address);
                connection.open(1);
                connection.data(1, &message(&inside), true);
                connection.until_answered(1);
            }
        }
    });
    lives(&daemon);
}
