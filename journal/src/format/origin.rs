//! Origins: the streams of other logs whose appends this log takes over, each once.
//!
//! A forwarded append is a chunk with [flag 1](super::chunk::FLAG_FORWARDED). Its producer id names the origin, its sequence
//! is the offset that it has in the log that it came from, its producer epoch that log's epoch. Its peer metadata has the way
//! that it came, as tag 64: `u8 number of log ids, the ids, nearest last, the name of the stream`. Section 9 of a footer has
//! all origins:
//!
//! ```text
//!  0 owner u64      8 producer id    24 source log id
//! 40 the last append: first source offset u64   48 its offset here u64   56 records u32   60 CRC-32C of the payload u32
//! 64 source epoch u32   68 flags u8 (1: lost)   69 length of the stream's name u8   70 zero   72 the name, then zeroes
//! ```
//! Invariants: bytes that are no such field, wherever they come from, name no origin; nothing panics on them. An entry without
//! records says where the origin goes on, and nothing of what was stored last.

use super::bytes::{get, put, u32_at, u64_at};
use super::peer_meta::find_field;
use super::tombstone::Tombstone;

/// Tag of the way in the peer metadata.
const PATH_TAG: u8 = 64;
/// Bytes of a log id.
const LOG_ID_BYTES: usize = 16;
/// Most bytes of a stream's name.
pub const STREAM_BYTES_MAX: usize = 24;
/// Bytes of an entry of section 9.
pub const ENTRY_BYTES: usize = 96;
/// Flag of an entry: appends of it were lost, and from which source offset on is not known.
const LOST: u8 = 1;

/// The name of a stream: 1 to 24 bytes, as its forwarder says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamName {
    len: u8,
    bytes: [u8; STREAM_BYTES_MAX],
}

/// A stream of another log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// Id of the log that forwards.
    pub source: [u8; LOG_ID_BYTES],
    /// The stream's name.
    pub stream: StreamName,
}

/// An append of an origin, there and here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardedAppend {
    /// Source epoch.
    pub epoch: u32,
    /// Source offset of its first record.
    pub first: u64,
    /// Records; 0 where nothing is known of the last append.
    pub count: u32,
    /// Its client's CRC-32C of the payload.
    pub payload_checksum: u32,
    /// Offset of its first record in this log.
    pub offset: u64,
}

/// An origin in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginEntry {
    /// Owner that forwards it.
    pub owner: u64,
    /// The producer id of its chunks.
    pub producer: [u8; 16],
    /// The origin.
    pub origin: Origin,
    /// The last append.
    pub last: ForwardedAppend,
    /// Appends of it were lost, and from which source offset on is not known: nothing more is taken.
    pub is_lost: bool,
}

impl StreamName {
    /// Takes a name of 1 to 24 of `[A-Za-z0-9._-]` that does not begin with a dot.
    pub fn new(name: &[u8]) -> Option<Self> {
        let is_fine = |b: &u8| b.is_ascii_alphanumeric() || b"._-".contains(b);
        if name.is_empty() || name.len() > STREAM_BYTES_MAX || name[0] == b'.' || !name.iter().all(is_fine) {
            return None;
        }
        let mut bytes = [0; STREAM_BYTES_MAX];
        bytes[..name.len()].copy_from_slice(name);
        Some(Self { len: name.len() as u8, bytes })
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

impl Origin {
    /// Appends the way to peer metadata, as its field. `before`: the logs before the source, the nearest last. The tags
    /// before it must be lower.
    pub fn encode(&self, before: &[[u8; LOG_ID_BYTES]], out: &mut Vec<u8>) {
        let ids = before.len() + 1;
        let name = self.stream.as_bytes();
        // One byte of length is enough for up to 6 logs.
        out.extend_from_slice(&[PATH_TAG, (1 + ids * LOG_ID_BYTES + name.len()) as u8, ids as u8]);
        before.iter().chain([&self.source]).for_each(|id| out.extend_from_slice(id));
        out.extend_from_slice(name);
    }

    /// Finds the origin in the peer metadata of a forwarded append.
    pub fn find(peer_meta: &[u8]) -> Option<Self> {
        let (ids, rest) = find_field(peer_meta, PATH_TAG)?.split_first()?;
        let (ids, name) = rest.split_at_checked(usize::from(*ids) * LOG_ID_BYTES)?;
        let source = get(ids, ids.len().checked_sub(LOG_ID_BYTES)?);
        Some(Self { source, stream: StreamName::new(name)? })
    }
}

impl ForwardedAppend {
    /// The source offset behind it, which is expected next.
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.count.into())
    }

    /// The offset behind it in this log.
    pub fn end_offset(&self) -> u64 {
        self.offset.saturating_add(self.count.into())
    }
}

impl OriginEntry {
    /// The id under which a [`Tombstone`] names it: two owners may have an origin of one producer id.
    pub fn tombstone_id(&self) -> [u8; 16] {
        tombstone_id(self.owner, &self.producer)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut b = [0; ENTRY_BYTES];
        let (name, last) = (&self.origin.stream, &self.last);
        put(&mut b, 0, self.owner.to_le_bytes());
        put(&mut b, 8, self.producer);
        put(&mut b, 24, self.origin.source);
        put(&mut b, 40, last.first.to_le_bytes());
        put(&mut b, 48, last.offset.to_le_bytes());
        put(&mut b, 56, last.count.to_le_bytes());
        put(&mut b, 60, last.payload_checksum.to_le_bytes());
        put(&mut b, 64, last.epoch.to_le_bytes());
        put(&mut b, 68, [if self.is_lost { LOST } else { 0 }, name.len]);
        put(&mut b, 72, name.bytes);
        out.extend_from_slice(&b);
    }

    /// Reads an entry of 96 bytes.
    pub(crate) fn decode(b: &[u8]) -> Option<Self> {
        let name = b.get(72..)?.get(..usize::from(b[69]))?;
        let last = ForwardedAppend {
            epoch: u32_at(b, 64),
            first: u64_at(b, 40),
            count: u32_at(b, 56),
            payload_checksum: u32_at(b, 60),
            offset: u64_at(b, 48),
        };
        let origin = Origin { source: get(b, 24), stream: StreamName::new(name)? };
        Some(Self { owner: u64_at(b, 0), producer: get(b, 8), origin, last, is_lost: b[68] & LOST != 0 })
    }
}

/// The id under which a [`Tombstone`] names an origin: its producer id, and the owner XORed into the first 8 bytes.
pub fn tombstone_id(owner: u64, producer: &[u8; 16]) -> [u8; 16] {
    let mut id = *producer;
    id.iter_mut().zip(owner.to_le_bytes()).for_each(|(id, owner)| *id ^= owner);
    id
}

/// The tombstone of an origin: everything of it below an offset is forgotten.
pub(crate) fn tombstone(owner: u64, producer: &[u8; 16], below: u64) -> Tombstone {
    Tombstone { producer: tombstone_id(owner, producer), below }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn example(at: u8) -> OriginEntry {
        OriginEntry {
            owner: 1 << 63 | u64::from(at),
            producer: [at; 16],
            origin: Origin { source: [at + 1; 16], stream: StreamName::new(b"relay-1.main_x").expect("a name") },
            last: ForwardedAppend { epoch: 3, first: 70, count: 5, payload_checksum: 9, offset: 20 },
            is_lost: at.is_multiple_of(2),
        }
    }

    #[test]
    fn an_entry_comes_back() {
        for at in [1, 2] {
            let mut bytes = Vec::new();
            example(at).encode(&mut bytes);
            assert_eq!(bytes.len(), ENTRY_BYTES);
            assert_eq!(OriginEntry::decode(&bytes), Some(example(at)));
            for bad in [0, 25, 255] {
                bytes[69] = bad;
                assert_eq!(OriginEntry::decode(&bytes), None, "a name of {bad} bytes");
            }
        }
        assert_eq!((example(1).last.end(), example(1).last.end_offset()), (75, 25));
    }

    #[test]
    fn a_way_is_found_again_and_its_last_log_is_the_source() {
        let origin = example(1).origin;
        for before in [&[][..], &[[7; 16], [8; 16]], &[[7; 16]; 5]] {
            let mut meta = vec![1, 12, 4, 0, 33, 1, b'x'];
            origin.encode(before, &mut meta);
            meta.extend_from_slice(&[65, 1, 0]);
            assert_eq!(Origin::find(&meta), Some(origin));
            for cut in 7..meta.len() - 3 {
                assert_eq!(Origin::find(&meta[..cut]), None, "cut at {cut}");
            }
        }
        for none in [&[][..], &[64, 0], &[64, 1, 0], &[64, 2, 0, b'a'], &[64, 3, 1, b'a', b'b']] {
            assert_eq!(Origin::find(none), None, "{none:?}");
        }
    }

    #[test]
    fn names_of_streams_are_of_few_letters() {
        for fine in [&b"a"[..], b"A.b_c-9", &[b'x'; 24]] {
            assert_eq!(StreamName::new(fine).as_ref().map(StreamName::as_bytes), Some(fine));
        }
        for bad in [&b""[..], b".a", b"a/b", b"a b", "é".as_bytes(), &[b'x'; 25]] {
            assert_eq!(StreamName::new(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn two_owners_of_one_producer_id_have_two_tombstones() {
        let (one, other) = (example(1), OriginEntry { owner: 7, ..example(1) });
        assert_ne!(one.tombstone_id(), other.tombstone_id());
        assert_eq!(OriginEntry { owner: 0, ..one }.tombstone_id(), one.producer);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), ENTRY_BYTES)) {
            let _ = OriginEntry::decode(&bytes);
            let _ = Origin::find(&bytes);
            let _ = Origin::find(&[&[64, 90][..], &bytes].concat());
        }
    }
}
