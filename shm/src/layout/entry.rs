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

/// Bytes at the end of a payload that may be given separately, with the checksum of what lies before them: a known sum
/// extends over the last bytes at the least cost.
pub const TRAILER: usize = 8;

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
    /// As three words, as they lie in the ring.
    #[inline(always)]
    pub(crate) fn words(&self) -> [u64; 3] {
        [
            u64::from(self.len) | u64::from(self.records) << 32,
            self.time,
            u64::from(self.append) | u64::from(self.check) << 32,
        ]
    }

    #[inline(always)]
    pub(crate) fn from_words(words: [u64; 3]) -> Self {
        Self {
            len: words[0] as u32,
            records: (words[0] >> 32) as u32,
            time: words[1],
            append: words[2] as u32,
            check: (words[2] >> 32) as u32,
        }
    }

    /// The required value of `check`, for a payload with this checksum.
    #[inline(always)]
    pub(crate) fn expected(&self, payload: u32) -> u32 {
        let [lengths, time, _] = self.words();
        checksum::extend_words(payload, [lengths, time], self.append)
    }
}
