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
use crate::ingest::rings::{Asker, Given, RingRef, borrowed};

impl Connection {
    /// Returns true if its appends come by a ring, or will.
    pub(super) fn has_ring(&self) -> bool {
        self.ring.is_some() || self.asking.is_some()
    }

    /// Returns true if its producer has a ring, or had one when it came: then this connection itself takes no append.
    pub(crate) fn appends_by_ring(&self) -> bool {
        self.has_ring() || self.met_ring.is_some() || self.ring_elsewhere.0
    }

    /// Looks if its producer was given a ring by another connection, where there are other rings than at the last look.
    pub(super) fn look_for_ring_elsewhere(&mut self) {
        let changes = self.service.rings.changes();
        if changes != self.ring_elsewhere.1
            && let Some(producer) = &self.producer
        {
            let elsewhere = !self.has_ring() && self.service.rings.has_ring(&producer.id);
            self.ring_elsewhere = (elsewhere, changes);
        }
    }

    /// Returns true if the FLUSH at the front can be answered: what its ring had reserved when it came is with the
    /// journal, or it is known why not. A ring that is asked for comes first.
    pub(super) fn may_flush(&mut self) -> bool {
        if self.drained.is_some() || !self.has_ring() {
            return true;
        }
        let Some(ring) = &self.ring else { return false };
        if ring.is_drained() {
            self.drained = Some(Ok(()));
        } else if self.draining.is_none() {
            self.draining = Some(Box::pin(ring.drained()));
        }
        self.drained.is_some()
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
            other_clock: false,
            bytes: given.shape.data_bytes(),
            max_payload_bytes: given.shape.max_payload() as u32,
        }
        .encode(&mut frame);
        let sent = wr.give(&frame, &borrowed(&given.fds)).await?;
        frame.advance(sent);
        wr.write_all_buf(&mut frame).await
    }
}
