//! Frames that break the protocol: the answer says why, and the connection ends. An append whose framing holds is
//! refused alone.

use bytes::{BufMut, BytesMut};
use clad_e2e::raw::{hello, payload};
use clad_e2e::{Daemon, Raw};
use clad_proto::frame::{
    AppendHead, Flush, Frame, FrameHeader, FrameType, Hello, Read, ReadFrom, RingWanted, Welcome, append_prefix,
    encode_append,
};
use clad_proto::limits::MAX_VERSION;
use clad_proto::{AckLevel, ErrorCode, ErrorInfo, LogId, crc32c};

use crate::Bystander;

/// Sends these bytes after a good HELLO, over each framed transport; what the daemon says before it closes.
fn ends_with(bytes: &[u8]) -> Vec<ErrorInfo> {
    let daemon = Daemon::start();
    let mut bystander = Bystander::of(&daemon);
    let said = [Raw::unix(&daemon.socket()), Raw::tcp(daemon.port("tcp"))].map(|mut raw| {
        raw.greet(&hello()).expect("WELCOME");
        raw.append_acked(0, AckLevel::Durable, &[b"acknowledged before"]);
        raw.send_bytes(bytes).expect("sent");
        let error = raw.end();
        bystander.is_served();
        error
    });
    let (stored, _) = reader(&daemon);
    assert_eq!(stored.iter().filter(|body| *body == b"acknowledged before").count(), 2);
    said.to_vec()
}

fn reader(daemon: &Daemon) -> (Vec<Vec<u8>>, u64) {
    let mut raw = Raw::unix(&daemon.socket());
    raw.greet(&clad_e2e::raw::hello_reader()).expect("WELCOME");
    let (got, end) = raw.read_from(0, AckLevel::Written).expect("a read");
    (got.into_iter().filter_map(|got| got.body).collect(), end.cursor.offset)
}

fn all_are(said: &[ErrorInfo], code: ErrorCode) {
    assert!(!said.is_empty() && said.iter().all(|error| error.code == code), "{said:?}");
    assert!(said.iter().all(|error| !error.text.is_empty() && !error.maybe_written), "{said:?}");
}

#[test]
fn an_append_frame_longer_than_the_limit() {
    // Its header alone is enough: nobody waits for 16 MiB to refuse them.
    let body_len = 16 << 20;
    let said = ends_with(&FrameHeader { kind: FrameType::Append, body_len, request_id: 0 }.encode());
    all_are(&said, ErrorCode::AppendTooLarge);
    assert!(said.iter().all(|error| error.limit == Some(2 << 20)), "{said:?}");
    assert!(said.iter().all(|error| error.text.contains(&(2 << 20).to_string())), "{said:?}");
}

#[test]
fn a_control_frame_longer_than_the_limit() {
    let said = ends_with(&FrameHeader { kind: FrameType::Flush, body_len: 4097, request_id: 1 }.encode());
    all_are(&said, ErrorCode::FrameTooLarge);
    assert!(said.iter().all(|error| error.limit == Some(4096)), "{said:?}");
}

#[test]
fn a_frame_too_short_for_what_it_must_hold() {
    all_are(
        &ends_with(&FrameHeader { kind: FrameType::Append, body_len: 23, request_id: 0 }.encode()),
        ErrorCode::MalformedFrame,
    );
}

#[test]
fn a_wrong_checksum_of_a_header() {
    let mut bytes = FrameHeader { kind: FrameType::Ping, body_len: 4, request_id: 1 }.encode();
    bytes[4] ^= 1;
    all_are(&ends_with(&bytes), ErrorCode::BadChecksum);
}

#[test]
fn a_wrong_checksum_of_a_control_body() {
    let mut bytes = FrameHeader { kind: FrameType::Ping, body_len: 4, request_id: 1 }.encode().to_vec();
    bytes.extend_from_slice(&[1, 0, 0, 0]);
    all_are(&ends_with(&bytes), ErrorCode::BadChecksum);
}

#[test]
fn a_wrong_checksum_of_what_an_append_says() {
    let good = payload(&[b"x"]);
    let head =
        AppendHead { first_seq: 1, count: 1, level: AckLevel::Durable, gap: false, payload_crc: good.checksum() };
    let mut bytes = append_prefix(&head, good.bytes.len() as u32).to_vec();
    bytes[16] ^= 1;
    bytes.extend_from_slice(&good.bytes);
    all_are(&ends_with(&bytes), ErrorCode::BadChecksum);
}

#[test]
fn a_frame_of_an_unknown_type() {
    let mut bytes = FrameHeader { kind: FrameType::Ping, body_len: 4, request_id: 1 }.encode();
    bytes[1] = 0x33;
    let crc = crc32c(&bytes[..12]);
    bytes[12..].copy_from_slice(&crc.to_le_bytes());
    let said = ends_with(&bytes);
    all_are(&said, ErrorCode::MalformedFrame);
    assert!(said.iter().all(|error| error.text.contains("0x33")), "{said:?}");
}

#[test]
fn another_protocol() {
    let said = ends_with(b"GET / HTTP/1.1\r\nHost: clad\r\n\r\n");
    all_are(&said, ErrorCode::MalformedFrame);
}

#[test]
fn a_flush_without_a_request_id() {
    let mut bytes = BytesMut::new();
    Flush { request_id: 0, level: AckLevel::Written }.encode(&mut bytes);
    all_are(&ends_with(&bytes), ErrorCode::MalformedFrame);
}

/// Once, by who appends, and when all that was sent before is answered.
#[test]
fn a_ring_is_asked_for_in_its_time() {
    let daemon = Daemon::start();
    let ring = |request_id| {
        let mut bytes = BytesMut::new();
        RingWanted { request_id, known: None, clock_ns: 0, bytes: 0 }.encode(&mut bytes);
        bytes
    };
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Written, &[b"by the socket"]);
    raw.send_bytes(&ring(7)).expect("sent");
    assert!(
        matches!(raw.frame(), Some(Frame::RingGiven(given)) if given.request_id == 7),
        "what came before is answered"
    );
    daemon.wait_for_rings(1);
    raw.send_bytes(&ring(8)).expect("sent");
    assert_eq!(raw.end().code, ErrorCode::MalformedFrame);
    daemon.wait_for_rings(0); // it ends with its connection
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.send_bytes(&ring(0)).expect("sent");
    assert_eq!(raw.end().code, ErrorCode::MalformedFrame);
    let mut raw = Raw::unix(&daemon.socket());
    raw.greet(&clad_e2e::raw::hello_reader()).expect("WELCOME");
    raw.send_bytes(&ring(7)).expect("sent");
    assert_eq!(raw.end().code, ErrorCode::MalformedFrame);
}

#[test]
fn a_hello_with_bits_of_a_later_version_in_its_header() {
    let daemon = Daemon::start();
    let mut bytes = BytesMut::new();
    hello().encode(&mut bytes);
    bytes[2] = 1;
    let crc = crc32c(&bytes[..12]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    let mut raw = Raw::unix(&daemon.socket());
    raw.send_bytes(&bytes).expect("sent");
    assert!(matches!(raw.frame(), Some(Frame::Welcome(_))), "the bits are ignored");
}

#[test]
fn a_read_with_the_id_of_one_that_is_open() {
    let daemon = Daemon::start();
    let mut raw = Raw::unix(&daemon.socket());
    raw.greet(&clad_e2e::raw::hello_reader()).expect("WELCOME");
    let (from, min_level) = (ReadFrom::Offset(0), AckLevel::Written);
    let read =
        Read { request_id: 9, from, follow: true, limit: None, min_level, since: None, until: None, filter: None };
    raw.send(|buf| read.encode(buf));
    assert!(matches!(raw.frame(), Some(Frame::CaughtUp(answer)) if answer.request_id == 9));
    raw.send(|buf| read.encode(buf));
    let Some(Frame::Error(answer)) = raw.frame() else { panic!("an ERROR") };
    assert_eq!((answer.request_id, answer.error.code), (9, ErrorCode::MalformedFrame), "{answer:?}");
    // The one that was open goes on, and so does the connection.
    Raw::producer(&daemon.socket()).0.append_acked(0, AckLevel::Durable, &[b"later"]);
    assert!(matches!(raw.frame(), Some(Frame::Records(later)) if later.request_id == 9));
}

#[test]
fn a_second_hello() {
    let mut bytes = BytesMut::new();
    hello().encode(&mut bytes);
    all_are(&ends_with(&bytes), ErrorCode::MalformedFrame);
}

#[test]
fn a_frame_that_only_the_daemon_sends() {
    let mut bytes = BytesMut::new();
    clad_proto::frame::encode_pong(&mut bytes, 1);
    all_are(&ends_with(&bytes), ErrorCode::MalformedFrame);
}

#[test]
fn no_common_version() {
    let daemon = Daemon::start();
    let mut bystander = Bystander::of(&daemon);
    let mut raw = Raw::unix(&daemon.socket());
    let error =
        raw.greet(&Hello { min_version: MAX_VERSION + 1, max_version: 9, ..hello() }).expect_err("versions that come");
    assert_eq!((error.code, error.limit), (ErrorCode::UnsupportedVersion, Some(MAX_VERSION.into())), "{error}");
    assert_eq!(raw.frame(), None);
    bystander.is_served();
    // Who also speaks an earlier one is welcome.
    let welcome: Welcome = Raw::unix(&daemon.socket()).greet(&Hello { max_version: 9, ..hello() }).expect("WELCOME");
    assert_eq!(welcome.version, MAX_VERSION);
    assert_ne!(welcome.log_id, LogId::ZERO);
}

#[test]
fn anything_before_hello() {
    let daemon = Daemon::start();
    let good = payload(&[b"x"]);
    let head =
        AppendHead { first_seq: 0, count: 1, level: AckLevel::Durable, gap: false, payload_crc: good.checksum() };
    let mut raw = Raw::unix(&daemon.socket());
    raw.send(|buf| encode_append(buf, &head, &good.bytes));
    assert_eq!(raw.end().code, ErrorCode::MalformedFrame);
    assert_eq!(daemon.status().offsets.expect("offsets").received, 0);
}

#[test]
fn a_payload_that_does_not_fit_its_checksum_is_refused_alone() {
    let daemon = Daemon::start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    let good = payload(&[b"first"]);
    let head =
        AppendHead { first_seq: 0, count: 1, level: AckLevel::Durable, gap: false, payload_crc: good.checksum() ^ 1 };
    raw.send(|buf| encode_append(buf, &head, &good.bytes));
    let refused = raw.refused();
    assert_eq!((refused.first_seq, refused.count, refused.error.code), (0, 1, ErrorCode::BadChecksum));
    assert!(refused.error.retryable && !refused.error.maybe_written, "{:?}", refused.error);
    // The connection goes on, and so does the sequence.
    let accepted = raw.append_acked(0, AckLevel::Durable, &[b"first"]);
    assert_eq!((accepted.first_offset, accepted.duplicate), (0, false));
    assert_eq!(reader(&daemon), (vec![b"first".to_vec()], 1));
}

#[test]
fn a_payload_that_is_no_payload_is_refused_and_its_record_named() {
    let daemon = Daemon::start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    let good = payload(&[b"one", b"two"]);
    let mut bytes = BytesMut::from(&good.bytes[..]);
    // The reserved bytes of the second record, whose header is 32 bytes and its body 3.
    let second = bytes.len() - 35;
    bytes[second + 6] = 1;
    let bad = clad_proto::Payload { bytes: bytes.freeze(), count: 2 };
    raw.append_payload(0, AckLevel::Durable, false, &bad);
    let error = raw.refused().error;
    assert_eq!((error.code, error.record_index), (ErrorCode::BadRecord, Some(1)), "{error}");
    assert!(!error.retryable && !error.maybe_written);
    // More records than are there, and fewer.
    for count in [1, 3] {
        raw.append_payload(0, AckLevel::Durable, false, &clad_proto::Payload { bytes: good.bytes.clone(), count });
        assert_eq!(raw.refused().error.code, ErrorCode::BadRecord, "{count}");
    }
    let mut nothing = BytesMut::new();
    nothing.put_u32_le(4);
    raw.append_payload(0, AckLevel::Durable, false, &clad_proto::Payload { bytes: nothing.freeze(), count: 0 });
    let none = raw.refused().error;
    assert!(!none.maybe_written, "{none}");
    raw.append_acked(0, AckLevel::Durable, &[b"one", b"two"]);
    assert_eq!(reader(&daemon).0, [b"one", b"two"]);
}

#[test]
fn a_record_over_the_limit_is_refused_and_named() {
    let daemon = clad_e2e::Setup::new().set("journal.max_record_bytes", "64KiB").start();
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    assert_eq!(welcome.max_record_bytes, 64 << 10);
    // A record that is text has 32 bytes more than its text.
    let (fits, passes) = (vec![b'a'; (64 << 10) - 32], vec![b'a'; (64 << 10) - 31]);
    raw.append(0, AckLevel::Durable, &[b"short", &fits, &passes]);
    let error = raw.refused().error;
    assert_eq!((error.code, error.record_index, error.limit), (ErrorCode::RecordTooLarge, Some(2), Some(64 << 10)));
    assert!(!error.retryable && !error.maybe_written, "{error}");
    raw.append_acked(0, AckLevel::Durable, &[b"short", &fits]);
    assert_eq!(reader(&daemon).0, [b"short".to_vec(), fits], "taken or refused whole");
}
