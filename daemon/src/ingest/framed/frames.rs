//! From the bytes that came to the request of each whole frame.

use std::future::Future;

use clad_journal::DeferredWrite;
use clad_proto::frame::{CursorState, Frame, FrameError, FrameType, RawFrame, encode_pong};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};

use super::appends::Flow;
use super::burst::Burst;
use super::connection::Connection;
use super::ring::misplaced_fds;
use crate::config::Right;
use crate::ingest::admission::count_refusal;
use crate::ingest::reactor::defer_write;

impl Connection {
    /// Handles every whole frame in the buffer, and leaves the write that they defer to this thread of the reactor.
    pub(super) fn process(&mut self) -> Flow {
        let bytes = self.input.take();
        if !bytes.is_empty() {
            self.appends.arrival = self.service.admission.arrival();
        }
        let mut burst = Burst::default();
        let (at, flow) = match self.has_misplaced_fds(&bytes) {
            false => self.frames(&bytes, &mut burst),
            true => (0, self.fatal(misplaced_fds())),
        };
        burst.deferred.into_iter().for_each(defer_write);
        self.input.handled(bytes, at, flow);
        self.output.release_unused(); // room was made for answers that were not wanted
        flow
    }

    /// Returns true if descriptors came that are not for the frame at the front.
    fn has_misplaced_fds(&mut self, bytes: &[u8]) -> bool {
        // Half a frame may be one that they are for. An error of framing is reported as what it is.
        self.appends.ring.has_fds()
            && matches!(self.input.peek(bytes), Ok(Some(raw)) if !self.appends.ring.has_fds_for(raw.header.kind))
    }

    /// Handles whole frames from the front on; returns how many bytes they took, and why it stopped.
    fn frames<'a>(&mut self, bytes: &'a [u8], burst: &mut Burst<'a>) -> (usize, Flow) {
        let mut at = 0;
        if let Some(producer) = &self.appends.producer {
            self.appends.ring.look_elsewhere(&producer.id, producer.epoch);
        }
        loop {
            if !self.output.has_room_behind(burst.answers_len()) {
                match self.appends.hand_over(burst, &mut self.output) {
                    Err(stopped) => return (stopped, Flow::NeedPermit),
                    Ok(()) if !self.output.has_room_behind(0) => return (at, Flow::OutputFull),
                    Ok(()) => {}
                }
            }
            let peeked = self.input.peek(&bytes[at..]);
            if let Ok(Some(raw)) = &peeked
                && raw.header.kind == FrameType::Flush
                && !self.appends.ring.may_flush()
            {
                return (at, Flow::NeedPermit); // no append has joined: a connection with a ring takes none
            }
            if let Ok(Some(raw)) = &peeked
                && raw.header.kind == FrameType::Append
                && self.appends.join(burst, raw.body, at)
            {
                at += raw.total_len();
                continue;
            }
            if let Err(stopped) = self.appends.hand_over(burst, &mut self.output) {
                return (stopped, Flow::NeedPermit);
            }
            let raw = match peeked {
                Ok(Some(raw)) => raw,
                Ok(None) => return (at, Flow::NeedBytes),
                Err(e) => return (at, self.fatal(e.info())),
            };
            // A burst may have been full: then this one begins the next.
            if raw.header.kind != FrameType::Append || !self.appends.join(burst, raw.body, at) {
                match self.frame(&raw, &mut burst.deferred).unwrap_or_else(|error| self.fatal(error)) {
                    Flow::NeedPermit => return (at, Flow::NeedPermit),
                    Flow::Close => return (at + raw.total_len(), Flow::Close),
                    Flow::NeedBytes | Flow::OutputFull => {}
                }
            }
            at += raw.total_len();
        }
    }

    /// Handles a whole frame that joins no burst. An error ends the connection.
    fn frame(&mut self, raw: &RawFrame<'_>, deferred: &mut Option<DeferredWrite>) -> Result<Flow, ErrorInfo> {
        if raw.header.kind == FrameType::Append {
            return self.appends.append(raw.body, &mut self.output, deferred);
        }
        if raw.header.kind == FrameType::Forward {
            return self.appends.forward(raw.body, &mut self.output, deferred);
        }
        match raw.decode().map_err(|e: FrameError| e.info())? {
            Frame::Flush(flush) => self.appends.flush(flush, &mut self.output),
            Frame::Read(read) => {
                if let Err(error) = self.output.reads.begin(&self.service, &self.appends.peer, &read) {
                    self.output.error(read.request_id, error);
                }
            }
            Frame::CommitCursor(commit) => {
                let (reads, peer) = (self.service.reads.clone(), self.appends.peer.clone());
                self.cursor(commit.request_id, async move { reads.cursors.commit(&peer, &commit).await });
            }
            Frame::GetCursor(get) => {
                let (reads, may) = (self.service.reads.clone(), self.appends.peer.check(Right::Read));
                self.cursor(
                    get.request_id,
                    async move { may.map(|()| reads.cursors.state(get.request_id, &get.name)) },
                );
            }
            Frame::Ping(request_id) => encode_pong(&mut self.output.bytes, request_id),
            Frame::CancelRead(request_id) => self.output.reads.cancel(request_id),
            Frame::Ring(wanted) => self.appends.ask_for_ring(wanted)?,
            Frame::Bye => {
                self.appends.bye();
                return Ok(Flow::Close);
            }
            _ => {
                let text = format!("{:?} is no frame that a client sends here", raw.header.kind);
                return Err(ErrorInfo::new(ErrorCode::MalformedFrame, text));
            }
        }
        Ok(Flow::NeedBytes)
    }

    fn cursor(
        &mut self,
        request_id: u32,
        answer: impl Future<Output = Result<CursorState, ErrorInfo>> + Send + 'static,
    ) {
        if let Err(error) = self.output.reads.begin_cursor(request_id, answer) {
            self.output.error(request_id, error);
        }
    }

    /// Reports an error that ends the connection.
    pub(super) fn fatal(&mut self, error: ErrorInfo) -> Flow {
        count_refusal(AckLevel::Received, error.code, 1);
        tracing::debug!(peer = self.appends.peer.name, %error, "protocol error");
        self.output.error(0, error);
        Flow::Close
    }
}
