//! A reader with a filter or times against daemons played by hand: one that filters, one that knows no filters, one that
//! refuses.

mod support;

use clad_client::*;
use clad_proto::{Group, PayloadBuilder, frame::*};
use std::time::Duration;
use support::*;

/// An append: a severity and a body for each record.
fn append(request_id: u32, first_offset: u64, records: &[(i32, &str)]) -> Frame {
    let records: Vec<_> = records.iter().map(|(severity, body)| Record::text(1, *severity, *body)).collect();
    append_of(request_id, first_offset, &records)
}

fn append_of(request_id: u32, first_offset: u64, records: &[Record]) -> Frame {
    let mut builder = PayloadBuilder::new(&Group::component_named("app")).expect("fits");
    records.iter().for_each(|record| builder.push(record).expect("fits"));
    let payload = builder.finish();
    let head = RecordsHead {
        epoch: 1,
        count: payload.count,
        first_offset,
        append_time: 150,
        payload_crc: payload.checksum(),
        first_seq: first_offset,
        take: payload.count,
        ..RecordsHead::default()
    };
    Frame::Records(Records {
        request_id,
        head,
        peer_meta: PeerMeta::default().to_bytes().into(),
        payload: payload.bytes,
    })
}

fn loud() -> Filter {
    Filter::new().severity_at_least(Severity(17))
}

fn cursor(offset: u64) -> Cursor {
    Cursor { log_id: LOG, epoch: 1, offset }
}

async fn asked(peer: &mut Peer) -> Read {
    match peer.next().await {
        Frame::Read(read) => read,
        other => panic!("{other:?} where READ was expected"),
    }
}

async fn open(fake: &Fake, builder: ReaderBuilder) -> (Reader, Peer, Read) {
    let builder = builder.backoff(Duration::from_millis(1), Duration::from_millis(10));
    let meeting = async {
        let mut peer = fake.accept().await;
        let read = asked(&mut peer).await;
        (peer, read)
    };
    let (reader, (peer, read)) = soon(async { tokio::join!(builder.open(), meeting) }).await;
    (reader.expect("opened"), peer, read)
}

fn bodies(event: Result<Option<Event>, ReadError>) -> Vec<(u64, String)> {
    match event {
        Ok(Some(Event::Records(chunk))) => {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
            let all: Vec<_> =
                chunk.records().map(|(offset, record)| (offset, text(record.body_bytes().expect("a body")))).collect();
            let (first, last) = (all.first().expect("at least one").0, all.last().expect("at least one").0);
            assert_eq!((chunk.first_offset(), chunk.end_offset(), chunk.count()), (first, last + 1, all.len() as u32));
            assert_eq!(chunk.first_sequence(), first);
            all
        }
        other => panic!("{other:?}"),
    }
}

fn texts(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected.iter().map(|(offset, text)| (*offset, (*text).to_owned())).collect()
}

/// Whole appends come: what does not match in them is dropped here. A daemon that knows no filters sends every append.
#[tokio::test]
async fn what_does_not_match_is_dropped_here_too() {
    let fake = Fake::new();
    let (mut reader, mut peer, read) =
        open(&fake, Reader::builder(fake.address.clone()).filter(loud()).limit(5).follow(true)).await;
    assert_eq!(read.filter, Some(loud().to_bytes().expect("a filter")));
    assert_eq!(read.limit, None, "the daemon counts what it sends");
    let id = read.request_id;
    peer.send(append(id, 0, &[(9, "a"), (17, "b"), (9, "c"), (21, "d"), (9, "e")])).await;
    peer.send(append(id, 5, &[(9, "f")])).await;
    peer.send(append(id, 6, &[(9, "g"), (17, "h"), (17, "i")])).await;
    assert_eq!(bodies(soon(reader.next()).await), texts(&[(1, "b"), (3, "d")]));
    assert_eq!(reader.cursor(), Some(cursor(5)), "behind the whole append");
    assert_eq!(bodies(soon(reader.next()).await), texts(&[(7, "h"), (8, "i")]));
    peer.send(append(id, 9, &[(9, "j")])).await;
    peer.send(Frame::CaughtUp(CaughtUp { request_id: id, cursor: cursor(10) })).await;
    assert!(matches!(soon(reader.next()).await, Ok(Some(Event::CaughtUp { cursor: at })) if at == cursor(10)));
    // The limit counts what matches, and the place is behind the last of those.
    peer.send(append(id, 10, &[(9, "k"), (17, "l"), (17, "m")])).await;
    assert_eq!(bodies(soon(reader.next()).await), texts(&[(11, "l")]));
    assert!(matches!(soon(reader.next()).await, Ok(None)));
    assert_eq!(reader.cursor(), Some(cursor(12)));
    assert!(peer.try_next().await.is_none(), "it wants no more");
}

#[tokio::test]
async fn the_place_moves_over_what_is_passed_over() {
    let fake = Fake::new();
    let (mut reader, mut peer, read) =
        open(&fake, Reader::builder(fake.address.clone()).filter(loud()).follow(true)).await;
    let id = read.request_id;
    peer.send(Frame::Progress(Progress { request_id: id, cursor: cursor(70) })).await;
    assert!(matches!(soon(reader.next()).await, Ok(Some(Event::Progress { cursor: at })) if at == cursor(70)));
    assert_eq!(reader.cursor(), Some(cursor(70)));
    // Nobody filtered these: the reader reports its place from time to time itself.
    let body = "x".repeat(400 << 10);
    let appends = async {
        for at in 70..73 {
            peer.send(append(id, at, &[(9, &body)])).await;
        }
    };
    let (event, ()) = soon(async { tokio::join!(reader.next(), appends) }).await;
    assert!(matches!(event, Ok(Some(Event::Progress { cursor: at })) if at == cursor(73)));
    peer.send(append(id, 73, &[(9, "quiet")])).await;
    drop(peer);
    let again = async {
        let mut peer = fake.accept().await;
        let read = asked(&mut peer).await;
        peer.send(append(read.request_id, 74, &[(17, "b")])).await;
        (peer, read)
    };
    let (event, (_peer, read)) = soon(async { tokio::join!(reader.next(), again) }).await;
    assert_eq!(bodies(event), texts(&[(74, "b")]));
    assert_eq!((read.from, read.filter.is_some()), (ReadFrom::Cursor(cursor(74)), true));
}

/// At once, at the open and in the middle: what the daemon does not evaluate is evaluated here.
#[tokio::test]
async fn a_filter_that_is_refused_is_evaluated_here() {
    let fake = Fake::new();
    let (mut reader, mut peer, read) = open(&fake, Reader::builder(fake.address.clone()).filter(loud())).await;
    let error = ErrorInfo::new(ErrorCode::FilterUnsupported, "no");
    peer.send(Frame::Error(ErrorFrame { request_id: read.request_id, error: error.clone() })).await;
    let again = async {
        let mut peer = fake.accept().await;
        let read = asked(&mut peer).await;
        peer.send(append(read.request_id, 0, &[(9, "a"), (17, "b")])).await;
        peer.send(Frame::Error(ErrorFrame { request_id: read.request_id, error })).await;
        (peer, read)
    };
    let (event, (_peer, read)) = soon(async { tokio::join!(reader.next(), again) }).await;
    assert_eq!(read.filter, None);
    assert_eq!(bodies(event), texts(&[(1, "b")]));
    let twice = soon(reader.next()).await.expect_err("it asked without a filter");
    assert_eq!(twice.code(), Some(ErrorCode::FilterUnsupported));
}

#[tokio::test]
async fn a_filter_that_is_none_is_an_error_before_anything_is_sent() {
    let address = Address::unix("/nonexistent");
    let none = Filter::new().attribute("a", AnyValue::Array(vec![]));
    let error = Reader::builder(address).filter(none).open().await.expect_err("no filter");
    assert!(matches!(error, ReadError::Filter(FilterError::List)) && !error.is_retryable(), "{error}");
    // One that no READ takes is this client's alone.
    let fake = Fake::new();
    let long = Filter::new().body_contains("x".repeat(5000));
    let (_reader, _peer, read) = open(&fake, Reader::builder(fake.address.clone()).filter(long)).await;
    assert_eq!(read.filter, None);
}

/// A record with its own time, and the time when it was seen; 0 is none.
fn timed(time: u64, observed: u64, body: &str) -> Record {
    let mut record = Record::text(time, 9, body);
    record.observed_time_unix_nano = observed;
    record
}

/// The daemon sends an append whole that is partly outside: each record is compared here, by its own time, else that when
/// it was seen, else that of the append (150).
#[tokio::test]
async fn each_record_is_compared_with_the_times() {
    let fake = Fake::new();
    let builder = Reader::builder(fake.address.clone()).since(100).until(200).limit(6);
    let (mut reader, mut peer, read) = open(&fake, builder).await;
    assert_eq!((read.since, read.until), (Some(100), Some(200)));
    assert_eq!(read.limit, None, "the daemon counts what it sends");
    let id = read.request_id;
    let records = [
        timed(99, 150, "before"),
        timed(100, 1, "first"),
        timed(0, 99, "seen before"),
        timed(0, 200, "seen"),
        timed(0, 0, "neither"),
        timed(201, 0, "after"),
        timed(u64::MAX, 0, "beyond"),
    ];
    peer.send(append_of(id, 10, &records)).await;
    peer.send(append_of(id, 17, &[timed(99, 0, "no"), timed(201, 0, "no")])).await;
    peer.send(append_of(id, 19, &[timed(99, 0, "no"), timed(200, 0, "last"), timed(99, 0, "no")])).await;
    assert_eq!(bodies(soon(reader.next()).await), texts(&[(11, "first"), (13, "seen"), (14, "neither")]));
    assert_eq!(reader.cursor(), Some(cursor(17)), "behind the whole append");
    assert_eq!(bodies(soon(reader.next()).await), texts(&[(20, "last")]));
    // The limit counts what is given.
    peer.send(append_of(id, 22, &[timed(1, 0, "no"), timed(120, 0, "a"), timed(130, 0, "b"), timed(140, 0, "c")]))
        .await;
    assert_eq!(bodies(soon(reader.next()).await), texts(&[(23, "a"), (24, "b")]));
    assert!(matches!(soon(reader.next()).await, Ok(None)));
    assert_eq!(reader.cursor(), Some(cursor(25)));
}

#[tokio::test]
async fn filter_and_times_hold_together() {
    let fake = Fake::new();
    let builder = Reader::builder(fake.address.clone()).since(100).filter(Filter::new().body_contains("yes"));
    let (mut reader, mut peer, read) = open(&fake, builder).await;
    assert!(read.filter.is_some());
    let records =
        [timed(99, 0, "yes"), timed(100, 0, "no"), timed(100, 0, "yes"), timed(i64::MAX as u64 + 1, 0, "yes")];
    peer.send(append_of(read.request_id, 0, &records)).await;
    assert_eq!(bodies(soon(reader.next()).await), texts(&[(2, "yes"), (3, "yes")]));
}
