//! Appends that come in one write: taken together, refused one by one.

use bytes::BytesMut;
use clad_e2e::raw::payload;
use clad_e2e::{Daemon, Raw, Setup};
use clad_proto::frame::{AppendHead, Frame, encode_append};
use clad_proto::{AckLevel, ErrorCode, payload_checksum};

/// An APPEND of one record; `spoil` changes what it says of its payload.
fn put(bytes: &mut BytesMut, first_seq: u64, level: AckLevel, gap: bool, spoil: u32) {
    let body = format!("record {first_seq}");
    let payload = payload(&[body.as_bytes()]);
    let payload_crc = payload_checksum(&payload.bytes) ^ spoil;
    encode_append(bytes, &AppendHead { first_seq, count: 1, level, gap, payload_crc }, &payload.bytes);
}

fn outcome(frame: Frame) -> Result<(u64, u64, bool), (u64, ErrorCode)> {
    match frame {
        Frame::Accepted(a) => Ok((a.first_seq, a.first_offset, a.duplicate)),
        Frame::Refused(r) => Err((r.first_seq, r.error.code)),
        other => panic!("{other:?}"),
    }
}

/// The next answer to an append; watermarks may come in between.
fn next(raw: &mut Raw) -> Result<(u64, u64, bool), (u64, ErrorCode)> {
    loop {
        match raw.answer() {
            Frame::Watermark(_) => {}
            frame => return outcome(frame),
        }
    }
}

#[test]
fn a_refusal_in_the_middle_costs_the_others_nothing() {
    let daemon = Daemon::start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    let mut bytes = BytesMut::new();
    for first in 0..3 {
        put(&mut bytes, first, AckLevel::Written, false, 0);
    }
    put(&mut bytes, 3, AckLevel::Written, false, 1); // damaged
    put(&mut bytes, 4, AckLevel::Written, false, 0); // so this jumps ahead
    put(&mut bytes, 1, AckLevel::Durable, false, 0); // sent again
    put(&mut bytes, 3, AckLevel::Posted, false, 0); // a level that is none here
    put(&mut bytes, 3, AckLevel::Durable, false, 0);
    put(&mut bytes, 9, AckLevel::Written, true, 0); // a gap, marked
    put(&mut bytes, 10, AckLevel::Received, false, 0);
    raw.send_bytes(&bytes).expect("sent");
    let want = [
        Ok((0, 0, false)),
        Ok((1, 1, false)),
        Ok((2, 2, false)),
        Err((3, ErrorCode::BadChecksum)),
        Err((4, ErrorCode::SequenceGap)),
        Ok((1, 1, true)),
        Err((3, ErrorCode::LevelUnreachable)),
        Ok((3, 3, false)),
        Ok((9, 4, false)),
        Ok((10, 5, false)),
    ];
    let got: Vec<_> = want.iter().map(|_| next(&mut raw)).collect();
    assert_eq!(got, want);
    raw.flush(AckLevel::Durable).expect("durable");
    assert_eq!(daemon.status().offsets.expect("offsets").durable, 6);
}

/// A burst that is larger than the budget goes in as room comes, in its order, and nothing of the budget is lost.
#[test]
fn a_burst_beyond_the_budget_waits_for_room() {
    let small = ["limits.max_inflight_bytes", "limits.max_connection_inflight_bytes"];
    let records = ["limits.max_append_bytes", "journal.max_record_bytes"];
    let setup = small.into_iter().fold(Setup::new(), |setup, key| setup.set(key, "64KiB"));
    let daemon = records.into_iter().fold(setup, |setup, key| setup.set(key, "16KiB")).start();
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    let window = u64::from(welcome.window);
    for round in 0..8 {
        let mut bytes = BytesMut::new();
        for n in 0..window {
            let body = [b'x'; 1000];
            let payload = payload(&[&body]);
            let head = AppendHead {
                first_seq: round * window + n,
                count: 1,
                level: AckLevel::Written,
                gap: false,
                payload_crc: payload_checksum(&payload.bytes),
            };
            encode_append(&mut bytes, &head, &payload.bytes);
        }
        raw.send_bytes(&bytes).expect("sent");
        for n in 0..window {
            let at = round * window + n;
            assert_eq!(next(&mut raw), Ok((at, at, false)));
        }
        raw.flush(AckLevel::Written).expect("written");
    }
}

/// The window counts what a burst brings: never are more appends taken and unanswered than it says, however the stream is
/// cut into reads. Each frame is looked at, the watermarks too: they are the answers, and stand in the stream where the daemon
/// gave them.
#[test]
fn a_burst_does_not_go_beyond_the_window() {
    let daemon = Daemon::start();
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    let window = u64::from(welcome.window);
    let all = 8 * window;
    let mut bytes = BytesMut::new();
    for first in 0..all {
        put(&mut bytes, first, AckLevel::Durable, true, 0);
    }
    raw.send_bytes(&bytes).expect("sent");
    let (mut taken, mut durable) = (0, 0);
    let mut seq = 0;
    while seq < all {
        match raw.frame().expect("the daemon goes on") {
            Frame::Watermark(watermark) if watermark.level == AckLevel::Durable => {
                durable = durable.max(watermark.offset)
            }
            Frame::Watermark(_) => {}
            frame => {
                match outcome(frame) {
                    Ok(accepted) => {
                        assert_eq!(accepted, (seq, taken, false));
                        taken += 1;
                    }
                    refused => assert_eq!(refused, Err((seq, ErrorCode::WindowExceeded))),
                }
                seq += 1;
            }
        }
        assert!(taken - durable <= window, "{taken} were taken, {durable} are answered");
    }
    assert!(taken >= window, "{taken} of {all} were taken, and the window is {window}");
    raw.flush(AckLevel::Durable).expect("durable");
    assert_eq!(daemon.status().offsets.expect("offsets").durable, taken);
}
