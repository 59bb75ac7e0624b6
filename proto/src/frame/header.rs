//! The 16 bytes in front of every frame, and what can be wrong with a frame.

use crate::{
    checksum::crc32c,
    error::{ErrorCode, ErrorInfo},
    limits::{
        APPEND_HEADER_BYTES, BODY_CRC_BYTES, FORWARD_HEADER_BYTES, FRAME_HEADER_BYTES, MAX_APPEND_BYTES,
        MAX_CONTROL_BODY_BYTES, MAX_PAYLOAD_OVERHEAD_BYTES, RECORDS_FIXED_BYTES,
    },
    wire::Reader,
};
use bytes::BufMut;

/// First byte of every frame.
pub const MAGIC: u8 = 0xC1;

/// Hands the list of all frames to a macro: name, code, and content. [`FrameType`] and [`Frame`](super::Frame) are made
/// of it.
macro_rules! all_frames {
    ($with:ident) => {
        $with! {
            /// Opens a connection.
            Hello = 0x01 (Hello),
            /// Records to keep.
            Append = 0x02 (Append),
            /// Asks that all that was sent before reaches a level.
            Flush = 0x03 (Flush),
            /// Asks for a PONG of the same request id.
            Ping = 0x04 (u32),
            /// Asks for records.
            Read = 0x05 (Read),
            /// Ends the READ of this request id.
            CancelRead = 0x06 (u32),
            /// The client is done with its producer.
            Bye = 0x07,
            /// Asks for a ring of shared memory.
            Ring = 0x08 (RingWanted),
            /// An append of another log.
            Forward = 0x09 (Forward),
            /// Sets a named cursor, or removes it.
            CommitCursor = 0x0A (CommitCursor),
            /// Asks where a named cursor is.
            GetCursor = 0x0B (GetCursor),
            /// Answers HELLO.
            Welcome = 0x41 (Welcome),
            /// An append has its offsets.
            Accepted = 0x42 (Accepted),
            /// All offsets below a watermark have reached a level.
            Watermark = 0x43 (Watermark),
            /// An append is not taken.
            Refused = 0x44 (Refused),
            /// A READ or FLUSH ends, or with request id 0 the connection.
            Error = 0x45 (ErrorFrame),
            /// Answers PING.
            Pong = 0x46 (u32),
            /// One append, read back.
            Records = 0x47 (Records),
            /// Offsets that cannot be read.
            Gap = 0x48 (Gap),
            /// A following READ has given all there is so far.
            CaughtUp = 0x49 (CaughtUp),
            /// A READ has given all that was asked for.
            ReadEnd = 0x4A (ReadEnd),
            /// Answers RING; descriptors come with it.
            RingGiven = 0x4B (RingGiven),
            /// A READ with a filter has passed over records that do not match.
            Progress = 0x4C (Progress),
            /// Where a named cursor is now.
            Cursor = 0x4D (CursorState),
        }
    };
}
pub(super) use all_frames;

macro_rules! types {
    ($($(#[$doc:meta])+ $name:ident = $code:literal $(($content:ty))?,)+) => {
        /// Type of a frame. Codes below 0x40 go from client to daemon, from 0x40 on from daemon to client.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum FrameType {
            $($(#[$doc])+ $name = $code,)+
        }

        impl FrameType {
            /// All types.
            pub const ALL: [Self; 24] = [$(Self::$name,)+];
        }
    };
}
all_frames!(types);

impl FrameType {
    /// The code on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type of a code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        // APPEND and ACCEPTED are most of what is ever sent.
        match code {
            0x02 => Some(Self::Append),
            0x42 => Some(Self::Accepted),
            _ => Self::ALL.into_iter().find(|kind| kind.code() == code),
        }
    }

    /// Shortest and longest body.
    pub(crate) fn body_bounds(self, max_append_bytes: u32) -> (usize, usize) {
        let max_payload = max_append_bytes.min(MAX_APPEND_BYTES) as usize;
        match self {
            Self::Append => (APPEND_HEADER_BYTES, APPEND_HEADER_BYTES + max_payload),
            Self::Records => {
                (RECORDS_FIXED_BYTES + BODY_CRC_BYTES, MAX_PAYLOAD_OVERHEAD_BYTES - FORWARD_HEADER_BYTES + max_payload)
            }
            Self::Forward => {
                (FORWARD_HEADER_BYTES + RECORDS_FIXED_BYTES + BODY_CRC_BYTES, MAX_PAYLOAD_OVERHEAD_BYTES + max_payload)
            }
            _ => (BODY_CRC_BYTES, MAX_CONTROL_BODY_BYTES as usize),
        }
    }
}

/// The reason why a stream of bytes is not a stream of frames. After any of these the connection cannot continue: where
/// the next frame starts is not known, or the peer does not keep to the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Not the start of a frame.
    #[error("a frame starts with 0xC1, not 0x{0:02x}: the peer speaks another protocol, or the stream is out of step")]
    BadMagic(u8),
    /// The checksum of the header is wrong.
    #[error("the checksum of a frame header is wrong")]
    HeaderChecksum,
    /// A frame type that this version does not know.
    #[error("frame type 0x{0:02x} is unknown")]
    UnknownType(u8),
    /// The body is longer than its type may have.
    #[error("{kind:?} frame of {len} bytes, the limit is {max}")]
    TooLarge {
        /// The frame.
        kind: FrameType,
        /// Length that its header gives to the body.
        len: u32,
        /// The longest body that is taken.
        max: u32,
    },
    /// The body is shorter than its type must have.
    #[error("{kind:?} frame of only {len} bytes")]
    TooShort {
        /// The frame.
        kind: FrameType,
        /// Length of its body.
        len: u32,
    },
    /// The checksum of a body, or of the fixed part of one with a payload, is wrong.
    #[error("the checksum of this {0:?} frame is wrong")]
    BodyChecksum(FrameType),
    /// A body that breaks a rule.
    #[error("malformed {kind:?} frame: {what}")]
    Malformed {
        /// The frame.
        kind: FrameType,
        /// Which rule.
        what: &'static str,
    },
}

impl FrameError {
    /// The error to send to the peer before the connection is closed.
    #[must_use]
    pub fn info(&self) -> ErrorInfo {
        let code = match self {
            Self::HeaderChecksum | Self::BodyChecksum(_) => ErrorCode::BadChecksum,
            Self::TooLarge { kind: FrameType::Append | FrameType::Forward, .. } => ErrorCode::AppendTooLarge,
            Self::TooLarge { .. } => ErrorCode::FrameTooLarge,
            _ => ErrorCode::MalformedFrame,
        };
        let info = ErrorInfo::new(code, self.to_string());
        match self {
            // In the sender's terms: WELCOME names the longest payload.
            Self::TooLarge { kind: FrameType::Append, len, max } => {
                let payload = |body: u32| u64::from(body).saturating_sub(APPEND_HEADER_BYTES as u64);
                let text = format!("an append of {} bytes, the limit is {}", payload(*len), payload(*max));
                ErrorInfo::new(code, text).limited_to(payload(*max))
            }
            Self::TooLarge { max, .. } => info.limited_to((*max).into()),
            _ => info,
        }
    }
}

/// A header that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The type of the frame.
    pub kind: FrameType,
    /// Length of the body.
    pub body_len: u32,
    /// The client's number for what this belongs to; 0 is none.
    pub request_id: u32,
}

/// The header that was found good last, as it came; see [`peek_known`](super::peek_known).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnownHeader(Option<([u8; FRAME_HEADER_BYTES], u32, FrameHeader)>);

impl FrameHeader {
    /// The header as it goes on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        let mut at = &mut bytes[..];
        at.put_u8(MAGIC);
        at.put_u8(self.kind.code());
        at.put_u16_le(0);
        at.put_u32_le(self.body_len);
        at.put_u32_le(self.request_id);
        let crc = crc32c(&bytes[..12]);
        bytes[12..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// As [`FrameHeader::decode`], for a stream in which most headers are the same 16 bytes: those that were checked
    /// last are not checked again.
    ///
    /// # Errors
    /// As [`FrameHeader::decode`].
    #[inline]
    pub(crate) fn decode_known(
        bytes: &[u8; FRAME_HEADER_BYTES],
        max_append_bytes: u32,
        known: &mut KnownHeader,
    ) -> Result<Self, FrameError> {
        match known.0 {
            Some((same, max, header)) if same == *bytes && max == max_append_bytes => Ok(header),
            _ => {
                let header = Self::decode(bytes, max_append_bytes)?;
                known.0 = Some((*bytes, max_append_bytes, header));
                Ok(header)
            }
        }
    }

    /// Checks a header: magic and checksum first, then the length against what its type may have.
    ///
    /// # Errors
    /// Says what is wrong; the connection cannot continue.
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES], max_append_bytes: u32) -> Result<Self, FrameError> {
        if bytes[0] != MAGIC {
            return Err(FrameError::BadMagic(bytes[0]));
        }
        let mut reader = Reader(&bytes[2..]);
        let (Some(reserved), Some(body_len), Some(request_id), Some(crc)) =
            (reader.u16(), reader.u32(), reader.u32(), reader.u32())
        else {
            return Err(FrameError::HeaderChecksum); // 14 bytes are enough for all four
        };
        if crc != crc32c(&bytes[..12]) {
            return Err(FrameError::HeaderChecksum);
        }
        let kind = FrameType::from_code(bytes[1]).ok_or(FrameError::UnknownType(bytes[1]))?;
        // A later version may give them a meaning, and says HELLO before it knows its peer.
        if reserved != 0 && !matches!(kind, FrameType::Hello | FrameType::Error) {
            return Err(FrameError::Malformed { kind, what: "reserved header bits are set" });
        }
        let (min, max) = kind.body_bounds(max_append_bytes);
        if body_len as usize > max {
            return Err(FrameError::TooLarge { kind, len: body_len, max: max as u32 });
        }
        if (body_len as usize) < min {
            return Err(FrameError::TooShort { kind, len: body_len });
        }
        Ok(Self { kind, body_len, request_id })
    }
}
