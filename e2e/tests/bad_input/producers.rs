//! The rules of sequences, epochs and windows.

use bytes::BytesMut;
use clad_e2e::raw::{hello_as, payload};
use clad_e2e::{Daemon, Raw, Setup, open_to_all, stranger};
use clad_proto::frame::{AppendHead, Frame, encode_append};
use clad_proto::{AckLevel, ErrorCode, ProducerId};

#[test]
fn a_jump_ahead_needs_the_gap_mark() {
    let daemon = Daemon::start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Durable, &[b"0"]);
    raw.append(5, AckLevel::Durable, &[b"5"]);
    let error = raw.refused().error;
    assert_eq!((error.code, error.expected_sequence), (ErrorCode::SequenceGap, Some(1)), "{error}");
    assert!(error.retryable && !error.maybe_written);
    raw.append_after_gap(5, AckLevel::Durable, &[b"5"]);
    assert_eq!(raw.accepted().first_offset, 1, "offsets stay dense");
    // What was jumped over is given up for ever.
    raw.append(3, AckLevel::Durable, &[b"3"]);
    let error = raw.refused().error;
    assert!(matches!(error.code, ErrorCode::SequenceOverlap | ErrorCode::SequenceTooOld), "{error}");
    raw.append_acked(6, AckLevel::Durable, &[b"6"]);
}

#[test]
fn an_append_that_is_stored_in_part() {
    let daemon = Daemon::start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Durable, &[b"0", b"1"]);
    // Appends that follow each other in offsets too may be known as one: somebody else's is between these.
    let (mut other, _) = Raw::producer(&daemon.socket());
    other.append_acked(0, AckLevel::Durable, &[b"other"]);
    raw.append_acked(2, AckLevel::Durable, &[b"2", b"3"]);
    for (first, bodies) in [(3, vec![&b"3"[..], b"4"]), (1, vec![b"1", b"2"])] {
        raw.append(first, AckLevel::Durable, &bodies);
        let error = raw.refused().error;
        assert_eq!(error.code, ErrorCode::SequenceOverlap, "{error}");
        assert!(!error.retryable && error.maybe_written, "{error}");
    }
    raw.append_acked(4, AckLevel::Durable, &[b"4"]);
    assert_eq!(daemon.status().offsets.expect("offsets").received, 6);
}

#[test]
fn a_lower_epoch_is_fenced_also_after_a_crash() {
    let mut daemon = Daemon::start();
    let id = ProducerId::from_bytes([3; 16]);
    let greet = |daemon: &Daemon, epoch| {
        let mut raw = Raw::unix(&daemon.socket());
        let answer = raw.greet(&hello_as(id, epoch, b""));
        (raw, answer)
    };
    let (mut old, welcome) = greet(&daemon, 1);
    welcome.expect("WELCOME");
    old.append_acked(0, AckLevel::Durable, &[b"old"]);
    let (mut new, welcome) = greet(&daemon, 2);
    assert_eq!(welcome.expect("WELCOME").last.map(|last| last.sequence), Some(0), "sequences go on");
    new.append_acked(1, AckLevel::Durable, &[b"new"]);
    // The one that is still open hears of it at its next word,
    old.append(1, AckLevel::Durable, &[b"late"]);
    let error = old.refused().error;
    assert_eq!((error.code, error.retryable), (ErrorCode::ProducerFenced, false), "{error}");
    // one that comes again at once,
    let fenced = |daemon: &Daemon| {
        let error = greet(daemon, 1).1.expect_err("fenced");
        assert_eq!((error.code, error.retryable), (ErrorCode::ProducerFenced, false), "{error}");
    };
    fenced(&daemon);
    // and a crash changes nothing.
    daemon.kill9();
    daemon.restart();
    fenced(&daemon);
    let (mut new, welcome) = greet(&daemon, 2);
    assert_eq!(welcome.expect("WELCOME").last.map(|last| last.sequence), Some(1));
    new.append_acked(2, AckLevel::Durable, &[b"newer"]);
}

/// HELLO alone fences: the newer instance need not have sent anything.
#[test]
fn an_epoch_is_in_force_from_hello_on() {
    let daemon = Daemon::start();
    let id = ProducerId::from_bytes([4; 16]);
    let (mut old, _) = Raw::resume(&daemon.socket(), id);
    old.append_acked(0, AckLevel::Durable, &[b"old"]);
    let mut new = Raw::unix(&daemon.socket());
    new.greet(&hello_as(id, 7, b"")).expect("WELCOME");
    old.append(1, AckLevel::Durable, &[b"late"]);
    assert_eq!(old.refused().error.code, ErrorCode::ProducerFenced);
}

#[test]
fn a_goodbye_forgets_the_producer() {
    let daemon = Daemon::start();
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    let id = welcome.producer_id;
    raw.append_acked(0, AckLevel::Durable, &[b"0"]);
    raw.bye();
    daemon.wait_until("forgotten", |status| status.producers == 0);
    let (mut raw, welcome) = Raw::resume(&daemon.socket(), id);
    assert_eq!(welcome.last, None, "nothing is known any more");
    raw.append_acked(0, AckLevel::Durable, &[b"0 again"]);
    assert_eq!(daemon.status().offsets.expect("offsets").received, 2);
    // Without BYE it is remembered.
    drop(raw);
    let (_, welcome) = Raw::resume(&daemon.socket(), id);
    assert_eq!(welcome.last.map(|last| last.sequence), Some(0));
}

/// WELCOME states the window; a burst beyond it is refused from there on, and loses nothing when it is sent again.
#[test]
fn more_than_the_window() {
    let daemon = Daemon::start();
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    // Many small appends in one piece, so that the daemon meets more than the window at once.
    let burst = u64::from(welcome.window) * 64;
    let good = payload(&[b"w"]);
    let mut next = 0;
    let (mut refused, mut rounds) = (0, 0);
    while next < burst {
        let mut bytes = BytesMut::new();
        for first_seq in next..burst {
            let head =
                AppendHead { first_seq, count: 1, level: AckLevel::Durable, gap: false, payload_crc: good.checksum() };
            encode_append(&mut bytes, &head, &good.bytes);
        }
        let answers = burst - next;
        std::thread::scope(|scope| {
            let (mut sender, bytes) = (raw.sender(), &bytes);
            scope.spawn(move || std::io::Write::write_all(&mut sender, bytes).expect("sent"));
            for _ in 0..answers {
                match raw.answer() {
                    Frame::Accepted(accepted) => {
                        assert_eq!((accepted.first_seq, accepted.duplicate), (next, false));
                        next += 1;
                    }
                    Frame::Refused(r) if r.error.code == ErrorCode::WindowExceeded => {
                        assert!(r.error.retryable && !r.error.maybe_written, "{:?}", r.error);
                        refused += 1;
                    }
                    Frame::Refused(r) => {
                        // What was already on its way behind a refused one.
                        assert_eq!((r.error.code, r.error.expected_sequence), (ErrorCode::SequenceGap, Some(next)));
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
        rounds += 1;
        assert!(rounds < 10_000, "no progress at {next}");
    }
    assert!(refused > 0, "{burst} at once never passed the window of {}", welcome.window);
    raw.wait_watermark(AckLevel::Durable, welcome.epoch, burst - 1);
}

#[test]
fn more_producers_than_the_log_remembers() {
    // Two of four are this user's: the others are left for others.
    let daemon = open_to_all(Setup::new().set("limits.max_producers", "4").start());
    let mut there: Vec<Raw> = (0..2)
        .map(|_| {
            let mut raw = stranger(&daemon);
            raw.append_acked(0, AckLevel::Durable, &[b"x"]);
            raw
        })
        .collect();
    let mut raw = stranger(&daemon);
    raw.append(0, AckLevel::Durable, &[b"one too many"]);
    let error = raw.refused().error;
    assert_eq!((error.code, error.retryable), (ErrorCode::TooManyProducers, true), "{error}");
    there.pop().expect("one").bye();
    daemon.wait_until("forgotten", |status| status.producers == 1);
    stranger(&daemon).append_acked(0, AckLevel::Durable, &[b"in its place"]);
}
