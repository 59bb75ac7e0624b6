//! Tombstones: the log's record that a producer was forgotten.
//!
//! ```text
//! the body of a batch of kind [`KIND_TOMBSTONES`](super::batch::KIND_TOMBSTONES), count 0:
//!  0 producer id    16 offset u64: everything of that producer below it is forgotten    (24 bytes each)
//! ```
//! Invariants: a tombstone means the same wherever it lies and however often it is read. A later life of the producer
//! begins at or above its offset, and is not touched. A body is read only after its checksum is valid; bytes behind the
//! last whole entry are ignored.

use super::bytes::{get, u64_at};

/// Bytes of one tombstone.
pub const LEN: usize = 24;

/// A producer that was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// Id of the producer.
    pub producer: [u8; 16],
    /// Below this offset nothing of it is remembered.
    pub below: u64,
}

impl Tombstone {
    /// The body of a batch of tombstones.
    pub fn encode(all: &[Self]) -> Vec<u8> {
        let bytes = |t: &Self| t.producer.into_iter().chain(t.below.to_le_bytes());
        all.iter().flat_map(bytes).collect()
    }

    /// The tombstones in a body.
    pub fn decode(body: &[u8]) -> impl Iterator<Item = Self> {
        body.chunks_exact(LEN).map(|b| Self { producer: get(b, 0), below: u64_at(b, 16) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_comes_back_and_a_piece_of_one_is_no_tombstone() {
        let all = [Tombstone { producer: [1; 16], below: 7 }, Tombstone { producer: [2; 16], below: u64::MAX }];
        let body = Tombstone::encode(&all);
        assert_eq!(body.len(), 2 * LEN);
        assert_eq!(Tombstone::decode(&body).collect::<Vec<_>>(), all);
        assert_eq!(Tombstone::decode(&body[..2 * LEN - 1]).collect::<Vec<_>>(), all[..1]);
    }
}
