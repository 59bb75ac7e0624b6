//! No room: who is dropped, who waits and for how long, and that every drop is counted and reported.

mod support;

use clad_client::*;
use clad_proto::{PayloadView, frame::*};
use std::time::{Duration, Instant};
use support::*;

const ROOM_BYTES: usize = 8192;
/// Room for an append of one of these records, about 800 bytes with its overhead.
const TEXT_BYTES: usize = 460;

fn entry(number: usize, severity: i32) -> Record {
    let mut text = format!("{number} ");
    text.push_str(&"x".repeat(TEXT_BYTES));
    Record::text(1, severity, text)
}

/// Numbers of the records in an append; nothing for a report of drops.
fn numbers(append: &Append) -> Vec<usize> {
    let view = PayloadView::parse(&append.payload, append.head.count).expect("a payload");
    let records = view.records().filter(|record| record.event_name() != DROPS_EVENT_NAME);
    let number = |record: RecordView<'_>| {
        let text = std::str::from_utf8(record.body_bytes().expect("text")).expect("text");
        text.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
    };
    records.map(number).collect()
}

/// The counts that an append reports, by key, if it is a report of drops.
fn report(append: &Append) -> Option<Vec<(String, u64)>> {
    let view = PayloadView::parse(&append.payload, append.head.count).expect("a payload");
    let record = view.records().next().expect("a record").to_owned();
    if record.event_name != DROPS_EVENT_NAME {
        return None;
    }
    let Some(AnyValue::String(text)) = &record.body else { panic!("a report has a text") };
    assert!(text.contains("dropped between 20") && text.ends_with('Z'), "{text}");
    let count = |pair: &KeyValue| match pair.value {
        Some(AnyValue::Int(count)) => (pair.key.replace("clad.dropped.", ""), count as u64),
        _ => panic!("{pair:?}"),
    };
    Some(record.attributes.iter().map(count).filter(|(key, _)| !key.ends_with("nano")).collect())
}

/// Answers everything until the client says good-bye; the records that were stored, in order, and the reports.
async fn store_all(mut peer: Peer) -> (Vec<usize>, Vec<Vec<(String, u64)>>) {
    let (mut stored, mut reports, mut end, mut expected) = (Vec::new(), Vec::new(), 0, 0);
    while let Some(frame) = peer.try_next().await {
        match frame {
            Frame::Append(append) => {
                let head = append.head;
                assert_eq!((head.first_seq, head.gap), (expected, false), "sequences are dense");
                expected += u64::from(head.count);
                stored.extend(numbers(&append));
                reports.extend(report(&append));
                peer.accepted(&append, end, 1).await;
                end += u64::from(head.count);
                peer.durable(end).await;
            }
            Frame::Flush(flush) => peer.watermark(flush.request_id, flush.level, end, 1, 0).await,
            Frame::Bye => break,
            other => panic!("{other:?}"),
        }
    }
    (stored, reports)
}

/// Offers so many records to a producer without a daemon, then lets a daemon come and take what is left.
async fn flood(overload: Overload, severity: impl Fn(usize) -> i32, count: usize) -> (Vec<usize>, Stats) {
    let fake = Fake::new();
    let producer = fake.builder().overload(overload).max_buffered_bytes(ROOM_BYTES).start().expect("started");
    let mut tickets = Vec::new();
    for number in 0..count {
        let offered = producer.offer(&entry(number, severity(number)), &Call::new());
        tickets.push(offered.map_err(|error| assert!(matches!(error, SendError::Submit(SubmitError::Dropped(_))))));
        assert!(producer.stats().buffered_bytes <= ROOM_BYTES as u64, "memory is bounded");
    }
    let storing = tokio::spawn(async move { store_all(fake.accept().await).await });
    let mut stored = Vec::new();
    for (number, ticket) in tickets.into_iter().enumerate() {
        let Ok(ticket) = ticket else { continue };
        match soon(ticket).await {
            Ok(_) => stored.push(number),
            Err(AppendError::Dropped { reason: DropReason::Oldest }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let summary = soon(producer.close()).await.expect("ended");
    let (in_log, reports) = soon(storing).await.expect("a daemon");
    assert_eq!(in_log, stored, "what has a receipt is there, once, in order");
    let stats = summary.stats;
    assert_eq!(stats.submitted - stats.drop_reports, count as u64);
    assert_eq!(stored.len() as u64 + stats.dropped, count as u64, "stored and dropped is all: {stats:?}");
    assert_eq!((stats.failed, stats.acked, stats.buffered_bytes), (0, stored.len() as u64 + stats.drop_reports, 0));
    let reported: u64 = reports.iter().flatten().filter(|(key, _)| key == "records").map(|(_, count)| count).sum();
    assert_eq!(reported, stats.dropped, "every drop is in a report: {reports:?}");
    for reason in DropReason::ALL {
        let of_it = reports.iter().flatten().filter(|(key, _)| key == reason.name()).map(|(_, count)| count);
        assert_eq!(of_it.sum::<u64>(), stats.dropped_by.of(reason), "{reason:?}");
    }
    assert_eq!(reports.len() as u64, stats.drop_reports);
    (stored, stats)
}

#[tokio::test]
async fn the_newest_are_dropped_by_default() {
    let (stored, stats) = flood(Overload::default(), |_| 9, 100).await;
    assert_eq!(stored, Vec::from_iter(0..stored.len()));
    assert!(stored.len() > 5 && stats.dropped_by.of(DropReason::NoRoom) == stats.dropped);
}

#[tokio::test]
async fn the_oldest_that_were_not_sent_make_room() {
    let (stored, stats) = flood(Overload::DropOldest, |_| 9, 100).await;
    assert_eq!(stored, Vec::from_iter(100 - stored.len()..100));
    assert!(stored.len() > 5 && stats.dropped_by.of(DropReason::Oldest) == stats.dropped);
}

/// A group that waits for more records is what was handed over last, and makes room as anything else.
#[tokio::test]
async fn an_open_group_makes_room() {
    let fake = Fake::new();
    let builder = fake.builder().overload(Overload::DropOldest).max_append_records(1000).linger(Duration::MAX);
    let producer = builder.max_buffered_bytes(4096).start().expect("started");
    for number in 0..100 {
        let offered = producer.offer(&Record::text(1, 9, "short"), &Call::new());
        assert!(offered.is_ok(), "{number}: {offered:?}");
    }
    let dropped = producer.stats().dropped_by;
    assert!(dropped.of(DropReason::Oldest) > 50 && dropped.of(DropReason::NoRoom) == 0, "{dropped:?}");
}

/// Who waits in the queue for much room does not get what others drop for their own records.
#[tokio::test]
async fn what_is_dropped_for_a_record_makes_room_for_that_record() {
    let fake = Fake::new();
    let producer =
        fake.builder().overload(Overload::DropOldest).max_buffered_bytes(ROOM_BYTES).start().expect("started");
    let offer = |number| producer.offer(&entry(number, 9), &Call::new());
    while producer.stats().dropped == 0 {
        drop(offer(0).expect("room is made"));
    }
    let reserving = tokio::spawn({
        let producer = producer.clone();
        async move { drop(producer.reserve(ROOM_BYTES - 512).await) }
    });
    tokio::task::yield_now().await;
    for number in 1..100 {
        assert!(offer(number).is_ok(), "{number}: {:?}", producer.stats());
    }
    reserving.abort();
}

/// Many threads make room at once, while the task moves what they have handed over: what one has freed is its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_make_room_for_many_threads() {
    let fake = Fake::new();
    let builder = fake.builder().overload(Overload::DropOldest).max_buffered_bytes(ROOM_BYTES);
    let producer = builder.start().expect("started");
    let offering: Vec<_> = (0..4)
        .map(|_| {
            let producer = producer.clone();
            std::thread::spawn(move || {
                (0..10_000).for_each(|number| drop(producer.offer(&entry(number, 9), &Call::new())))
            })
        })
        .collect();
    offering.into_iter().for_each(|thread| thread.join().expect("it never panics"));
    let stats = producer.stats();
    assert_eq!(
        (stats.submitted - stats.drop_reports, stats.dropped_by.of(DropReason::NoRoom)),
        (40_000, 0),
        "{stats:?}"
    );
    assert_eq!(stats.dropped_by.of(DropReason::Oldest), stats.dropped);
}

#[tokio::test]
async fn what_is_below_a_severity_makes_room_for_what_is_not() {
    let overload = Overload::DropBelow { severity: Severity::WARN, wait: Duration::ZERO };
    // Few enough are above that they all fit.
    let severity = |number| if number % 20 == 19 { 17 } else { 9 };
    let (stored, stats) = flood(overload, severity, 100).await;
    for kept in (0..100).filter(|number| severity(*number) == 17) {
        assert!(stored.contains(&kept), "{kept}: {stored:?}");
    }
    assert!(stats.dropped_by.of(DropReason::Severity) > 0 && stats.dropped_by.of(DropReason::Oldest) > 0, "{stats:?}");
    // Where all are above, there is nothing to drop for them.
    let (stored, stats) = flood(overload, |_| 13, 40).await;
    assert_eq!(stored, Vec::from_iter(0..stored.len()));
    assert_eq!(stats.dropped_by.of(DropReason::NoRoom), stats.dropped);
}

/// What the daemon has on the wire is never dropped, whatever comes.
#[tokio::test]
async fn what_was_sent_is_not_dropped_and_sequences_stay_dense() {
    let fake = Fake::new();
    let builder = fake.builder().overload(Overload::DropOldest).max_buffered_bytes(ROOM_BYTES).max_in_flight_appends(2);
    let (producer, mut peer) = fake.producer(builder).await;
    let offer = |number| producer.offer(&entry(number, 9), &Call::new()).expect("room is made");
    let mut tickets: Vec<_> = (0..2).map(offer).collect();
    let sent = [peer.append().await, peer.append().await];
    tickets.extend((2..60).map(offer));
    tokio::task::yield_now().await;
    tickets.extend((60..100).map(offer));
    for (append, offset) in sent.iter().zip(0..) {
        peer.accepted(append, offset, 1).await;
    }
    peer.durable(2).await;
    let mut tickets = tickets.into_iter();
    for ticket in tickets.by_ref().take(2) {
        soon(ticket).await.expect("it was sent");
    }
    let next = peer.append().await;
    assert_eq!((next.head.first_seq, next.head.gap), (2, false));
    assert!(numbers(&next)[0] > 60, "older ones made room");
    let mut gone = 0;
    for ticket in tickets.take(numbers(&next)[0] - 2) {
        assert!(matches!(soon(ticket).await, Err(AppendError::Dropped { .. })));
        gone += 1;
    }
    assert_eq!(producer.stats().dropped, gone);
}

/// A call waits for its deadline at most, and takes what comes before it; in a thread of the runtime, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_is_waited_for_and_no_longer() {
    let fake = Fake::new();
    let (producer, mut peer) = fake.producer(fake.builder().max_buffered_bytes(2048)).await;
    let fill = producer.offer(&entry(0, 9), &Call::new()).expect("room");
    let second = producer.offer(&entry(1, 9), &Call::new()).expect("room");
    let wait = Call::new().on_overload(Overload::Wait(Duration::from_millis(50)));
    let start = Instant::now();
    let refused = producer.offer(&Record::text(1, 9, "y".repeat(1200)), &wait);
    assert!(matches!(refused, Err(SendError::Submit(SubmitError::Dropped(DropReason::Deadline)))));
    assert!(start.elapsed() >= Duration::from_millis(50));
    let long = Call::new().on_overload(Overload::Wait(Duration::MAX));
    let waiting = {
        let producer = producer.clone();
        tokio::task::spawn_blocking(move || producer.offer(&Record::text(1, 9, "z".repeat(1200)), &long))
    };
    let sent = [peer.append().await, peer.append().await];
    for (append, offset) in sent.iter().zip(0..) {
        peer.accepted(append, offset, 1).await;
    }
    peer.durable(2).await;
    soon(fill).await.expect("durable");
    soon(second).await.expect("durable");
    let third = soon(waiting).await.expect("ran").expect("room came");
    drop(third);
    let stats = producer.stats();
    assert_eq!((stats.dropped, stats.dropped_by.of(DropReason::Deadline)), (1, 1));
}

#[tokio::test]
async fn a_flush_reports_what_was_dropped_without_a_ticket() {
    let fake = Fake::new();
    let producer = fake.builder().overload(Overload::DropOldest).max_buffered_bytes(2048).start().expect("started");
    let mut batch = producer.batch();
    for number in 0..10 {
        batch.push(&entry(number, 9)).expect("room");
        producer.post_batch(&mut batch, &Call::new()).expect("room is made");
        assert!(batch.is_empty());
    }
    let storing = tokio::spawn(async move { store_all(fake.accept().await).await });
    let flushed = soon(producer.flush(AckLevel::Durable)).await;
    assert!(matches!(flushed, Err(AppendError::Dropped { .. })), "{flushed:?}");
    soon(producer.flush(AckLevel::Durable)).await.expect("it is reported once");
    let stats = soon(producer.close()).await.expect("ended").stats;
    let (stored, _) = soon(storing).await.expect("a daemon");
    assert_eq!(stored.len() as u64 + stats.dropped, 10);
}

/// Too long, after the end, and never handed over at all: an error, and it counts.
#[tokio::test]
async fn what_cannot_be_taken_is_counted_and_never_panics() {
    let fake = Fake::new();
    let producer = fake.builder().max_buffered_bytes(1 << 20).start().expect("started");
    let long = Record::text(1, 9, "x".repeat(3 << 20));
    let deep = (0..100).fold(AnyValue::Int(1), |inner, _| AnyValue::Array(vec![inner]));
    let deep = Record {
        attributes: vec![KeyValue { key: "deep".to_owned(), value: Some(deep), key_index: 0 }],
        ..Record::text(1, 9, "nested")
    };
    for bad in [long, deep] {
        assert!(matches!(producer.offer(&bad, &Call::new()), Err(SendError::Submit(SubmitError::Record { .. }))));
    }
    let longer_than_the_room = Record::text(1, 9, "x".repeat(1 << 20));
    let refused = producer.offer(&longer_than_the_room, &Call::new());
    assert!(matches!(refused, Err(SendError::Submit(SubmitError::Dropped(DropReason::TooLarge)))));
    assert!(matches!(
        producer.post_batch(&mut producer.batch(), &Call::new()),
        Err(SendError::Submit(SubmitError::Empty))
    ));
    producer.count_dropped(DropReason::Recursive);
    let other = producer.clone();
    let storing = tokio::spawn(async move { store_all(fake.accept().await).await });
    soon(producer.close()).await.expect("ended");
    let (_, reports) = soon(storing).await.expect("a daemon");
    let want = [("records", 4), ("too_large", 3), ("recursive", 1)].map(|(key, count)| (key.to_owned(), count));
    assert_eq!(reports, [Vec::from(want)]);
    let refused = other.offer(&entry(0, 9), &Call::new());
    assert!(matches!(refused, Err(SendError::Submit(SubmitError::Dropped(DropReason::Ended)))), "{refused:?}");
    let stats = other.stats();
    assert_eq!((stats.dropped, stats.dropped_by.of(DropReason::Ended)), (5, 1));
}

#[test]
fn a_program_without_a_runtime_has_the_same_receipts() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let fake = runtime.block_on(async { Fake::new() });
    let builder = fake.builder();
    let storing = runtime.spawn(async move { store_all(fake.accept().await).await });
    let producer = blocking::Producer::connect(builder).expect("connected");
    let receipt = producer.append(&[entry(0, 9), entry(1, 9)]).expect("durable");
    assert_eq!((receipt.first_offset, receipt.count, receipt.level), (Some(0), 2, AckLevel::Durable));
    let ticket = producer.offer(&entry(2, 9), &Call::new()).expect("room");
    assert_eq!(ticket.wait(Duration::ZERO).expect("durable").first_offset, Some(2));
    producer.flush(AckLevel::Durable, Duration::from_secs(60)).expect("durable");
    let summary = producer.close(Duration::from_secs(60)).expect("ended");
    assert_eq!(summary.stats.acked, 3);
    assert_eq!(runtime.block_on(storing).expect("a daemon").0, [0, 1, 2]);
}

/// A listener that never answers: every call and every wait ends.
#[test]
fn nobody_hangs_at_a_daemon_that_never_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("clad.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let builder = || Producer::builder(Address::unix(&path)).component("test").max_buffered_bytes(ROOM_BYTES);
    let quick = builder().connect_timeout(Duration::from_millis(50));
    assert!(matches!(blocking::Producer::connect(quick), Err(ConnectError::Timeout { .. })));
    let producer = blocking::Producer::start(builder()).expect("started");
    let call = Call::new().on_overload(Overload::Wait(Duration::from_millis(1)));
    let dropped = (0..50).filter(|number| producer.offer(&entry(*number, 9), &call).is_err()).count();
    assert!(dropped > 0);
    let flushed = producer.flush(AckLevel::Written, Duration::from_millis(50));
    assert!(matches!(flushed, Err(AppendError::DeliveryTimeout { maybe_written: true, .. })), "{flushed:?}");
    assert!(producer.close(Duration::from_millis(50)).is_err());
}
