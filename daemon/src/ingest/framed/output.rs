//! Bytes out: what waits for the peer, and for how long.
//!
//! Invariants:
//! - The output is bounded by [`OUT_BYTES_MAX`]: a peer that does not read its answers is not read from either. Beyond
//!   [`super::buffers::OUT_UNSHARED_BYTES_MAX`] it is part of the budget of all connections, and where none is left the
//!   connection continues with what is its own. The buffer goes with its part of the budget: memory that is not
//!   counted is not retained.
//! - A peer has the write timeout of [`PeerTimeouts`] to take some of its output, a longer one while some of it is of a
//!   READ (a person may be looking at it), and [`CLOSE_TIMEOUT`] once it is to make room.

use std::io;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use clad_proto::ErrorInfo;
use clad_proto::frame::ErrorFrame;

use super::ack_coalescer::AckCoalescer;
use super::buffers::{OUT_BYTES_MAX, OutRoom};
use super::open_reads::OpenReads;
use super::service::{CLOSE_TIMEOUT, PeerTimeouts, STREAM_IDLE_TIMEOUT};
use crate::ingest::quota::QuotaHandle;

/// The output of a connection.
pub(super) struct Output {
    /// Whole frames, but for the first of them.
    pub(super) bytes: BytesMut,
    room: OutRoom,
    coalescer: AckCoalescer,
    pub(super) reads: OpenReads,
    timeouts: PeerTimeouts,
    /// Time since when there is no output, where there is none.
    empty_since: Instant,
    /// Time since when something has waited for the peer, and it took nothing.
    taking_since: Option<Instant>,
    /// Some of what waits for the peer is of a READ, which may have ended.
    of_read: bool,
}

impl Output {
    pub(super) fn new(quota: QuotaHandle, timeouts: PeerTimeouts) -> Self {
        Self {
            bytes: BytesMut::new(),
            room: OutRoom::new(quota),
            coalescer: AckCoalescer::default(),
            reads: OpenReads::new(),
            timeouts,
            empty_since: Instant::now(),
            taking_since: None,
            of_read: false,
        }
    }

    /// Returns true if one more answer finds room behind so many bytes of answers: else no frame is looked at.
    pub(super) fn has_room_behind(&mut self, answers: usize) -> bool {
        self.room.has_room_behind(self.bytes.len() + answers)
    }

    /// Returns true if there is so much that nothing is read from the peer, nor for it.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= OUT_BYTES_MAX
    }

    /// Returns true if some of it must be sent now.
    pub(super) fn must_send(&self) -> bool {
        self.coalescer.must_send(self.bytes.len())
    }

    pub(super) fn error(&mut self, request_id: u32, error: ErrorInfo) {
        ErrorFrame { request_id, error }.encode(&mut self.bytes);
    }

    pub(super) fn block(&mut self, block: &Bytes) {
        self.bytes.extend_from_slice(block);
        self.of_read = true;
    }

    /// Notes that the output, which was `before` bytes long, ends with an answer to an append that came at this moment.
    pub(super) fn coalesce_ack(&mut self, before: usize, since: Instant) {
        self.coalescer.note(before, self.bytes.len(), since);
    }

    /// Something waits for the peer from now on, if it did not before.
    pub(super) fn note_what_waits(&mut self) {
        if self.must_send() && self.taking_since.is_none() {
            self.taking_since = Some(Instant::now());
        }
    }

    /// The peer took some of what waits for it, or all.
    pub(super) fn sent(&mut self, written: io::Result<usize>) -> io::Result<()> {
        self.coalescer.release();
        took_some(written)?;
        self.taking_since = None;
        self.of_read &= !self.bytes.is_empty();
        if self.bytes.is_empty() {
            self.empty_since = Instant::now();
            self.release_unused();
        }
        Ok(())
    }

    /// Releases room for output that there is not, unless a READ may need it at once.
    pub(super) fn release_unused(&mut self) {
        if self.bytes.is_empty() && self.reads.is_empty() {
            self.give_back();
        }
    }

    /// Releases the memory that it took for a stream that has ended.
    pub(super) fn rest(&mut self) {
        if self.rests_at().is_some_and(|at| at <= Instant::now()) {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        if self.room.give_back() {
            self.bytes = BytesMut::new();
        }
    }

    /// Time at which a silent READ counts as caught up, and follows: until then its next block may be on its way.
    fn rests_at(&self) -> Option<Instant> {
        (self.bytes.is_empty() && self.room.is_shared()).then(|| self.empty_since + STREAM_IDLE_TIMEOUT)
    }

    /// Time for which the peer may take nothing.
    pub(super) fn write_timeout(&self, is_leaving: bool) -> Duration {
        match is_leaving {
            true => CLOSE_TIMEOUT,
            false => self.timeouts.of(self.of_read || !self.reads.is_empty()),
        }
    }

    pub(super) fn deadline(&self, is_leaving: bool) -> Option<Instant> {
        let taken = self.taking_since.map(|since| since + self.write_timeout(is_leaving));
        [taken, self.rests_at(), self.coalescer.deadline()].into_iter().flatten().min()
    }

    /// Coalesced answers that have waited long enough wait no more, and unused memory is released. Returns an error
    /// where the peer has taken nothing for too long.
    pub(super) fn timed_out(&mut self, is_leaving: bool) -> Result<(), String> {
        if self.coalescer.deadline().is_some_and(|at| at <= Instant::now()) {
            self.coalescer.release();
        }
        self.rest();
        let timeout = self.write_timeout(is_leaving);
        match self.taking_since {
            Some(since) if since.elapsed() >= timeout => {
                Err(format!("nothing of what waits was taken for {timeout:?}"))
            }
            _ => Ok(()),
        }
    }
}

/// An error where a write has taken nothing.
pub(super) fn took_some(written: io::Result<usize>) -> io::Result<()> {
    if written? == 0 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(())
}
