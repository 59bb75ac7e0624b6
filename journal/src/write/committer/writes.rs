//! Writes and syncs beside each other: when a batch is written, how it is made durable, when a sync or a commit marker
//! is due.

use crate::clock::Moment;
use crate::config::Policy;
use crate::faults::Fault;
use crate::io::Durability;
use crate::write::batch::PendingBatch;

use super::{
    BUSY_BATCH_DELAY_NS, BUSY_BATCH_RECORDS_MIN, CONCURRENT_WRITE_BYTES_MIN, Committer, EARLY_SYNC_BYTES,
    IDLE_COMMIT_MARKER_DELAY_NS, InFlight, Job, Step, SyncBy,
};

impl Committer {
    pub(super) fn begin_write(&mut self, now: Moment) -> Option<Step> {
        let (_, since, wants_written) = self.builder.front()?;
        let in_flight = self.writes + usize::from(self.sync_running);
        let may = match self.config.policy {
            Policy::GroupCommit { max_delay, in_flight: max, .. }
            | Policy::SyncFileRange { max_delay, in_flight: max, .. } => {
                let waited = now.boot_ns.saturating_sub(since) >= max_delay.as_nanos() as u64;
                let worth = self.builder.bytes() >= CONCURRENT_WRITE_BYTES_MIN || waited;
                in_flight == 0 || (wants_written && self.writes == 0) || (worth && self.writes < max)
            }
            Policy::PerMessage => in_flight == 0,
            Policy::FireAndForget { .. } => {
                self.writes == 0
                    && (now.boot_ns >= self.batch_open_until_ns || self.builder.bytes() >= CONCURRENT_WRITE_BYTES_MIN)
            }
        };
        if !may || self.control_write.is_some() {
            return None;
        }
        let slot = self.free_files.pop()?;
        let PendingBatch { batch, permit, .. } = self.builder.pop().expect("there is a front");
        assert!(
            batch.first_offset == self.submitted_end || self.config.faults.has(Fault::OffsetReused),
            "the batch at {} is submitted behind {}: the records between would be lost",
            batch.first_offset,
            self.submitted_end
        );
        self.submitted_end = batch.end_offset();
        // A write to the page cache ends at once. Under many appends each write would be followed by another with
        // almost no data, and waking all waiters would cost more than the writing.
        self.batch_open_until_ns =
            if batch.count >= BUSY_BATCH_RECORDS_MIN { now.boot_ns + BUSY_BATCH_DELAY_NS } else { 0 };
        let (fresh, alone) = (self.writes > 0 && !self.config.faults.has(Fault::TwoWritesInOneBlock), in_flight == 0);
        let sync = self.how_to_sync();
        let active = self.active.as_mut().expect("checked by step");
        let placed = active.place(&batch, fresh, &self.watermarks, now);
        let range = placed.range();
        let split = self.config.policy.grouping().is_some() && wants_written;
        let durability = match self.config.policy {
            Policy::FireAndForget { .. } => Durability::Written,
            Policy::PerMessage if self.config.faults.has(Fault::PerMessageNeverFlushes) => Durability::Written,
            _ if split => Durability::Written,
            _ => Durability::Synced,
        };
        let id = self.next_id;
        self.next_id += 1;
        self.writes += 1;
        self.file_of.push((id, slot));
        let shares = placed.shares.clone();
        if self.config.policy.syncs() {
            self.unsynced = None; // of a commit marker: this write repeats its block and content
        }
        let file = active.files[slot].clone();
        self.in_flight.push_back(InFlight {
            id,
            batch,
            shares,
            _permit: permit.filter(|_| !self.config.faults.has(Fault::PermitReleasedEarly)),
            since_boot_ns: since,
            range,
            written: false,
            durable: false,
        });
        self.idle_since_ns = now.boot_ns;
        Some(Step::Run(Job::Write { id, file, placed, durability, sync, alone }))
    }

    pub(super) fn write_deadline(&self) -> Option<u64> {
        let (_, since, _) = self.builder.front()?;
        match (self.config.policy, self.config.policy.grouping()) {
            (_, Some((max_delay, in_flight))) if self.writes < in_flight && self.control_write.is_none() => {
                Some(since + max_delay.as_nanos() as u64)
            }
            (Policy::FireAndForget { .. }, _) if self.writes == 0 => Some(self.batch_open_until_ns),
            _ => None,
        }
    }

    /// Method that makes a synced write into the active segment safe: a range sync under its policy, but only over
    /// space that was already written and its own when the segment was opened.
    pub(super) fn how_to_sync(&self) -> SyncBy {
        let in_place = self.active.as_ref().is_some_and(|a| a.in_place);
        match self.config.policy {
            Policy::SyncFileRange { .. } if in_place => SyncBy::Range,
            _ => SyncBy::Data,
        }
    }

    /// Starts a sync or a commit marker, or returns the time until which there is nothing to do.
    pub(super) fn sync_or_wait(&mut self, now: Moment, deadline: Option<u64>) -> Step {
        let mut until = deadline;
        if let (Some((max_delay, _)), true) = (self.config.policy.grouping(), self.writes > 0) {
            // A thread checks the time while a write is slow: the open batch may meanwhile be due for a separate
            // write.
            let tick = now.boot_ns + (max_delay.as_nanos() as u64).max(1_000_000);
            until = Some(until.map_or(tick, |u| u.max(now.boot_ns).min(tick)));
        }
        let mut by = |t: u64| until = Some(until.map_or(t, |u| u.min(t)));
        if self.watermarks.written > self.watermarks.durable && !self.sync_running {
            let due = match self.config.policy {
                Policy::FireAndForget { .. } if self.wants_early_sync() => Some(0),
                Policy::FireAndForget { sync_interval } if sync_interval.is_zero() => None,
                Policy::FireAndForget { sync_interval } => Some(self.last_sync_ns + sync_interval.as_nanos() as u64),
                _ => Some(0),
            };
            match due {
                Some(t) if t <= now.boot_ns => return self.begin_sync(now),
                Some(t) => by(t),
                None => {}
            }
        }
        let rests = self.writes == 0 && !self.sync_running && self.builder.is_empty() && !self.closing;
        if rests && self.sequencer.tombstones.are_unwritten() {
            match self.idle_since_ns + IDLE_COMMIT_MARKER_DELAY_NS {
                t if t > now.boot_ns => by(t),
                _ => {
                    if let Some(step) = self.begin_tombstones(now) {
                        return step;
                    }
                }
            }
        }
        if rests
            && let Some(active) = &self.active
            && !active.is_empty()
        {
            if active.stored_watermarks != (self.watermarks.written, self.watermarks.durable) {
                match self.idle_since_ns + IDLE_COMMIT_MARKER_DELAY_NS {
                    t if t <= now.boot_ns => return self.begin_commit_marker(now),
                    t => by(t),
                }
            }
            let age = self.config.rotate_after.as_nanos() as u64;
            if let (1.., Some(t)) = (age, active.first_append_boot_ns) {
                by(t + age);
            }
        }
        Step::Wait(until)
    }

    /// True before the interval is over: a caller asked, or the unsynced bytes would stall the sealing of the segment.
    pub(super) fn wants_early_sync(&self) -> bool {
        self.sync_target > self.watermarks.durable || self.unsynced_bytes >= EARLY_SYNC_BYTES
    }

    pub(super) fn begin_sync(&mut self, now: Moment) -> Step {
        let Some(active) = &self.active else { return Step::Wait(None) };
        self.sync_running = true;
        self.last_sync_ns = now.boot_ns;
        self.unsynced_bytes = 0;
        self.syncing = self.unsynced.take();
        let file = active.files.last().expect("one more file than writes in flight").clone();
        // Read before the sync starts: the sync covers only writes that had completed by now.
        let upto = self.watermarks.written;
        let waiting = || self.in_flight.iter().filter(|e| !e.durable && e.batch.end_offset() <= upto).map(|e| e.range);
        let range = match self.how_to_sync() {
            SyncBy::Data => None,
            SyncBy::Range => waiting().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))),
        };
        Step::Run(Job::Sync { file, upto, range })
    }

    pub(super) fn begin_commit_marker(&mut self, now: Moment) -> Step {
        self.builder.idle();
        let watermarks = self.watermarks;
        let footer = self.active.as_ref().map_or(0, |a| self.footer_len(a));
        let Some(active) = self.active.as_mut() else { return Step::Wait(None) };
        if !active.fits(crate::format::batch::LEN as u64, false, footer) {
            active.stored_watermarks = (watermarks.written, watermarks.durable); // no room: the footer stores them
            return self.sync_or_wait(now, None);
        }
        let Some(slot) = self.free_files.pop() else { return Step::Wait(None) };
        let placed = active.place_commit_marker(&watermarks, now, self.config.faults);
        let id = self.next_id;
        self.next_id += 1;
        self.writes += 1;
        self.file_of.push((id, slot));
        self.control_write = Some((id, placed.shares.clone()));
        let (file, durability, sync) = (active.files[slot].clone(), Durability::Written, SyncBy::Data);
        Step::Run(Job::Write { id, file, placed, durability, sync, alone: true })
    }
}
