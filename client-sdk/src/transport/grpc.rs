//! `clad.v1.Ingest.Append`: a bidirectional stream is a connection.
//!
//! The daemon encodes here, so the payload is taken apart again when it is sent. The windows are set wide: with those
//! that tonic has by default a stream is several times slower.

use super::answer::Answer;
use super::token::{token, with_token};
use crate::{Address, ConnectError, session::Out};
use clad_proto::{
    ErrorCode, ErrorInfo, PayloadView,
    frame::{Accepted, Flush, Hello, Refused, Welcome},
    grpc::{
        from_status,
        v1::{
            self, append_request::Message as Request, append_response::Message as Response, ingest_client::IngestClient,
        },
    },
    otlp::to_otlp,
};
use std::{collections::VecDeque, error::Error, future::Future, io, pin::pin, sync::Arc, task::Poll, time::Duration};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
#[cfg(feature = "tls")]
use tonic::transport::{Certificate, ClientTlsConfig, Identity};
use tonic::{
    Code, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{self, Endpoint},
};

const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// A peer that says nothing for so long is asked, and has as long again to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// So many messages are handed to the stream before it has taken them.
const STREAM_MESSAGES: usize = 16;
/// So many answers are taken at once.
const MAX_ANSWERS: usize = 256;

pub(crate) struct Grpc {
    address: Address,
    sender: mpsc::Sender<v1::AppendRequest>,
    queue: VecDeque<(v1::AppendRequest, usize)>,
    queued_bytes: usize,
    responses: Streaming<v1::AppendResponse>,
    failed: Option<ConnectError>,
}

impl std::fmt::Debug for Grpc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grpc")
            .field("address", &self.address)
            .field("queued", &self.queue.len())
            .finish_non_exhaustive()
    }
}

/// A channel whose calls bring the token.
pub type Channel = InterceptedService<transport::Channel, WithToken>;

/// Adds the token to each call, where there is one.
#[derive(Debug, Clone, Default)]
pub struct WithToken(Option<MetadataValue<Ascii>>);

impl Interceptor for WithToken {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

impl WithToken {
    fn of(address: &Address) -> Result<Self, ConnectError> {
        let header = token(address)?.map(|token| MetadataValue::try_from([b"Bearer ", &token[..]].concat()));
        let no_text = |_| ConnectError::Protocol {
            address: address.clone(),
            what: "the token is no text that a header may have".to_owned(),
        };
        header.transpose().map(Self).map_err(no_text)
    }
}

/// A channel to a daemon.
///
/// # Errors
/// It cannot be reached, or a file that the address or the environment names cannot be read.
pub async fn channel(address: &Address) -> Result<Channel, ConnectError> {
    let token = WithToken::of(address)?;
    let endpoint = endpoint(address)?
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true);
    let channel = endpoint.connect().await.map_err(|error| of_transport(address, &error))?;
    Ok(InterceptedService::new(channel, token))
}

fn endpoint(address: &Address) -> Result<Endpoint, ConnectError> {
    let wrong = |error: &dyn Error| ConnectError::Protocol { address: address.clone(), what: error.to_string() };
    match address {
        #[cfg(feature = "tls")]
        Address::Grpcs(host) => {
            let host = host.with_environment();
            let no_files = |error| ConnectError::Io { address: address.clone(), error: Arc::new(error) };
            let files = super::tls::Files::read(&host).map_err(no_files)?;
            let name = host.server_name.clone().unwrap_or_else(|| host.at.host.clone());
            let mut tls =
                ClientTlsConfig::new().ca_certificate(Certificate::from_pem(files.authorities)).domain_name(name);
            if let Some((cert, key)) = files.own {
                tls = tls.identity(Identity::from_pem(cert, key));
            }
            let endpoint = Endpoint::from_shared(format!("https://{}", host.at)).map_err(|error| wrong(&error))?;
            endpoint.tls_config(tls).map_err(|error| wrong(&error))
        }
        Address::Grpc(at) => Endpoint::from_shared(format!("http://{at}")).map_err(|error| wrong(&error)),
        _ => Err(ConnectError::Protocol { address: address.clone(), what: "it is no address of gRPC".to_owned() }),
    }
}

fn of_transport(address: &Address, error: &(dyn Error + 'static)) -> ConnectError {
    let mut source = Some(error);
    while let Some(inner) = source {
        if let Some(error) = inner.downcast_ref::<io::Error>() {
            let error = Arc::new(io::Error::new(error.kind(), error.to_string()));
            return ConnectError::Io { address: address.clone(), error };
        }
        source = inner.source();
    }
    ConnectError::Io { address: address.clone(), error: Arc::new(io::Error::other(error.to_string())) }
}

/// Converts a status to the error of a connection.
pub(crate) fn of_status(address: &Address, status: &Status) -> ConnectError {
    let address = address.clone();
    if let Some(error) = from_status(status) {
        return ConnectError::Refused { address, error: Box::new(error) };
    }
    match status.code() {
        Code::Unimplemented | Code::InvalidArgument | Code::OutOfRange | Code::NotFound => {
            ConnectError::Protocol { address, what: status.to_string() }
        }
        Code::PermissionDenied | Code::Unauthenticated => {
            let error = Box::new(ErrorInfo::new(ErrorCode::PermissionDenied, status.message()));
            ConnectError::Refused { address, error }
        }
        _ => ConnectError::Closed { address },
    }
}

impl Grpc {
    /// Connects and greets.
    pub(super) async fn connect(address: &Address, hello: &Hello) -> Result<(Self, Welcome), ConnectError> {
        let hello = &with_token(address, hello)?;
        let mut client = IngestClient::new(channel(address).await?);
        let (sender, receiver) = mpsc::channel(STREAM_MESSAGES);
        let (address, closed) = (address.clone(), ConnectError::Closed { address: address.clone() });
        // The channel is new and has room.
        let _ = sender.try_send(request(Request::Hello(hello.clone().into())));
        let responses = client.append(ReceiverStream::new(receiver)).await;
        let mut responses = responses.map_err(|status| of_status(&address, &status))?.into_inner();
        let answer = responses.message().await.map_err(|status| of_status(&address, &status))?;
        let welcome = match answer.ok_or(closed)?.message {
            Some(Response::Welcome(welcome)) => Welcome::try_from(welcome)
                .map_err(|error| ConnectError::Protocol { address: address.clone(), what: error.text })?,
            Some(Response::Error(error)) => {
                return Err(ConnectError::Refused { address, error: Box::new(error.into()) });
            }
            _ => return Err(ConnectError::Protocol { address, what: "another message where Welcome belongs".into() }),
        };
        Ok((Self { address, sender, queue: VecDeque::new(), queued_bytes: 0, responses, failed: None }, welcome))
    }

    pub(super) const fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    pub(super) fn queue(&mut self, out: Out) -> Result<(), ConnectError> {
        let (message, len) = match out {
            Out::Append { head, payload, .. } => {
                // Made by our own builder from records that were checked.
                let view = PayloadView::parse(&payload, head.count).map_err(|error| ConnectError::Protocol {
                    address: self.address.clone(),
                    what: format!("our own payload: {error}"),
                })?;
                let append = v1::Append {
                    first_seq: head.first_seq,
                    level: v1::AckLevel::from(head.level).into(),
                    gap: head.gap,
                    resource_logs: Some(to_otlp(&view)),
                };
                (Request::Append(append), payload.len())
            }
            Out::Flush { id, level } => (Request::Flush(Flush { request_id: id, level }.into()), 0),
        };
        self.queued_bytes += len;
        self.queue.push_back((request(message), len));
        Ok(())
    }

    pub(super) async fn drive(&mut self, answers: &mut Vec<Answer>) -> Result<(), ConnectError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        loop {
            tokio::select! {
                permit = self.sender.reserve(), if !self.queue.is_empty() => {
                    // Closed, it ends with a status, which says more.
                    let Ok(permit) = permit else { break };
                    if let Some((message, len)) = self.queue.pop_front() {
                        self.queued_bytes -= len;
                        permit.send(message);
                    }
                    if self.queue.is_empty() {
                        return Ok(());
                    }
                }
                message = self.responses.message() => {
                    let before = answers.len();
                    let mut next = Some(message);
                    while let Some(message) = next.take() {
                        match answer(&self.address, message) {
                            Ok(answer) => answers.push(answer),
                            Err(error) if answers.len() == before => return Err(error),
                            Err(error) => self.failed = Some(error), // stored for the next call
                        }
                        if self.failed.is_none() && answers.len() - before < MAX_ANSWERS {
                            let mut message = pin!(self.responses.message());
                            next = std::future::poll_fn(|cx| match message.as_mut().poll(cx) {
                                Poll::Ready(message) => Poll::Ready(Some(message)),
                                Poll::Pending => Poll::Ready(None),
                            }).await;
                        }
                    }
                    return Ok(());
                }
            }
        }
        let message = self.responses.message().await;
        answers.push(answer(&self.address, message)?);
        Ok(())
    }

    pub(super) async fn end(mut self, bye: bool) {
        if bye {
            self.queue.push_back((request(Request::Bye(v1::Bye {})), 0));
        }
        for (message, _) in std::mem::take(&mut self.queue) {
            if self.sender.send(message).await.is_err() {
                return;
            }
        }
        drop(self.sender);
        while let Ok(Some(_)) = self.responses.message().await {}
    }
}

fn request(message: Request) -> v1::AppendRequest {
    v1::AppendRequest { message: Some(message) }
}

fn answer(address: &Address, message: Result<Option<v1::AppendResponse>, Status>) -> Result<Answer, ConnectError> {
    let protocol = |what: &str| ConnectError::Protocol { address: address.clone(), what: what.to_owned() };
    let message = message.map_err(|status| of_status(address, &status))?;
    let message = message.ok_or_else(|| ConnectError::Closed { address: address.clone() })?;
    match message.message.ok_or_else(|| protocol("an empty answer"))? {
        Response::Accepted(answer) => Ok(Answer::Accepted(Accepted::from(answer))),
        Response::Watermark(watermark) => {
            watermark.watermark().map(Answer::Watermark).ok_or_else(|| protocol("a watermark without a level"))
        }
        Response::Refused(answer) => Ok(Answer::Refused(Refused::from(answer))),
        Response::FlushRefused(answer) => {
            let error = answer.error.ok_or_else(|| protocol("a flush that is refused without an error"))?.into();
            Ok(Answer::FlushRefused { id: answer.flush_id, error })
        }
        Response::Error(error) => {
            Err(ConnectError::Refused { address: address.clone(), error: Box::new(error.into()) })
        }
        Response::Welcome(_) => Err(protocol("a second welcome")),
    }
}
