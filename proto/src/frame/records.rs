//! RECORDS: one append, read back with what the daemon knows about it.
//!
//! `u32 epoch, u32 count, u64 first offset, u64 append time, [16] producer id, u32 producer epoch, u32 CRC-32C of the
//! payload, u64 first sequence, u32 skip, u32 take, u16 length of the peer metadata, u16 reserved`, the peer metadata,
//! `u32 CRC-32C of all before`, the payload.
//!
//! The payload is the append as its client made it, under the client's checksum, so it always comes whole. `skip` and
//! `take` say which of its records were asked for.

use super::{
    header::{FrameError, FrameHeader, FrameType},
    peer_meta::PeerMeta,
};
use crate::{
    checksum::{crc32c, payload_checksum},
    fault::Fault,
    ids::ProducerId,
    limits::{BODY_CRC_BYTES, FRAME_HEADER_BYTES, MAX_PEER_META_BYTES, RECORDS_FIXED_BYTES},
    wire::Reader,
};
use bytes::{BufMut, Bytes, BytesMut};

const KIND: FrameType = FrameType::Records;

/// Fields before the payload, without the peer metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordsHead {
    /// The epoch in which the append got its offsets.
    pub epoch: u32,
    /// The number of records of the payload.
    pub count: u32,
    /// Offset of the first of them.
    pub first_offset: u64,
    /// When the daemon took the append, Unix nanoseconds.
    pub append_time: u64,
    /// The producer that appended it.
    pub producer_id: ProducerId,
    /// The producer's epoch.
    pub producer_epoch: u32,
    /// The client's checksum of the payload.
    pub payload_crc: u32,
    /// Sequence of the first record.
    pub first_seq: u64,
    /// So many records at the front were not asked for.
    pub skip: u32,
    /// So many after those were.
    pub take: u32,
}

/// One append, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Records {
    /// The READ.
    pub request_id: u32,
    /// The fields before the payload.
    pub head: RecordsHead,
    /// The peer metadata, encoded.
    pub peer_meta: Bytes,
    /// Group and records.
    pub payload: Bytes,
}

/// One append in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordsView<'a> {
    /// The fields before the payload.
    pub head: RecordsHead,
    /// The peer metadata, encoded.
    pub peer_meta: &'a [u8],
    /// Group and records.
    pub payload: &'a [u8],
}

impl RecordsHead {
    fn put(&self, buf: &mut BytesMut, peer_meta_len: u16) {
        buf.put_u32_le(self.epoch);
        buf.put_u32_le(self.count);
        buf.put_u64_le(self.first_offset);
        buf.put_u64_le(self.append_time);
        buf.put_slice(self.producer_id.as_bytes());
        buf.put_u32_le(self.producer_epoch);
        buf.put_u32_le(self.payload_crc);
        buf.put_u64_le(self.first_seq);
        buf.put_u32_le(self.skip);
        buf.put_u32_le(self.take);
        buf.put_u16_le(peer_meta_len);
        buf.put_u16_le(0);
    }

    /// The head, the length of the peer metadata, and the reserved bits.
    fn take(reader: &mut Reader<'_>) -> Option<(Self, u16, u16)> {
        let head = Self {
            epoch: reader.u32()?,
            count: reader.u32()?,
            first_offset: reader.u64()?,
            append_time: reader.u64()?,
            producer_id: ProducerId::from_bytes(reader.array()?),
            producer_epoch: reader.u32()?,
            payload_crc: reader.u32()?,
            first_seq: reader.u64()?,
            skip: reader.u32()?,
            take: reader.u32()?,
        };
        Some((head, reader.u16()?, reader.u16()?))
    }
}

impl<'a> RecordsView<'a> {
    /// Reads the body of a RECORDS frame. The payload is not looked at.
    ///
    /// # Errors
    /// When what stands before the payload is wrong.
    pub fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let short = FrameError::TooShort { kind: KIND, len: body.len() as u32 };
        let malformed = |what| FrameError::Malformed { kind: KIND, what };
        let mut reader = Reader(body);
        let (head, peer_meta_len, reserved) = RecordsHead::take(&mut reader).ok_or(short.clone())?;
        if usize::from(peer_meta_len) > MAX_PEER_META_BYTES {
            return Err(malformed("its peer metadata is too long"));
        }
        let peer_meta = reader.take(peer_meta_len.into()).ok_or(short.clone())?;
        let before = body.get(..RECORDS_FIXED_BYTES + peer_meta.len()).unwrap_or_default();
        if reader.u32().ok_or(short)? != crc32c(before) {
            return Err(FrameError::BodyChecksum(KIND));
        }
        if reserved != 0 {
            return Err(malformed("reserved bytes are set"));
        }
        if head.skip.checked_add(head.take).is_none_or(|end| end > head.count) || head.take == 0 {
            return Err(malformed("skip and take are not within its records"));
        }
        Ok(Self { head, peer_meta, payload: reader.0 })
    }

    /// True if the payload fits the client's checksum.
    #[must_use]
    pub fn checksum_holds(&self) -> bool {
        payload_checksum(self.payload) == self.head.payload_crc
    }
}

impl Records {
    pub(super) fn decode(request_id: u32, mut body: Bytes) -> Result<Self, FrameError> {
        let view = RecordsView::parse(&body)?;
        let (head, peer_meta_len, payload_len) = (view.head, view.peer_meta.len(), view.payload.len());
        let payload = body.split_off(body.len() - payload_len);
        let peer_meta = body.split_off(RECORDS_FIXED_BYTES).split_to(peer_meta_len);
        Ok(Self { request_id, head, peer_meta, payload })
    }

    /// True if the payload fits the client's checksum.
    #[must_use]
    pub fn checksum_holds(&self) -> bool {
        payload_checksum(&self.payload) == self.head.payload_crc
    }

    /// The peer metadata.
    ///
    /// # Errors
    /// Says what is wrong with them.
    pub fn peer_meta(&self) -> Result<PeerMeta, Fault> {
        PeerMeta::decode(&self.peer_meta)
    }

    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        encode_records(buf, self.request_id, &self.head, &self.peer_meta, &self.payload);
    }
}

/// All of a RECORDS frame that stands before the payload, for a writer with it and the payload in two buffers. A peer of
/// protocol version 1 gets [`numbers`](super::numbers) of the peer metadata. Peer metadata beyond [`MAX_PEER_META_BYTES`] are left out.
pub fn records_prefix(buf: &mut BytesMut, request_id: u32, head: &RecordsHead, peer_meta: &[u8], payload_len: u32) {
    let peer_meta = if peer_meta.len() <= MAX_PEER_META_BYTES { peer_meta } else { &[] };
    let fixed = RECORDS_FIXED_BYTES + peer_meta.len();
    let body_len = payload_len.saturating_add((fixed + BODY_CRC_BYTES) as u32);
    buf.put_slice(&FrameHeader { kind: KIND, body_len, request_id }.encode());
    let start = buf.len();
    head.put(buf, peer_meta.len() as u16);
    buf.put_slice(peer_meta);
    let crc = crc32c(buf.get(start..).unwrap_or_default());
    buf.put_u32_le(crc);
}

/// Writes a RECORDS frame.
pub fn encode_records(buf: &mut BytesMut, request_id: u32, head: &RecordsHead, peer_meta: &[u8], payload: &[u8]) {
    buf.reserve(FRAME_HEADER_BYTES + RECORDS_FIXED_BYTES + peer_meta.len() + BODY_CRC_BYTES + payload.len());
    records_prefix(buf, request_id, head, peer_meta, u32::try_from(payload.len()).unwrap_or(u32::MAX));
    buf.put_slice(payload);
}
