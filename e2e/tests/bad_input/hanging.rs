//! Clients that stop in the middle: half a frame, no HELLO, answers that nobody takes.

use std::time::Duration;

use bytes::BytesMut;
use clad_e2e::raw::{hello, hello_reader, payload};
use clad_e2e::{Daemon, Raw, Setup};
use clad_proto::frame::{AppendHead, Frame, FrameHeader, FrameType, Read, ReadFrom, append_prefix, encode_append};
use clad_proto::{AckLevel, ErrorCode};

use crate::Bystander;

#[test]
fn half_a_frame_and_then_nothing() {
    let daemon = Daemon::start();
    let mut bystander = Bystander::of(&daemon);
    // One stops within a header, one within a small body, one within a body of nearly all that an append may have.
    let header = FrameHeader { kind: FrameType::Append, body_len: 1000, request_id: 0 }.encode();
    let large = payload(&[&vec![b'x'; 1 << 20]]);
    let head =
        AppendHead { first_seq: 1, count: 1, level: AckLevel::Durable, gap: false, payload_crc: large.checksum() };
    let mut most = append_prefix(&head, large.bytes.len() as u32).to_vec();
    most.extend_from_slice(&large.bytes[..large.bytes.len() - 1]);
    let mut within: Vec<Raw> = [&header[..7], &[&header[..], b"half"].concat(), &most]
        .map(|bytes| {
            let (mut raw, _) = Raw::producer(&daemon.socket());
            raw.append_acked(0, AckLevel::Durable, &[b"whole"]);
            raw.send_bytes(bytes).expect("sent");
            raw
        })
        .into();
    bystander.is_served();
    let quits = Raw::producer(&daemon.socket());
    let (mut quits, _) = quits;
    quits.send_bytes(&header[..9]).expect("sent");
    drop(quits);
    bystander.is_served();
    for raw in &mut within {
        let error = raw.end();
        assert_eq!(error.code, ErrorCode::IdleTimeout, "{error}");
        assert!(error.text.contains("half a frame"), "{error}");
        bystander.is_served();
    }
    assert_eq!(daemon.status().offsets.expect("offsets").durable, bystander.next + 3, "and no half append is stored");
}

#[test]
fn no_hello() {
    let daemon = Setup::new().set("limits.handshake_timeout", "200ms").start();
    let mut bystander = Bystander::of(&daemon);
    for mut raw in [Raw::unix(&daemon.socket()), Raw::tcp(daemon.port("tcp"))] {
        assert_eq!(raw.end().code, ErrorCode::HandshakeTimeout);
        bystander.is_served();
    }
}

#[test]
fn silence_for_longer_than_the_operator_allows() {
    let daemon = Setup::new().set("limits.idle_timeout", "300ms").start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Durable, &[b"x"]);
    assert_eq!(raw.end().code, ErrorCode::IdleTimeout);
}

/// More than the daemon can hold back in answers and sockets, and far less than would harm the machine.
const FLOOD_BYTES: usize = 64 << 20;

#[test]
fn a_client_that_does_not_take_its_acks() {
    let daemon = Daemon::start();
    let mut bystander = Bystander::of(&daemon);
    let (mut raw, _) = Raw::producer(&daemon.socket());
    let before = anonymous(&daemon);
    let good = payload(&[b"nobody listens"]);
    let append = |first_seq| {
        let head =
            AppendHead { first_seq, count: 1, level: AckLevel::Received, gap: false, payload_crc: good.checksum() };
        let mut bytes = BytesMut::new();
        encode_append(&mut bytes, &head, &good.bytes);
        bytes
    };
    // It sends until the daemon takes no more.
    let (mut sequence, mut sent, mut rest) = (0, 0, append(0));
    while sent < FLOOD_BYTES {
        match raw.send_some(&rest, Duration::from_secs(1)) {
            0 => break,
            length => {
                sent += length;
                rest = rest.split_off(length);
                if rest.is_empty() {
                    sequence += 1;
                    rest = append(sequence);
                }
            }
        }
        if sequence % 1024 == 0 {
            bystander.is_served();
        }
    }
    assert!(sent < FLOOD_BYTES, "it is read from although it does not read");
    let grown = anonymous(&daemon).saturating_sub(before);
    assert!(grown < 16 << 20, "its answers take {grown} bytes");
    for _ in 0..100 {
        bystander.is_served();
    }
    // When it reads at last, every answer is there, in order, and it goes on where it was.
    for expected in 0..sequence {
        assert_eq!(raw.accepted().first_seq, expected);
    }
    raw.send_bytes(&rest).expect("taken again");
    assert_eq!(raw.accepted().first_seq, sequence);
    assert!(sequence > 1000, "only {sequence} were sent: too few to fill anything");
}

/// A reader that takes nothing holds its own place and nothing else.
#[test]
fn a_reader_that_does_not_read() {
    let daemon = Daemon::start();
    let mut bystander = Bystander::of(&daemon);
    let body = vec![b'r'; 64 << 10];
    for _ in 0..256 {
        bystander.raw.append_acked(bystander.next, AckLevel::Written, &[&body]);
        bystander.next += 1;
    }
    let before = anonymous(&daemon);
    let mut readers: Vec<Raw> = (0..20).map(|_| Raw::unix(&daemon.socket())).collect();
    for raw in &mut readers {
        raw.greet(&hello_reader()).expect("WELCOME");
        let read = Read {
            request_id: 1,
            from: ReadFrom::Offset(0),
            follow: false,
            limit: None,
            min_level: AckLevel::Written,
            since: None,
            until: None,
            filter: None,
        };
        raw.send(|buf| read.encode(buf));
        // The first records have come: the read is under way.
        assert!(matches!(raw.frame(), Some(Frame::Records(_))));
    }
    for _ in 0..100 {
        bystander.is_served();
    }
    let grown = anonymous(&daemon).saturating_sub(before);
    assert!(grown < 48 << 20, "20 readers of 16 MiB take {grown} bytes");
    let (mut raw, _) = (Raw::unix(&daemon.socket()), ());
    raw.greet(&hello()).expect("WELCOME");
}

/// Memory of the daemon that is not backed by a file.
fn anonymous(daemon: &Daemon) -> u64 {
    clad_e2e::tool::resident(daemon.pid()).anonymous
}

/// Who follows and goes away is let go at once, though nothing is appended that would make a write fail.
#[test]
fn followers_that_go_away_hold_nothing() {
    let daemon = Daemon::start();
    for _ in 0..20 {
        let mut raw = Raw::unix(&daemon.socket());
        raw.greet(&hello_reader()).expect("welcome");
        raw.send(|out| {
            let from = ReadFrom::Offset(0);
            let min_level = AckLevel::Written;
            Read { request_id: 1, from, follow: true, limit: None, min_level, since: None, until: None, filter: None }
                .encode(out);
        });
        assert!(matches!(raw.answer(), Frame::CaughtUp(_)));
    }
    daemon.wait_until("nobody is connected any more", |status| status.connections.values().sum::<u64>() == 0);
}
