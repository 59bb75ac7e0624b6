//! A burst: the appends that one read of a connection brought, handed to the journal together.
//!
//! Invariants: each append is taken or refused exactly as if it had come alone, and answered in its order. Only appends
//! without a known error join. An append with an error goes the way of a single append, after those before it. A burst
//! is bounded, by [`BURST_APPENDS_MAX`] and [`BURST_BYTES_MAX`]: the journal's lock is held over a copy of it, and
//! other connections wait for that. Costs by count (the lock, the permit, the counters, the producer look-up) are paid
//! once per burst.

use clad_journal::{DeferredWrite, Item};
use clad_proto::frame::{self, AppendHead};

/// Most appends in a burst.
const BURST_APPENDS_MAX: usize = 256;
/// Most bytes of payload in a burst, unless it is one append.
const BURST_BYTES_MAX: usize = 128 * 1024;

/// Appends that were checked and wait for the end of what was read.
#[derive(Default)]
pub(super) struct Burst<'a> {
    pub(super) items: Vec<Item<'a>>,
    /// For each: the place of its frame in the bytes that were read, and its head.
    pub(super) heads: Vec<(usize, AppendHead)>,
    pub(super) bytes: usize,
    /// Bytes that they count against the budget.
    pub(super) cost: usize,
    /// Write that the appends of this turn defer, those that went alone included.
    pub(super) deferred: Option<DeferredWrite>,
}

/// Adds a write that an append defers to those before it.
pub(super) fn add(deferred: &mut Option<DeferredWrite>, later: Option<DeferredWrite>) {
    *deferred = match (deferred.take(), later) {
        (Some(earlier), Some(later)) => Some(earlier.join(later)),
        (earlier, later) => earlier.or(later),
    };
}

impl<'a> Burst<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns true if an append of so many bytes is one too many.
    pub(super) fn is_full_for(&self, bytes: usize) -> bool {
        !self.is_empty() && (self.items.len() >= BURST_APPENDS_MAX || self.bytes + bytes > BURST_BYTES_MAX)
    }

    /// Room that the answers take, if all are taken.
    pub(super) fn answers_len(&self) -> usize {
        self.items.len() * frame::Accepted::FRAME_BYTES
    }

    #[inline(always)]
    pub(super) fn push(&mut self, at: usize, head: AppendHead, item: Item<'a>) {
        self.bytes += item.payload.len();
        self.cost += item.share;
        self.items.push(item);
        self.heads.push((at, head));
    }

    /// They were handed over.
    pub(super) fn clear(&mut self) {
        self.items.clear();
        self.heads.clear();
        (self.bytes, self.cost) = (0, 0);
    }
}
