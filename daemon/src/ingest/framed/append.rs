//! An append that goes alone: one that does not join a burst, or for which there was no room in it.

use std::time::Instant;

use clad_proto::frame::AppendView;
use clad_proto::{ErrorCode, ErrorInfo};

use super::{Connection, Flow};
use crate::ingest::admission::{ADMISSION_TIMEOUT, Admission, Admitted, bad_checksum};
use crate::ingest::reactor::defer_write;
use crate::ingest::rings;

impl Connection {
    pub(super) fn append(&mut self, body: &[u8]) -> Flow {
        let view = match AppendView::parse(body) {
            Ok(view) => view,
            Err(e) => return self.protocol_error(&e),
        };
        if self.producer.is_none() {
            let text = "HELLO did not say that this connection appends";
            return self.fatal(ErrorInfo::new(ErrorCode::MalformedFrame, text));
        }
        if self.has_ring() {
            let text = "this connection's appends come by its ring";
            return self.fatal(ErrorInfo::new(ErrorCode::MalformedFrame, text));
        }
        if let Some(ring) = &self.met_ring {
            self.service.rings.end(ring.id());
            return self.fatal(rings::not_drained());
        }
        if self.ring_elsewhere.0 {
            self.refused(&view.head, rings::not_drained());
            return Flow::NeedBytes;
        }
        match self.append_alone(&view) {
            Some(()) => Flow::NeedBytes,
            None => Flow::NeedPermit,
        }
    }

    /// Returns true if a permit is being waited for, or was, for the append at the front.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.admitting.is_some() || self.admitted.is_some()
    }

    /// Gives up its place in the queue for room, or the share that it was granted there.
    pub(super) fn leave_the_queue(&mut self) {
        self.admitting = None;
        self.admitted.take_if(|admitted| admitted.is_ok());
    }

    /// Takes or refuses one append; nothing when it must wait for room.
    pub(crate) fn append_alone(&mut self, view: &AppendView<'_>) -> Option<()> {
        let admission = self.service.admission.clone();
        let admitted = match self.admitted.take() {
            Some(waited) => waited,
            // It stays in its place in the queue for room.
            None if self.admitting.is_some() => return None,
            // One connection's share; it is free again when the watermarks have passed the bytes that it holds. After a
            // wait for that has timed out, later appends need not wait as long again.
            None if self.session.unwritten_bytes() > 0
                && self.session.unwritten_bytes() + view.payload.len() > admission.max_connection_bytes =>
            {
                if self.share_since.get_or_insert_with(Instant::now).elapsed() < ADMISSION_TIMEOUT {
                    return None;
                }
                Err(admission.share_is_full())
            }
            None => {
                self.share_since = None;
                match Admission::try_admit(&self.inflight_quota, view.payload.len(), self.arrival) {
                    Some(admitted) => Ok(admitted),
                    None => {
                        let (payload, quota) = (view.payload.len(), self.inflight_quota.clone());
                        self.admitting = Some(Box::pin(async move { admission.admit(&quota, payload).await }));
                        return None;
                    }
                }
            }
        };
        let since = admitted.as_ref().map_or_else(|_| Instant::now(), |a| a.at.since);
        match admitted.and_then(|a| self.take(view, a)) {
            Ok(accepted) => self.taken(&view.head, &accepted, view.payload.len(), since),
            Err(error) => self.refused(&view.head, error),
        }
        Some(())
    }

    fn take(&self, view: &AppendView<'_>, admitted: Admitted) -> Result<clad_journal::Accepted, ErrorInfo> {
        let admission = &self.service.admission;
        if !view.checksum_holds() {
            return Err(bad_checksum());
        }
        if self.session.unanswered() >= admission.window as usize {
            let text = format!("more than {} appends are unanswered", admission.window);
            return Err(ErrorInfo::new(ErrorCode::WindowExceeded, text).limited_to(admission.window.into()));
        }
        let producer = self.producer.as_ref().expect("append checked it");
        let (accepted, deferred_write) = admission.take(&self.peer, producer, &view.head, view.payload, admitted)?;
        deferred_write.into_iter().for_each(defer_write);
        Ok(accepted)
    }
}
