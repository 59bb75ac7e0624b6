//! The size of a ring, and where its parts lie.

use super::entry;
use super::offsets::{ANSWER, PAGE, UNIT, at};
use crate::error::ShapeError;

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
        (PAGE + self.slots as usize * ANSWER).next_multiple_of(PAGE)
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
