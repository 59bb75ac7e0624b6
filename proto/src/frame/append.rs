//! APPEND: 24 bytes, then the payload.
//!
//! `u64 first sequence, u32 count, u8 level, u8 flags, u16 reserved, u32 CRC-32C of the payload, u32 CRC-32C of the 20
//! bytes before`. The payload is all the rest of the body. Flag 1 is the gap mark.
//!
//! The payload's checksum is not compared here: a payload that does not fit it is refused as one append, and the
//! connection continues.

use super::header::{FrameError, FrameHeader, FrameType};
use crate::{
    checksum::{crc32c, payload_checksum},
    level::AckLevel,
    limits::{APPEND_HEADER_BYTES, FRAME_HEADER_BYTES},
    wire::Reader,
};
use bytes::{BufMut, Bytes, BytesMut};

const GAP: u8 = 1;
const KIND: FrameType = FrameType::Append;

/// Fields of an append besides its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendHead {
    /// Sequence of its first record.
    pub first_seq: u64,
    /// The number of records.
    pub count: u32,
    /// The level that its answer waits for.
    pub level: AckLevel,
    /// The sequence may jump ahead of what is expected.
    pub gap: bool,
    /// The client's checksum of the payload.
    pub payload_crc: u32,
}

/// An append that owns its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// The fields besides its payload.
    pub head: AppendHead,
    /// Group and records, not looked at yet.
    pub payload: Bytes,
}

/// An append as it lies in a buffer of received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendView<'a> {
    /// The fields besides its payload.
    pub head: AppendHead,
    /// Group and records, not looked at yet.
    pub payload: &'a [u8],
}

impl AppendHead {
    /// Writes the fixed part of the body, in the pieces in which its checksum reads it back.
    pub fn put(&self, place: &mut [u8; APPEND_HEADER_BYTES]) {
        let flags = if self.gap { GAP } else { 0 };
        let three = u64::from(self.count) | u64::from(self.level.code()) << 32 | u64::from(flags) << 40;
        place[..8].copy_from_slice(&self.first_seq.to_le_bytes());
        place[8..16].copy_from_slice(&three.to_le_bytes());
        place[16..20].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c(&place[..20]);
        place[20..].copy_from_slice(&crc.to_le_bytes());
    }

    fn decode(bytes: &[u8; APPEND_HEADER_BYTES]) -> Result<Self, FrameError> {
        let malformed = |what| FrameError::Malformed { kind: KIND, what };
        let mut reader = Reader(bytes);
        let fields = (reader.u64(), reader.u32(), reader.u8(), reader.u8(), reader.u16(), reader.u32(), reader.u32());
        let (Some(first_seq), Some(count), Some(level), Some(flags), Some(reserved), Some(payload_crc), Some(crc)) =
            fields
        else {
            return Err(malformed("it ends inside its fixed fields")); // 24 bytes are enough for all of them
        };
        if crc != crc32c(&bytes[..20]) {
            return Err(FrameError::BodyChecksum(KIND));
        }
        if flags & !GAP != 0 || reserved != 0 {
            return Err(malformed("unknown flags are set"));
        }
        let level = AckLevel::from_code(level).ok_or(malformed("unknown level"))?;
        Ok(Self { first_seq, count, level, gap: flags & GAP != 0, payload_crc })
    }

    /// The sequence after its last record; nothing when it would pass 64 bits.
    #[must_use]
    pub fn end_seq(&self) -> Option<u64> {
        self.first_seq.checked_add(self.count.into())
    }
}

impl<'a> AppendView<'a> {
    /// Reads the body of an APPEND frame.
    ///
    /// # Errors
    /// When its fixed part is wrong; the connection cannot continue.
    pub fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let (head, payload) = body
            .split_first_chunk::<APPEND_HEADER_BYTES>()
            .ok_or(FrameError::TooShort { kind: KIND, len: body.len() as u32 })?;
        Ok(Self { head: AppendHead::decode(head)?, payload })
    }

    /// True if the payload fits the client's checksum.
    #[must_use]
    pub fn checksum_holds(&self) -> bool {
        payload_checksum(self.payload) == self.head.payload_crc
    }
}

impl Append {
    pub(super) fn decode(mut body: Bytes) -> Result<Self, FrameError> {
        let head = AppendView::parse(&body)?.head;
        Ok(Self { head, payload: body.split_off(APPEND_HEADER_BYTES.min(body.len())) })
    }

    /// True if the payload fits the client's checksum.
    #[must_use]
    pub fn checksum_holds(&self) -> bool {
        payload_checksum(&self.payload) == self.head.payload_crc
    }

    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        encode_append(buf, &self.head, &self.payload);
    }
}

/// All of an APPEND frame that stands before the payload, for a writer with header and payload in two buffers.
#[must_use]
pub fn append_prefix(head: &AppendHead, payload_len: u32) -> [u8; FRAME_HEADER_BYTES + APPEND_HEADER_BYTES] {
    let body_len = payload_len.saturating_add(APPEND_HEADER_BYTES as u32);
    let mut bytes = [0; FRAME_HEADER_BYTES + APPEND_HEADER_BYTES];
    bytes[..FRAME_HEADER_BYTES].copy_from_slice(&FrameHeader { kind: KIND, body_len, request_id: 0 }.encode());
    if let Some(place) = bytes.last_chunk_mut() {
        head.put(place);
    }
    bytes
}

/// Writes an APPEND frame. The payload is what a [`PayloadBuilder`](crate::PayloadBuilder) made: far below 4 GiB.
pub fn encode_append(buf: &mut BytesMut, head: &AppendHead, payload: &[u8]) {
    buf.reserve(FRAME_HEADER_BYTES + APPEND_HEADER_BYTES + payload.len());
    buf.put_slice(&append_prefix(head, u32::try_from(payload.len()).unwrap_or(u32::MAX)));
    buf.put_slice(payload);
}
