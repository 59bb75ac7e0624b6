//! The newest batches that are written, in memory for readers.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::write::batch::{Batch, BatchBuilder};

/// Written batches, oldest first.
pub(super) struct RecentBatches {
    batches: VecDeque<Arc<Batch>>,
    bytes: usize,
    pub(super) bytes_max: usize,
}

impl RecentBatches {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { batches: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Adds a batch, and releases the oldest above the bound.
    pub(super) fn push(&mut self, batch: Arc<Batch>, builder: &mut BatchBuilder) {
        self.bytes += batch.body.len();
        self.batches.push_back(batch);
        while self.bytes > self.bytes_max && self.batches.len() > 1 {
            let Some(oldest) = self.batches.pop_front() else { break };
            self.bytes -= oldest.body.len();
            builder.recycle(oldest);
        }
    }

    /// Releases the batches that end at or below an offset.
    pub(super) fn release_below(&mut self, lowest_offset: u64, builder: &mut BatchBuilder) {
        while let Some(batch) = self.batches.pop_front_if(|batch| batch.end_offset() <= lowest_offset) {
            self.bytes -= batch.body.len();
            builder.recycle(batch);
        }
    }

    /// The batch that holds an offset.
    pub(super) fn find(&self, offset: u64) -> Option<Arc<Batch>> {
        let at = self.batches.partition_point(|b| b.end_offset() <= offset);
        self.batches.get(at).filter(|b| b.first_offset <= offset).cloned()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Batch>> {
        self.batches.iter()
    }

    pub(super) fn clear(&mut self) {
        self.batches.clear();
        self.bytes = 0;
    }
}
