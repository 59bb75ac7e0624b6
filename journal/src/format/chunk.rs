//! A chunk: one append, whole in one batch, referring to nothing outside it.
//!
//! ```text
//!  0 length u32 (all of it)   4 header length u16   6 flags u16
//!  8 count u32               12 the client's own CRC-32C of the payload u32
//! 16 producer id             32 owner u64 (who may use that id)
//! 40 first sequence u64      48 producer epoch u32
//! 52 peer metadata (tagged fields, opaque here), up to the header length
//! .. the payload, opaque here, as the client sent it
//! ```
//! Invariants: a chunk is read only inside a body with a valid checksum, and still every length is checked.

use super::bytes::{get, put, u16_at, u32_at, u64_at};

/// Bytes of the fixed part.
pub const FIXED: usize = 52;
/// Most bytes of peer metadata.
pub const PEER_META_BYTES_MAX: usize = 1024;

/// Flag of a chunk: the append was forwarded by another log ([`crate::format::origin`]).
pub const FLAG_FORWARDED: u16 = 1;

/// The fields that the journal itself uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// [`FLAG_FORWARDED`], or none.
    pub flags: u16,
    /// Records in the payload.
    pub count: u32,
    /// The client's own checksum of the payload.
    pub payload_checksum: u32,
    /// Id of the producer.
    pub producer: [u8; 16],
    /// Owner that may use that id.
    pub owner: u64,
    /// Sequence of the first record.
    pub first_sequence: u64,
    /// Epoch of the producer.
    pub producer_epoch: u32,
}

/// A chunk in the memory that it was read into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// The fixed part.
    pub header: ChunkHeader,
    /// Peer metadata from the daemon.
    pub peer_meta: &'a [u8],
    /// The records.
    pub payload: &'a [u8],
}

/// A body that is no row of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a chunk's lengths do not fit its batch")]
pub struct ChunkError;

impl ChunkHeader {
    /// True if another log has forwarded the append: then the producer is the origin, and the sequence its offset there.
    pub fn is_forwarded(&self) -> bool {
        self.flags & FLAG_FORWARDED != 0
    }

    /// Bytes that a chunk takes.
    pub fn encoded_len(peer_meta: usize, payload: usize) -> usize {
        FIXED + peer_meta + payload
    }

    /// Appends a chunk to a body. `peer_meta` is at most [`PEER_META_BYTES_MAX`] bytes.
    pub fn encode_into(&self, body: &mut Vec<u8>, peer_meta: &[u8], payload: &[u8]) {
        debug_assert!(peer_meta.len() <= PEER_META_BYTES_MAX);
        let mut b = [0; FIXED];
        put(&mut b, 0, (Self::encoded_len(peer_meta.len(), payload.len()) as u32).to_le_bytes());
        put(&mut b, 4, ((FIXED + peer_meta.len()) as u16).to_le_bytes());
        put(&mut b, 6, self.flags.to_le_bytes());
        put(&mut b, 8, self.count.to_le_bytes());
        put(&mut b, 12, self.payload_checksum.to_le_bytes());
        put(&mut b, 16, self.producer);
        put(&mut b, 32, self.owner.to_le_bytes());
        put(&mut b, 40, self.first_sequence.to_le_bytes());
        put(&mut b, 48, self.producer_epoch.to_le_bytes());
        body.reserve(Self::encoded_len(peer_meta.len(), payload.len()));
        body.extend_from_slice(&b);
        body.extend_from_slice(peer_meta);
        body.extend_from_slice(payload);
    }
}

/// The chunks of a body, in order; stops after the first that does not fit.
pub fn chunks(body: &[u8]) -> impl Iterator<Item = Result<Chunk<'_>, ChunkError>> {
    let mut rest = body;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let parsed = parse(rest);
        rest = match parsed {
            Ok((_, len)) => &rest[len..],
            Err(_) => &[],
        };
        Some(parsed.map(|(chunk, _)| chunk))
    })
}

fn parse(b: &[u8]) -> Result<(Chunk<'_>, usize), ChunkError> {
    if b.len() < FIXED {
        return Err(ChunkError);
    }
    let (len, head) = (u32_at(b, 0) as usize, u16_at(b, 4) as usize);
    if head < FIXED || len < head || len > b.len() {
        return Err(ChunkError);
    }
    let header = ChunkHeader {
        flags: u16_at(b, 6),
        count: u32_at(b, 8),
        payload_checksum: u32_at(b, 12),
        producer: get(b, 16),
        owner: u64_at(b, 32),
        first_sequence: u64_at(b, 40),
        producer_epoch: u32_at(b, 48),
    };
    Ok((Chunk { header, peer_meta: &b[FIXED..head], payload: &b[head..len] }, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: ChunkHeader = ChunkHeader {
        flags: 0,
        count: 2,
        payload_checksum: 3,
        producer: [4; 16],
        owner: 5,
        first_sequence: 6,
        producer_epoch: 7,
    };

    #[test]
    fn a_row_of_chunks_comes_back() {
        let mut body = Vec::new();
        HEADER.encode_into(&mut body, b"who", b"payload");
        HEADER.encode_into(&mut body, b"", b"");
        let all: Vec<_> = chunks(&body).map(Result::unwrap).collect();
        assert_eq!(all[0], Chunk { header: HEADER, peer_meta: b"who", payload: b"payload" });
        assert_eq!(all[1], Chunk { header: HEADER, peer_meta: b"", payload: b"" });
        assert_eq!(all.len(), 2);
        for cut in 1..body.len() - FIXED {
            assert!(chunks(&body[..cut]).any(|c| c.is_err()), "cut at {cut}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = chunks(&bytes).count();
        }
    }
}
