//! From the bytes that came to the request of each whole frame.

use std::time::Instant;

use bytes::Buf;
use clad_proto::frame::{ErrorFrame, Frame, FrameError, FrameType, RawFrame, encode_pong, peek_known};
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};

use super::{Connection, Flow, count_refusal};
use crate::ingest::batch::Burst;

impl Connection {
    /// Handles every whole frame in the buffer.
    pub(super) fn process(&mut self) -> Flow {
        let buf = std::mem::take(&mut self.buf);
        if !buf.is_empty() {
            self.arrival = self.service.admission.arrival();
        }
        let (at, flow) = self.frames(&buf);
        if at > 0 {
            self.assembled = None; // it was for the frame at the front
        }
        if self.out.is_empty() && self.reads.is_empty() {
            self.give_out_back(); // room was made for answers that were not wanted
        }
        self.buf = buf;
        self.buf.advance(at);
        self.partial_since = match (flow, self.buf.is_empty()) {
            // A large frame holds its share of the assembly budget also while its sender does not read.
            (Flow::NeedBytes, false) => self.partial_since.filter(|_| at == 0).or_else(|| Some(Instant::now())),
            (Flow::OutputFull, _) if self.assembled.is_some() => self.partial_since.or_else(|| Some(Instant::now())),
            _ => None,
        };
        flow
    }

    /// Handles whole frames from the front on; returns how many bytes they took, and why it stopped.
    fn frames(&mut self, bytes: &[u8]) -> (usize, Flow) {
        let mut at = 0;
        let mut burst = Burst::default();
        loop {
            if !self.out_room.has_room_behind(self.out.len() + burst.answers_len()) {
                match self.hand_over(&mut burst) {
                    Err(stopped) => return (stopped, Flow::NeedPermit),
                    Ok(()) if !self.out_room.has_room_behind(self.out.len()) => return (at, Flow::OutputFull),
                    Ok(()) => {}
                }
            }
            let peeked = peek_known(&bytes[at..], self.service.admission.max_append, &mut self.known_header);
            if let Ok(Some(raw)) = &peeked
                && (raw.header.kind == FrameType::Append || raw.header.kind == FrameType::Flush && self.has_ring())
                && !self.comes_behind_the_rings()
            {
                return (at, Flow::NeedPermit); // the first of what was read: nothing has joined yet
            }
            if let Ok(Some(raw)) = &peeked
                && raw.header.kind == FrameType::Append
                && self.join(&mut burst, raw.body, at)
            {
                at += raw.total_len();
                continue;
            }
            if let Err(stopped) = self.hand_over(&mut burst) {
                return (stopped, Flow::NeedPermit);
            }
            let raw = match peeked {
                Ok(Some(raw)) => raw,
                Ok(None) => return (at, Flow::NeedBytes),
                Err(e) => return (at, self.protocol_error(&e)),
            };
            // A burst may have been full: then this one begins the next.
            if raw.header.kind != FrameType::Append || !self.join(&mut burst, raw.body, at) {
                match self.frame(&raw) {
                    Flow::NeedPermit => return (at, Flow::NeedPermit),
                    Flow::Close => return (at + raw.total_len(), Flow::Close),
                    Flow::NeedBytes | Flow::OutputFull => {}
                }
            }
            at += raw.total_len();
        }
    }

    pub(super) fn protocol_error(&mut self, e: &FrameError) -> Flow {
        self.fatal(e.info())
    }

    pub(super) fn fatal(&mut self, error: ErrorInfo) -> Flow {
        count_refusal(AckLevel::Received, error.code, 1);
        tracing::debug!(peer = self.peer.name, %error, "protocol error");
        ErrorFrame { request_id: 0, error }.encode(&mut self.out);
        Flow::Close
    }

    fn frame(&mut self, raw: &RawFrame<'_>) -> Flow {
        if raw.header.kind == FrameType::Append {
            return self.append(raw.body);
        }
        match raw.decode() {
            Ok(Frame::Flush(flush)) => self.flush(flush),
            Ok(Frame::Read(read)) => self.read(read),
            Ok(Frame::Ping(request_id)) => encode_pong(&mut self.out, request_id),
            Ok(Frame::CancelRead(request_id)) => self.cancel(request_id),
            Ok(Frame::Ring(wanted)) => return self.ask_for_ring(wanted),
            Ok(Frame::Bye) => {
                self.says_bye = true;
                if self.session.unanswered() == 0
                    && let Some(producer) = &mut self.producer
                {
                    producer.forget();
                }
                return Flow::Close;
            }
            Ok(_) => {
                let text = format!("{:?} is no frame that a client sends here", raw.header.kind);
                return self.fatal(ErrorInfo::new(ErrorCode::MalformedFrame, text));
            }
            Err(e) => return self.protocol_error(&e),
        }
        Flow::NeedBytes
    }
}
