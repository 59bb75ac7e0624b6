//! Origins: where a forwarded append comes from, as its peer metadata says it.
//!
//! Tag 64, the way: `u8 number of log ids (1 to 6), the ids, nearest last`, then the name of the stream. Tag 65, the first
//! origin: `[16] log id, u32 epoch, u64 offset of the first record, u64 append time, [16] producer id, u32 producer epoch,
//! u64 sequence`, then the peer metadata of the first daemon, all below tag 64.

use crate::{
    ids::{LogId, ProducerId},
    limits::{MAX_HOPS, MAX_OWN_PEER_META_BYTES, MAX_STREAM_BYTES},
    wire::Reader,
};
use bytes::BufMut;
use std::fmt;

/// Tag of the way in peer metadata.
pub(super) const PATH: u8 = 64;
/// Tag of the first origin.
pub(super) const ORIGIN: u8 = 65;
const LOG_ID_BYTES: usize = 16;
/// The first tag of peer metadata whose field is bytes.
pub(super) const BYTES: u8 = 32;

/// The name of a stream of a log: 1 to 24 of `[A-Za-z0-9._-]`, without a dot in front.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamName(String);

impl StreamName {
    /// Takes a name; nothing where it is none.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let length = !name.is_empty() && name.len() <= MAX_STREAM_BYTES;
        (length && !name.starts_with('.') && name.bytes().all(is_fine)).then(|| Self(name.to_owned()))
    }

    fn from_bytes(name: &[u8]) -> Option<Self> {
        std::str::from_utf8(name).ok().and_then(Self::new)
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A stream of a log that is forwarded.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    /// The log.
    pub log_id: LogId,
    /// The stream.
    pub stream: StreamName,
}

impl Origin {
    /// `[16] log id`, and the name to the end.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        [self.log_id.as_bytes(), self.stream.0.as_bytes()].concat()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let log_id = LogId::from_bytes(reader.array()?);
        Some(Self { log_id, stream: StreamName::from_bytes(reader.0)? })
    }
}

/// The logs that an append came through, the nearest last, and the stream by which it came from that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// The logs, one at least.
    pub logs: Vec<LogId>,
    /// The stream.
    pub stream: StreamName,
}

impl Path {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let logs = self.logs.get(..MAX_HOPS).unwrap_or(&self.logs);
        let mut bytes = vec![logs.len() as u8];
        logs.iter().for_each(|id| bytes.extend_from_slice(id.as_bytes()));
        bytes.extend_from_slice(self.stream.0.as_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let count = usize::from(reader.u8()?);
        if !(1..=MAX_HOPS).contains(&count) {
            return None;
        }
        let ids = reader.take(count * LOG_ID_BYTES)?;
        let logs = ids.chunks_exact(LOG_ID_BYTES).filter_map(|id| id.try_into().ok().map(LogId::from_bytes)).collect();
        Some(Self { logs, stream: StreamName::from_bytes(reader.0)? })
    }
}

/// An append as the first log has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstOrigin {
    /// That log.
    pub log_id: LogId,
    /// The epoch in which it got its offsets there.
    pub epoch: u32,
    /// Offset of its first record there.
    pub first_offset: u64,
    /// When that daemon took it, Unix nanoseconds.
    pub append_time: u64,
    /// Its producer.
    pub producer_id: ProducerId,
    /// The producer's epoch.
    pub producer_epoch: u32,
    /// Sequence of its first record.
    pub first_seq: u64,
    /// Peer metadata that its daemon made, encoded.
    pub peer_meta: Vec<u8>,
}

impl FirstOrigin {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + self.peer_meta.len());
        bytes.put_slice(self.log_id.as_bytes());
        bytes.put_u32_le(self.epoch);
        bytes.put_u64_le(self.first_offset);
        bytes.put_u64_le(self.append_time);
        bytes.put_slice(self.producer_id.as_bytes());
        bytes.put_u32_le(self.producer_epoch);
        bytes.put_u64_le(self.first_seq);
        bytes.put_slice(self.peer_meta.get(..MAX_OWN_PEER_META_BYTES).unwrap_or(&self.peer_meta));
        bytes
    }

    /// Nothing also where the peer metadata in it is none, or has an origin itself.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let origin = Self {
            log_id: LogId::from_bytes(reader.array()?),
            epoch: reader.u32()?,
            first_offset: reader.u64()?,
            append_time: reader.u64()?,
            producer_id: ProducerId::from_bytes(reader.array()?),
            producer_epoch: reader.u32()?,
            first_seq: reader.u64()?,
            peer_meta: reader.0.to_vec(),
        };
        let length = origin.peer_meta.len() <= MAX_OWN_PEER_META_BYTES;
        let is_own = own_part(&origin.peer_meta) == Some(&origin.peer_meta);
        (length && is_own).then_some(origin)
    }
}

/// The part of encoded peer metadata that a daemon makes of its own peer: all before tag 64. Nothing where it is malformed.
pub(super) fn own_part(peer_meta: &[u8]) -> Option<&[u8]> {
    let (mut reader, mut last) = (Reader(peer_meta), 0);
    loop {
        let own = peer_meta.len() - reader.0.len();
        let tag = reader.u8();
        if tag.is_some_and(|tag| tag <= last) {
            return None;
        }
        last = tag.unwrap_or(last);
        match tag {
            Some(tag) if tag >= PATH => return peer_meta.get(..own),
            None => return Some(peer_meta),
            Some(tag) if tag < BYTES => drop(reader.varint("the peer metadata").ok()?),
            Some(_) => drop(reader.delimited("the peer metadata").ok()?),
        }
    }
}
