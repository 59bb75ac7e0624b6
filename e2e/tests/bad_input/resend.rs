//! A resend of what is stored is answered with its first offset and stored once: at once, after a clean end, and after
//! `kill -9`.

use clad_e2e::raw::{Got, hello_reader};
use clad_e2e::{Daemon, Raw};
use clad_proto::frame::{Frame, Welcome};
use clad_proto::{AckLevel, ErrorCode, ProducerId};

/// How the daemon ends between send and resend.
#[derive(Clone, Copy, Debug)]
enum Between {
    Nothing,
    CleanEnd,
    Kill9,
}

fn stored(daemon: &Daemon) -> Vec<Got> {
    let mut reader = Raw::unix(&daemon.socket());
    reader.greet(&hello_reader()).expect("WELCOME");
    reader.read_from(0, AckLevel::Written).expect("a read").0
}

fn come_back(daemon: &mut Daemon, between: Between, id: ProducerId) -> (Raw, Welcome) {
    match between {
        Between::Nothing => {}
        Between::CleanEnd => {
            assert_eq!(daemon.term(), Some(0));
            daemon.restart();
        }
        Between::Kill9 => {
            daemon.kill9();
            daemon.restart();
        }
    }
    Raw::resume(&daemon.socket(), id)
}

fn resend_is_stored_once(between: Between) {
    let mut daemon = Daemon::start();
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    let id = welcome.producer_id;
    // Others' records between its own, so that its offsets are not its sequences.
    let (mut other, _) = Raw::producer(&daemon.socket());
    let mut originals = Vec::new();
    for index in 0..20 {
        if index == 10 {
            // Some of it is known from a footer, the rest from what follows.
            daemon.admin().rotate().expect("rotated");
        }
        other.append_acked(index, AckLevel::Written, &[b"other"]);
        let level = if index % 2 == 0 { AckLevel::Written } else { AckLevel::Durable };
        let bodies = [format!("{index} a"), format!("{index} b")];
        originals.push(raw.append_acked(index * 2, level, &[bodies[0].as_bytes(), bodies[1].as_bytes()]));
    }
    drop((raw, other));
    let before = match between {
        Between::Nothing => stored(&daemon),
        _ => Vec::new(),
    };
    let (mut raw, welcome) = come_back(&mut daemon, between, id);
    let last = welcome.last.expect("it is remembered");
    assert_eq!((last.sequence, last.offset), (39, originals[19].first_offset + 1), "{between:?}");
    assert!(last.level >= AckLevel::Written);
    for (index, original) in (0..).zip(&originals) {
        let accepted = raw.append_acked(index * 2, AckLevel::Durable, &[b"whatever", b"is sent now"]);
        assert_eq!(
            (accepted.first_offset, accepted.count, accepted.duplicate, accepted.epoch),
            (original.first_offset, 2, true, welcome.epoch),
            "{between:?} {index}"
        );
    }
    let new = raw.append_acked(40, AckLevel::Durable, &[b"new"]);
    assert_eq!((new.first_offset, new.duplicate), (60, false));
    let all = stored(&daemon);
    assert_eq!(all.len(), 61, "{between:?}");
    let mine: Vec<_> = all.iter().filter(|got| got.producer == id).map(|got| got.body.clone().expect("text")).collect();
    let expected = (0..20).flat_map(|index| [format!("{index} a"), format!("{index} b")]);
    let expected: Vec<_> = expected.chain(["new".to_owned()]).map(String::into_bytes).collect();
    assert_eq!(mine, expected, "what came first is what is stored");
    assert!(all.starts_with(&before));
}

#[test]
fn at_once() {
    resend_is_stored_once(Between::Nothing);
}

#[test]
fn after_a_clean_end() {
    resend_is_stored_once(Between::CleanEnd);
}

#[test]
fn after_kill_9() {
    resend_is_stored_once(Between::Kill9);
}

/// The operator allows less by now: it is refused for what it is, and its sender gets an error that it may be there.
#[test]
fn what_would_not_be_taken_any_more_may_be_stored() {
    let mut daemon = Daemon::start();
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    let long = vec![b'l'; 3000];
    raw.append_acked(0, AckLevel::Durable, &[&long]);
    drop(raw);
    assert_eq!(daemon.term(), Some(0));
    daemon.restart_with("journal.max_record_bytes", "2KiB");
    let (mut raw, _) = Raw::resume(&daemon.socket(), welcome.producer_id);
    for (sequence, stored) in [(0, true), (1, false)] {
        raw.append(sequence, AckLevel::Durable, &[&long]);
        let Frame::Refused(refused) = raw.answer() else { panic!("it is too long") };
        assert_eq!((refused.error.code, refused.error.retryable), (ErrorCode::RecordTooLarge, false));
        assert_eq!(refused.error.maybe_written, stored, "{sequence}");
    }
}

/// What is older than the window is stored all the same, but its offset is forgotten.
#[test]
fn longer_ago_than_the_window() {
    for between in [Between::Nothing, Between::Kill9] {
        let mut daemon = Daemon::start();
        let (mut raw, welcome) = Raw::producer(&daemon.socket());
        let many = u64::from(welcome.window) + 50;
        // Appends that follow each other in offsets too may be known as one: somebody else's are between these.
        let (mut other, _) = Raw::producer(&daemon.socket());
        for sequence in 0..many {
            raw.append_acked(sequence, AckLevel::Written, &[b"x"]);
            other.append_acked(sequence, AckLevel::Written, &[b"other"]);
        }
        drop((raw, other));
        let (mut raw, _) = come_back(&mut daemon, between, welcome.producer_id);
        raw.append(0, AckLevel::Durable, &[b"x"]);
        let error = raw.refused().error;
        assert_eq!(error.code, ErrorCode::SequenceTooOld, "{between:?}: {error}");
        assert!(!error.retryable && error.maybe_written);
        // All of the last window are remembered.
        for sequence in many - u64::from(welcome.window)..many {
            let accepted = raw.append_acked(sequence, AckLevel::Written, &[b"x"]);
            assert_eq!((accepted.first_offset, accepted.duplicate), (2 * sequence, true), "{between:?}");
        }
    }
}

/// An append that was `received` and not yet `written` may be gone after kill -9: then it is stored now, once.
#[test]
fn received_and_killed() {
    let mut daemon = Daemon::start();
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    for sequence in 0..200 {
        raw.append(sequence, AckLevel::Received, &[format!("{sequence}").as_bytes()]);
    }
    let mut first_offsets = Vec::new();
    for _ in 0..200 {
        first_offsets.push(raw.accepted().first_offset);
    }
    daemon.kill9();
    daemon.restart();
    let (mut raw, again) = Raw::resume(&daemon.socket(), welcome.producer_id);
    let kept = again.expected_sequence();
    for sequence in 0..200 {
        let accepted = raw.append_acked(sequence, AckLevel::Durable, &[format!("{sequence}").as_bytes()]);
        assert_eq!(accepted.duplicate, sequence < kept, "{sequence}, {kept} were kept");
        assert_eq!(accepted.first_offset, first_offsets[sequence as usize], "nobody else wrote");
    }
    let bodies: Vec<_> = stored(&daemon).into_iter().filter_map(|got| got.body).collect();
    let expected: Vec<_> = (0..200).map(|sequence| format!("{sequence}").into_bytes()).collect();
    assert_eq!(bodies, expected);
}

/// A client that missed an epoch judges by where the next one began: a clean start between must not move that.
#[test]
fn where_an_epoch_began_is_the_same_after_a_clean_start() {
    let mut daemon = Daemon::start();
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    for sequence in 0..10 {
        raw.append_acked(sequence, AckLevel::Durable, &[b"before the crash"]);
    }
    let (mut raw, crashed) = come_back(&mut daemon, Between::Kill9, welcome.producer_id);
    assert_eq!((crashed.epoch, crashed.epoch_first_offset), (welcome.epoch + 1, 10));
    for sequence in 10..15 {
        raw.append_acked(sequence, AckLevel::Durable, &[b"in the new epoch"]);
    }
    let (mut raw, clean) = come_back(&mut daemon, Between::CleanEnd, welcome.producer_id);
    assert_eq!((clean.epoch, clean.epoch_first_offset, clean.durable), (crashed.epoch, 10, 15));
    raw.append(15, AckLevel::Durable, &[b"after the clean start"]);
    raw.accepted();
    let watermark = raw.flush(AckLevel::Durable).expect("durable");
    assert_eq!((watermark.epoch, watermark.epoch_first_offset, watermark.offset), (crashed.epoch, 10, 16));
    let status = daemon.status();
    assert_eq!((status.epoch, status.epoch_first_offset), (crashed.epoch, 10));
}
