//! Effects of job results: the watermarks, the latch, the stored state.

use std::sync::Arc;

use crate::clock::Moment;
use crate::config::Policy;
use crate::faults::Fault;
use crate::io::Durability;
use crate::write::active::{Active, Shares};
use crate::write::batch::Batch;
use crate::write::producer::ProducerTable;
use crate::write::watermarks::Watermarks;

use super::{
    CONCURRENT_WRITE_BYTES_MIN, Committer, Done, FailedJob, Failure, NoSegment, RECOVERY_RETRY_NS_MAX,
    RECOVERY_RETRY_NS_MIN, RotateReply, State, Unsynced,
};

impl Committer {
    /// Takes the result of a job. An error latches: from here on nothing is released until recovery is done.
    pub(crate) fn complete(&mut self, result: Result<Done, Failure>, now: Moment) {
        self.watermarks.version += 1;
        match result {
            result if self.is_over() => self.after_the_end(result),
            Ok(done) => self.done(done, now),
            Err(failure) => self.failed(failure, now),
        }
    }

    /// Handles results after the journal was abandoned: a late result changes only the list of running jobs.
    fn after_the_end(&mut self, result: Result<Done, Failure>) {
        match result.map_err(|failure| failure.of) {
            Ok(Done::Write { id, .. }) | Err(FailedJob::Write(id)) => self.end_write(id),
            Ok(Done::Sync { .. }) | Err(FailedJob::Sync) => self.sync_running = false,
            Ok(_) | Err(_) => self.busy = false,
        }
    }

    fn done(&mut self, done: Done, now: Moment) {
        match done {
            Done::Write { id, durability } => {
                self.end_write(id);
                if let Some((_, shares)) = self.control_write.take_if(|v| v.0 == id) {
                    self.sequencer.tombstones.written(durability == Durability::Synced);
                    if durability != Durability::Synced {
                        self.note_unsynced(shares.first(), None);
                    }
                } else if let Some(entry) = self.in_flight.iter_mut().find(|e| e.id == id) {
                    entry.written = true;
                    self.unsynced_bytes += entry.batch.stored_len();
                    entry.durable = durability == Durability::Synced;
                    entry.durable |= self.config.faults.has(Fault::AckBeforeSync);
                    let lies = self.config.policy == Policy::PerMessage;
                    entry.durable |= lies && self.config.faults.has(Fault::PerMessageNeverFlushes);
                }
            }
            Done::Sync { upto } => {
                assert!(self.sync_running, "a sync up to {upto} ends that was not begun: it would be acked as durable");
                self.sync_running = false;
                self.syncing = None;
                let late = self.config.faults.has(Fault::WatermarkReadAfterSync);
                let upto = if late { self.watermarks.written } else { upto };
                for entry in self.in_flight.iter_mut().filter(|e| e.batch.end_offset() <= upto) {
                    entry.durable = true;
                }
                if self.state == State::Running && !self.config.policy.syncs() {
                    self.watermarks.move_durable(self.watermarks.durable.max(upto));
                }
            }
            Done::Rotated { next } => {
                self.busy = false;
                self.sequencer.tombstones.footer_done();
                self.watermarks.move_durable(self.watermarks.written);
                (self.unsynced, self.syncing) = (None, None);
                for entry in &mut self.in_flight {
                    entry.durable = true;
                }
                self.take_active(next, now);
            }
            Done::Opened { next } => {
                self.busy = false;
                self.take_active(next, now);
            }
            Done::Recovered { next, epoch, end, producers, lost } => {
                self.watermarks.losses += u32::from(lost);
                self.recovered(next, epoch, end, producers, now);
            }
            Done::Closed => {
                self.busy = false;
                self.watermarks.move_durable(self.watermarks.written);
                self.state = State::Closed { clean: true };
                self.refuse_rotations(); // asked for while it sealed and marked the end
            }
        }
        if self.state == State::Running || self.config.faults.has(Fault::ReleasedAfterFailure) {
            self.advance();
        }
        self.idle_since_ns = now.boot_ns;
    }

    pub(super) fn take_active(&mut self, next: Result<Active, NoSegment>, now: Moment) {
        match &next {
            // Nothing is in flight here, and the segment may be opened for another number of writes than the last.
            Ok(active) => {
                self.free_files = (0..active.files.len() - 1).rev().collect();
                self.allow_writes(active.files.len() - 1);
                self.block = active.header.block_size.into();
                self.supply.opened();
            }
            Err(NoSegment::Space) => self.supply.found_no_room(now),
            Err(NoSegment::Failed(reason)) => self.supply.not_opened(reason.clone(), now),
        }
        self.active = next.ok();
    }

    fn end_write(&mut self, id: u64) {
        assert!(self.writes > 0, "write {id} ends, and none is in flight: its batch would be released twice");
        self.writes -= 1;
        if let Some(at) = self.file_of.iter().position(|(of, _)| *of == id) {
            self.free_files.push(self.file_of.swap_remove(at).1);
        }
    }

    /// Moves the watermarks over the unbroken row of completed writes, and releases what is not needed any more.
    fn advance(&mut self) {
        let keep_until_durable = self.config.policy.syncs();
        let any_order = self.config.faults.has(Fault::AckOutOfOrder);
        let done = self.in_flight.iter().take_while(|e| e.written || any_order).filter(|e| e.written);
        let done = done.map(|e| e.batch.end_offset()).last();
        if let Some(end) = done
            && end > self.watermarks.written
        {
            let from = self.watermarks.written;
            self.watermarks.move_written(end);
            for at in 0..self.in_flight.len() {
                let batch = &self.in_flight[at].batch;
                if batch.first_offset >= from && batch.end_offset() <= end {
                    self.remember(batch.clone());
                }
            }
        }
        if keep_until_durable {
            let end = self.in_flight.iter().take_while(|e| e.written && e.durable).map(|e| e.batch.end_offset()).last();
            self.watermarks.move_durable(self.watermarks.durable.max(end.unwrap_or(0)));
        }
        while let Some(entry) = self.in_flight.pop_front_if(|e| e.written && (e.durable || !keep_until_durable)) {
            if !entry.durable {
                self.note_unsynced(entry.shares.first().or(Some(&entry.batch)), Some(entry.since_boot_ns));
            }
            // The block that the next batch is written into, where it is not remembered any more.
            self.builder.recycle(entry.batch);
        }
        let Watermarks { received, written, durable, .. } = self.watermarks;
        assert!(
            durable <= written && written <= received,
            "durable {durable}, written {written}, received {received}: an ack would run ahead of the truth"
        );
    }

    /// Notes a completed write that was not synced and is not in the list: the first start stays. A commit marker has
    /// no time: no caller waits for it, and it needs no sync of its own.
    fn note_unsynced(&mut self, first: Option<&Arc<Batch>>, since_boot_ns: Option<u64>) {
        let forgets = since_boot_ns.is_none() && self.config.faults.has(Fault::CommitMarkerForgotten);
        if let (false, Some(first)) = (forgets, first) {
            let unsynced = self.unsynced.get_or_insert(Unsynced { since_boot_ns, from: first.first_offset });
            unsynced.since_boot_ns = unsynced.since_boot_ns.or(since_boot_ns);
        }
    }

    fn remember(&mut self, batch: Arc<Batch>) {
        self.recent_bytes += batch.body.len();
        self.recent.push_back(batch);
        while self.recent_bytes > self.config.recent_bytes && self.recent.len() > 1 {
            let Some(oldest) = self.recent.pop_front() else { break };
            self.recent_bytes -= oldest.body.len();
            self.builder.recycle(oldest);
        }
    }

    fn failed(&mut self, failure: Failure, now: Moment) {
        // A batch whose block was repeated by an unsynced or failed write may be lost, durable or not.
        let repeated = self.in_flight.iter().map(|e| &e.shares).chain(self.control_write.iter().map(|v| &v.1));
        let repeated = repeated.filter_map(Shares::first).map(|b| b.first_offset);
        let unsynced = self.syncing.iter().chain(&self.unsynced).map(|u| u.from);
        let repeated = repeated.chain(unsynced).min();
        let repeated = repeated.filter(|_| !self.config.faults.has(Fault::RescueStartsTooHigh));
        let from = repeated.map_or(self.watermarks.durable, |first| first.min(self.watermarks.durable));
        match failure.of {
            FailedJob::Write(id) => {
                self.end_write(id);
            }
            FailedJob::Sync => self.sync_running = false,
            FailedJob::Rotate(rotation) => {
                self.busy = false;
                self.active = Some(rotation.active);
                self.supply.put_back(rotation.wanted.prepared);
            }
            FailedJob::Mark => self.busy = false,
            FailedJob::Rescue(rescue) => {
                self.busy = false;
                (self.rewritten, self.lost) = (rescue.rewritten, rescue.lost);
                self.sequencer.take_recovered(rescue.producers); // without what is lost
                self.active = rescue.active;
                self.supply.put_back(rescue.prepared);
            }
        }
        let State::Failed { rescue_from, pause_ns, due_boot_ns, .. } = &mut self.state else {
            self.watermarks.failures += 1;
            self.state = State::Failed {
                reason: failure.reason,
                due_boot_ns: now.boot_ns + RECOVERY_RETRY_NS_MIN,
                pause_ns: RECOVERY_RETRY_NS_MIN,
                rescue_from: from,
            };
            return;
        };
        *rescue_from = (*rescue_from).min(from);
        if failure.was_rescue {
            *pause_ns = (*pause_ns * 2).min(RECOVERY_RETRY_NS_MAX);
            *due_boot_ns = now.boot_ns + *pause_ns;
        }
    }

    fn recovered(
        &mut self,
        next: Result<Active, NoSegment>,
        epoch: u32,
        end: u64,
        producers: ProducerTable,
        now: Moment,
    ) {
        self.busy = false;
        self.supply.recovered();
        self.state = State::Running;
        (self.rewritten, self.lost) = (false, Vec::new());
        self.control_write = None;
        (self.unsynced, self.syncing) = (None, None);
        let last = self.in_flight.back().map_or(self.watermarks.durable, |entry| entry.batch.end_offset());
        assert!(
            last.max(self.watermarks.durable) <= end || self.config.faults.has(Fault::OffsetReused),
            "a recovery ends at {end}, below {last}: records that have their offsets would be lost"
        );
        self.in_flight.clear(); // all of it is below the new segment's footer
        self.recent.clear();
        self.recent_bytes = 0;
        self.watermarks.begin_epoch(epoch, end);
        self.sequencer.take_recovered(producers);
        self.submitted_end = end;
        self.sequencer.tombstones.failed();
        self.take_active(next, now);
    }

    /// True if another thread could begin a second job now.
    pub(crate) fn more_to_do(&self) -> bool {
        if self.busy || self.state != State::Running {
            return false;
        }
        let sync =
            self.watermarks.written > self.watermarks.durable && !self.sync_running && self.config.policy.syncs();
        let early = !self.config.policy.syncs() && !self.sync_running && self.wants_early_sync();
        let write =
            !self.builder.is_empty() && (self.writes == 0 || self.builder.bytes() >= CONCURRENT_WRITE_BYTES_MIN);
        early || ((sync || write) && self.writes < self.config.policy.in_flight())
    }

    /// True if a thread must check now: a job could begin, or the running job delayed a rotation, or the pause after a
    /// failure is over. A close does not count: it wakes every thread. A thread that then must wait for the running
    /// job names no time and is woken when that job ends.
    pub(crate) fn wants_somebody(&self) -> bool {
        self.more_to_do() || self.state != State::Running || !self.rotate_replies.is_empty()
    }

    /// Time that the open batch waits for more appends while a write is in flight.
    pub(crate) fn commit_delay_ns(&self) -> u64 {
        let kept = self.config.policy.grouping().filter(|_| !self.config.faults.has(Fault::CommitDelayForgotten));
        kept.map_or(u64::MAX, |(max_delay, _)| max_delay.as_nanos() as u64)
    }

    /// True if an append that just arrived must wake a thread: nothing is under way, or a further write is now worth
    /// it.
    pub(crate) fn wants_wake(&self, bytes_before: usize) -> bool {
        let crossed = bytes_before < CONCURRENT_WRITE_BYTES_MIN && self.builder.bytes() >= CONCURRENT_WRITE_BYTES_MIN;
        let idle = self.writes == 0 && !self.busy;
        (idle && bytes_before == 0) || (crossed && self.writes < self.config.policy.in_flight())
    }

    pub(crate) fn pending_bytes(&self) -> usize {
        self.builder.bytes()
    }

    pub(crate) fn in_flight_bytes(&self) -> usize {
        self.builder.bytes() + self.in_flight.iter().map(|e| e.batch.body.len()).sum::<usize>()
    }

    /// Time until the next recovery attempt.
    pub(crate) fn retry_in_ns(&self) -> u64 {
        match &self.state {
            State::Failed { pause_ns, .. } => *pause_ns,
            _ => 0,
        }
    }

    /// True if it is closed, cleanly or not: no job begins any more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// Abandons a clean end.
    pub(crate) fn abandon(&mut self) {
        self.refuse_rotations();
        self.state = State::Closed { clean: false };
        self.watermarks.version += 1;
    }

    pub(super) fn refuse_rotations(&mut self) {
        for reply in self.rotate_replies.drain(..) {
            let _ = reply.send(Err("clad is stopping".to_owned()));
        }
    }

    pub(crate) fn take_rotate_replies(&mut self) -> Vec<RotateReply> {
        std::mem::take(&mut self.rotate_replies)
    }
}
