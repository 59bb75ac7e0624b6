//! RING: the connection becomes the control of a ring.
//!
//! Invariants: a connection has one ring at most, and its appends come by that ring alone: two ways at once would have
//! two orders. The ring ends with the last connection that holds it.

use std::io;

use bytes::{Buf, BytesMut};
use clad_proto::frame::{ErrorFrame, RingGiven, RingWanted};
use clad_proto::{ErrorCode, ErrorInfo};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::{Connection, Flow};
use crate::ingest::admission::count_refusal;
use crate::ingest::reactor::GiveFds;
use crate::ingest::rings::{self, Asker, Given, RingRef, borrowed};

impl Connection {
    /// Returns true if its appends come by a ring, or will.
    pub(super) fn has_ring(&self) -> bool {
        self.ring.is_some() || self.asking.is_some()
    }

    /// Returns true if its producer has a ring, or had one when it came: then this connection itself takes no append.
    pub(crate) fn appends_by_ring(&self) -> bool {
        self.has_ring() || self.met_ring.is_some()
    }

    /// Returns true if all that rings logged before this input is with the journal, or it is known why not.
    pub(super) fn comes_behind_the_rings(&mut self) -> bool {
        if self.caught_up.is_some() {
            return true;
        }
        let rings = &self.service.rings;
        let of = self.ring.as_ref().map(RingRef::id);
        if !rings.is_behind(of) {
            self.caught_up = Some(Ok(()));
        } else if self.catching_up.is_none() {
            let rings = rings.clone();
            self.catching_up = Some(Box::pin(async move { rings.catch_up(of).await }));
        }
        self.caught_up.is_some()
    }

    /// Reason why the current input cannot be taken: records that may have caused it are not in the journal.
    pub(crate) fn is_overtaking(&self) -> Option<&ErrorInfo> {
        self.caught_up.as_ref()?.as_ref().err()
    }

    /// Returns true if the log has lost records that came by its ring; once for each time.
    pub(super) fn has_lost(&self) -> bool {
        self.ring.as_ref().is_some_and(RingRef::take_lost)
    }

    pub(super) fn ask_for_ring(&mut self, wanted: RingWanted) -> Flow {
        let refuse = |text| ErrorInfo::new(ErrorCode::MalformedFrame, text);
        let Some(producer) = &self.producer else {
            return self.fatal(refuse("HELLO did not say that this connection appends"));
        };
        if self.has_ring() || wanted.request_id == 0 {
            return self.fatal(refuse("a connection has one ring, and a RING a request id"));
        }
        if self.session.waits() {
            return self.fatal(refuse("RING after an APPEND"));
        }
        let asker = Asker {
            peer: self.peer.clone(),
            producer: producer.id,
            producer_epoch: producer.epoch,
            owner: producer.owner,
            between: (self.welcomed, rings::now()),
        };
        let rings = self.service.rings.clone();
        self.asking = Some((wanted.request_id, Box::pin(async move { rings.give(wanted, asker).await })));
        Flow::NeedBytes
    }

    /// Waits for the answer and sends it, with the descriptors.
    pub(super) async fn answer_ring<W: AsyncWrite + GiveFds + Unpin>(&mut self, wr: &mut W) -> io::Result<()> {
        let Some((request_id, answer)) = self.asking.take() else { return Ok(()) };
        let (given, ring_ref) = match answer.await {
            Ok(given) => given,
            Err(error) => {
                count_refusal(clad_proto::AckLevel::Received, error.code, 1);
                ErrorFrame { request_id, error }.encode(&mut self.out);
                return Ok(());
            }
        };
        (self.ring, self.met_ring) = (Some(ring_ref), None);
        self.slot_state.in_use();
        // A peer that takes nothing (stopped, or never reads) loses its ring by that, and does not delay a stop.
        match tokio::time::timeout(self.service.peer_timeouts.ring_handover, self.give_ring(wr, request_id, &given))
            .await
        {
            Ok(result) => result,
            Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    async fn give_ring<W>(&mut self, wr: &mut W, request_id: u32, given: &Given) -> io::Result<()>
    where
        W: AsyncWrite + GiveFds + Unpin,
    {
        wr.write_all_buf(&mut self.out).await?;
        let mut frame = BytesMut::new();
        RingGiven {
            request_id,
            id: given.id,
            known: given.known,
            other_clock: given.other_clock,
            bytes: given.shape.data_bytes(),
            max_payload_bytes: given.shape.max_payload() as u32,
        }
        .encode(&mut frame);
        let sent = wr.give(&frame, &borrowed(&given.fds)).await?;
        frame.advance(sent);
        wr.write_all_buf(&mut frame).await
    }
}
