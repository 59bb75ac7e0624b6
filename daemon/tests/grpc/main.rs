//! gRPC against a real daemon: every level, resends, refusals, every OTLP construct there and back, limits, health,
//! reflection, a restart, and the way down.

mod harness;
mod otlp;

use std::time::Duration;

use clad_proto::ErrorCode;
use clad_proto::grpc::opentelemetry::proto::{common::v1 as common, logs::v1 as logs, resource::v1 as resource};
use clad_proto::grpc::{from_status, v1};
use common::any_value::Value;
use tokio::time::timeout;
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use v1::append_request::Message as Asked;
use v1::append_response::Message as Answer;
use v1::read_response::Message as Given;

use harness::{Daemon, MIB, Stream, TEST_TIMEOUT, lines, message, read, records, text};

#[tokio::test]
async fn each_level_is_answered_as_it_says() {
    let daemon = Daemon::start(&[]).await;
    let mut stream = daemon.producer().await;
    assert_eq!(
        (stream.welcome.producer_id.len(), stream.welcome.secret.len(), stream.welcome.may_read),
        (16, 16, false)
    );
    assert_eq!(stream.welcome.highest_ack(), daemon.highest);

    stream.append(0, v1::AckLevel::None, lines(1)).await; // no answer
    stream.append(1, v1::AckLevel::Received, lines(2)).await;
    let accepted = stream.accepted().await;
    assert_eq!((accepted.first_seq, accepted.first_offset, accepted.count), (1, 1, 2));
    assert!(!accepted.duplicate && accepted.epoch == stream.welcome.epoch);
    let mut at = 3;
    for level in [v1::AckLevel::Written, v1::AckLevel::Durable] {
        if level > daemon.highest {
            continue;
        }
        stream.append(at, level, lines(3)).await;
        assert_eq!(stream.accepted().await.first_offset, at);
        at += 3;
        stream.reached(level, at).await;
    }

    stream.ask(Asked::Flush(v1::Flush { id: 77, level: v1::AckLevel::Written.into() })).await;
    loop {
        match stream.answer().await.unwrap() {
            Some(Answer::Watermark(mark)) if mark.flush_id == 77 => {
                assert!(mark.offset >= at);
                break;
            }
            Some(Answer::Watermark(_)) => {}
            other => panic!("not a watermark: {other:?}"),
        }
    }
    stream.ask(Asked::Bye(v1::Bye {})).await;
    assert_eq!(stream.end().await, Ok(()));
}

#[tokio::test]
async fn what_cannot_be_taken_is_refused_and_the_stream_goes_on() {
    let daemon = Daemon::start(&["journal.durability=fire_and_forget"]).await;
    let mut stream = daemon.producer().await;
    stream.append(0, v1::AckLevel::Durable, lines(2)).await;
    let (refused, error) = stream.refused().await;
    assert_eq!((refused.first_seq, refused.count, error.code), (0, 2, ErrorCode::LevelUnreachable));
    stream.append(0, v1::AckLevel::Unspecified, lines(1)).await;
    assert_eq!(stream.refused().await.1.code, ErrorCode::LevelUnreachable);

    stream.append(0, v1::AckLevel::Received, lines(3)).await;
    assert_eq!(stream.accepted().await.first_offset, 0);
    stream.append(9, v1::AckLevel::Received, lines(1)).await;
    let (_, error) = stream.refused().await;
    assert_eq!((error.code, error.expected_sequence, error.retryable), (ErrorCode::SequenceGap, Some(3), true));
    stream.append(2, v1::AckLevel::Received, lines(2)).await;
    assert_eq!(stream.refused().await.1.code, ErrorCode::SequenceOverlap);

    stream.append(3, v1::AckLevel::None, logs::ResourceLogs::default()).await; // dropped without an answer
    stream.append(3, v1::AckLevel::Received, logs::ResourceLogs::default()).await;
    assert_eq!(stream.refused().await.1.code, ErrorCode::BadRecord);
    let mut two = lines(1);
    two.scope_logs.push(two.scope_logs[0].clone());
    stream.append(3, v1::AckLevel::Received, two).await;
    let (refused, error) = stream.refused().await;
    assert_eq!((refused.count, error.code), (2, ErrorCode::BadRecord));

    stream.append(3, v1::AckLevel::Written, lines(1)).await;
    assert_eq!(stream.accepted().await.first_offset, 3);
    stream.reached(v1::AckLevel::Written, 4).await;
    // A gap that is marked is none.
    let append = v1::Append { first_seq: 100, level: 3, gap: true, resource_logs: Some(lines(1)) };
    stream.ask(Asked::Append(append)).await;
    assert_eq!(stream.accepted().await.first_offset, 4);
}

#[tokio::test]
async fn a_stream_that_breaks_the_rules_ends_with_a_status_that_says_which() {
    let daemon = Daemon::start(&["limits.handshake_timeout=1s"]).await;
    let mut stream = daemon.open().await;
    stream.append(0, v1::AckLevel::Received, lines(1)).await;
    assert_eq!(stream.end().await.unwrap_err().code, ErrorCode::MalformedFrame);
    let mut silent = daemon.open().await;
    assert_eq!(silent.end().await.unwrap_err().code, ErrorCode::HandshakeTimeout);
    let mut twice = daemon.producer().await;
    twice.ask(Asked::Hello(v1::Hello::default())).await;
    assert_eq!(twice.end().await.unwrap_err().code, ErrorCode::MalformedFrame);
    let mut future = daemon.open().await;
    let hello =
        v1::Hello { min_version: clad_proto::limits::MAX_VERSION as u32 + 1, max_version: 9, ..Default::default() };
    assert_eq!(future.hello(hello).await.unwrap_err().code, ErrorCode::UnsupportedVersion);
    let mut nameless = daemon.open().await;
    let hello = v1::Hello { min_version: 1, max_version: 1, producer_id: vec![7; 16].into(), ..Default::default() };
    assert_eq!(nameless.hello(hello).await.unwrap_err().code, ErrorCode::ProducerNotYours);
    // A connection that never speaks HTTP/2 is closed, too.
    let mut mute = tokio::net::TcpStream::connect(&daemon.grpc).await.unwrap();
    let closed = timeout(TEST_TIMEOUT, tokio::io::AsyncReadExt::read_to_end(&mut mute, &mut Vec::new())).await;
    assert!(closed.is_ok());
}

#[tokio::test]
async fn limits_are_refused_one_by_one() {
    let daemon = Daemon::start(&["limits.max_append_bytes=1MiB", "journal.max_record_bytes=256KiB"]).await;
    let mut stream = daemon.producer().await;
    let long = |bytes: usize| text(&"x".repeat(bytes));
    stream.append(0, v1::AckLevel::Received, message(vec![text("fits"), long(300 * 1024)])).await;
    let (_, error) = stream.refused().await;
    assert_eq!((error.code, error.record_index, error.limit), (ErrorCode::RecordTooLarge, Some(1), Some(256 * 1024)));
    stream.append(0, v1::AckLevel::Received, message(vec![long(200 * 1024); 6])).await;
    assert_eq!(stream.refused().await.1.code, ErrorCode::AppendTooLarge);
    stream.append(0, v1::AckLevel::Received, message(vec![long(200 * 1024); 5])).await;
    assert_eq!(stream.accepted().await.count, 5);
    // What is longer than any append can be is not even kept, and answered in its turn.
    let too_long = || message(vec![long(200 * 1024); 40]);
    stream.append(5, v1::AckLevel::Received, lines(1)).await;
    stream.append(6, v1::AckLevel::None, too_long()).await; // dropped without an answer
    stream.append(6, v1::AckLevel::Received, too_long()).await;
    stream.append(6, v1::AckLevel::Received, lines(1)).await;
    assert_eq!(stream.accepted().await.first_seq, 5);
    let (refused, error) = stream.refused().await;
    assert_eq!((refused.first_seq, refused.count, error.code), (6, 40, ErrorCode::AppendTooLarge));
    assert_eq!((error.limit, error.retryable, error.maybe_written), (Some(7 * MIB as u64 + 64 * 1024), false, false));
    assert_eq!(stream.accepted().await.first_seq, 6);
    // Two hundred times as large in memory as on the wire, if it were decoded.
    let pairs =
        |n| message(vec![logs::LogRecord { attributes: vec![common::KeyValue::default(); n], ..Default::default() }]);
    stream.append(7, v1::AckLevel::Received, pairs(300_000)).await;
    assert_eq!(stream.refused().await.1.code, ErrorCode::RecordTooLarge);
    stream.append(7, v1::AckLevel::Received, pairs(130_000)).await;
    assert_eq!(stream.accepted().await.first_seq, 7);
    // What is no append at all cannot be answered.
    let name = "x".repeat(8 * MIB);
    stream.ask(Asked::Hello(v1::Hello { name, ..Default::default() })).await;
    assert_eq!(stream.end().await.unwrap_err().code, ErrorCode::FrameTooLarge);
}

#[tokio::test]
async fn many_large_appends_pass_through_small_budgets() {
    const STREAMS: u64 = 6;
    const APPENDS: u64 = 15;
    let daemon = Daemon::start(&[
        "limits.max_append_bytes=1MiB",
        "journal.max_record_bytes=256KiB",
        "limits.max_connection_inflight_bytes=1MiB",
        "limits.max_inflight_bytes=2MiB",
    ])
    .await;
    let record = text(&"x".repeat(220 * 1024));
    let mut tasks = Vec::new();
    for _ in 0..STREAMS {
        let (mut stream, record) = (daemon.producer().await, record.clone());
        tasks.push(tokio::spawn(async move {
            let ask = stream.ask.take().unwrap();
            tokio::spawn(async move {
                for n in 0..APPENDS {
                    let (first_seq, level) = (4 * n, v1::AckLevel::Written.into());
                    let resource_logs = Some(message(vec![record.clone(); 4]));
                    let append = v1::Append { first_seq, level, gap: false, resource_logs };
                    ask.send(v1::AppendRequest { message: Some(Asked::Append(append)) }).await.unwrap();
                }
            });
            let (mut accepted, mut marked) = (0, 0);
            while let Some(answer) = stream.answer().await.unwrap() {
                match answer {
                    Answer::Accepted(a) => accepted = accepted.max(a.first_offset + u64::from(a.count)),
                    Answer::Watermark(mark) => marked = marked.max(mark.offset),
                    other => panic!("{other:?}"),
                }
            }
            assert!(accepted >= 4 * APPENDS && marked >= accepted, "all are stored: {accepted}, {marked}");
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

fn pair(key: &str, value: Option<Value>) -> common::KeyValue {
    common::KeyValue { key: key.to_owned(), value: Some(common::AnyValue { value }), key_strindex: 0 }
}

/// One message with everything that OTLP can say.
fn everything() -> logs::ResourceLogs {
    let any = |value| common::AnyValue { value };
    let values = vec![
        None,
        Some(Value::StringValue(String::new())),
        Some(Value::StringValue("grüße\0\n".into())),
        Some(Value::BytesValue(vec![0xFF, 0].into())),
        Some(Value::BytesValue(vec![].into())),
        Some(Value::BoolValue(false)),
        Some(Value::BoolValue(true)),
        Some(Value::IntValue(i64::MIN)),
        Some(Value::IntValue(-1)),
        Some(Value::DoubleValue(-0.0)),
        Some(Value::DoubleValue(f64::INFINITY)),
        Some(Value::StringValueStrindex(-3)),
        Some(Value::ArrayValue(common::ArrayValue { values: vec![] })),
        Some(Value::KvlistValue(common::KeyValueList { values: vec![pair("k", None), pair("k", None)] })),
    ];
    let mut deep = Value::IntValue(1);
    for _ in 0..20 {
        deep = Value::ArrayValue(common::ArrayValue { values: vec![any(Some(deep))] });
    }
    let mut attributes: Vec<_> = values.iter().map(|value| pair("same key", value.clone())).collect();
    attributes.push(pair("deep", Some(deep)));
    attributes.push(common::KeyValue { key: "absent".into(), value: None, key_strindex: 9 });
    let full = logs::LogRecord {
        time_unix_nano: u64::MAX,
        observed_time_unix_nano: 2,
        severity_number: -5,
        severity_text: "odd".into(),
        body: Some(any(Some(Value::ArrayValue(common::ArrayValue {
            values: values.iter().cloned().map(any).collect(),
        })))),
        attributes: attributes.clone(),
        dropped_attributes_count: 3,
        flags: 0x1_01,
        trace_id: vec![1; 16].into(),
        span_id: vec![2; 5].into(),
        event_name: "event".into(),
    };
    let mut log_records = vec![full, logs::LogRecord::default(), text("plain")];
    log_records
        .extend(values.into_iter().map(|value| logs::LogRecord { body: Some(any(value)), ..Default::default() }));
    let entity = common::EntityRef {
        schema_url: "e".into(),
        r#type: "host".into(),
        id_keys: vec!["host.id".into()],
        description_keys: vec![String::new()],
    };
    let scope = common::InstrumentationScope {
        name: "scope".into(),
        version: "1".into(),
        attributes: attributes.clone(),
        dropped_attributes_count: 4,
    };
    logs::ResourceLogs {
        resource: Some(resource::Resource { attributes, dropped_attributes_count: 5, entity_refs: vec![entity] }),
        scope_logs: vec![logs::ScopeLogs { scope: Some(scope), log_records, schema_url: "s".into() }],
        schema_url: "r".into(),
    }
}

#[tokio::test]
async fn everything_that_otlp_can_say_comes_back_equal() {
    let daemon = Daemon::start(&["ingest.grpc.allow_read=true"]).await;
    let mut stream = daemon.producer().await;
    assert!(stream.welcome.may_read);
    let mut bare = message(vec![logs::LogRecord::default()]);
    bare.resource = Some(resource::Resource::default());
    bare.scope_logs[0].scope = Some(common::InstrumentationScope::default());
    let sent = [everything(), message(vec![logs::LogRecord::default()]), bare];
    let mut at = 0;
    for message in &sent {
        stream.append(at, v1::AckLevel::Written, message.clone()).await;
        let accepted = stream.accepted().await;
        at += u64::from(accepted.count);
        stream.reached(v1::AckLevel::Written, at).await;
    }

    let given = read(&daemon, v1::ReadRequest::default()).await;
    let got = records(&given);
    assert_eq!(got.iter().map(|r| r.resource_logs.clone().unwrap()).collect::<Vec<_>>(), sent);
    assert_eq!((got[1].first_offset, got[1].first_seq), (at - 2, at - 2));
    assert_eq!(got[0].producer_id, stream.welcome.producer_id);
    assert_eq!(got[0].peer_meta.as_ref().unwrap().transport, Some(3));
    assert!(got[0].append_time > 1_700_000_000_000_000_000);
    let Some(Given::End(end)) = given.last() else { panic!("no end: {given:?}") };
    assert_eq!(end.reason(), v1::ReadEndReason::End);
    assert_eq!(end.cursor.as_ref().unwrap().offset, at);

    // Only what was asked for, from the middle of an append, and on from the cursor.
    let from = Some(v1::read_request::From::Offset(2));
    let part = read(&daemon, v1::ReadRequest { from, limit: 3, ..Default::default() }).await;
    let [Given::Records(three), Given::End(end)] = &part[..] else { panic!("{part:?}") };
    assert_eq!((three.first_offset, three.first_seq), (2, 2));
    let expected = &sent[0].scope_logs[0].log_records[2..5];
    assert_eq!(three.resource_logs.as_ref().unwrap().scope_logs[0].log_records, expected);
    assert_eq!(end.reason(), v1::ReadEndReason::Limit);
    let from = Some(v1::read_request::From::Cursor(end.cursor.clone().unwrap()));
    let rest = read(&daemon, v1::ReadRequest { from, ..Default::default() }).await;
    assert_eq!(records(&rest)[0].first_offset, 5);

    // A reader that follows gets a message when it has caught up, and then the new records.
    let from = Some(v1::read_request::From::Tail(1));
    let request = v1::ReadRequest { from, follow: true, ..Default::default() };
    let mut follow = daemon.log().await.read(request).await.unwrap().into_inner();
    let mut next = async || timeout(TEST_TIMEOUT, follow.message()).await.unwrap().unwrap().unwrap().message.unwrap();
    assert!(matches!(next().await, Given::Records(r) if r.first_offset == at - 1));
    assert!(matches!(next().await, Given::CaughtUp(cursor) if cursor.offset == at));
    stream.append(at, v1::AckLevel::Received, lines(1)).await;
    assert!(matches!(next().await, Given::Records(r) if r.first_offset == at));

    let wrong = v1::Cursor { log_id: vec![1; 16].into(), epoch: 1, offset: 0 };
    let from = Some(v1::read_request::From::Cursor(wrong));
    let request = v1::ReadRequest { from, ..Default::default() };
    let status = daemon.log().await.read(request).await.unwrap_err();
    assert_eq!((status.code(), from_status(&status).unwrap().code), (Code::NotFound, ErrorCode::CursorUnknown));
}

#[tokio::test]
async fn reading_is_denied_unless_it_is_allowed() {
    let daemon = Daemon::start(&[]).await;
    let status = daemon.log().await.read(v1::ReadRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(from_status(&status).unwrap().code, ErrorCode::PermissionDenied);
}

#[tokio::test]
async fn health_says_what_is_served() {
    for (sets, reading) in [(&[][..], 2), (&["ingest.grpc.allow_read=true"], 1)] {
        let daemon = Daemon::start(sets).await;
        let mut health = HealthClient::new(daemon.channel().await);
        // 1 is SERVING, 2 NOT_SERVING.
        for (service, status) in [("", 1), ("clad.v1.Ingest", 1), ("clad.v1.Log", reading)] {
            let begun = std::time::Instant::now();
            loop {
                let asked = HealthCheckRequest { service: service.into() };
                let reported = health.check(asked).await.map(|response| response.into_inner().status);
                if reported.as_ref().is_ok_and(|reported| *reported == status) {
                    break;
                }
                // It follows the daemon's own state, a moment behind.
                assert!(begun.elapsed() < TEST_TIMEOUT, "{service} with {sets:?}: {reported:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        let asked = HealthCheckRequest { service: "clad.v1.None".into() };
        assert_eq!(health.check(asked).await.unwrap_err().code(), Code::NotFound);
    }
}

/// Asks one version of the reflection service, whose messages are the same, for its list and one file.
macro_rules! reflected {
    ($version:ident, $channel:expr) => {{
        use reflection::server_reflection_request::MessageRequest as Ask;
        use reflection::server_reflection_response::MessageResponse as Answer;
        use tonic_reflection::pb::$version as reflection;
        let asked = |message_request| reflection::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(message_request),
        };
        let questions = tokio_stream::iter([
            asked(Ask::ListServices(String::new())),
            asked(Ask::FileContainingSymbol("opentelemetry.proto.logs.v1.LogRecord".into())),
        ]);
        let mut client = reflection::server_reflection_client::ServerReflectionClient::new($channel);
        let mut answers = client.server_reflection_info(questions).await.unwrap().into_inner();
        let list = answers.message().await.unwrap().unwrap().message_response;
        let Some(Answer::ListServicesResponse(list)) = list else { panic!("no list") };
        let file = answers.message().await.unwrap().unwrap().message_response;
        assert!(matches!(file, Some(Answer::FileDescriptorResponse(_))), "{file:?}");
        let mut names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
        names.sort();
        names
    }};
}

#[tokio::test]
async fn both_versions_of_reflection_say_what_is_here() {
    let daemon = Daemon::start(&[]).await;
    let expected = [
        "clad.v1.Ingest",
        "clad.v1.Log",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "opentelemetry.proto.collector.logs.v1.LogsService",
    ];
    assert_eq!(reflected!(v1, daemon.channel().await), expected);
    assert_eq!(reflected!(v1alpha, daemon.channel().await), expected);
}

#[tokio::test]
async fn a_producer_goes_on_after_a_restart_and_nothing_is_there_twice() {
    let mut daemon = Daemon::start(&["ingest.grpc.allow_read=true"]).await;
    let mut stream = daemon.producer().await;
    for n in 0..5 {
        stream.append(n * 2, daemon.highest, lines(2)).await;
        assert_eq!(stream.accepted().await.first_offset, n * 2);
        stream.reached(daemon.highest, n * 2 + 2).await;
    }
    let before = stream.welcome.clone();
    drop(stream);
    daemon.restart().await;

    let hello = v1::Hello {
        min_version: 1,
        max_version: 1,
        producer_id: before.producer_id.clone(),
        secret: before.secret.clone(),
        ..Default::default()
    };
    let mut thief = daemon.open().await;
    let stolen = v1::Hello { secret: vec![9; 16].into(), ..hello.clone() };
    assert_eq!(thief.hello(stolen).await.unwrap_err().code, ErrorCode::ProducerNotYours);
    let mut stream = daemon.open().await;
    stream.hello(hello).await.unwrap();
    assert_eq!(stream.welcome.log_id, before.log_id);
    let last = stream.welcome.last.as_ref().unwrap();
    assert_eq!((last.sequence, last.offset, last.level()), (9, 9, daemon.highest));

    stream.append(8, daemon.highest, lines(2)).await;
    let again = stream.accepted().await;
    assert_eq!((again.first_offset, again.duplicate), (8, true));
    stream.reached(daemon.highest, 10).await;
    stream.append(10, daemon.highest, lines(1)).await;
    assert_eq!(stream.accepted().await.first_offset, 10);
    stream.reached(daemon.highest, 11).await;
    let given = read(&daemon, v1::ReadRequest::default()).await;
    assert_eq!(records(&given).iter().map(|r| r.first_seq).collect::<Vec<_>>(), [0, 2, 4, 6, 8, 10]);
}

#[tokio::test]
async fn many_appends_at_once_are_all_answered_in_order() {
    const APPENDS: u64 = 20_000;
    let daemon = Daemon::start(&[]).await;
    let Stream { ask, mut answers, .. } = daemon.producer().await;
    // Nothing is read until the daemon has stopped to read, too.
    let ask = ask.unwrap();
    let sender = tokio::spawn(async move {
        for first_seq in 0..APPENDS {
            let level = v1::AckLevel::Received.into();
            let append = v1::Append { first_seq, level, gap: false, resource_logs: Some(lines(1)) };
            ask.send(v1::AppendRequest { message: Some(Asked::Append(append)) }).await.unwrap();
        }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    for seq in 0..APPENDS {
        let answer = timeout(TEST_TIMEOUT, answers.message()).await.unwrap().unwrap().unwrap().message.unwrap();
        assert!(
            matches!(&answer, Answer::Accepted(a) if a.first_offset == seq && a.first_seq == seq),
            "{seq}: {answer:?}"
        );
    }
    sender.await.unwrap();
    // The stream was half-closed with the sender: the end is a good one.
    assert!(timeout(TEST_TIMEOUT, answers.message()).await.unwrap().unwrap().is_none());
}

#[tokio::test]
async fn the_way_down_answers_what_was_taken_and_waits_for_nobody_else() {
    let mut daemon = Daemon::start(&["ingest.grpc.allow_read=true"]).await;
    let mut stream = daemon.producer().await;
    stream.append(0, v1::AckLevel::Written, lines(10)).await;
    assert_eq!(stream.accepted().await.count, 10);
    let request = v1::ReadRequest { follow: true, ..Default::default() };
    let mut follow = daemon.log().await.read(request).await.unwrap().into_inner();
    // Those that only watch would stay for ever.
    let mut health = HealthClient::new(daemon.channel().await);
    let mut watch = health.watch(HealthCheckRequest { service: String::new() }).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status, 1, "SERVING");

    let took = tokio::task::spawn_blocking(move || daemon.stop()).await.unwrap();
    // A minute: what it is not to wait for never ends.
    assert!(took < Duration::from_secs(60), "it took {took:?}");
    stream.reached(v1::AckLevel::Written, 10).await;
    assert_eq!(stream.end().await.unwrap_err().code, ErrorCode::ShuttingDown);
    assert_eq!(watch.message().await.unwrap().unwrap().status, 2, "NOT_SERVING");
    let end = loop {
        match timeout(TEST_TIMEOUT, follow.message()).await.unwrap() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a good end"),
            Err(status) => break from_status(&status).unwrap(),
        }
    };
    assert_eq!(end.code, ErrorCode::ShuttingDown);
}

#[tokio::test]
async fn a_connection_over_the_limit_is_refused_and_costs_the_others_nothing() {
    let daemon = Daemon::start(&["limits.max_connections=1"]).await;
    let mut stream = daemon.producer().await;
    // Root has some that nobody else gets.
    let mut reserve = Vec::new();
    for _ in 0..if nix::unistd::geteuid().is_root() { 16 } else { 0 } {
        reserve.push(tokio::net::TcpStream::connect(&daemon.grpc).await.unwrap());
    }
    let endpoint = Endpoint::try_from(format!("http://{}", daemon.grpc)).unwrap();
    let refused = async {
        let channel = endpoint.connect().await.map_err(|e| Status::unavailable(e.to_string()))?;
        HealthClient::new(channel).check(HealthCheckRequest::default()).await
    };
    assert!(timeout(TEST_TIMEOUT, refused).await.unwrap().is_err());
    let mut raw = tokio::net::TcpStream::connect(&daemon.grpc).await.unwrap();
    let mut frames = Vec::new();
    timeout(TEST_TIMEOUT, tokio::io::AsyncReadExt::read_to_end(&mut raw, &mut frames)).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&frames);
    assert!(said.ends_with("as many connections as [limits] max_connections allows are open"), "{said}");
    let mut raw = tokio::net::TcpStream::connect(&daemon.grpc).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut raw, b"POST /v1/logs HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    timeout(TEST_TIMEOUT, tokio::io::AsyncReadExt::read_to_string(&mut raw, &mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
    stream.append(0, v1::AckLevel::Received, lines(1)).await;
    assert_eq!(stream.accepted().await.count, 1);
}
