//! One call of `Ingest.Append` by hand.
//!
//! Invariants: every wait has a bound; what is not expected fails the test with what came instead.

use clad_proto::grpc::opentelemetry::proto::{common::v1 as common, logs::v1 as logs};
use clad_proto::grpc::{from_status, v1};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;
use v1::append_request::Message as Asked;
use v1::append_response::Message as AppendMessage;
use v1::ingest_client::IngestClient;

use crate::TEST_TIMEOUT;

/// A call under way, by a new producer.
#[derive(Debug)]
pub struct Call {
    ask: mpsc::Sender<v1::AppendRequest>,
    answers: Streaming<v1::AppendResponse>,
}

impl Call {
    /// Connects to a daemon's gRPC address and says Hello.
    ///
    /// # Panics
    /// When that fails.
    pub async fn open(address: &str) -> Self {
        Self::open_as(address, Vec::new(), 0).await
    }

    /// The same as a producer of this id and epoch; without an id as a new one.
    ///
    /// # Panics
    /// When that fails.
    pub async fn open_as(address: &str, producer_id: Vec<u8>, producer_epoch: u32) -> Self {
        let greeted = Self::greet(address, producer_id, producer_epoch).await;
        greeted.unwrap_or_else(|error| panic!("no welcome: {error}")).0
    }

    /// The same, with Welcome.
    ///
    /// # Errors
    /// What the daemon says instead of Welcome.
    ///
    /// # Panics
    /// When it says neither.
    pub async fn greet(
        address: &str,
        producer_id: Vec<u8>,
        producer_epoch: u32,
    ) -> Result<(Self, v1::Welcome), ErrorInfo> {
        let endpoint = Endpoint::try_from(format!("http://{address}")).expect("an address");
        let channel = endpoint.connect().await.expect("a connection");
        let (ask, asked) = mpsc::channel(64);
        let called = IngestClient::new(channel).append(ReceiverStream::new(asked)).await;
        let mut call = Self { ask, answers: called.map_err(|status| refusal(&status))?.into_inner() };
        let hello = v1::Hello {
            min_version: 1,
            max_version: 1,
            // Over the network an id is of who knows its secret.
            secret: producer_id.clone().into(),
            producer_id: producer_id.into(),
            producer_epoch,
            ..v1::Hello::default()
        };
        call.ask(Asked::Hello(hello)).await;
        match timeout(TEST_TIMEOUT, call.answers.message()).await.expect("an answer in time") {
            Ok(Some(v1::AppendResponse { message: Some(AppendMessage::Welcome(welcome)) })) => Ok((call, welcome)),
            Err(status) => Err(refusal(&status)),
            other => panic!("neither Welcome nor an error: {other:?}"),
        }
    }

    /// Says Bye and waits for the end.
    ///
    /// # Panics
    /// When it does not come, or is none of peace.
    pub async fn bye(mut self) {
        self.ask(Asked::Bye(v1::Bye {})).await;
        while timeout(TEST_TIMEOUT, self.answers.message()).await.expect("an end in time").expect("in peace").is_some()
        {
        }
    }

    /// Sends an append as it is.
    ///
    /// # Panics
    /// When the call has ended, or does not take it in time.
    pub async fn ask_append(&self, append: v1::Append) {
        self.ask(Asked::Append(append)).await;
    }

    async fn ask(&self, message: Asked) {
        let request = v1::AppendRequest { message: Some(message) };
        timeout(TEST_TIMEOUT, self.ask.send(request)).await.expect("it is taken in time").expect("the call goes on");
    }

    /// The next answer.
    ///
    /// # Panics
    /// When the call ends, or nothing comes.
    pub async fn answer(&mut self) -> AppendMessage {
        let answer = timeout(TEST_TIMEOUT, self.answers.message()).await.expect("an answer in time");
        answer.expect("the call goes on").expect("an answer").message.expect("an answer that says something")
    }

    /// Appends one record of text and waits for ACCEPTED.
    ///
    /// # Errors
    /// How it was refused.
    ///
    /// # Panics
    /// When something else comes.
    pub async fn append(&mut self, first_seq: u64, level: AckLevel, text: &str) -> Result<v1::Accepted, ErrorInfo> {
        self.ask_append(append_of(first_seq, level, text)).await;
        loop {
            match self.answer().await {
                AppendMessage::Accepted(accepted) => return Ok(accepted),
                AppendMessage::Refused(refused) => return Err(refused.error.expect("a reason").into()),
                AppendMessage::Watermark(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Asks for a level for all that was sent, and waits for the answer.
    ///
    /// # Errors
    /// What the daemon says instead.
    ///
    /// # Panics
    /// When the call ends.
    pub async fn flush(&mut self, id: u32, level: AckLevel) -> Result<v1::Watermark, ErrorInfo> {
        self.ask_flush(id, v1::AckLevel::from(level)).await;
        loop {
            match self.answer().await {
                AppendMessage::Watermark(watermark) if watermark.flush_id == id => return Ok(watermark),
                AppendMessage::FlushRefused(refused) if refused.flush_id == id => {
                    return Err(refused.error.expect("a reason").into());
                }
                AppendMessage::Watermark(watermark) if watermark.flush_id == 0 => {}
                other => panic!("no answer to the Flush: {other:?}"),
            }
        }
    }

    /// Sends a Flush as it is.
    pub async fn ask_flush(&self, id: u32, level: v1::AckLevel) {
        self.ask(Asked::Flush(v1::Flush { id, level: level.into() })).await;
    }

    /// How the call ends.
    ///
    /// # Panics
    /// When it goes on, or ends without a word.
    pub async fn ended(&mut self) -> ErrorInfo {
        let end = timeout(TEST_TIMEOUT, self.answers.message()).await.expect("an end in time");
        from_status(&end.expect_err("an error")).expect("one of clad's own")
    }

    /// Waits until a watermark of a level covers everything below an offset.
    pub async fn reached(&mut self, level: AckLevel, end: u64) {
        let level = v1::AckLevel::from(level);
        loop {
            match self.answer().await {
                AppendMessage::Watermark(watermark) if watermark.level() == level && watermark.offset >= end => return,
                AppendMessage::Watermark(_) => {}
                other => panic!("not a watermark: {other:?}"),
            }
        }
    }
}

/// Why a call was refused. HTTP/2 has no word for a connection that has no place: it ends, and says so in a text.
fn refusal(status: &tonic::Status) -> ErrorInfo {
    let too_many_connections = || ErrorInfo::new(ErrorCode::TooManyConnections, status.to_string());
    let of_connection = format!("{status:?}").contains("max_connections").then(too_many_connections);
    from_status(status).or(of_connection).unwrap_or_else(|| panic!("neither Welcome nor an error: {status:?}"))
}

/// An append of one record of text.
#[must_use]
pub fn append_of(first_seq: u64, level: AckLevel, text: &str) -> v1::Append {
    let value = Some(common::any_value::Value::StringValue(text.to_owned()));
    let record = logs::LogRecord { body: Some(common::AnyValue { value }), ..Default::default() };
    let scope_logs = vec![logs::ScopeLogs { log_records: vec![record], ..Default::default() }];
    let resource_logs = Some(logs::ResourceLogs { scope_logs, ..Default::default() });
    v1::Append { first_seq, level: v1::AckLevel::from(level).into(), gap: false, resource_logs }
}
