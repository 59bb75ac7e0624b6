//! `clad.v1.Ingest.Append`: one stream, from Hello to its end.
//!
//! Invariants:
//! - A stream is a connection of the framed protocol: the same admission, the same session, the same answers in the
//!   same order. Answers are released while the stream waits for anything else, so that no ack waits for an append.
//! - One message is one append; it is encoded here, from the bytes as they came, and its checksum is made of the
//!   encoded bytes. It is never decoded: its memory is bounded by its length, whatever is in it.
//! - A message that waits for room waits as it came, with a share of the assembly budget: encoded it can be much
//!   longer, and nothing counts that before it is admitted. So it is encoded again after that. Without a share it is
//!   refused. The first encoding is not counted; no await lies within its life. So there are at most as many as the
//!   runtime has workers, each up to `max_append_bytes`.
//! - A stream whose answers are not read has no place in the queue for room: free room would be reserved for it.
//! - An error of one append is reported in Refused, in its turn, one of a flush in FlushRefused, and the stream
//!   continues; any other ends it with a status.
//! - A level `none` is never answered: a refused append of that level is counted as dropped.
//! - During the shutdown no further message is taken, and taken appends are answered while the drain lasts.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clad_journal::{Accepted, Watcher};
use clad_proto::frame::{AppendHead, AppendView, Flush, Hello, Transport};
use clad_proto::grpc::{Asked, AskedAppend, to_status, v1};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo, Payload};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::{BufferSettings, EncodeBody, SingleMessageCompressionOverride};
use tonic::codegen::{Service, http};
use tonic::metadata::GRPC_CONTENT_TYPE;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tonic_prost::ProstEncoder;
use v1::append_response::Message as Reply;

use super::assembly::{Limits, MESSAGE_TIMEOUT, Message, Messages, Share, Waiters};
use crate::ingest::http::{CLOSE_TIMEOUT, Caller, Calls, StreamSlot};
use crate::ingest::quota::Owner;
use crate::ingest::slots::PendingAnswer;
use crate::ingest::{
    ADMISSION_TIMEOUT, Admission, Admitted, Answer, AppendQuota, FramedService, LiveSettings, Peer, Producer, Session,
    Shown, count_refusal,
};

/// Answers that wait for the peer at most, before its messages are no longer read.
const QUEUED_ANSWERS_MAX: usize = 64;

/// Bytes that a stream takes for its answers from its beginning: some tens of them.
const ANSWER_BUFFER_BYTES: usize = 1024;
/// Bytes of answers that go to HTTP/2 together.
const ANSWER_YIELD_BYTES: usize = 16 * 1024;

/// Boxed, because a channel takes the memory of [`QUEUED_ANSWERS_MAX`] at its beginning.
type Out = mpsc::Sender<Result<Box<v1::AppendResponse>, Status>>;

/// The service. tonic's own would decode each message before the check of its limits.
#[derive(Clone)]
pub(super) struct Ingest {
    pub(super) live_settings: LiveSettings,
    pub(super) may_read: bool,
    pub(super) calls: Calls,
    pub(super) waiters: Waiters,
}

impl NamedService for Ingest {
    const NAME: &'static str = v1::ingest_server::SERVICE_NAME;
}

impl Service<http::Request<tonic::body::Body>> for Ingest {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        std::future::ready(Ok(match request.uri().path().rsplit('/').next() {
            Some("Append") => self.append(request).unwrap_or_else(|error| to_status(&error).into_http()),
            _ => Status::new(Code::Unimplemented, "clad.v1.Ingest has Append alone").into_http(),
        }))
    }
}

impl Ingest {
    fn append(
        &self,
        request: http::Request<tonic::body::Body>,
    ) -> Result<http::Response<tonic::body::Body>, ErrorInfo> {
        let caller = request.extensions().get::<Caller>().cloned();
        let owner = caller.as_ref().map_or(Owner::Network, |caller| caller.owner);
        // The same limits to its end, whatever a reload does meanwhile.
        let service = self.live_settings.service();
        let access = &service.admission.access;
        let peer = match &caller {
            Some(caller) => caller.peer((Transport::Grpc, self.may_read), request.headers(), access)?,
            None => Peer::network(Transport::Grpc, None, owner, self.may_read).judged(access, Shown::Nothing)?,
        };
        let pending_answer = caller.as_ref().map(Caller::pending_answer);
        let (out, answers) = mpsc::channel(QUEUED_ANSWERS_MAX);
        let share = Share::default();
        let stream_slot = request.extensions().get::<StreamSlot>().cloned();
        let body = axum::body::Body::new(request.into_body()).into_data_stream();
        let limits = Limits::of(&service, owner, &self.waiters);
        let messages = Messages::new(body, limits.clone(), share.clone());
        let session = Session::begin(&service.admission.journal.watermarks());
        let inflight_quota = AppendQuota::of(&peer, &service.admission.budget);
        let conversation = Conversation {
            inflight_quota,
            pending_answer,
            caller,
            watermarks: service.admission.journal.watcher(),
            service,
            peer: Arc::new(peer),
            share,
            limits,
            session,
            released: VecDeque::new(),
            out,
        };
        let call = self.calls.begin();
        tokio::spawn(async move {
            let _held = (call, stream_slot);
            conversation.serve(messages).await;
        });
        let encoder = ProstEncoder::new(BufferSettings::new(ANSWER_BUFFER_BYTES, ANSWER_YIELD_BYTES));
        let answers = ReceiverStream::new(answers).map(|answer| answer.map(|answer| *answer));
        let never = SingleMessageCompressionOverride::Disable;
        let body = EncodeBody::new_server(encoder, answers, None, never, None);
        let mut response = http::Response::new(tonic::body::Body::new(body));
        response.headers_mut().insert(http::header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
        Ok(response)
    }
}

/// End of a stream.
enum End {
    /// Nothing is left to say.
    Done,
    /// The peer, or the journal, is gone.
    Gone,
    /// The peer is sent the reason.
    Error(ErrorInfo),
    /// tonic has said why.
    Status(Status),
}

impl From<ErrorInfo> for End {
    fn from(error: ErrorInfo) -> Self {
        Self::Error(error)
    }
}

struct Conversation {
    /// Its peer's handle for the bytes that may be in flight.
    inflight_quota: AppendQuota,
    /// Notes for others, which may want the connection's slot, whether an answer is pending.
    pending_answer: Option<PendingAnswer>,
    caller: Option<Caller>,
    service: FramedService,
    peer: Arc<Peer>,
    share: Share,
    limits: Limits,
    session: Session,
    watermarks: Watcher,
    /// Due, in their order, and there was no room for them yet.
    released: VecDeque<Answer>,
    out: Out,
}

impl Conversation {
    async fn serve(mut self, mut asked: Messages) {
        let Err(end) = self.converse(&mut asked).await;
        let status = match end {
            End::Done | End::Gone => return,
            End::Status(status) => status,
            End::Error(error) => {
                if error.code != ErrorCode::ShuttingDown {
                    count_refusal(AckLevel::Received, error.code, 1);
                    tracing::debug!(peer = self.peer.name, %error, "the stream ends");
                }
                to_status(&error)
            }
        };
        let _ = self.out.send_timeout(Err(status), CLOSE_TIMEOUT).await;
    }

    async fn converse(&mut self, asked: &mut Messages) -> Result<Infallible, End> {
        let mut producer = Box::pin(self.handshake(asked)).await?;
        loop {
            match self.next(asked).await? {
                Message::Whole(message) => match parse(&message)? {
                    Asked::Append(append) => {
                        let reply = self.append(&producer, &append, message.len()).await?;
                        // Before the answer waits for its reader.
                        drop(message);
                        self.share.give_back();
                        if let Some(reply) = reply {
                            self.send_reply(reply).await?;
                        }
                    }
                    Asked::Flush(flush) => self.flush(flush).await?,
                    Asked::Hello(_) => return Err(malformed("a second Hello")),
                    Asked::Bye(v1::Bye {}) => {
                        if self.session.unanswered() == 0 {
                            producer.forget();
                        }
                        return Err(End::Done);
                    }
                },
                Message::TooLong(header, error) => {
                    let level = header.level.unwrap_or(AckLevel::Received);
                    let error = self.service.admission.unless_stored(&producer, header.first_seq, error);
                    if let Some(reply) = refused(header.first_seq, header.records, level, error) {
                        self.send_reply(reply).await?;
                    }
                }
            }
        }
    }

    async fn handshake(&mut self, asked: &mut Messages) -> Result<Producer, End> {
        let handshake_timeout = self.service.handshake_timeout;
        let hello = match tokio::time::timeout(handshake_timeout, self.next(asked)).await {
            Ok(asked) => asked?,
            Err(_) => {
                let text = format!("no Hello within {handshake_timeout:?}");
                return Err(ErrorInfo::new(ErrorCode::HandshakeTimeout, text).into());
            }
        };
        let Message::Whole(hello) = hello else { return Err(malformed("the first message must be Hello")) };
        let Asked::Hello(hello) = parse(&hello)? else { return Err(malformed("the first message must be Hello")) };
        let hello = Hello::try_from(hello)?;
        if !hello.secret.is_empty() {
            let peer = Peer::clone(&self.peer);
            self.peer = Arc::new(peer.judged(&self.service.admission.access, Shown::Secret(&hello.secret))?);
            self.inflight_quota = AppendQuota::of(&self.peer, &self.service.admission.budget);
        }
        if let Some(caller) = &self.caller {
            caller.serves(&self.peer, &self.service.admission.access);
        }
        let (welcome, producer) = self.service.admission.meet(&hello, &self.peer).await?;
        self.send_reply(Reply::Welcome(welcome.into())).await?;
        producer.ok_or_else(|| malformed("a stream that does not append"))
    }

    /// The next message. After the last one, and during the shutdown, due answers are sent, and that is the end.
    async fn next(&mut self, asked: &mut Messages) -> Result<Message, End> {
        let mut stop = self.service.stop.clone();
        let next = async {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => None,
                message = asked.next() => Some(message),
            }
        };
        match self.meanwhile(next).await? {
            Some(Some(Ok(message))) => Ok(message),
            Some(Some(Err(status))) => Err(End::Status(status)),
            Some(None) => {
                self.answer_all().await?;
                Err(End::Done)
            }
            None => {
                self.answer_all().await?;
                Err(ErrorInfo::new(ErrorCode::ShuttingDown, "clad is stopping").retry_after_ms(1000).into())
            }
        }
    }

    /// Waits for something, and releases answers until then.
    async fn meanwhile<T>(&mut self, something: impl Future<Output = T>) -> Result<T, End> {
        tokio::pin!(something);
        loop {
            self.release().await?;
            let (waits, wants) = (self.session.waits(), self.session.wants());
            tokio::select! {
                biased;
                got = &mut something => return Ok(got),
                reached = self.watermarks.reached(wants), if waits => reached.map_err(|_| End::Gone)?,
                () = self.out.closed() => return Err(End::Gone),
            }
        }
    }

    /// Waits for the watermarks, and answers what they cover.
    async fn watermarks_move(&mut self) -> Result<(), End> {
        let wants = self.session.wants();
        tokio::select! {
            reached = self.watermarks.reached(wants) => reached.map_err(|_| End::Gone)?,
            () = self.out.closed() => return Err(End::Gone),
        }
        self.release().await
    }

    fn share_is_short_of(&self, bytes: usize) -> bool {
        let unwritten = self.session.unwritten_bytes();
        unwritten > 0 && unwritten + bytes > self.service.admission.max_connection_bytes
    }

    /// Waits until the connection's share has room for so many bytes, with a timeout.
    async fn share_has_room(&mut self, bytes: usize) -> Result<bool, End> {
        let late = tokio::time::sleep(ADMISSION_TIMEOUT);
        tokio::pin!(late);
        while self.share_is_short_of(bytes) {
            let wants = self.session.wants();
            tokio::select! {
                reached = self.watermarks.reached(wants) => reached.map_err(|_| End::Gone)?,
                () = self.out.closed() => return Err(End::Gone),
                () = &mut late => return Ok(false),
            }
            self.release().await?;
        }
        Ok(true)
    }

    async fn answer_all(&mut self) -> Result<(), End> {
        self.release().await?;
        while self.session.unanswered() > 0 {
            self.watermarks_move().await?;
        }
        Ok(())
    }

    /// Takes or refuses an append, and returns the answer for its sender.
    async fn append(
        &mut self,
        producer: &Producer,
        append: &AskedAppend<'_>,
        message_bytes: usize,
    ) -> Result<Option<Reply>, End> {
        let level = append.level.unwrap_or(AckLevel::Received);
        let (first_seq, mut count) = (append.first_seq, append.logs.count());
        let payload = match append.level {
            Some(_) => self.payload(append, level),
            None => {
                let text = "the level must be stated, and be one that this version knows";
                Err(ErrorInfo::new(ErrorCode::LevelUnreachable, text))
            }
        };
        let taken = match payload {
            Ok(payload) => {
                count = payload.count;
                self.take(producer, append, (level, message_bytes), payload).await?
            }
            Err(error) => Err(self.service.admission.unless_stored(producer, first_seq, error)),
        };
        let (accepted, bytes, since) = match taken {
            Ok(taken) => taken,
            Err(error) => return Ok(refused(first_seq, count, level, error)),
        };
        self.session.given(first_seq, &accepted, level, bytes, since);
        let Accepted { first_offset, count, epoch, duplicate, .. } = accepted;
        let reply = v1::Accepted { first_seq, first_offset, count, epoch, duplicate };
        Ok((level != AckLevel::None).then_some(Reply::Accepted(reply)))
    }

    fn payload(&self, append: &AskedAppend<'_>, level: AckLevel) -> Result<Payload, ErrorInfo> {
        let admission = &self.service.admission;
        admission.check_level(level, self.peer.rights())?;
        if self.session.unanswered() >= admission.window as usize {
            let text = format!("more than {} appends are unanswered", admission.window);
            return Err(ErrorInfo::new(ErrorCode::WindowExceeded, text).limited_to(admission.window.into()));
        }
        append.logs.encode(admission.max_append, admission.max_record).map_err(Into::into)
    }

    /// Hands an append over, where the connection's share and the budget of all have room; else waits for that.
    async fn take(
        &mut self,
        producer: &Producer,
        append: &AskedAppend<'_>,
        (level, message_bytes): (AckLevel, usize),
        payload: Payload,
    ) -> Result<Result<(Accepted, usize, Instant), ErrorInfo>, End> {
        let admission = self.service.admission.clone();
        let bytes = payload.bytes.len();
        let at_once = if self.share_is_short_of(bytes) {
            None
        } else {
            Admission::try_admit(&self.inflight_quota, bytes, admission.arrival())
        };
        let (payload, admitted) = match at_once {
            Some(admitted) => (payload, admitted),
            None => {
                drop(payload);
                if !self.share.for_waiting(message_bytes, &self.limits) {
                    let text = "too much waits for room over gRPC";
                    return Ok(Err(ErrorInfo::new(ErrorCode::Busy, text)));
                }
                // Boxed, because every stream would have the memory of these waits, and few wait.
                if !Box::pin(self.share_has_room(bytes)).await? {
                    return Ok(Err(admission.share_is_full()));
                }
                let admitted = match Box::pin(self.room(bytes)).await? {
                    Ok(admitted) => admitted,
                    Err(error) => return Ok(Err(error)),
                };
                match self.payload(append, level) {
                    Ok(payload) => (payload, admitted),
                    Err(error) => return Ok(Err(error)), // not after it was encoded before
                }
            }
        };
        let since = admitted.at.since;
        let (first_seq, count, payload_crc) = (append.first_seq, payload.count, payload.checksum());
        let head = AppendHead { first_seq, count, level, gap: append.gap, payload_crc };
        let accepted = admission.take(&self.peer, producer, &AppendView { head, payload: &payload.bytes }, admitted);
        // No thread of the runtime may block: a write that is deferred is dropped, and the journal's threads make it.
        Ok(accepted.map(|(accepted, _)| (accepted, bytes, since)))
    }

    /// Waits in the queue for the budget of all, with a timeout, and only while its answers find room at once.
    async fn room(&mut self, bytes: usize) -> Result<Result<Admitted, ErrorInfo>, End> {
        let admission = self.service.admission.clone();
        loop {
            self.release().await?;
            let inflight_quota = self.inflight_quota.clone();
            let admitted = admission.admit(&inflight_quota, bytes);
            tokio::pin!(admitted);
            while self.release_at_once()? {
                let (waits, wants) = (self.session.waits(), self.session.wants());
                tokio::select! {
                    biased;
                    got = &mut admitted => return Ok(got),
                    reached = self.watermarks.reached(wants), if waits => reached.map_err(|_| End::Gone)?,
                    () = self.out.closed() => return Err(End::Gone),
                }
            }
        }
    }

    async fn flush(&mut self, flush: v1::Flush) -> Result<(), End> {
        let flush = Flush::try_from(flush)?;
        match self.session.ask_flush(&self.service.admission, &self.peer, flush) {
            Ok(None) => Ok(()),
            Ok(Some(mark)) => self.send_reply(Reply::Watermark(mark.into())).await,
            Err(error) => self.send_reply(flush_refused(flush.request_id, error)).await,
        }
    }

    async fn release(&mut self) -> Result<(), End> {
        while !self.release_at_once()? {
            if let Some(answer) = self.released.pop_front() {
                self.send_reply(to_reply(answer)).await?;
            }
        }
        Ok(())
    }

    /// Answers what is due as far as there is room for it; returns true if that was all.
    fn release_at_once(&mut self) -> Result<bool, End> {
        let mut answers = Vec::new();
        self.session.release(&self.watermarks.now(), &mut answers);
        self.released.extend(answers);
        if let Some(pending_answer) = &mut self.pending_answer {
            pending_answer.set(self.session.unanswered() > 0);
        }
        while !self.released.is_empty() {
            let room = match self.out.try_reserve() {
                Ok(room) => room,
                Err(mpsc::error::TrySendError::Full(())) => return Ok(false),
                Err(mpsc::error::TrySendError::Closed(())) => return Err(End::Gone),
            };
            if let Some(answer) = self.released.pop_front() {
                room.send(Ok(response(to_reply(answer))));
            }
        }
        Ok(true)
    }

    /// Sends a reply, and waits for room: without a timeout, but not with a share that others wait for, and during the
    /// shutdown only for a moment.
    async fn send_reply(&self, reply: Reply) -> Result<(), End> {
        let answer = Ok(response(reply));
        let answer = match self.out.try_send(answer) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(End::Gone),
            Err(mpsc::error::TrySendError::Full(answer)) => answer,
        };
        tokio::select! {
            sent = self.out.send(answer) => sent.map_err(|_| End::Gone),
            () = stopped_for(self.service.stop.clone(), CLOSE_TIMEOUT) => Err(End::Gone),
            () = tokio::time::sleep(MESSAGE_TIMEOUT), if self.share.is_held() => {
                let text = "a large message under way, and the answers to those before are not read";
                Err(ErrorInfo::new(ErrorCode::IdleTimeout, text).into())
            }
        }
    }
}

async fn stopped_for(mut stop: watch::Receiver<bool>, time: Duration) {
    let _ = stop.wait_for(|stop| *stop).await;
    tokio::time::sleep(time).await;
}

fn parse(message: &Bytes) -> Result<Asked<'_>, End> {
    match Asked::parse(message) {
        Ok(Some(asked)) => Ok(asked),
        Ok(None) => Err(malformed("a message that says nothing")),
        Err(error) => Err(ErrorInfo::new(ErrorCode::MalformedFrame, error.to_string()).into()),
    }
}

/// A refusal, counted; nothing where no answer is wanted.
fn refused(first_seq: u64, count: u32, level: AckLevel, error: ErrorInfo) -> Option<Reply> {
    count_refusal(level, error.code, count);
    let refused = v1::Refused { first_seq, count, error: Some(error.into()) };
    (level != AckLevel::None).then_some(Reply::Refused(refused))
}

fn to_reply(answer: Answer) -> Reply {
    match answer {
        Answer::Watermark(mark) => Reply::Watermark(mark.into()),
        Answer::Refused(refused) => {
            count_refusal(AckLevel::Received, refused.error.code, refused.count);
            Reply::Refused(refused.into())
        }
        Answer::FlushFailed(id, error) => flush_refused(id, error),
    }
}

fn response(reply: Reply) -> Box<v1::AppendResponse> {
    Box::new(v1::AppendResponse { message: Some(reply) })
}

fn flush_refused(flush_id: u32, error: ErrorInfo) -> Reply {
    Reply::FlushRefused(v1::FlushRefused { flush_id, error: Some(error.into()) })
}

fn malformed(text: &'static str) -> End {
    ErrorInfo::new(ErrorCode::MalformedFrame, text).into()
}

#[cfg(test)]
mod tests;
