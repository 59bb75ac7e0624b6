//! Bytes in: the read buffer, and the frame that is under assembly in it.
//!
//! Invariants:
//! - The read buffer is bounded by the frame under assembly. Large ones count against their own budget
//!   ([`crate::ingest::quota`]), so that half a frame cannot hold the log's. Reads beyond what is a connection's own are
//!   part of one budget too ([`super::buffers`]).
//! - Half a frame has [`FRAME_TIMEOUT`] to become whole; one that waits for its share of the budget is not read, and is
//!   not late.

use std::io;
use std::time::Instant;

use bytes::{Buf, BytesMut};
use clad_proto::frame::{Frame, FrameError, FrameHeader, FrameType, KnownHeader, RawFrame, peek, peek_known};
use clad_proto::limits::FRAME_HEADER_BYTES;
use clad_proto::{ErrorCode, ErrorInfo};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::appends::Flow;
use super::buffers::{CHUNK_BYTES_MIN, Chunk};
use super::ring::misplaced_fds;
use super::service::{FRAME_TIMEOUT, STREAM_IDLE_TIMEOUT, Service, Waiting, end_of};
use crate::ingest::quota::{Owner, QuotaGuard, QuotaHandle};
use crate::ingest::reactor::TakeFds;

/// Frames up to this length need no share of the budget for large ones. Of larger ones this many bytes come before a
/// share is asked for: a peer that only claims a length gets nothing for it.
const UNSHARED_FRAME_BYTES_MAX: usize = 64 * 1024;

/// The input of a connection.
pub(super) struct Input {
    buf: BytesMut,
    chunk: Chunk,
    max_append: u32,
    assembly: QuotaHandle,
    assembling: Waiting<Option<QuotaGuard>>,
    /// Share of the frame at the front.
    assembled: Option<QuotaGuard>,
    partial_since: Option<Instant>,
    pub(super) last_activity: Instant,
    /// The part that most of a stream repeats, checked once.
    known_header: KnownHeader,
}

impl Input {
    pub(super) fn new(service: &Service, owner: Owner) -> Self {
        Self {
            buf: BytesMut::new(),
            chunk: Chunk::new(service.buffers.handle(owner)),
            max_append: service.admission.max_append,
            assembly: service.assembly.handle(owner),
            assembling: None,
            assembled: None,
            partial_since: None,
            last_activity: Instant::now(),
            known_header: KnownHeader::default(),
        }
    }

    /// The first frame, which is HELLO.
    pub(super) async fn hello<R: AsyncRead + TakeFds + Unpin>(&mut self, rd: &mut R) -> Result<Frame, ErrorInfo> {
        let malformed = |text| ErrorInfo::new(ErrorCode::MalformedFrame, text);
        loop {
            if let Some(raw) = peek(&self.buf, self.max_append).map_err(|e| e.info())? {
                let total = raw.total_len();
                if raw.header.kind != FrameType::Hello {
                    return Err(malformed("the first frame must be HELLO"));
                }
                let frame = raw.decode().map_err(|e| e.info())?;
                self.buf.advance(total);
                return Ok(frame);
            }
            self.buf.reserve(CHUNK_BYTES_MIN);
            match rd.read_buf(&mut self.buf).await {
                Ok(_) if !rd.take_fds().is_empty() => return Err(misplaced_fds()),
                Ok(1..) if self.buf.len() <= UNSHARED_FRAME_BYTES_MAX => {}
                _ => return Err(malformed("the connection ended before HELLO")),
            }
        }
    }

    /// The bytes that came and were not handled. They are put back by [`Self::handled`].
    pub(super) fn take(&mut self) -> BytesMut {
        std::mem::take(&mut self.buf)
    }

    /// The whole frame at the front of these bytes, if there is one.
    pub(super) fn peek<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<RawFrame<'a>>, FrameError> {
        peek_known(bytes, self.max_append, &mut self.known_header)
    }

    /// So many bytes of these were handled, and then the connection stopped for this reason.
    pub(super) fn handled(&mut self, bytes: BytesMut, at: usize, flow: Flow) {
        self.buf = bytes;
        self.buf.advance(at);
        if at > 0 {
            self.assembled = None; // it was for the frame at the front
        }
        self.partial_since = match (flow, self.buf.is_empty()) {
            // A large frame holds its share of the assembly budget also while its sender does not read.
            (Flow::NeedBytes, false) => self.partial_since.filter(|_| at == 0).or_else(|| Some(Instant::now())),
            (Flow::OutputFull, _) if self.assembled.is_some() => self.partial_since.or_else(|| Some(Instant::now())),
            _ => None,
        };
    }

    /// Returns true if the frame at the front waits for its share of the budget: then nothing is read.
    pub(super) fn waits_for_share(&self) -> bool {
        self.assembling.is_some()
    }

    /// Makes room for the next read: in small steps while little comes, whole where a large frame is under way. Where
    /// such a frame has no share of the budget, that is waited for first.
    pub(super) fn make_room(&mut self) {
        let header = self.buf.first_chunk::<FRAME_HEADER_BYTES>();
        let header = header.and_then(|h| FrameHeader::decode(h, self.max_append).ok());
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

    /// Reads what comes, and returns how much; nothing when it was the share of a frame that was waited for, and is
    /// there. Cancel safe.
    pub(super) async fn more<R: AsyncRead + Unpin>(&mut self, rd: &mut R) -> io::Result<Option<usize>> {
        if self.waits_for_share() {
            self.assembled = end_of(&mut self.assembling).await;
            self.partial_since = Some(Instant::now()); // from now on the rest can come
            return Ok(None);
        }
        let read = rd.read_buf(&mut self.buf).await?;
        if read > 0 {
            self.last_activity = Instant::now();
        }
        Ok(Some(read))
    }

    /// Releases the memory that it took for a stream that has ended.
    fn rest(&mut self) {
        if self.buf.is_empty() && !self.chunk.is_least() && self.last_activity.elapsed() >= STREAM_IDLE_TIMEOUT {
            self.chunk.shrink();
            self.buf = BytesMut::new();
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let half = self.partial_since.filter(|_| !self.waits_for_share()).map(|since| since + FRAME_TIMEOUT);
        let rests = (self.chunk.is_shared() && self.buf.is_empty()).then(|| self.last_activity + STREAM_IDLE_TIMEOUT);
        half.into_iter().chain(rests).min()
    }

    /// Releases unused memory; returns an error where half a frame was not made whole in time.
    pub(super) fn timed_out(&mut self) -> Result<(), String> {
        self.rest();
        match self.partial_since {
            Some(since) if !self.waits_for_share() && since.elapsed() >= FRAME_TIMEOUT => {
                Err(format!("half a frame, and nothing more for {FRAME_TIMEOUT:?}"))
            }
            _ => Ok(()),
        }
    }
}
