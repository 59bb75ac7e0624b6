//! Where everything lies, byte by byte. All numbers are little-endian; every field is an aligned `u64`.
//!
//! **The ring** is one file, mapped read-write by both ends:
//!
//! | at | what | who writes it |
//! |---|---|---|
//! | 0 | magic `CLADRING` | daemon, once |
//! | 8 | version of this layout, 2 | daemon, once |
//! | 16 | bytes of the data area, a power of two | daemon, once |
//! | 24 | slots, a power of two | daemon, once |
//! | 64 | **head**: what is reserved ([`Cursor`]; the top bit says closed) | client; either end sets the top bit |
//! | 128 | threads that wait for acks | client |
//! | 136 | threads that wait for space | client |
//! | 192 | **tail**: below it, all was given back ([`Cursor`]) | daemon |
//! | 200 | the full append number of the tail (a hint for its high bits) | daemon |
//! | 208 | most abandoned regions: 0, none | daemon |
//! | 216 | sleep: odd while the daemon sleeps, raised by 1 at each change | daemon; a client that woke it raises it |
//! | 224 | bell for space (futex: the low 4 bytes) | daemon; a client that closes the ring |
//! | 232 | bell for acks (futex: the low 4 bytes) | daemon; a client that attaches a completion page |
//! | 240 | one past the last append that was refused | daemon |
//! | 248 | epoch of the log, as on the completion page: here it lies in the line that each push reads | daemon |
//! | 256, 288 | two checkpoints: tail word, append number, sequence, one past its last offset in the log | daemon |
//! | 320 | 16 abandoned regions: range, append number + 1 | daemon |
//! | 576 | 16 words: the append number + 1 whose writer has left the region | client |
//! | 704, 712, 720 | id and epoch of the log that has what was given back; epoch 0: that is not known | daemon |
//! | 728 | the log has lost of that, and no flush has reported it: 1 | daemon |
//! | 4096 | slots, 8 bytes each | client commits, daemon abandons |
//! | … | data area | client |
//!
//! **The completion page** is a second file that only the daemon can write (`F_SEAL_FUTURE_WRITE`); see
//! `completion_page.rs`.

pub(crate) mod completion_page;
pub(crate) mod entry;
pub(crate) mod space;

use crate::error::ShapeError;

/// One unit of the data area, bytes: entries start and end at multiples of it.
pub(crate) const UNIT: u32 = 8;
pub(crate) const PAGE: usize = 4096;
pub(crate) const RING_MAGIC: u64 = u64::from_le_bytes(*b"CLADRING");
pub(crate) const COMPLETION_PAGE_MAGIC: u64 = u64::from_le_bytes(*b"CLADBORD");
/// Version of a ring's layout.
pub const VERSION: u64 = 2;

/// Offsets in the ring's header.
pub(crate) mod at {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 8;
    pub(crate) const DATA_BYTES: usize = 16;
    pub(crate) const SLOTS: usize = 24;
    pub(crate) const HEAD: usize = 64;
    pub(crate) const ACK_WAITERS: usize = 128;
    pub(crate) const SPACE_WAITERS: usize = 136;
    pub(crate) const TAIL: usize = 192;
    pub(crate) const RELEASED: usize = 200;
    pub(crate) const ABANDONED_REGION_COUNT: usize = 208;
    pub(crate) const SLEEP: usize = 216;
    pub(crate) const SPACE_BELL: usize = 224;
    pub(crate) const ACK_BELL: usize = 232;
    pub(crate) const REFUSED: usize = 240;
    pub(crate) const EPOCH: usize = 248;
    pub(crate) const CHECKPOINTS: [usize; 2] = [256, 288];
    pub(crate) const ABANDONED_REGIONS: usize = 320;
    pub(crate) const LEFT: usize = 576;
    pub(crate) const STORED_LOG: [usize; 2] = [704, 712];
    pub(crate) const STORED_EPOCH: usize = 720;
    pub(crate) const LOST: usize = 728;
    pub(crate) const SLOT_TABLE: usize = super::PAGE;
}

/// Places for abandoned regions: threads that may be stopped in the middle of a copy before space behind them is held
/// up.
pub const ABANDONED_REGIONS_MAX: usize = 16;

/// The size of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    data_bytes: u32,
    slots: u32,
}

impl Shape {
    /// The smallest data area, bytes.
    pub const MIN_DATA: u32 = 4096;
    /// The largest data area, bytes.
    pub const MAX_DATA: u32 = 1 << 30;
    /// The largest file of a ring, bytes.
    pub(crate) const LARGEST: usize = PAGE + Self::MAX_SLOTS as usize * 8 + Self::MAX_DATA as usize;
    /// The most slots: appends in a ring that are not given back.
    pub const MAX_SLOTS: u32 = 1 << 24;

    /// A ring with a data area of `data_bytes` for at most `slots` appends that are not given back.
    ///
    /// # Errors
    /// Both must be powers of two, within [`Shape::MIN_DATA`] to [`Shape::MAX_DATA`] and 8 to [`Shape::MAX_SLOTS`].
    pub const fn new(data_bytes: u32, slots: u32) -> Result<Self, ShapeError> {
        if !data_bytes.is_power_of_two() || data_bytes < Self::MIN_DATA || data_bytes > Self::MAX_DATA {
            return Err(ShapeError::DataBytes(data_bytes));
        }
        if !slots.is_power_of_two() || slots < 8 || slots > Self::MAX_SLOTS {
            return Err(ShapeError::Slots(slots));
        }
        Ok(Self { data_bytes, slots })
    }

    /// A ring that is too small to be of use, but has all its places enumerated.
    #[cfg(test)]
    pub(crate) const fn tiny(data_bytes: u32, slots: u32) -> Self {
        assert!(data_bytes.is_power_of_two() && slots.is_power_of_two());
        Self { data_bytes, slots }
    }

    /// Bytes of the data area.
    #[must_use]
    pub const fn data_bytes(self) -> u32 {
        self.data_bytes
    }

    /// Appends that the ring holds at most, given back not counted.
    #[must_use]
    pub const fn slots(self) -> u32 {
        self.slots
    }

    /// The longest payload, bytes: a quarter of the data area, so that one always fits an empty ring.
    #[must_use]
    pub const fn max_payload(self) -> usize {
        (self.data_bytes / 4) as usize - entry::HEADER
    }

    /// Bytes of the ring's file.
    #[must_use]
    pub const fn ring_bytes(self) -> usize {
        let end = self.data_at() + self.data_bytes as usize;
        end.next_multiple_of(PAGE)
    }

    /// Bytes of the completion page's file.
    #[must_use]
    pub const fn completion_page_bytes(self) -> usize {
        (PAGE + self.slots as usize * completion_page::ANSWER).next_multiple_of(PAGE)
    }

    pub(crate) const fn units(self) -> u32 {
        self.data_bytes / UNIT
    }

    pub(crate) const fn data_at(self) -> usize {
        (at::SLOT_TABLE + self.slots as usize * 8).next_multiple_of(PAGE)
    }

    /// The byte at which the slot of an append lies.
    pub(crate) const fn slot_at(self, append: u64) -> usize {
        at::SLOT_TABLE + (append as usize & (self.slots as usize - 1)) * 8
    }

    /// The byte at which a logical place of the data area lies.
    pub(crate) const fn place_at(self, place: u32) -> usize {
        self.data_at() + ((place & (self.units() - 1)) * UNIT) as usize
    }
}

/// Units that an entry with `payload` bytes takes.
pub(crate) const fn units_of(payload: usize) -> u32 {
    (entry::HEADER + payload).div_ceil(UNIT as usize) as u32
}

const LOW31: u64 = (1 << 31) - 1;
const LOW30: u64 = (1 << 30) - 1;

/// Head or tail: how many appends, and where the next one starts. One word, so that one exchange takes both.
///
/// Bit 63: closed; bits 62 to 32: the low 31 bits of the append number; bits 31 to 0: the place in units, which grows
/// for ever and wraps at 2³² (the data area is a power of two).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor(pub(crate) u64);

impl Cursor {
    pub(crate) const CLOSED: u64 = 1 << 63;

    pub(crate) const fn new(append: u64, place: u32) -> Self {
        Self((append & LOW31) << 32 | place as u64)
    }

    pub(crate) const fn is_closed(self) -> bool {
        self.0 & Self::CLOSED != 0
    }

    pub(crate) const fn place(self) -> u32 {
        self.0 as u32
    }

    /// Number of appends that this one is ahead of another; a huge number if it is behind.
    pub(crate) const fn ahead_of(self, append: u64) -> u64 {
        ((self.0 >> 32).wrapping_sub(append)) & LOW31
    }

    /// The full append number: the one nearest to `near` that has these low bits.
    pub(crate) const fn append(self, near: u64) -> u64 {
        let ahead = self.ahead_of(near);
        if ahead <= LOW31 / 2 { near.wrapping_add(ahead) } else { near.wrapping_sub(LOW31 + 1 - ahead) }
    }
}

/// State of a slot's append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing yet: free, or reserved.
    Pending,
    /// Committed; the entry starts at this place.
    Committed(u32),
    /// Abandoned by the drain. Its writer may still write into its space.
    Abandoned,
    /// Abandoned, and its writer knows and will not write any more.
    Left,
}

/// Bits 63, 62: state (0 free, 1 committed, 2 abandoned, 3 left); 61 to 32: the low 30 bits of the append number;
/// 31 to 0: the place at which the entry starts (committed only).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u64);

impl Slot {
    pub(crate) const fn committed(append: u64, place: u32) -> Self {
        Self(1 << 62 | (append & LOW30) << 32 | place as u64)
    }

    pub(crate) const fn abandoned(append: u64) -> Self {
        Self(2 << 62 | (append & LOW30) << 32)
    }

    pub(crate) const fn left(append: u64) -> Self {
        Self(3 << 62 | (append & LOW30) << 32)
    }

    /// The slot's state of `append`; for other appends the state is [`State::Pending`].
    pub(crate) const fn state_of(self, append: u64) -> State {
        if (self.0 >> 32) & LOW30 != append & LOW30 {
            return State::Pending;
        }
        match self.0 >> 62 {
            1 => State::Committed(self.0 as u32),
            2 => State::Abandoned,
            3 => State::Left,
            _ => State::Pending,
        }
    }

    /// True if the slot is still as an earlier append left it, so that `append` may commit in it.
    pub(crate) const fn is_before(self, append: u64) -> bool {
        if self.0 >> 62 == 0 {
            return true;
        }
        let behind = (append.wrapping_sub(self.0 >> 32)) & LOW30;
        behind != 0 && behind <= LOW30 / 2
    }
}
