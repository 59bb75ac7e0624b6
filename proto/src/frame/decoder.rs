//! From bytes to frames.
//!
//! [`FrameDecoder`] takes whole frames out of a buffer; payloads are slices of that buffer, not copies.

use super::{
    answer::{Accepted, Refused, Watermark},
    append::Append,
    bare,
    control::Fields,
    cursor::{CommitCursor, CursorState, GetCursor},
    error_body::ErrorFrame,
    forward::Forward,
    handshake::{Hello, Welcome},
    header::{FrameError, FrameHeader, FrameType, all_frames},
    raw::{RawFrame, peek},
    read::{CaughtUp, Flush, Gap, Progress, Read, ReadEnd},
    records::Records,
    ring::{RingGiven, RingWanted},
};
use crate::limits::{FRAME_HEADER_BYTES, MAX_APPEND_BYTES};
use bytes::{Buf, Bytes, BytesMut};

/// Bytes reserved for a frame on the word of its header alone.
const RESERVE_STEP_BYTES: usize = 64 * 1024;

macro_rules! frames {
    ($($(#[$doc:meta])+ $name:ident = $code:literal $(($content:ty))?,)+) => {
        /// A frame of any type.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Frame {
            $($(#[$doc])+ $name $(($content))?,)+
        }

        impl Frame {
            /// The type of the frame.
            #[must_use]
            pub const fn kind(&self) -> FrameType {
                match self {
                    $(Self::$name { .. } => FrameType::$name,)+
                }
            }
        }
    };
}
all_frames!(frames);

impl RawFrame<'_> {
    /// Decodes the body; a payload is copied.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn decode(&self) -> Result<Frame, FrameError> {
        match self.header.kind {
            FrameType::Append | FrameType::Records | FrameType::Forward => {
                decode_payload(self.header, Bytes::copy_from_slice(self.body))
            }
            _ => decode_control(self.header, self.body),
        }
    }
}

/// Takes frames out of a buffer of received bytes.
#[derive(Debug, Clone)]
pub struct FrameDecoder {
    max_append_bytes: u32,
}

impl FrameDecoder {
    /// A decoder that takes payloads up to this length.
    #[must_use]
    pub const fn new(max_append_bytes: u32) -> Self {
        Self { max_append_bytes }
    }

    /// Takes the next frame; nothing while it is not whole. Space for the rest of a frame whose header is here is
    /// reserved in steps, so that a large one needs few reads.
    ///
    /// # Errors
    /// The connection cannot continue. The buffer is left as it is.
    pub fn next(&self, buf: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let (header, total) = match peek(buf, self.max_append_bytes)? {
            Some(raw) => match raw.header.kind {
                FrameType::Append | FrameType::Records | FrameType::Forward => (raw.header, raw.total_len()),
                _ => {
                    let (frame, len) = (raw.decode()?, raw.total_len());
                    buf.advance(len);
                    return Ok(Some(frame));
                }
            },
            None => {
                self.reserve(buf);
                return Ok(None);
            }
        };
        let mut frame = buf.split_to(total);
        frame.advance(FRAME_HEADER_BYTES);
        decode_payload(header, frame.freeze()).map(Some)
    }

    fn reserve(&self, buf: &mut BytesMut) {
        let header = buf.first_chunk().and_then(|head| FrameHeader::decode(head, self.max_append_bytes).ok());
        if let Some(header) = header {
            let total = FRAME_HEADER_BYTES + header.body_len as usize;
            // Sixteen bytes of a peer reserve no more than a step; what has come is doubled then.
            buf.reserve(total.saturating_sub(buf.len()).min(RESERVE_STEP_BYTES.max(buf.len())));
        }
    }
}

/// For a client: a record in the log was taken under the limit of its day, which WELCOME does not report.
impl Default for FrameDecoder {
    fn default() -> Self {
        Self::new(MAX_APPEND_BYTES)
    }
}

fn decode_payload(header: FrameHeader, body: Bytes) -> Result<Frame, FrameError> {
    match header.kind {
        FrameType::Append => Append::decode(body).map(Frame::Append),
        FrameType::Forward => Forward::decode(body).map(Frame::Forward),
        _ => Records::decode(header.request_id, body).map(Frame::Records),
    }
}

fn decode_control(header: FrameHeader, body: &[u8]) -> Result<Frame, FrameError> {
    let mut fields = Fields::open(header, body)?;
    let id = header.request_id;
    Ok(match header.kind {
        FrameType::Hello => Frame::Hello(Hello::decode(fields)?),
        FrameType::Flush => Frame::Flush(Flush::decode(fields)?),
        FrameType::Read => Frame::Read(Read::decode(fields)?),
        FrameType::Welcome => Frame::Welcome(Welcome::decode(fields)?),
        FrameType::Accepted => Frame::Accepted(Accepted::decode(fields)?),
        FrameType::Watermark => Frame::Watermark(Watermark::decode(fields)?),
        FrameType::Refused => Frame::Refused(Refused::decode(fields)?),
        FrameType::Error => Frame::Error(ErrorFrame::decode(fields)?),
        FrameType::Gap => Frame::Gap(Gap::decode(fields)?),
        FrameType::CaughtUp => Frame::CaughtUp(CaughtUp::decode(fields)?),
        FrameType::ReadEnd => Frame::ReadEnd(ReadEnd::decode(fields)?),
        FrameType::Progress => Frame::Progress(Progress::decode(fields)?),
        FrameType::Ring => Frame::Ring(RingWanted::decode(fields)?),
        FrameType::CommitCursor => Frame::CommitCursor(CommitCursor::decode(fields)?),
        FrameType::GetCursor => Frame::GetCursor(GetCursor::decode(fields)?),
        FrameType::Cursor => Frame::Cursor(CursorState::decode(fields)?),
        FrameType::RingGiven => Frame::RingGiven(RingGiven::decode(fields)?),
        FrameType::Ping => fields.end().map(|()| Frame::Ping(id))?,
        FrameType::Pong => fields.end().map(|()| Frame::Pong(id))?,
        FrameType::CancelRead => fields.end().map(|()| Frame::CancelRead(id))?,
        FrameType::Bye => fields.end().map(|()| Frame::Bye)?,
        // Only called for control frames; these carry payloads.
        FrameType::Append | FrameType::Records | FrameType::Forward => {
            decode_payload(header, Bytes::copy_from_slice(body))?
        }
    })
}

impl Frame {
    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        match self {
            Self::Hello(frame) => frame.encode(buf),
            Self::Append(frame) => frame.encode(buf),
            Self::Flush(frame) => frame.encode(buf),
            Self::Forward(frame) => frame.encode(buf),
            Self::Ping(id) => bare::encode_ping(buf, *id),
            Self::Read(frame) => frame.encode(buf),
            Self::CancelRead(id) => bare::encode_cancel_read(buf, *id),
            Self::Bye => bare::encode_bye(buf),
            Self::Welcome(frame) => frame.encode(buf),
            Self::Accepted(frame) => frame.encode(buf),
            Self::Watermark(frame) => frame.encode(buf),
            Self::Refused(frame) => frame.encode(buf),
            Self::Error(frame) => frame.encode(buf),
            Self::Pong(id) => bare::encode_pong(buf, *id),
            Self::Records(frame) => frame.encode(buf),
            Self::Gap(frame) => frame.encode(buf),
            Self::CaughtUp(frame) => frame.encode(buf),
            Self::ReadEnd(frame) => frame.encode(buf),
            Self::Ring(frame) => frame.encode(buf),
            Self::RingGiven(frame) => frame.encode(buf),
            Self::Progress(frame) => frame.encode(buf),
            Self::CommitCursor(frame) => frame.encode(buf),
            Self::GetCursor(frame) => frame.encode(buf),
            Self::Cursor(frame) => frame.encode(buf),
        }
    }
}
