//! The committer: decides which data is written when, and when an acknowledgement may be released.
//!
//! It is a plain state machine. Threads (or a simulation) ask it for the next [`Job`], carry it out without the lock,
//! and report the result. It never accesses the disk itself.
//!
//! Invariants:
//! 1. Offsets are assigned in one place, under one lock, dense and in the order in which batches reach the disk.
//! 2. `written` moves over a batch only when its write and all before it have completed. `durable` moves only when
//!    each of them was synced by its own write, or by a sync that was **started** after its write had completed.
//! 3. After a failed write or sync nothing is released. The watermarks do not move until recovery has rewritten
//!    everything unreleased elsewhere, and has synced and sealed it.
//! 4. A batch's memory, and the permits counted for it, stay until the disk does not need them.
//! 5. Records with an offset fit into segments that exist or can be created ([`room`]).
//! 6. A rotation begins when nothing is in flight: the footer is synced before a batch goes into the next segment.
//!
//! Batching: with nothing in flight a batch is written at once. With a write in flight, a further one starts only when
//! the open batch has 64 KiB or has waited `max_delay`. Otherwise the open batch waits for the completion and takes
//! everything along. A fixed delay before each sync, the obvious alternative, would make a lone writer wait for
//! nothing. Where a caller waits for `written`, the batch is written first and synced after, so that the write alone
//! releases the caller.

mod append;
mod in_flight;
mod job;
mod lifecycle;
mod recent;
mod room;
mod syncs;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::config::{JournalConfig, SEGMENT_OVERHEAD_BYTES};
use crate::env::Trigger;
use crate::format::batch;
use crate::format::meta::EpochStart;
use crate::format::segment::SegmentHeader;
use crate::format::tombstone::{self, Tombstone};
use crate::io::Durability;
use crate::write::active::Active;
use crate::write::batch::Batch;
use crate::write::owner_bytes::Quota;
use crate::write::producer::{ProducerId, ProducerTable};
use crate::write::segment_supply::SpaceNews;
use crate::write::sequencer::Sequencer;
use crate::write::watermarks::{Accepting, Watermarks};

use self::lifecycle::Lifecycle;
use self::room::{Room, Segments};
use self::writer::Writer;

pub use job::{Accepted, AfterRefusal, Append, Item, RotateAnswer, Sender};
pub(crate) use job::{
    Done, FailedJob, Failure, Job, NoSegment, Rescue, RotateReply, Rotation, Step, SyncBy, Turn, Wanted,
};

/// The state: who may append what, where it goes, what is at the disk, and whether the journal runs.
pub(crate) struct Committer {
    watermarks: Watermarks,
    pub(crate) sequencer: Sequencer,
    pub(crate) quota: Quota,
    pub(crate) writer: Writer,
    pub(crate) segments: Segments,
    pub(crate) lifecycle: Lifecycle,
    /// The longest payload of an append that is taken.
    pub(crate) max_append_bytes: u32,
    /// Age at which the active segment is sealed; zero: at none.
    pub(crate) rotate_after: Duration,
}

/// Result of the attempt to write a batch of tombstones.
enum TombstoneWrite {
    Begun(Job),
    /// The disk must finish other work first; no batch of records begins before that.
    Waits,
    /// No tombstone is ripe, or the active segment has no room for them: then a footer stores them.
    NoPlace,
}

/// A batch must fit into an empty segment, as the largest append does: behind its end nothing is prepared.
fn largest_batch(segment_bytes: u64) -> usize {
    usize::try_from(segment_bytes.saturating_sub(SEGMENT_OVERHEAD_BYTES)).unwrap_or(usize::MAX)
}

impl Committer {
    pub(crate) fn new(
        config: JournalConfig,
        producers: ProducerTable,
        next: u64,
        began: EpochStart,
        now_ns: u64,
    ) -> Self {
        // A start after a clean end resumes an epoch that began long before.
        let (epoch, epoch_first) = (began.epoch, began.first_offset);
        let watermarks =
            Watermarks { epoch, epoch_first, received: next, written: next, durable: next, ..Watermarks::default() };
        Self {
            watermarks,
            sequencer: Sequencer::new(producers),
            quota: Quota { most: config.retention.per_owner_bytes, ..Quota::default() },
            writer: Writer::new(&config, largest_batch(config.segment_bytes), next, now_ns),
            segments: Segments::new(config.segment_bytes),
            lifecycle: Lifecycle::new(),
            max_append_bytes: config.max_append_bytes,
            rotate_after: config.rotate_after,
        }
    }

    /// Returns the next step. A returned job counts as begun: its result must be passed to [`Self::complete`].
    pub(crate) fn step(&mut self, now: Moment) -> Step {
        self.let_resends_age(now);
        if self.lifecycle.busy {
            return Step::Wait(None);
        }
        if self.lifecycle.is_over() {
            return Step::Exit;
        }
        let idle = self.writer.is_idle();
        if let Some((due, from)) = self.lifecycle.recovery() {
            return match idle && now.boot_ns >= due {
                true => self.begin_rescue(from),
                false => Step::Wait(idle.then_some(due)),
            };
        }
        if self.segments.active.is_none() {
            return self.begin_open(now);
        }
        if self.segments.is_active_empty() {
            self.lifecycle.answer_rotations(&Ok(None));
        }
        if let Some(trigger) = self.rotation_due(now) {
            return if idle { self.begin_rotation(trigger, now) } else { self.sync_or_wait(now, None) };
        }
        if self.sequencer.tombstones.are_due() {
            match self.begin_tombstones(now) {
                TombstoneWrite::Begun(job) => return Step::Run(job),
                TombstoneWrite::Waits => return self.sync_or_wait(now, None),
                TombstoneWrite::NoPlace => {}
            }
        }
        if let Some(active) = &mut self.segments.active
            && let Some(write) = self.writer.begin_write(active, &self.watermarks, now)
        {
            return Step::Run(write);
        }
        if self.lifecycle.closing && self.writer.builder.is_empty() {
            // A segment without a batch is not sealed: no footer would name the forgotten producers.
            if idle
                && !self.sequencer.tombstones.is_empty()
                && self.segments.is_active_empty()
                && let TombstoneWrite::Begun(job) = self.begin_tombstones(now)
            {
                return Step::Run(job);
            }
            return if idle { self.begin_close(now) } else { Step::Wait(None) };
        }
        self.sync_or_wait(now, self.writer.write_deadline())
    }

    fn rotation_due(&self, now: Moment) -> Option<Trigger> {
        let active = self.segments.active.as_ref().filter(|active| !active.is_empty())?;
        // The waiting appends were accepted because they fit into this segment, where there is no other: they go
        // first.
        let may_leave = self.writer.builder.is_empty() || self.segments.can_have_next();
        if self.lifecycle.is_rotation_requested() && may_leave {
            return Some(Trigger::Command);
        }
        if let Some((len, ..)) = self.writer.builder.front() {
            let fresh = self.writer.in_flight.writes() > 0;
            if !self.room().fits_active((len + batch::LEN) as u64, fresh) {
                return Some(Trigger::Size);
            }
        }
        let age = self.rotate_after.as_nanos() as u64;
        let old = age > 0 && active.first_append_boot_ns.is_some_and(|t| now.boot_ns.saturating_sub(t) >= age);
        (old && may_leave).then_some(Trigger::Age)
    }

    /// True if nothing is under way and the next job is a write or a sync, which any thread may make.
    pub(crate) fn allows_inline_write(&self, now: Moment) -> bool {
        self.writes_next(now) && self.writer.is_idle()
    }

    /// Taker of the next job, where a ring runs beside the blocking thread.
    pub(crate) fn turn(&self, now: Moment) -> Turn {
        match self.writer.writes_beside() && self.writes_next(now) {
            true => Turn::Ring,
            false => Turn::Thread,
        }
    }

    /// True if the next job is none that runs alone.
    fn writes_next(&self, now: Moment) -> bool {
        self.lifecycle.is_open() && self.segments.active.is_some() && self.rotation_due(now).is_none()
    }

    /// Starts a sync or a commit marker, or returns the time until which there is nothing to do.
    fn sync_or_wait(&mut self, now: Moment, deadline: Option<u64>) -> Step {
        let mut until = self.writer.look_again(deadline, now);
        let mut by = |t: u64| until = Some(until.map_or(t, |u| u.min(t)));
        match (self.writer.sync_due(&self.watermarks), &self.segments.active) {
            (Some(t), Some(active)) if t <= now.boot_ns => {
                return Step::Run(self.writer.begin_sync(active, self.watermarks.written, now));
            }
            (Some(t), _) => by(t),
            (None, _) => {}
        }
        let Some(idle_at) = self.writer.idle_at().filter(|_| !self.lifecycle.closing) else { return Step::Wait(until) };
        if self.sequencer.tombstones.are_unwritten() {
            if idle_at > now.boot_ns {
                by(idle_at);
            } else if let TombstoneWrite::Begun(job) = self.begin_tombstones(now) {
                return Step::Run(job);
            }
        }
        if let Some(active) = self.segments.active.as_ref().filter(|active| !active.is_empty()) {
            if active.stored_watermarks != (self.watermarks.written, self.watermarks.durable) {
                if idle_at <= now.boot_ns {
                    return self.begin_commit_marker(now);
                }
                by(idle_at);
            }
            let age = self.rotate_after.as_nanos() as u64;
            if let (1.., Some(t)) = (age, active.first_append_boot_ns) {
                by(t + age);
            }
        }
        Step::Wait(until)
    }

    fn begin_commit_marker(&mut self, now: Moment) -> Step {
        self.writer.builder.idle();
        let watermarks = self.watermarks;
        let fits = self.room().fits_active(batch::LEN as u64, false);
        let Some(active) = self.segments.active.as_mut() else { return Step::Wait(None) };
        if !fits {
            active.stored_watermarks = (watermarks.written, watermarks.durable); // no room: the footer stores them
            return self.sync_or_wait(now, None);
        }
        let place = |active: &mut Active| active.place_commit_marker(&watermarks, now);
        self.writer.begin_control(active, Durability::Written, place).map_or(Step::Wait(None), Step::Run)
    }

    /// Writes a batch of tombstones, which also stores the watermarks, with nothing in flight beside it.
    ///
    /// Where it is synced, everything before it is synced first. Otherwise it might be durable behind a batch that is
    /// not, and be cut off with it.
    fn begin_tombstones(&mut self, now: Moment) -> TombstoneWrite {
        let (watermarks, syncs) = (self.watermarks, self.writer.policy.syncs());
        let (all, synced) = self.sequencer.tombstones.next(self.writer.submitted_end, syncs);
        let stored = batch::LEN + all.len() * tombstone::LEN;
        let room = self.room();
        let fits = room.fits_active(stored as u64, false) && room.check(stored).is_ok();
        // Writes go on where none is ripe: it waits for a batch that is not written yet.
        let Some(active) = self.segments.active.as_mut().filter(|_| fits && !all.is_empty()) else {
            return TombstoneWrite::NoPlace;
        };
        if self.writer.in_flight.writes() > 0 || self.writer.in_flight.control.is_some() {
            return TombstoneWrite::Waits;
        }
        if synced && watermarks.written > watermarks.durable {
            self.writer.syncs.want(watermarks.written);
            return TombstoneWrite::Waits;
        }
        let batch = Arc::new(Batch {
            epoch: watermarks.epoch,
            first_offset: active.content.end_offset,
            append_real_ns: now.real_ns,
            payload_bytes: Some(0),
            body: Tombstone::encode(&all).into(),
            ..Batch::default()
        });
        let durability = if synced { Durability::Synced } else { Durability::Written };
        let place = |active: &mut Active| active.place(&batch, false, &watermarks, now);
        let Some(job) = self.writer.begin_control(active, durability, place) else { return TombstoneWrite::Waits };
        if synced && syncs {
            self.writer.syncs.unsynced = None; // of a commit marker: this write repeats its block and content
        }
        self.sequencer.tombstones.begin(all.len(), synced);
        self.writer.idle_since_ns = now.boot_ns;
        TombstoneWrite::Begun(job)
    }

    fn begin_open(&mut self, now: Moment) -> Step {
        self.lifecycle.answer_rotations(&Ok(None));
        if self.lifecycle.closing && self.writer.builder.is_empty() {
            self.lifecycle.busy = true;
            return Step::Run(Job::Close(None));
        }
        let retry_at_ns = self.segments.supply.retry_at_ns();
        if now.boot_ns < retry_at_ns {
            return Step::Wait(Some(retry_at_ns));
        }
        self.lifecycle.busy = true;
        let wanted = self.claim_next();
        // Nothing is in flight, so everything submitted is written: the next batch starts there.
        Step::Run(Job::Open { wanted, next: self.watermarks.written, epoch: self.watermarks.epoch })
    }

    fn rotation(&mut self, trigger: Trigger, now: Moment) -> Option<Box<Rotation>> {
        let active = self.segments.active.take()?;
        let mut footer = active.footer();
        self.quota.sealed(active.owners(), &footer.owners);
        self.sequencer.begin_footer(&mut footer, now);
        assert!(
            footer.end_offset == self.watermarks.written,
            "the footer of segment {} ends at {}, `written` at {}: records between would be lost",
            footer.segment,
            footer.end_offset,
            self.watermarks.written
        );
        let unsynced = self.watermarks.durable < self.watermarks.written;
        let marker_unsynced = self.writer.syncs.unsynced.is_some();
        let wanted = self.claim_next();
        Some(Box::new(Rotation { active, footer, unsynced, marker_unsynced, wanted, trigger }))
    }

    fn begin_rotation(&mut self, trigger: Trigger, now: Moment) -> Step {
        match self.rotation(trigger, now) {
            Some(rotation) => {
                self.lifecycle.busy = true;
                Step::Run(Job::Rotate(rotation))
            }
            None => Step::Wait(None),
        }
    }

    fn begin_close(&mut self, now: Moment) -> Step {
        self.lifecycle.busy = true;
        self.lifecycle.answer_rotations(&Ok(None));
        Step::Run(Job::Close(self.rotation(Trigger::Close, now)))
    }

    fn begin_rescue(&mut self, from: u64) -> Step {
        assert!(
            from <= self.watermarks.durable,
            "a recovery begins at {from}, above `durable` {}: records between would be lost",
            self.watermarks.durable
        );
        self.lifecycle.busy = true;
        let active = self.segments.active.take();
        Step::Run(Job::Recover(Box::new(Rescue {
            held: self.writer.hold_for_rescue(from, active.as_ref()),
            active,
            prepared: self.segments.supply.take_prepared(),
            from,
            next: self.watermarks.received,
            producers: self.sequencer.producers().clone(),
            progress: std::mem::take(&mut self.lifecycle.progress),
        })))
    }

    /// Takes the next segment for a job: the prepared one, or one that is still to be made.
    fn claim_next(&mut self) -> Wanted {
        Wanted { prepared: self.segments.supply.claim(), for_accepted: !self.writer.builder.is_empty() }
    }

    /// Takes the result of a job. An error latches: from here on nothing is released until recovery is done.
    pub(crate) fn complete(&mut self, result: Result<Done, Failure>, now: Moment) {
        self.let_resends_age(now);
        self.watermarks.version += 1;
        assert!(
            !self.lifecycle.busy || self.writer.is_idle(),
            "a job that runs alone ends beside a write or a sync: what that one covers is unknown"
        );
        self.lifecycle.busy = false;
        match result {
            result if self.lifecycle.is_over() => self.after_the_end(result),
            Ok(done) => self.done(done, now),
            Err(failure) => self.failed(failure, now),
        }
        self.let_resends_age(now);
    }

    /// Lets time pass for the resend window, if appends were taken since the last look.
    pub(crate) fn let_resends_age(&mut self, now: Moment) {
        if self.sequencer.resends().is_on() {
            let takes_appends = self.watermarks().accepting == Accepting::Yes;
            self.sequencer.resends_mut().pass(now.boot_ns, takes_appends);
        }
    }

    /// Handles results after the journal was abandoned: a late result changes only the list of running jobs.
    fn after_the_end(&mut self, result: Result<Done, Failure>) {
        match result.map_err(|failure| failure.of) {
            Ok(Done::Write { id, .. }) | Err(FailedJob::Write(id)) => self.writer.in_flight.end(id),
            Ok(Done::Sync { .. }) | Err(FailedJob::Sync) => self.writer.syncs.running = false,
            Ok(_) | Err(_) => {}
        }
    }

    fn done(&mut self, done: Done, now: Moment) {
        match done {
            Done::Write { id, durability } => {
                if self.writer.written(id, durability) {
                    self.sequencer.tombstones.written(durability == Durability::Synced);
                }
            }
            Done::Sync { upto } => {
                self.writer.synced(upto);
                if self.lifecycle.is_running() && !self.writer.policy.syncs() {
                    self.watermarks.move_durable(self.watermarks.durable.max(upto));
                }
            }
            Done::Rotated { next } => {
                self.sequencer.tombstones.footer_done();
                self.watermarks.move_durable(self.watermarks.written);
                self.writer.sealed();
                self.take_active(next, now);
            }
            Done::Opened { next } => self.take_active(next, now),
            Done::Recovered { next, epoch, end, producers, lost } => {
                self.watermarks.losses += u32::from(lost);
                self.lifecycle.recovered();
                self.segments.supply.recovered();
                self.writer.recovered(end, self.watermarks.durable);
                self.watermarks.begin_epoch(epoch, end);
                self.sequencer.take_recovered(*producers);
                self.sequencer.tombstones.failed();
                self.take_active(next, now);
            }
            Done::Closed => {
                self.watermarks.move_durable(self.watermarks.written);
                self.lifecycle.end(true);
            }
        }
        if self.lifecycle.is_running() {
            self.writer.advance(&mut self.watermarks);
        }
        self.writer.idle_since_ns = now.boot_ns;
    }

    fn take_active(&mut self, next: Result<Active, NoSegment>, now: Moment) {
        match &next {
            Ok(active) => {
                self.writer.opened(active);
                self.segments.block = active.header.block_size.into();
                self.segments.supply.opened();
            }
            Err(NoSegment::Space) => self.segments.supply.found_no_room(now),
            Err(NoSegment::Failed(reason)) => self.segments.supply.not_opened(reason.clone(), now),
        }
        self.segments.active = next.ok();
    }

    fn failed(&mut self, failure: Failure, now: Moment) {
        let from = self.writer.rescue_from(self.watermarks.durable);
        match failure.of {
            FailedJob::Write(id) => self.writer.in_flight.end(id),
            FailedJob::Sync => self.writer.syncs.running = false,
            FailedJob::Rotate(rotation) => {
                self.segments.active = Some(rotation.active);
                self.segments.supply.put_back(rotation.wanted.prepared);
            }
            FailedJob::Mark => {}
            FailedJob::Rescue(rescue) => {
                self.lifecycle.progress = rescue.progress;
                self.sequencer.take_recovered(rescue.producers); // without what is lost
                self.segments.active = rescue.active;
                self.segments.supply.put_back(rescue.prepared);
            }
        }
        if self.lifecycle.fail(failure.reason, from, failure.was_rescue, now) {
            self.watermarks.failures += 1;
        }
    }

    /// True if another thread could begin a second job now.
    pub(crate) fn more_to_do(&self) -> bool {
        self.lifecycle.is_at_rest() && self.writer.more_to_do(&self.watermarks)
    }

    /// True if a thread must check now: a job could begin, or the running job delayed a rotation, or the pause after a
    /// failure is over. A close does not count: it wakes every thread. A thread that then must wait for the running
    /// job names no time and is woken when that job ends.
    pub(crate) fn wants_somebody(&self) -> bool {
        self.more_to_do() || !self.lifecycle.is_running() || self.lifecycle.is_rotation_requested()
    }

    /// The watermarks, with the acceptance of appends.
    pub(crate) fn watermarks(&self) -> Watermarks {
        let accepting = match self.lifecycle.accepting() {
            Accepting::Yes if !self.room().takes_what_comes() => Accepting::NoSpace,
            accepting => accepting,
        };
        Watermarks { accepting, ..self.watermarks }
    }

    /// Watermarks to publish without a result of a job. Acceptance of appends also changes with the jobs begun. With
    /// one version for two values, the older could be published last.
    pub(crate) fn next_watermarks(&mut self) -> Watermarks {
        self.watermarks.version += 1;
        self.watermarks()
    }

    #[inline]
    fn room(&self) -> Room<'_> {
        Room {
            segments: &self.segments,
            waiting: &self.writer.builder,
            producers: self.sequencer.producers(),
            owners: self.quota.held.len(),
            new_origins: 0,
            leaves: self.lifecycle.is_rotation_requested(),
        }
    }

    /// Number of the segment to prepare now, if one is wanted, and the epoch for its header.
    pub(crate) fn wants_prepared(&self) -> Option<(u64, u32)> {
        let active = self.segments.active.as_ref()?;
        let wants = self.lifecycle.is_open() && !self.segments.supply.is_prepared();
        wants.then_some((active.header.number + 1, self.watermarks.epoch))
    }

    /// The batch that holds an offset, if it is written and still in memory.
    pub(crate) fn recent(&self, offset: u64) -> Option<Arc<Batch>> {
        if offset < self.watermarks.written { self.writer.recent.find(offset) } else { None }
    }

    /// The active segment, if there is one, and its epoch, while only batches are under way. If two calls return the
    /// same, no record that existed at the first call has changed its segment in between.
    pub(crate) fn at_rest(&self) -> Option<(Option<u64>, u32)> {
        let active = self.segments.active.as_ref().map(|active| active.header.number);
        self.lifecycle.is_at_rest().then_some((active, self.watermarks.epoch))
    }

    /// Boot time at which the oldest record that is not durable was taken.
    pub(crate) fn oldest_undurable_boot_ns(&self) -> Option<u64> {
        let waits = self.watermarks.durable < self.watermarks.written;
        let unsynced = self.writer.syncs.all_unsynced().filter(|_| waits).find_map(|u| u.since_boot_ns);
        unsynced.or_else(|| self.writer.oldest_unwritten_boot_ns())
    }

    /// Ends a session; `true` if a thread must check later, in time to write the resulting tombstone.
    pub(crate) fn disconnect(&mut self, id: &ProducerId, forget: bool) -> bool {
        self.sequencer.disconnect(id, forget, self.watermarks.received)
    }

    /// Forgets an origin, as [`Sequencer::drop_origin`].
    pub(crate) fn drop_origin(&mut self, owner: u64, producer: &ProducerId) -> Option<bool> {
        self.sequencer.drop_origin(owner, producer, self.watermarks.received)
    }

    pub(crate) fn request_sync(&mut self) -> u64 {
        self.writer.syncs.want(self.watermarks.received);
        self.watermarks.received
    }

    pub(crate) fn request_rotate(&mut self, reply: RotateReply) {
        self.lifecycle.rotate_replies.push(reply);
        if self.lifecycle.is_over() {
            self.lifecycle.refuse_rotations(); // no thread looks any more
        }
    }

    pub(crate) fn close(&mut self) {
        self.lifecycle.closing = true;
        self.watermarks.version += 1;
    }

    /// Abandons a clean end.
    pub(crate) fn abandon(&mut self) {
        self.lifecycle.end(false);
        self.watermarks.version += 1;
    }

    /// Sets the disk state as the start saw it. The first check decides on the report to the operator.
    pub(crate) fn begin_with(&mut self, free_segments: u64, block: u32) {
        self.segments.supply.begin_with(free_segments);
        self.segments.block = block.into();
    }

    /// Changes the settings of `group_commit`.
    pub(crate) fn set_group_commit(&mut self, delay: Duration, bytes: u32, writes: usize) {
        let batch_bytes_max = largest_batch(self.segments.segment_bytes);
        self.writer.set_group_commit(delay, bytes, writes, batch_bytes_max);
    }

    /// Submits a prepared segment; `false` when it is not wanted any more.
    pub(crate) fn set_prepared(&mut self, prepared: SegmentHeader) -> bool {
        let wanted = self.wants_prepared().is_some_and(|(number, _)| number == prepared.number);
        if wanted {
            self.segments.supply.made(prepared);
            self.watermarks.version += 1;
        }
        wanted
    }

    /// Notes that no segment can be created now: room on the disk counts again after one was created.
    pub(crate) fn cannot_make(&mut self, reason: String) {
        self.segments.supply.cannot_make(reason);
        self.watermarks.version += 1;
    }

    /// Sets the number of further segments that have room, as just seen. Not called while one is created: it would
    /// count twice.
    pub(crate) fn set_free_segments(&mut self, free_segments: u64) -> SpaceNews {
        if self.lifecycle.busy {
            return SpaceNews { changed: false, report: false };
        }
        let news = self.segments.supply.look(free_segments);
        self.watermarks.version += u64::from(news.changed);
        news
    }
}
