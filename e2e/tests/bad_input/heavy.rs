//! Records that take many times as much in OTLP, or in memory, as in the log, among others that do not: what one transport
//! takes every transport takes, and what is refused costs itself alone.

use clad_client::{AppendError, Event, Producer, Reader, Ticket};
use clad_e2e::{Setup, TEST_TIMEOUT, grpc::Call};
use clad_proto::grpc::opentelemetry::proto::{common::v1 as common, logs::v1 as logs};
use clad_proto::grpc::v1::{self, append_response::Message as AppendMessage};
use clad_proto::{AckLevel, AnyValue, ErrorCode, ErrorInfo, KeyValue, ProducerId, Record};
use tokio::time::timeout;

/// `[journal] max_record_bytes` here.
const MAX_RECORD_BYTES: usize = 128 << 10;
const TRANSPORTS: [&str; 3] = ["unix", "tcp", "grpc"];

fn with_body(body: AnyValue) -> Record {
    Record { body: Some(body), ..Record::default() }
}

/// Each close below the limit, and what it is.
fn heavy() -> Vec<Record> {
    let pair = KeyValue { key: String::new(), value: None, key_index: -1 };
    let within = |each: usize| (MAX_RECORD_BYTES - 100) / each;
    vec![
        // 1 byte in the log, 4 in OTLP, a struct in memory.
        with_body(AnyValue::Array(vec![AnyValue::Bool(true); within(1)])),
        // 2 bytes and 13.
        with_body(AnyValue::Array(vec![AnyValue::Int(-1); within(2)])),
        with_body(AnyValue::Array(vec![AnyValue::Empty; within(1)])),
        Record { attributes: vec![pair; within(4)], ..Record::default() },
    ]
}

/// Everything that is handed over, in order: heavy ones among innocent ones, and some that no transport takes.
fn all() -> Vec<Record> {
    let mut records = Vec::new();
    for round in 0..2 {
        for (n, heavy) in heavy().into_iter().enumerate() {
            records.extend((0..5).map(|k| Record::text(1, 9, format!("innocent {round} {n} {k}"))));
            records.push(heavy);
            if n % 2 == 0 {
                records.push(with_body(AnyValue::Array(vec![AnyValue::Bool(false); MAX_RECORD_BYTES + 5])));
            }
        }
    }
    records.push(Record::text(1, 9, "the last"));
    records
}

/// The bytes of each record of a producer, in order.
async fn stored(address: &str, producer: ProducerId) -> Vec<Vec<u8>> {
    let mut reader = Reader::builder(address.parse().expect("an address")).open().await.expect("a reader");
    let mut all = Vec::new();
    while let Some(event) = timeout(TEST_TIMEOUT, reader.next()).await.expect("in time").expect("no error") {
        let Event::Records(chunk) = event else { panic!("{event:?}") };
        if chunk.producer_id() == producer {
            all.extend(chunk.records().map(|(_, record)| record.as_bytes().to_vec()));
        }
    }
    all
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test)
}

#[test]
fn what_one_transport_takes_all_take_and_a_refusal_costs_one_append() {
    let setup = Setup::new().set("journal.max_record_bytes", &MAX_RECORD_BYTES.to_string());
    let setup = setup.set("limits.max_append_bytes", &(2 * MAX_RECORD_BYTES).to_string());
    let daemon = setup.set("ingest.grpc.allow_read", "true").start();
    run(by_each(TRANSPORTS.map(|transport| (transport, daemon.address(transport)))));
}

async fn by_each(addresses: [(&str, String); 3]) {
    let records = all();
    let mut bytes = Vec::new();
    for (transport, address) in &addresses {
        let address = address.parse().expect("an address");
        // It is greeted when all are submitted, so that it knows no limit but its own.
        let builder = Producer::builder(address).level(AckLevel::Durable).max_buffered_bytes(256 << 20);
        let producer = builder.start().expect("a producer");
        let mut tickets: Vec<Ticket> = Vec::new();
        for record in &records {
            let room = producer.try_reserve(2 * MAX_RECORD_BYTES).expect("room");
            tickets.push(room.submit(record).expect("submitted"));
        }
        let mut next = None;
        for (record, ticket) in records.iter().zip(tickets) {
            let result = timeout(TEST_TIMEOUT, ticket).await.expect("each has its answer");
            let refused = matches!(&record.body, Some(AnyValue::Array(items)) if items.len() > MAX_RECORD_BYTES);
            match result {
                Ok(receipt) if !refused => {
                    let first = receipt.first_offset.expect("an offset");
                    assert_eq!(*next.get_or_insert(first), first, "{transport}: in order");
                    next = Some(first + 1);
                }
                Err(error @ AppendError::Refused { .. }) if refused => {
                    assert_eq!(error.code(), Some(ErrorCode::RecordTooLarge), "{transport}");
                    assert!(!error.is_retryable() && !error.maybe_written(), "{transport}: {error}");
                }
                other => panic!("{transport}: {other:?}"),
            }
        }
        assert_eq!(producer.stats().reconnects, 0, "{transport}: the connection has lasted");
        timeout(TEST_TIMEOUT, producer.flush(AckLevel::Durable)).await.expect("in time").expect("it goes on");
        bytes.push(stored(&addresses[0].1, producer.id()).await);
        assert_eq!(stored(&addresses[2].1, producer.id()).await, bytes[0], "{transport}: read over gRPC");
    }
    let innocent = records.iter().filter(|record| record.body.is_none() || record.attributes.is_empty()).count();
    assert!(
        bytes[0].len() > innocent / 2 && bytes.iter().all(|stored| *stored == bytes[0]),
        "the same bytes by each way"
    );
}

/// By hand, as a client that knows nothing of the limits: one message longer than any append can be, one that is none.
#[test]
fn a_message_of_any_length_is_answered_in_its_turn() {
    let daemon = Setup::new().set("limits.max_append_bytes", "1MiB").set("journal.max_record_bytes", "512KiB").start();
    run(by_hand(daemon.port("grpc").to_string()));
}

async fn by_hand(address: String) {
    let mut call = Call::open(&address).await;
    let message = |pairs: usize, text: usize| {
        let attributes = vec![common::KeyValue::default(); pairs];
        let record = logs::LogRecord { attributes, severity_text: "x".repeat(text), ..Default::default() };
        let scope_logs = vec![logs::ScopeLogs { log_records: vec![record], ..Default::default() }];
        Some(logs::ResourceLogs { scope_logs, ..Default::default() })
    };
    let level = v1::AckLevel::Durable.into();
    for (first_seq, pairs, text) in
        [(0, 1, 1), (1, 9, 8 << 20), (1, 9, 0), (2, 300_000, 0), (2, 200_000, 3), (3, 0, 20 << 20)]
    {
        call.ask_append(v1::Append { first_seq, level, gap: false, resource_logs: message(pairs, text) }).await;
    }
    let mut outcomes = Vec::new();
    while outcomes.len() < 6 {
        match call.answer().await {
            AppendMessage::Accepted(accepted) => outcomes.push((accepted.first_seq, None)),
            AppendMessage::Refused(refused) => {
                let error = ErrorInfo::from(refused.error.expect("an error"));
                assert!(!error.retryable && !error.maybe_written && error.limit.is_some(), "{error}");
                assert_eq!(refused.count, 1);
                outcomes.push((refused.first_seq, Some(error.code)));
            }
            AppendMessage::Watermark(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let (long, too_large) = (Some(ErrorCode::AppendTooLarge), Some(ErrorCode::RecordTooLarge));
    assert_eq!(outcomes, [(0, None), (1, long), (1, None), (2, too_large), (2, None), (3, long)]);
    call.append(3, AckLevel::Durable, "it goes on").await.expect("it goes on");
}

/// It was taken when more was allowed: who sends it again must not hear that it is certainly not written.
#[test]
fn what_is_stored_is_not_called_unwritten_when_less_is_allowed() {
    let large = |size: u64| Setup::new().set("limits.max_append_bytes", &size.to_string());
    let mut daemon = large(1 << 20).set("journal.max_record_bytes", "512KiB").start();
    let (level, id, text) = (v1::AckLevel::Durable.into(), vec![7; 16], "x".repeat(400 << 10));
    let append = |first_seq| {
        let record = logs::LogRecord { severity_text: text.clone(), ..Default::default() };
        let scope_logs = vec![logs::ScopeLogs { log_records: vec![record], ..Default::default() }];
        let resource_logs = Some(logs::ResourceLogs { scope_logs, ..Default::default() });
        v1::Append { first_seq, level, gap: false, resource_logs }
    };
    let send = |address: String, epoch: u32| {
        let (id, append) = (id.clone(), &append);
        async move {
            let mut call = Call::open_as(&address, id, epoch).await;
            let mut outcomes = Vec::new();
            for first_seq in 0..2 {
                call.ask_append(append(first_seq)).await;
                outcomes.push(loop {
                    match call.answer().await {
                        AppendMessage::Accepted(_) => break None,
                        AppendMessage::Refused(refused) => {
                            break refused.error.map(|error| (error.code, error.maybe_written));
                        }
                        _ => {}
                    }
                });
            }
            call.flush(1, AckLevel::Durable).await.expect("all that was taken is durable");
            outcomes
        }
    };
    assert_eq!(run(send(daemon.port("grpc").to_string(), 1)), [None, None]);
    // By its length in the log, and by that of its message: 7 times the limit.
    daemon.kill9();
    daemon.restart_with("journal.max_record_bytes", "16KiB");
    for (epoch, limit) in [(2, "300KiB"), (3, "32KiB")] {
        daemon.kill9();
        daemon.restart_with("limits.max_append_bytes", limit);
        let errors = run(send(daemon.port("grpc").to_string(), epoch));
        let written: Vec<_> = errors.iter().map(|error| error.as_ref().map(|(_, maybe)| *maybe)).collect();
        assert_eq!(written, [Some(true), Some(true)], "{limit}: {errors:?}");
    }
}
