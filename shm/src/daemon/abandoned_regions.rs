//! Abandoned regions as the drain makes and removes them: space of abandoned appends whose writers may still be in it.
//!
//! Invariant: a region is announced before its space is given back. It is removed only once its writer has reported
//! that it is out of it ([`crate::client::writer`]), or is known to be gone. A region that a dead drain has left half made has
//! no owner.

use std::ops::Range;

use crate::layout::space::AbandonedRegion;
use crate::layout::{Shape, Slot, State, at};
use crate::memory::{Memory, Ordering};

/// Makes abandoned regions of the space between two entries, for each writer that may still be in it. `false`: no room.
pub(crate) fn leave<M: Memory>(ring: &M, shape: Shape, abandoned: Range<u64>, space: AbandonedRegion) -> bool {
    let mask = shape.units() - 1;
    let space = AbandonedRegion { start: space.start & mask, end: space.end & mask };
    if abandoned.is_empty() || space.start == space.end {
        return true;
    }
    for append in abandoned {
        if has_left(ring, shape, append) || (0..M::ABANDONED_REGIONS_MAX).any(|index| of(ring, index) == append + 1) {
            continue;
        }
        let Some(index) = (0..M::ABANDONED_REGIONS_MAX).find(|index| of(ring, *index) == 0) else { return false };
        // The number last: a later drain believes a region that has one to be whole.
        ring.store(at::ABANDONED_REGION_COUNT, M::ABANDONED_REGIONS_MAX as u64, Ordering::Release);
        ring.point("region: announced");
        ring.store(at::ABANDONED_REGIONS + index * 16, space.encode(), Ordering::Release);
        ring.point("region: range, no number");
        ring.store(at::ABANDONED_REGIONS + index * 16 + 8, append + 1, Ordering::Release);
        ring.point("region: made");
        // See `leave` in writer.rs: one of the two sees the other.
        ring.fence();
        if has_left(ring, shape, append) {
            remove(ring, index);
        }
    }
    true
}

/// Removes the regions whose writers have left (all, where they are `gone`), and what a drain that died half-way left
/// of one.
pub(crate) fn clear<M: Memory>(ring: &M, gone: bool) {
    if ring.load(at::ABANDONED_REGION_COUNT, Ordering::Relaxed) == 0 {
        return;
    }
    let mut any = false;
    for index in 0..M::ABANDONED_REGIONS_MAX {
        let append = of(ring, index);
        let left = gone || ring.load(at::LEFT + index * 8, Ordering::Acquire) == append;
        if append != 0 && !left {
            any = true;
        } else if append != 0 || ring.load(at::ABANDONED_REGIONS + index * 16, Ordering::Relaxed) != 0 {
            remove(ring, index);
        }
    }
    if !any {
        ring.store(at::ABANDONED_REGION_COUNT, 0, Ordering::Release);
        ring.point("region: none");
    }
}

fn has_left<M: Memory>(ring: &M, shape: Shape, append: u64) -> bool {
    Slot(ring.load(shape.slot_at(append), Ordering::Acquire)).state_of(append) == State::Left
}

/// The append number + 1 that a region is of; 0: there is none.
fn of<M: Memory>(ring: &M, index: usize) -> u64 {
    ring.load(at::ABANDONED_REGIONS + index * 16 + 8, Ordering::Acquire)
}

fn remove<M: Memory>(ring: &M, index: usize) {
    ring.store(at::ABANDONED_REGIONS + index * 16 + 8, 0, Ordering::Release);
    ring.point("region: range, number gone");
    ring.store(at::ABANDONED_REGIONS + index * 16, 0, Ordering::Release);
    ring.point("region: gone");
}
