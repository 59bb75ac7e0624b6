//! Messages on their way in, before they are whole.
//!
//! What must hold:
//! - A message's length is judged when its five bytes of header are there, before any memory is taken for it; what it
//!   takes decoded is judged when it is whole, before it is decoded.
//! - A large message is put together only with a share of the assembly budget that the framed connections use, too. The
//!   handler gives the share back once the message is encoded; nobody keeps one for longer than [`PATIENCE`] while it
//!   waits for its peer.
//! - Half a message is given [`PATIENCE`] to become whole.
//!
//! It works because tonic asks for bytes only when it has no whole message, and this hands out one message at a time:
//! when it is asked again, what it gave was handled.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use clad_proto::grpc::to_status;
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::Status;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;

use super::weight::weight;
use super::{WEIGHT, max_message_bytes};
use crate::ingest::BEGUN;
use crate::ingest::parts::{Held, Owner, Part};
use crate::ingest::{Current, FramedService, count_refusal};

/// Flag and length before each message.
const HEADER: usize = 5;
/// Time for the rest of a message whose first byte came.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The share of the budget that the message under way has. A stream's handler finds it in the request's extensions.
#[derive(Clone, Default)]
pub(super) struct Share(Arc<Mutex<State>>);

#[derive(Default)]
enum State {
    #[default]
    None,
    /// In the queue. One that is due is kept for who asked first, whether that looks or not: it counts as held.
    Asked,
    Held(#[expect(dead_code, reason = "it is there to be dropped")] Held),
}

impl Share {
    fn set(&self, state: State) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Gives it back.
    pub(super) fn give_back(&self) {
        self.set(State::None);
    }

    /// Whether others may be waiting for it.
    pub(super) fn is_held(&self) -> bool {
        !matches!(*self.0.lock().unwrap_or_else(PoisonError::into_inner), State::None)
    }
}

/// What all messages share.
#[derive(Clone)]
struct Limits {
    budget: Part,
    max: usize,
    max_weight: usize,
    patience: Duration,
}

impl Limits {
    fn of(service: &FramedService) -> Self {
        let max_append = service.door.max_append as usize;
        Self {
            budget: service.assembly.part(Owner::Network),
            max: max_message_bytes(max_append),
            max_weight: WEIGHT * max_append,
            patience: PATIENCE,
        }
    }
}

/// A service whose requests come through [`Messages`].
#[derive(Clone)]
pub(super) struct Assembling<S> {
    inner: S,
    current: Current,
}

impl<S> Assembling<S> {
    pub(super) fn new(inner: S, current: Current) -> Self {
        Self { inner, current }
    }
}

impl<S: NamedService> NamedService for Assembling<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<tonic::body::Body>> for Assembling<S>
where
    S: Service<http::Request<Body>, Response = http::Response<tonic::body::Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<tonic::body::Body>) -> Self::Future {
        let (service, share) = (self.current.service(), Share::default());
        let limits = Limits::of(&service);
        // The handler is to go by the same limits, whatever a reload does in between.
        request.extensions_mut().insert(service);
        request.extensions_mut().insert(share.clone());
        let body = |body| Body::from_stream(Messages::new(Body::new(body).into_data_stream(), limits, share));
        Box::pin(self.inner.call(request.map(body)))
    }
}

type Acquiring = Pin<Box<dyn Future<Output = Option<Held>> + Send>>;

/// The bytes of a request, handed out message by message.
struct Messages {
    body: BodyDataStream,
    limits: Limits,
    share: Share,
    /// Came and was not handed out yet.
    rest: BytesMut,
    /// Length of the message under way, with its header; 0 before that is known.
    whole: usize,
    /// A share was asked for the message under way.
    asked: bool,
    acquiring: Option<Acquiring>,
    patience: Option<Pin<Box<Sleep>>>,
}

impl Messages {
    fn new(body: BodyDataStream, limits: Limits, share: Share) -> Self {
        Self { body, limits, share, rest: BytesMut::new(), whole: 0, asked: false, acquiring: None, patience: None }
    }

    /// Looks at the header of the next message, if it is there.
    fn begin(&mut self) -> Result<(), ErrorInfo> {
        self.share.give_back();
        let Some(&[_, a, b, c, d]) = self.rest.first_chunk::<HEADER>() else { return Ok(()) };
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > self.limits.max {
            let text = format!("a message of {len} bytes, of {} at most: split the append", self.limits.max);
            return Err(ErrorInfo::new(ErrorCode::FrameTooLarge, text).limited_to(self.limits.max as u64));
        }
        self.whole = HEADER + len;
        self.asked = false;
        Ok(())
    }

    /// Whether the message under way is to have a share now: it is large, and has begun to come.
    fn needs_share(&self) -> bool {
        !self.asked && self.whole > HEADER + BEGUN && self.rest.len() >= BEGUN
    }

    /// Takes the message under way, which is whole.
    fn hand_out(&mut self) -> Result<Bytes, ErrorInfo> {
        let message = self.rest.split_to(std::mem::take(&mut self.whole)).freeze();
        self.patience = None;
        let (weight, max) = (weight(&message[HEADER..]), self.limits.max_weight);
        if weight > max {
            let text = format!("a message that takes {weight} bytes of memory, of {max} at most: split the append");
            return Err(ErrorInfo::new(ErrorCode::AppendTooLarge, text).limited_to(max as u64));
        }
        Ok(message)
    }

    fn refuse(&mut self, error: &ErrorInfo) -> Poll<Option<Result<Bytes, Status>>> {
        count_refusal(AckLevel::Received, error.code, 1);
        self.share.give_back();
        Poll::Ready(Some(Err(to_status(error))))
    }

    fn keep(&mut self, data: Bytes) {
        if self.rest.is_empty() {
            self.rest = data.into();
        } else {
            let whole = if self.asked { self.whole } else { self.whole.min(BEGUN) };
            self.rest.reserve(whole.saturating_sub(self.rest.len()).max(data.len()));
            self.rest.extend_from_slice(&data);
        }
    }
}

impl Stream for Messages {
    type Item = Result<Bytes, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let me = self.get_mut();
        loop {
            if let Some(acquiring) = &mut me.acquiring {
                me.share.set(ready!(acquiring.as_mut().poll(cx)).map_or(State::None, State::Held));
                me.acquiring = None;
            }
            if me.whole == 0
                && let Err(error) = me.begin()
            {
                return me.refuse(&error);
            }
            if me.needs_share() {
                me.asked = true;
                // It is there twice for a moment: here and in tonic's buffer, then there and encoded.
                me.acquiring = Some(Box::pin(me.limits.budget.take(2 * (me.whole - HEADER))));
                me.share.set(State::Asked);
                continue;
            }
            if me.whole > 0 && me.rest.len() >= me.whole {
                return match me.hand_out() {
                    Ok(message) => Poll::Ready(Some(Ok(message))),
                    Err(error) => me.refuse(&error),
                };
            }
            match Pin::new(&mut me.body).poll_next(cx) {
                Poll::Ready(Some(Ok(data))) => me.keep(data),
                Poll::Ready(Some(Err(e))) => return Poll::Ready(Some(Err(Status::from_error(Box::new(e))))),
                // Half a message is tonic's to complain about.
                Poll::Ready(None) if me.rest.is_empty() => return Poll::Ready(None),
                Poll::Ready(None) => return Poll::Ready(Some(Ok(me.rest.split().freeze()))),
                Poll::Pending if me.rest.is_empty() => {
                    me.patience = None;
                    return Poll::Pending;
                }
                Poll::Pending => {
                    let time = me.limits.patience;
                    let patience = me.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
                    ready!(patience.as_mut().poll(cx));
                    let text = format!("half a message, and not the rest of it within {time:?}");
                    return me.refuse(&ErrorInfo::new(ErrorCode::IdleTimeout, text));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clad_proto::grpc::from_status;
    use tokio::sync::mpsc;
    use tokio_stream::StreamExt;
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;
    use crate::ingest::parts::Parts;

    fn message(len: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend((len as u32).to_be_bytes());
        bytes.resize(HEADER + len, 7);
        bytes
    }

    fn limits(budget_bytes: usize) -> Limits {
        let budget = Parts::new(budget_bytes).part(Owner::Network);
        Limits { budget, max: 1 << 20, max_weight: 1 << 20, patience: Duration::from_millis(50) }
    }

    fn messages(limits: &Limits) -> (mpsc::Sender<Result<Bytes, Infallible>>, Messages) {
        let (tx, rx) = mpsc::channel(100);
        let body = Body::from_stream(ReceiverStream::new(rx)).into_data_stream();
        (tx, Messages::new(body, limits.clone(), Share::default()))
    }

    #[tokio::test]
    async fn bytes_come_out_as_they_came_in_however_they_are_cut() {
        let sent: Vec<u8> = [0, 1, 4, 70_000, 300, 0, 100_000].into_iter().flat_map(message).collect();
        for piece in [1, 3, 16_384, 1 << 20] {
            // The sender never rests here; a busy machine must not look like one that does.
            let limits = Limits { patience: Duration::from_secs(60), ..limits(1 << 20) };
            let (tx, mut got) = messages(&limits);
            let pieces: Vec<Bytes> = sent.chunks(piece).map(Bytes::copy_from_slice).collect();
            let feed = tokio::spawn(async move {
                for piece in pieces {
                    tx.send(Ok(piece)).await.unwrap();
                }
            });
            let mut back = Vec::new();
            while let Some(bytes) = got.next().await {
                back.extend_from_slice(&bytes.unwrap());
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
        assert_eq!(one.next().await.unwrap().unwrap().len(), 70_005);
        assert_eq!(limits.budget.available(), 60_000);
        let waits = tokio::time::timeout(Duration::from_millis(20), other.next()).await;
        assert!(waits.is_err(), "the budget has no room for two");
        drop(tx);
        assert!(one.next().await.is_none());
        assert_eq!(other.next().await.unwrap().unwrap().len(), 70_005);
        drop(other);
        assert_eq!(limits.budget.available(), 200_000);
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

    #[tokio::test]
    async fn a_wrong_length_and_half_a_message_are_told() {
        let limits = limits(1 << 20);
        let (tx, mut long) = messages(&limits);
        tx.send(Ok(Bytes::from_static(&[0, 0, 16, 0, 1]))).await.unwrap();
        let error = from_status(&long.next().await.unwrap().unwrap_err()).unwrap();
        assert_eq!((error.code, error.limit), (ErrorCode::FrameTooLarge, Some(1 << 20)));

        let (tx, mut half) = messages(&limits);
        tx.send(Ok(Bytes::from_static(&[0, 0, 0, 0, 9, 1]))).await.unwrap();
        let error = from_status(&half.next().await.unwrap().unwrap_err()).unwrap();
        assert_eq!(error.code, ErrorCode::IdleTimeout);
        drop(tx);
    }
}
