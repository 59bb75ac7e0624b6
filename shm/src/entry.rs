//! An entry in the data area: 24 bytes of header, then the payload, then up to the next multiple of 8 nothing.
//!
//! | at | size | what |
//! |---|---|---|
//! | 0 | 4 | bytes of the payload, at least 1 |
//! | 4 | 4 | records in it, as the client says; the drain counts sequences by it |
//! | 8 | 8 | time: CLOCK_MONOTONIC nanoseconds, taken before the space was reserved |
//! | 16 | 4 | the low 32 bits of the append number |
//! | 20 | 4 | check: CRC-32C of the payload, then the first 20 bytes of this header |
//! | 24 | … | payload |

use crate::checksum;

/// Bytes of an entry's header.
pub(crate) const HEADER: usize = 24;

/// A header, copied out of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) len: u32,
    pub(crate) records: u32,
    pub(crate) time: u64,
    pub(crate) append: u32,
    pub(crate) check: u32,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.records.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.time.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.append.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.check.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self {
            len: word(0),
            records: word(4),
            time: u64::from(word(8)) | u64::from(word(12)) << 32,
            append: word(16),
            check: word(20),
        }
    }

    /// What `check` must be, for a payload with this checksum.
    pub(crate) fn expected(&self, payload: u32) -> u32 {
        let bytes = self.encode();
        checksum::extend(payload, &bytes[..20])
    }
}
