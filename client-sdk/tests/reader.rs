//! The reader against a daemon played by hand.

mod support;

use clad_client::*;
use clad_proto::frame::*;
use std::time::Duration;
use support::*;

async fn read(peer: &mut Peer) -> Read {
    match peer.next().await {
        Frame::Read(read) => read,
        other => panic!("{other:?} where READ was expected"),
    }
}

async fn open(fake: &Fake, builder: ReaderBuilder) -> (Reader, Peer, Read) {
    let ms = Duration::from_millis;
    let builder = builder.backoff(ms(1), ms(10));
    let meeting = async {
        let mut peer = fake.accept().await;
        let asked = read(&mut peer).await;
        (peer, asked)
    };
    let (reader, (peer, asked)) = soon(async { tokio::join!(builder.open(), meeting) }).await;
    (reader.expect("opened"), peer, asked)
}

fn cursor(offset: u64) -> Cursor {
    Cursor { log_id: LOG, epoch: 1, offset }
}

#[tokio::test]
async fn records_gaps_and_the_end() {
    let fake = Fake::new();
    let builder = Reader::builder(fake.address.clone()).from(Start::Offset(11)).limit(9);
    let (mut reader, mut peer, asked) = open(&fake, builder).await;
    assert!(peer.hello.intent.read && !peer.hello.intent.append);
    assert_eq!((asked.from, asked.follow, asked.min_level), (ReadFrom::Offset(11), false, AckLevel::Written));
    assert_eq!((asked.since, asked.until, asked.limit.map(u64::from)), (None, None, Some(9)));

    let id = asked.request_id;
    peer.send(Frame::Records(Records { request_id: id, ..records(10, &["a", "b", "c"], 1) })).await;
    peer.send(Frame::Gap(clad_proto::frame::Gap {
        request_id: id,
        from: 13,
        to: 20,
        epoch: 1,
        reason: GapReason::Damage,
    }))
    .await;
    peer.send(Frame::ReadEnd(ReadEnd { request_id: id, cursor: cursor(25), reason: ReadEndReason::End })).await;
    let Some(Event::Records(chunk)) = soon(reader.next()).await.expect("good") else { panic!("records") };
    let got: Vec<_> =
        chunk.records().map(|(offset, record)| (offset, record.body_bytes().expect("text").to_vec())).collect();
    assert_eq!(got, [(11, b"b".to_vec()), (12, b"c".to_vec())]);
    assert_eq!((chunk.first_offset(), chunk.end_offset(), chunk.count(), chunk.first_sequence()), (11, 13, 2, 1001));
    assert_eq!((chunk.component(), chunk.append_time(), chunk.peer_meta().pid), (Some("app"), 99, Some(42)));
    assert_eq!(reader.cursor(), Some(cursor(13)));
    let Some(Event::Gap(gap)) = soon(reader.next()).await.expect("good") else { panic!("a gap") };
    assert_eq!((gap.from, gap.to, gap.reason, reader.cursor()), (13, 20, GapReason::Damage, Some(cursor(20))));
    assert!(soon(reader.next()).await.expect("good").is_none());
    assert!(soon(reader.next()).await.expect("still").is_none());
    assert_eq!(reader.cursor(), Some(cursor(25)));
}

#[tokio::test]
async fn following_comes_back_at_its_cursor() {
    let fake = Fake::new();
    let (mut reader, mut peer, asked) =
        open(&fake, Reader::builder(fake.address.clone()).from(Start::Tail(1)).follow(true)).await;
    assert_eq!((asked.from, asked.follow), (ReadFrom::Tail(1), true));
    peer.send(Frame::Records(Records { request_id: asked.request_id, ..records(4, &["a"], 0) })).await;
    peer.send(Frame::CaughtUp(CaughtUp { request_id: asked.request_id, cursor: cursor(5) })).await;
    assert!(matches!(soon(reader.next()).await, Ok(Some(Event::Records(_)))));
    assert!(matches!(soon(reader.next()).await, Ok(Some(Event::CaughtUp { cursor: at })) if at == cursor(5)));
    drop(peer);
    let again = async {
        let mut peer = fake.accept().await;
        let asked = read(&mut peer).await;
        assert_eq!(asked.from, ReadFrom::Cursor(cursor(5)));
        peer.send(Frame::Records(Records { request_id: asked.request_id, ..records(5, &["b"], 0) })).await;
        peer
    };
    let (event, peer) = soon(async { tokio::join!(reader.next(), again) }).await;
    assert!(matches!(event, Ok(Some(Event::Records(chunk))) if chunk.first_offset() == 5));
    drop(peer);
    let parting = cursor(3);
    let abandoned = async {
        let mut peer = fake.accept().await;
        let asked = read(&mut peer).await;
        let error = ErrorInfo::new(ErrorCode::CursorAbandoned, "given up").parting_at(parting);
        peer.send(Frame::Error(ErrorFrame { request_id: asked.request_id, error })).await;
    };
    let (event, ()) = soon(async { tokio::join!(reader.next(), abandoned) }).await;
    let Err(ReadError::CursorAbandoned { cursor: at, parting: Some(to) }) = event else { panic!("{event:?}") };
    assert_eq!((at, to), (cursor(6), parting));
    assert!(matches!(soon(reader.next()).await, Ok(None)), "it has ended");
}

#[tokio::test]
async fn what_comes_damaged_is_not_given() {
    let fake = Fake::new();
    let (mut reader, mut peer, asked) = open(&fake, Reader::builder(fake.address.clone())).await;
    assert_eq!(asked.from, ReadFrom::Offset(0));
    let mut damaged = Records { request_id: asked.request_id, ..records(8, &["abc"], 0) };
    let mut bytes = damaged.payload.to_vec();
    *bytes.last_mut().expect("not empty") ^= 1;
    damaged.payload = bytes.into();
    peer.send(Frame::Records(damaged)).await;
    let error = soon(reader.next()).await.expect_err("damaged");
    assert!(matches!(error, ReadError::Damaged { offset: 8, count: 1, .. }), "{error}");
    assert_eq!(reader.cursor(), None);
}

#[tokio::test]
async fn a_reader_without_permission_is_refused() {
    let fake = Fake::new();
    let meeting = fake.accept_with(|welcome| welcome.may_read = false);
    let (reader, _peer) = soon(async { tokio::join!(Reader::builder(fake.address.clone()).open(), meeting) }).await;
    let error = reader.expect_err("not allowed");
    assert_eq!((error.code(), error.is_retryable()), (Some(ErrorCode::PermissionDenied), false));
}

#[tokio::test]
async fn not_following_an_end_of_the_connection_is_an_error() {
    let fake = Fake::new();
    let (mut reader, peer, _) = open(&fake, Reader::builder(fake.address.clone())).await;
    drop(peer);
    let error = soon(reader.next()).await.expect_err("gone");
    assert!(error.is_retryable(), "{error}");
}

/// A program that asks for the next event beside other work drops the question again and again: the connection that is being
/// made meanwhile is the reader's, and is not made again each time.
#[tokio::test]
async fn a_question_that_is_dropped_leaves_the_connection_that_is_being_made() {
    let fake = Fake::new();
    let (mut reader, mut peer, _) = open(&fake, Reader::builder(fake.address.clone()).follow(true)).await;
    let cursor = Cursor { log_id: LOG, epoch: 1, offset: 0 };
    peer.send(Frame::CaughtUp(CaughtUp { request_id: 2, cursor })).await;
    soon(reader.next()).await.expect("it has caught up");
    drop(peer);
    let mut peer = soon(async {
        tokio::select! {
            event = reader.next() => panic!("{event:?}"),
            peer = fake.meet() => peer,
        }
    })
    .await;
    let greeted = tokio::spawn(async move {
        let welcome = welcome(&peer.hello);
        peer.send(Frame::Welcome(welcome)).await;
        read(&mut peer).await;
        peer.send(Frame::CaughtUp(CaughtUp { request_id: 2, cursor })).await;
        peer
    });
    let event = soon(async {
        tokio::select! {
            event = reader.next() => event,
            _ = fake.meet() => panic!("it has connected once more"),
        }
    });
    assert!(matches!(event.await, Ok(Some(Event::CaughtUp { .. }))));
    drop(greeted.await);
}
