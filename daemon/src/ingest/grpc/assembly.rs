//! Messages on their way in, before they are whole.
//!
//! Invariants:
//! - A message's length is checked when its five bytes of header are there, before any memory is taken for it. One that
//!   is too long is discarded as it comes. Its header fields are stored: so its sender is notified, and the stream
//!   continues.
//! - Half a message above [`FLOOR_BYTES`] is stored only with a share of the assembly budget that the framed
//!   connections use, too. Before that it has at most that much and one DATA frame. As many streams as
//!   [`SHARE_WAITERS_MAX`] may wait for a share with that much in memory; they are counted as well. One more is refused
//!   as busy.
//! - A message that is whole in one DATA frame needs no share: it came with memory that is there already.
//! - The handler gives the share back once the append is taken or refused; no stream keeps a share for longer than
//!   [`MESSAGE_TIMEOUT`] while it waits for its peer.
//! - Half a message has [`MESSAGE_TIMEOUT`] to become whole. A stream that waits for its next message holds no memory
//!   for it.
//!
//! One message is handed out at a time: when the next is asked for, the one before was handled.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::BodyDataStream;
use bytes::{Bytes, BytesMut};
use clad_proto::grpc::to_status;
use clad_proto::otlp::Logs;
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::Status;

use super::oversize_header::{OversizeHeader, OversizeHeaderParser};
use crate::ingest::quota::{Owner, Quota, QuotaGuard, QuotaHandle};
use crate::ingest::{FramedService, count_refusal};

/// Bytes of a message beside its payload: Append around the records, a resource or scope without anything.
const MESSAGE_OVERHEAD_BYTES: usize = 64 * 1024;

/// The longest protobuf message: an append whose encoding (the subject of `max_append_bytes`) fits is not longer.
fn max_message_bytes(max_append: usize) -> usize {
    Logs::PER_PAYLOAD_BYTE * max_append + MESSAGE_OVERHEAD_BYTES
}

/// Flag and length before each message.
const MESSAGE_HEADER_BYTES: usize = 5;
/// Bytes of a message under way that a stream keeps without a share.
pub(super) const FLOOR_BYTES: usize = 1024;
/// The longest DATA frame: the most that may come at once. It is HTTP/2's default, and nothing here raises it.
const DATA_FRAME_BYTES: usize = 16 * 1024;
/// The longest message that may be handed out without a share.
const UNSHARED_BYTES_MAX: usize = FLOOR_BYTES + DATA_FRAME_BYTES;
/// Streams that wait for a share, over all connections.
const SHARE_WAITERS_MAX: usize = 128;
/// Time that a refused sender is asked to wait.
const RETRY_AFTER_MS: u32 = 1000;
/// Time for the rest of a message whose first byte came.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The share of the budget that the message under way has. A stream's handler finds it in the request's extensions.
#[derive(Clone, Default)]
pub(super) struct Share(Arc<Mutex<State>>);

/// Places for streams that wait for a share.
#[derive(Clone)]
pub(super) struct Waiters(Arc<Quota>);

impl Default for Waiters {
    fn default() -> Self {
        Self(Quota::new(SHARE_WAITERS_MAX))
    }
}

#[derive(Default)]
enum State {
    #[default]
    None,
    /// In the queue. A due share is reserved for the first request, whether that is polled or not: it counts as held.
    Asked,
    Held(#[expect(dead_code, reason = "it is there to be dropped")] QuotaGuard),
}

impl Share {
    fn set(&self, state: State) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Gives it back.
    pub(super) fn give_back(&self) {
        self.set(State::None);
    }

    /// Takes a share for a message that waits for room, if it has none; returns true if it is there. A message up to
    /// the floor needs none.
    pub(super) fn for_waiting(&self, message_bytes: usize, limits: &Limits) -> bool {
        if message_bytes <= FLOOR_BYTES || self.is_held() {
            return true;
        }
        let guard = limits.budget.try_take(message_bytes);
        let is_there = guard.is_some();
        self.set(guard.map_or(State::None, State::Held));
        is_there
    }

    /// Returns true if it has or waits for a share, so that others may be waiting.
    pub(super) fn is_held(&self) -> bool {
        !matches!(*self.0.lock().unwrap_or_else(PoisonError::into_inner), State::None)
    }
}

/// Limits that all messages of a stream share.
#[derive(Clone)]
pub(super) struct Limits {
    budget: QuotaHandle,
    waiters: QuotaHandle,
    max: usize,
    message_timeout: Duration,
}

impl Limits {
    pub(super) fn of(service: &FramedService, owner: Owner, waiters: &Waiters) -> Self {
        Self {
            budget: service.assembly.handle(owner),
            waiters: waiters.0.handle(owner),
            max: max_message_bytes(service.admission.max_append as usize),
            message_timeout: MESSAGE_TIMEOUT,
        }
    }
}

/// A message.
#[derive(Debug)]
pub(super) enum Message {
    /// All of it, without its header.
    Whole(Bytes),
    /// An append that was too long and is gone, and why.
    TooLong(OversizeHeader, ErrorInfo),
}

type Acquiring = Pin<Box<dyn Future<Output = Option<QuotaGuard>> + Send>>;

/// The messages of a request. Dropped between two of them, a wait for the next one loses nothing.
pub(super) struct Messages {
    body: BodyDataStream,
    limits: Limits,
    share: Share,
    /// Came and was not handed out yet.
    rest: BytesMut,
    /// Length of the message under way, with its header; 0 before that is known.
    whole: usize,
    /// There while one goes by that is too long.
    oversize_header: Option<OversizeHeaderParser>,
    /// A share was asked for the message under way.
    asked: bool,
    acquiring: Option<(Acquiring, QuotaGuard)>,
    message_timeout: Option<Pin<Box<Sleep>>>,
}

type Handed = Option<Result<Message, Status>>;

impl Messages {
    pub(super) fn new(body: BodyDataStream, limits: Limits, share: Share) -> Self {
        Self {
            body,
            limits,
            share,
            rest: BytesMut::new(),
            whole: 0,
            oversize_header: None,
            asked: false,
            acquiring: None,
            message_timeout: None,
        }
    }

    /// Looks at the header of the next message, if it is there.
    fn begin(&mut self) -> Result<(), Status> {
        self.share.give_back();
        self.asked = false;
        let Some(&[flag, a, b, c, d]) = self.rest.first_chunk::<MESSAGE_HEADER_BYTES>() else { return Ok(()) };
        if flag != 0 {
            return Err(Status::unimplemented("messages are taken uncompressed"));
        }
        let len = u32::from_be_bytes([a, b, c, d]);
        if len as usize > self.limits.max {
            let _ = self.rest.split_to(MESSAGE_HEADER_BYTES);
            self.oversize_header = Some(OversizeHeaderParser::new(len.into()));
            self.whole = len as usize;
            return Ok(());
        }
        self.whole = MESSAGE_HEADER_BYTES + len as usize;
        Ok(())
    }

    /// Discards the bytes that have come of a message that is too long; returns it when it is over.
    fn discard(&mut self) -> Option<Result<Message, Status>> {
        let oversize_header = self.oversize_header.as_mut()?;
        let here = self.rest.len().min(usize::try_from(oversize_header.left()).unwrap_or(usize::MAX));
        oversize_header.read(&self.rest.split_to(here));
        if oversize_header.left() > 0 {
            return None;
        }
        let found = oversize_header.found();
        self.oversize_header = None;
        self.message_timeout = None;
        let (len, max) = (std::mem::take(&mut self.whole), self.limits.max);
        let text = format!("a message of {len} bytes, of {max} at most: split the append");
        Some(match found {
            Some(found) => {
                let error = ErrorInfo::new(ErrorCode::AppendTooLarge, text).limited_to(max as u64);
                Ok(Message::TooLong(found, error))
            }
            None => Err(self.end(&ErrorInfo::new(ErrorCode::FrameTooLarge, text).limited_to(max as u64))),
        })
    }

    /// Returns true if the message under way needs a share now: it has begun to come, and is not whole or is long.
    fn needs_share(&self) -> bool {
        let is_short = self.rest.len() >= self.whole && self.whole <= UNSHARED_BYTES_MAX;
        !self.asked && self.whole > MESSAGE_HEADER_BYTES + FLOOR_BYTES && self.rest.len() >= FLOOR_BYTES && !is_short
    }

    /// Asks for a share, and for a place to wait for it if there is none now.
    fn ask_for_share(&mut self) -> Result<(), Status> {
        self.asked = true;
        // It is there twice for a moment: as it came, and encoded.
        let bytes = 2 * (self.whole - MESSAGE_HEADER_BYTES);
        if let Some(guard) = self.limits.budget.try_take(bytes) {
            self.share.set(State::Held(guard));
            return Ok(());
        }
        let Some(waiter) = self.limits.waiters.try_take(1) else {
            let text = "many messages are under way over gRPC, and this one finds no room: send it again later";
            return Err(self.end(&ErrorInfo::new(ErrorCode::Busy, text).retry_after_ms(RETRY_AFTER_MS)));
        };
        self.acquiring = Some((Box::pin(self.limits.budget.take(bytes)), waiter));
        self.share.set(State::Asked);
        Ok(())
    }

    /// Takes the message under way, which is whole. Bytes that came behind a large one leave its memory: that is to go
    /// with the message, and with its share.
    fn hand_out(&mut self) -> Message {
        let whole = std::mem::take(&mut self.whole);
        let mut message = self.rest.split_to(whole).freeze();
        if self.asked {
            self.rest = BytesMut::from(&self.rest[..]);
        }
        self.message_timeout = None;
        Message::Whole(message.split_off(MESSAGE_HEADER_BYTES))
    }

    /// Status that ends the stream.
    fn end(&self, error: &ErrorInfo) -> Status {
        count_refusal(AckLevel::Received, error.code, 1);
        self.share.give_back();
        to_status(error)
    }

    /// Copies the bytes that came: in their own memory they would hold that of other streams' frames.
    fn keep(&mut self, data: &[u8]) {
        if self.asked {
            self.rest.reserve(self.whole.saturating_sub(self.rest.len()).max(data.len()));
        }
        self.rest.extend_from_slice(data);
    }
}

impl Stream for Messages {
    type Item = Result<Message, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Handed> {
        let me = self.get_mut();
        loop {
            if let Some((acquiring, _)) = &mut me.acquiring {
                me.share.set(ready!(acquiring.as_mut().poll(cx)).map_or(State::None, State::Held));
                me.acquiring = None;
            }
            if me.whole == 0
                && let Err(status) = me.begin()
            {
                return Poll::Ready(Some(Err(status)));
            }
            if me.oversize_header.is_some() {
                if let Some(over) = me.discard() {
                    return Poll::Ready(Some(over));
                }
            } else if me.needs_share() {
                if let Err(status) = me.ask_for_share() {
                    return Poll::Ready(Some(Err(status)));
                }
                continue;
            } else if me.whole > 0 && me.rest.len() >= me.whole {
                return Poll::Ready(Some(Ok(me.hand_out())));
            }
            match Pin::new(&mut me.body).poll_next(cx) {
                Poll::Ready(Some(Ok(data))) => me.keep(&data),
                Poll::Ready(Some(Err(e))) => return Poll::Ready(Some(Err(Status::from_error(Box::new(e))))),
                Poll::Ready(None) if me.rest.is_empty() && me.whole == 0 => return Poll::Ready(None),
                Poll::Ready(None) => return Poll::Ready(Some(Err(Status::internal("the stream ends in a message")))),
                Poll::Pending if me.rest.is_empty() && me.whole == 0 => {
                    (me.message_timeout, me.rest) = (None, BytesMut::new());
                    return Poll::Pending;
                }
                Poll::Pending => {
                    let time = me.limits.message_timeout;
                    let message_timeout = me.message_timeout.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
                    ready!(message_timeout.as_mut().poll(cx));
                    let text = format!("half a message, and not the rest of it within {time:?}");
                    return Poll::Ready(Some(Err(me.end(&ErrorInfo::new(ErrorCode::IdleTimeout, text)))));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use clad_proto::grpc::opentelemetry::proto::logs::v1 as logs;
    use clad_proto::grpc::{from_status, v1};
    use prost::Message as _;
    use tokio::sync::mpsc;
    use tokio_stream::StreamExt;
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;
    use crate::ingest::quota::Quota;

    fn message(len: usize) -> Vec<u8> {
        framed(&vec![7; len])
    }

    fn framed(content: &[u8]) -> Vec<u8> {
        [&[0], &(content.len() as u32).to_be_bytes()[..], content].concat()
    }

    fn whole(message: Message) -> Bytes {
        let Message::Whole(bytes) = message else { panic!("{message:?}") };
        bytes
    }

    fn limits(budget_bytes: usize) -> Limits {
        let budget = Quota::new(budget_bytes).handle(Owner::Network);
        Limits {
            budget,
            waiters: Waiters::default().0.handle(Owner::Network),
            max: 1 << 20,
            message_timeout: Duration::from_millis(50),
        }
    }

    fn messages(limits: &Limits) -> (mpsc::Sender<Result<Bytes, Infallible>>, Messages) {
        let (tx, rx) = mpsc::channel(100);
        let body = axum::body::Body::from_stream(ReceiverStream::new(rx)).into_data_stream();
        (tx, Messages::new(body, limits.clone(), Share::default()))
    }

    #[tokio::test]
    async fn bytes_come_out_as_they_came_in_however_they_are_cut() {
        let sent: Vec<u8> = [0, 1, 4, 70_000, 300, 0, 100_000].into_iter().flat_map(message).collect();
        for piece in [1, 3, 16_384, 1 << 20] {
            // The sender never rests here; a busy machine must not look like one that does.
            let limits = Limits { message_timeout: Duration::from_secs(60), ..limits(1 << 20) };
            let (tx, mut got) = messages(&limits);
            let pieces: Vec<Bytes> = sent.chunks(piece).map(Bytes::copy_from_slice).collect();
            let feed = tokio::spawn(async move {
                for piece in pieces {
                    tx.send(Ok(piece)).await.unwrap();
                }
            });
            let mut back = Vec::new();
            while let Some(bytes) = got.next().await {
                back.extend(framed(&whole(bytes.unwrap())));
            }
            feed.await.unwrap();
            assert_eq!(back, sent, "in pieces of {piece}");
        }
    }

    #[tokio::test]
    async fn a_large_message_holds_its_share_until_the_next_is_asked_for() {
        let limits = limits(200_000);
        let (tx, mut one) = messages(&limits);
        let (tx2, mut other) = messages(&limits);
        for tx in [&tx, &tx2] {
            tx.send(Ok(Bytes::from(message(70_000)))).await.unwrap();
        }
        assert_eq!(whole(one.next().await.unwrap().unwrap()).len(), 70_000);
        assert_eq!(limits.budget.available(), 60_000);
        let waits = tokio::time::timeout(Duration::from_millis(20), other.next()).await;
        assert!(waits.is_err(), "the budget has no room for two");
        drop(tx);
        assert!(one.next().await.is_none());
        assert_eq!(whole(other.next().await.unwrap().unwrap()).len(), 70_000);
        drop(other);
        assert_eq!(limits.budget.available(), 200_000);
    }

    #[tokio::test]
    async fn half_a_message_above_the_floor_has_a_share() {
        let limits = Limits { message_timeout: Duration::from_secs(60), ..limits(1 << 20) };
        let (tx, mut got) = messages(&limits);
        let sent = message(60_000);
        let (floor, rest) = sent.split_at(FLOOR_BYTES - 1);
        tx.send(Ok(Bytes::copy_from_slice(floor))).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), got.next()).await.is_err());
        assert_eq!(limits.budget.available(), 1 << 20, "the floor is free");
        let (more, rest) = rest.split_at(1);
        tx.send(Ok(Bytes::copy_from_slice(more))).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), got.next()).await.is_err());
        assert_eq!(limits.budget.available(), (1 << 20) - 120_000);
        tx.send(Ok(Bytes::copy_from_slice(rest))).await.unwrap();
        assert_eq!(whole(got.next().await.unwrap().unwrap()).len(), 60_000);
        assert!(tokio::time::timeout(Duration::from_millis(20), got.next()).await.is_err());
        assert_eq!((limits.budget.available(), got.rest.capacity()), (1 << 20, 0), "nothing is kept between two");
    }

    /// A connection may hold all of the budget with half messages: bytes that came at once have their memory already.
    #[tokio::test]
    async fn a_message_that_is_whole_needs_no_share() {
        let limits = limits(1 << 20);
        let all = (limits.budget.try_take(1 << 20), limits.budget.try_take(1 << 20));
        let (tx, mut got) = messages(&limits);
        tx.send(Ok(Bytes::from(message(DATA_FRAME_BYTES - MESSAGE_HEADER_BYTES)))).await.unwrap();
        let waits = tokio::time::timeout(Duration::from_secs(60), got.next());
        assert_eq!(
            whole(waits.await.expect("at once").unwrap().unwrap()).len(),
            DATA_FRAME_BYTES - MESSAGE_HEADER_BYTES
        );
        drop(all);
    }

    #[tokio::test]
    async fn so_many_wait_for_a_share_and_one_more_is_refused() {
        let limits = Limits { waiters: Quota::new(2).handle(Owner::Network), ..limits(200_000) };
        let guard = limits.budget.try_take(200_000).expect("nobody has any");
        let (tx, mut waits) = messages(&limits);
        let (tx2, mut refused) = messages(&limits);
        for tx in [&tx, &tx2] {
            tx.send(Ok(Bytes::copy_from_slice(&message(60_000)[..5000]))).await.unwrap();
        }
        assert!(tokio::time::timeout(Duration::from_millis(20), waits.next()).await.is_err(), "it waits for its turn");
        let error = from_status(&refused.next().await.unwrap().unwrap_err()).unwrap();
        assert_eq!((error.code, error.retry_after_ms), (ErrorCode::Busy, Some(RETRY_AFTER_MS)));
        drop(guard);
        tx.send(Ok(Bytes::copy_from_slice(&message(60_000)[5000..]))).await.unwrap();
        assert_eq!(whole(waits.next().await.unwrap().unwrap()).len(), 60_000);
        assert!(limits.waiters.try_take(1).is_some(), "its place is free");
    }

    #[tokio::test]
    async fn what_waits_for_room_has_a_share_or_waits_no_longer() {
        let limits = limits(10_000);
        let (one, other, small) = (Share::default(), Share::default(), Share::default());
        assert!(one.for_waiting(4000, &limits) && one.is_held());
        assert!(one.for_waiting(4000, &limits) && limits.budget.available() == 6000, "one share is enough");
        assert!(!other.for_waiting(4000, &limits) && !other.is_held(), "the network has half");
        assert!(small.for_waiting(FLOOR_BYTES, &limits) && !small.is_held());
        one.give_back();
        assert!(other.for_waiting(4000, &limits));
    }

    #[tokio::test]
    async fn the_handler_can_give_the_share_back_before() {
        let limits = limits(200_000);
        let (tx, mut got) = messages(&limits);
        tx.send(Ok(Bytes::from(message(70_000)))).await.unwrap();
        got.next().await.unwrap().unwrap();
        assert!(got.share.is_held());
        got.share.give_back();
        assert_eq!(limits.budget.available(), 200_000);
    }

    /// An append of a million bytes and more.
    fn long(first_seq: u64) -> Vec<u8> {
        let record = logs::LogRecord { event_name: "x".repeat(1 << 20), ..Default::default() };
        let scope_logs = logs::ScopeLogs { log_records: vec![record], ..Default::default() };
        let resource_logs = Some(logs::ResourceLogs { scope_logs: vec![scope_logs], ..Default::default() });
        let append = v1::Append { first_seq, level: 5, gap: false, resource_logs };
        let message = Some(v1::append_request::Message::Append(append));
        framed(&v1::AppendRequest { message }.encode_to_vec())
    }

    #[tokio::test]
    async fn one_that_is_too_long_goes_by_and_what_follows_is_handed_out() {
        let sent = [message(3), long(7), message(90_000), long(8), long(9), message(0)].concat();
        for piece in [100, 16_384, 5 << 20] {
            let limits = Limits { message_timeout: Duration::from_secs(60), ..limits(1 << 20) };
            let (tx, mut got) = messages(&limits);
            let pieces: Vec<Bytes> = sent.chunks(piece).map(Bytes::copy_from_slice).collect();
            let feed = tokio::spawn(async move {
                for piece in pieces {
                    tx.send(Ok(piece)).await.unwrap();
                }
            });
            let mut back = Vec::new();
            while let Some(message) = got.next().await {
                back.push(match message.unwrap() {
                    Message::Whole(bytes) => Ok(bytes.len()),
                    Message::TooLong(found, error) => {
                        assert_eq!((error.code, error.limit), (ErrorCode::AppendTooLarge, Some(1 << 20)));
                        assert_eq!(limits.budget.available(), 1 << 20, "nothing is kept of it");
                        assert_eq!((found.records, found.level), (1, Some(AckLevel::Durable)));
                        Err(found.first_seq)
                    }
                });
                assert!(got.rest.capacity() <= piece.max(200_000), "{}", got.rest.capacity());
            }
            feed.await.unwrap();
            assert_eq!(back, [Ok(3), Err(7), Ok(90_000), Err(8), Err(9), Ok(0)], "in pieces of {piece}");
        }
    }

    /// However little of the next message came with it.
    #[tokio::test]
    async fn a_large_message_takes_its_memory_along() {
        let limits = limits(1 << 20);
        let (tx, mut got) = messages(&limits);
        let mut sent = message(200_000);
        sent.extend(&message(9)[..3]);
        for piece in sent.chunks(10_000) {
            tx.send(Ok(Bytes::copy_from_slice(piece))).await.unwrap();
        }
        let large = whole(got.next().await.unwrap().unwrap());
        // In the same memory it would lie right behind the message; the capacity says nothing of what both share.
        assert_ne!(got.rest.as_ptr(), large.as_ptr_range().end, "what came behind it holds its memory");
        assert_eq!((large.len(), got.rest.len()), (200_000, 3));
        tx.send(Ok(Bytes::copy_from_slice(&message(9)[3..]))).await.unwrap();
        assert_eq!(whole(got.next().await.unwrap().unwrap()).len(), 9);
    }

    #[tokio::test]
    async fn a_wrong_length_and_half_a_message_are_reported() {
        let limits = limits(1 << 20);
        let (tx, mut long) = messages(&limits);
        tx.send(Ok(Bytes::from(message((1 << 20) + 1)))).await.unwrap();
        let error = from_status(&long.next().await.unwrap().unwrap_err()).unwrap();
        assert_eq!((error.code, error.limit), (ErrorCode::FrameTooLarge, Some(1 << 20)), "it is no append");

        let (tx, mut slow) = messages(&limits);
        tx.send(Ok(Bytes::from_static(&[0, 0, 16, 0, 1]))).await.unwrap();
        let error = from_status(&slow.next().await.unwrap().unwrap_err()).unwrap();
        assert_eq!(error.code, ErrorCode::IdleTimeout, "of one that is too long, too");

        let (tx, mut packed) = messages(&limits);
        tx.send(Ok(Bytes::from_static(&[1, 0, 0, 0, 1]))).await.unwrap();
        assert_eq!(packed.next().await.unwrap().unwrap_err().code(), tonic::Code::Unimplemented);

        let (tx, mut cut) = messages(&limits);
        tx.send(Ok(Bytes::from_static(&[0, 0, 0, 0, 9, 1]))).await.unwrap();
        drop(tx);
        assert_eq!(cut.next().await.unwrap().unwrap_err().code(), tonic::Code::Internal);

        let (tx, mut half) = messages(&limits);
        tx.send(Ok(Bytes::from_static(&[0, 0, 0, 0, 9, 1]))).await.unwrap();
        let error = from_status(&half.next().await.unwrap().unwrap_err()).unwrap();
        assert_eq!(error.code, ErrorCode::IdleTimeout);
        drop(tx);
    }
}
