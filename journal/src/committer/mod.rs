//! The committer: decides what reaches the disk when, and when an acknowledgement may be released.
//!
//! A plain state machine: threads (or a simulation) ask it for the next [`Job`], carry it out without holding it, and
//! give it the result. It never touches the disk itself.
//!
//! What must hold:
//! 1. Offsets are given in one place, under one lock, dense and in the order in which batches reach the disk.
//! 2. `written` moves over a batch only when its write and all before it have completed; `durable` only when each of
//!    them was synced by its own write, or by a sync that was **started** after its write had completed.
//! 3. After a failed write or sync nothing is released: the marks stand still until recovery has written everything
//!    that was not released elsewhere, synced and sealed it.
//! 4. A batch's memory, and the permits that were counted for it, stay until the disk does not need them.
//! 5. A rotation begins when nothing is in flight: the footer is synced before a batch goes into the next segment.
//!
//! How batches form: with nothing in flight a batch leaves at once. With a write in flight, a further one is started
//! only when what gathered is worth it (64 KiB) or has waited `max_delay`; else it waits for the completion and takes
//! everything along. The obvious other way, a fixed delay before each sync, makes a lone writer wait for nobody.
//! Where somebody waits for `written`, the batch is written first and synced after, so that the write alone releases
//! them.

mod job;
mod results;
mod sequencer;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use crate::active::Active;
use crate::clock::Moment;
use crate::config::{JournalConfig, Policy, SEGMENT_SLACK};
use crate::env::Trigger;
use crate::faults::Fault;
use crate::format::segment::SegmentHeader;
use crate::gather::{Batch, Gather, Gathered};
use crate::io::Durability;
use crate::marks::Marks;
use crate::prepare::Prepared;
use crate::producer::{ProducerId, ProducerTable};

pub use job::{Accepted, Append, Item, RotateAnswer, Sender};
pub(crate) use job::{Done, FailedJob, Failure, Job, Rescue, RotateReply, Rotation, Step, SyncBy, Turn};

/// What has gathered is worth a further write in flight.
const WORTH_ANOTHER: usize = 64 * 1024;
/// The log is idle after this; then its last watermarks are vouched for.
const IDLE_NS: u64 = 100_000_000;
/// First pause before a recovery, doubled to the last.
const RETRY_NS: u64 = 1_000_000_000;
const RETRY_MAX_NS: u64 = 60_000_000_000;
/// Under `fire_and_forget`, after a batch of so many records, the next one gathers for so long (or to 64 KiB).
const CROWD: u32 = 32;
const GATHER_NS: u64 = 100_000;
/// Under `fire_and_forget` a sync beside the writes is begun at so many unsynced bytes, whatever the interval.
const SYNC_AHEAD: u64 = 16 << 20;
/// Pause before space for a further segment is looked for again.
const SPACE_NS: u64 = 200_000_000;

struct InFlight {
    id: u64,
    batch: Arc<Batch>,
    shares: Vec<Arc<Batch>>,
    /// Given back when this entry goes: the memory that was counted is free then.
    _permit: Option<OwnedSemaphorePermit>,
    since_boot_ns: u64,
    /// Bytes of the file that its write covers.
    range: (u64, u64),
    written: bool,
    durable: bool,
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
    marks: Marks,
    producers: ProducerTable,
    /// As of what was submitted: what a footer snapshots.
    submitted: ProducerTable,
    connected: HashMap<ProducerId, u32>,
    connected_set: HashSet<ProducerId>,
    gather: Gather,
    in_flight: VecDeque<InFlight>,
    writes: usize,
    free_files: Vec<usize>,
    /// Writes in flight that the operator wants; the segment in use may be open for fewer.
    wanted_writes: usize,
    file_of: HashMap<u64, usize>,
    vouching: Option<(u64, Vec<Arc<Batch>>)>,
    sync_running: bool,
    busy: bool,
    /// What is under way is one more try to open a segment.
    opening: bool,
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
    /// Until when the next batch gathers, under `fire_and_forget`, because the last one was a crowd.
    gather_until_ns: u64,
    rotate_replies: Vec<RotateReply>,
    closing: bool,
    space_low: bool,
    /// As the operator was told: a rotation that finds no room knows it first, and tells nobody.
    space_told: bool,
    open_retry_ns: u64,
    rewritten: bool,
}

/// What a look at the free space brought.
pub(crate) struct SpaceNews {
    /// Appends are refused that were taken before, or the other way round.
    pub(crate) changed: bool,
    /// The operator does not know yet.
    pub(crate) tell: bool,
}

impl Committer {
    pub(crate) fn new(config: JournalConfig, producers: ProducerTable, next: u64, epoch: u32, now_ns: u64) -> Self {
        let max_bytes = match config.policy {
            Policy::GroupCommit { max_bytes, .. } | Policy::SyncFileRange { max_bytes, .. } => max_bytes as usize,
            Policy::PerMessage => 0,
            Policy::FireAndForget { .. } => 1 << 20,
        };
        // A batch must fit into an empty segment, as the largest append does: behind its end nothing is prepared.
        let largest = config.segment_bytes.saturating_sub(SEGMENT_SLACK);
        let max_bytes = max_bytes.min(usize::try_from(largest).unwrap_or(usize::MAX));
        let marks =
            Marks { epoch, epoch_first: next, received: next, written: next, durable: next, ..Marks::default() };
        Self {
            state: State::Running,
            marks,
            submitted: producers.clone(),
            producers,
            connected: HashMap::new(),
            connected_set: HashSet::new(),
            gather: Gather::new(max_bytes),
            in_flight: VecDeque::new(),
            writes: 0,
            free_files: (0..config.policy.in_flight()).rev().collect(),
            file_of: HashMap::new(),
            wanted_writes: config.policy.in_flight(),
            vouching: None,
            sync_running: false,
            busy: false,
            opening: false,
            next_id: 0,
            active: None,
            prepared: None,
            recent: VecDeque::new(),
            recent_bytes: 0,
            idle_since_ns: now_ns,
            last_sync_ns: now_ns,
            sync_target: 0,
            unsynced_bytes: 0,
            gather_until_ns: 0,
            rotate_replies: Vec::new(),
            closing: false,
            space_low: false,
            space_told: false,
            open_retry_ns: 0,
            rewritten: false,
            config,
        }
    }

    /// The number to prepare now, if one is wanted; and how full the active segment is, for the pace.
    pub(crate) fn wants_prepared(&self) -> Option<(u64, u32)> {
        let running = self.state == State::Running && !self.closing && !self.busy;
        let active = self.active.as_ref()?;
        (running && self.prepared.is_none()).then_some((active.number + 1, self.marks.epoch))
    }

    /// Whether segments change hands just now.
    pub(crate) fn is_rotating(&self) -> bool {
        self.busy && self.state == State::Running
    }

    /// Whether a segment waits to be used.
    pub(crate) fn has_prepared(&self) -> bool {
        self.prepared.is_some()
    }

    /// Takes over a segment that an earlier run had prepared.
    pub(crate) fn adopt(&mut self, prepared: Prepared) {
        self.prepared = Some(prepared);
    }

    /// The active segment's header, cloned only when it is another than `known`.
    pub(crate) fn active_header(&self, known: Option<SegmentHeader>) -> Option<SegmentHeader> {
        let active = self.active.as_ref()?;
        match known {
            Some(header) if header == active.header => Some(header),
            _ => Some(active.header.clone()),
        }
    }

    pub(crate) fn set_rotate_after(&mut self, age: std::time::Duration) {
        self.config.rotate_after = age;
    }

    /// Other settings of `group_commit`; nothing under another policy. More writes in flight begin with the next segment,
    /// which is opened for them.
    pub(crate) fn set_group_commit(&mut self, delay: std::time::Duration, bytes: u32, writes: usize) {
        if let Policy::GroupCommit { max_delay, max_bytes, in_flight }
        | Policy::SyncFileRange { max_delay, max_bytes, in_flight } = &mut self.config.policy
        {
            (*max_delay, *max_bytes) = (delay, bytes);
            *in_flight = writes.min(*in_flight);
            self.gather.set_max_bytes(bytes as usize);
            self.wanted_writes = writes;
        }
    }

    /// A segment is there that is open for so many writes.
    fn allow_writes(&mut self, open_for: usize) {
        if let Policy::GroupCommit { in_flight, .. } | Policy::SyncFileRange { in_flight, .. } = &mut self.config.policy
        {
            *in_flight = self.wanted_writes.min(open_for);
        }
    }

    pub(crate) fn set_max_producers(&mut self, max: usize) {
        self.producers.set_max(max);
        self.submitted.set_max(max);
    }

    /// Part of the active segment that is used, 0 to 1.
    pub(crate) fn fill(&self) -> f64 {
        self.active.as_ref().map_or(0.0, |a| a.pos as f64 / a.header.capacity as f64)
    }

    /// Hands over a prepared segment; `false` when it is not wanted any more.
    pub(crate) fn set_prepared(&mut self, prepared: Prepared) -> bool {
        match self.wants_prepared() {
            Some((number, _)) if number == prepared.header.number => {
                self.prepared = Some(prepared);
                self.marks.version += 1;
                true
            }
            _ => false,
        }
    }

    /// Whether there is room for a further segment, as somebody has just seen.
    pub(crate) fn set_space_low(&mut self, low: bool) -> SpaceNews {
        let changed = self.space_low != low;
        let tell = self.space_told != low;
        self.space_low = low;
        self.space_told = low;
        if changed {
            self.marks.version += 1;
            self.open_retry_ns = 0;
        }
        SpaceNews { changed, tell }
    }

    /// The batch that holds an offset, if it is written and still in memory.
    pub(crate) fn recent(&self, offset: u64) -> Option<Arc<Batch>> {
        if offset >= self.marks.written {
            return None;
        }
        let at = self.recent.partition_point(|b| b.end_offset() <= offset);
        self.recent.get(at).filter(|b| b.first_offset <= offset).cloned()
    }

    /// The active segment's number, first offset, and where to start looking for an offset.
    pub(crate) fn seek(&self, offset: u64) -> Option<(u64, u64, Option<u64>)> {
        self.active.as_ref().map(|a| (a.number, a.first_offset, a.seek(offset)))
    }

    pub(crate) fn active_summary(&self) -> Option<(u64, u64, u64, u64)> {
        self.active.as_ref().map(|a| (a.number, a.first_offset, a.pos, a.header.capacity))
    }

    pub(crate) fn segments_held(&self) -> usize {
        usize::from(self.active.is_some()) + usize::from(self.prepared.is_some())
    }

    pub(crate) fn oldest_undurable_boot_ns(&self) -> Option<u64> {
        match self.in_flight.front() {
            Some(oldest) => Some(oldest.since_boot_ns),
            None if self.marks.durable < self.marks.written => Some(self.last_sync_ns),
            None => self.gather.front().map(|(_, since, _)| since),
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
                let (due, quiet) = (*due_boot_ns, self.writes == 0 && !self.sync_running);
                return match quiet && now.boot_ns >= due {
                    true => self.begin_rescue(),
                    false => Step::Wait(quiet.then_some(due)),
                };
            }
            State::Running => {}
        }
        let quiet = self.writes == 0 && !self.sync_running;
        if self.active.is_none() {
            return self.begin_open(now);
        }
        if self.active.as_ref().is_some_and(Active::is_empty) {
            for reply in self.rotate_replies.drain(..) {
                let _ = reply.send(Ok(None));
            }
        }
        if let Some(trigger) = self.rotation_due(now) {
            return if quiet { self.begin_rotation(trigger) } else { self.sync_or_wait(now, None) };
        }
        if let Some(step) = self.begin_write(now) {
            return step;
        }
        if self.closing && self.gather.is_empty() {
            return if quiet { self.begin_close() } else { Step::Wait(None) };
        }
        self.sync_or_wait(now, self.write_deadline())
    }

    fn rotation_due(&self, now: Moment) -> Option<Trigger> {
        let active = self.active.as_ref()?;
        if active.is_empty() {
            return None;
        }
        if !self.rotate_replies.is_empty() {
            return Some(Trigger::Command);
        }
        if let Some((len, ..)) = self.gather.front() {
            let stored = (len + crate::format::batch::LEN) as u64;
            let fresh = self.writes > 0;
            if !active.fits(stored, fresh, self.footer_len(active)) {
                return Some(Trigger::Size);
            }
        }
        let age = self.config.rotate_after.as_nanos() as u64;
        let old = age > 0 && active.first_append_boot_ns.is_some_and(|t| now.boot_ns.saturating_sub(t) >= age);
        old.then_some(Trigger::Age)
    }

    /// Whose turn it is where a ring stands beside the thread that blocks.
    pub(crate) fn turn(&self, now: Moment) -> Turn {
        let running = self.state == State::Running && !self.busy && !self.closing;
        let beside = self.writes > 0 || self.sync_running || self.gather.bytes() >= WORTH_ANOTHER;
        match running && beside && self.active.is_some() && self.rotation_due(now).is_none() {
            true => Turn::Ring,
            false => Turn::Thread,
        }
    }

    fn begin_write(&mut self, now: Moment) -> Option<Step> {
        let (_, since, wants_written) = self.gather.front()?;
        let in_flight = self.writes + usize::from(self.sync_running);
        let may = match self.config.policy {
            Policy::GroupCommit { max_delay, in_flight: max, .. }
            | Policy::SyncFileRange { max_delay, in_flight: max, .. } => {
                let waited = now.boot_ns.saturating_sub(since) >= max_delay.as_nanos() as u64;
                let worth = self.gather.bytes() >= WORTH_ANOTHER || waited;
                in_flight == 0 || (wants_written && self.writes == 0) || (worth && self.writes < max)
            }
            Policy::PerMessage => in_flight == 0,
            Policy::FireAndForget { .. } => {
                self.writes == 0 && (now.boot_ns >= self.gather_until_ns || self.gather.bytes() >= WORTH_ANOTHER)
            }
        };
        if !may || self.vouching.is_some() {
            return None;
        }
        let slot = self.free_files.pop()?;
        let Gathered { batch, rows, permit, .. } = self.gather.pop().expect("there is a front");
        for row in &rows {
            self.submitted.store(&row.header, row.first_offset, now.real_ns, &self.connected_set);
        }
        // A write to the page cache is over at once: in a crowd each would be followed by another with next to nothing in
        // it, and the waking of everybody would cost more than the writing.
        self.gather_until_ns = if batch.count >= CROWD { now.boot_ns + GATHER_NS } else { 0 };
        let (fresh, alone) = (self.writes > 0 && !self.config.faults.has(Fault::TwoWritesInOneBlock), in_flight == 0);
        let sync = self.how_to_sync();
        let active = self.active.as_mut().expect("checked by step");
        let placed = active.place(&batch, fresh, &self.marks, now);
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
        self.file_of.insert(id, slot);
        let shares = placed.shares.clone();
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

    fn write_deadline(&self) -> Option<u64> {
        let (_, since, _) = self.gather.front()?;
        match (self.config.policy, self.config.policy.grouping()) {
            (_, Some((max_delay, in_flight))) if self.writes < in_flight && self.vouching.is_none() => {
                Some(since + max_delay.as_nanos() as u64)
            }
            (Policy::FireAndForget { .. }, _) if self.writes == 0 => Some(self.gather_until_ns),
            _ => None,
        }
    }

    /// How a synced write into the active segment is made safe: by a range sync under its policy, but only over space
    /// that was seen to be written and its own when the segment was opened.
    fn how_to_sync(&self) -> SyncBy {
        let in_place = self.active.as_ref().is_some_and(|a| a.in_place);
        match self.config.policy {
            Policy::SyncFileRange { .. } if in_place => SyncBy::Range,
            _ => SyncBy::Data,
        }
    }

    /// Starts a sync, a vouch, or says until when there is nothing to do.
    fn sync_or_wait(&mut self, now: Moment, deadline: Option<u64>) -> Step {
        let mut until = deadline;
        if let (Some((max_delay, _)), true) = (self.config.policy.grouping(), self.writes > 0) {
            // Someone keeps the time while a write is slow: what gathers meanwhile may be due for one of its own.
            let tick = now.boot_ns + (max_delay.as_nanos() as u64).max(1_000_000);
            until = Some(until.map_or(tick, |u| u.max(now.boot_ns).min(tick)));
        }
        let mut by = |t: u64| until = Some(until.map_or(t, |u| u.min(t)));
        if self.marks.written > self.marks.durable && !self.sync_running {
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
        if self.writes == 0
            && !self.sync_running
            && self.gather.is_empty()
            && !self.closing
            && let Some(active) = &self.active
            && !active.is_empty()
        {
            if active.vouched != (self.marks.written, self.marks.durable) {
                match self.idle_since_ns + IDLE_NS {
                    t if t <= now.boot_ns => return self.begin_vouch(now),
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

    /// Before the interval is over: somebody asked, or so much is unsynced that sealing the segment would stall on it.
    fn wants_early_sync(&self) -> bool {
        self.sync_target > self.marks.durable || self.unsynced_bytes >= SYNC_AHEAD
    }

    fn begin_sync(&mut self, now: Moment) -> Step {
        let Some(active) = &self.active else { return Step::Wait(None) };
        self.sync_running = true;
        self.last_sync_ns = now.boot_ns;
        self.unsynced_bytes = 0;
        let file = active.files.last().expect("one more file than writes in flight").clone();
        // Read before the sync starts: it covers what had completed by now, and nothing later.
        let upto = self.marks.written;
        let waiting = || self.in_flight.iter().filter(|e| !e.durable && e.batch.end_offset() <= upto).map(|e| e.range);
        let range = match self.how_to_sync() {
            SyncBy::Data => None,
            SyncBy::Range => waiting().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))),
        };
        Step::Run(Job::Sync { file, upto, range })
    }

    fn begin_vouch(&mut self, now: Moment) -> Step {
        let marks = self.marks;
        let footer = self.active.as_ref().map_or(0, |a| self.footer_len(a));
        let Some(active) = self.active.as_mut() else { return Step::Wait(None) };
        if !active.fits(crate::format::batch::LEN as u64, false, footer) {
            active.vouched = (marks.written, marks.durable); // no room: the footer will vouch
            return self.sync_or_wait(now, None);
        }
        let Some(slot) = self.free_files.pop() else { return Step::Wait(None) };
        let placed = active.vouch(&marks, now, self.config.faults);
        let id = self.next_id;
        self.next_id += 1;
        self.writes += 1;
        self.file_of.insert(id, slot);
        self.vouching = Some((id, placed.shares.clone()));
        let (file, durability, sync) = (active.files[slot].clone(), Durability::Written, SyncBy::Data);
        Step::Run(Job::Write { id, file, placed, durability, sync, alone: true })
    }

    fn begin_open(&mut self, now: Moment) -> Step {
        for reply in self.rotate_replies.drain(..) {
            let _ = reply.send(Ok(None));
        }
        if self.closing && self.gather.is_empty() {
            self.busy = true;
            return Step::Run(Job::Close(None));
        }
        if now.boot_ns < self.open_retry_ns {
            return Step::Wait(Some(self.open_retry_ns));
        }
        (self.busy, self.opening) = (true, true);
        // Nothing is in flight, so what was submitted is written: the next batch goes on there.
        Step::Run(Job::Open { prepared: self.prepared.take(), next: self.marks.written, epoch: self.marks.epoch })
    }

    fn rotation(&mut self, trigger: Trigger) -> Option<Box<Rotation>> {
        let active = self.active.take()?;
        let mut footer = active.footer();
        footer.producers = self.submitted.snapshot();
        let unsynced = self.marks.durable < self.marks.written;
        let prepared = self.prepared.take();
        Some(Box::new(Rotation { active, footer, unsynced, prepared, trigger }))
    }

    fn begin_rotation(&mut self, trigger: Trigger) -> Step {
        match self.rotation(trigger) {
            Some(rotation) => {
                self.busy = true;
                Step::Run(Job::Rotate(rotation))
            }
            None => Step::Wait(None),
        }
    }

    fn begin_close(&mut self) -> Step {
        self.busy = true;
        for reply in self.rotate_replies.drain(..) {
            let _ = reply.send(Ok(None));
        }
        let rotation = self.rotation(Trigger::Close);
        Step::Run(Job::Close(rotation))
    }

    fn begin_rescue(&mut self) -> Step {
        let State::Failed { rescue_from, .. } = &self.state else { return Step::Wait(None) };
        let from = *rescue_from;
        self.busy = true;
        let mut held: HashMap<u64, Arc<Batch>> = HashMap::new();
        for entry in &self.in_flight {
            for batch in entry.shares.iter().chain([&entry.batch]) {
                held.insert(batch.first_offset, batch.clone());
            }
        }
        for batch in self.vouching.iter().flat_map(|v| v.1.iter()).chain(&self.recent) {
            held.insert(batch.first_offset, batch.clone());
        }
        // What waits has its offsets already; it goes along.
        while let Some(g) = self.gather.pop() {
            held.insert(g.batch.first_offset, g.batch.clone());
            self.in_flight.push_back(InFlight {
                id: u64::MAX,
                batch: g.batch,
                shares: Vec::new(),
                _permit: g.permit,
                since_boot_ns: g.since_boot_ns,
                range: (0, 0),
                written: false,
                durable: false,
            });
        }
        let mut held: Vec<_> = held.into_values().filter(|b| b.end_offset() > from).collect();
        held.sort_by_key(|b| b.first_offset);
        Step::Run(Job::Recover(Box::new(Rescue {
            active: self.active.take(),
            prepared: self.prepared.take(),
            from,
            next: if self.config.faults.has(Fault::OffsetReused) { from } else { self.marks.received },
            held,
            producers: self.producers.clone(),
            rewritten: self.rewritten,
        })))
    }
}

#[cfg(test)]
mod space_tests {
    use super::*;

    #[test]
    fn room_that_a_rotation_missed_first_is_told_all_the_same_and_once() {
        let producers = ProducerTable::new(1, 1, 1);
        let mut c = Committer::new(JournalConfig::default(), producers, 0, 1, 0);
        let now = Moment { real_ns: 0, boot_ns: 0 };
        assert!(matches!(c.step(now), Step::Run(Job::Open { .. })));
        c.complete(Ok(Done::Opened { next: None }), now);
        let news = c.set_space_low(true);
        assert!(news.tell && !news.changed);
        assert!(!c.set_space_low(true).tell);
        let news = c.set_space_low(false);
        assert!(news.tell && news.changed);
    }

    #[test]
    fn room_that_was_missing_for_a_moment_is_no_news_and_wakes_all_the_same() {
        let producers = ProducerTable::new(1, 1, 1);
        let mut c = Committer::new(JournalConfig::default(), producers, 0, 1, 0);
        let now = Moment { real_ns: 0, boot_ns: 0 };
        assert!(matches!(c.step(now), Step::Run(Job::Open { .. })));
        c.complete(Ok(Done::Opened { next: None }), now);
        let news = c.set_space_low(false);
        assert!(!news.tell && news.changed);
    }
}
