//! A batch: the unit that reaches the disk in one write under one checksum.
//!
//! ```text
//!  0 magic "CLBT"       4 header length u16   6 kind u8   7 codec u8
//!  8 flags u32         12 epoch u32          16 first offset u64
//! 24 count u32         28 stored length u32  32 plain length u32
//! 36 checksum of the batch before, u32
//! 40 written u64       48 durable u64        (watermarks as observed before this batch was submitted)
//! 56 append time, real i64                   64 append time, boot u64
//! 72 least record time i64                   80 greatest record time i64
//! 88 checksum of the body u32                92 checksum of the header u32 (bytes 0..92 and 96..header length)
//! ```
//! Invariants: a length is used only after the header's own checksum. "The checksum of a batch" is that of its header,
//! which covers the body's. A batch of count 0 is control and never chained. After a batch the next one starts at the
//! following multiple of 64, or at the start of the following block; the bytes between are zeroes.

use super::bytes::{i64_at, put, u16_at, u32_at, u64_at};
use super::checksum::Seed;

/// First bytes of a batch.
pub const MAGIC: [u8; 4] = *b"CLBT";
/// Bytes of the header in this version.
pub const LEN: usize = 96;
const CRC_AT: usize = 92;
/// Greatest length of a header; a longer one is rejected.
const MAX_HEADER: usize = 4096;

/// Records.
pub const KIND_DATA: u8 = 0;
/// Commit marker: carries the watermarks in its header and no records; the next batch overwrites it.
pub const KIND_COMMIT_MARKER: u8 = 2;
/// [Tombstones](super::tombstone): forgotten producers. Control, because it has no records; it stays in its place.
pub const KIND_TOMBSTONES: u8 = 3;

/// The header of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// [`KIND_DATA`], [`KIND_COMMIT_MARKER`], [`KIND_TOMBSTONES`], or one that a later version knows.
    pub kind: u8,
    /// 0: the body is stored as it is.
    pub codec: u8,
    /// None are known yet.
    pub flags: u32,
    /// Equal to the segment's.
    pub epoch: u32,
    /// Offset of the first record.
    pub first_offset: u64,
    /// Records in the batch; 0 for control.
    pub count: u32,
    /// Bytes of the body as stored.
    pub stored_len: u32,
    /// Bytes of the body once decoded.
    pub plain_len: u32,
    /// Checksum of the batch before in this segment, 0 for the first.
    pub previous: u32,
    /// The `written` watermark, as observed before this batch was submitted.
    pub written: u64,
    /// The `durable` watermark, likewise.
    pub durable: u64,
    /// Time at which its first append was taken, real time.
    pub append_real_ns: i64,
    /// Time of its submission, boot time.
    pub append_boot_ns: u64,
    /// Least time of its records.
    pub min_time_ns: i64,
    /// Greatest time of its records.
    pub max_time_ns: i64,
    /// Checksum of the body.
    pub body_checksum: u32,
}

/// A header that was read and is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The fields.
    pub header: BatchHeader,
    /// Bytes of the header as stored; the body follows.
    pub header_len: usize,
    /// "The checksum of the batch".
    pub checksum: u32,
}

impl Decoded {
    /// Bytes of header and body.
    pub fn total_len(&self) -> u64 {
        self.header_len as u64 + u64::from(self.header.stored_len)
    }
}

impl BatchHeader {
    /// One past the last offset.
    pub fn end_offset(&self) -> u64 {
        self.first_offset + u64::from(self.count)
    }

    /// The header's bytes for a batch at `pos`, and the checksum of the batch.
    pub fn encode(&self, seed: &Seed, pos: u64) -> ([u8; LEN], u32) {
        let mut b = [0; LEN];
        put(&mut b, 0, MAGIC);
        put(&mut b, 4, (LEN as u16).to_le_bytes());
        b[6] = self.kind;
        b[7] = self.codec;
        put(&mut b, 8, self.flags.to_le_bytes());
        put(&mut b, 12, self.epoch.to_le_bytes());
        put(&mut b, 16, self.first_offset.to_le_bytes());
        put(&mut b, 24, self.count.to_le_bytes());
        put(&mut b, 28, self.stored_len.to_le_bytes());
        put(&mut b, 32, self.plain_len.to_le_bytes());
        put(&mut b, 36, self.previous.to_le_bytes());
        put(&mut b, 40, self.written.to_le_bytes());
        put(&mut b, 48, self.durable.to_le_bytes());
        put(&mut b, 56, self.append_real_ns.to_le_bytes());
        put(&mut b, 64, self.append_boot_ns.to_le_bytes());
        put(&mut b, 72, self.min_time_ns.to_le_bytes());
        put(&mut b, 80, self.max_time_ns.to_le_bytes());
        put(&mut b, 88, self.body_checksum.to_le_bytes());
        let crc = seed.sum(pos, &[&b[..CRC_AT]]);
        put(&mut b, CRC_AT, crc.to_le_bytes());
        (b, crc)
    }

    /// Reads the header of a batch at `pos`; `None` when no valid one is there.
    pub fn decode(b: &[u8], seed: &Seed, pos: u64) -> Option<Decoded> {
        if b.len() < LEN || b[..4] != MAGIC {
            return None;
        }
        let header_len = u16_at(b, 4) as usize;
        if !(LEN..=MAX_HEADER).contains(&header_len) || b.len() < header_len {
            return None;
        }
        let checksum = u32_at(b, CRC_AT);
        if seed.sum(pos, &[&b[..CRC_AT], &b[LEN..header_len]]) != checksum {
            return None;
        }
        let header = Self {
            kind: b[6],
            codec: b[7],
            flags: u32_at(b, 8),
            epoch: u32_at(b, 12),
            first_offset: u64_at(b, 16),
            count: u32_at(b, 24),
            stored_len: u32_at(b, 28),
            plain_len: u32_at(b, 32),
            previous: u32_at(b, 36),
            written: u64_at(b, 40),
            durable: u64_at(b, 48),
            append_real_ns: i64_at(b, 56),
            append_boot_ns: u64_at(b, 64),
            min_time_ns: i64_at(b, 72),
            max_time_ns: i64_at(b, 80),
            body_checksum: u32_at(b, 88),
        };
        // An overflow can only be written by something that is not clad.
        header.first_offset.checked_add(u64::from(header.count))?;
        Some(Decoded { header, header_len, checksum })
    }

    /// The checksum of a body that follows a header of [`LEN`] bytes at `pos`.
    pub fn body_checksum(seed: &Seed, pos: u64, body: &[u8]) -> u32 {
        seed.sum(pos + LEN as u64, &[body])
    }
}

impl Decoded {
    /// Returns true if the body is the one that the header describes.
    pub fn body_holds(&self, seed: &Seed, pos: u64, body: &[u8]) -> bool {
        body.len() == self.header.stored_len as usize
            && seed.sum(pos + self.header_len as u64, &[body]) == self.header.body_checksum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> BatchHeader {
        BatchHeader {
            kind: KIND_DATA,
            codec: 0,
            flags: 0,
            epoch: 3,
            first_offset: 100,
            count: 2,
            stored_len: 5,
            plain_len: 5,
            previous: 77,
            written: 100,
            durable: 90,
            append_real_ns: -5,
            append_boot_ns: 6,
            min_time_ns: 7,
            max_time_ns: 8,
            body_checksum: BatchHeader::body_checksum(&Seed::new(1, &[2; 16], 3), 4096, b"hello"),
        }
    }

    #[test]
    fn comes_back_only_at_its_place_and_whole() {
        let seed = Seed::new(1, &[2; 16], 3);
        let (bytes, crc) = example().encode(&seed, 4096);
        let decoded = BatchHeader::decode(&bytes, &seed, 4096).unwrap();
        assert_eq!((decoded.header.clone(), decoded.checksum, decoded.header_len), (example(), crc, LEN));
        assert!(decoded.body_holds(&seed, 4096, b"hello"));
        assert!(!decoded.body_holds(&seed, 4096, b"hellp"));
        assert!(BatchHeader::decode(&bytes, &seed, 4160).is_none(), "a copy elsewhere is no batch");
        assert!(BatchHeader::decode(&bytes, &Seed::new(8, &[2; 16], 3), 4096).is_none(), "another segment's");
        for at in 0..LEN {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert!(BatchHeader::decode(&bad, &seed, 4096).is_none(), "byte {at}");
        }
    }
}
