//! `clad.v1.Log.Read`: a read whose blocks are OTLP messages.
//!
//! Invariants: it serves only whom the rules allow to read; without rules, where the operator allows it on this listener. The read itself is the same as a
//! framed one. A gRPC reader cannot check a payload's checksum, so it is checked here: a mismatch is reported as
//! damage, and the payload is never given out. The call ends with ReadEnd, or with a status that says why not.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use clad_proto::frame::{CommitCursor, CursorState, GapReason, PeerMeta, Read, RecordsHead, Transport};
use clad_proto::grpc::{to_status, v1};
use clad_proto::limits::MAX_READS_PER_CONNECTION;
use clad_proto::{ErrorCode, ErrorInfo, PayloadView, otlp, payload_checksum};
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};
use v1::read_response::Message;

use crate::config::Right;
use crate::ingest::http::{CLOSE_TIMEOUT, Caller, Calls};
use crate::ingest::{LiveSettings, Owner, Peer, Shown};
use crate::ops::metrics;
use crate::read::{Block, Ended, Item, Reads};

/// Blocks that wait for the reader, beside the one that is being made.
const QUEUED_BLOCKS_MAX: usize = 2;

type Answer = Result<v1::ReadResponse, Status>;

/// The service.
pub(super) struct Log {
    pub(super) live_settings: LiveSettings,
    pub(super) reads: Arc<Reads>,
    pub(super) may_read: bool,
    pub(super) stop: watch::Receiver<bool>,
    pub(super) calls: Calls,
}

impl Log {
    /// Checks that the caller may read.
    fn check(&self, caller: Option<&Caller>, metadata: &MetadataMap) -> Result<Arc<Peer>, ErrorInfo> {
        let access = self.live_settings.service().admission.access.clone();
        let at = (Transport::Grpc, self.may_read);
        let nobody = || Peer::network(at.0, None, Owner::Network, at.1).judged(&access, Shown::Nothing);
        let peer = caller.map_or_else(nobody, |caller| caller.peer(at, metadata.as_ref(), &access))?;
        peer.check(Right::Read)?;
        let peer = Arc::new(peer);
        if let Some(caller) = caller {
            caller.serves(&peer, &access);
        }
        Ok(peer)
    }

    fn peer_of<T>(&self, request: &Request<T>) -> Result<Arc<Peer>, Status> {
        self.check(request.extensions().get::<Caller>(), request.metadata()).map_err(|error| to_status(&error))
    }
}

#[tonic::async_trait]
impl v1::log_server::Log for Log {
    type ReadStream = Blocks;

    async fn read(&self, request: Request<v1::ReadRequest>) -> Result<Response<Blocks>, Status> {
        let refuse = |code, text: &str| to_status(&ErrorInfo::new(code, text));
        let caller = request.extensions().get::<Caller>();
        self.check(caller, request.metadata()).map_err(|error| to_status(&error))?;
        let Some((permit, owner)) = caller.and_then(|caller| Some((caller.begin_read()?, caller.owner))) else {
            let text = format!("{MAX_READS_PER_CONNECTION} reads are open on this connection");
            return Err(refuse(ErrorCode::Busy, &text));
        };
        let read = Read::try_from(request.into_inner()).map_err(|e| to_status(&e))?;
        let start = self.reads.start(&read, owner).map_err(|e| to_status(&e))?;
        let (out, blocks) = mpsc::channel(QUEUED_BLOCKS_MAX);
        let (stop, call) = (self.stop.clone(), self.calls.begin());
        tokio::spawn(async move {
            let _held = (permit, call);
            // A reader that wants no more drops the call.
            let (_never, cancelled) = watch::channel(false);
            if start.run_as::<Otlp>(&out, stop, cancelled).await == Ended::Stopping {
                let error = ErrorInfo::new(ErrorCode::ShuttingDown, "clad is stopping").retry_after_ms(1000);
                let _ = out.send_timeout(vec![Err(to_status(&error))], CLOSE_TIMEOUT).await;
            }
        });
        Ok(Response::new(Blocks { blocks, block: Vec::new().into_iter() }))
    }

    async fn commit_cursor(
        &self,
        request: Request<v1::CommitCursorRequest>,
    ) -> Result<Response<v1::CursorResponse>, Status> {
        let peer = self.peer_of(&request)?;
        let commit = request.into_inner();
        let place = commit.place.map(|place| {
            let malformed = || ErrorInfo::new(ErrorCode::MalformedFrame, "the id of a log is 16 bytes");
            place.cursor().ok_or_else(|| to_status(&malformed()))
        });
        let (place, hold) = (place.transpose()?, commit.hold);
        let commit = CommitCursor { request_id: 0, name: commit.name, place, hold, note: commit.note };
        let state = self.reads.cursors.commit(&peer, &commit).await;
        state.map(shown).map_err(|error| to_status(&error))
    }

    async fn get_cursor(&self, request: Request<v1::GetCursorRequest>) -> Result<Response<v1::CursorResponse>, Status> {
        self.peer_of(&request)?;
        Ok(shown(self.reads.cursors.state(0, &request.into_inner().name)))
    }
}

fn shown(state: CursorState) -> Response<v1::CursorResponse> {
    Response::new(state.named.map_or_else(v1::CursorResponse::default, |named| v1::CursorResponse {
        place: Some(named.place.into()),
        hold: named.hold,
        lost: named.lost,
        committed: named.committed_ns,
        unread_from: named.unread_from,
        note: named.note,
    }))
}

/// The answers of a read, taken out of their blocks.
pub(super) struct Blocks {
    blocks: mpsc::Receiver<Vec<Answer>>,
    block: std::vec::IntoIter<Answer>,
}

impl Stream for Blocks {
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Answer>> {
        loop {
            if let Some(answer) = self.block.next() {
                return Poll::Ready(Some(answer));
            }
            match ready!(self.blocks.poll_recv(cx)) {
                Some(block) => self.block = block.into_iter(),
                None => return Poll::Ready(None),
            }
        }
    }
}

/// A block of OTLP messages.
#[derive(Default)]
struct Otlp {
    answers: Vec<Answer>,
    size: usize,
}

impl Block for Otlp {
    type Sent = Vec<Answer>;

    fn put(&mut self, item: Item<'_>) {
        let message = match item {
            Item::Records { head, peer_meta, payload, .. } => {
                self.size += payload.len();
                records(&head, peer_meta, payload)
            }
            Item::Gap(gap) => {
                let reason = v1::GapReason::from(gap.reason).into();
                Message::Gap(v1::Gap { from: gap.from, to: gap.to, epoch: gap.epoch, reason })
            }
            Item::CaughtUp(caught_up) => Message::CaughtUp(caught_up.cursor.into()),
            Item::Progress(progress) => Message::Progress(progress.cursor.into()),
            Item::End(end) => Message::End(v1::ReadEnd {
                cursor: Some(end.cursor.into()),
                reason: v1::ReadEndReason::from(end.reason).into(),
            }),
            Item::Failed(frame) => {
                self.size += 1;
                return self.answers.push(Err(to_status(&frame.error)));
            }
        };
        self.size += size_of::<Answer>();
        self.answers.push(Ok(v1::ReadResponse { message: Some(message) }));
    }

    fn size(&self) -> usize {
        self.size
    }

    fn finish(self) -> Self::Sent {
        self.answers
    }
}

fn records(head: &RecordsHead, peer_meta: &[u8], payload: &[u8]) -> Message {
    let first_offset = head.first_offset + u64::from(head.skip);
    let view = PayloadView::parse(payload, head.count).ok();
    let Some(view) = view.filter(|_| payload_checksum(payload) == head.payload_crc) else {
        let to = first_offset + u64::from(head.take);
        metrics::damaged(first_offset, to);
        let reason = v1::GapReason::from(GapReason::Damage).into();
        return Message::Gap(v1::Gap { from: first_offset, to, epoch: head.epoch, reason });
    };
    Message::Records(v1::Records {
        epoch: head.epoch,
        first_offset,
        append_time: head.append_time,
        producer_id: head.producer_id.as_bytes().to_vec().into(),
        producer_epoch: head.producer_epoch,
        first_seq: head.first_seq + u64::from(head.skip),
        peer_meta: PeerMeta::decode(peer_meta).ok().map(|peer_meta| (&peer_meta).into()),
        resource_logs: Some(otlp::to_otlp_slice(&view, head.skip, head.take)),
    })
}

#[cfg(test)]
mod tests {
    use clad_proto::{Group, PayloadBuilder, Record};

    use super::*;

    #[test]
    fn what_does_not_fit_its_checksum_is_a_gap_and_not_a_record() {
        let mut builder = PayloadBuilder::new(&Group::default()).unwrap();
        for _ in 0..5 {
            builder.push(&Record::default()).unwrap();
        }
        let payload = builder.finish();
        let mut head = RecordsHead {
            count: 5,
            first_offset: 100,
            first_seq: 7,
            skip: 1,
            take: 3,
            payload_crc: payload.checksum(),
            ..RecordsHead::default()
        };
        let Message::Records(good) = records(&head, &[], &payload.bytes) else { panic!("records") };
        assert_eq!((good.first_offset, good.first_seq), (101, 8));
        assert_eq!(good.resource_logs.unwrap().scope_logs[0].log_records.len(), 3);
        head.payload_crc ^= 1;
        let Message::Gap(gap) = records(&head, &[], &payload.bytes) else { panic!("a gap") };
        assert_eq!((gap.from, gap.to, gap.reason()), (101, 104, v1::GapReason::Damage));
    }
}
