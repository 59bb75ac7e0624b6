//! FORWARD: an append that another log has, handed on as that log's daemon gave it.
//!
//! `u64 previous, u8 level, u8 flags, u8 skip reason, u8 reserved, u32 CRC-32C of the 12 bytes before`, then the body of a
//! RECORDS frame. Flag 1: the origin begins. `previous` is the source offset that the forwarder takes to be expected; where the
//! append begins above it, the skip reason says why: 1 a filter, 2 retention, 3 damage, 4 too large for the log that takes it.
//!
//! The payload keeps its client's checksum, which is not compared here.

use super::{
    header::{FrameError, FrameHeader, FrameType},
    records::RecordsView,
};
use crate::{
    checksum::crc32c,
    level::AckLevel,
    limits::{FORWARD_HEADER_BYTES, FRAME_HEADER_BYTES},
    wire::Reader,
};
use bytes::{BufMut, Bytes, BytesMut};

const BEGINS: u8 = 1;
const KIND: FrameType = FrameType::Forward;

/// Why source offsets before an append are not forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SkipReason {
    /// A filter left them out.
    Filter,
    /// Retention had removed them.
    Retention,
    /// They were damaged.
    Damage,
    /// They are too large for the log that takes them.
    TooLarge,
}

impl SkipReason {
    /// The code on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Filter => 1,
            Self::Retention => 2,
            Self::Damage => 3,
            Self::TooLarge => 4,
        }
    }

    /// The reason of a code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Filter),
            2 => Some(Self::Retention),
            3 => Some(Self::Damage),
            4 => Some(Self::TooLarge),
            _ => None,
        }
    }
}

/// Fields before the RECORDS body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardHead {
    /// The source offset that is taken to be expected.
    pub previous: u64,
    /// The level that the answer waits for.
    pub level: AckLevel,
    /// The log is not to know the origin yet.
    pub begins: bool,
    /// Why the append does not begin at `previous`; nothing where it does.
    pub skip: Option<SkipReason>,
}

/// A forwarded append that owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// Its fields.
    pub head: ForwardHead,
    /// The body of RECORDS.
    pub records: Bytes,
}

/// A forwarded append in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardView<'a> {
    /// Its fields.
    pub head: ForwardHead,
    /// The RECORDS of the source's daemon.
    pub records: RecordsView<'a>,
}

impl ForwardHead {
    fn to_bytes(self) -> [u8; FORWARD_HEADER_BYTES] {
        let mut bytes = [0; FORWARD_HEADER_BYTES];
        let mut at = &mut bytes[..];
        at.put_u64_le(self.previous);
        at.put_u8(self.level.code());
        at.put_u8(if self.begins { BEGINS } else { 0 });
        at.put_u8(self.skip.map_or(0, SkipReason::code));
        let crc = crc32c(&bytes[..12]);
        bytes[12..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; FORWARD_HEADER_BYTES]) -> Result<Self, FrameError> {
        let malformed = |what| FrameError::Malformed { kind: KIND, what };
        let mut reader = Reader(bytes);
        let fields = (reader.u64(), reader.u8(), reader.u8(), reader.u8(), reader.u8(), reader.u32());
        let (Some(previous), Some(level), Some(flags), Some(skip), Some(reserved), Some(crc)) = fields else {
            return Err(malformed("it ends inside its fixed fields")); // 16 bytes are enough for all of them
        };
        if crc != crc32c(&bytes[..12]) {
            return Err(FrameError::BodyChecksum(KIND));
        }
        if flags & !BEGINS != 0 || reserved != 0 {
            return Err(malformed("unknown flags are set"));
        }
        let level = AckLevel::from_code(level).ok_or(malformed("unknown level"))?;
        let reason = SkipReason::from_code(skip);
        if skip != 0 && reason.is_none() {
            return Err(malformed("unknown skip reason"));
        }
        Ok(Self { previous, level, begins: flags & BEGINS != 0, skip: reason })
    }
}

impl<'a> ForwardView<'a> {
    /// Reads the body of a FORWARD frame. Peer metadata and payload are not looked at.
    ///
    /// # Errors
    /// When what stands before the payload is wrong; the connection cannot continue.
    pub fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let malformed = |what| FrameError::Malformed { kind: KIND, what };
        let (head, records) = body
            .split_first_chunk::<FORWARD_HEADER_BYTES>()
            .ok_or(FrameError::TooShort { kind: KIND, len: body.len() as u32 })?;
        let head = ForwardHead::decode(head)?;
        let records = RecordsView::parse(records).map_err(|e| match e {
            FrameError::TooShort { .. } => FrameError::TooShort { kind: KIND, len: body.len() as u32 },
            FrameError::BodyChecksum(_) => FrameError::BodyChecksum(KIND),
            FrameError::Malformed { what, .. } => malformed(what),
            other => other,
        })?;
        let first = records.head.first_offset;
        if first < head.previous || (first > head.previous) != head.skip.is_some() {
            return Err(malformed("its skip reason does not fit its offsets"));
        }
        if first.checked_add(records.head.count.into()).is_none() {
            return Err(malformed("its offsets go past the last"));
        }
        Ok(Self { head, records })
    }
}

impl Forward {
    pub(super) fn decode(mut body: Bytes) -> Result<Self, FrameError> {
        let head = ForwardView::parse(&body)?.head;
        Ok(Self { head, records: body.split_off(FORWARD_HEADER_BYTES.min(body.len())) })
    }

    /// True if the payload fits its client's checksum.
    #[must_use]
    pub fn checksum_holds(&self) -> bool {
        RecordsView::parse(&self.records).is_ok_and(|records| records.checksum_holds())
    }

    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        encode_forward(buf, &self.head, &self.records);
    }
}

/// All of a FORWARD frame that stands before the body of RECORDS, for a writer with that in buffers of its own.
#[must_use]
pub fn forward_prefix(head: &ForwardHead, records_len: u32) -> [u8; FRAME_HEADER_BYTES + FORWARD_HEADER_BYTES] {
    let body_len = records_len.saturating_add(FORWARD_HEADER_BYTES as u32);
    let mut bytes = [0; FRAME_HEADER_BYTES + FORWARD_HEADER_BYTES];
    bytes[..FRAME_HEADER_BYTES].copy_from_slice(&FrameHeader { kind: KIND, body_len, request_id: 0 }.encode());
    bytes[FRAME_HEADER_BYTES..].copy_from_slice(&head.to_bytes());
    bytes
}

/// Writes a FORWARD frame around the body of a RECORDS frame.
pub fn encode_forward(buf: &mut BytesMut, head: &ForwardHead, records: &[u8]) {
    buf.reserve(FRAME_HEADER_BYTES + FORWARD_HEADER_BYTES + records.len());
    buf.put_slice(&forward_prefix(head, u32::try_from(records.len()).unwrap_or(u32::MAX)));
    buf.put_slice(records);
}
