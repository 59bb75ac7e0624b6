//! Memory and time of a connection: room for the next read, and timeouts.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use clad_proto::frame::FrameHeader;
use clad_proto::limits::FRAME_HEADER_BYTES;
use clad_proto::{ErrorCode, ErrorInfo};

use super::{CLOSE_TIMEOUT, Connection, FRAME_TIMEOUT, Flow};
use crate::ingest::UNSHARED_FRAME_BYTES_MAX;
use crate::ingest::admission::ADMISSION_TIMEOUT;

/// Silence after which a stream has ended, in either direction, and its buffer is released.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_millis(100);

impl Connection {
    /// Room for the next read: in small steps while little comes, whole where a large frame is under way.
    pub(super) fn make_room(&mut self) {
        let header = self.buf.first_chunk::<FRAME_HEADER_BYTES>();
        let header = header.and_then(|h| FrameHeader::decode(h, self.service.admission.max_append).ok());
        let whole = header.map_or(0, |h| FRAME_HEADER_BYTES + h.body_len as usize);
        let mut missing = whole.saturating_sub(self.buf.len());
        if whole > UNSHARED_FRAME_BYTES_MAX && missing > 0 && self.assembled.is_none() {
            if self.buf.len() < UNSHARED_FRAME_BYTES_MAX {
                missing = UNSHARED_FRAME_BYTES_MAX - self.buf.len(); // no memory is taken for a length that is only claimed
            } else if let Some(guard) = self.assembly.try_take(whole) {
                self.assembled = Some(guard);
            } else {
                self.assembling = Some(Box::pin(self.assembly.take(whole)));
                return;
            }
        }
        if self.buf.capacity() == self.buf.len() {
            // The last read filled everything there was: more is coming than the buffer expects.
            self.chunk.grow();
        }
        self.rest();
        self.buf.reserve(missing.max(self.chunk.step()));
    }

    /// Returns true if one more answer finds room: else no frame is looked at.
    pub(super) fn has_room_for_answers(&mut self) -> bool {
        self.out_room.has_room_behind(self.out.len())
    }

    /// Releases the memory that buffers took for a stream that has ended.
    fn rest(&mut self) {
        if self.out_rests_at().is_some_and(|at| at <= Instant::now()) {
            self.give_out_back();
        }
        if self.buf.is_empty() && !self.chunk.is_least() && self.last_activity.elapsed() >= STREAM_IDLE_TIMEOUT {
            self.chunk.shrink();
            self.buf = BytesMut::new();
        }
    }

    /// Something waits for the peer from now on, if it did not before.
    pub(super) fn note_what_waits(&mut self) {
        if self.ack_coalescer.must_send(self.out.len()) && self.taking_since.is_none() {
            self.taking_since = Some(Instant::now());
        }
    }

    /// The peer took some of what waits for it, or all.
    pub(super) fn took_some(&mut self) {
        self.taking_since = None;
        self.of_read &= !self.out.is_empty();
        if self.out.is_empty() {
            self.out_empty_since = Instant::now();
            if self.reads.is_empty() {
                self.give_out_back();
            }
        }
    }

    /// The buffer goes with its part of the budget: memory that is not counted is not retained.
    pub(super) fn give_out_back(&mut self) {
        if self.out_room.give_back() {
            self.out = BytesMut::new();
        }
    }

    /// Time at which a silent READ counts as caught up, and follows: until then its next block may be on its way.
    fn out_rests_at(&self) -> Option<Instant> {
        (self.out.is_empty() && self.out_room.is_shared()).then(|| self.out_empty_since + STREAM_IDLE_TIMEOUT)
    }

    /// Time for which the peer may take nothing.
    pub(super) fn write_timeout(&self) -> Duration {
        match self.slot_state.is_leaving() {
            true => CLOSE_TIMEOUT,
            false => self.service.peer_timeouts.of(self.of_read || !self.reads.is_empty()),
        }
    }

    pub(super) fn deadline(&self, flow: Flow) -> Option<Instant> {
        let half = self.partial_since.filter(|_| self.assembling.is_none()).map(|t| t + FRAME_TIMEOUT);
        let idle = self.idles(flow).then(|| self.last_activity + self.service.idle_timeout);
        // Where an append waits, that is looked at again; when the connection ends, nothing is.
        let waits = flow == Flow::NeedPermit && !*self.service.stop.borrow() && !self.slot_state.is_leaving();
        let share = self.share_since.filter(|_| waits).map(|t| t + ADMISSION_TIMEOUT);
        let taken = self.taking_since.map(|t| t + self.write_timeout());
        let rests = (self.chunk.is_shared() && self.buf.is_empty()).then(|| self.last_activity + STREAM_IDLE_TIMEOUT);
        half.into_iter()
            .chain(idle)
            .chain(share)
            .chain(taken)
            .chain(rests)
            .chain(self.out_rests_at())
            .chain(self.ack_coalescer.deadline())
            .min()
    }

    /// Returns true if silence has a bound now: nothing is under way in either direction.
    fn idles(&self, flow: Flow) -> bool {
        let bounded = !self.service.idle_timeout.is_zero();
        bounded && flow == Flow::NeedBytes && !self.session.waits() && self.reads.is_empty() && !self.has_ring()
    }

    pub(super) fn timed_out(&mut self, flow: Flow) -> bool {
        if self.ack_coalescer.deadline().is_some_and(|at| at <= Instant::now()) {
            self.ack_coalescer.release();
        }
        self.rest();
        let text = match self.partial_since {
            // A frame that waits for a share is not late: it is not read.
            Some(t) if self.assembling.is_none() && t.elapsed() >= FRAME_TIMEOUT => {
                format!("half a frame, and nothing more for {FRAME_TIMEOUT:?}")
            }
            _ if self.taking_since.is_some_and(|t| t.elapsed() >= self.write_timeout()) => {
                format!("nothing of what waits was taken for {:?}", self.write_timeout())
            }
            _ if self.idles(flow) && self.last_activity.elapsed() >= self.service.idle_timeout => {
                "nothing came for too long".to_owned()
            }
            _ => return false, // a frame that waits for its share is looked at again
        };
        self.fatal(ErrorInfo::new(ErrorCode::IdleTimeout, text));
        true
    }
}
