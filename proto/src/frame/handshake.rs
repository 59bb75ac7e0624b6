//! HELLO and WELCOME.
//!
//! HELLO: `u16 min_version, u16 max_version, [16] producer id, u32 producer epoch, u8 intent, [3] reserved`, tagged:
//! 1 client name, 2 secret, 3 the stream that is forwarded (`[16] log id`, its name). The layout of frame headers, of HELLO and of ERROR is the same in every version.
//!
//! WELCOME: `u16 version, u8 policy, u8 highest ack, u8 flags, [3] reserved, [16] log id, u32 epoch, u32 window,
//! u64 first offset of the epoch, [16] producer id, u32 producer epoch, u32 max append bytes, u32 max record bytes,
//! [4] reserved, u64 received, u64 written, u64 durable`, tagged: 1 secret that was assigned, 2 last stored
//! (`u64 sequence, u64 offset, u8 level`), 3 earlier epochs (`u32 epoch, u64 first offset` each, oldest first), 4 the state of
//! the stream (`u32 source epoch, u64 end, u64 first source offset of the last append, u32 count, u32 CRC-32C, u64 offset`).

use super::{
    answer::Watermark,
    control::{self, Fields, cut},
    header::{FrameError, FrameType},
    origin::Origin,
};
use crate::{
    ids::{LogId, ProducerId},
    level::{AckLevel, DurabilityPolicy},
    limits::{MAX_CLIENT_NAME_BYTES, MAX_EARLIER_EPOCHS, MAX_SECRET_BYTES, MAX_WINDOW},
    wire::{Reader, put_field},
};
use bytes::{BufMut, BytesMut};

const INTENT_APPEND: u8 = 1;
const INTENT_READ: u8 = 2;
const INTENT_FORWARD: u8 = 4;
const MAY_READ: u8 = 1;
const FORWARDING: u8 = 2;
const NAME: u8 = 1;
const HELLO_SECRET: u8 = 2;
const HELLO_FORWARD: u8 = 3;
const WELCOME_SECRET: u8 = 1;
const LAST: u8 = 2;
const EARLIER: u8 = 3;
const ORIGIN_STATE: u8 = 4;
/// Bytes of an [`EpochStart`].
const EPOCH: usize = 12;

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Intent {
    /// It will append: it needs a producer.
    pub append: bool,
    /// It will read.
    pub read: bool,
}

/// Opens a connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hello {
    /// Lowest version that the client speaks.
    pub min_version: u16,
    /// Highest version that the client speaks.
    pub max_version: u16,
    /// Its producer; zero asks for a new one.
    pub producer_id: ProducerId,
    /// Its epoch; a lower one than was seen is fenced.
    pub producer_epoch: u32,
    /// The purpose of the connection.
    pub intent: Intent,
    /// For a person; at most [`MAX_CLIENT_NAME_BYTES`], what is longer is cut.
    pub name: String,
    /// The secret that the producer id is bound to on TCP; empty is none; at most [`MAX_SECRET_BYTES`].
    pub secret: Vec<u8>,
    /// The stream of another log that it will forward, if it will.
    pub forward: Option<Origin>,
}

/// State of a forwarded stream in the log that takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginState {
    /// Source epoch of the last append.
    pub epoch: u32,
    /// The source offset that is expected next.
    pub end: u64,
    /// Source offset of the first record of the last append.
    pub first: u64,
    /// Its records; 0 where the last append was lost: then there is nothing to compare with.
    pub count: u32,
    /// Its client's CRC-32C of the payload.
    pub payload_crc: u32,
    /// Offset of its first record in this log.
    pub offset: u64,
}

/// The daemon's answer to a client that will forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Forwarding {
    /// It was not asked, or does not forward: an earlier daemon does not know how.
    #[default]
    No,
    /// It has nothing of the stream.
    Unknown,
    /// It has this.
    Known(OriginState),
}

/// The last record that the daemon has of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastStored {
    /// Its sequence.
    pub sequence: u64,
    /// Its offset.
    pub offset: u64,
    /// The level reached.
    pub level: AckLevel,
}

/// An epoch, and the first offset that was given in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochStart {
    /// The epoch.
    pub epoch: u32,
    /// Offsets from here on that an earlier epoch gave were abandoned.
    pub first_offset: u64,
}

/// Answers HELLO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The version that both will speak.
    pub version: u16,
    /// The way the log reaches `durable`.
    pub policy: DurabilityPolicy,
    /// The highest level that it can promise.
    pub highest_ack: AckLevel,
    /// True if this peer may read.
    pub may_read: bool,
    /// The log.
    pub log_id: LogId,
    /// Its epoch.
    pub epoch: u32,
    /// The first offset that was given in this epoch.
    pub epoch_first_offset: u64,
    /// The producer: the one that was asked for or a new one; zero when the connection does not append.
    pub producer_id: ProducerId,
    /// The epoch of the producer that holds now.
    pub producer_epoch: u32,
    /// The secret of a producer that was assigned on TCP; empty is none.
    pub secret: Vec<u8>,
    /// The last record that is stored of this producer, if any is known.
    pub last: Option<LastStored>,
    /// Number of appends that may be unacknowledged; at most [`MAX_WINDOW`].
    pub window: u32,
    /// The longest payload.
    pub max_append_bytes: u32,
    /// The longest record.
    pub max_record_bytes: u32,
    /// All offsets below are received.
    pub received: u64,
    /// All offsets below are written.
    pub written: u64,
    /// All offsets below are durable.
    pub durable: u64,
    /// The last epochs before this one that gave offsets, oldest first, at most [`MAX_EARLIER_EPOCHS`]; both numbers
    /// ascend.
    pub earlier: Vec<EpochStart>,
    /// The stream that HELLO named.
    pub forwarding: Forwarding,
}

impl Hello {
    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        control::put(buf, FrameType::Hello, 0, |buf| {
            buf.put_u16_le(self.min_version);
            buf.put_u16_le(self.max_version);
            buf.put_slice(self.producer_id.as_bytes());
            buf.put_u32_le(self.producer_epoch);
            let append = if self.intent.append { INTENT_APPEND } else { 0 };
            let read = if self.intent.read { INTENT_READ } else { 0 };
            let forward = if self.forward.is_some() { INTENT_FORWARD } else { 0 };
            buf.put_u8(append | read | forward);
            buf.put_bytes(0, 3);
            let name = cut(&self.name, MAX_CLIENT_NAME_BYTES);
            if !name.is_empty() {
                put_field(buf, NAME, name.as_bytes());
            }
            put_secret(buf, HELLO_SECRET, &self.secret);
            if let Some(origin) = &self.forward {
                put_field(buf, HELLO_FORWARD, &origin.to_bytes());
            }
        });
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        let mut hello = Self {
            min_version: fields.u16()?,
            max_version: fields.u16()?,
            producer_id: fields.id()?,
            producer_epoch: fields.u32()?,
            ..Self::default()
        };
        // Unknown bits are left to a version to come: HELLO is read before a version is agreed on.
        let intent = fields.u8()?;
        hello.intent = Intent { append: intent & INTENT_APPEND != 0, read: intent & INTENT_READ != 0 };
        for _ in 0..3 {
            fields.u8()?;
        }
        while let Some((tag, content)) = fields.next_tagged()? {
            match tag {
                NAME => hello.name = fields.text(content, MAX_CLIENT_NAME_BYTES)?.to_owned(),
                HELLO_SECRET => hello.secret = secret(&fields, content)?,
                HELLO_FORWARD if intent & INTENT_FORWARD != 0 => {
                    let origin = Origin::from_bytes(content);
                    hello.forward = Some(origin.ok_or_else(|| fields.error("no stream of a log to forward"))?);
                }
                _ => {}
            }
        }
        if intent & INTENT_FORWARD != 0 && hello.forward.is_none() {
            return Err(fields.error("it forwards, and does not say what"));
        }
        Ok(hello)
    }
}

impl Welcome {
    /// WELCOME's report on a level, in the form in which later steps of it come.
    #[must_use]
    pub const fn watermark(&self, level: AckLevel) -> Option<Watermark> {
        let offset = match level {
            AckLevel::None | AckLevel::Posted => return None,
            AckLevel::Received => self.received,
            AckLevel::Written => self.written,
            AckLevel::Durable => self.durable,
        };
        let (epoch, epoch_first_offset) = (self.epoch, self.epoch_first_offset);
        Some(Watermark { request_id: 0, epoch, epoch_first_offset, level, offset })
    }

    /// The offset from which on everything that was given in an epoch is reported as abandoned since; `None` while it
    /// is that epoch. More may be abandoned if the reported epochs do not reach back so far, never less.
    #[must_use]
    pub fn abandoned_since(&self, epoch: u32) -> Option<u64> {
        let later = self.earlier.iter().filter(|later| later.epoch > epoch).map(|later| later.first_offset);
        (epoch < self.epoch).then(|| later.fold(self.epoch_first_offset, u64::min))
    }

    /// The sequence that the daemon expects next of the producer.
    #[must_use]
    pub fn expected_sequence(&self) -> u64 {
        self.last.map_or(0, |last| last.sequence.saturating_add(1))
    }

    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        control::put(buf, FrameType::Welcome, 0, |buf| {
            buf.put_u16_le(self.version);
            buf.put_u8(self.policy.code());
            buf.put_u8(self.highest_ack.code());
            let forwarding = if self.forwarding == Forwarding::No { 0 } else { FORWARDING };
            buf.put_u8(forwarding | if self.may_read { MAY_READ } else { 0 });
            buf.put_bytes(0, 3);
            buf.put_slice(self.log_id.as_bytes());
            buf.put_u32_le(self.epoch);
            buf.put_u32_le(self.window);
            buf.put_u64_le(self.epoch_first_offset);
            buf.put_slice(self.producer_id.as_bytes());
            buf.put_u32_le(self.producer_epoch);
            buf.put_u32_le(self.max_append_bytes);
            buf.put_u32_le(self.max_record_bytes);
            buf.put_u32_le(0);
            buf.put_u64_le(self.received);
            buf.put_u64_le(self.written);
            buf.put_u64_le(self.durable);
            put_secret(buf, WELCOME_SECRET, &self.secret);
            if let Some(last) = &self.last {
                put_field(buf, LAST, &last.to_bytes());
            }
            if !self.earlier.is_empty() {
                let skip = self.earlier.len().saturating_sub(MAX_EARLIER_EPOCHS);
                let content: Vec<u8> = self.earlier.iter().skip(skip).flat_map(|start| start.to_bytes()).collect();
                put_field(buf, EARLIER, &content);
            }
            if let Forwarding::Known(state) = &self.forwarding {
                put_field(buf, ORIGIN_STATE, &state.to_bytes());
            }
        });
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        let version = fields.u16()?;
        let policy = DurabilityPolicy::from_code(fields.u8()?).ok_or_else(|| fields.error("unknown policy"))?;
        let highest_ack = fields.level()?;
        let flags = fields.flags(MAY_READ | FORWARDING)?;
        let may_read = flags & MAY_READ != 0;
        let mut forwarding = if flags & FORWARDING != 0 { Forwarding::Unknown } else { Forwarding::No };
        fields.reserved::<3>()?;
        let (log_id, epoch, window) = (fields.id()?, fields.u32()?, fields.u32()?);
        let epoch_first_offset = fields.u64()?;
        let (producer_id, producer_epoch) = (fields.id()?, fields.u32()?);
        let (max_append_bytes, max_record_bytes) = (fields.u32()?, fields.u32()?);
        fields.reserved::<4>()?;
        let (received, written, durable) = (fields.u64()?, fields.u64()?, fields.u64()?);
        if !(durable <= written && written <= received) {
            return Err(fields.error("its watermarks are out of order"));
        }
        if window == 0 || window > MAX_WINDOW {
            return Err(fields.error("its window is not between 1 and 65536"));
        }
        let (mut secret_given, mut last, mut earlier) = (Vec::new(), None, Vec::new());
        while let Some((tag, content)) = fields.next_tagged()? {
            match tag {
                WELCOME_SECRET => secret_given = secret(&fields, content)?,
                LAST => last = Some(LastStored::decode(&fields, content)?),
                EARLIER => earlier = EpochStart::decode_all(&fields, content)?,
                ORIGIN_STATE if forwarding != Forwarding::No => {
                    forwarding = Forwarding::Known(OriginState::decode(&fields, content)?);
                }
                _ => {}
            }
        }
        Ok(Self {
            version,
            policy,
            highest_ack,
            may_read,
            log_id,
            epoch,
            epoch_first_offset,
            producer_id,
            producer_epoch,
            secret: secret_given,
            last,
            window,
            max_append_bytes,
            max_record_bytes,
            received,
            written,
            durable,
            earlier,
            forwarding,
        })
    }
}

impl EpochStart {
    fn to_bytes(self) -> [u8; EPOCH] {
        let mut bytes = [0; EPOCH];
        let mut at = &mut bytes[..];
        at.put_u32_le(self.epoch);
        at.put_u64_le(self.first_offset);
        bytes
    }

    fn decode_all(fields: &Fields<'_>, content: &[u8]) -> Result<Vec<Self>, FrameError> {
        if !content.len().is_multiple_of(EPOCH) {
            return Err(fields.error("a tagged field has the wrong length"));
        }
        let one = |bytes: &[u8]| {
            let mut reader = Reader(bytes);
            Some(Self { epoch: reader.u32()?, first_offset: reader.u64()? })
        };
        let all: Vec<Self> = content.chunks_exact(EPOCH).filter_map(one).collect();
        match all.is_sorted_by(|a, b| a.epoch < b.epoch && a.first_offset < b.first_offset) {
            true => Ok(all),
            false => Err(fields.error("its earlier epochs are out of order")),
        }
    }
}

impl OriginState {
    fn to_bytes(self) -> [u8; 36] {
        let mut bytes = [0; 36];
        let mut at = &mut bytes[..];
        at.put_u32_le(self.epoch);
        at.put_u64_le(self.end);
        at.put_u64_le(self.first);
        at.put_u32_le(self.count);
        at.put_u32_le(self.payload_crc);
        at.put_u64_le(self.offset);
        bytes
    }

    fn decode(fields: &Fields<'_>, content: &[u8]) -> Result<Self, FrameError> {
        let bytes = fields.exactly::<36>(content)?;
        let mut reader = Reader(&bytes);
        let mut state = || {
            Some(Self {
                epoch: reader.u32()?,
                end: reader.u64()?,
                first: reader.u64()?,
                count: reader.u32()?,
                payload_crc: reader.u32()?,
                offset: reader.u64()?,
            })
        };
        state().ok_or_else(|| fields.error("a tagged field has the wrong length")) // 36 bytes are enough for all
    }
}

impl LastStored {
    fn to_bytes(self) -> [u8; 17] {
        let mut bytes = [0; 17];
        let mut at = &mut bytes[..];
        at.put_u64_le(self.sequence);
        at.put_u64_le(self.offset);
        at.put_u8(self.level.code());
        bytes
    }

    fn decode(fields: &Fields<'_>, content: &[u8]) -> Result<Self, FrameError> {
        let bytes = fields.exactly::<17>(content)?;
        let mut reader = Reader(&bytes);
        let (Some(sequence), Some(offset), Some(level)) = (reader.u64(), reader.u64(), reader.u8()) else {
            return Err(fields.error("a tagged field has the wrong length")); // 17 bytes are enough for all three
        };
        let level = AckLevel::from_code(level).ok_or_else(|| fields.error("unknown level"))?;
        Ok(Self { sequence, offset, level })
    }
}

fn put_secret(buf: &mut BytesMut, tag: u8, secret: &[u8]) {
    if !secret.is_empty() {
        put_field(buf, tag, secret.get(..MAX_SECRET_BYTES).unwrap_or(secret));
    }
}

fn secret(fields: &Fields<'_>, content: &[u8]) -> Result<Vec<u8>, FrameError> {
    if content.len() > MAX_SECRET_BYTES {
        return Err(fields.error("a secret is longer than 32 bytes"));
    }
    Ok(content.to_vec())
}
