//! The stream: where it ends, and what is sent to go behind that.
//!
//! Invariants: a message names the sequence that the stream ends at, and the server stores it only there. So a message that
//! was sent twice, or by another, is refused, whatever the server remembers of earlier ones. Receipts come in the order of
//! the messages.

use std::collections::VecDeque;
use std::future::IntoFuture;

use anyhow::{Context as _, bail, ensure};
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{Context, GetStreamErrorKind, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use async_nats::{ConnectOptions, Event, HeaderMap};
use tokio::sync::watch;

use crate::config::{NatsWho, ToNats};
use crate::out::Trouble;
use crate::out::message::{Message, Place};

/// What is sent and not answered.
const UNDER_WAY_MAX: usize = 1024;
const UNDER_WAY_BYTES_MAX: usize = 4 << 20;

/// The end of the stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// It never had a message.
    Nothing,
    /// The last message is not there any more.
    Gone,
    Of(Place),
    /// A message that no relay has sent, by its subject.
    Foreign(String),
}

/// What the server has stored.
#[derive(Debug)]
pub(super) struct Receipt {
    pub(super) sequence: u64,
    pub(super) place: Place,
    pub(super) records: u32,
    pub(super) bytes: usize,
}

type Answer = std::pin::Pin<
    Box<
        dyn Future<
                Output = Result<
                    async_nats::jetstream::publish::PublishAck,
                    async_nats::jetstream::context::PublishError,
                >,
            > + Send,
    >,
>;

struct UnderWay {
    answer: Answer,
    receipt: Receipt,
}

/// A stream that is written to, over one connection.
pub(super) struct Stream {
    context: Context,
    is_lost: watch::Receiver<bool>,
    name: String,
    subject: String,
    /// When it was created, Unix nanoseconds: a stream of the same name that was made later is another one.
    pub(super) created: i128,
    /// The most bytes of a message with its headers.
    pub(super) max_bytes: usize,
    /// The sequence of the last message, those that are under way among them.
    pub(super) sequence: u64,
    under_way: VecDeque<UnderWay>,
    bytes: usize,
}

impl Stream {
    /// Connects; nothing where there is no such stream.
    pub(super) async fn connect(to: &ToNats, name: &str) -> Result<Option<Self>, Trouble> {
        let (addresses, is_tls) = to.addresses()?;
        let timeout = to.timeout()?;
        let (lost, is_lost) = watch::channel(false);
        let mut options = ConnectOptions::new()
            .name(format!("clad-relay {name}"))
            .connection_timeout(timeout)
            .request_timeout(Some(timeout))
            .require_tls(is_tls)
            // A new connection begins with a look at the stream: what was under way is stored or not.
            .event_callback(move |event| {
                if matches!(event, Event::Disconnected | Event::Closed) {
                    lost.send_replace(true);
                }
                std::future::ready(())
            });
        options = match to.who()? {
            NatsWho::Nobody => options,
            NatsWho::Credentials(file) => {
                let read = options.credentials_file(&file).await;
                read.with_context(|| format!("to.nats.credentials_file: {}", file.display()))?
            }
            NatsWho::User(user, password) => options.user_and_password(user, password),
            NatsWho::Token(token) => options.token(token),
        };
        if let Some(ca) = &to.ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let (Some(cert), Some(key)) = (&to.cert, &to.key) {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        let client = options.connect(addresses).await.map_err(|error| Trouble::Later(error.to_string()))?;
        let max_payload = client.max_payload();
        let mut context = async_nats::jetstream::new(client);
        context.set_timeout(timeout);
        let stream = match context.get_stream(&to.stream).await {
            Ok(stream) => stream,
            Err(error) => {
                return match error.kind() {
                    GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                        Ok(None)
                    }
                    _ => Err(Trouble::Later(format!("stream {}: {error}", to.stream))),
                };
            }
        };
        let info = stream.cached_info();
        let config = &info.config;
        let fit = || -> anyhow::Result<()> {
            ensure!(!config.no_ack, "stream {} answers nothing (no_ack)", to.stream);
            ensure!(!config.sealed, "stream {} is sealed", to.stream);
            ensure!(config.mirror.is_none(), "stream {} is a mirror: its origin is what can be written to", to.stream);
            Ok(())
        };
        fit()?;
        let max_bytes = usize::try_from(config.max_message_size).unwrap_or(usize::MAX).min(max_payload);
        let (created, sequence) = (info.created.unix_timestamp_nanos(), info.state.last_sequence);
        Ok(Some(Self {
            context,
            is_lost,
            name: to.stream.clone(),
            subject: to.subject.clone(),
            created,
            max_bytes,
            sequence,
            under_way: VecDeque::new(),
            bytes: 0,
        }))
    }

    /// Looks at the last message. Only before the first one is sent.
    pub(super) async fn last(&self) -> Result<Last, Trouble> {
        if self.sequence == 0 {
            return Ok(Last::Nothing);
        }
        let stream = self.context.get_stream_no_info(&self.name).await.context("to.nats.stream")?;
        match stream.raw_message_builder().sequence(self.sequence).send().await {
            Ok(message) => {
                let header = |name: &str| message.headers.get(name).map(|value| value.as_str());
                let place = Place::of(header);
                Ok(place.map_or_else(|| Last::Foreign(message.subject.to_string()), Last::Of))
            }
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(Last::Gone),
            Err(error) => Err(Trouble::Later(format!("the last message of stream {}: {error}", self.name))),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.under_way.len() < UNDER_WAY_MAX && self.bytes < UNDER_WAY_BYTES_MAX
    }

    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Records that are under way.
    pub(super) fn records(&self) -> impl Iterator<Item = u32> {
        self.under_way.iter().map(|one| one.receipt.records)
    }

    /// Sends a message, to go behind all that were sent. Not cancel safe: it may be sent, and not counted.
    pub(super) async fn send(&mut self, message: Message) -> Result<(), Trouble> {
        let Message { place, payload, records, .. } = message;
        let bytes = payload.len();
        let mut headers = HeaderMap::new();
        place.headers().for_each(|(name, value)| headers.insert(name, value.into_owned()));
        let publish = PublishMessage::build().headers(headers).payload(payload);
        let publish = publish.expected_last_sequence(self.sequence).expected_stream(&self.name);
        let answer = self.context.send_publish(self.subject.clone(), publish).await;
        let answer = answer.map_err(|error| Trouble::Later(error.to_string()))?.into_future();
        self.sequence += 1;
        self.bytes += bytes;
        let receipt = Receipt { sequence: self.sequence, place, records, bytes };
        self.under_way.push_back(UnderWay { answer, receipt });
        Ok(())
    }

    /// The receipt of the first message under way; never, where there is none. Cancel safe.
    pub(super) async fn receipt(&mut self) -> Result<Receipt, Trouble> {
        let Some(first) = self.under_way.front_mut() else { return std::future::pending().await };
        let answered = tokio::select! {
            answered = &mut first.answer => answered,
            _ = self.is_lost.wait_for(|lost| *lost) => return Err(Trouble::Later("the connection was lost".to_owned())),
        };
        let later = |text: String| Err(Trouble::Later(text));
        let wanted = first.receipt.sequence;
        match answered {
            Ok(ack) if ack.duplicate => later("the server takes a message for a copy of an earlier one".to_owned()),
            Ok(ack) if ack.sequence != wanted => Err(Trouble::Stop(anyhow::anyhow!(
                "stream {} has a message at sequence {}, which was to be at {wanted}: the server does not keep to what a \
                     message expects",
                self.name,
                ack.sequence
            ))),
            Ok(_) => {
                let Some(UnderWay { receipt, .. }) = self.under_way.pop_front() else {
                    return later("nothing is under way".to_owned());
                };
                self.bytes -= receipt.bytes;
                Ok(receipt)
            }
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => {
                later("the stream has another end than was expected: it is looked at again".to_owned())
            }
            Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                later(format!("no stream takes subject {}", self.subject))
            }
            Err(error) => later(error.to_string()),
        }
    }
}

/// Waits for a stream that a relay has written to, or is to write to.
pub(super) async fn existing(to: &ToNats, name: &str) -> Result<Stream, Trouble> {
    match Stream::connect(to, name).await? {
        Some(stream) => Ok(stream),
        None => Err(Trouble::Later(format!("there is no stream {}: it is waited for", to.stream))),
    }
}

/// For a person who asks: no waiting.
pub(super) async fn at_once(to: &ToNats, name: &str) -> anyhow::Result<Stream> {
    match existing(to, name).await {
        Ok(stream) => Ok(stream),
        Err(Trouble::Later(text)) => bail!("{text}"),
        Err(Trouble::Stop(error)) => Err(error),
    }
}
