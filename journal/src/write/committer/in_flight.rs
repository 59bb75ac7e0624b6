//! Writes in flight, each with its file, and the batches that the disk still needs.
//!
//! Invariant: a batch and its permits stay until its write and all before it have completed, and until it is durable
//! where the policy syncs.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::write::active::Shares;
use crate::write::batch::{Batch, PendingBatch};
use crate::write::permits::Permit;

/// A batch that was submitted.
pub(super) struct InFlight {
    pub(super) id: u64,
    pub(super) batch: Arc<Batch>,
    pub(super) shares: Shares,
    /// Released when this entry is dropped: the memory that was counted is free then.
    _permit: Option<Permit>,
    pub(super) since_boot_ns: u64,
    /// Bytes of the file that its write covers.
    pub(super) range: (u64, u64),
    pub(super) written: bool,
    pub(super) durable: bool,
}

impl InFlight {
    pub(super) fn new(id: u64, pending: PendingBatch, shares: Shares, range: (u64, u64)) -> Self {
        let PendingBatch { batch, since_boot_ns, permit, .. } = pending;
        Self { id, batch, shares, _permit: permit, since_boot_ns, range, written: false, durable: false }
    }
}

/// The writes in flight.
pub(super) struct WritesInFlight {
    /// Batches in the order of their offsets.
    pub(super) batches: VecDeque<InFlight>,
    /// The write of a commit marker or of tombstones.
    pub(super) control: Option<(u64, Shares)>,
    free_files: Vec<usize>,
    /// File index of each write in flight; there are only a few files.
    file_of: Vec<(u64, usize)>,
    next_id: u64,
}

impl WritesInFlight {
    pub(super) fn new(files: usize) -> Self {
        Self {
            batches: VecDeque::new(),
            control: None,
            free_files: (0..files).rev().collect(),
            file_of: Vec::new(),
            next_id: 0,
        }
    }

    /// Number of writes in flight.
    pub(super) fn writes(&self) -> usize {
        self.file_of.len()
    }

    /// Begins a write: its number, and the index of its file. Nothing while every file has a write.
    pub(super) fn begin(&mut self) -> Option<(u64, usize)> {
        let file = self.free_files.pop()?;
        let id = self.next_id;
        self.next_id += 1;
        self.file_of.push((id, file));
        Some((id, file))
    }

    pub(super) fn end(&mut self, id: u64) {
        let at = self.file_of.iter().position(|(of, _)| *of == id);
        assert!(at.is_some(), "write {id} ends, and is not in flight: its batch would be released twice");
        self.free_files.extend(at.map(|at| self.file_of.swap_remove(at).1));
    }

    /// Notes that a segment is open for so many writes, with nothing in flight.
    pub(super) fn opened(&mut self, files: usize) {
        self.free_files = (0..files).rev().collect();
    }

    /// Notes that all batches below an offset are durable.
    pub(super) fn synced(&mut self, upto: u64) {
        self.batches.iter_mut().filter(|e| e.batch.end_offset() <= upto).for_each(|e| e.durable = true);
    }

    /// First offset in the blocks that writes in flight repeat: it may be lost if one of them fails, durable or not.
    pub(super) fn first_repeated(&self) -> Option<u64> {
        let shares = self.batches.iter().map(|e| &e.shares).chain(self.control.iter().map(|(_, shares)| shares));
        shares.filter_map(Shares::first).map(|batch| batch.first_offset).min()
    }

    /// Bytes of the file that the writes below an offset cover, as far as they are not durable.
    pub(super) fn unsynced_range(&self, upto: u64) -> Option<(u64, u64)> {
        let unsynced = self.batches.iter().filter(|e| !e.durable && e.batch.end_offset() <= upto).map(|e| e.range);
        unsynced.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }
}
