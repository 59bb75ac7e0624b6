//! FLUSH: the rules that both transports have.
//!
//! Invariants: a FLUSH is answered once, by a watermark that repeats its number or by a refusal that does, and ends
//! nothing else. Its watermark covers all that this session sent before it. A loss of the journal since the last FLUSH
//! is reported to the next, once. A frame whose level has no watermark, or without a number, is no FLUSH: the decoder
//! says so.

use clad_journal::Level;
use clad_proto::frame::{Flush, Watermark};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};

use super::admission::Admission;
use super::peer::Peer;
use super::session::{Session, watermark};

impl Session {
    /// Takes a FLUSH in. Returns the watermark that answers it, or nothing where [`Session::release`] answers later.
    ///
    /// # Errors
    /// The answer where it is refused: nothing is noted, and the session continues.
    pub(crate) fn ask_flush(
        &mut self,
        admission: &Admission,
        peer: &Peer,
        flush: Flush,
    ) -> Result<Option<Watermark>, ErrorInfo> {
        // Where acks end at `written`, a flush still asks the disk: the sync is made, the watermark is what it is.
        let reach = peer.rights().cap(admission.flush_reach);
        if flush.level > reach {
            let text = format!("this log, or this peer, reaches `{reach}` at most, not `{}`", flush.level);
            return Err(ErrorInfo::new(ErrorCode::LevelUnreachable, text));
        }
        // Each is a place in the session.
        if self.unanswered() >= 2 * admission.window as usize {
            let error = ErrorInfo::new(ErrorCode::Busy, "too many appends and FLUSHes are unanswered");
            return Err(error.retry_after_ms(100));
        }
        // Before the place is asked for: what fails in between may be of what it covers.
        let watermarks = admission.journal.watermarks();
        let level = match flush.level {
            AckLevel::Durable => Level::Durable,
            AckLevel::Written => Level::Written,
            _ => return Ok(Some(watermark(&watermarks, AckLevel::Received, watermarks.received, flush.request_id))),
        };
        if let Some(error) = self.lost_since(&watermarks) {
            return Err(error);
        }
        let end = match level {
            Level::Durable => admission.journal.request_sync(),
            _ => watermarks.received,
        };
        self.flush(flush.request_id, end, level, watermarks.failures);
        Ok(None)
    }
}
