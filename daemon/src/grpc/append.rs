//! `clad.v1.Ingest.Append`: one stream, from Hello to its end.
//!
//! What must hold:
//! - A stream is a connection of the framed protocol: the same door, the same session, the same answers in the same
//!   order; answers are released while the stream waits for anything else, so that no ack waits for an append.
//! - One message is one append; it is encoded once, here, and its checksum is made of what was encoded.
//! - An error of one append is told in Refused, one of a flush in FlushRefused, and the stream goes on; any other ends it
//!   with a status.
//! - A level `none` is never answered: what is refused of it is counted as dropped.
//! - On the way down no further message is taken, and what was taken is answered while the drain lasts.

use std::future::Future;
use std::time::{Duration, Instant};

use clad_journal::{Accepted, Watcher};
use clad_proto::frame::{AppendHead, Flush, Hello};
use clad_proto::grpc::{to_status, v1};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo, Payload, otlp};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use v1::append_request::Message as Asked;
use v1::append_response::Message as Told;

use super::LAST_WORDS;
use super::assembly::{PATIENCE, Share};
use super::calls::Calls;
use super::listen::Caller;
use crate::ingest::{ADMISSION_WAIT, Answer, Current, FramedService, Peer, Producer, Session, count_refusal};

/// Answers that wait for the peer at most, before its messages are left alone.
const ANSWERS: usize = 64;

type Out = mpsc::Sender<Result<v1::AppendResponse, Status>>;

/// The service.
pub(super) struct Ingest {
    pub(super) current: Current,
    pub(super) may_read: bool,
    pub(super) calls: Calls,
}

#[tonic::async_trait]
impl v1::ingest_server::Ingest for Ingest {
    type AppendStream = ReceiverStream<Result<v1::AppendResponse, Status>>;

    async fn append(
        &self,
        request: Request<Streaming<v1::AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        let address = request.extensions().get::<Caller>().map_or_else(String::new, |caller| caller.address.clone());
        let peer = Peer::network(clad_proto::frame::Transport::Grpc, address, self.may_read);
        let (out, answers) = mpsc::channel(ANSWERS);
        let service = request.extensions().get::<FramedService>().cloned().unwrap_or_else(|| self.current.service());
        let session = Session::begin(&service.door.journal.marks());
        let conversation = Conversation {
            marks: service.door.journal.watcher(),
            service,
            peer,
            share: request.extensions().get::<Share>().cloned().unwrap_or_default(),
            session,
            released: Vec::new(),
            out,
        };
        let call = self.calls.begin();
        tokio::spawn(async move {
            let _call = call;
            conversation.serve(request.into_inner()).await;
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

/// How a stream ends.
enum End {
    /// Nothing is left to say.
    Done,
    /// The peer, or the journal, is gone.
    Gone,
    /// The peer is told why.
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
    service: FramedService,
    peer: Peer,
    share: Share,
    session: Session,
    marks: Watcher,
    released: Vec<Answer>,
    out: Out,
}

impl Conversation {
    async fn serve(mut self, mut asked: Streaming<v1::AppendRequest>) {
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
        let _ = self.out.send_timeout(Err(status), LAST_WORDS).await;
    }

    async fn converse(&mut self, asked: &mut Streaming<v1::AppendRequest>) -> Result<std::convert::Infallible, End> {
        let mut producer = self.handshake(asked).await?;
        loop {
            match self.next(asked).await? {
                Asked::Append(append) => self.append(&producer, append).await?,
                Asked::Flush(flush) => self.flush(flush).await?,
                Asked::Hello(_) => return Err(malformed("a second Hello")),
                Asked::Bye(v1::Bye {}) => {
                    if self.session.unanswered() == 0 {
                        producer.forget();
                    }
                    return Err(End::Done);
                }
            }
        }
    }

    async fn handshake(&mut self, asked: &mut Streaming<v1::AppendRequest>) -> Result<Producer, End> {
        let patience = self.service.handshake_timeout;
        let hello = match tokio::time::timeout(patience, self.next(asked)).await {
            Ok(asked) => asked?,
            Err(_) => {
                let text = format!("no Hello within {patience:?}");
                return Err(ErrorInfo::new(ErrorCode::HandshakeTimeout, text).into());
            }
        };
        let Asked::Hello(hello) = hello else { return Err(malformed("the first message must be Hello")) };
        let (welcome, producer) = self.service.door.welcome(&Hello::try_from(hello)?, &self.peer)?;
        self.tell(Told::Welcome(welcome.into())).await?;
        producer.ok_or_else(|| malformed("a stream that does not append"))
    }

    /// The next message. After the last one, and on the way down, what is still due is answered, and that is the end.
    async fn next(&mut self, asked: &mut Streaming<v1::AppendRequest>) -> Result<Asked, End> {
        let mut stop = self.service.stop.clone();
        let next = async {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => None,
                message = asked.message() => Some(message),
            }
        };
        match self.meanwhile(next).await? {
            Some(Ok(Some(v1::AppendRequest { message: Some(message) }))) => Ok(message),
            Some(Ok(Some(v1::AppendRequest { message: None }))) => Err(malformed("a message that says nothing")),
            Some(Err(status)) => Err(End::Status(status)),
            Some(Ok(None)) => {
                self.answer_all().await?;
                Err(End::Done)
            }
            None => {
                self.answer_all().await?;
                Err(ErrorInfo::new(ErrorCode::ShuttingDown, "clad is going down").retry_after_ms(1000).into())
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
                reached = self.marks.reached(wants), if waits => reached.map_err(|_| End::Gone)?,
                () = self.out.closed() => return Err(End::Gone),
            }
        }
    }

    /// Waits for the marks, and answers what they cover.
    async fn marks_move(&mut self) -> Result<(), End> {
        let wants = self.session.wants();
        tokio::select! {
            reached = self.marks.reached(wants) => reached.map_err(|_| End::Gone)?,
            () = self.out.closed() => return Err(End::Gone),
        }
        self.release().await
    }

    /// Waits until the connection's share has room for so many bytes, but not for ever.
    async fn share_has_room(&mut self, bytes: usize) -> Result<bool, End> {
        let most = self.service.door.max_connection_bytes;
        let late = tokio::time::sleep(ADMISSION_WAIT);
        tokio::pin!(late);
        while self.session.held_bytes() > 0 && self.session.held_bytes() + bytes > most {
            let wants = self.session.wants();
            tokio::select! {
                reached = self.marks.reached(wants) => reached.map_err(|_| End::Gone)?,
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
            self.marks_move().await?;
        }
        Ok(())
    }

    async fn append(&mut self, producer: &Producer, append: v1::Append) -> Result<(), End> {
        // What was logged by a ring before this came goes to the journal before it.
        let rings = self.service.rings.clone();
        let caught_up = self.meanwhile(rings.catch_up(None)).await?;
        let stated = append.level().level();
        let level = stated.unwrap_or(AckLevel::Received);
        let first_seq = append.first_seq;
        let scopes = append.resource_logs.iter().flat_map(|logs| &logs.scope_logs);
        let records = scopes.map(|scope| scope.log_records.len()).sum::<usize>();
        let mut head = AppendHead { first_seq, count: records as u32, level, gap: append.gap, payload_crc: 0 };
        let encoded = match stated {
            Some(_) => self.encode(append, level),
            None => {
                let text = "the level must be stated, and be one that this version knows";
                Err(ErrorInfo::new(ErrorCode::LevelUnreachable, text))
            }
        };
        self.share.give_back();
        let taken = match caught_up.and(encoded) {
            Ok(payload) => {
                (head.count, head.payload_crc) = (payload.count, payload.checksum());
                self.take(producer, &head, &payload).await?
            }
            Err(error) => Err(error),
        };
        match taken {
            Ok((accepted, bytes, since)) => {
                self.session.given(first_seq, &accepted, level, bytes, since);
                if level != AckLevel::None {
                    self.tell(Told::Accepted(v1::Accepted {
                        first_seq,
                        first_offset: accepted.first_offset,
                        count: accepted.count,
                        epoch: accepted.epoch,
                        duplicate: accepted.duplicate,
                    }))
                    .await?;
                }
            }
            Err(error) => {
                count_refusal(level, error.code, head.count);
                if level != AckLevel::None {
                    self.tell(Told::Refused(v1::Refused { first_seq, count: head.count, error: Some(error.into()) }))
                        .await?;
                }
            }
        }
        Ok(())
    }

    /// The payload of an append. The message is gone after it: it is many times as large in memory.
    fn encode(&self, append: v1::Append, level: AckLevel) -> Result<Payload, ErrorInfo> {
        let door = &self.service.door;
        door.check_level(level)?;
        if self.session.unanswered() >= door.window as usize {
            let text = format!("more than {} appends are unanswered", door.window);
            return Err(ErrorInfo::new(ErrorCode::WindowExceeded, text).limited_to(door.window.into()));
        }
        let logs = append.resource_logs.unwrap_or_default();
        otlp::encode(&logs, door.max_append, door.max_record).map_err(Into::into)
    }

    /// Waits for the connection's share and for the budget of all, then hands the append over.
    async fn take(
        &mut self,
        producer: &Producer,
        head: &AppendHead,
        payload: &Payload,
    ) -> Result<Result<(Accepted, usize, Instant), ErrorInfo>, End> {
        let door = self.service.door.clone();
        let bytes = payload.bytes.len();
        if !self.share_has_room(bytes).await? {
            return Ok(Err(door.share_is_full()));
        }
        let admitted = match door.try_admit(bytes, door.arrival()) {
            Some(admitted) => admitted,
            None => match self.meanwhile(door.admit(bytes)).await? {
                Ok(admitted) => admitted,
                Err(error) => return Ok(Err(error)),
            },
        };
        let since = admitted.at.since;
        let accepted = door.take(&self.peer, producer, head, &payload.bytes, admitted);
        Ok(accepted.map(|accepted| (accepted, bytes, since)))
    }

    async fn flush(&mut self, flush: v1::Flush) -> Result<(), End> {
        let flush = Flush::try_from(flush)?;
        match self.session.ask_flush(&self.service.door, flush) {
            Ok(None) => Ok(()),
            Ok(Some(mark)) => self.tell(Told::Watermark(mark.into())).await,
            Err(error) => self.tell(flush_refused(flush.request_id, error)).await,
        }
    }

    async fn release(&mut self) -> Result<(), End> {
        let marks = self.marks.now();
        let mut released = std::mem::take(&mut self.released);
        self.session.release(&marks, &mut released);
        for answer in released.drain(..) {
            self.tell(match answer {
                Answer::Watermark(mark) => Told::Watermark(mark.into()),
                Answer::Refused(refused) => {
                    count_refusal(AckLevel::Received, refused.error.code, refused.count);
                    Told::Refused(refused.into())
                }
                Answer::FlushFailed(id, error) => flush_refused(id, error),
            })
            .await?;
        }
        self.released = released;
        Ok(())
    }

    /// Says something, and waits until there is room for it: for ever, but not with a share that others wait for, and
    /// on the way down only for a moment.
    async fn tell(&self, told: Told) -> Result<(), End> {
        let answer = Ok(v1::AppendResponse { message: Some(told) });
        let answer = match self.out.try_send(answer) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(End::Gone),
            Err(mpsc::error::TrySendError::Full(answer)) => answer,
        };
        tokio::select! {
            sent = self.out.send(answer) => sent.map_err(|_| End::Gone),
            () = stopped_for(self.service.stop.clone(), LAST_WORDS) => Err(End::Gone),
            () = tokio::time::sleep(PATIENCE), if self.share.is_held() => {
                let text = "half a message, and the answers to those before are not read";
                Err(ErrorInfo::new(ErrorCode::IdleTimeout, text).into())
            }
        }
    }
}

async fn stopped_for(mut stop: watch::Receiver<bool>, time: Duration) {
    let _ = stop.wait_for(|stop| *stop).await;
    tokio::time::sleep(time).await;
}

fn flush_refused(flush_id: u32, error: ErrorInfo) -> Told {
    Told::FlushRefused(v1::FlushRefused { flush_id, error: Some(error.into()) })
}

fn malformed(text: &'static str) -> End {
    ErrorInfo::new(ErrorCode::MalformedFrame, text).into()
}
