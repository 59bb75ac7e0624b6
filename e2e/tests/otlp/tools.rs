//! Programs that a person has at hand: curl, grpcurl, telemetrygen.

use std::process::Command;

use clad_e2e::tool::run;
use clad_e2e::{Daemon, Json, Setup, json};
use serde_json::json;

use crate::{given, read};

const SERVICE: &str = "opentelemetry.proto.collector.logs.v1.LogsService";
/// Records that telemetrygen makes.
const GENERATED: usize = 50;
/// The times of a document: the record's own, and when it was observed.
const TIMES: [&str; 2] = ["1544712660300000001", "1544712660300000002"];

/// A request as the specification writes JSON, with each kind of value; ids in hex, or in what `ids` makes of them.
pub(crate) fn document(ids: [&str; 2]) -> Json {
    let values = json!([
        {"key": "text", "value": {"stringValue": "Zürich/東京"}},
        {"key": "number as text", "value": {"intValue": i64::MIN.to_string()}},
        {"key": "number", "value": {"intValue": 7}},
        {"key": "double", "value": {"doubleValue": 637.704}},
        {"key": "not finite", "value": {"doubleValue": "-Infinity"}},
        {"key": "yes", "value": {"boolValue": true}},
        {"key": "bytes", "value": {"bytesValue": "AAH+/w=="}},
        {"key": "list", "value": {"arrayValue": {"values": [{"stringValue": "many"}, {"arrayValue": {}}]}}},
        {"key": "map", "value": {"kvlistValue": {"values": [{"key": "some.key", "value": {"stringValue": "value"}}]}}},
    ]);
    let record = json!({
        "timeUnixNano": TIMES[0], "observedTimeUnixNano": TIMES[1], "severityNumber": 10, "severityText": "Information",
        "traceId": ids[0], "spanId": ids[1], "flags": 1, "eventName": "order.taken",
        "body": {"stringValue": "Example log record"}, "attributes": values, "droppedAttributesCount": 3,
    });
    json!({"resourceLogs": [{
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "my.service"}}]},
        "scopeLogs": [{
            "scope": {"name": "my.scope", "version": "1.0.0", "attributes": [
                {"key": "my.scope.attribute", "value": {"stringValue": "some scope attribute"}}
            ]},
            "logRecords": [record],
        }],
    }]})
}

/// Compares a record of [`document`] with what it must be.
pub(crate) fn is_the_document(record: &Json) {
    let wanted = json!({
        "time": "2018-12-13T14:51:00.300000001Z", "observed_time": "2018-12-13T14:51:00.300000002Z",
        "severity_number": 10, "severity_text": "Information", "component": "my.service", "body": "Example log record",
        "attributes": {"text": "Zürich/東京", "number as text": i64::MIN, "number": 7, "double": 637.704,
                       "not finite": "-Infinity", "yes": true, "bytes": {"base64": "AAH+/w=="}, "list": ["many", []],
                       "map": {"some.key": "value"}},
        "dropped_attributes_count": 3, "trace_id": "5b8efff798038103d269b633813fc60c", "span_id": "eee19b7ec3c1b174",
        "flags": 1, "event_name": "order.taken", "resource": {"service.name": "my.service"},
        "scope": {"name": "my.scope", "version": "1.0.0", "attributes": {"my.scope.attribute": "some scope attribute"}},
    });
    for (key, value) in wanted.as_object().expect("it is one") {
        assert_eq!(&record[key], value, "{key} of {record}");
    }
}

/// The ids in hex, as in JSON of OTLP.
pub(crate) const HEX: [&str; 2] = ["5B8EFFF798038103D269B633813FC60C", "EEE19B7EC3C1B174"];
/// The same in base64, as in JSON of protobuf, which grpcurl takes.
const BASE64: [&str; 2] = ["W47/95gDgQPSabYzgT/GDA==", "7uGbfsPBsXQ="];

/// Calls curl with a body; the status and what was answered.
pub(crate) fn curl(arguments: &[&str], body: &[u8]) -> (u16, String) {
    let mut command = Command::new("curl");
    command.args([
        "--silent",
        "--show-error",
        "--max-time",
        "30",
        "--write-out",
        "\n%{http_code}",
        "--data-binary",
        "@-",
    ]);
    let output = run(command.args(arguments), body);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "curl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let (answer, status) = said.rsplit_once('\n').expect("a status");
    (status.parse().expect("a status"), answer.to_owned())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    run(Command::new("gzip").arg("--stdout"), bytes).stdout
}

#[test]
#[ignore = "cargo xtask ci otlp"]
fn curl_with_json() {
    let folder = clad_e2e::Scratch::new();
    let path = folder.sockets().join("otlp.sock").display().to_string();
    // The same request by each way is stored by each.
    let daemon = Setup::new().set("ingest.otlp.path", &path).set("ingest.otlp.resend_window", "0").start();
    let (url, body) = (format!("http://{}/v1/logs", daemon.port("grpc")), document(HEX).to_string());
    let packed = gzip(body.as_bytes());
    let plain = ["-H", "Content-Type: application/json"];
    for (arguments, body) in [
        (vec![url.as_str()], body.as_bytes()),
        (vec!["--http2-prior-knowledge", &url], body.as_bytes()),
        (vec!["-H", "Content-Encoding: gzip", &url], &packed),
        (vec!["-H", "clad-ack: durable", &url], body.as_bytes()),
        (vec!["-H", "Transfer-Encoding: chunked", &url], body.as_bytes()),
        (vec!["--unix-socket", &path, "http://localhost/v1/logs"], body.as_bytes()),
    ] {
        let before = read::records(&daemon).len();
        let (status, answer) = curl(&[&plain, arguments.as_slice()].concat(), body);
        assert_eq!(status, 200, "{arguments:?}: {answer}");
        assert_eq!(json(answer.as_bytes()), json!({}), "{arguments:?}");
        let records = read::records(&daemon);
        assert_eq!(records.len(), before + 1, "{arguments:?}");
        is_the_document(&records[before]);
    }
}

fn grpcurl(arguments: &[&str], body: &str) -> String {
    let output = run(Command::new(given("CLAD_OTLP_GRPCURL")).arg("-plaintext").args(arguments), body.as_bytes());
    assert!(output.status.success(), "grpcurl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "cargo xtask ci otlp"]
fn grpcurl_lists_describes_and_exports() {
    let daemon = Daemon::start();
    let address = daemon.port("grpc").to_string();
    let listed = grpcurl(&[&address, "list"], "");
    assert!(listed.lines().any(|line| line == SERVICE), "{listed}");
    let described = grpcurl(&[&address, "describe", SERVICE], "");
    assert!(described.contains("rpc Export"), "{described}");
    let export = format!("{SERVICE}/Export");
    let answer = grpcurl(&["-H", "clad-ack: durable", "-d", "@", &address, &export], &document(BASE64).to_string());
    assert_eq!(json(answer.as_bytes()), json!({}));
    let records = read::records(&daemon);
    assert_eq!(records.len(), 1);
    is_the_document(&records[0]);
}

#[test]
#[ignore = "cargo xtask ci otlp"]
fn telemetrygen_by_grpc_and_http() {
    let daemon = Daemon::start();
    let address = daemon.port("grpc").to_string();
    for (way, transport) in [(&[][..], "otlp_grpc"), (&["--otlp-http"], "otlp_http")] {
        let before = read::records(&daemon).len();
        let mut command = Command::new(given("CLAD_OTLP_TELEMETRYGEN"));
        command.args(["logs", "--otlp-insecure", "--otlp-endpoint", &address, "--logs", &GENERATED.to_string()]);
        command.args(["--workers", "1", "--rate", "0", "--body", "generated", "--severity-number", "13"]);
        command.args(["--severity-text", "Warn", "--service", "generator", "--telemetry-attributes", "kind=\"test\""]);
        let output = run(command.args(way), b"");
        assert!(output.status.success(), "telemetrygen: {}", String::from_utf8_lossy(&output.stderr));
        let records = read::records(&daemon);
        assert_eq!(records.len(), before + GENERATED, "{transport}");
        for record in &records[before..] {
            let is = |key: &str, wanted: Json| assert_eq!(record[key], wanted, "{key} of {record}");
            is("body", json!("generated"));
            is("severity_number", json!(13));
            is("severity_text", json!("Warn"));
            is("component", json!("generator"));
            assert_eq!(record["attributes"]["kind"], "test", "{record}");
            assert_eq!(record["peer_meta"]["transport"], transport, "{record}");
        }
    }
}

/// Requests that are refused, each with its status: by the specification where that says one.
#[test]
#[ignore = "cargo xtask ci otlp"]
fn bad_requests() {
    let daemon = Setup::new().set("limits.max_message_bytes", "4MiB").start();
    let of = |path: &str| format!("http://{}{path}", daemon.port("grpc"));
    let (url, body) = (of("/v1/logs"), document(HEX).to_string().into_bytes());
    let (json_type, protobuf) = ("Content-Type: application/json", "Content-Type: application/x-protobuf");
    // Longer than a record may be, and longer than a request may be.
    let with_body = |length: usize| {
        let mut long = document(HEX);
        long["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]["body"]["stringValue"] = json!("x".repeat(length));
        long
    };
    let long = with_body(3 << 20);
    for (what, status, arguments, body) in [
        ("a path of another signal", 404, vec!["-H", json_type, &of("/v1/traces")], body.clone()),
        ("GET", 405, vec!["--request", "GET", &url], Vec::new()),
        ("a type that is none of the two", 415, vec!["-H", "Content-Type: text/plain", &url], body.clone()),
        ("half a document", 400, vec!["-H", json_type, &url], body[..body.len() / 2].to_vec()),
        ("JSON that is said to be protobuf", 400, vec!["-H", protobuf, &url], body.clone()),
        ("an encoding that nobody knows", 415, vec!["-H", json_type, "-H", "Content-Encoding: br", &url], body.clone()),
        ("gzip that is none", 400, vec!["-H", json_type, "-H", "Content-Encoding: gzip", &url], body.clone()),
        ("a record that is too long, alone", 400, vec!["-H", json_type, &url], long.to_string().into_bytes()),
        ("a request that is too long", 413, vec!["-H", json_type, &url], with_body(5 << 20).to_string().into_bytes()),
        ("a level that nobody knows", 400, vec!["-H", json_type, "-H", "clad-ack: mostly", &url], body.clone()),
    ] {
        let (found, answer) = curl(&arguments, &body);
        assert_eq!(found, status, "{what}: {answer}");
    }
    assert_eq!(read::records(&daemon).len(), 0, "something was stored");
    // Beside one that is too long the others are taken.
    let mut mixed = document(HEX);
    let good = mixed["resourceLogs"][0].clone();
    mixed["resourceLogs"] = json!([long["resourceLogs"][0], good]);
    let (status, answer) = curl(&["-H", json_type, &url], mixed.to_string().as_bytes());
    let partial = &json(answer.as_bytes())["partialSuccess"];
    assert_eq!((status, &partial["rejectedLogRecords"]), (200, &json!("1")), "{answer}");
    let records = read::records(&daemon);
    assert_eq!(records.len(), 1);
    is_the_document(&records[0]);
}
