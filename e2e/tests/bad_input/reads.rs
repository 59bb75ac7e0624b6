//! A READ that its reader ends before its end.
//!
//! Invariants: READ_END comes behind everything that was given and names the place behind it, so that who reads on
//! from there misses nothing and gets nothing twice; the request id is free again from then on.

use clad_e2e::raw::hello_reader;
use clad_e2e::{Daemon, Raw};
use clad_proto::frame::{Frame, Read, ReadEnd, ReadEndReason, ReadFrom, encode_cancel_read};
use clad_proto::{AckLevel, Cursor};

const RECORDS: u64 = 128;

fn read(raw: &mut Raw, request_id: u32, offset: u64) {
    let (from, min_level) = (ReadFrom::Offset(offset), AckLevel::Written);
    let read = Read { request_id, from, follow: true, limit: None, min_level, since: None, until: None, filter: None };
    raw.send(|buf| read.encode(buf));
}

fn log() -> (Daemon, Raw) {
    let daemon = Daemon::start();
    let (mut producer, _) = Raw::producer(&daemon.socket());
    let body = vec![b'r'; 64 << 10];
    for sequence in 0..RECORDS {
        producer.append_acked(sequence, AckLevel::Written, &[&body]);
    }
    let mut raw = Raw::unix(&daemon.socket());
    raw.greet(&hello_reader()).expect("WELCOME");
    (daemon, raw)
}

/// What comes until the read's end: the offset behind the last record, and the end.
fn until_end(raw: &mut Raw, mut next: u64) -> (u64, ReadEnd) {
    loop {
        match raw.answer() {
            Frame::Records(records) => {
                assert_eq!(records.head.first_offset, next, "a gap or a repeat");
                next += u64::from(records.head.count);
            }
            Frame::CaughtUp(_) => {}
            Frame::ReadEnd(end) => return (next, end),
            other => panic!("in a READ: {other:?}"),
        }
    }
}

#[test]
fn a_read_cancelled_midway_resumes_where_it_says() {
    let (_daemon, mut raw) = log();
    let (mut next, mut ends) = (0, 0);
    while next < RECORDS {
        read(&mut raw, 7, next);
        assert!(matches!(raw.frame(), Some(Frame::Records(_))), "it is under way");
        raw.send(|buf| encode_cancel_read(buf, 7));
        let (behind, end) = until_end(&mut raw, next + 1);
        assert_eq!((end.request_id, end.reason, end.cursor.offset), (7, ReadEndReason::Cancelled, behind));
        // Nothing of it comes any more: the next answer is that of a PING.
        raw.ping();
        (next, ends) = (behind, ends + 1);
    }
    assert!(ends > 1, "the first read gave everything before it was cancelled: nothing was shown");
}

#[test]
fn one_that_rests_ends_at_once_and_one_that_has_ended_says_nothing() {
    let (_daemon, mut raw) = log();
    read(&mut raw, 7, RECORDS - 1);
    while !matches!(raw.answer(), Frame::CaughtUp(_)) {}
    raw.send(|buf| encode_cancel_read(buf, 7));
    let (_, ReadEnd { cursor: Cursor { offset, .. }, .. }) = until_end(&mut raw, 0);
    assert_eq!(offset, RECORDS);
    raw.send(|buf| encode_cancel_read(buf, 7));
    raw.ping();
}
