//! OTLP against a real daemon: each answer of its table, over gRPC and HTTP, on each of its sockets; and requests that are
//! made to hurt.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use clad_proto::grpc::opentelemetry::proto::collector::logs::v1 as collector;
use clad_proto::grpc::opentelemetry::proto::{common::v1 as common, logs::v1 as logs};
use clad_proto::grpc::v1;
use collector::logs_service_client::LogsServiceClient;
use collector::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use common::any_value::Value;
use prost::Message;
use tonic::{Code, Request, Status};

use crate::harness::{Daemon, MIB, TEST_TIMEOUT, lines, message, read, records, text};

const PROTOBUF: (&str, &str) = ("content-type", "application/x-protobuf");
const JSON: (&str, &str) = ("content-type", "application/json");

fn export(resource_logs: Vec<logs::ResourceLogs>) -> ExportLogsServiceRequest {
    ExportLogsServiceRequest { resource_logs }
}

/// An answer over HTTP/1.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn has(&self, header: &str) -> bool {
        self.head.to_ascii_lowercase().contains(header)
    }

    fn partial(&self) -> Option<collector::ExportLogsPartialSuccess> {
        assert_eq!(self.status, 200, "{}", self.head);
        ExportLogsServiceResponse::decode(&*self.body).expect("a response").partial_success
    }

    /// Text of `google.rpc.Status`: its second field.
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Reads an answer to its end: by its length or its chunks, or by the end of the connection.
fn answer(stream: &mut impl Read) -> Answer {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(answer) = parsed(&bytes) {
            return answer;
        }
        match stream.read(&mut piece).expect("an answer in time") {
            0 => panic!("the connection ends in an answer: {}", String::from_utf8_lossy(&bytes)),
            read => bytes.extend_from_slice(&piece[..read]),
        }
    }
}

fn parsed(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..end].to_vec()).expect("ASCII");
    let status = head.split(' ').nth(1)?.parse().expect("a status");
    let mut rest = &bytes[end + 4..];
    let lower = head.to_ascii_lowercase();
    let mut body = Vec::new();
    if lower.contains("transfer-encoding: chunked") {
        loop {
            let line = rest.windows(2).position(|two| two == b"\r\n")?;
            let len = usize::from_str_radix(std::str::from_utf8(&rest[..line]).expect("ASCII"), 16).expect("a length");
            body.extend_from_slice(rest.get(line + 2..line + 2 + len)?);
            rest = rest.get(line + 4 + len..)?;
            if len == 0 {
                break;
            }
        }
    } else {
        let length = lower.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()).unwrap_or("0");
        body = rest.get(..length.parse().expect("a length"))?.to_vec();
    }
    Some(Answer { status, head, body })
}

fn head(method: &str, headers: &[(&str, &str)], length: Option<usize>) -> Vec<u8> {
    let mut head = format!("{method} HTTP/1.1\r\nhost: x\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(length) = length {
        head.push_str(&format!("content-length: {length}\r\n"));
    }
    (head + "\r\n").into_bytes()
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a daemon");
    stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
    stream
}

/// A POST of a body to /v1/logs.
fn post(daemon: &Daemon, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut stream = connect(&daemon.grpc);
    stream.write_all(&head("POST /v1/logs", headers, Some(body.len()))).expect("sent");
    let _ = stream.write_all(body); // it may be answered before its end
    answer(&mut stream)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

/// All records of the log, as they are read over gRPC.
async fn stored(daemon: &Daemon) -> Vec<logs::ResourceLogs> {
    let given = read(daemon, v1::ReadRequest::default()).await;
    records(&given).into_iter().map(|records| records.resource_logs.clone().expect("its records")).collect()
}

fn count(stored: &[logs::ResourceLogs]) -> usize {
    stored.iter().flat_map(|of| &of.scope_logs).map(|scope| scope.log_records.len()).sum()
}

/// A daemon that is read from, and stores what is sent again: tests send equal records.
async fn reading(sets: &[&str]) -> Daemon {
    Daemon::start(&[&["ingest.grpc.allow_read=true", "ingest.otlp.resend_window=0"], sets].concat()).await
}

async fn over_grpc(daemon: &Daemon, ack: &str, request: ExportLogsServiceRequest) -> Result<Option<String>, Status> {
    let mut request = Request::new(request);
    if !ack.is_empty() {
        request.metadata_mut().insert("clad-ack", ack.parse().expect("a value"));
    }
    let response = LogsServiceClient::new(daemon.channel().await).export(request).await?;
    Ok(response.into_inner().partial_success.map(|partial| partial.error_message))
}

#[tokio::test]
async fn what_is_exported_comes_back_equal_at_each_level_by_each_way() {
    let daemon = reading(&[]).await;
    let highest = if daemon.highest == v1::AckLevel::Durable { "durable" } else { "written" };
    let mut sent = Vec::new();
    for (n, ack) in ["", "none", "received", "written", highest].into_iter().enumerate() {
        let request = export(vec![lines(n + 1), message(vec![text(ack)])]);
        sent.extend(request.resource_logs.clone());
        assert_eq!(over_grpc(&daemon, ack, request).await.expect("success"), None);
        let request = export(vec![message(vec![text("over HTTP"), text(ack)])]);
        sent.extend(request.resource_logs.clone());
        let (plain, ack) = (request.encode_to_vec(), ("clad-ack", if ack.is_empty() { "durable" } else { ack }));
        let ack = if n == 0 { ("x", "y") } else { ack };
        assert_eq!(post(&daemon, &[PROTOBUF, ack], &plain).partial(), None);
        for (encoding, body) in [("gzip", gzip(&plain)), ("zstd", zstd::bulk::compress(&plain, 3).expect("memory"))] {
            sent.extend(request.resource_logs.clone());
            assert_eq!(post(&daemon, &[PROTOBUF, ack, ("content-encoding", encoding)], &body).partial(), None);
        }
    }
    let stored = stored(&daemon).await;
    assert!(stored == sent, "{} of {}", count(&stored), count(&sent));
}

#[tokio::test]
async fn an_empty_request_is_a_success() {
    let daemon = reading(&[]).await;
    assert_eq!(over_grpc(&daemon, "", export(vec![])).await.expect("success"), None);
    assert_eq!(post(&daemon, &[PROTOBUF], b"").partial(), None);
    let answer = post(&daemon, &[JSON], b"{}");
    assert_eq!((answer.status, answer.text().as_str()), (200, "{}"));
    assert_eq!(stored(&daemon).await, []);
}

/// The answer is in the format of the request.
#[tokio::test]
async fn json_is_answered_in_json() {
    let daemon = reading(&[]).await;
    let line = |text: &str| {
        let record = format!(r#"{{"timeUnixNano":"1","severityNumber":9,"body":{{"stringValue":"{text}"}}}}"#);
        format!(r#"{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{record}]}}]}}]}}"#)
    };
    let answer = post(&daemon, &[("content-type", "application/json; charset=utf-8")], line("one").as_bytes());
    assert_eq!((answer.status, answer.text().as_str()), (200, "{}"), "{}", answer.head);
    assert!(answer.has("content-type: application/json"));
    assert_eq!(stored(&daemon).await, [message(vec![text("one")])]);
    let long = line(&"x".repeat(3 * MIB));
    let answer = post(&daemon, &[JSON, ("content-encoding", "gzip")], &gzip(long.as_bytes()));
    assert_eq!(answer.status, 400, "all of it is bad");
    assert!(answer.text().starts_with(r#"{"code":3,"message":"record 0 of ScopeLogs 0"#), "{}", answer.text());
    let answer = post(&daemon, &[JSON], br#"{"resourceLogs": 7}"#);
    assert!(answer.status == 400 && answer.has("content-type: application/json"), "{}", answer.text());
}

#[tokio::test]
async fn what_is_bad_for_ever_is_rejected_and_the_rest_is_stored() {
    let daemon = reading(&["journal.max_record_bytes=1KiB"]).await;
    let request = || export(vec![lines(2), message(vec![text("good"), text(&"x".repeat(2000)), text("good too")])]);
    let partial = over_grpc(&daemon, "", request()).await.expect("success").expect("partial");
    assert!(partial.starts_with("record 1 of ScopeLogs 0 of ResourceLogs 1: "), "{partial}");
    let partial = post(&daemon, &[PROTOBUF], &request().encode_to_vec()).partial().expect("partial");
    assert_eq!(partial.rejected_log_records, 1);
    assert_eq!(count(&stored(&daemon).await), 8);
    let status = over_grpc(&daemon, "", export(vec![message(vec![text(&"x".repeat(2000))])])).await.expect_err("bad");
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(status.metadata().get_bin("google.rpc.retryinfo-bin").is_none());
}

/// Longer than one append may be, and than a connection's share: it goes in as it is written.
#[tokio::test]
async fn a_long_request_is_stored_in_pieces_and_whole() {
    let sets = ["limits.max_append_bytes=1MiB", "journal.max_record_bytes=1MiB"];
    let daemon = reading(&[&sets[..], &["limits.max_connection_inflight_bytes=1MiB"]].concat()).await;
    let long: Vec<_> = (0..9000).map(|n| text(&format!("{n} {}", "x".repeat(1000)))).collect();
    let request = export(vec![message(long.clone())]).encode_to_vec();
    assert!(request.len() > 8 * MIB);
    assert_eq!(post(&daemon, &[PROTOBUF], &request).partial(), None);
    let stored = stored(&daemon).await;
    let records: Vec<_> = stored.into_iter().flat_map(|of| of.scope_logs).flat_map(|scope| scope.log_records).collect();
    assert!(records == long, "{} of {}", records.len(), long.len());
}

#[tokio::test]
async fn each_final_refusal_says_what_is_wrong() {
    let daemon = reading(&["limits.max_message_bytes=64KiB"]).await;
    let small = export(vec![lines(1)]).encode_to_vec();
    let long = export(vec![message(vec![text(&"x".repeat(70_000))])]).encode_to_vec();
    let bomb = vec![0; 10 * MIB];
    let encoded = |encoding| [PROTOBUF, ("content-encoding", encoding)];
    for (headers, body, status, text) in [
        (&[PROTOBUF, ("clad-ack", "most")][..], &small[..], 400, "one of none, received, written, durable"),
        (&[PROTOBUF, ("clad-ack", "posted")], &small, 400, "level_unreachable"),
        (&[PROTOBUF], b"\x0A\x05x", 400, "not protobuf"),
        (&[("content-type", "text/plain")], &small, 415, "application/x-protobuf or application/json"),
        (&[], &small, 415, "application/x-protobuf or application/json"),
        (&encoded("br"), &small, 415, "gzip, zstd"),
        (&encoded("gzip, gzip"), &small, 415, "gzip, zstd"),
        (&[PROTOBUF, ("content-encoding", "gzip"), ("content-encoding", "gzip")], &gzip(&small), 415, "gzip, zstd"),
        (&encoded("gzip"), &small, 400, "compression"),
        (&encoded("zstd"), &small, 400, "compression"),
        (&[PROTOBUF], &long, 413, "max_message_bytes"),
        (&encoded("gzip"), &gzip(&long), 413, "max_message_bytes"),
        (&encoded("gzip"), &gzip(&bomb), 413, "max_message_bytes"),
        (&encoded("zstd"), &zstd::bulk::compress(&bomb, 3).expect("memory"), 413, "max_message_bytes"),
    ] {
        let answer = post(&daemon, headers, body);
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.text());
        assert!(answer.text().contains(text), "{headers:?}: {}", answer.text());
        assert!(!answer.has("retry-after"), "{headers:?}");
        assert_eq!(answer.has("accept-encoding: gzip, zstd"), status == 415);
    }
    let status =
        over_grpc(&daemon, "", export(vec![message(vec![text(&"x".repeat(70_000))])])).await.expect_err("long");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.metadata().get_bin("google.rpc.retryinfo-bin").is_none(), "it is final");
    let status = over_grpc(&daemon, "most", export(vec![])).await.expect_err("no level");
    assert_eq!(status.code(), Code::InvalidArgument);
    let status = over_grpc(&daemon, "posted", export(vec![])).await.expect_err("no level");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(stored(&daemon).await, []);
}

/// Ways that are none: each is named, and none is mistaken for a success.
#[tokio::test]
async fn what_is_no_log_is_served_nowhere() {
    let daemon = reading(&[]).await;
    for (method, status) in [
        ("GET /v1/logs", 405),
        ("PUT /v1/logs", 405),
        ("POST /v1/traces", 404),
        ("POST /v1/metrics", 404),
        ("GET /", 404),
        ("POST /opentelemetry.proto.collector.logs.v1.LogsService/Other", 404),
    ] {
        let mut stream = connect(&daemon.grpc);
        stream.write_all(&head(method, &[PROTOBUF], Some(0))).expect("sent");
        let answer = answer(&mut stream);
        assert_eq!(answer.status, status, "{method}: {}", answer.head);
    }
    for path in ["trace.v1.TraceService", "metrics.v1.MetricsService"] {
        let mut client = tonic::client::Grpc::new(daemon.channel().await);
        client.ready().await.expect("a connection");
        let path = format!("/opentelemetry.proto.collector.{path}/Export").parse().expect("a path");
        let codec = tonic_prost::ProstCodec::<ExportLogsServiceRequest, ExportLogsServiceResponse>::default();
        let status = client.unary(Request::new(export(vec![])), path, codec).await.expect_err("not served");
        assert_eq!((status.code(), status.message()), (Code::Unimplemented, "clad keeps logs"));
    }
}

/// A full disk, seen by an exporter: to be sent again soon, in the places where exporters look.
#[tokio::test]
async fn what_passes_says_when_to_come_back() {
    let daemon = Daemon::start_when(&["journal.reserve_free=1000TiB"], |status| !status.listeners.is_empty()).await;
    let request = || export(vec![lines(1)]);
    let status = over_grpc(&daemon, "", request()).await.expect_err("no space");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let retry = status.metadata().get_bin("google.rpc.retryinfo-bin").expect("a time").to_bytes().expect("bytes");
    // RetryInfo { retry_delay: Duration { nanos } }: 0.2 to 1 s.
    let nanos = prost::encoding::decode_varint(&mut &retry[3..]).expect("a number");
    assert!(retry[2] == 0x10 && (200_000_000..1_000_000_000).contains(&nanos), "{retry:?}");
    assert!(status.details().ends_with(&retry), "the same in the details");
    let answer = post(&daemon, &[PROTOBUF], &request().encode_to_vec());
    assert!(answer.status == 503 && answer.has("retry-after: 1"), "{}", answer.head);
    assert!(answer.text().contains("no_space"), "{}", answer.text());
    let none = post(&daemon, &[PROTOBUF, ("clad-ack", "none")], &request().encode_to_vec());
    assert_eq!(none.partial(), None, "nobody waits for more than that it came");
}

#[tokio::test]
async fn the_usual_ports_and_a_socket_take_it_and_the_kernel_names_the_sender() {
    let sets = ["ingest.otlp.listen=127.0.0.1:0,127.0.0.1:0", "ingest.otlp.path=otlp.sock", "ingest.otlp.ack=received"];
    let daemon = reading(&sets).await;
    let addresses = daemon.status().await.listeners["otlp"].clone();
    let addresses: Vec<_> = addresses.split(", ").collect();
    let body = export(vec![lines(1)]).encode_to_vec();
    for address in &addresses[..2] {
        let mut stream = connect(address);
        for _ in 0..3 {
            stream.write_all(&head("POST /v1/logs", &[PROTOBUF], Some(body.len()))).expect("sent");
            stream.write_all(&body).expect("sent");
            assert_eq!(answer(&mut stream).partial(), None, "one connection, request after request");
        }
        stream.write_all(&head("POST /clad.v1.Ingest/Append", &[PROTOBUF], Some(0))).expect("sent");
        assert_eq!(answer(&mut stream).status, 404, "OTLP alone");
    }
    let mut stream = UnixStream::connect(daemon.dir.path().join("otlp.sock")).expect("a socket");
    // So that it is there to be read: `ack` asks for less.
    let headers = [PROTOBUF, ("clad-ack", "written")];
    stream.write_all(&head("POST /v1/logs", &headers, Some(body.len()))).expect("sent");
    stream.write_all(&body).expect("sent");
    assert_eq!(answer(&mut stream).partial(), None);
    let given = read(&daemon, v1::ReadRequest::default()).await;
    let peers: Vec<_> = records(&given).into_iter().map(|records| records.peer_meta.clone().expect("a peer")).collect();
    let (local, network) = peers.split_last().expect("the socket's is the last");
    assert!(network.len() > 1 && network.iter().all(|peer| peer.uid.is_none() && peer.transport == Some(6)));
    let uid = nix::unistd::getuid().as_raw();
    assert_eq!((local.uid, local.pid), (Some(uid), Some(std::process::id())));
}

/// Requests that are made to hurt: an answer or an end for each, and the daemon serves others.
#[tokio::test]
async fn broken_http_is_answered_or_closed_and_hurts_nobody() {
    let daemon = reading(&[]).await;
    let body = export(vec![lines(1)]).encode_to_vec();
    let flood: String = (0..2000).map(|n| format!("x-{n}: {n}\r\n")).collect();
    let both = "POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n\
                content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nPOST /v1/logs HTTP/1.1\r\n\r\n";
    for broken in [
        both.to_owned(),
        format!("POST /v1/logs HTTP/1.1\r\nhost: x\r\n{flood}\r\n"),
        "POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello".to_owned(),
        "POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n".to_owned(),
        "POST /v1/logs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_owned(),
        "nonsense nonsense nonsense nonsense\r\n\r\n".to_owned(),
        format!("POST /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000)),
    ] {
        let mut stream = connect(&daemon.grpc);
        let _ = stream.write_all(broken.as_bytes());
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all); // it ends, or is reset
        let answers = String::from_utf8_lossy(&all).matches("HTTP/1.1 200").count();
        let smuggled = usize::from(broken == both);
        assert!(answers <= smuggled, "{}", String::from_utf8_lossy(&all));
    }
    // A body that is shorter than its length says, and a sender that is gone: nothing of it is stored.
    let mut stream = connect(&daemon.grpc);
    stream.write_all(&head("POST /v1/logs", &[PROTOBUF], Some(body.len() + 1))).expect("sent");
    stream.write_all(&body).expect("sent");
    drop(stream);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(stored(&daemon).await, []);
    assert_eq!(post(&daemon, &[PROTOBUF], &body).partial(), None);
}

/// Half a body holds no more than its share, and is not waited for at the end.
#[tokio::test]
async fn a_request_that_never_ends_does_not_hold_up_the_end() {
    let mut daemon = reading(&[]).await;
    let mut stream = connect(&daemon.grpc);
    stream.write_all(&head("POST /v1/logs", &[PROTOBUF], Some(MIB))).expect("sent");
    stream.write_all(&[0; 1000]).expect("sent");
    std::thread::sleep(Duration::from_millis(100));
    let took = daemon.stop();
    assert!(took < Duration::from_secs(8), "{took:?}");
}

/// A body in pieces, each as small as it can be.
#[tokio::test]
async fn a_body_comes_in_any_pieces() {
    let daemon = reading(&[]).await;
    let body = export(vec![lines(40)]).encode_to_vec();
    let mut stream = connect(&daemon.grpc);
    stream.set_nodelay(true).expect("a socket");
    stream.write_all(&head("POST /v1/logs", &[PROTOBUF, ("transfer-encoding", "chunked")], None)).expect("sent");
    for byte in &body {
        stream.write_all(&[b"1\r\n", &[*byte][..], b"\r\n"].concat()).expect("sent");
    }
    stream.write_all(b"0\r\n\r\n").expect("sent");
    assert_eq!(answer(&mut stream).partial(), None);
    assert_eq!(count(&stored(&daemon).await), 40);
}

/// A record of a clock that counts nanoseconds.
fn fine(n: u64) -> logs::LogRecord {
    logs::LogRecord { observed_time_unix_nano: 1_700_000_000_000_000_001 + n, ..text("fine") }
}

async fn resent(daemon: &Daemon, request: &ExportLogsServiceRequest) {
    assert_eq!(over_grpc(daemon, "", request.clone()).await.expect("success"), None);
    assert_eq!(post(daemon, &[PROTOBUF], &request.encode_to_vec()).partial(), None);
}

/// By either protocol, before and after an end, clean or not; also where the exporter has grouped it in another way.
#[tokio::test]
async fn what_is_sent_again_is_stored_once() {
    let mut daemon = reading(&["ingest.otlp.resend_window=10m"]).await;
    let equals = vec![message(vec![fine(1)]), message(vec![fine(2), fine(3)]), message(vec![fine(1)])];
    let request = export(equals.clone());
    resent(&daemon, &request).await;
    assert_eq!(stored(&daemon).await, equals, "equal ones of one request are all there");
    daemon.restart().await;
    resent(&daemon, &request).await;
    daemon.kill_and_restart().await;
    resent(&daemon, &request).await;
    let other = export(equals.iter().rev().cloned().collect());
    resent(&daemon, &other).await;
    assert_eq!(stored(&daemon).await, equals);
    let longer = export(vec![message(vec![fine(2)]), message(vec![fine(4)])]);
    resent(&daemon, &longer).await;
    assert_eq!(count(&stored(&daemon).await), 4 + 2, "cut otherwise it is another append");
}

#[tokio::test]
async fn what_has_no_fine_clock_or_no_window_is_stored_each_time() {
    let coarse = logs::LogRecord { time_unix_nano: 5_000_000, ..text("coarse") };
    let daemon = reading(&["ingest.otlp.resend_window=10m"]).await;
    resent(&daemon, &export(vec![message(vec![coarse, fine(1)])])).await;
    assert_eq!(count(&stored(&daemon).await), 4);
    let daemon = reading(&[]).await;
    resent(&daemon, &export(vec![message(vec![fine(1)])])).await;
    assert_eq!(count(&stored(&daemon).await), 2);
}

/// Values of all kinds are stored as they came; what a body of JSON says is what protobuf says.
#[tokio::test]
async fn values_of_json_are_those_of_protobuf() {
    let daemon = reading(&[]).await;
    let json = br#"{"resourceLogs":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"shop"}}]},
        "scopeLogs":[{"scope":{"name":"lib","version":"1"},"logRecords":[{"timeUnixNano":"5","observedTimeUnixNano":6,
        "severityNumber":17,"severityText":"ERROR","body":{"kvlistValue":{"values":[{"key":"i","value":{"intValue":"-7"}},
        {"key":"d","value":{"doubleValue":0.1}},{"key":"b","value":{"bytesValue":"AQID"}},
        {"key":"a","value":{"arrayValue":{"values":[{"boolValue":true},{}]}}}]}},"traceId":"0102030405060708090A0b0c0d0e0f10",
        "spanId":"0102030405060708","flags":1,"eventName":"e","unknown":{"deep":[1,{"x":null}]}}]}]}]}"#;
    let answer = post(&daemon, &[JSON], json);
    assert_eq!((answer.status, answer.text().as_str()), (200, "{}"), "{}", answer.head);
    let stored = stored(&daemon).await;
    let record = &stored[0].scope_logs[0].log_records[0];
    assert_eq!((record.time_unix_nano, record.observed_time_unix_nano, record.severity_number), (5, 6, 17));
    assert_eq!((record.flags, record.event_name.as_str(), record.trace_id[9], record.span_id.len()), (1, "e", 10, 8));
    let Some(Value::KvlistValue(list)) = record.body.as_ref().and_then(|body| body.value.clone()) else {
        panic!("a list")
    };
    let values: Vec<_> = list.values.into_iter().map(|pair| pair.value.expect("there").value).collect();
    let array = vec![common::AnyValue { value: Some(Value::BoolValue(true)) }, common::AnyValue { value: None }];
    assert_eq!(
        values,
        [
            Some(Value::IntValue(-7)),
            Some(Value::DoubleValue(0.1)),
            Some(Value::BytesValue(vec![1, 2, 3].into())),
            Some(Value::ArrayValue(common::ArrayValue { values: array })),
        ]
    );
}
