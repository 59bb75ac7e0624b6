//! The rules of the session, one by one, against a daemon played by hand.

use super::{DELIVERY_TIMEOUT, TestSession, append, appends, flushes, model::Daemon, session};
use crate::{AppendError, session::Out, session::resume::SharedProducer};
use clad_proto::{
    AckLevel, ErrorCode, ErrorInfo, LogId,
    frame::{Accepted, EpochStart, LastStored, Refused, Watermark, Welcome},
};
use std::time::Duration;
use tokio::time::Instant;

pub(super) const DURABLE: Option<AckLevel> = Some(AckLevel::Durable);

fn welcome() -> Welcome {
    Daemon::new(16).welcome()
}

fn known(last: u64, epoch: u32, epoch_first: u64, end: u64) -> Welcome {
    let last = Some(LastStored { sequence: last, offset: end - 1, level: AckLevel::Received });
    Welcome { last, epoch, epoch_first_offset: epoch_first, received: end, written: end, durable: 0, ..welcome() }
}

/// A session with `n` durable appends of one record, connected.
pub(super) fn with(n: u64, now: Instant) -> TestSession {
    let mut session = session();
    (0..n).for_each(|number| session.submit(append(number, 1, DURABLE, now), number));
    session.connected(&welcome()).expect("nobody else");
    session
}

/// Sequences and gap marks of everything that is sent now.
pub(super) fn sent(session: &mut TestSession, now: Instant) -> Vec<(u64, bool)> {
    let outputs = std::iter::from_fn(|| session.next_out(now));
    outputs
        .filter_map(|out| if let Out::Append { head, .. } = out { Some((head.first_seq, head.gap)) } else { None })
        .collect()
}

pub(super) fn accepted(session: &mut TestSession, seq: u64, offset: u64, epoch: u32, now: Instant) {
    let answer = Accepted { first_seq: seq, first_offset: offset, count: 1, epoch, duplicate: false };
    session.accepted(&answer, now).expect("a good answer");
}

fn refused(session: &mut TestSession, seq: u64, error: ErrorInfo, now: Instant) {
    session.refused(Refused { first_seq: seq, count: 1, error }, now);
}

pub(super) fn deliver_watermark(session: &mut TestSession, level: AckLevel, offset: u64, now: Instant) {
    let watermark = Watermark { request_id: 0, epoch: 1, epoch_first_offset: 0, level, offset };
    session.watermark(&watermark, now);
}

fn gap(expected: u64) -> ErrorInfo {
    ErrorInfo::new(ErrorCode::SequenceGap, "").expecting(expected)
}

fn later(now: Instant) -> Instant {
    now + Duration::from_secs(1)
}

#[test]
fn a_sequence_gap_is_skipped_by_the_oldest_once_everything_is_answered() {
    let now = Instant::now();
    let mut session = with(4, now);
    assert_eq!(sent(&mut session, now), [(0, false), (1, false), (2, false), (3, false)]);
    accepted(&mut session, 0, 10, 1, now);
    refused(&mut session, 1, ErrorInfo::new(ErrorCode::BadRecord, "no"), now);
    assert_eq!(sent(&mut session, now), [], "two are still in flight");
    refused(&mut session, 2, gap(1), now);
    assert_eq!(sent(&mut session, now), [], "one is still in flight");
    refused(&mut session, 3, gap(1), now);
    assert_eq!(sent(&mut session, later(now)), [], "the oldest has no outcome yet: 2 may not jump over it");
    deliver_watermark(&mut session, AckLevel::Durable, 11, now);
    assert_eq!(sent(&mut session, later(now)), [(2, true), (3, false)]);
    let ended = appends(&mut session);
    assert_eq!(
        ended.iter().map(|(number, result)| (*number, result.is_ok())).collect::<Vec<_>>(),
        [(1, false), (0, true)]
    );
    assert!(!ended[0].1.as_ref().is_err_and(AppendError::maybe_written));
}

#[test]
fn what_is_refused_for_now_goes_again_after_a_wait_without_a_mark() {
    let now = Instant::now();
    let mut session = with(2, now);
    sent(&mut session, now);
    refused(&mut session, 0, ErrorInfo::new(ErrorCode::Busy, "").retry_after_ms(500), now);
    refused(&mut session, 1, gap(0), now);
    assert_eq!(sent(&mut session, now + Duration::from_millis(499)), []);
    assert_eq!(session.next_timer(), Some(now + Duration::from_millis(500)));
    assert_eq!(sent(&mut session, now + Duration::from_millis(500)), [(0, false), (1, false)]);
}

/// Those behind a refused one are abandoned for its reason.
#[test]
fn who_came_behind_a_refused_one_has_its_reason() {
    let now = Instant::now();
    let mut session = with(3, now);
    sent(&mut session, now);
    refused(&mut session, 0, ErrorInfo::new(ErrorCode::NoSpace, "full"), now);
    refused(&mut session, 1, gap(0), now);
    refused(&mut session, 2, gap(0), now);
    session.tick(now + Duration::from_secs(3600));
    let ended = appends(&mut session);
    assert_eq!(ended.len(), 3);
    for (number, result) in ended {
        let Err(AppendError::Refused { error, maybe_written: false }) = &result else { panic!("{number}: {result:?}") };
        assert_eq!(error.code, ErrorCode::NoSpace, "{number}");
    }
}

#[test]
fn what_was_fired_and_forgotten_may_leave_a_sequence_gap() {
    let now = Instant::now();
    let mut session = session();
    session.submit(append(0, 1, Some(AckLevel::None), now), 0);
    session.submit(append(1, 1, Some(AckLevel::Received), now), 1);
    session.connected(&welcome()).expect("nobody else");
    for (number, level) in [(2, AckLevel::None), (3, AckLevel::None), (4, AckLevel::Received)] {
        session.submit(append(number, 1, Some(level), now), number);
    }
    let first = sent(&mut session, now);
    assert_eq!(
        first,
        [(0, false), (1, true), (2, false), (3, false), (4, false)],
        "1 is the oldest: 0 has its outcome"
    );
    let (number, receipt) = appends(&mut session).remove(0);
    assert_eq!((number, receipt.expect("handed over").first_offset), (0, None));
    accepted(&mut session, 1, 0, 1, now);
    refused(&mut session, 4, gap(2), now); // the daemon had no room for 2, and no waiter to notify
    assert_eq!(sent(&mut session, now), [(4, true)]);
    accepted(&mut session, 4, 1, 1, now);
    for number in 5..8 {
        session.submit(append(number, 1, Some(AckLevel::None), now), number);
    }
    assert_eq!(sent(&mut session, now), [(5, false), (6, true), (7, true)], "one that is dropped drops no other");
}

#[test]
fn levels_do_not_wait_for_each_other() {
    let now = Instant::now();
    let mut session = session();
    for (number, level) in [AckLevel::Durable, AckLevel::Received, AckLevel::Written].into_iter().enumerate() {
        session.submit(append(number as u64, 1, Some(level), now), number as u64);
    }
    session.connected(&welcome()).expect("nobody else");
    sent(&mut session, now);
    (0..3).for_each(|seq| accepted(&mut session, seq, 5 + seq, 1, now));
    let numbers =
        |session: &mut TestSession| appends(session).into_iter().map(|(number, _)| number).collect::<Vec<_>>();
    assert_eq!(numbers(&mut session), [1]);
    deliver_watermark(&mut session, AckLevel::Written, 7, now);
    assert_eq!(numbers(&mut session), [] as [u64; 0], "the third is at offset 7");
    deliver_watermark(&mut session, AckLevel::Written, 8, now);
    assert_eq!(numbers(&mut session), [2]);
    deliver_watermark(&mut session, AckLevel::Durable, 8, now);
    assert_eq!(numbers(&mut session), [0]);
    assert!(session.is_idle());
}

#[test]
fn what_no_daemon_takes_is_not_sent() {
    let now = Instant::now();
    let mut session = session();
    session.submit(append(0, 1, DURABLE, now), 0);
    session.submit(append(1, 1, Some(AckLevel::Posted), now), 1);
    session.submit(append(2, 1, DURABLE, now), 2);
    session.connected(&Welcome { max_append_bytes: 7, ..welcome() }).expect("nobody else");
    assert_eq!(sent(&mut session, now), []);
    let ended = appends(&mut session);
    assert!(matches!(ended[0].1, Err(AppendError::TooLarge { len: 8, max: 7 })));
    assert_eq!(ended[1].1.as_ref().map_err(AppendError::code), Err(Some(ErrorCode::LevelUnreachable)));
    assert!(ended.iter().all(|(_, result)| !result.as_ref().is_err_and(AppendError::maybe_written)));
}

#[test]
fn the_window_counts_from_the_oldest_without_an_outcome() {
    let now = Instant::now();
    let mut session = session();
    (0..5).for_each(|number| session.submit(append(number, 1, DURABLE, now), number));
    session.connected(&Welcome { window: 2, ..welcome() }).expect("nobody else");
    assert_eq!(sent(&mut session, now).len(), 2);
    accepted(&mut session, 0, 0, 1, now);
    assert_eq!(sent(&mut session, now), [], "accepted is not an outcome at this level");
    deliver_watermark(&mut session, AckLevel::Durable, 1, now);
    assert_eq!(sent(&mut session, now), [(2, false)]);
}

#[test]
fn coming_back_into_the_same_epoch_sends_what_is_not_covered() {
    let now = Instant::now();
    let mut session = with(4, now);
    sent(&mut session, now);
    (0..2).for_each(|seq| accepted(&mut session, seq, seq, 1, now));
    session.disconnected(now, "gone");
    session.connected(&Welcome { durable: 1, ..known(2, 1, 0, 3) }).expect("nobody else");
    assert_eq!(appends(&mut session).len(), 1, "the first is durable by now");
    assert_eq!(sent(&mut session, now), [(1, false), (2, false), (3, false)]);
}

#[test]
fn who_missed_an_epoch_sends_everything_again() {
    let now = Instant::now();
    let mut session = with(2, now);
    sent(&mut session, now);
    (0..2).for_each(|seq| accepted(&mut session, seq, 10 + seq, 1, now));
    session.disconnected(now, "gone");
    // Epoch 2 was cut at 5, so both are gone; others were given 10 and 11 since, and are durable.
    let welcome =
        Welcome { last: None, epoch: 3, epoch_first_offset: 20, received: 30, written: 30, durable: 30, ..welcome() };
    session.connected(&welcome).expect("nobody else");
    assert!(appends(&mut session).iter().all(|(_, result)| result.is_err()), "no receipt for the records of others");
}

/// An epoch that it missed abandoned everything that the log had of it: nothing of it can be stored, so it is sent
/// again.
#[test]
fn a_producer_that_missed_an_emptied_epoch_is_not_forgotten() {
    let resent = |first_offset| {
        let now = Instant::now();
        let mut session = with(2, now);
        sent(&mut session, now);
        (0..2).for_each(|seq| accepted(&mut session, seq, 10 + seq, 1, now));
        session.disconnected(now, "gone");
        let earlier =
            [(1, 0), (2, first_offset)].map(|(epoch, first_offset)| EpochStart { epoch, first_offset }).to_vec();
        let welcome = Welcome { epoch: 3, epoch_first_offset: 20, earlier, ..welcome() };
        session.connected(&Welcome { received: 30, written: 30, durable: 30, ..welcome }).expect("nobody else");
        (appends(&mut session).len(), sent(&mut session, now))
    };
    assert_eq!(resent(10), (0, vec![(0, false), (1, false)]));
    assert_eq!(resent(11), (2, vec![]), "the first may be stored at 10, and the daemon knows of nothing");
}

#[test]
fn a_new_epoch_on_the_connection_keeps_what_is_below_its_first_only_if_it_follows_directly() {
    for (epoch, again) in [(2, vec![(1, false)]), (3, vec![(0, false), (1, false)])] {
        let now = Instant::now();
        let mut session = with(2, now);
        sent(&mut session, now);
        (0..2).for_each(|seq| accepted(&mut session, seq, 10 + seq, 1, now));
        let watermark =
            Watermark { request_id: 0, epoch, epoch_first_offset: 11, level: AckLevel::Durable, offset: 11 };
        session.watermark(&watermark, now);
        assert_eq!(appends(&mut session).len(), 2 - again.len());
        let outputs: Vec<_> = sent(&mut session, now).into_iter().map(|(seq, _)| seq).collect();
        assert_eq!(outputs, again.into_iter().map(|(seq, _)| seq).collect::<Vec<_>>());
    }
}

#[test]
fn who_was_forgotten_sends_only_what_was_never_sent() {
    let now = Instant::now();
    let mut session = with(3, now);
    sent(&mut session, now);
    accepted(&mut session, 0, 0, 1, now);
    deliver_watermark(&mut session, AckLevel::Durable, 1, now);
    session.submit(append(3, 1, DURABLE, now), 3);
    session.disconnected(now, "gone");
    session.connected(&Welcome { received: 9, written: 9, durable: 9, ..welcome() }).expect("nobody else");
    let ended = appends(&mut session);
    assert!(ended[0].1.is_ok());
    assert!(ended[1..].iter().all(|(_, result)| matches!(result, Err(AppendError::Forgotten))) && ended.len() == 3);
    assert_eq!(sent(&mut session, now), [(3, true)]);
}

#[test]
fn what_a_crash_took_is_resent_and_a_flush_reports_lost_receipts() {
    let now = Instant::now();
    let mut session = session();
    session.submit(append(0, 1, Some(AckLevel::Received), now), 0);
    session.submit(append(1, 1, DURABLE, now), 1);
    session.connected(&welcome()).expect("nobody else");
    sent(&mut session, now);
    accepted(&mut session, 0, 4, 1, now);
    accepted(&mut session, 1, 5, 1, now);
    assert_eq!(appends(&mut session).len(), 1);
    session.disconnected(now, "killed");
    session.connected(&Welcome { epoch: 2, epoch_first_offset: 4, received: 4, ..welcome() }).expect("nobody else");
    assert_eq!(sent(&mut session, now), [(1, true)]);
    session.flush(DURABLE, 0, now);
    let answer = Accepted { first_seq: 1, first_offset: 4, count: 1, epoch: 2, duplicate: false };
    session.accepted(&answer, now).expect("a good answer");
    let durable = Watermark { request_id: 0, epoch: 2, epoch_first_offset: 4, level: AckLevel::Durable, offset: 5 };
    session.watermark(&durable, now);
    let Some(Out::Flush { id, .. }) = session.next_out(now) else { panic!("received is below durable: it has to ask") };
    session.watermark(&Watermark { request_id: id, ..durable }, now);
    assert!(matches!(flushes(&mut session)[..], [(0, Err(AppendError::Lost))]));
}

#[test]
fn another_log_gets_what_the_one_before_never_saw() {
    let now = Instant::now();
    let mut session = with(2, now);
    sent(&mut session, now);
    session.submit(append(2, 1, DURABLE, now), 2);
    session.disconnected(now, "gone");
    session.connected(&Welcome { log_id: LogId::from_bytes([2; 16]), ..welcome() }).expect("nobody else");
    let ended = appends(&mut session);
    assert!(ended.iter().all(|(_, result)| matches!(result, Err(AppendError::LogChanged { .. }))) && ended.len() == 2);
    assert_eq!(sent(&mut session, now), [(0, false)], "that log has nothing of ours: its sequences start there");
}

/// An append that was acknowledged in the log before, and that no flush has brought any further, is in no log that
/// could be asked.
#[test]
fn a_flush_reports_what_was_left_behind_in_another_log() {
    let now = Instant::now();
    for (reached, asked, lost) in [
        (AckLevel::Written, AckLevel::Durable, true),
        (AckLevel::Written, AckLevel::Written, false),
        (AckLevel::Durable, AckLevel::Durable, false),
    ] {
        let mut session = session();
        session.submit(append(0, 1, Some(reached), now), 0);
        session.connected(&welcome()).expect("nobody else");
        sent(&mut session, now);
        accepted(&mut session, 0, 4, 1, now);
        deliver_watermark(&mut session, reached, 5, now);
        assert!(appends(&mut session)[0].1.is_ok());
        session.disconnected(now, "gone");
        session.flush(None, 0, now); // the highest that there is, when there is one
        session.connected(&Welcome { log_id: LogId::from_bytes([2; 16]), ..welcome() }).expect("nobody else");
        session.flush(Some(asked), 1, now);
        assert_eq!(session.next_out(now), None, "the new log can say nothing of it");
        let flushed = flushes(&mut session);
        let errors: Vec<_> = flushed.iter().map(|(_, result)| matches!(result, Err(AppendError::Lost))).collect();
        assert_eq!(errors, [reached < AckLevel::Durable, false], "{flushed:?}: it is reported once");
        if lost {
            // A flush that asks for less is answered, and does not consume the news.
            session.left_behind = Some(reached);
            session.flush(Some(reached), 2, now);
            session.flush(Some(asked), 3, now);
            assert_eq!(session.next_out(now), None);
            assert!(matches!(flushes(&mut session)[..], [(2, Ok(())), (3, Err(AppendError::Lost))]));
        }
    }
}

/// The daemon takes less than it did when the append was sent, and may have it.
#[test]
fn what_is_too_long_by_now_may_be_there_if_it_was_sent() {
    let now = Instant::now();
    let mut session = with(1, now);
    sent(&mut session, now);
    session.submit(append(1, 1, DURABLE, now), 1);
    session.disconnected(now, "gone");
    session.connected(&Welcome { max_append_bytes: 0, ..welcome() }).expect("nobody else");
    assert_eq!(session.next_out(now), None);
    let ended: Vec<_> = appends(&mut session).into_iter().map(|(_, result)| result.expect_err("too long")).collect();
    let codes: Vec<_> = ended.iter().map(|error| (error.code(), error.maybe_written(), error.is_retryable())).collect();
    let code = Some(ErrorCode::AppendTooLarge);
    assert_eq!(codes, [(code, true, false), (code, false, false)], "{ended:?}");
}

/// The flush fails: that says nothing of the appends submitted before.
#[test]
fn a_flush_that_fails_says_of_nothing_that_it_is_not_written() {
    let now = Instant::now();
    let flushed = |level: AckLevel| {
        let mut session = session();
        session.submit(append(0, 1, Some(AckLevel::Received), now), 0);
        session.connected(&Welcome { highest_ack: AckLevel::Written, ..welcome() }).expect("nobody else");
        sent(&mut session, now);
        accepted(&mut session, 0, 4, 1, now);
        session.flush(Some(level), 0, now);
        session
    };
    let mut failed = flushed(AckLevel::Written);
    let Some(Out::Flush { id, .. }) = failed.next_out(now) else { panic!("it asks") };
    let lost = ErrorInfo::new(ErrorCode::JournalFailed, "some of it may be lost");
    failed.flush_refused(id, ErrorInfo { retryable: false, maybe_written: true, ..lost }, now);
    let mut abandoned = flushed(AckLevel::Written);
    abandoned.disconnected(now, "gone");
    abandoned.tick(now + DELIVERY_TIMEOUT);
    let mut ended = flushed(AckLevel::Written);
    ended.fail_all(&AppendError::Closed { maybe_written: false });
    let mut unreachable = flushed(AckLevel::Durable);
    assert_eq!(unreachable.next_out(now), None);
    for mut session in [failed, abandoned, ended, unreachable] {
        let flushed = flushes(&mut session);
        assert!(matches!(&flushed[..], [(0, Err(error))] if error.maybe_written()), "{flushed:?}");
    }
}

#[test]
fn an_id_resumes_where_the_log_has_it_and_is_not_shared() {
    let now = Instant::now();
    let mut session = session();
    session.submit(append(0, 1, DURABLE, now), 0);
    session.connected(&known(41, 1, 0, 100)).expect("nothing was sent yet");
    assert_eq!(sent(&mut session, now), [(42, false)]);
    session.disconnected(now, "gone");
    assert_eq!(session.connected(&known(43, 1, 0, 102)), Err(SharedProducer(43)));
}

#[test]
fn a_flush_asks_until_the_answer_covers_what_is_known() {
    let now = Instant::now();
    let mut session = session();
    session.submit(append(0, 1, Some(AckLevel::Received), now), 0);
    session.connected(&welcome()).expect("nobody else");
    session.flush(Some(AckLevel::Written), 0, now);
    session.flush(Some(AckLevel::Received), 1, now);
    assert_eq!(sent(&mut session, now).len(), 1);
    assert_eq!(session.next_out(now), None, "the append before has no outcome");
    accepted(&mut session, 0, 6, 1, now);
    let Some(Out::Flush { id, level: AckLevel::Written }) = session.next_out(now) else { panic!("it asks") };
    assert_eq!(session.next_out(now), None);
    assert!(matches!(flushes(&mut session)[..], [(1, Ok(()))]), "received needs no asking");
    let answer = Watermark { request_id: id, epoch: 1, epoch_first_offset: 0, level: AckLevel::Written, offset: 6 };
    session.watermark(&answer, now);
    assert_eq!(flushes(&mut session).len(), 0, "6 is not below 6");
    let Some(Out::Flush { id, .. }) = session.next_out(later(now)) else { panic!("it asks again") };
    session.watermark(&Watermark { request_id: id, offset: 7, ..answer }, now);
    assert!(matches!(flushes(&mut session)[..], [(0, Ok(()))]));
    session.flush(Some(AckLevel::Written), 2, now);
    assert_eq!(session.next_out(now), None, "nothing below written came since");
    assert!(matches!(flushes(&mut session)[..], [(2, Ok(()))]));
}

#[test]
fn waiting_ends_for_each_append_by_itself() {
    let now = Instant::now();
    let mut session = with(1, now);
    sent(&mut session, now);
    session.disconnected(now, "gone");
    let second = now + DELIVERY_TIMEOUT / 2;
    session.submit(append(1, 1, DURABLE, second), 1);
    assert_eq!(session.next_timer(), Some(now + DELIVERY_TIMEOUT));
    session.tick(now + DELIVERY_TIMEOUT);
    let ended = appends(&mut session);
    assert!(matches!(&ended[..], [(0, Err(AppendError::DeliveryTimeout { maybe_written: true, .. }))]), "{ended:?}");
    assert_eq!(session.next_timer(), Some(second + DELIVERY_TIMEOUT));
    session.connected(&welcome()).expect("nobody else");
    assert_eq!(sent(&mut session, second), [(1, true)], "over the gap that the first left");
}

/// Whatever was the trouble before: a report of why an append waits, or waited too long, names the last one.
#[test]
fn of_trouble_the_newest_reason_is_reported() {
    let now = Instant::now();
    let mut session = with(1, now);
    sent(&mut session, now);
    let no_space = || ErrorInfo::new(ErrorCode::NoSpace, "no room").retry_after_ms(1000);
    let trouble = |session: &TestSession| session.trouble().expect("nothing goes forward").clone();
    session.disconnected(now, "nobody listens");
    assert_eq!(trouble(&session), (now, "nobody listens".to_owned()));
    session.connected(&welcome()).expect("nobody else");
    let (since, why) = trouble(&session);
    assert!(since == now && why.contains("there again"), "{why}");
    for (wait, text) in [(1, "no room"), (3, "a failed disk"), (5, "no room")] {
        let at = now + Duration::from_secs(wait);
        assert_eq!(sent(&mut session, at), [(0, false)]);
        refused(&mut session, 0, ErrorInfo { text: text.to_owned(), ..no_space() }, at);
        let (since, why) = trouble(&session);
        assert!(since == now && why.contains(text), "{why} instead of {text}");
    }
    // The first has its refusal, the second was not sent.
    let later = now + Duration::from_secs(5);
    session.submit(append(1, 1, DURABLE, later), 1);
    session.tick(later + DELIVERY_TIMEOUT);
    let ended: Vec<_> = appends(&mut session).into_iter().map(|(_, result)| result.expect_err("given up")).collect();
    assert!(matches!(&ended[0], AppendError::Refused { error, .. } if error.text == "no room"), "{ended:?}");
    let reason = |error: &AppendError| matches!(error, AppendError::DeliveryTimeout { reason, .. } if reason.contains("no room"));
    assert!(reason(&ended[1]), "{ended:?}");
}

#[test]
fn a_wait_that_is_over_is_no_timer_while_there_is_nobody_to_send_to() {
    let now = Instant::now();
    let mut session = with(1, now);
    sent(&mut session, now);
    refused(&mut session, 0, ErrorInfo::new(ErrorCode::Busy, ""), now);
    assert!(session.next_timer() < Some(later(now)));
    session.disconnected(now, "gone");
    assert_eq!(session.next_timer(), Some(now + DELIVERY_TIMEOUT));
}

/// The disk hangs: the oldest waits for it on a connection that lives, and what comes behind it is not taken.
#[test]
fn what_expires_behind_an_unanswered_append_is_dropped() {
    let now = Instant::now();
    let mut session = with(2, now);
    sent(&mut session, now);
    accepted(&mut session, 0, 0, 1, now);
    refused(&mut session, 1, ErrorInfo::new(ErrorCode::NoSpace, ""), now);
    (2..200).for_each(|number| session.submit(append(number, 1, DURABLE, now), number));
    session.tick(now + DELIVERY_TIMEOUT);
    let ended = appends(&mut session);
    assert_eq!(ended.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (1..200).collect::<Vec<_>>());
    assert_eq!(session.pending(), 2, "the oldest, and what the daemon may have heard of");
    session.submit(append(200, 1, DURABLE, now), 200);
    assert_eq!(sent(&mut session, now + DELIVERY_TIMEOUT), [], "it may not jump over the oldest");
    deliver_watermark(&mut session, AckLevel::Durable, 1, now);
    assert_eq!(sent(&mut session, now + DELIVERY_TIMEOUT), [(200, true)]);
    accepted(&mut session, 200, 1, 1, now);
    deliver_watermark(&mut session, AckLevel::Durable, 2, now);
    assert!(matches!(appends(&mut session).as_slice(), [(0, Ok(_)), (200, Ok(_))]));
    assert!(session.is_idle());
}

#[test]
fn a_daemon_that_never_takes_it_is_the_reason_given() {
    let now = Instant::now();
    let mut session = with(1, now);
    sent(&mut session, now);
    refused(&mut session, 0, ErrorInfo::new(ErrorCode::NoSpace, "full"), now);
    session.tick(now + DELIVERY_TIMEOUT - Duration::from_millis(1));
    assert_eq!(appends(&mut session).len(), 0);
    session.tick(now + DELIVERY_TIMEOUT);
    let ended = appends(&mut session);
    let [(0, Err(error))] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!((error.code(), error.is_retryable(), error.maybe_written()), (Some(ErrorCode::NoSpace), true, false));
}

/// End of a connection for the sake of an append that is not named.
fn too_large() -> ErrorInfo {
    ErrorInfo::new(ErrorCode::AppendTooLarge, "")
}

#[test]
fn of_several_that_may_have_ended_a_connection_each_is_the_only_one_in_flight() {
    let now = Instant::now();
    let mut session = with(4, now);
    assert_eq!(sent(&mut session, now).len(), 4);
    accepted(&mut session, 0, 0, 1, now);
    session.ended_by_append(&too_large());
    session.disconnected(now, "");
    assert!(appends(&mut session).is_empty(), "nobody is blamed");
    session.submit(append(4, 1, DURABLE, now), 4);
    session.connected(&known(0, 1, 0, 1)).expect("ours");
    assert_eq!(sent(&mut session, now), [(0, false)], "one that has its place is asked for alone, too");
    accepted(&mut session, 0, 0, 1, now);
    assert_eq!(sent(&mut session, now), [(1, false)]);
    accepted(&mut session, 1, 1, 1, now);
    assert_eq!(sent(&mut session, now), [(2, false)]);
    session.ended_by_append(&too_large());
    session.disconnected(now, "");
    match appends(&mut session).as_slice() {
        [(2, Err(error @ AppendError::Refused { .. }))] => {
            assert_eq!(error.code(), Some(ErrorCode::AppendTooLarge));
            assert!(error.maybe_written(), "it was on its way when the first connection ended");
        }
        other => panic!("{other:?}"),
    }
    session.connected(&known(1, 1, 0, 2)).expect("ours");
    assert_eq!(sent(&mut session, now), [(0, false)]);
    accepted(&mut session, 0, 0, 1, now);
    assert_eq!(sent(&mut session, now), [(1, false)]);
    accepted(&mut session, 1, 1, 1, now);
    deliver_watermark(&mut session, AckLevel::Durable, 2, now);
    assert_eq!(sent(&mut session, now), [(3, true)], "the last that was in flight beside it");
    session.submit(append(5, 1, DURABLE, now), 5);
    accepted(&mut session, 3, 2, 1, now);
    assert_eq!(sent(&mut session, now), [(4, false), (5, false)], "what came later was no suspect");
}

#[test]
fn the_only_append_in_flight_is_the_culprit_and_certainly_not_written() {
    let now = Instant::now();
    let mut session = with(1, now);
    assert_eq!(sent(&mut session, now), [(0, false)]);
    session.submit(append(1, 1, DURABLE, now), 1);
    session.ended_by_append(&too_large());
    session.disconnected(now, "");
    assert!(matches!(appends(&mut session).as_slice(), [(0, Err(error))] if !error.maybe_written()));
    session.connected(&welcome()).expect("ours");
    assert_eq!(sent(&mut session, now), [(1, true)]);
}

#[test]
fn one_that_nobody_answers_may_be_it_and_nobody_else_is_blamed() {
    let now = Instant::now();
    let mut session = session();
    session.submit(append(0, 1, Some(AckLevel::None), now), 0);
    session.submit(append(1, 1, DURABLE, now), 1);
    session.connected(&welcome()).expect("nobody else");
    assert_eq!(sent(&mut session, now).len(), 2);
    session.ended_by_append(&too_large());
    session.disconnected(now, "");
    assert!(matches!(appends(&mut session).as_slice(), [(0, Ok(_))]));
    session.connected(&welcome()).expect("ours");
    assert_eq!(sent(&mut session, now), [(1, true)]);
    session.ended_by_append(&too_large());
    assert!(matches!(appends(&mut session).as_slice(), [(1, Err(_))]), "this time it is alone");
}

/// A received append may be gone with an epoch that nothing reports: no flush says that it got any further.
#[test]
fn a_producer_forgotten_over_a_crash_learns_it_by_the_next_flush() {
    let now = Instant::now();
    let mut session = session();
    session.submit(append(0, 1, Some(AckLevel::Received), now), 0);
    session.connected(&welcome()).expect("nobody else");
    sent(&mut session, now);
    accepted(&mut session, 0, 0, 1, now);
    assert!(matches!(appends(&mut session).as_slice(), [(0, Ok(_))]));
    session.disconnected(now, "");
    let crashed = Welcome { epoch: 4, epoch_first_offset: 9, received: 9, written: 9, durable: 9, ..welcome() };
    session.connected(&crashed).expect("ours");
    session.flush(DURABLE, 7, now);
    assert_eq!(session.next_out(now), None, "there is nothing to ask");
    assert!(matches!(flushes(&mut session).as_slice(), [(7, Err(AppendError::Lost))]));
    session.flush(DURABLE, 8, now);
    session.next_out(now);
    assert!(matches!(flushes(&mut session).as_slice(), [(8, Ok(()))]), "it is reported once");
}

/// Another crash may take what one crash has left: that is reported as well.
#[test]
fn a_second_loss_is_reported() {
    let now = Instant::now();
    let mut session = session();
    (0..2).for_each(|number| session.submit(append(number, 1, Some(AckLevel::Received), now), number));
    session.connected(&welcome()).expect("nobody else");
    sent(&mut session, now);
    accepted(&mut session, 0, 4, 1, now);
    accepted(&mut session, 1, 6, 1, now);
    let mut flushes_after = |welcome: &Welcome, number: u64| {
        session.disconnected(now, "");
        session.connected(welcome).expect("ours");
        session.flush(Some(AckLevel::Received), number, now);
        assert_eq!(session.next_out(now), None, "that level was reached");
        flushes(&mut session)
    };
    let first = known(0, 2, 6, 6);
    assert!(matches!(flushes_after(&first, 0).as_slice(), [(0, Err(AppendError::Lost))]));
    assert!(matches!(flushes_after(&first, 1).as_slice(), [(1, Ok(()))]), "it is reported once");
    let second = Welcome { last: None, ..known(0, 3, 4, 4) };
    assert!(matches!(flushes_after(&second, 2).as_slice(), [(2, Err(AppendError::Lost))]));
    assert!(matches!(flushes_after(&second, 3).as_slice(), [(3, Ok(()))]), "it is reported once");
}

/// Forgotten first, in a log that has it all: the crash that takes it comes later, and is seen by where it lay.
#[test]
fn a_producer_forgotten_before_a_crash_learns_what_it_took() {
    let now = Instant::now();
    for (place, lost) in [(4, true), (3, false)] {
        let mut session = session();
        session.submit(append(0, 1, Some(AckLevel::Received), now), 0);
        session.connected(&welcome()).expect("nobody else");
        sent(&mut session, now);
        accepted(&mut session, 0, place, 1, now);
        session.disconnected(now, "");
        session.connected(&Welcome { received: 5, ..welcome() }).expect("ours");
        session.disconnected(now, "");
        let crashed = Welcome { epoch: 2, epoch_first_offset: 4, received: 4, written: 4, durable: 4, ..welcome() };
        session.connected(&crashed).expect("ours");
        session.flush(DURABLE, 7, now);
        let Some(Out::Flush { id, level }) = session.next_out(now) else { panic!("it asks") };
        session.watermark(&Watermark { request_id: id, epoch: 2, epoch_first_offset: 4, level, offset: 4 }, now);
        let flushed = flushes(&mut session);
        assert_eq!(matches!(flushed.as_slice(), [(7, Err(AppendError::Lost))]), lost, "{flushed:?}");
        assert_eq!(matches!(flushed.as_slice(), [(7, Ok(()))]), !lost, "{flushed:?}");
    }
}

/// The error of an abandoned flush says nothing of a loss, so it does not consume the news of one.
#[test]
fn an_expired_flush_leaves_the_loss_to_the_next_one() {
    let now = Instant::now();
    let mut session = session();
    session.submit(append(0, 1, Some(AckLevel::Received), now), 0);
    session.connected(&welcome()).expect("nobody else");
    sent(&mut session, now);
    accepted(&mut session, 0, 0, 1, now);
    session.submit(append(1, 1, DURABLE, now), 1);
    session.disconnected(now, "");
    session.connected(&Welcome { epoch: 2, ..welcome() }).expect("ours");
    session.flush(DURABLE, 7, now);
    session.disconnected(now, "");
    session.tick(now + DELIVERY_TIMEOUT * 2);
    assert!(matches!(flushes(&mut session).as_slice(), [(7, Err(AppendError::DeliveryTimeout { .. }))]));
    session.connected(&Welcome { epoch: 2, ..welcome() }).expect("ours");
    session.flush(DURABLE, 8, now);
    let Some(Out::Flush { id, level }) = session.next_out(now + DELIVERY_TIMEOUT * 2) else { panic!("it asks") };
    let watermark = Watermark { request_id: id, epoch: 2, epoch_first_offset: 0, level, offset: 0 };
    session.watermark(&watermark, now + DELIVERY_TIMEOUT * 2);
    assert!(matches!(flushes(&mut session).as_slice(), [(8, Err(AppendError::Lost))]));
}

/// The log continues behind what is gone, by a gap mark: the last sequence says nothing of it, its place does.
#[test]
fn what_a_gap_mark_skipped_is_not_taken_for_stored() {
    let now = Instant::now();
    let mut session = session();
    session.submit(append(0, 1, Some(AckLevel::Received), now), 0);
    session.submit(append(1, 1, DURABLE, now), 1);
    session.connected(&welcome()).expect("nobody else");
    sent(&mut session, now);
    accepted(&mut session, 0, 4, 1, now);
    assert!(matches!(appends(&mut session).as_slice(), [(0, Ok(_))]));
    session.disconnected(now, "");
    // The second one was taken after a recovery that had lost the first.
    session.connected(&known(1, 2, 4, 5)).expect("ours");
    sent(&mut session, now);
    let answer = Accepted { first_seq: 1, first_offset: 4, count: 1, epoch: 2, duplicate: true };
    session.accepted(&answer, now).expect("a good answer");
    let durable = Watermark { request_id: 0, epoch: 2, epoch_first_offset: 4, level: AckLevel::Durable, offset: 5 };
    session.watermark(&durable, now);
    session.flush(DURABLE, 0, now);
    let Some(Out::Flush { id, .. }) = session.next_out(now) else { panic!("received is below durable: it has to ask") };
    session.watermark(&Watermark { request_id: id, ..durable }, now);
    assert!(matches!(flushes(&mut session)[..], [(0, Err(AppendError::Lost))]));
}
