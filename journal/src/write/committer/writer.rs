//! Writes and syncs beside each other: when a batch is written, how it is made durable, when a sync or a commit marker
//! is due, and how far the watermarks move when they end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::config::{JournalConfig, Policy};
use crate::io::Durability;
use crate::write::active::{Active, Placed, Shares};
use crate::write::batch::{Batch, BatchBuilder};
use crate::write::watermarks::Watermarks;

use super::in_flight::{InFlight, WritesInFlight};
use super::job::{Job, SyncBy};
use super::recent::RecentBatches;
use super::syncs::Syncs;

/// Size of the open batch that is worth a further write in flight.
const CONCURRENT_WRITE_BYTES_MIN: usize = 64 * 1024;
/// After this time without appends the log is idle; then a commit marker stores its last watermarks.
const IDLE_COMMIT_MARKER_DELAY_NS: u64 = 100_000_000;
/// Under `fire_and_forget`, after a batch of so many records, the next batch stays open for so long (or to 64 KiB).
const BUSY_BATCH_RECORDS_MIN: u32 = 32;
const BUSY_BATCH_DELAY_NS: u64 = 100_000;

/// Batches on their way to the disk: open, waiting, in flight, recent.
pub(crate) struct Writer {
    pub(super) policy: Policy,
    /// Number of writes in flight that the operator wants; the active segment may be open for fewer.
    wanted_writes: usize,
    pub(super) builder: BatchBuilder,
    pub(super) in_flight: WritesInFlight,
    pub(super) syncs: Syncs,
    pub(super) recent: RecentBatches,
    /// Everything below this was submitted: a footer's producer state ends here at most.
    pub(super) submitted_end: u64,
    pub(super) idle_since_ns: u64,
    /// Time until which the next batch stays open, under `fire_and_forget`, because the last one had many records.
    batch_open_until_ns: u64,
}

impl Writer {
    pub(super) fn new(config: &JournalConfig, batch_bytes_max: usize, next: u64, now_ns: u64) -> Self {
        let max_bytes = match config.policy {
            Policy::PerMessage => 0,
            policy => policy.batch_bytes(),
        };
        Self {
            policy: config.policy,
            wanted_writes: config.policy.in_flight(),
            builder: BatchBuilder::new(max_bytes.min(batch_bytes_max)),
            in_flight: WritesInFlight::new(config.policy.in_flight()),
            syncs: Syncs::new(now_ns),
            recent: RecentBatches::new(config.recent_bytes),
            submitted_end: next,
            idle_since_ns: now_ns,
            batch_open_until_ns: 0,
        }
    }

    /// Changes the settings of `group_commit`; no effect under another policy. More writes in flight begin with the
    /// next segment, which is opened for them.
    pub(super) fn set_group_commit(&mut self, delay: Duration, bytes: u32, writes: usize, batch_bytes_max: usize) {
        if let Policy::GroupCommit { max_delay, max_bytes, in_flight }
        | Policy::SyncFileRange { max_delay, max_bytes, in_flight } = &mut self.policy
        {
            (*max_delay, *max_bytes) = (delay, bytes);
            *in_flight = writes.min(*in_flight);
            self.builder.set_max_bytes((bytes as usize).min(batch_bytes_max));
            self.wanted_writes = writes;
        }
    }

    /// Notes that a segment was opened, with nothing in flight: it may allow another number of writes than the last.
    pub(super) fn opened(&mut self, active: &Active) {
        let open_for = active.files.len() - 1;
        self.in_flight.opened(open_for);
        if let Policy::GroupCommit { in_flight, .. } | Policy::SyncFileRange { in_flight, .. } = &mut self.policy {
            *in_flight = self.wanted_writes.min(open_for);
        }
    }

    /// True if nothing is at the disk.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.writes() == 0 && !self.syncs.running
    }

    /// True if the open batch, or what is at the disk, is worth a write beside others.
    pub(super) fn writes_beside(&self) -> bool {
        !self.is_idle() || self.is_worth_a_write()
    }

    fn is_worth_a_write(&self) -> bool {
        self.builder.bytes() >= CONCURRENT_WRITE_BYTES_MIN
    }

    pub(super) fn begin_write(&mut self, active: &mut Active, watermarks: &Watermarks, now: Moment) -> Option<Job> {
        let (_, since, wants_written) = self.builder.front()?;
        let writes = self.in_flight.writes();
        let in_flight = writes + usize::from(self.syncs.running);
        let may = match self.policy {
            Policy::GroupCommit { max_delay, in_flight: max, .. }
            | Policy::SyncFileRange { max_delay, in_flight: max, .. } => {
                let waited = now.boot_ns.saturating_sub(since) >= max_delay.as_nanos() as u64;
                let worth = self.is_worth_a_write() || waited;
                in_flight == 0 || (wants_written && writes == 0) || (worth && writes < max)
            }
            Policy::PerMessage => in_flight == 0,
            Policy::FireAndForget { .. } => {
                writes == 0 && (now.boot_ns >= self.batch_open_until_ns || self.is_worth_a_write())
            }
        };
        if !may || self.in_flight.control.is_some() {
            return None;
        }
        let (id, slot) = self.in_flight.begin()?;
        let pending = self.builder.pop().expect("there is a front");
        let batch = &pending.batch;
        assert!(
            batch.first_offset == self.submitted_end,
            "the batch at {} is submitted behind {}: the records between would be lost",
            batch.first_offset,
            self.submitted_end
        );
        self.submitted_end = batch.end_offset();
        // A write to the page cache ends at once. Under many appends each write would be followed by another with
        // almost no data, and waking all waiters would cost more than the writing.
        self.batch_open_until_ns =
            if batch.count >= BUSY_BATCH_RECORDS_MIN { now.boot_ns + BUSY_BATCH_DELAY_NS } else { 0 };
        let placed = active.place(batch, writes > 0, watermarks, now);
        let split = self.policy.grouping().is_some() && wants_written;
        let durability = match self.policy {
            Policy::FireAndForget { .. } => Durability::Written,
            _ if split => Durability::Written,
            _ => Durability::Synced,
        };
        if self.policy.syncs() {
            self.syncs.unsynced = None; // of a commit marker: this write repeats its block and content
        }
        let entry = InFlight::new(id, pending, placed.shares.clone(), placed.range());
        self.in_flight.batches.push_back(entry);
        self.idle_since_ns = now.boot_ns;
        let (file, sync) = (active.files[slot].clone(), self.how_to_sync(active));
        Some(Job::Write { id, file, placed, durability, sync, alone: in_flight == 0 })
    }

    /// Boot time at which the open batch is due.
    pub(super) fn write_deadline(&self) -> Option<u64> {
        let (_, since, _) = self.builder.front()?;
        let writes = self.in_flight.writes();
        match (self.policy, self.policy.grouping()) {
            (_, Some((max_delay, in_flight))) if writes < in_flight && self.in_flight.control.is_none() => {
                Some(since + max_delay.as_nanos() as u64)
            }
            (Policy::FireAndForget { .. }, _) if writes == 0 => Some(self.batch_open_until_ns),
            _ => None,
        }
    }

    /// Boot time at which a thread checks again, given the deadline of the open batch. A thread checks the time while
    /// a write is slow: the open batch may meanwhile be due for a separate write.
    pub(super) fn look_again(&self, deadline: Option<u64>, now: Moment) -> Option<u64> {
        match self.policy.grouping() {
            Some((max_delay, _)) if self.in_flight.writes() > 0 => {
                let tick = now.boot_ns + (max_delay.as_nanos() as u64).max(1_000_000);
                Some(deadline.map_or(tick, |u| u.max(now.boot_ns).min(tick)))
            }
            _ => deadline,
        }
    }

    /// Method that makes a synced write into the active segment safe: a range sync under its policy, but only over
    /// space that was already written and its own when the segment was opened.
    fn how_to_sync(&self, active: &Active) -> SyncBy {
        match self.policy {
            Policy::SyncFileRange { .. } if active.in_place => SyncBy::Range,
            _ => SyncBy::Data,
        }
    }

    /// Boot time at which a separate sync is due, if something waits for one.
    pub(super) fn sync_due(&self, watermarks: &Watermarks) -> Option<u64> {
        if watermarks.written <= watermarks.durable || self.syncs.running {
            return None;
        }
        match self.policy {
            Policy::FireAndForget { .. } if self.syncs.is_early(watermarks.durable) => Some(0),
            Policy::FireAndForget { sync_interval } if sync_interval.is_zero() => None,
            Policy::FireAndForget { sync_interval } => Some(self.syncs.last_ns + sync_interval.as_nanos() as u64),
            _ => Some(0),
        }
    }

    /// Begins a sync of everything below `written`. Read before the sync starts: it covers only writes that had
    /// completed by now.
    pub(super) fn begin_sync(&mut self, active: &Active, written: u64, now: Moment) -> Job {
        self.syncs.begin(now);
        let file = active.files.last().expect("one more file than writes in flight").clone();
        let range = match self.how_to_sync(active) {
            SyncBy::Data => None,
            SyncBy::Range => self.in_flight.unsynced_range(written),
        };
        Job::Sync { file, upto: written, range }
    }

    /// Boot time since which the log would be idle, if it is quiet now.
    pub(super) fn idle_at(&self) -> Option<u64> {
        let rests = self.is_idle() && self.builder.is_empty();
        rests.then_some(self.idle_since_ns + IDLE_COMMIT_MARKER_DELAY_NS)
    }

    /// Begins the write of a commit marker or of tombstones, if a file is free. `place` gives it its place.
    pub(super) fn begin_control(
        &mut self,
        active: &mut Active,
        durability: Durability,
        place: impl FnOnce(&mut Active) -> Placed,
    ) -> Option<Job> {
        let alone = !self.syncs.running;
        let (id, slot) = self.in_flight.begin()?;
        let placed = place(active);
        self.in_flight.control = Some((id, placed.shares.clone()));
        Some(Job::Write { id, file: active.files[slot].clone(), placed, durability, sync: SyncBy::Data, alone })
    }

    /// Ends a write that succeeded; `true` if it had a commit marker or tombstones, and no batch.
    pub(super) fn written(&mut self, id: u64, durability: Durability) -> bool {
        self.in_flight.end(id);
        let synced = durability == Durability::Synced;
        if let Some((_, shares)) = self.in_flight.control.take_if(|control| control.0 == id) {
            if let Some(first) = shares.first().filter(|_| !synced) {
                self.syncs.note(first.first_offset, None);
            }
            return true;
        }
        if let Some(entry) = self.in_flight.batches.iter_mut().find(|e| e.id == id) {
            entry.written = true;
            self.syncs.unsynced_bytes += entry.batch.stored_len();
            entry.durable = synced;
        }
        false
    }

    /// Ends a sync that succeeded. Returns the end of what it covers.
    pub(super) fn synced(&mut self, upto: u64) {
        self.syncs.end(upto);
        self.in_flight.synced(upto);
    }

    /// Notes that the active segment is sealed: all of it is durable.
    pub(super) fn sealed(&mut self) {
        self.syncs.clear();
        self.in_flight.synced(u64::MAX);
    }

    /// Moves the watermarks over the unbroken row of completed writes, and releases what is not needed any more.
    pub(super) fn advance(&mut self, watermarks: &mut Watermarks) {
        let keep_until_durable = self.policy.syncs();
        let all = &self.in_flight.batches;
        let done = all.iter().take_while(|e| e.written).map(|e| e.batch.end_offset()).last();
        if let Some(end) = done
            && end > watermarks.written
        {
            let from = watermarks.written;
            watermarks.move_written(end);
            for InFlight { batch, .. } in all {
                if batch.first_offset >= from && batch.end_offset() <= end {
                    self.recent.push(batch.clone(), &mut self.builder);
                }
            }
        }
        if keep_until_durable {
            let end = all.iter().take_while(|e| e.written && e.durable).map(|e| e.batch.end_offset()).last();
            watermarks.move_durable(watermarks.durable.max(end.unwrap_or(0)));
        }
        let is_done = |e: &mut InFlight| e.written && (e.durable || !keep_until_durable);
        while let Some(entry) = self.in_flight.batches.pop_front_if(is_done) {
            if !entry.durable {
                let first = entry.shares.first().unwrap_or(&entry.batch);
                self.syncs.note(first.first_offset, Some(entry.since_boot_ns));
            }
            // The block that the next batch is written into, where it is not remembered any more.
            self.builder.recycle(entry.batch);
        }
        let Watermarks { received, written, durable, .. } = *watermarks;
        assert!(
            durable <= written && written <= received,
            "durable {durable}, written {written}, received {received}: an ack would run ahead of the truth"
        );
    }

    /// The offset from which a recovery writes again. A batch whose block was repeated by an unsynced or failed write
    /// may be lost, durable or not.
    pub(super) fn rescue_from(&self, durable: u64) -> u64 {
        let unsynced = self.syncs.all_unsynced().map(|u| u.from);
        let repeated = self.in_flight.first_repeated().into_iter().chain(unsynced).min();
        repeated.map_or(durable, |first| first.min(durable))
    }

    /// Batches in memory that end above an offset, in order, with those of the active segment's last block. The waiting
    /// batches have their offsets already, so they are included, and count as in flight.
    pub(super) fn hold_for_rescue(&mut self, from: u64, active: Option<&Active>) -> Vec<Arc<Batch>> {
        let mut held: HashMap<u64, Arc<Batch>> = HashMap::new();
        for entry in &self.in_flight.batches {
            for batch in entry.shares.batches().filter(|b| b.count > 0).chain([&entry.batch]) {
                held.insert(batch.first_offset, batch.clone());
            }
        }
        let last_block = active.into_iter().flat_map(Active::last_block);
        let control_batches = self.in_flight.control.iter().flat_map(|control| control.1.batches());
        for batch in control_batches.chain(last_block).filter(|b| b.count > 0).chain(self.recent.iter()) {
            held.insert(batch.first_offset, batch.clone());
        }
        while let Some(pending) = self.builder.pop() {
            held.insert(pending.batch.first_offset, pending.batch.clone());
            self.in_flight.batches.push_back(InFlight::new(u64::MAX, pending, Shares::default(), (0, 0)));
        }
        // Tombstones have no offset of their own; the footers of this recovery leave out the forgotten producers.
        let mut held: Vec<_> = held.into_values().filter(|b| b.end_offset() > from).collect();
        held.sort_by_key(|b| b.first_offset);
        held
    }

    /// Releases everything that a recovery has written: all of it is below the new segment's footer.
    pub(super) fn recovered(&mut self, end: u64, durable: u64) {
        let last = self.in_flight.batches.back().map_or(durable, |entry| entry.batch.end_offset());
        assert!(
            last.max(durable) <= end,
            "a recovery ends at {end}, below {last}: records that have their offsets would be lost"
        );
        self.in_flight.control = None;
        self.syncs.clear();
        self.in_flight.batches.clear();
        self.recent.clear();
        self.submitted_end = end;
    }

    /// True if another thread could begin a second job now.
    pub(super) fn more_to_do(&self, watermarks: &Watermarks) -> bool {
        let (writes, syncs) = (self.in_flight.writes(), self.policy.syncs());
        let sync = watermarks.written > watermarks.durable && !self.syncs.running && syncs;
        let early = !syncs && !self.syncs.running && self.syncs.is_early(watermarks.durable);
        let write = !self.builder.is_empty() && (writes == 0 || self.is_worth_a_write());
        early || ((sync || write) && writes < self.policy.in_flight())
    }

    /// Time that the open batch waits for more appends while a write is in flight.
    pub(crate) fn commit_delay_ns(&self) -> u64 {
        self.policy.grouping().map_or(u64::MAX, |(max_delay, _)| max_delay.as_nanos() as u64)
    }

    /// True if an append that just arrived must wake a thread: nothing is under way, or a further write is now worth
    /// it. `busy`: a job runs alone.
    pub(crate) fn wants_wake(&self, bytes_before: usize, busy: bool) -> bool {
        let crossed = bytes_before < CONCURRENT_WRITE_BYTES_MIN && self.is_worth_a_write();
        let idle = self.in_flight.writes() == 0 && !busy;
        (idle && bytes_before == 0) || (crossed && self.in_flight.writes() < self.policy.in_flight())
    }

    pub(crate) fn pending_bytes(&self) -> usize {
        self.builder.bytes()
    }

    pub(crate) fn in_flight_bytes(&self) -> usize {
        self.builder.bytes() + self.in_flight.batches.iter().map(|e| e.batch.body.len()).sum::<usize>()
    }

    /// Drops the batches in memory that retention has removed from the log: no reader reads them any more.
    pub(crate) fn forget_recent_below(&mut self, lowest_offset: u64) {
        self.recent.release_below(lowest_offset, &mut self.builder);
    }

    /// Boot time since which the disk has work that is not done. Data that only waits for a sync of the policy does
    /// not count.
    pub(crate) fn disk_busy_since_boot_ns(&self) -> Option<u64> {
        let sync = self.syncs.running.then_some(self.syncs.last_ns);
        sync.into_iter().chain(self.oldest_unwritten_boot_ns()).min()
    }

    pub(super) fn oldest_unwritten_boot_ns(&self) -> Option<u64> {
        let taken = self.in_flight.batches.front().map(|oldest| oldest.since_boot_ns);
        taken.or_else(|| self.builder.front().map(|(_, since, _)| since))
    }
}
