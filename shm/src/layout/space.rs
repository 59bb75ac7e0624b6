//! Where the next entry goes: plain arithmetic, no memory.
//!
//! Invariant: an entry lies in one piece, in space that was given back, and never on an abandoned region. An *abandoned
//! region* is space whose writer was stopped in the middle of its copy. The drain abandoned its append and continued.
//! The space is unusable until that writer is known to be out of it, because it may continue to copy at any time.

use crate::layout::ABANDONED_REGIONS_MAX;

/// Space that is not to be used: units from the start of the data area, the end exclusive. `start >= end` goes around
/// the end of the data area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AbandonedRegion {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl AbandonedRegion {
    /// Nothing yet, where abandoned regions are to be written.
    pub(crate) const NONE: Self = Self { start: 0, end: 0 };

    /// As a word; never 0, which says that there is none.
    pub(crate) const fn encode(self) -> u64 {
        1 << 63 | (self.start as u64) << 32 | self.end as u64
    }

    pub(crate) const fn decode(word: u64) -> Option<Self> {
        if word == 0 {
            return None;
        }
        Some(Self { start: (word >> 32) as u32 & 0x7FFF_FFFF, end: word as u32 })
    }

    /// The distance from `at` to the end of this region, when `need` units from `at` (which end within `size`) touch
    /// it.
    const fn skip(self, at: u32, need: u32, size: u32) -> Option<u32> {
        let around = self.start >= self.end;
        if !around && at < self.end && self.start < at + need {
            return Some(self.end - at);
        }
        if around && at < self.end {
            return Some(self.end - at);
        }
        if around && self.start < at + need {
            return Some(size - at + self.end);
        }
        None
    }
}

/// True if [`place`] gives the head itself where there is no abandoned region.
#[inline]
pub(crate) const fn fits_at_head(head: u32, tail: u32, size: u32, need: u32) -> bool {
    (head & (size - 1)) + need <= size && head.wrapping_add(need).wrapping_sub(tail) <= size
}

/// Where an entry of `need` units starts, with the head and tail at these places: at the head, or behind what it cannot
/// lie on. `None`: there is no space now.
pub(crate) fn place(head: u32, tail: u32, size: u32, need: u32, regions: &[AbandonedRegion]) -> Option<u32> {
    let mut start = head;
    // Each step passes the end of the area or a region; past all of them twice there is nothing new.
    for _ in 0..=2 * (ABANDONED_REGIONS_MAX + 1) {
        let at = start & (size - 1);
        let skip = if at + need > size {
            Some(size - at)
        } else {
            regions.iter().find_map(|region| region.skip(at, need, size))
        };
        match skip {
            Some(units) => start = start.wrapping_add(units),
            None => return (start.wrapping_add(need).wrapping_sub(tail) <= size).then_some(start),
        }
        if start.wrapping_sub(tail) > size {
            return None;
        }
    }
    None
}
