//! The committer: decides what reaches the disk when, and when an acknowledgement may be released.
//!
//! A plain state machine: threads (or a simulation) ask it for the next [`Job`], carry it out without holding it, and
//! give it the result. It never touches the disk itself.
//!
//! What must hold:
//! 1. Offsets are given in one place, under one lock, dense and in the order in which batches reach the disk.
//! 2. `written` moves over a batch only when its write and all before it have completed; `durable` only when each of
//!    them was synced by its own write, or by a sync that was **started** after its write had completed.
//! 3. After a failed write or sync nothing is released: the watermarks stand still until recovery has written everything
//!    that was not released elsewhere, synced and sealed it.
//! 4. A batch's memory, and the permits that were counted for it, stay until the disk does not need them.
//! 5. What has an offset fits into segments that are there or can be had ([`room`]).
//! 6. A rotation begins when nothing is in flight: the footer is synced before a batch goes into the next segment.
//!
//! How batches form: with nothing in flight a batch leaves at once. With a write in flight, a further one is started only when what gathered is worth it (64 KiB) or has waited `max_delay`; else it waits for the completion and takes
//! everything along. The obvious other way, a fixed delay before each sync, makes a lone writer wait for nobody.
//! Where somebody waits for `written`, the batch is written first and synced after, so that the write alone releases
//! them.

mod facts;
mod job;
mod long;
mod results;
mod room;
mod sequencer;
mod settings;
#[cfg(test)]
mod tests;
mod tombstones;
mod writes;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::active::{Active, Shares};
use crate::batch_builder::{Batch, BatchBuilder};
use crate::clock::Moment;
use crate::config::{JournalConfig, Policy, SEGMENT_OVERHEAD_BYTES};
use crate::env::Trigger;
use crate::format::footer::Damage;
use crate::format::meta::EpochStart;
use crate::owner_bytes::Quota;
use crate::permit::Permit;
use crate::prepare::Prepared;
use crate::producer::{ProducerId, ProducerTable};
use crate::watermark::Watermarks;

pub use job::{Accepted, Append, Item, RotateAnswer, Sender};
pub(crate) use job::{
    Done, FailedJob, Failure, Job, NoSegment, Rescue, RotateReply, Rotation, Step, SyncBy, Turn, Wanted,
};

/// What has gathered is worth a further write in flight.
const CONCURRENT_WRITE_BYTES_MIN: usize = 64 * 1024;
/// The log is idle after this; then its last watermarks are vouched for.
const IDLE_COMMIT_MARKER_DELAY_NS: u64 = 100_000_000;
/// First pause before a recovery, doubled to the last.
const RECOVERY_RETRY_NS_MIN: u64 = 1_000_000_000;
const RECOVERY_RETRY_NS_MAX: u64 = 60_000_000_000;
/// Under `fire_and_forget`, after a batch of so many records, the next one gathers for so long (or to 64 KiB).
const BUSY_BATCH_RECORDS_MIN: u32 = 32;
const BUSY_BATCH_DELAY_NS: u64 = 100_000;
/// Under `fire_and_forget` a sync beside the writes is begun at so many unsynced bytes, whatever the interval.
const EARLY_SYNC_BYTES: u64 = 16 << 20;
/// Pause before space for a further segment is looked for again.
const SPACE_RETRY_NS: u64 = 200_000_000;

struct InFlight {
    id: u64,
    batch: Arc<Batch>,
    shares: Shares,
    /// Given back when this entry goes: the memory that was counted is free then.
    _permit: Option<Permit>,
    since_boot_ns: u64,
    /// Bytes of the file that its write covers.
    range: (u64, u64),
    written: bool,
    durable: bool,
}

/// What was written and waits for a sync of its own: batches, under a policy whose writes are not synced, and a vouch, under any.
#[derive(Clone, Copy, Debug)]
struct Unsynced {
    /// When the oldest batch of it was taken, boot time.
    since_boot_ns: Option<u64>,
    /// The first offset in the block in which it begins: a write repeats that block, so it goes with it.
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
    producers: ProducerTable,
    /// Producers that were forgotten, until the log says so.
    tombstones: tombstones::Tombstones,
    /// Everything below this was submitted: what a footer knows of producers ends here at most.
    submitted_end: u64,
    connected: HashMap<ProducerId, sequencer::Connected>,
    connected_set: HashSet<ProducerId>,
    pub(crate) quota: Quota,
    builder: BatchBuilder,
    in_flight: VecDeque<InFlight>,
    writes: usize,
    free_files: Vec<usize>,
    /// Writes in flight that the operator wants; the segment in use may be open for fewer.
    wanted_writes: usize,
    /// Which of the files each write in flight uses: they are few.
    file_of: Vec<(u64, usize)>,
    control_write: Option<(u64, Shares)>,
    sync_running: bool,
    busy: bool,
    /// What is under way has the segment that it opens: prepared, or claimed of [`Self::free_segments`].
    coming: bool,
    next_id: u64,
    active: Option<Active>,
    prepared: Option<Prepared>,
    recent: VecDeque<Arc<Batch>>,
    recent_bytes: usize,
    idle_since_ns: u64,
    last_sync_ns: u64,
    sync_target: u64,
    /// Written since the last sync began, under `fire_and_forget`.
    unsynced_bytes: u64,
    unsynced: Option<Unsynced>,
    /// What was unsynced when the sync that runs began.
    syncing: Option<Unsynced>,
    /// Until when the next batch gathers, under `fire_and_forget`, because the last one was a crowd.
    batch_open_until_ns: u64,
    rotate_replies: Vec<RotateReply>,
    closing: bool,
    /// Further segments that the disk has room for beside the prepared one, as somebody has seen last, without those that
    /// were claimed since.
    free_segments: u64,
    /// What a write covers, as the last segment said.
    block: u64,
    /// As was told last: no segment is prepared, and there is room for none.
    space_low: bool,
    /// As the operator was told: a rotation that finds no room knows it first, and tells nobody.
    space_reported: bool,
    /// An append was refused for want of a segment behind the active one ([`room`]).
    refused: bool,
    open_retry_ns: u64,
    /// Why the next segment could not be opened, where that is not for want of room; and the pause before the next try.
    unopened: Option<String>,
    open_pause_ns: u64,
    rewritten: bool,
    /// What it could not give back.
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
        // A start after a clean end goes on in an epoch that began long before.
        let (epoch, epoch_first) = (began.epoch, began.first_offset);
        let watermarks =
            Watermarks { epoch, epoch_first, received: next, written: next, durable: next, ..Watermarks::default() };
        Self {
            state: State::Running,
            watermarks,
            producers,
            tombstones: tombstones::Tombstones::default(),
            submitted_end: next,
            connected: HashMap::new(),
            connected_set: HashSet::new(),
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
            coming: false,
            next_id: 0,
            active: None,
            prepared: None,
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
            free_segments: 0,
            block: 4096,
            space_low: false,
            space_reported: false,
            refused: false,
            open_retry_ns: 0,
            unopened: None,
            open_pause_ns: RECOVERY_RETRY_NS_MIN,
            rewritten: false,
            lost: Vec::new(),
            config,
        }
    }

    /// What to do now. A job that is returned counts as begun: its result must be given to [`Self::complete`].
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
        if self.tombstones.are_due()
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
            // A segment without a batch is not sealed: no footer would say who was forgotten.
            if idle
                && !self.tombstones.is_empty()
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
        // What waits was taken because it fits in here, where there is no other: it goes first.
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

    /// Whether nothing is under way and what comes next is a write or a sync, which any thread may make.
    pub(crate) fn allows_inline_write(&self, now: Moment) -> bool {
        let running = self.state == State::Running && !self.busy && !self.closing;
        let idle = self.writes == 0 && !self.sync_running;
        running && idle && self.active.is_some() && self.rotation_due(now).is_none()
    }

    /// Whose turn it is where a ring stands beside the thread that blocks.
    pub(crate) fn turn(&self, now: Moment) -> Turn {
        let running = self.state == State::Running && !self.busy && !self.closing;
        let beside = self.writes > 0 || self.sync_running || self.builder.bytes() >= CONCURRENT_WRITE_BYTES_MIN;
        match running && beside && self.active.is_some() && self.rotation_due(now).is_none() {
            true => Turn::Ring,
            false => Turn::Thread,
        }
    }
}
