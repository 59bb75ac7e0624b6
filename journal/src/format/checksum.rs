//! CRC-32C, plain for the client's checksum, seeded for everything of ours.
//!
//! Invariants: no body of a record can imitate a batch, and no old byte of a recycled file can pass for one. So every
//! checksum of ours starts from the segment's salt (which never leaves the file), the log id, the segment number and
//! the position in the file: the same bytes elsewhere have another checksum.

use crc_fast::{CrcAlgorithm, Digest};

const CRC: CrcAlgorithm = CrcAlgorithm::Crc32Iscsi;

/// CRC-32C of the bytes alone: the checksum that clients send and that `clad.meta` carries.
pub fn plain(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CRC, bytes) as u32
}

/// The start of every checksum in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    state: u64,
}

impl Seed {
    /// The seed of a segment.
    pub fn new(salt: u64, log_id: &[u8; 16], segment: u64) -> Self {
        let mut digest = Digest::new(CRC);
        digest.update(&salt.to_le_bytes());
        digest.update(log_id);
        digest.update(&segment.to_le_bytes());
        Self { state: digest.get_state() }
    }

    /// The checksum of some bytes that lie at `pos` in the file.
    pub fn sum(&self, pos: u64, parts: &[&[u8]]) -> u32 {
        let mut digest = Digest::new_with_init_state(CRC, self.state);
        digest.update(&pos.to_le_bytes());
        for part in parts {
            digest.update(part);
        }
        digest.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_has_the_check_value_of_crc_32c() {
        assert_eq!(plain(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn seeded_is_crc_32c_of_salt_log_segment_position_and_bytes() {
        let seed = Seed::new(1, &[2; 16], 3);
        let mut all = Vec::new();
        all.extend_from_slice(&1u64.to_le_bytes());
        all.extend_from_slice(&[2; 16]);
        all.extend_from_slice(&3u64.to_le_bytes());
        all.extend_from_slice(&4u64.to_le_bytes());
        all.extend_from_slice(b"abcdef");
        assert_eq!(seed.sum(4, &[b"abc", b"def"]), plain(&all));
        assert_ne!(seed.sum(4, &[b"abc"]), seed.sum(68, &[b"abc"]), "another place, another checksum");
        assert_ne!(seed.sum(4, &[b"abc"]), Seed::new(9, &[2; 16], 3).sum(4, &[b"abc"]), "another salt");
    }
}
