//! RING: the connection becomes the control of a ring.
//!
//! Invariants: a connection has one ring at most, and its appends come by that ring alone: two ways at once would have
//! two orders. The ring ends with the last connection that holds it.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use clad_proto::frame::{FrameType, Hello, RingGiven, RingWanted};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo, ProducerId};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::output::Output;
use super::service::{Waiting, end_of};
use crate::fds::RECEIVED_FDS_MAX;
use crate::ingest::admission::count_refusal;
use crate::ingest::peer::Peer;
use crate::ingest::reactor::GiveFds;
use crate::ingest::rings::{Asker, Given, RingRef, Rings, borrowed, not_drained};

/// Answer to a RING.
type Answer = Result<(Given, RingRef), ErrorInfo>;

/// The rings of a connection and of its producer.
pub(super) struct RingControl {
    rings: Rings,
    /// A RING that is being answered, and its request id.
    asking: (u32, Waiting<Answer>),
    /// Descriptors that came for a RING, [`RECEIVED_FDS_MAX`] at most.
    fds: Vec<OwnedFd>,
    ring: ControlledRing,
    /// Its producer has a ring that another connection was given; as of so many changes of which rings there are.
    elsewhere: (bool, u64),
    /// Waits until what its ring had reserved when a FLUSH came is with the journal.
    pub(super) draining: Waiting<Result<(), ErrorInfo>>,
    /// It is, for that FLUSH; or the reason why not.
    pub(super) drained: Option<Result<(), ErrorInfo>>,
}

/// The ring of a connection.
enum ControlledRing {
    None,
    /// The one that its producer had when it came: unless it resumes that ring, or gets another, it appends nothing.
    Met(RingRef),
    /// The one that its appends come by.
    Given(RingRef),
}

impl RingControl {
    pub(super) fn new(rings: Rings) -> Self {
        let (asking, ring) = ((0, None), ControlledRing::None);
        Self { rings, asking, fds: Vec::new(), ring, elsewhere: (false, 0), draining: None, drained: None }
    }

    /// Meets the ring that the producer of a HELLO has already.
    pub(super) async fn meet(&mut self, hello: &Hello, peer: &Peer) -> Result<(), ErrorInfo> {
        self.ring = self.rings.meet(hello, peer).await?.map_or(ControlledRing::None, ControlledRing::Met);
        Ok(())
    }

    fn given(&self) -> Option<&RingRef> {
        if let ControlledRing::Given(ring) = &self.ring { Some(ring) } else { None }
    }

    /// Returns true if its appends come by a ring, or will.
    pub(super) fn has_ring(&self) -> bool {
        self.given().is_some() || self.is_asked()
    }

    /// Returns true if a RING waits for its answer.
    pub(super) fn is_asked(&self) -> bool {
        self.asking.1.is_some()
    }

    /// Returns true if its producer has a ring, or had one when it came: then this connection itself takes no append.
    pub(super) fn takes_appends(&self) -> bool {
        self.is_asked() || !matches!(self.ring, ControlledRing::None) || self.elsewhere.0
    }

    /// Looks if its producer was given a ring by another connection, where there are other rings than at the last look.
    pub(super) fn look_elsewhere(&mut self, producer: &ProducerId, producer_epoch: u32) {
        let changes = self.rings.changes();
        if changes != self.elsewhere.1 {
            self.elsewhere = (!self.has_ring() && self.rings.has_ring(producer, producer_epoch), changes);
        }
    }

    /// The answer to an append of this connection itself, if it takes none but by a ring. An error ends the connection.
    pub(super) fn refusal(&self) -> Result<Option<ErrorInfo>, ErrorInfo> {
        if self.has_ring() {
            let text = "this connection's appends come by its ring";
            return Err(ErrorInfo::new(ErrorCode::MalformedFrame, text));
        }
        if let ControlledRing::Met(ring) = &self.ring {
            self.rings.end(ring.id());
            return Err(not_drained());
        }
        Ok(self.elsewhere.0.then(not_drained))
    }

    /// Returns true if the FLUSH at the front can be answered: what its ring had reserved when it came is with the
    /// journal, or it is known why not. A ring that is asked for comes first.
    pub(super) fn may_flush(&mut self) -> bool {
        if self.drained.is_some() || !self.has_ring() {
            return true;
        }
        let Some(ring) = self.given() else { return false };
        if ring.is_drained() {
            self.drained = Some(Ok(()));
        } else if self.draining.is_none() {
            self.draining = Some(Box::pin(ring.drained()));
        }
        self.drained.is_some()
    }

    /// Takes the result for the FLUSH at the front; an error where no watermark can answer it: its ring was not drained,
    /// or the log has lost records that came by it.
    pub(super) fn flushed(&mut self) -> Result<(), ErrorInfo> {
        self.drained.take().unwrap_or(Ok(()))?;
        if self.given().is_some_and(RingRef::take_lost) {
            let text = "what this ring had given back as written is not in the log any more: it is lost";
            let mut error = ErrorInfo::new(ErrorCode::JournalFailed, text);
            (error.retryable, error.maybe_written) = (false, false);
            return Err(error);
        }
        Ok(())
    }

    /// Takes descriptors that came with what was read.
    pub(super) fn came(&mut self, mut fds: Vec<OwnedFd>) {
        self.fds.append(&mut fds);
        self.fds.truncate(RECEIVED_FDS_MAX);
    }

    /// Returns true if descriptors came that no frame has had yet.
    pub(super) fn has_fds(&self) -> bool {
        !self.fds.is_empty()
    }

    /// Returns true if what came is the one descriptor that such a frame may bring.
    pub(super) fn has_fds_for(&self, kind: FrameType) -> bool {
        kind == FrameType::Ring && self.fds.len() == 1
    }

    /// The descriptor that came with a RING: the memory of the ring that it names.
    pub(super) fn handed_back(&mut self, wanted: &RingWanted) -> Result<Option<OwnedFd>, ErrorInfo> {
        let handed_back = self.fds.pop();
        if handed_back.is_some() && wanted.known.is_none() { Err(misplaced_fds()) } else { Ok(handed_back) }
    }

    /// Asks for a ring, for a connection that has unanswered appends or not. An error ends the connection.
    pub(super) fn ask(&mut self, wanted: RingWanted, asker: Asker, is_unanswered: bool) -> Result<(), ErrorInfo> {
        let refuse = |text| Err(ErrorInfo::new(ErrorCode::MalformedFrame, text));
        if self.has_ring() || wanted.request_id == 0 {
            return refuse("a connection has one ring, and a RING a request id");
        }
        if is_unanswered {
            return refuse("RING after an APPEND");
        }
        let rings = self.rings.clone();
        self.asking = (wanted.request_id, Some(Box::pin(async move { rings.give(wanted, asker).await })));
        Ok(())
    }

    /// Waits for the answer and sends it, with the descriptors. Returns true if a ring was given. A peer that takes
    /// nothing for so long (stopped, or never reads) loses its ring by that, and does not delay a stop.
    pub(super) async fn answer<W>(&mut self, wr: &mut W, output: &mut Output, timeout: Duration) -> io::Result<bool>
    where
        W: AsyncWrite + GiveFds + Unpin,
    {
        let request_id = self.asking.0;
        let (given, ring) = match end_of(&mut self.asking.1).await {
            Ok(given) => given,
            Err(error) => {
                count_refusal(AckLevel::Received, error.code, 1);
                output.error(request_id, error);
                return Ok(false);
            }
        };
        self.ring = ControlledRing::Given(ring);
        match tokio::time::timeout(timeout, give(wr, &mut output.bytes, request_id, &given)).await {
            Ok(result) => result.map(|()| true),
            Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Releases the ring: it ends, unless another connection holds it.
    pub(super) fn release(&mut self) {
        self.ring = ControlledRing::None;
    }

    /// The client has said that it will not come back.
    pub(super) fn forget(&mut self) {
        if let ControlledRing::Given(ring) = &mut self.ring {
            ring.forget();
        }
    }
}

/// Error for descriptors that came where none belongs.
pub(super) fn misplaced_fds() -> ErrorInfo {
    let text = "descriptors came with something else than RING: that of a known ring comes with one, its memory";
    ErrorInfo::new(ErrorCode::MalformedFrame, text)
}

async fn give<W>(wr: &mut W, out: &mut BytesMut, request_id: u32, given: &Given) -> io::Result<()>
where
    W: AsyncWrite + GiveFds + Unpin,
{
    wr.write_all_buf(out).await?;
    let mut frame = BytesMut::new();
    RingGiven {
        request_id,
        id: given.id,
        known: given.known,
        stored: given.stored,
        bytes: given.shape.data_bytes(),
        max_payload_bytes: given.shape.max_payload() as u32,
    }
    .encode(&mut frame);
    let sent = wr.give(&frame, &borrowed(&given.fds)).await?;
    frame.advance(sent);
    wr.write_all_buf(&mut frame).await
}
