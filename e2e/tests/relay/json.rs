//! Messages of OTLP's JSON: a clad takes each, and has then what the first one has.

use std::io::{Read, Write};
use std::net::TcpStream;

use clad_e2e::{Daemon, TEST_TIMEOUT};
use clad_proto::PayloadView;
use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::ExportLogsServiceRequest;
use clad_proto::grpc::opentelemetry::proto::common::v1::any_value::Value;
use clad_proto::grpc::opentelemetry::proto::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue, KeyValueList,
};
use clad_proto::grpc::opentelemetry::proto::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use clad_proto::grpc::opentelemetry::proto::resource::v1::Resource;
use prost::Message as _;

use super::forward::{appends, small};
use super::nats::{Server, relay_at, wait_stored};

fn any(value: Value) -> AnyValue {
    AnyValue { value: Some(value) }
}

fn pair(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(any(value)), ..KeyValue::default() }
}

/// A record with a value of each kind, and one with nothing.
fn logs() -> ResourceLogs {
    let double = |number| any(Value::DoubleValue(number));
    let numbers = [0.1, -0.0, 1e300, 5e-324, f64::INFINITY, f64::NEG_INFINITY, f64::NAN].map(double).to_vec();
    let list = vec![pair("", Value::BoolValue(false)), KeyValue { key: "nothing".to_owned(), ..KeyValue::default() }];
    let whole = LogRecord {
        time_unix_nano: u64::MAX,
        observed_time_unix_nano: 1,
        severity_number: 17,
        severity_text: "a \"quoted\" \u{1F600}\u{0}".to_owned(),
        body: Some(any(Value::BytesValue((0..=255).collect::<Vec<u8>>().into()))),
        attributes: vec![
            pair("numbers", Value::ArrayValue(ArrayValue { values: numbers })),
            pair("list", Value::KvlistValue(KeyValueList { values: list })),
            pair("least", Value::IntValue(i64::MIN)),
            pair("empty", Value::StringValue(String::new())),
        ],
        dropped_attributes_count: 3,
        flags: 1,
        trace_id: [0xAB; 16].to_vec().into(),
        span_id: [1; 8].to_vec().into(),
        event_name: "an.event".to_owned(),
    };
    let scope = InstrumentationScope { name: "scope".to_owned(), version: "1".to_owned(), ..Default::default() };
    let resource = Resource {
        attributes: vec![pair("service.name", Value::StringValue("json".to_owned()))],
        dropped_attributes_count: 2,
        ..Resource::default()
    };
    let records = vec![whole, LogRecord::default()];
    let scope_logs = vec![ScopeLogs { scope: Some(scope), log_records: records, schema_url: "of-scope".to_owned() }];
    ResourceLogs { resource: Some(resource), scope_logs, schema_url: "of-resource".to_owned() }
}

/// Hands a request over.
fn post(daemon: &Daemon, kind: &str, body: &[u8]) {
    let mut stream = TcpStream::connect(daemon.port("grpc")).expect("a daemon");
    stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("set");
    let head = format!(
        "POST /v1/logs HTTP/1.1\r\nhost: clad\r\ncontent-type: application/{kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// What a log has, a message for each record, without the attributes that the relay adds. In bytes: no number is equal to itself there.
fn records(daemon: &Daemon) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (count, _, payload) in appends(daemon) {
        let view = PayloadView::parse(&payload, count).expect("a payload");
        for at in 0..count {
            let mut logs = clad_proto::otlp::to_otlp_slice(&view, at, 1);
            for record in logs.scope_logs.iter_mut().flat_map(|logs| &mut logs.log_records) {
                record.attributes.retain(|pair| !pair.key.starts_with("clad."));
            }
            all.push(logs.encode_to_vec());
        }
    }
    all
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_message_of_json_is_a_record_that_a_clad_takes() {
    let (near, far, server) = (small().start(), small().start(), Server::start());
    server.make();
    let sent = ExportLogsServiceRequest { resource_logs: vec![logs()] };
    post(&near, "x-protobuf", &sent.encode_to_vec());
    let mut relay = relay_at("test", &near, server.address, "format = \"otlp_json\"");
    relay.start();
    wait_stored(&mut relay, &near);
    let found = server.read();
    assert_eq!(found.len(), 2);
    for (offset, message) in found.iter().enumerate() {
        let json = clad_e2e::json(&message.data);
        let record = &json["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
        let added = record["attributes"].as_array().expect("attributes");
        let place = added.iter().find(|pair| pair["key"] == "clad.offset").expect("its offset");
        assert_eq!(place["value"]["intValue"], offset.to_string(), "64 bits are a string");
        post(&far, "json", &message.data);
    }
    let (here, there) = (records(&near), records(&far));
    assert_eq!(here.len(), 2);
    assert_eq!(there, here);
}
