//! Forgotten producers, until the log durably contains their tombstones.
//!
//! Invariants:
//! - Until then no caller is notified that such a producer is unknown, and none of its appends is stored. After a
//!   crash its earlier life would be back, and a new record would be answered by the offset of an old one.
//! - The first of these writes a tombstone: a footer that ends at or above its offset; or a batch of tombstones. A
//!   batch is written when [`TOMBSTONES_DUE_MIN`] of them wait, when the log becomes idle, or at once when a caller
//!   waits.
//! - A durable tombstone is never written again: a later life of the producer may have begun.

use std::collections::VecDeque;

use crate::format::tombstone::Tombstone;
use crate::write::producer::ProducerId;

/// Number of tombstones that is worth a separate write.
const TOMBSTONES_DUE_MIN: usize = 64;
/// Most tombstones in one batch.
const TOMBSTONES_PER_BATCH_MAX: usize = 256;
/// Limit of tombstones that are written but unsynced, under a policy that does not sync: above it a sync runs.
const UNSYNCED_TOMBSTONES_MAX: usize = 4096;

/// Waiting tombstones, oldest first.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    all: VecDeque<Tombstone>,
    /// Number of the oldest that are written but not synced.
    written: usize,
    /// Number of the oldest that are in the running write.
    in_write: usize,
    /// Number of the oldest that the running footer leaves out.
    in_footer: usize,
    /// A caller waits for one.
    pub(super) wanted: bool,
}

impl Tombstones {
    /// Adds one; `true` if it is the first that waits to be written.
    pub(super) fn push(&mut self, tombstone: Tombstone) -> bool {
        self.all.push_back(tombstone);
        self.all.len() == self.written.max(self.in_write) + 1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// True if the log may still know this producer after a crash.
    pub(super) fn holds(&self, id: &ProducerId) -> bool {
        self.all.iter().any(|t| t.producer == *id)
    }

    /// As [`Self::holds`], for a caller that waits until it does not.
    pub(super) fn want(&mut self, id: &ProducerId) -> bool {
        let holds = !self.all.is_empty() && self.holds(id);
        self.wanted |= holds;
        holds
    }

    /// True if some wait to be written.
    pub(super) fn are_unwritten(&self) -> bool {
        self.all.len() > self.written
    }

    /// True if a batch of them must be written now.
    pub(super) fn are_due(&self) -> bool {
        let many = self.all.len() - self.written >= TOMBSTONES_DUE_MIN || self.all.len() > UNSYNCED_TOMBSTONES_MAX;
        self.in_write == 0 && (many || (self.wanted && !self.all.is_empty()))
    }

    /// The next batch of them, and `true` if it is synced. It may be empty.
    pub(super) fn next(&self, submitted_end: u64, syncs: bool) -> (Vec<Tombstone>, bool) {
        let synced = syncs || self.wanted || self.all.len() > UNSYNCED_TOMBSTONES_MAX;
        let written = if synced { 0 } else { self.written };
        // The next segment may hold waiting records of a forgotten producer: then that segment needs the tombstone.
        let ripe = self.all.iter().take_while(|t| t.below <= submitted_end);
        (ripe.skip(written).take(TOMBSTONES_PER_BATCH_MAX).copied().collect(), synced)
    }

    /// Notes that the write of that batch has begun.
    pub(super) fn begin(&mut self, count: usize, synced: bool) {
        self.in_write = count + if synced { 0 } else { self.written };
    }

    /// Notes that the write with the tombstones is done.
    pub(super) fn written(&mut self, synced: bool) {
        let done = std::mem::take(&mut self.in_write);
        match synced {
            true => self.settle(done),
            false => self.written = self.written.max(done),
        }
    }

    /// Removes the oldest, which are durable.
    fn settle(&mut self, oldest: usize) {
        self.all.drain(..oldest);
        self.written = self.written.saturating_sub(oldest);
        self.wanted &= !self.all.is_empty();
    }

    /// Begins a footer that leaves out the producers forgotten so far, and ends at `end`. For producers forgotten
    /// behind its end the next segment holds records: their tombstones go there.
    pub(super) fn begin_footer(&mut self, end: u64) {
        // They wait in the order of their offsets.
        self.in_footer = self.all.partition_point(|t| t.below <= end);
    }

    /// Notes that the footer is durable.
    pub(super) fn footer_done(&mut self) {
        let settled = std::mem::take(&mut self.in_footer);
        self.settle(settled);
    }

    /// Discards the state of running writes: the journal has failed and was recovered, so they prove nothing.
    pub(super) fn failed(&mut self) {
        (self.in_write, self.written, self.in_footer) = (0, 0, 0);
    }
}
