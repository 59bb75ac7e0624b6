//! Queries of other parts to the committer.

use std::sync::Arc;

use crate::format::segment::SegmentHeader;
use crate::write::batch::Batch;

use super::{Committer, State};

impl Committer {
    /// Number of the segment to prepare now, if one is wanted, and the epoch for its header.
    pub(crate) fn wants_prepared(&self) -> Option<(u64, u32)> {
        let running = self.state == State::Running && !self.closing && !self.busy;
        let active = self.active.as_ref()?;
        (running && !self.supply.is_prepared()).then_some((active.number + 1, self.watermarks.epoch))
    }

    /// True while the active segment is changing.
    pub(crate) fn is_rotating(&self) -> bool {
        self.busy && self.state == State::Running
    }

    /// True if a segment is prepared.
    pub(crate) fn has_prepared(&self) -> bool {
        self.supply.is_prepared()
    }

    /// The active segment's header, cloned only when it is another than `known`.
    pub(crate) fn active_header(&self, known: Option<SegmentHeader>) -> Option<SegmentHeader> {
        let active = self.active.as_ref()?;
        match known {
            Some(header) if header == active.header => Some(header),
            _ => Some(active.header.clone()),
        }
    }

    /// Part of the active segment that is used, 0 to 1.
    pub(crate) fn fill(&self) -> f64 {
        self.active.as_ref().map_or(0.0, |a| a.pos as f64 / a.header.capacity as f64)
    }

    /// Drops the batches in memory that retention has removed from the log: no reader reads them any more.
    pub(crate) fn forget_recent_below(&mut self, lowest_offset: u64) {
        while let Some(batch) = self.recent.pop_front_if(|batch| batch.end_offset() <= lowest_offset) {
            self.recent_bytes -= batch.body.len();
            self.builder.recycle(batch);
        }
    }

    /// The batch that holds an offset, if it is written and still in memory.
    pub(crate) fn recent(&self, offset: u64) -> Option<Arc<Batch>> {
        if offset >= self.watermarks.written {
            return None;
        }
        let at = self.recent.partition_point(|b| b.end_offset() <= offset);
        self.recent.get(at).filter(|b| b.first_offset <= offset).cloned()
    }

    /// The active segment's number, first offset, and where to start looking for an offset.
    pub(crate) fn seek(&self, offset: u64) -> Option<(u64, u64, Option<u64>)> {
        self.active.as_ref().map(|a| (a.number, a.first_offset, a.seek(offset)))
    }

    /// The active segment, if there is one, and its epoch, while only batches are under way. If two calls return the
    /// same, no record that existed at the first call has changed its segment in between.
    pub(crate) fn at_rest(&self) -> Option<(Option<u64>, u32)> {
        let rests = self.state == State::Running && !self.busy;
        rests.then(|| (self.active.as_ref().map(|active| active.number), self.watermarks.epoch))
    }

    pub(crate) fn active_summary(&self) -> Option<(u64, u64, u64, u64)> {
        self.active.as_ref().map(|a| (a.number, a.first_offset, a.pos, a.header.capacity))
    }

    pub(crate) fn segments_held(&self) -> usize {
        usize::from(self.active.is_some()) + usize::from(self.supply.is_prepared())
    }

    /// Boot time at which the oldest record that is not durable was taken.
    pub(crate) fn oldest_undurable_boot_ns(&self) -> Option<u64> {
        let waits = self.watermarks.durable < self.watermarks.written;
        let unsynced = self.syncing.iter().chain(&self.unsynced).filter(|_| waits).find_map(|u| u.since_boot_ns);
        unsynced.or_else(|| self.oldest_unwritten_boot_ns())
    }

    /// Boot time since which the disk has work that is not done. Data that only waits for a sync of the policy does
    /// not count.
    pub(crate) fn disk_busy_since_boot_ns(&self) -> Option<u64> {
        let sync = self.sync_running.then_some(self.last_sync_ns);
        sync.into_iter().chain(self.oldest_unwritten_boot_ns()).min()
    }

    fn oldest_unwritten_boot_ns(&self) -> Option<u64> {
        let taken = self.in_flight.front().map(|oldest| oldest.since_boot_ns);
        taken.or_else(|| self.builder.front().map(|(_, since, _)| since))
    }
}
