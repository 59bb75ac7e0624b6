//! The header of a segment: the first block of its file.
//!
//! Written and synced before the segment is used, never changed while it holds a batch. Batches start at
//! `block_size`. The salt makes every checksum in the file its own.

use super::bytes::{get, i64_at, put, u16_at, u32_at, u64_at};
use super::checksum::Seed;

/// First bytes of every segment.
pub const MAGIC: [u8; 8] = *b"CLADSEG\0";
/// The format this version writes, and the newest that it reads. Version 2 may hold peer metadata with bytes, which a
/// reader of version 1 takes for numbers.
pub const VERSION: u16 = 2;
/// Bytes of the header.
pub const LEN: usize = 128;
const CRC_AT: usize = 124;

/// Former content of a segment's file, under another number: its batches and its footer are stale bytes behind the end
/// of the data, until the segment is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Former {
    /// The number that it had.
    pub number: u64,
    /// The salt that it had.
    pub salt: u64,
}

/// Features of a segment; this version knows none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Bits that a reader and a writer may ignore.
    pub compatible: u64,
    /// Bits that a reader may ignore and a writer must know.
    pub read_only_compatible: u64,
    /// Bits that every program must know.
    pub incompatible: u64,
}

/// The header of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Version of its format, 1 or [`VERSION`].
    pub version: u16,
    /// Features that it was made with.
    pub features: Features,
    /// The log that it belongs to.
    pub log_id: [u8; 16],
    /// Its number, as in its name.
    pub number: u64,
    /// The epoch of every batch in it.
    pub epoch: u32,
    /// Start of the batches, and the unit of direct writes.
    pub block_size: u32,
    /// 64 random bits that never leave the file.
    pub salt: u64,
    /// The boot in which it was made ready.
    pub boot_id: [u8; 16],
    /// Time when it was made ready, nanoseconds since the Unix epoch.
    pub created_ns: i64,
    /// Bytes prepared for it.
    pub capacity: u64,
    /// The segment whose file this was.
    pub former: Option<Former>,
}

/// The reason why the first block of a file is no header of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Nothing there, or another program's file.
    #[error("no segment header")]
    NotASegment,
    /// Damaged.
    #[error("the segment header fails its checksum")]
    Checksum,
    /// Another segment lies under this name.
    #[error("it is a copy of segment {number}")]
    Misplaced {
        /// The number in the header.
        number: u64,
    },
    /// Made by a newer clad.
    #[error("segment format version {found}, this clad reads up to {VERSION}: use the newer clad that wrote it")]
    Newer {
        /// The version in the file.
        found: u16,
    },
    /// Made with a feature that this clad does not know.
    #[error(
        "segment uses features {bits:#x} that this clad (format {VERSION}) does not know: use the newer clad that wrote it"
    )]
    Feature {
        /// The unknown bits.
        bits: u64,
    },
}

impl Default for SegmentHeader {
    fn default() -> Self {
        Self {
            version: VERSION,
            features: Features::default(),
            log_id: [0; 16],
            number: 0,
            epoch: 0,
            block_size: 0,
            salt: 0,
            boot_id: [0; 16],
            created_ns: 0,
            capacity: 0,
            former: None,
        }
    }
}

impl SegmentHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; LEN] {
        let mut b = [0; LEN];
        put(&mut b, 0, MAGIC);
        put(&mut b, 8, self.version.to_le_bytes());
        put(&mut b, 10, (LEN as u16).to_le_bytes());
        put(&mut b, 12, self.block_size.to_le_bytes());
        put(&mut b, 16, self.features.compatible.to_le_bytes());
        put(&mut b, 24, self.features.read_only_compatible.to_le_bytes());
        put(&mut b, 32, self.features.incompatible.to_le_bytes());
        put(&mut b, 40, self.log_id);
        put(&mut b, 56, self.number.to_le_bytes());
        put(&mut b, 64, self.epoch.to_le_bytes());
        put(&mut b, 72, self.salt.to_le_bytes());
        put(&mut b, 80, self.boot_id);
        put(&mut b, 96, self.created_ns.to_le_bytes());
        put(&mut b, 104, self.capacity.to_le_bytes());
        if let Some(former) = self.former {
            put(&mut b, 112, self.numbers_since(former).to_le_bytes());
            put(&mut b, 116, former.salt.to_le_bytes());
        }
        let crc = self.seed().sum(0, &[&b[..CRC_AT]]);
        put(&mut b, CRC_AT, crc.to_le_bytes());
        b
    }

    /// Reads a header from the first bytes of a file.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn decode(b: &[u8]) -> Result<Self, HeaderError> {
        if b.len() < LEN || b[..8] != MAGIC {
            return Err(HeaderError::NotASegment);
        }
        let header = Self {
            version: u16_at(b, 8),
            features: Features {
                compatible: u64_at(b, 16),
                read_only_compatible: u64_at(b, 24),
                incompatible: u64_at(b, 32),
            },
            log_id: get(b, 40),
            number: u64_at(b, 56),
            epoch: u32_at(b, 64),
            block_size: u32_at(b, 12),
            salt: u64_at(b, 72),
            boot_id: get(b, 80),
            created_ns: i64_at(b, 96),
            capacity: u64_at(b, 104),
            former: former(u64_at(b, 56), u32_at(b, 112), u64_at(b, 116)),
        };
        // These fields and the checksum have the same places in every version: damage is distinct from a newer clad.
        if header.seed().sum(0, &[&b[..CRC_AT]]) != u32_at(b, CRC_AT) {
            return Err(HeaderError::Checksum);
        }
        if header.version > VERSION {
            return Err(HeaderError::Newer { found: header.version });
        }
        let block = header.block_size;
        if !block.is_power_of_two() || !(512..=1 << 20).contains(&block) || u16_at(b, 10) as usize != LEN {
            return Err(HeaderError::Checksum);
        }
        if header.features.incompatible != 0 {
            return Err(HeaderError::Feature { bits: header.features.incompatible });
        }
        Ok(header)
    }

    /// Checks that this version may write to the segment (recover it), not only read it.
    ///
    /// # Errors
    /// [`HeaderError::Feature`] when a bit is set that a writer must know.
    pub fn check_writable(&self) -> Result<(), HeaderError> {
        match self.features.read_only_compatible {
            0 => Ok(()),
            bits => Err(HeaderError::Feature { bits }),
        }
    }

    /// The start of every checksum in this segment.
    pub fn seed(&self) -> Seed {
        Seed::new(self.salt, &self.log_id, self.number)
    }

    /// The start of every checksum in the former content of the file.
    pub fn former_seed(&self) -> Option<Seed> {
        self.former.map(|f| Seed::new(f.salt, &self.log_id, f.number))
    }

    /// Distance to the former number; 0, which names none, where it does not fit 32 bits or the former number is not
    /// earlier.
    fn numbers_since(&self, former: Former) -> u32 {
        self.number.checked_sub(former.number).and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
    }
}

fn former(number: u64, since: u32, salt: u64) -> Option<Former> {
    let number = number.checked_sub(u64::from(since)).filter(|_| since > 0)?;
    Some(Former { number, salt })
}

#[cfg(test)]
pub(crate) fn example() -> SegmentHeader {
    SegmentHeader {
        log_id: *b"0123456789abcdef",
        number: 7,
        epoch: 3,
        block_size: 4096,
        salt: 0xfeed_beef,
        boot_id: [9; 16],
        created_ns: 1_700_000_000_000_000_000,
        capacity: 65_536,
        ..SegmentHeader::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_and_every_flipped_byte_is_refused() {
        let header = example();
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes).unwrap(), header);
        for at in 0..LEN {
            let mut bad = bytes;
            bad[at] ^= 0x40;
            assert!(SegmentHeader::decode(&bad).is_err(), "byte {at}");
        }
        for cut in 0..LEN {
            assert!(SegmentHeader::decode(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn what_the_file_was_before_comes_back_too() {
        let former = Some(Former { number: 4, salt: 0xABCD_EF01_2345_6789 });
        let header = SegmentHeader { former, ..example() };
        let bytes = header.encode();
        assert_eq!((&bytes[112..116], &bytes[116..118]), (&[3, 0, 0, 0][..], &[0x89, 0x67][..]));
        assert_eq!(SegmentHeader::decode(&bytes).unwrap(), header);
        assert_eq!(
            header.former_seed(),
            Some(SegmentHeader { number: 4, salt: 0xABCD_EF01_2345_6789, ..example() }.seed())
        );
        for number in [7, 8, u64::MAX] {
            let none = SegmentHeader { former: Some(Former { number, salt: 1 }), ..example() };
            assert_eq!(SegmentHeader::decode(&none.encode()).unwrap().former, None, "{number} is no earlier one");
        }
    }

    #[test]
    fn a_newer_format_names_both_versions() {
        let mut bytes = example().encode();
        bytes[8] = 9;
        let crc = example().seed().sum(0, &[&bytes[..CRC_AT]]);
        put(&mut bytes, CRC_AT, crc.to_le_bytes());
        let text = SegmentHeader::decode(&bytes).unwrap_err().to_string();
        assert!(text.contains("version 9") && text.contains("up to 2"), "{text}");
        let newer = SegmentHeader { features: Features { incompatible: 4, ..Features::default() }, ..example() };
        assert_eq!(SegmentHeader::decode(&newer.encode()), Err(HeaderError::Feature { bits: 4 }));
        let read_only =
            SegmentHeader { features: Features { read_only_compatible: 2, ..Features::default() }, ..example() };
        let read = SegmentHeader::decode(&read_only.encode()).unwrap();
        assert_eq!(read.check_writable(), Err(HeaderError::Feature { bits: 2 }));
    }
}
