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
mod control;
mod facts;
mod job;
mod long;
mod results;
mod room;
mod settings;
#[cfg(test)]
mod tests;
mod writes;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::clock::Moment;
use crate::config::{JournalConfig, Policy, SEGMENT_OVERHEAD_BYTES};
use crate::env::Trigger;
use crate::format::footer::Damage;
use crate::format::meta::EpochStart;
use crate::write::active::{Active, Shares};
use crate::write::batch::{Batch, BatchBuilder};
use crate::write::owner_bytes::Quota;
use crate::write::permits::Permit;
use crate::write::producer::ProducerTable;
use crate::write::segment_supply::SegmentSupply;
use crate::write::sequencer::Sequencer;
use crate::write::watermarks::Watermarks;

pub use job::{Accepted, AfterRefusal, Append, Item, RotateAnswer, Sender};
pub(crate) use job::{
    Done, FailedJob, Failure, Job, NoSegment, Rescue, RotateReply, Rotation, Step, SyncBy, Turn, Wanted,
};

/// Size of the open batch that is worth a further write in flight.
const CONCURRENT_WRITE_BYTES_MIN: usize = 64 * 1024;
/// After this time without appends the log is idle; then a commit marker stores its last watermarks.
const IDLE_COMMIT_MARKER_DELAY_NS: u64 = 100_000_000;
/// First pause before a recovery, doubled to the last.
const RECOVERY_RETRY_NS_MIN: u64 = 1_000_000_000;
const RECOVERY_RETRY_NS_MAX: u64 = 60_000_000_000;
/// Under `fire_and_forget`, after a batch of so many records, the next batch stays open for so long (or to 64 KiB).
const BUSY_BATCH_RECORDS_MIN: u32 = 32;
const BUSY_BATCH_DELAY_NS: u64 = 100_000;
/// Under `fire_and_forget` a sync beside the writes begins at so many unsynced bytes, whatever the interval.
const EARLY_SYNC_BYTES: u64 = 16 << 20;

struct InFlight {
    id: u64,
    batch: Arc<Batch>,
    shares: Shares,
    /// Released when this entry is dropped: the memory that was counted is free then.
    _permit: Option<Permit>,
    since_boot_ns: u64,
    /// Bytes of the file that its write covers.
    range: (u64, u64),
    written: bool,
    durable: bool,
}

/// Written data that waits for a separate sync: batches, if the policy does not sync writes; a commit marker, under
/// any policy.
#[derive(Clone, Copy, Debug)]
struct Unsynced {
    /// Boot time at which the oldest batch of it was taken.
    since_boot_ns: Option<u64>,
    /// First offset in the block in which it begins: a write repeats that block, so that offset is affected too.
    from: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Nothing is released; recovery is due at this boot time.
    Failed {
        reason: String,
        due_boot_ns: u64,
        pause_ns: u64,
        rescue_from: u64,
    },
    Closed {
        clean: bool,
    },
}

/// The state.
pub(crate) struct Committer {
    config: JournalConfig,
    state: State,
    watermarks: Watermarks,
    pub(crate) sequencer: Sequencer,
    /// Everything below this was submitted: a footer's producer state ends here at most.
    submitted_end: u64,
    pub(crate) quota: Quota,
    builder: BatchBuilder,
    in_flight: VecDeque<InFlight>,
    writes: usize,
    free_files: Vec<usize>,
    /// Number of writes in flight that the operator wants; the active segment may be open for fewer.
    wanted_writes: usize,
    /// File index of each write in flight; there are only a few files.
    file_of: Vec<(u64, usize)>,
    control_write: Option<(u64, Shares)>,
    sync_running: bool,
    busy: bool,
    next_id: u64,
    active: Option<Active>,
    /// Segments behind the active one.
    supply: SegmentSupply,
    recent: VecDeque<Arc<Batch>>,
    recent_bytes: usize,
    idle_since_ns: u64,
    last_sync_ns: u64,
    sync_target: u64,
    /// Written since the last sync began, under `fire_and_forget`.
    unsynced_bytes: u64,
    unsynced: Option<Unsynced>,
    /// Data that was unsynced when the running sync began.
    syncing: Option<Unsynced>,
    /// Time until which the next batch stays open, under `fire_and_forget`, because the last one had many records.
    batch_open_until_ns: u64,
    rotate_replies: Vec<RotateReply>,
    closing: bool,
    /// Block size of a write, as the last segment reported.
    block: u64,
    rewritten: bool,
    /// Offsets that recovery could not restore.
    lost: Vec<Damage>,
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
        let max_bytes = match config.policy {
            Policy::GroupCommit { max_bytes, .. } | Policy::SyncFileRange { max_bytes, .. } => max_bytes as usize,
            Policy::PerMessage => 0,
            Policy::FireAndForget { .. } => 1 << 20,
        };
        let max_bytes = max_bytes.min(largest_batch(config.segment_bytes));
        // A start after a clean end resumes an epoch that began long before.
        let (epoch, epoch_first) = (began.epoch, began.first_offset);
        let watermarks =
            Watermarks { epoch, epoch_first, received: next, written: next, durable: next, ..Watermarks::default() };
        Self {
            state: State::Running,
            watermarks,
            sequencer: Sequencer::new(producers, config.faults),
            submitted_end: next,
            quota: Quota { most: config.retention.per_owner_bytes, ..Quota::default() },
            builder: BatchBuilder::new(max_bytes),
            in_flight: VecDeque::new(),
            writes: 0,
            free_files: (0..config.policy.in_flight()).rev().collect(),
            file_of: Vec::new(),
            wanted_writes: config.policy.in_flight(),
            control_write: None,
            sync_running: false,
            busy: false,
            next_id: 0,
            active: None,
            supply: SegmentSupply::default(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            idle_since_ns: now_ns,
            last_sync_ns: now_ns,
            sync_target: 0,
            unsynced_bytes: 0,
            unsynced: None,
            syncing: None,
            batch_open_until_ns: 0,
            rotate_replies: Vec::new(),
            closing: false,
            block: 4096,
            rewritten: false,
            lost: Vec::new(),
            config,
        }
    }

    /// Returns the next step. A returned job counts as begun: its result must be passed to [`Self::complete`].
    pub(crate) fn step(&mut self, now: Moment) -> Step {
        if self.busy {
            return Step::Wait(None);
        }
        match &self.state {
            State::Closed { .. } => return Step::Exit,
            State::Failed { due_boot_ns, .. } => {
                let (due, idle) = (*due_boot_ns, self.writes == 0 && !self.sync_running);
                return match idle && now.boot_ns >= due {
                    true => self.begin_rescue(),
                    false => Step::Wait(idle.then_some(due)),
                };
            }
            State::Running => {}
        }
        let idle = self.writes == 0 && !self.sync_running;
        if self.active.is_none() {
            return self.begin_open(now);
        }
        if self.active.as_ref().is_some_and(Active::is_empty) {
            for reply in self.rotate_replies.drain(..) {
                let _ = reply.send(Ok(None));
            }
        }
        if let Some(trigger) = self.rotation_due(now) {
            return if idle { self.begin_rotation(trigger, now) } else { self.sync_or_wait(now, None) };
        }
        if self.sequencer.tombstones.are_due()
            && let Some(step) = self.begin_tombstones(now)
        {
            return step;
        }
        if self.holds_back_for_tombstones() {
            return self.sync_or_wait(now, None);
        }
        if let Some(step) = self.begin_write(now) {
            return step;
        }
        if self.closing && self.builder.is_empty() {
            // A segment without a batch is not sealed: no footer would name the forgotten producers.
            if idle
                && !self.sequencer.tombstones.is_empty()
                && self.active.as_ref().is_some_and(Active::is_empty)
                && let Some(step) = self.begin_tombstones(now)
            {
                return step;
            }
            return if idle { self.begin_close(now) } else { Step::Wait(None) };
        }
        self.sync_or_wait(now, self.write_deadline())
    }

    fn rotation_due(&self, now: Moment) -> Option<Trigger> {
        let active = self.active.as_ref()?;
        if active.is_empty() {
            return None;
        }
        // The waiting appends were accepted because they fit into this segment, where there is no other: they go
        // first.
        let may_leave = self.builder.is_empty() || self.can_have_next();
        if !self.rotate_replies.is_empty() && may_leave {
            return Some(Trigger::Command);
        }
        if let Some((len, ..)) = self.builder.front() {
            let stored = (len + crate::format::batch::LEN) as u64;
            let fresh = self.writes > 0;
            if !active.fits(stored, fresh, self.footer_len(active)) {
                return Some(Trigger::Size);
            }
        }
        let age = self.config.rotate_after.as_nanos() as u64;
        let old = age > 0 && active.first_append_boot_ns.is_some_and(|t| now.boot_ns.saturating_sub(t) >= age);
        (old && may_leave).then_some(Trigger::Age)
    }

    /// True if nothing is under way and the next job is a write or a sync, which any thread may make.
    pub(crate) fn allows_inline_write(&self, now: Moment) -> bool {
        let running = self.state == State::Running && !self.busy && !self.closing;
        let idle = self.writes == 0 && !self.sync_running;
        running && idle && self.active.is_some() && self.rotation_due(now).is_none()
    }

    /// Taker of the next job, where a ring runs beside the blocking thread.
    pub(crate) fn turn(&self, now: Moment) -> Turn {
        let running = self.state == State::Running && !self.busy && !self.closing;
        let beside = self.writes > 0 || self.sync_running || self.builder.bytes() >= CONCURRENT_WRITE_BYTES_MIN;
        match running && beside && self.active.is_some() && self.rotation_due(now).is_none() {
            true => Turn::Ring,
            false => Turn::Thread,
        }
    }
}
