//! The producer against a daemon played by hand: what is on the wire, what comes back, what is bounded.

mod support;

use clad_client::*;
use clad_proto::{PayloadView, frame::*};
use std::time::Duration;
use support::*;

fn texts(append: &Append) -> Vec<String> {
    assert!(append.checksum_holds());
    let view = PayloadView::parse(&append.payload, append.head.count).expect("a payload");
    assert_eq!(view.group().component(), Some("test"));
    view.records().map(|record| String::from_utf8(record.body_bytes().expect("text").to_vec()).expect("text")).collect()
}

#[tokio::test]
async fn a_record_goes_there_and_its_receipt_comes_back() {
    let fake = Fake::new();
    let (producer, mut peer) = fake.producer(fake.builder()).await;
    assert_eq!((peer.hello.producer_id, peer.hello.name.as_str()), (producer.id(), "test"));
    assert!(peer.hello.intent.append && peer.hello.secret.is_empty(), "a Unix socket knows its peer");
    assert_eq!(producer.log().map(|log| log.log_id), Some(LOG));

    let ticket = producer.reserve(100).await.expect("room").submit(&record("one")).expect("handed over");
    let append = peer.append().await;
    assert_eq!((append.head.first_seq, append.head.count, append.head.level), (0, 1, AckLevel::Durable));
    assert_eq!(texts(&append), ["one"]);
    peer.accepted(&append, 40, 1).await;
    peer.durable(41).await;
    let receipt = soon(ticket).await.expect("durable");
    assert_eq!((receipt.log_id, receipt.epoch, receipt.first_offset, receipt.count), (LOG, 1, Some(40), 1));

    let closing = tokio::spawn(producer.close());
    assert!(matches!(peer.next().await, Frame::Bye));
    drop(peer);
    let summary = soon(closing).await.expect("ended").expect("all durable");
    assert_eq!((summary.stats.submitted, summary.stats.sent, summary.stats.acked, summary.stats.resent), (1, 1, 1, 0));
    assert_eq!((summary.stats.buffered_bytes, summary.stats.pending_appends), (0, 0));
}

#[tokio::test]
async fn what_was_not_answered_is_sent_again_the_same() {
    let fake = Fake::new();
    let (producer, mut peer) = fake.producer(fake.builder()).await;
    let mut batch = producer.batch();
    batch.push(&record("a")).expect("room");
    batch.push_body(1, 2, 9, Body::Bytes(b"b")).expect("room");
    let first = producer.reserve(batch.len_bytes()).await.expect("room").submit_batch(&mut batch).expect("handed over");
    assert!(batch.is_empty());
    let second =
        producer.reserve(9).await.expect("room").submit_many(&[record("c"), record("d")]).expect("handed over");
    let sent = [peer.append().await, peer.append().await];
    assert_eq!((texts(&sent[0]), texts(&sent[1])), (vec!["a".into(), "b".into()], vec!["c".into(), "d".into()]));
    peer.accepted(&sent[0], 10, 1).await;
    drop(peer);

    let last = Some(LastStored { sequence: 1, offset: 11, level: AckLevel::Received });
    let mut peer = fake.accept_with(|welcome| (welcome.last, welcome.received) = (last, 12)).await;
    assert_eq!(peer.hello.producer_id, producer.id());
    assert_eq!([peer.append().await, peer.append().await], sent, "the same bytes under the same sequences");
    peer.accepted(&sent[0], 10, 1).await;
    peer.accepted(&sent[1], 12, 1).await;
    peer.durable(14).await;
    assert_eq!(soon(first).await.expect("durable").first_offset, Some(10));
    assert_eq!(soon(second).await.expect("durable").first_offset, Some(12));
    let stats = producer.stats();
    assert_eq!((stats.sent, stats.resent, stats.acked, stats.reconnects), (4, 4, 4, 1));
}

#[tokio::test]
async fn an_outcome_is_taken_when_it_is_there() {
    let fake = Fake::new();
    let (producer, mut peer) = fake.producer(fake.builder()).await;
    let mut ticket = producer.try_reserve(100).expect("room").submit(&record("x")).expect("handed over");
    let sent = peer.append().await;
    peer.accepted(&sent, 7, 1).await;
    assert!(ticket.try_wait().is_none(), "it is not durable");
    peer.durable(8).await;
    let looked = async {
        loop {
            match ticket.try_wait() {
                Some(outcome) => return outcome,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    };
    assert_eq!(soon(looked).await.expect("durable").first_offset, Some(7));
}

#[tokio::test]
async fn a_permanent_refusal_is_reported_and_skipped() {
    let fake = Fake::new();
    let (producer, mut peer) = fake.producer(fake.builder()).await;
    let submit = |text: &str| producer.try_reserve(100).expect("room").submit(&record(text)).expect("handed over");
    let (bad, good) = (submit("bad"), submit("good"));
    let sent = [peer.append().await, peer.append().await];
    let mut no = ErrorInfo::new(ErrorCode::RecordTooLarge, "3 bytes, the limit is 2").limited_to(2);
    no.record_index = Some(0);
    peer.refused(&sent[0], no.clone()).await;
    peer.refused(&sent[1], ErrorInfo::new(ErrorCode::SequenceGap, "").expecting(0)).await;
    let again = peer.append().await;
    assert_eq!((again.head.first_seq, again.head.gap), (1, true));
    peer.accepted(&again, 0, 1).await;
    peer.durable(1).await;
    soon(good).await.expect("durable");
    let Err(error) = soon(bad).await else { panic!("it was refused") };
    assert_eq!(
        (error.code(), error.is_retryable(), error.maybe_written()),
        (Some(ErrorCode::RecordTooLarge), false, false)
    );
    assert!(matches!(error, AppendError::Refused { error, .. } if *error == no));
    producer.flush(AckLevel::Durable).await.expect("the error had its listener");
}

#[tokio::test]
async fn a_new_epoch_resends_what_it_abandoned() {
    let fake = Fake::new();
    let (producer, mut peer) = fake.producer(fake.builder()).await;
    let ticket = producer.reserve(100).await.expect("room").submit(&record("x")).expect("handed over");
    let append = peer.append().await;
    peer.accepted(&append, 5, 1).await;
    peer.watermark(0, AckLevel::Durable, 9, 2, 5).await;
    let again = peer.append().await;
    assert_eq!(again, append);
    peer.accepted(&again, 9, 2).await;
    peer.watermark(0, AckLevel::Durable, 10, 2, 5).await;
    let receipt = soon(ticket).await.expect("durable");
    assert_eq!((receipt.epoch, receipt.first_offset), (2, Some(9)));
}

#[tokio::test]
async fn a_forgotten_producer_gets_an_error() {
    let fake = Fake::new();
    let (producer, mut peer) = fake.producer(fake.builder()).await;
    let submit = |text: &str| producer.try_reserve(100).expect("room").submit(&record(text)).expect("handed over");
    let (kept, lost) = (submit("kept"), submit("lost"));
    let append = peer.append().await;
    peer.accepted(&append, 0, 1).await;
    peer.durable(1).await;
    soon(kept).await.expect("durable");
    peer.append().await;
    drop(peer);
    let mut peer = fake.accept_with(|welcome| (welcome.received, welcome.written, welcome.durable) = (1, 1, 1)).await;
    assert!(matches!(soon(lost).await, Err(AppendError::Forgotten)));
    let next = submit("next");
    let append = peer.append().await;
    assert_eq!((append.head.first_seq, append.head.gap), (2, true));
    peer.accepted(&append, 1, 1).await;
    peer.durable(2).await;
    soon(next).await.expect("durable");
}

#[tokio::test]
async fn room_is_bounded_and_free_again_with_the_receipt() {
    let fake = Fake::new();
    let (producer, mut peer) = fake.producer(fake.builder().max_buffered_bytes(4096)).await;
    assert!(matches!(producer.try_reserve(4096), Err(ReserveError::TooLarge { .. })));
    let reservation = producer.reserve(3000).await.expect("room");
    assert!(matches!(producer.try_reserve(1000), Err(ReserveError::Full { .. })));
    drop(reservation);
    let ticket = producer.reserve(10).await.expect("room").submit(&record("x".repeat(3000))).expect("more was free");
    let small = soon(producer.reserve(10)).await.expect("room").submit(&record("y".repeat(800)));
    assert!(matches!(small, Err(SubmitError::ReservationTooSmall { reserved: 10, needed }) if needed > 800));
    assert!(!producer.try_send(&record("z".repeat(800))), "no room");
    assert_eq!(producer.stats().dropped, 1);
    drop(ticket); // cancels nothing, frees nothing
    let waiting = producer.reserve(3000);
    tokio::pin!(waiting);
    assert!(tokio::time::timeout(Duration::from_millis(30), &mut waiting).await.is_err());
    let append = peer.append().await;
    peer.accepted(&append, 0, 1).await;
    peer.durable(1).await;
    drop(soon(waiting).await.expect("room"));
}

#[tokio::test]
async fn fire_and_forget_waits_for_nobody() {
    let fake = Fake::new();
    let (producer, mut peer) = fake.producer(fake.builder()).await;
    producer.send(&record("sent")).await.expect("handed over");
    assert!(producer.try_send(&record("tried")));
    let ticket = producer.reserve(0).await.expect("room").at(AckLevel::None).submit(&record("asked")).expect("room");
    assert_eq!(soon(ticket).await.expect("handed to the connection").first_offset, None);
    for text in ["sent", "tried", "asked"] {
        let append = peer.append().await;
        assert_eq!((append.head.level, texts(&append)), (AckLevel::None, vec![text.to_owned()]));
    }
    let flushing = {
        let producer = producer.clone();
        tokio::spawn(async move { producer.flush(AckLevel::Written).await })
    };
    let flush = peer.flush().await;
    assert_eq!(flush.level, AckLevel::Written);
    peer.watermark(flush.request_id, AckLevel::Written, 3, 1, 0).await;
    soon(flushing).await.expect("ran").expect("written");
    assert_eq!((producer.stats().acked, producer.stats().buffered_bytes), (3, 0));
}

#[tokio::test]
async fn records_are_grouped_on_demand_and_each_has_its_ticket() {
    let fake = Fake::new();
    let builder = fake.builder().max_append_records(3).linger(Duration::from_millis(20));
    let (producer, mut peer) = fake.producer(builder).await;
    let submit = |text: &str| producer.try_reserve(100).expect("room").submit(&record(text)).expect("handed over");
    let tickets: Vec<_> = ["a", "b", "c", "d"].map(submit).into();
    let (full, lingered) = (peer.append().await, peer.append().await);
    assert_eq!((texts(&full), texts(&lingered)), (vec!["a".into(), "b".into(), "c".into()], vec!["d".into()]));
    assert_eq!(lingered.head.first_seq, 3);
    peer.accepted(&full, 10, 1).await;
    peer.accepted(&lingered, 13, 1).await;
    peer.durable(14).await;
    for (ticket, offset) in tickets.into_iter().zip(10..) {
        let receipt = soon(ticket).await.expect("durable");
        assert_eq!((receipt.first_offset, receipt.count), (Some(offset), 1));
    }
    assert_eq!(producer.stats().buffered_bytes, 0);
}

#[tokio::test]
async fn an_undelivered_error_is_reported_once_by_the_next_flush() {
    let fake = Fake::new();
    let (producer, mut peer) = fake.producer(fake.builder()).await;
    drop(producer.reserve(100).await.expect("room").submit(&record("x")).expect("handed over"));
    let append = peer.append().await;
    peer.refused(&append, ErrorInfo::new(ErrorCode::BadRecord, "no")).await;
    let Err(error) = soon(producer.flush(AckLevel::Received)).await else { panic!("it was refused") };
    assert_eq!(error.code(), Some(ErrorCode::BadRecord));
    soon(producer.flush(AckLevel::Received)).await.expect("the error was reported");
}

#[tokio::test]
async fn the_last_handle_brings_home_what_was_submitted() {
    let fake = Fake::new();
    let (producer, mut peer) = fake.producer(fake.builder()).await;
    let clone = producer.clone();
    drop(producer);
    let ticket = clone.reserve(100).await.expect("room").submit(&record("x")).expect("handed over");
    drop(clone);
    let append = peer.append().await;
    peer.accepted(&append, 0, 1).await;
    peer.durable(1).await;
    soon(ticket).await.expect("durable");
    assert!(matches!(peer.next().await, Frame::Bye));
    assert!(peer.try_next().await.is_none(), "it hangs up");
}

#[tokio::test]
async fn time_is_bounded_when_there_is_nobody() {
    let fake = Fake::new();
    let builder = fake.builder().max_in_flight_appends(1).delivery_timeout(Duration::from_secs(2));
    let (producer, mut peer) = fake.producer(builder).await;
    let submit = |text: &str| producer.try_reserve(100).expect("room").submit(&record(text)).expect("handed over");
    let sent = submit("sent");
    peer.append().await;
    drop((peer, fake));
    let kept = submit("kept");
    let (Err(sent), Err(kept)) = (soon(sent).await, soon(kept).await) else { panic!("there is nobody") };
    assert!(sent.maybe_written() && sent.is_retryable() && !kept.maybe_written(), "{sent} / {kept}");
    let mut summary = soon(producer.close()).await;
    assert!(summary.as_mut().is_ok_and(|summary| summary.stats.failed == 2), "{summary:?}");
}

#[tokio::test]
async fn a_daemon_that_does_not_want_us_ends_it_for_good() {
    let fake = Fake::new();
    let (producer, mut peer) = fake.producer(fake.builder()).await;
    let ticket = producer.reserve(100).await.expect("room").submit(&record("x")).expect("handed over");
    peer.append().await;
    let error = ErrorInfo::new(ErrorCode::ProducerFenced, "epoch 4 is here");
    peer.send(Frame::Error(ErrorFrame { request_id: 0, error })).await;
    let Err(error) = soon(ticket).await else { panic!("fenced") };
    assert_eq!((error.code(), error.maybe_written()), (Some(ErrorCode::ProducerFenced), true));
    let Err(ReserveError::Ended(error)) = soon(producer.reserve(1)).await else { panic!("it has ended") };
    assert_eq!((error.code(), error.maybe_written()), (Some(ErrorCode::ProducerFenced), false));
    assert!(soon(producer.close()).await.is_err());
}

#[tokio::test]
async fn a_connection_that_cannot_be_made_says_why() {
    let nobody = Producer::builder(Address::unix("/nonexistent/clad.sock")).connect().await.expect_err("nobody");
    assert!(matches!(nobody, ConnectError::Io { .. }) && nobody.is_retryable(), "{nobody}");

    let fake = Fake::new();
    let silent = fake.builder().connect_timeout(Duration::from_millis(30)).connect();
    assert!(matches!(soon(silent).await.expect_err("silent"), ConnectError::Timeout { .. }));

    let fake = Fake::new();
    let refuse = async {
        let mut peer = fake.meet().await;
        let error = ErrorInfo::new(ErrorCode::ProducerNotYours, "uid 3 has it");
        peer.send(Frame::Error(ErrorFrame { request_id: 0, error })).await;
    };
    let (refused, ()) = soon(async { tokio::join!(fake.builder().connect(), refuse) }).await;
    let refused = refused.expect_err("not ours");
    assert_eq!((refused.code(), refused.is_retryable()), (Some(ErrorCode::ProducerNotYours), false));

    let stranger = async { fake.meet().await.bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n").await };
    let (refused, ()) = soon(async { tokio::join!(fake.builder().connect(), stranger) }).await;
    assert!(matches!(refused, Err(ConnectError::Protocol { .. })), "{refused:?}");
}

#[tokio::test]
async fn many_large_and_small_appends_pass_in_order_through_disconnects() {
    const APPENDS: u64 = 400;
    let fake = Fake::new();
    let (producer, mut peer) = fake.producer(fake.builder().max_in_flight_appends(16)).await;
    let submitting = tokio::spawn(async move {
        let mut tickets = Vec::new();
        for n in 0..APPENDS {
            let body = format!("{n}:{}", "x".repeat(if n % 7 == 0 { 300_000 } else { 10 }));
            tickets.push(producer.reserve(body.len() + 100).await.expect("room").submit(&record(body)).expect("room"));
        }
        for (n, ticket) in (0..).zip(tickets) {
            assert_eq!(ticket.await.expect("durable").first_offset, Some(n));
        }
        producer.stats()
    });
    let mut stored: Vec<String> = Vec::new();
    let mut read = 0;
    while (stored.len() as u64) < APPENDS {
        let append = peer.append().await;
        read += 1;
        if append.head.first_seq == stored.len() as u64 {
            stored.extend(texts(&append));
        }
        peer.accepted(&append, append.head.first_seq, 1).await;
        peer.durable(stored.len() as u64).await;
        if read % 37 == 0 {
            drop(peer);
            let last = stored.len() as u64 - 1;
            let last = Some(LastStored { sequence: last, offset: last, level: AckLevel::Received });
            peer = fake.accept_with(|welcome| (welcome.last, welcome.received) = (last, stored.len() as u64)).await;
        }
    }
    // The last ones may still be on their way when the connection went.
    let answering = async {
        loop {
            match peer.try_next().await {
                Some(Frame::Append(append)) => {
                    peer.accepted(&append, append.head.first_seq, 1).await;
                    peer.durable(APPENDS).await;
                }
                Some(_) => {}
                None => return,
            }
        }
    };
    let (stats, ()) = soon(async { tokio::join!(submitting, answering) }).await;
    let stats = stats.expect("all durable");
    assert_eq!((stats.sent, stats.acked), (APPENDS, APPENDS));
    assert!(stored.iter().zip(0..).all(|(text, n)| text.starts_with(&format!("{n}:"))), "in order, once");
}

#[test]
fn nobody_waits_for_a_task_that_went_with_its_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (fake, (producer, peer)) = {
        let first = runtime();
        let made = first.block_on(async {
            let fake = Fake::new();
            let made = fake.producer(fake.builder()).await;
            (fake, made)
        });
        drop(first);
        made
    };
    runtime().block_on(async {
        assert!(matches!(soon(producer.reserve(1)).await, Err(ReserveError::Ended(_))));
        assert!(soon(producer.flush(AckLevel::Durable)).await.is_err());
        assert!(soon(producer.close()).await.is_err());
    });
    drop((fake, peer));
}

#[tokio::test]
async fn who_may_come_back_does_not_say_good_bye() {
    let fake = Fake::new();
    let id = ProducerId::from_bytes([4; 16]);
    let builder = fake.builder().producer(id, 2);
    let last = Some(LastStored { sequence: 41, offset: 99, level: AckLevel::Durable });
    let (producer, peer) =
        soon(async { tokio::join!(builder.connect(), fake.accept_with(|welcome| welcome.last = last)) }).await;
    let (producer, mut peer) = (producer.expect("connected"), peer);
    assert_eq!((peer.hello.producer_id, peer.hello.producer_epoch), (id, 2));
    producer.send(&record("x")).await.expect("handed over");
    assert_eq!(peer.append().await.head.first_seq, 42);
    let closing = tokio::spawn(producer.close());
    let flush = peer.flush().await;
    peer.watermark(flush.request_id, AckLevel::Durable, 101, 1, 0).await;
    assert!(peer.try_next().await.is_none(), "it just goes");
    drop(peer);
    soon(closing).await.expect("ran").expect("durable");
}

/// A daemon that hears the good-bye and hangs.
#[tokio::test]
async fn who_closes_does_not_wait_for_a_daemon_that_hangs() {
    let fake = Fake::new();
    let (producer, mut peer) = fake.producer(fake.builder()).await;
    let closing = tokio::spawn(producer.close());
    assert!(matches!(peer.next().await, Frame::Bye));
    soon(closing).await.expect("a task").expect("nothing was due");
    drop(peer);
}

/// A loss that goes to an abandoned flush reaches nobody: the next flush reports it again. `kill -9` between.
#[tokio::test]
async fn expired_flushes_do_not_pile_up() {
    const FLUSHES: usize = 1500;
    let fake = Fake::new();
    let builder = fake.builder().connect_timeout(Duration::from_secs(600));
    let (producer, mut peer) = fake.producer(builder).await;
    let ticket = producer.reserve(9).await.expect("room").at(AckLevel::Received).submit(&record("a")).expect("in");
    let append = peer.append().await;
    peer.accepted(&append, 0, 1).await;
    soon(ticket).await.expect("received");
    drop(peer);
    // A program that asks again and again, each time not for long, beside a daemon that is down.
    for n in 0..FLUSHES {
        let abandoned = tokio::time::timeout(Duration::ZERO, producer.flush(AckLevel::Durable)).await;
        assert!(abandoned.is_err(), "there is nobody to ask");
        if n % 50 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let its = producer.clone();
    let last = tokio::spawn(async move { its.flush(AckLevel::Durable).await });
    let stored = Some(LastStored { sequence: 0, offset: 0, level: AckLevel::Received });
    let mut peer = fake.accept_with(|welcome| (welcome.last, welcome.received) = (stored, 1)).await;
    let mut asked = 0;
    while !last.is_finished() {
        let Ok(flush) = tokio::time::timeout(Duration::from_millis(500), peer.flush()).await else { continue };
        asked += 1;
        peer.watermark(flush.request_id, AckLevel::Durable, 1, 1, 0).await;
    }
    soon(last).await.expect("a task").expect("durable");
    assert!((1..200).contains(&asked), "{asked} of {FLUSHES} were asked");
}

#[tokio::test]
async fn the_report_of_an_abandoned_flush_passes_to_the_next_one() {
    let fake = Fake::new();
    let (producer, mut peer) = fake.producer(fake.builder()).await;
    let received = producer.reserve(9).await.expect("room").at(AckLevel::Received);
    let ticket = received.submit(&record("lost")).expect("handed over");
    let append = peer.append().await;
    peer.accepted(&append, 0, 1).await;
    soon(ticket).await.expect("received");
    drop(peer);
    let abandoned = tokio::time::timeout(Duration::from_millis(50), producer.flush(AckLevel::Durable)).await;
    assert!(abandoned.is_err(), "there is nobody to ask");
    let restarted = |welcome: &mut Welcome| {
        (welcome.epoch, welcome.epoch_first_offset) = (2, 0);
        welcome.earlier = vec![EpochStart { epoch: 1, first_offset: 0 }];
    };
    let mut peer = fake.accept_with(restarted).await;
    let answers = tokio::spawn(async move {
        loop {
            let flush = peer.flush().await;
            peer.watermark(flush.request_id, AckLevel::Durable, 0, 2, 0).await;
        }
    });
    let flushed = soon(producer.flush(AckLevel::Durable)).await;
    assert!(matches!(flushed, Err(AppendError::Lost)), "{flushed:?}");
    soon(producer.flush(AckLevel::Durable)).await.expect("it was reported once");
    answers.abort();
}

/// "Never" is a time as any other.
#[tokio::test]
async fn who_waits_for_ever_waits_for_long() {
    let fake = Fake::new();
    let builder = fake.builder().delivery_timeout(Duration::MAX).drop_timeout(Duration::MAX);
    let (producer, mut peer) = fake.producer(builder.linger(Duration::MAX).max_append_records(2)).await;
    let submit = |text: &str| producer.try_reserve(100).expect("room").submit(&record(text)).expect("handed over");
    let tickets = [submit("a"), submit("b")];
    drop((peer.append().await, peer));
    let mut peer = fake.accept().await;
    let append = peer.append().await;
    peer.accepted(&append, 0, 1).await;
    peer.durable(2).await;
    for ticket in tickets {
        soon(ticket).await.expect("durable");
    }
    drop(producer);
    assert!(matches!(peer.next().await, Frame::Bye));
}

/// WELCOME with a last record of this producer at a level.
fn welcome_with(last: LastStored) -> impl FnOnce(&mut Welcome) {
    move |welcome| welcome.last = Some(last)
}

#[tokio::test]
async fn a_producer_that_resumes_knows_what_is_stored_and_safe() {
    let fake = Fake::new();
    let id = ProducerId::from_bytes([3; 16]);
    let resuming = tokio::spawn(fake.builder().producer(id, 5).resume(AckLevel::Written));
    let stored = |sequence, level| LastStored { sequence, offset: 20 + sequence, level };
    let mut early = fake.accept_with(welcome_with(stored(7, AckLevel::Received))).await;
    assert_eq!((early.hello.producer_id, early.hello.producer_epoch), (id, 5));
    assert!(early.try_next().await.is_none(), "it comes again when that is safe");
    // The daemon died, and with it what was only received.
    let mut peer = fake.accept_with(welcome_with(stored(4, AckLevel::Written))).await;
    let producer = soon(resuming).await.expect("ran").expect("resumed");
    assert_eq!(producer.last_stored(), Some(stored(4, AckLevel::Written)));
    let ticket = producer.try_reserve(100).expect("room").submit(&record("x")).expect("handed over");
    let append = peer.append().await;
    assert_eq!((append.head.first_seq, append.head.gap), (5, false));
    drop(peer);
    let mut peer = fake.accept_with(welcome_with(stored(5, AckLevel::Written))).await;
    assert_eq!(peer.append().await.head.first_seq, 5);
    peer.accepted(&append, 25, 1).await;
    peer.durable(26).await;
    assert_eq!(soon(ticket).await.expect("durable").first_offset, Some(25));
    assert_eq!(producer.last_stored(), Some(stored(4, AckLevel::Written)), "not a record of this process");
}

#[tokio::test]
async fn a_producer_that_cannot_resume_says_why() {
    let fake = Fake::new();
    let builder = || fake.builder().producer(ProducerId::from_bytes([3; 16]), 5);
    let resuming = tokio::spawn(builder().resume(AckLevel::Durable));
    let _peer = fake.accept_with(|welcome| welcome.highest_ack = AckLevel::Written).await;
    let error = soon(resuming).await.expect("ran").expect_err("durable is not offered");
    assert_eq!((error.code(), error.is_retryable()), (Some(ErrorCode::LevelUnreachable), false));

    let last = LastStored { sequence: 0, offset: 0, level: AckLevel::Received };
    let resuming = tokio::spawn(builder().delivery_timeout(Duration::ZERO).resume(AckLevel::Durable));
    let _peer = fake.accept_with(welcome_with(last)).await;
    let error = soon(resuming).await.expect("ran").expect_err("it does not get durable");
    assert!(matches!(error, ConnectError::Timeout { .. }) && error.is_retryable(), "{error}");
}

#[tokio::test]
async fn a_blocking_producer_resumes() {
    let fake = Fake::new();
    let builder = fake.builder().producer(ProducerId::from_bytes([3; 16]), 1);
    let resuming = tokio::task::spawn_blocking(|| blocking::Producer::resume(builder, AckLevel::Durable));
    let last = LastStored { sequence: 9, offset: 9, level: AckLevel::Durable };
    let _peer = fake.accept_with(welcome_with(last)).await;
    let producer = soon(resuming).await.expect("ran").expect("resumed");
    assert_eq!(producer.last_stored(), Some(last));
}

/// What the daemon takes is known when it greets: what was grouped before fits any.
#[tokio::test]
async fn records_grouped_before_the_first_greeting_fail_alone() {
    let fake = Fake::new();
    let producer = fake.builder().max_append_records(1000).start().expect("started");
    let submit = |len: usize| {
        let room = producer.try_reserve(4096).expect("room");
        room.submit(&record("x".repeat(len))).expect("handed over")
    };
    let mut tickets: Vec<_> = (0..50).map(|_| submit(100)).collect();
    let long = submit(3000);
    tickets.extend((50..99).map(|_| submit(100)));
    let mut peer = fake.accept_with(|welcome| welcome.max_append_bytes = 2048).await;
    let storing = tokio::spawn(async move {
        let mut end = 0;
        while end < 99 {
            let append = peer.append().await;
            peer.accepted(&append, end, 1).await;
            end += u64::from(append.head.count);
            peer.durable(end).await;
        }
    });
    for ticket in tickets {
        soon(ticket).await.expect("durable");
    }
    let error = soon(long).await.expect_err("longer than the daemon takes");
    assert!(matches!(error, AppendError::TooLarge { max: 2048, .. }), "{error}");
    soon(storing).await.expect("a daemon");
}
