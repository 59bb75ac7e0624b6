//! ACCEPTED, WATERMARK and REFUSED: the answers to appends.
//!
//! * ACCEPTED: `u64 first sequence, u64 first offset, u32 count, u32 epoch, u8 flags, [3] reserved`. Flag 1: the append
//!   was stored before; the offset is the original one.
//! * WATERMARK: `u64 offset, u64 first offset of the epoch, u32 epoch, u8 level, [3] reserved`.
//! * REFUSED: `u64 first sequence, u32 count`, then the error as [`ErrorFrame`](super::ErrorFrame) has it.
//!
//! A watermark covers all offsets below `offset`. One of the next epoch covers, of what was given before, only offsets
//! below that epoch's first: offsets from there on were given again, to other records. One of an epoch further on says
//! nothing: an epoch in between may have given the offset again, and its first offset is not known here. A client that
//! missed an epoch sends again; the answer to that is certain.

use super::{
    control::{self, Fields},
    error_body,
    header::{FrameError, FrameHeader, FrameType},
    raw::RawFrame,
};
use crate::{
    checksum::crc32c,
    error::ErrorInfo,
    level::AckLevel,
    limits::{BODY_CRC_BYTES, FRAME_HEADER_BYTES},
};
use bytes::{BufMut, BytesMut};
use std::sync::LazyLock;

const DUPLICATE: u8 = 1;

/// An append has its offsets: it is `received`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// Sequence of its first record.
    pub first_seq: u64,
    /// Offset of its first record.
    pub first_offset: u64,
    /// The number of records.
    pub count: u32,
    /// The log's epoch when this was answered; the offsets hold in it. (For what was stored before, this may be a later
    /// one than that in which the offsets were first given.)
    pub epoch: u32,
    /// It was stored before; nothing was stored now.
    pub duplicate: bool,
}

/// All offsets below a watermark have reached a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermark {
    /// The FLUSH that this answers; 0 is none.
    pub request_id: u32,
    /// The epoch in which it was seen.
    pub epoch: u32,
    /// The first offset that was given in that epoch.
    pub epoch_first_offset: u64,
    /// The level.
    pub level: AckLevel,
    /// All offsets below have reached it.
    pub offset: u64,
}

/// An append is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Sequence of its first record.
    pub first_seq: u64,
    /// The number of records.
    pub count: u32,
    /// Why.
    pub error: ErrorInfo,
}

impl Accepted {
    const BODY: usize = 28 + BODY_CRC_BYTES;
    /// Length of the frame.
    pub const FRAME_BYTES: usize = FRAME_HEADER_BYTES + Self::BODY;

    /// Writes the frame. There is one for each append, so it is written where it stays, in the pieces in which its
    /// checksum reads it back.
    pub fn encode(&self, buf: &mut BytesMut) {
        // Its header never changes.
        static HEADER: LazyLock<[u8; FRAME_HEADER_BYTES]> = LazyLock::new(|| {
            FrameHeader { kind: FrameType::Accepted, body_len: Accepted::BODY as u32, request_id: 0 }.encode()
        });
        let start = buf.len();
        buf.put_slice(&*HEADER);
        buf.put_u64_le(self.first_seq);
        buf.put_u64_le(self.first_offset);
        buf.put_u64_le(u64::from(self.count) | u64::from(self.epoch) << 32);
        buf.put_u32_le(if self.duplicate { DUPLICATE.into() } else { 0 });
        let crc = crc32c(buf.get(start + FRAME_HEADER_BYTES..).unwrap_or_default());
        buf.put_u32_le(crc);
    }

    /// Reads the body of an ACCEPTED frame; the tagged fields of a later version are skipped.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(raw: &RawFrame<'_>) -> Result<Self, FrameError> {
        Self::decode(Fields::open(raw.header, raw.body)?)
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        let accepted = Self {
            first_seq: fields.u64()?,
            first_offset: fields.u64()?,
            count: fields.u32()?,
            epoch: fields.u32()?,
            duplicate: fields.flags(DUPLICATE)? & DUPLICATE != 0,
        };
        fields.reserved::<3>()?;
        fields.end()?;
        Ok(accepted)
    }
}

impl Watermark {
    /// True if a record that was accepted at this offset in this epoch is covered.
    #[must_use]
    pub const fn covers(&self, epoch: u32, offset: u64) -> bool {
        let same = epoch == self.epoch;
        let kept = epoch < self.epoch && self.epoch - epoch == 1 && offset < self.epoch_first_offset;
        offset < self.offset && (same || kept)
    }

    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        control::put(buf, FrameType::Watermark, self.request_id, |buf| {
            buf.put_u64_le(self.offset);
            buf.put_u64_le(self.epoch_first_offset);
            buf.put_u32_le(self.epoch);
            buf.put_u8(self.level.code());
            buf.put_bytes(0, 3);
        });
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        let request_id = fields.request_id;
        let (offset, epoch_first_offset, epoch) = (fields.u64()?, fields.u64()?, fields.u32()?);
        let level = fields.level()?;
        fields.reserved::<3>()?;
        fields.end()?;
        Ok(Self { request_id, epoch, epoch_first_offset, level, offset })
    }
}

impl Refused {
    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        control::put(buf, FrameType::Refused, 0, |buf| {
            buf.put_u64_le(self.first_seq);
            buf.put_u32_le(self.count);
            error_body::put(buf, &self.error);
        });
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        let (first_seq, count) = (fields.u64()?, fields.u32()?);
        Ok(Self { first_seq, count, error: error_body::take(&mut fields)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_epoch_covers_only_what_it_did_not_give_again() {
        let mark = Watermark { request_id: 0, epoch: 3, epoch_first_offset: 10, level: AckLevel::Durable, offset: 15 };
        assert!(mark.covers(3, 14) && !mark.covers(3, 15));
        assert!(mark.covers(2, 9), "kept by the recovery that began epoch 3");
        assert!(!mark.covers(2, 10), "given again in epoch 3, to another record");
        assert!(!mark.covers(4, 0), "an earlier epoch says nothing about a later one");
        // Epoch 2 may have begun at 5: then offset 7 of epoch 1 was given again in epoch 2, and that record is the
        // stored one.
        assert!(!mark.covers(1, 7), "an epoch that was missed may have given it again");
    }
}
