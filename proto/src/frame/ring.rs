//! RING and RING_GIVEN: how a client on a Unix socket comes by a ring of shared memory.
//!
//! * RING: `[16] ring id (zero: a new one), u64 written as 0 and ignored, u32 bytes wanted (0: what
//!   the daemon gives by default), [4] reserved`.
//! * RING_GIVEN: `[16] ring id, u32 bytes of the ring, u32 longest payload of the ring, u8 flags, [3] reserved`. Flags:
//!   1 it is the ring that the client has already, 2 it is stored: `posted` is offered.
//!
//! Descriptors come with the first byte of RING_GIVEN, in this order: the completion page; unless flag 1 is set, the
//! ring; and the doorbell, unless flag 1 is set and no descriptor came with RING. With the first byte of a RING that names
//! a ring, the client sends the ring's own descriptor: a daemon that does not have the ring takes it.

use super::{
    control::{self, Fields},
    header::{FrameError, FrameType},
};
use crate::{AckLevel, ids::RingId};
use bytes::{BufMut, BytesMut};

const KNOWN: u8 = 1;
const STORED: u8 = 2;

/// Asks for a ring, or to resume one after the daemon was started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingWanted {
    /// The client's number for it, not 0.
    pub request_id: u32,
    /// The ring to resume; nothing: a new one.
    pub known: Option<RingId>,
    /// 0, and ignored: earlier versions compared clocks.
    pub clock_ns: u64,
    /// The size asked for; 0: what the daemon gives by default. The daemon may give less.
    pub bytes: u32,
}

/// A ring is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingGiven {
    /// The request id of the RING.
    pub request_id: u32,
    /// The ring.
    pub id: RingId,
    /// It is the one that the client has already: only its new completion page comes.
    pub known: bool,
    /// The service manager has it: what is posted there outlives client and daemon.
    pub stored: bool,
    /// Bytes of the ring.
    pub bytes: u32,
    /// The longest payload of the ring: the payload of an append and its trailer ([`RingAppendTrailer`]).
    pub max_payload_bytes: u32,
}

/// Trailer behind the payload of an append in a ring: `u8 level, [3] reserved, u32 CRC-32C of the payload`. The ring's
/// own header says how many records it has; the drain counts its sequence. It stands behind the payload, so that the
/// checksum of the payload continues as that of the whole entry: each end goes through the payload once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingAppendTrailer {
    /// The level that the answer waits for; `none` and `posted` want none.
    pub level: AckLevel,
    /// The client's own checksum of the payload.
    pub payload_crc: u32,
}

impl RingAppendTrailer {
    /// Its length.
    pub const BYTES: usize = 8;

    /// The bytes.
    #[must_use]
    pub const fn encode(&self) -> [u8; Self::BYTES] {
        let crc = self.payload_crc.to_le_bytes();
        [self.level.code(), 0, 0, 0, crc[0], crc[1], crc[2], crc[3]]
    }

    /// The trailer, and the payload in front of it; nothing where it is none.
    #[must_use]
    #[inline]
    pub fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (payload, [level, 0, 0, 0, crc @ ..]) = bytes.split_last_chunk::<{ Self::BYTES }>()? else { return None };
        Some((Self { level: AckLevel::from_code(*level)?, payload_crc: u32::from_le_bytes(*crc) }, payload))
    }
}

impl RingWanted {
    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        control::put(buf, FrameType::Ring, self.request_id, |b| {
            b.put_slice(self.known.unwrap_or_default().as_bytes());
            b.put_u64_le(self.clock_ns);
            b.put_u32_le(self.bytes);
            b.put_bytes(0, 4);
        });
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        let id: RingId = fields.id()?;
        let (clock_ns, bytes) = (fields.u64()?, fields.u32()?);
        fields.reserved::<4>()?;
        fields.end()?;
        let known = (!id.is_zero()).then_some(id);
        Ok(Self { request_id: fields.request_id, known, clock_ns, bytes })
    }
}

impl RingGiven {
    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        let flags = if self.known { KNOWN } else { 0 } | if self.stored { STORED } else { 0 };
        control::put(buf, FrameType::RingGiven, self.request_id, |b| {
            b.put_slice(self.id.as_bytes());
            b.put_u32_le(self.bytes);
            b.put_u32_le(self.max_payload_bytes);
            b.put_u8(flags);
            b.put_bytes(0, 3);
        });
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        let (id, bytes, max_payload_bytes) = (fields.id()?, fields.u32()?, fields.u32()?);
        let flags = fields.flags(KNOWN | STORED)?;
        fields.reserved::<3>()?;
        fields.end()?;
        let (known, stored) = (flags & KNOWN != 0, flags & STORED != 0);
        Ok(Self { request_id: fields.request_id, id, known, stored, bytes, max_payload_bytes })
    }
}
