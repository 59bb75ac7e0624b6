//! OTLP over gRPC and over HTTP, and `/upload`, by hand.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Buf, BufMut, Bytes};
use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::ExportLogsServiceRequest;
use clad_proto::grpc::opentelemetry::proto::common::v1::{AnyValue, InstrumentationScope, any_value::Value};
use clad_proto::grpc::opentelemetry::proto::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use prost::Message;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use clad_e2e::proxy::Place;

use crate::check::Texts;
use crate::sender::{Requests, Shared};

const EXPORT: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
/// Records of a scope, at most.
const SCOPE_RECORDS_MAX: usize = 5;
/// A request that is not answered for so long is sent again. An exporter's own limit is 10 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Times that come once, and are no whole milliseconds.
#[derive(Debug)]
struct Times(u64);

impl Times {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Self(now as u64 * 1_000_000)
    }

    fn next(&mut self) -> u64 {
        self.0 += if self.0 % 1_000_000 == 999_999 { 2 } else { 1 };
        self.0
    }
}

/// A request of some scopes.
fn logs(texts: &Texts, times: &mut Times, stream: &str, numbers: Range<u64>) -> Vec<u8> {
    let body =
        |bytes| String::from_utf8(bytes).map_or_else(|e| Value::BytesValue(e.into_bytes().into()), Value::StringValue);
    let records: Vec<LogRecord> = numbers
        .map(|number| LogRecord {
            time_unix_nano: times.next(),
            body: Some(AnyValue { value: Some(body(texts.get(stream, number))) }),
            ..LogRecord::default()
        })
        .collect();
    let scope = |(number, records): (usize, &[LogRecord])| ScopeLogs {
        scope: Some(InstrumentationScope { name: format!("scope {number}"), ..InstrumentationScope::default() }),
        log_records: records.to_vec(),
        ..ScopeLogs::default()
    };
    let scope_logs = records.chunks(SCOPE_RECORDS_MAX).enumerate().map(scope).collect();
    ExportLogsServiceRequest { resource_logs: vec![ResourceLogs { scope_logs, ..ResourceLogs::default() }] }
        .encode_to_vec()
}

fn invalid(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

/// OTLP over gRPC.
pub(crate) struct OverGrpc {
    endpoint: Endpoint,
    level: Option<&'static str>,
    runtime: Runtime,
    channel: Option<Channel>,
    times: Times,
    texts: Texts,
}

impl OverGrpc {
    pub(crate) fn to(place: &Place, level: Option<&'static str>) -> Self {
        let Place::Tcp(address) = place else { panic!("{place} is no port") };
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { endpoint, level, runtime, channel: None, times: Times::new(), texts: Texts::Made }
    }

    pub(crate) fn with(self, texts: Texts) -> Self {
        Self { texts, ..self }
    }

    async fn export(channel: Channel, level: Option<&'static str>, request: Bytes) -> io::Result<()> {
        let mut grpc = Grpc::new(channel);
        grpc.ready().await.map_err(io::Error::other)?;
        let mut request = Request::new(request);
        if let Some(level) = level {
            request.metadata_mut().insert("clad-ack", MetadataValue::from_static(level));
        }
        match grpc.unary(request, PathAndQuery::from_static(EXPORT), Raw).await {
            // A collector says that nothing was rejected.
            Ok(answer) if matches!(&**answer.get_ref(), [] | [10, 0]) => Ok(()),
            Ok(answer) => Err(invalid(format!("a partial success: {:?}", answer.get_ref()))),
            // A cut connection has many codes in tonic; these are what an exporter does not send again.
            Err(status) if matches!(status.code(), Code::InvalidArgument | Code::Unimplemented) => Err(invalid(status)),
            Err(status) => Err(io::Error::other(status)),
        }
    }
}

impl Requests for OverGrpc {
    fn request(&mut self, stream: &str, numbers: Range<u64>) -> Vec<u8> {
        logs(&self.texts, &mut self.times, stream, numbers)
    }

    fn ask(&mut self, shared: &Shared, request: &[u8]) -> io::Result<()> {
        let (endpoint, known, level) = (&self.endpoint, self.channel.take(), self.level);
        let request = Bytes::copy_from_slice(request);
        let channel = self.runtime.block_on(async {
            let answered = async {
                let channel = match known {
                    Some(channel) => channel,
                    None => endpoint.connect().await.map_err(io::Error::other)?,
                };
                Self::export(channel.clone(), level, request).await.map(|()| channel)
            };
            tokio::select! {
                answered = timeout(ANSWER_TIMEOUT, answered) => answered?,
                () = shared.killed() => Err(io::ErrorKind::ConnectionAborted.into()),
            }
        })?;
        self.channel = Some(channel);
        Ok(())
    }

    fn close(&mut self) {
        self.channel = None;
        // The connection is a task of the runtime: it ends when it sees that nobody has the channel.
        self.runtime.block_on(tokio::task::yield_now());
    }
}

/// Messages as the bytes that they are.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// A request over HTTP/1.1: of OTLP, or of entries of the journal.
pub(crate) struct OverHttp {
    place: Place,
    level: Option<&'static str>,
    of_the_journal: bool,
    socket: Option<Arc<File>>,
    times: Times,
    texts: Texts,
}

impl OverHttp {
    pub(crate) fn to(place: &Place, level: Option<&'static str>) -> Self {
        let (times, texts) = (Times::new(), Texts::Made);
        Self { place: place.clone(), level, of_the_journal: false, socket: None, times, texts }
    }

    pub(crate) fn with(self, texts: Texts) -> Self {
        Self { texts, ..self }
    }

    /// As `systemd-journal-upload` sends: in chunks, and each entry has its cursor.
    pub(crate) fn uploads(place: &Place) -> Self {
        Self { of_the_journal: true, ..Self::to(place, None) }
    }

    fn head(&self, path: &str, kind: &str, length: &str) -> Vec<u8> {
        let level = self.level.map_or_else(String::new, |level| format!("clad-ack: {level}\r\n"));
        format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: {kind}\r\n{level}{length}\r\n\r\n").into_bytes()
    }
}

impl Requests for OverHttp {
    fn request(&mut self, stream: &str, numbers: Range<u64>) -> Vec<u8> {
        if !self.of_the_journal {
            let body = logs(&self.texts, &mut self.times, stream, numbers);
            let length = format!("content-length: {}", body.len());
            return [self.head("/v1/logs", "application/x-protobuf", &length), body].concat();
        }
        let mut request = self.head("/upload", "application/vnd.fdo.journal", "transfer-encoding: chunked");
        for number in numbers {
            let time = self.times.next() / 1000;
            let text = self.texts.get(stream, number);
            let head = format!("__CURSOR={stream};{number}\n__REALTIME_TIMESTAMP={time}\nMESSAGE").into_bytes();
            // What is no text has its length before it.
            let entry = if std::str::from_utf8(&text).is_ok() {
                [&head[..], b"=", &text, b"\n\n"].concat()
            } else {
                [&head[..], b"\n", &(text.len() as u64).to_le_bytes(), &text, b"\n\n"].concat()
            };
            request.extend_from_slice(format!("{:x}\r\n", entry.len()).as_bytes());
            request.extend_from_slice(&entry);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"0\r\n\r\n");
        request
    }

    fn ask(&mut self, shared: &Shared, request: &[u8]) -> io::Result<()> {
        let socket = match &self.socket {
            Some(socket) => socket.clone(),
            None => self.socket.insert(shared.connect(&self.place)?).clone(),
        };
        (&*socket).write_all(request)?;
        let (status, keeps) = answer(&mut &*socket)?;
        if !keeps {
            self.socket = None;
        }
        match status {
            200..300 => Ok(()),
            429 | 502..=504 => Err(io::Error::other(format!("status {status}"))),
            other => Err(invalid(format!("status {other}"))),
        }
    }

    fn close(&mut self) {
        self.socket = None;
    }
}

/// The status of a whole answer, and whether the connection goes on.
fn answer(socket: &mut impl Read) -> io::Result<(u16, bool)> {
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        if let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
            let value = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let is_whole = match value("content-length:") {
                Some(length) => answer.len() - end - 4 >= length.parse::<usize>().map_err(invalid)?,
                // In chunks.
                None => answer.ends_with(b"0\r\n\r\n"),
            };
            if is_whole {
                let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
                let keeps = value("connection:") != Some("close");
                return Ok((status.ok_or_else(|| invalid(&head))?, keeps));
            }
        }
        match socket.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => answer.extend_from_slice(&piece[..read]),
        }
    }
}
