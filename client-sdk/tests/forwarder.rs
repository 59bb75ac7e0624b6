//! The forwarder against a daemon played by hand: when receipts come, and how it ends.

mod support;

use std::time::Duration;

use bytes::BytesMut;
use clad_client::{AckLevel, ErrorCode, ErrorInfo};
use clad_client::{ForwardAs, ForwardError, Forwarder, ForwarderOptions, RawRecords};
use clad_proto::frame::*;
use support::*;

/// An append as a daemon gives it: records from this offset on.
fn raw(first_offset: u64, bodies: &[&str]) -> RawRecords {
    let mut bytes = BytesMut::new();
    Frame::Records(records(first_offset, bodies, 0)).encode(&mut bytes);
    RawRecords::parse(bytes.split_off(clad_proto::limits::FRAME_HEADER_BYTES).freeze()).expect("an append")
}

fn at(previous: u64, level: AckLevel) -> ForwardAs {
    ForwardAs { previous, skip: None, begins: previous == 0, level }
}

async fn connect(fake: &Fake, change: impl FnOnce(&mut Welcome)) -> (Forwarder, Peer) {
    let (stream, options) = (StreamName::new("from").expect("a name"), ForwarderOptions::default());
    let met = fake.accept_with(|welcome| {
        (welcome.version, welcome.forwarding) = (clad_proto::limits::MAX_VERSION, Forwarding::Unknown);
        change(welcome);
    });
    let connecting = Forwarder::connect(&fake.address, LOG, stream, &options);
    let (forwarder, peer) = soon(async { tokio::join!(connecting, met) }).await;
    (forwarder.expect("connected"), peer)
}

/// Sends what is in line; nothing comes back in this time.
async fn nothing(forwarder: &mut Forwarder) {
    let waited = tokio::time::timeout(Duration::from_millis(50), forwarder.next()).await;
    assert!(waited.is_err(), "{waited:?}");
}

async fn forwarded(peer: &mut Peer) -> Forward {
    match peer.next().await {
        Frame::Forward(forward) => forward,
        other => panic!("{other:?} where FORWARD was expected"),
    }
}

fn accepted(first_seq: u64, count: u32, first_offset: u64) -> Frame {
    Frame::Accepted(Accepted { first_seq, first_offset, count, epoch: 1, duplicate: false })
}

#[tokio::test]
async fn a_receipt_comes_in_order_and_not_before_the_level() {
    let fake = Fake::new();
    let (mut forwarder, mut peer) = connect(&fake, |_| {}).await;
    forwarder.forward(at(0, AckLevel::Durable), &raw(0, &["a", "b"])).await.expect("in line");
    forwarder.forward(at(2, AckLevel::Received), &raw(2, &["c"])).await.expect("in line");
    nothing(&mut forwarder).await;
    for (previous, begins, level, bytes) in
        [(0, true, AckLevel::Durable, raw(0, &["a", "b"])), (2, false, AckLevel::Received, raw(2, &["c"]))]
    {
        let came = forwarded(&mut peer).await;
        assert_eq!((came.head.previous, came.head.begins, came.head.level), (previous, begins, level));
        assert_eq!(came.records, bytes.to_bytes(), "as its client encoded it");
    }
    peer.send(accepted(0, 2, 70)).await;
    peer.send(accepted(2, 1, 72)).await;
    // The second has its level, and waits for the first.
    nothing(&mut forwarder).await;
    peer.watermark(0, AckLevel::Written, 73, 1, 0).await;
    peer.durable(71).await;
    nothing(&mut forwarder).await;
    peer.durable(72).await;
    let first = soon(forwarder.next()).await.expect("durable");
    assert_eq!((first.first, first.end, first.offset, first.level), (0, 2, 70, AckLevel::Durable));
    let second = soon(forwarder.next()).await.expect("received");
    assert_eq!((second.first, second.end, second.offset), (2, 3, 72));
    assert_eq!(forwarder.pending(), 0);
}

/// After a recovery the daemon's word covers what it has kept of the epoch before, and nothing else.
#[tokio::test]
async fn the_word_of_another_epoch_covers_what_it_says() {
    for (epoch, epoch_first_offset, is_covered) in [(1, 0, true), (2, 72, true), (2, 71, false), (3, 72, false)] {
        let fake = Fake::new();
        let (mut forwarder, mut peer) = connect(&fake, |_| {}).await;
        forwarder.forward(at(0, AckLevel::Durable), &raw(0, &["a", "b"])).await.expect("in line");
        nothing(&mut forwarder).await;
        forwarded(&mut peer).await;
        peer.send(accepted(0, 2, 70)).await;
        peer.watermark(0, AckLevel::Durable, 80, epoch, epoch_first_offset).await;
        match is_covered {
            true => assert_eq!(soon(forwarder.next()).await.expect("durable").end, 2),
            false => nothing(&mut forwarder).await,
        }
    }
}

#[tokio::test]
async fn after_a_refusal_nothing_more_is_sent_and_earlier_receipts_still_come() {
    let fake = Fake::new();
    let (mut forwarder, mut peer) = connect(&fake, |_| {}).await;
    for first in 0..3 {
        forwarder.forward(at(first, AckLevel::Durable), &raw(first, &["a"])).await.expect("in line");
    }
    nothing(&mut forwarder).await;
    peer.send(accepted(0, 1, 70)).await;
    let error = ErrorInfo { expected_sequence: Some(9), ..ErrorInfo::new(ErrorCode::SequenceGap, "another is next") };
    peer.send(Frame::Refused(Refused { first_seq: 1, count: 1, error })).await;
    nothing(&mut forwarder).await;
    let refused = forwarder.forward(at(3, AckLevel::Durable), &raw(3, &["a"])).await.expect_err("it has ended");
    assert!(matches!(refused, ForwardError::Gap { expected: 9, .. }) && refused.is_retryable(), "{refused}");
    peer.durable(71).await;
    assert_eq!(soon(forwarder.next()).await.expect("durable").end, 1);
    let refused = soon(forwarder.next()).await.expect_err("refused");
    assert!(matches!(refused, ForwardError::Gap { expected: 9, .. }), "{refused}");
    drop(forwarder);
    for _ in 0..3 {
        forwarded(&mut peer).await;
    }
    assert_eq!(peer.try_next().await, None, "nothing came behind the refusal");
}

/// What cannot be sent leaves the forwarder as it was; an answer that answers nothing ends it.
#[tokio::test]
async fn what_is_not_sent_and_what_is_no_answer() {
    let fake = Fake::new();
    let (mut forwarder, mut peer) = connect(&fake, |welcome| {
        welcome.highest_ack = AckLevel::Written;
        welcome.max_append_bytes = 200;
        welcome.max_record_bytes = 100;
        welcome.window = 1;
    })
    .await;
    for level in [AckLevel::None, AckLevel::Durable] {
        let refused = forwarder.forward(at(0, level), &raw(0, &["a"])).await;
        assert!(matches!(refused, Err(ForwardError::Level { .. })), "{refused:?}");
    }
    let long = "x".repeat(120);
    for (bodies, most) in [(vec![long.as_str()], 100), (vec!["y".repeat(60).leak(); 4], 200)] {
        let refused = forwarder.forward(at(0, AckLevel::Written), &raw(0, &bodies)).await;
        assert!(matches!(refused, Err(ForwardError::TooLarge { max, .. }) if max == most), "{refused:?}");
    }
    assert!(forwarder.has_room());
    forwarder.forward(at(0, AckLevel::Written), &raw(0, &["a"])).await.expect("in line");
    assert!(!forwarder.has_room(), "the window is 1");
    nothing(&mut forwarder).await;
    peer.send(accepted(5, 1, 70)).await;
    let wrong = soon(forwarder.next()).await.expect_err("it was not asked for that");
    assert!(wrong.to_string().contains("an answer to what was not sent"), "{wrong}");
    let ended = forwarder.forward(at(1, AckLevel::Written), &raw(1, &["a"])).await.expect_err("it has ended");
    assert!(ended.is_retryable(), "{ended}");
}
