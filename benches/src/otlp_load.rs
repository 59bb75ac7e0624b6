//! A sender of log requests that sends as fast as it is let, for clad or any other receiver: by OTLP over gRPC or HTTP, or by
//! clad's own gRPC. The time to each answer is taken, from all of them.
//!
//! What must hold:
//! - Every request was answered by a success of all its records; else there are no figures.
//! - No two requests are equal, and no time is a whole millisecond: clad looks up each request, as it does an SDK's, and finds
//!   none that was sent before.
//! - Records are encoded before the first request, and OTLP has no client between it and its connection: what is measured is
//!   the receiver. tonic's client took more of the processors for a small request than the receiver did.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use clad_proto::grpc::opentelemetry::proto::{
    collector::logs::v1::ExportLogsServiceResponse,
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value},
    logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber},
    resource::v1::Resource,
};
use clad_proto::grpc::v1::{
    AckLevel, AppendRequest, AppendResponse, Hello, append_request::Message as Asked,
    append_response::Message as Answer,
};
use clap::Args;
use hdrhistogram::Histogram;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use crate::stats::{Latency, histogram, per_second, record};

const EXPORT: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
const APPEND: &str = "/clad.v1.Ingest/Append";
/// Before a message over gRPC: whether it is compressed, and its length.
const GRPC_PREFIX_BYTES: usize = 5;
/// What stands in each record where its times are put in. The bytes are in no text.
const MARK: u64 = 0xfedc_ba98_f6d4_b290;
const NANOS_PER_MILLI: u64 = 1_000_000;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// What to send.
#[derive(Args, Clone, Debug)]
pub struct Plan {
    /// `grpc://HOST:PORT`, `http://HOST:PORT` (protobuf to /v1/logs), or `ingest://HOST:PORT`: clad's own gRPC, level `durable`
    pub to: String,
    /// Connections, each with one request that waits for its answer
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    pub connections: u64,
    /// Requests of each connection
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: u64,
    /// Records of a request
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub records: u32,
    /// Bytes of a record's text
    #[arg(long, default_value_t = 128)]
    pub size: usize,
    /// Process id of the receiver, whose time on the processors is taken
    #[arg(long, value_name = "PID")]
    pub receiver: Option<u32>,
}

/// Figures of a run.
#[derive(Debug, Serialize)]
pub struct Sent {
    /// Records.
    pub records: u64,
    /// Records a second, to the last answer.
    pub rate: f64,
    /// Records for each second that the receiver was on a processor, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_processor_second: Option<f64>,
    /// From a request to its answer, in microseconds.
    pub answered: Latency,
}

impl Plan {
    /// Sends them.
    ///
    /// # Errors
    /// The receiver is not there, closes, or does not take each record of each request.
    pub fn run(&self) -> Result<Sent> {
        // One sender is one thread: what its own threads wake one another for is no time of the receiver's.
        let mut runtime =
            if self.connections == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
        runtime.enable_all().build()?.block_on(self.send())
    }

    async fn send(&self) -> Result<Sent> {
        let requests = Arc::new(Requests::new(self.records, self.size)?);
        let mut connections = Vec::new();
        for _ in 0..self.connections {
            connections.push(Connection::open(&self.to).await?);
        }
        let used = || self.receiver.map(processor_seconds).transpose();
        let (before, began) = (used()?, Instant::now());
        let mut running = JoinSet::new();
        for (number, connection) in (0..).zip(connections) {
            let numbers = number * self.requests..(number + 1) * self.requests;
            running.spawn(one_after_the_other(connection, requests.clone(), numbers));
        }
        let mut took = histogram();
        while let Some(ended) = running.join_next().await {
            took.add(ended??)?;
        }
        let seconds = began.elapsed().as_secs_f64();
        let records = took.len() * u64::from(self.records);
        let used = used()?.zip(before).map(|(after, before)| after - before);
        let per_processor_second = used.map(|seconds| per_second(records, seconds));
        Ok(Sent { records, rate: per_second(records, seconds), per_processor_second, answered: Latency::of(&took) })
    }
}

/// Time that the threads of a process have been on a processor, which the kernel counts in nanoseconds.
fn processor_seconds(pid: u32) -> Result<f64> {
    let folder = format!("/proc/{pid}/task");
    let mut nanos = 0;
    for thread in std::fs::read_dir(&folder).with_context(|| format!("no process {pid}"))? {
        // A thread may have ended.
        let text = std::fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        nanos += text.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or(0);
    }
    ensure!(nanos > 0, "the kernel says no times in {folder}/*/schedstat");
    Ok(nanos as f64 / 1e9)
}

async fn one_after_the_other(
    mut connection: Connection,
    requests: Arc<Requests>,
    numbers: Range<u64>,
) -> Result<Histogram<u64>> {
    let mut took = histogram();
    for number in numbers {
        let request = connection.request(&requests, number);
        let began = Instant::now();
        let answered = timeout(ANSWER_TIMEOUT, connection.answered(request, requests.records)).await;
        answered.with_context(|| format!("no answer within {ANSWER_TIMEOUT:?}"))??;
        record(&mut took, began.elapsed());
    }
    Ok(took)
}

/// All requests: one, but for the times in it.
struct Requests {
    records: u32,
    /// A `ResourceLogs`.
    encoded: Vec<u8>,
    /// Where a time stands.
    times: Vec<usize>,
    /// Whole milliseconds, in nanoseconds.
    start: u64,
}

impl Requests {
    fn new(records: u32, size: usize) -> Result<Self> {
        let text = |text: String| Some(AnyValue { value: Some(Value::StringValue(text)) });
        let one = LogRecord {
            time_unix_nano: MARK,
            observed_time_unix_nano: MARK,
            severity_number: SeverityNumber::Info.into(),
            body: text("x".repeat(size)),
            ..LogRecord::default()
        };
        let name =
            KeyValue { key: "service.name".to_owned(), value: text("otlp-load".to_owned()), ..KeyValue::default() };
        let encoded = ResourceLogs {
            resource: Some(Resource { attributes: vec![name], ..Resource::default() }),
            scope_logs: vec![ScopeLogs {
                scope: Some(InstrumentationScope {
                    name: "clad-benches".to_owned(),
                    ..InstrumentationScope::default()
                }),
                log_records: vec![one; records as usize],
                ..ScopeLogs::default()
            }],
            ..ResourceLogs::default()
        }
        .encode_to_vec();
        let mark = MARK.to_le_bytes();
        let times: Vec<usize> = (0..encoded.len()).filter(|at| encoded[*at..].starts_with(&mark)).collect();
        ensure!(times.len() == 2 * records as usize, "{} times in {records} records", times.len());
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
        Ok(Self { records, encoded, times, start: u64::try_from(now)? * NANOS_PER_MILLI })
    }

    /// Puts a request into a buffer.
    fn put(&self, number: u64, into: &mut BytesMut) {
        let at = into.len();
        into.extend_from_slice(&self.encoded);
        let (millis, nanos) = (number / (NANOS_PER_MILLI - 1), number % (NANOS_PER_MILLI - 1) + 1);
        let time = (self.start + millis * NANOS_PER_MILLI + nanos).to_le_bytes();
        for place in &self.times {
            into[at + place..][..time.len()].copy_from_slice(&time);
        }
    }
}

/// A connection to the receiver, by one of the protocols.
enum Connection {
    Grpc { sender: http2::SendRequest<Full<Bytes>>, uri: String },
    Http { sender: http1::SendRequest<Full<Bytes>>, host: String },
    Ingest { asked: mpsc::Sender<Bytes>, answers: Box<Streaming<Bytes>>, next_seq: u64, durable: u64 },
}

impl Connection {
    async fn open(to: &str) -> Result<Self> {
        let (protocol, address) = to.split_once("://").context("PROTOCOL://HOST:PORT")?;
        // How a connection ends is seen by who waits for an answer.
        match protocol {
            "grpc" => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), stream(address).await?).await?;
                tokio::spawn(connection);
                Ok(Self::Grpc { sender, uri: format!("http://{address}{EXPORT}") })
            }
            "http" => {
                let (sender, connection) = http1::handshake(stream(address).await?).await?;
                tokio::spawn(connection);
                Ok(Self::Http { sender, host: address.to_owned() })
            }
            "ingest" => Self::ingest(address).await,
            other => bail!("{other} is no protocol: grpc, http or ingest"),
        }
    }

    async fn ingest(address: &str) -> Result<Self> {
        let (asked, asks) = mpsc::channel(1);
        let hello = Hello { min_version: 1, max_version: 1, name: "otlp_load".to_owned(), ..Hello::default() };
        asked.send(AppendRequest { message: Some(Asked::Hello(hello)) }.encode_to_vec().into()).await?;
        let path = PathAndQuery::from_static(APPEND);
        let mut channel = grpc(address).await?;
        let mut answers =
            channel.streaming(tonic::Request::new(ReceiverStream::new(asks)), path, Raw).await?.into_inner();
        match answer(&mut answers).await? {
            Answer::Welcome(welcome) => {
                ensure!(welcome.highest_ack() == AckLevel::Durable, "the log offers no durable")
            }
            other => bail!("no welcome: {other:?}"),
        }
        Ok(Self::Ingest { asked, answers: Box::new(answers), next_seq: 0, durable: 0 })
    }

    /// The request of this number, encoded.
    fn request(&self, requests: &Requests, number: u64) -> Bytes {
        let logs = requests.encoded.len() as u64;
        let mut bytes = BytesMut::with_capacity(requests.encoded.len() + 64);
        if let Self::Ingest { next_seq, .. } = self {
            let mut head = BytesMut::new();
            for (field, number) in [(1, *next_seq), (2, AckLevel::Durable as u64)] {
                encode_key(field, WireType::Varint, &mut head);
                encode_varint(number, &mut head);
            }
            encode_key(4, WireType::LengthDelimited, &mut head);
            encode_varint(logs, &mut head);
            encode_key(2, WireType::LengthDelimited, &mut bytes);
            encode_varint(head.len() as u64 + logs, &mut bytes);
            bytes.extend_from_slice(&head);
        } else {
            if matches!(self, Self::Grpc { .. }) {
                bytes.put_bytes(0, GRPC_PREFIX_BYTES);
            }
            encode_key(1, WireType::LengthDelimited, &mut bytes);
            encode_varint(logs, &mut bytes);
        }
        requests.put(number, &mut bytes);
        if matches!(self, Self::Grpc { .. }) {
            let len = (bytes.len() - GRPC_PREFIX_BYTES) as u32;
            bytes[1..GRPC_PREFIX_BYTES].copy_from_slice(&len.to_be_bytes());
        }
        bytes.freeze()
    }

    /// Sends a request, and returns at its answer.
    async fn answered(&mut self, request: Bytes, records: u32) -> Result<()> {
        match self {
            Self::Grpc { sender, uri } => {
                let post = hyper::Request::post(&*uri).header("content-type", "application/grpc");
                let post = post.header("te", "trailers").body(Full::new(request))?;
                sender.ready().await?;
                let (head, body) = sender.send_request(post).await?.into_parts();
                let body = body.collect().await?;
                // A refusal has no body, and its status stands in the head.
                let status = body.trailers().unwrap_or(&head.headers);
                ensure!(status.get("grpc-status").is_some_and(|status| status == "0"), "{head:?} {status:?}");
                let mut message = body.to_bytes();
                ensure!(message.len() >= GRPC_PREFIX_BYTES, "an answer without a message");
                exported(message.split_off(GRPC_PREFIX_BYTES))
            }
            Self::Http { sender, host } => {
                let post = hyper::Request::post("/v1/logs").header("host", &*host);
                let post = post.header("content-type", "application/x-protobuf").body(Full::new(request))?;
                sender.ready().await?;
                let answer = sender.send_request(post).await?;
                let status = answer.status();
                let body = answer.into_body().collect().await?.to_bytes();
                ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(&body));
                exported(body)
            }
            Self::Ingest { asked, answers, next_seq, durable } => {
                asked.send(request).await?;
                let mut end = u64::MAX;
                while *durable < end {
                    match answer(answers).await? {
                        Answer::Accepted(accepted) => {
                            let taken = (accepted.first_seq, accepted.count, accepted.duplicate);
                            ensure!(taken == (*next_seq, records, false), "{accepted:?} for {next_seq}");
                            *next_seq += u64::from(records);
                            end = accepted.first_offset + u64::from(records);
                        }
                        Answer::Watermark(mark) if mark.level() == AckLevel::Durable => *durable = mark.offset,
                        Answer::Watermark(_) => {}
                        other => bail!("{other:?}"),
                    }
                }
                Ok(())
            }
        }
    }
}

async fn stream(address: &str) -> Result<TokioIo<TcpStream>> {
    let stream = TcpStream::connect(address).await.with_context(|| format!("no connection to {address}"))?;
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(stream))
}

async fn grpc(address: &str) -> Result<Grpc<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    let mut grpc = Grpc::new(endpoint.connect().await.with_context(|| format!("no connection to {address}"))?);
    grpc.ready().await?;
    Ok(grpc)
}

async fn answer(answers: &mut Streaming<Bytes>) -> Result<Answer> {
    let answer = answers.message().await?.context("the receiver has ended the stream")?;
    AppendResponse::decode(answer)?.message.context("an answer without a message")
}

/// An answer of OTLP must be a success of all records. A partial success of no record says the same as none.
fn exported(answer: Bytes) -> Result<()> {
    let partial = ExportLogsServiceResponse::decode(answer)?.partial_success.unwrap_or_default();
    let rejected = partial.rejected_log_records;
    ensure!(
        rejected == 0 && partial.error_message.is_empty(),
        "{rejected} records rejected: {}",
        partial.error_message
    );
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_comes_twice_or_is_a_whole_millisecond() {
        let requests = Requests::new(2, 10).expect("encoded");
        let times = |number| {
            let mut bytes = BytesMut::new();
            requests.put(number, &mut bytes);
            let logs = ResourceLogs::decode(bytes.freeze()).expect("a ResourceLogs");
            let records = &logs.scope_logs[0].log_records;
            let times: Vec<u64> = records.iter().flat_map(|r| [r.time_unix_nano, r.observed_time_unix_nano]).collect();
            assert_eq!(times, [times[0]; 4]);
            times[0]
        };
        // Around each whole millisecond.
        let numbers = [0, 1, 999_997, 999_998, 999_999, 1_000_000, 1_999_997, 1_999_998, 1_999_999, 2_000_000];
        let times = numbers.map(times);
        assert!(times.is_sorted_by(|one, next| one < next), "{times:?}");
        assert!(times.iter().all(|time| !time.is_multiple_of(NANOS_PER_MILLI)), "{times:?}");
    }

    #[test]
    fn an_answer_with_rejected_records_is_none() {
        use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::ExportLogsPartialSuccess as Partial;
        let of = |partial| exported(ExportLogsServiceResponse { partial_success: partial }.encode_to_vec().into());
        assert!(of(None).is_ok() && of(Some(Partial::default())).is_ok());
        assert!(of(Some(Partial { rejected_log_records: 1, error_message: String::new() })).is_err());
        assert!(of(Some(Partial { rejected_log_records: 0, error_message: "a warning".to_owned() })).is_err());
    }
}
