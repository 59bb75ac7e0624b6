//! Filters that are none, or cost as much as one may: each has its answer, and nobody else pays.

use bytes::{BufMut, BytesMut};
use clad_client::{Filter, Reader};
use clad_e2e::raw::hello_reader;
use clad_e2e::{Daemon, Raw, TEST_TIMEOUT};
use clad_proto::frame::{Frame, FrameHeader, FrameType, Read, ReadFrom, encode_cancel_read};
use clad_proto::{AckLevel, ErrorCode, Payload};

use crate::{Appender, address, numbers, read_all, runtime, small};

fn read(request_id: u32, filter: Vec<u8>) -> Read {
    let (from, min_level) = (ReadFrom::Offset(0), AckLevel::Written);
    Read {
        request_id,
        from,
        follow: false,
        limit: None,
        min_level,
        since: None,
        until: None,
        filter: Some(filter.into()),
    }
}

fn reader(daemon: &Daemon) -> Raw {
    let mut raw = Raw::unix(&daemon.socket());
    raw.greet(&hello_reader()).expect("WELCOME");
    raw
}

/// Filters inside filters, as deep as a frame has room for.
fn nested() -> Vec<u8> {
    let mut bytes = vec![];
    while bytes.len() < 3700 {
        let mut inner = BytesMut::new();
        put_leb(&mut inner, bytes.len());
        inner.put_slice(&bytes);
        let mut outer = BytesMut::new();
        outer.put_u8(8);
        put_leb(&mut outer, inner.len());
        outer.put_slice(&inner);
        bytes = outer.to_vec();
    }
    bytes
}

fn put_leb(buf: &mut BytesMut, mut number: usize) {
    while number >= 0x80 {
        buf.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    buf.put_u8(number as u8);
}

#[test]
fn what_is_no_filter_ends_its_read_and_nothing_else() {
    let daemon = small().start();
    let mut appender = Appender::new(&daemon);
    (0..3).for_each(|number| appender.text(format!("number {number}")));
    let mut raw = reader(&daemon);
    let pattern = |text: &str| Filter::new().body_matches(text, false).to_bytes().expect("short").to_vec();
    let bad = [
        vec![99, 0],
        vec![1, 2, 0, 0],
        vec![1, 200],
        vec![2, 2, 1, 0xFF],
        vec![3, 3, 0, 8, 0],
        vec![8, 0],
        nested(),
        vec![0; 3900],
        [2, 1, 1].repeat(65),
        pattern("("),
        pattern("[z-a]"),
        pattern(r"(?:\w{100}){100}"),
        pattern(&"(?:".repeat(1000)),
        [pattern("a"), pattern("b")].concat(),
    ];
    for (id, filter) in (10..).zip(bad) {
        let shown = filter.clone();
        raw.send(|buf| read(id, filter).encode(buf));
        let Frame::Error(error) = raw.answer() else { panic!("{shown:?}") };
        assert_eq!((error.request_id, error.error.code), (id, ErrorCode::FilterUnsupported), "{}", error.error);
        assert!(!error.error.text.is_empty() && !error.error.retryable);
    }
    // Conflicting conditions are a filter that nothing matches.
    let none = Filter::new().component("a").component("b").to_bytes().expect("short");
    raw.send(|buf| read(9, none.to_vec()).encode(buf));
    let Frame::ReadEnd(end) = raw.answer() else { panic!("an end") };
    assert_eq!((end.request_id, end.cursor.offset), (9, 3));
    let (got, _) = raw.read_from(0, AckLevel::Written).expect("the connection lives");
    assert_eq!(got.len(), 3);
    // A READ beyond what a control frame may be long ends its connection, as ever.
    let mut long = BytesMut::new();
    long.put_slice(&FrameHeader { kind: FrameType::Read, body_len: 1 << 20, request_id: 8 }.encode());
    long.put_bytes(0, 4096);
    raw.send_bytes(&long).expect("sent");
    assert_eq!(raw.end().code, ErrorCode::FrameTooLarge);
    let all = runtime().block_on(async {
        let over_grpc = Filter::new().body_matches("(?:a{500}){500}|number 1", false);
        let reader = Reader::builder(address(&daemon, "grpc")).filter(over_grpc).open().await;
        match reader {
            Ok(reader) => read_all(reader, usize::MAX).await.map(|all| all.records),
            Err(error) => Err(error),
        }
    });
    assert!(all.is_err() || all.is_ok_and(|records| records == numbers(1..2)));
}

/// Readers with the most costly filters that are evaluated, over a log that has no match: others append and read
/// meanwhile, and a cancelled one ends.
#[test]
fn the_most_costly_filters_hold_up_nobody() {
    let daemon = small().start();
    let mut appender = Appender::new(&daemon);
    let payload = |body: &str| -> Payload { clad_e2e::raw::payload(&[body.as_bytes()]) };
    let body = "ab".repeat(60 << 10);
    (0..64).for_each(|_| appender.payload(&payload(&body)));
    let costly = Filter::new().body_matches("(?:a?b?){40}(?:[ab]{1,20}c){2}$", false).to_bytes().expect("short");
    let mut readers: Vec<Raw> = (0..4).map(|_| reader(&daemon)).collect();
    for raw in &mut readers {
        for id in 1..=6 {
            raw.send(|buf| Read { follow: true, ..read(id, costly.to_vec()) }.encode(buf));
        }
    }
    // 16 of the 24 are evaluated, the others are refused; whoever appends and reads does not wait for any.
    (0..20).for_each(|number| appender.text(format!("number {number}")));
    let (got, _) = reader(&daemon).read_from(64, AckLevel::Durable).expect("a read");
    assert_eq!(got.len(), 20);
    let mut refused = 0;
    for raw in &mut readers {
        (1..=6).for_each(|id| raw.send(|buf| encode_cancel_read(buf, id)));
        let (mut ended, began) = (0, std::time::Instant::now());
        while ended < 6 {
            assert!(began.elapsed() < TEST_TIMEOUT, "{ended} have ended");
            match raw.answer() {
                Frame::ReadEnd(_) => ended += 1,
                Frame::Error(error) => {
                    assert_eq!(error.error.code, ErrorCode::FilterUnsupported, "{}", error.error);
                    (ended, refused) = (ended + 1, refused + 1);
                }
                Frame::Progress(_) | Frame::CaughtUp(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(refused, 8);
    // Whoever leaves gives its place back.
    drop(readers);
    let began = std::time::Instant::now();
    loop {
        let mut raw = reader(&daemon);
        raw.send(|buf| read(1, costly.to_vec()).encode(buf));
        match raw.answer() {
            Frame::Error(_) => assert!(began.elapsed() < TEST_TIMEOUT, "no place is given back"),
            _ => break,
        }
    }
}
