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

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::active::{Active, Now, Placed};
use crate::config::{JournalConfig, Policy};
use crate::env::Trigger;
use crate::error::AppendError;
use crate::format::chunk::ChunkHeader;
use crate::format::footer::Footer;
use crate::format::segment::SegmentHeader;
use crate::gather::{Batch, Entering, Gather, Gathered};
use crate::io::{Durability, File};
use crate::marks::{Accepting, Level, Marks};
use crate::prepare::Prepared;
use crate::producer::{ProducerId, ProducerState, ProducerTable, Verdict};

/// What has gathered is worth a further write in flight.
const WORTH_ANOTHER: usize = 64 * 1024;
/// The log is idle after this; then its last watermarks are vouched for.
const IDLE_NS: u64 = 100_000_000;
/// First pause before a recovery, doubled to the last.
const RETRY_NS: u64 = 1_000_000_000;
const RETRY_MAX_NS: u64 = 60_000_000_000;
/// Pause before space for a further segment is looked for again.
const SPACE_NS: u64 = 200_000_000;

/// One append as a caller hands it over.
#[derive(Debug)]
pub struct Append<'a> {
    /// The producer's id.
    pub producer: ProducerId,
    /// Who may use that id.
    pub owner: u64,
    /// The producer's epoch.
    pub producer_epoch: u32,
    /// Sequence of the first record.
    pub first_sequence: u64,
    /// Records.
    pub count: u32,
    /// The sequence may jump ahead.
    pub gap: bool,
    /// The level that somebody waits for.
    pub level: Level,
    /// Least record time.
    pub min_time_ns: i64,
    /// Greatest record time.
    pub max_time_ns: i64,
    /// What the daemon vouches for, at most [`crate::format::chunk::MAX_VOUCH`] bytes.
    pub vouch: &'a [u8],
    /// The records, opaque.
    pub payload: &'a [u8],
    /// The client's own CRC-32C of the payload, already checked.
    pub payload_checksum: u32,
    /// What admission counted for it.
    pub permit: Option<OwnedSemaphorePermit>,
}

/// What an append was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Offset of its first record.
    pub first_offset: u64,
    /// Records.
    pub count: u32,
    /// The epoch in which the watermarks are to be read.
    pub epoch: u32,
    /// [`Marks::failures`] when it was given: a greater number later means "maybe written".
    pub failures: u32,
    /// It was stored before; this is where.
    pub duplicate: bool,
}

/// Something to carry out.
pub(crate) enum Job {
    /// One write.
    Write { id: u64, file: Arc<dyn File>, placed: Placed, durability: Durability },
    /// A sync of everything below `upto`.
    Sync { file: Arc<dyn File>, upto: u64 },
    /// Seal the active segment and open the next one.
    Rotate(Box<Rotation>),
    /// Open a segment where there is none; the next batch has this offset.
    Open { prepared: Option<Prepared>, next: u64, epoch: u32 },
    /// After a failure.
    Recover(Box<Rescue>),
    /// The last: seal, and mark a clean end.
    Close(Option<Box<Rotation>>),
}

/// What a rotation needs.
pub(crate) struct Rotation {
    pub(crate) active: Active,
    pub(crate) footer: Footer,
    pub(crate) unsynced: bool,
    pub(crate) prepared: Option<Prepared>,
    pub(crate) trigger: Trigger,
}

/// What a recovery in the process needs.
pub(crate) struct Rescue {
    pub(crate) active: Option<Active>,
    pub(crate) prepared: Option<Prepared>,
    /// Written again from here.
    pub(crate) from: u64,
    /// The log goes on here.
    pub(crate) next: u64,
    /// What is held in memory of it, by first offset, without gaps where nothing was released.
    pub(crate) held: Vec<Arc<Batch>>,
    /// Producers as of `next`.
    pub(crate) producers: ProducerTable,
    /// An earlier attempt had written, sealed and named the new segment already.
    pub(crate) rewritten: bool,
}

/// What came of a job.
pub(crate) enum Done {
    Write { id: u64, durability: Durability },
    Sync { upto: u64 },
    Rotated { next: Option<Active> },
    Opened { next: Option<Active> },
    Recovered { next: Option<Active>, epoch: u32, end: u64, producers: ProducerTable },
    Closed,
}

/// What to do now.
pub(crate) enum Step {
    Run(Job),
    /// Nothing until an append, a completion, or this boot time.
    Wait(Option<u64>),
    Exit,
}

struct InFlight {
    id: u64,
    batch: Arc<Batch>,
    shares: Vec<Arc<Batch>>,
    /// Given back when this entry goes: the memory that was counted is free then.
    _permit: Option<OwnedSemaphorePermit>,
    since_boot_ns: u64,
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

/// A request to seal the active segment.
pub(crate) type RotateReply = oneshot::Sender<Result<Option<(u64, u64, u64)>, String>>;

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
    file_of: HashMap<u64, usize>,
    vouching: Option<(u64, Vec<Arc<Batch>>)>,
    sync_running: bool,
    busy: bool,
    next_id: u64,
    active: Option<Active>,
    prepared: Option<Prepared>,
    recent: VecDeque<Arc<Batch>>,
    recent_bytes: usize,
    idle_since_ns: u64,
    last_sync_ns: u64,
    sync_target: u64,
    rotate_replies: Vec<RotateReply>,
    closing: bool,
    space_low: bool,
    open_retry_ns: u64,
    rewritten: bool,
}

impl Committer {
    pub(crate) fn new(config: JournalConfig, producers: ProducerTable, next: u64, epoch: u32, now_ns: u64) -> Self {
        let max_bytes = match config.policy {
            Policy::GroupCommit { max_bytes, .. } => max_bytes as usize,
            Policy::PerMessage => 0,
            Policy::FireAndForget { .. } => 1 << 20,
        };
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
            vouching: None,
            sync_running: false,
            busy: false,
            next_id: 0,
            active: None,
            prepared: None,
            recent: VecDeque::new(),
            recent_bytes: 0,
            idle_since_ns: now_ns,
            last_sync_ns: now_ns,
            sync_target: 0,
            rotate_replies: Vec::new(),
            closing: false,
            space_low: false,
            open_retry_ns: 0,
            rewritten: false,
            config,
        }
    }

    // ---- the sequencer: callers -------------------------------------------------------------------------------

    /// Takes an append and gives it its offset, or refuses it; a refusal leaves no trace.
    pub(crate) fn append(&mut self, a: Append<'_>, now: Now) -> Result<Accepted, AppendError> {
        self.accepting()?;
        let limit = self.config.max_append_bytes;
        if a.count == 0 || a.payload.len() > limit as usize {
            return Err(AppendError::Size { limit });
        }
        let header = ChunkHeader {
            flags: 0,
            count: a.count,
            payload_checksum: a.payload_checksum,
            producer: a.producer,
            owner: a.owner,
            first_sequence: a.first_sequence,
            producer_epoch: a.producer_epoch,
        };
        let given = |first_offset, duplicate, m: &Marks| Accepted {
            first_offset,
            count: a.count,
            epoch: m.epoch,
            failures: m.failures,
            duplicate,
        };
        match self.producers.check(&header, a.gap, now.real_ns, &self.connected_set) {
            Verdict::Fresh => {}
            Verdict::Duplicate { first_offset } => return Ok(given(first_offset, true, &self.marks)),
            Verdict::Fenced { current } => return Err(AppendError::Fenced { current }),
            Verdict::NotOwner => return Err(AppendError::NotOwner),
            Verdict::Gap { expected } => return Err(AppendError::Gap { expected }),
            Verdict::Overlap { expected } => return Err(AppendError::Overlap { expected }),
            Verdict::TooOld => return Err(AppendError::TooOld),
            Verdict::TableFull => return Err(AppendError::TooManyProducers),
        }
        self.check_room(ChunkHeader::encoded_len(a.vouch.len(), a.payload.len()))?;
        let first_offset = self.marks.received;
        self.producers.store(&header, first_offset, now.real_ns, &self.connected_set);
        let entering = Entering {
            header: &header,
            vouch: a.vouch,
            payload: a.payload,
            min_time_ns: a.min_time_ns,
            max_time_ns: a.max_time_ns,
            wants_written: a.level == Level::Written,
            permit: a.permit,
        };
        self.gather.push(entering, self.marks.epoch, first_offset, now);
        self.marks.received += u64::from(a.count);
        self.marks.version += 1;
        Ok(given(first_offset, false, &self.marks))
    }

    fn accepting(&self) -> Result<(), AppendError> {
        match &self.state {
            State::Failed { reason, .. } => Err(AppendError::Failed { reason: reason.clone() }),
            State::Closed { .. } => Err(AppendError::Closing),
            State::Running if self.closing => Err(AppendError::Closing),
            State::Running => Ok(()),
        }
    }

    /// Where no further segment can be made, only what surely fits into the ones that are there is taken.
    fn check_room(&self, len: usize) -> Result<(), AppendError> {
        let more = self.gather.bytes() as u64 + len as u64;
        if !self.space_low || (self.prepared.is_some() && more <= self.config.segment_bytes / 2) {
            return Ok(());
        }
        if self.busy {
            // A rotation or a recovery is under way; a little is taken meanwhile, as ever.
            return match self.gather.bytes() as u64 + len as u64 <= self.config.segment_bytes / 4 {
                true => Ok(()),
                false => Err(AppendError::NoSpace),
            };
        }
        let Some(active) = &self.active else { return Err(AppendError::NoSpace) };
        let batches = self.gather.batches() as u64 + 1;
        let stored = self.gather.bytes() as u64 + len as u64 + batches * crate::format::batch::LEN as u64;
        match active.has_room(stored, batches, self.footer_len(active) + 4096) {
            true => Ok(()),
            false => Err(AppendError::NoSpace),
        }
    }

    fn footer_len(&self, active: &Active) -> u64 {
        let t = &self.producers;
        Footer::max_len(active.index_len() + 1, t.len() + 1, t.ranges() + 1, active.header.block_size as usize)
    }

    /// Where a producer stands, for its handshake; the id is its owner's from the first append on.
    pub(crate) fn producer(&self, id: &ProducerId, owner: u64) -> Result<Option<ProducerState>, AppendError> {
        match self.producers.get(id) {
            Some((o, _)) if o != owner => Err(AppendError::NotOwner),
            found => Ok(found.map(|(_, state)| state)),
        }
    }

    pub(crate) fn producers_len(&self) -> usize {
        self.producers.len()
    }

    pub(crate) fn connect(&mut self, id: &ProducerId, epoch: u32) {
        *self.connected.entry(*id).or_default() += 1;
        self.connected_set.insert(*id);
        self.producers.raise_epoch(id, epoch);
    }

    pub(crate) fn disconnect(&mut self, id: &ProducerId, forget: bool) {
        if let Some(n) = self.connected.get_mut(id) {
            *n -= 1;
            if *n == 0 {
                self.connected.remove(id);
                self.connected_set.remove(id);
                if forget {
                    self.producers.forget(id);
                    self.submitted.forget(id);
                }
            }
        }
    }

    pub(crate) fn marks(&self) -> Marks {
        let accepting = match &self.state {
            State::Failed { .. } => Accepting::Failed,
            State::Closed { .. } => Accepting::Closing,
            State::Running if self.closing => Accepting::Closing,
            State::Running => match self.check_room(64) {
                Ok(()) => Accepting::Yes,
                Err(_) => Accepting::NoSpace,
            },
        };
        Marks { accepting, ..self.marks }
    }

    pub(crate) fn failure(&self) -> Option<String> {
        match &self.state {
            State::Failed { reason, .. } => Some(reason.clone()),
            _ => None,
        }
    }

    pub(crate) fn closed(&self) -> Option<bool> {
        match self.state {
            State::Closed { clean } => Some(clean),
            _ => None,
        }
    }

    pub(crate) fn request_sync(&mut self) -> u64 {
        self.sync_target = self.sync_target.max(self.marks.received);
        self.marks.received
    }

    pub(crate) fn request_rotate(&mut self, reply: RotateReply) {
        self.rotate_replies.push(reply);
    }

    pub(crate) fn close(&mut self) {
        self.closing = true;
        self.marks.version += 1;
    }

    // ---- preparation ------------------------------------------------------------------------------------------

    /// The number to prepare now, if one is wanted; and how full the active segment is, for the pace.
    pub(crate) fn wants_prepared(&self) -> Option<(u64, u32)> {
        let running = self.state == State::Running && !self.closing && !self.busy;
        let active = self.active.as_ref()?;
        (running && self.prepared.is_none()).then_some((active.number + 1, self.marks.epoch))
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

    pub(crate) fn set_space_low(&mut self, low: bool) -> bool {
        let changed = self.space_low != low;
        self.space_low = low;
        if changed {
            self.marks.version += 1;
            self.open_retry_ns = 0;
        }
        changed
    }

    // ---- reading ----------------------------------------------------------------------------------------------

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

    // ---- decisions --------------------------------------------------------------------------------------------

    /// What to do now. A job that is returned counts as begun: its result must be given to [`Self::complete`].
    pub(crate) fn step(&mut self, now: Now) -> Step {
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

    fn rotation_due(&self, now: Now) -> Option<Trigger> {
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

    fn begin_write(&mut self, now: Now) -> Option<Step> {
        let (_, since, wants_written) = self.gather.front()?;
        let in_flight = self.writes + usize::from(self.sync_running);
        let may = match self.config.policy {
            Policy::GroupCommit { max_delay, in_flight: max, .. } => {
                let waited = now.boot_ns.saturating_sub(since) >= max_delay.as_nanos() as u64;
                let worth = self.gather.bytes() >= WORTH_ANOTHER || waited;
                in_flight == 0 || (wants_written && self.writes == 0) || (worth && self.writes < max)
            }
            Policy::PerMessage => in_flight == 0,
            Policy::FireAndForget { .. } => self.writes == 0,
        };
        if !may || self.vouching.is_some() {
            return None;
        }
        let slot = self.free_files.pop()?;
        let Gathered { batch, permit, .. } = self.gather.pop().expect("there is a front");
        for (first, chunk) in batch.chunks().flatten() {
            self.submitted.store(&chunk.header, first, now.real_ns, &self.connected_set);
        }
        let fresh = self.writes > 0;
        let active = self.active.as_mut().expect("checked by step");
        let placed = active.place(&batch, fresh, &self.marks, now);
        let split = matches!(self.config.policy, Policy::GroupCommit { .. }) && wants_written;
        let durability = match self.config.policy {
            Policy::FireAndForget { .. } => Durability::Written,
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
            _permit: permit,
            since_boot_ns: since,
            written: false,
            durable: false,
        });
        self.idle_since_ns = now.boot_ns;
        Some(Step::Run(Job::Write { id, file, placed, durability }))
    }

    fn write_deadline(&self) -> Option<u64> {
        let (_, since, _) = self.gather.front()?;
        match self.config.policy {
            Policy::GroupCommit { max_delay, in_flight, .. } if self.writes < in_flight => {
                Some(since + max_delay.as_nanos() as u64)
            }
            _ => None,
        }
    }

    /// Starts a sync, a vouch, or says until when there is nothing to do.
    fn sync_or_wait(&mut self, now: Now, deadline: Option<u64>) -> Step {
        let mut until = deadline;
        if let (Policy::GroupCommit { max_delay, .. }, true) = (self.config.policy, self.writes > 0) {
            // Someone keeps the time while a write is slow: what gathers meanwhile may be due for one of its own.
            let tick = now.boot_ns + (max_delay.as_nanos() as u64).max(1_000_000);
            until = Some(until.map_or(tick, |u| u.max(now.boot_ns).min(tick)));
        }
        let mut by = |t: u64| until = Some(until.map_or(t, |u| u.min(t)));
        if self.marks.written > self.marks.durable && !self.sync_running {
            let due = match self.config.policy {
                Policy::FireAndForget { .. } if self.sync_target > self.marks.durable => Some(0),
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
        if self.writes == 0 && !self.sync_running && self.gather.is_empty() && !self.closing {
            if let Some(active) = &self.active
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
        }
        Step::Wait(until)
    }

    fn begin_sync(&mut self, now: Now) -> Step {
        let Some(active) = &self.active else { return Step::Wait(None) };
        self.sync_running = true;
        self.last_sync_ns = now.boot_ns;
        let file = active.files.last().expect("one more file than writes in flight").clone();
        // Read before the sync starts: it covers what had completed by now, and nothing later.
        Step::Run(Job::Sync { file, upto: self.marks.written })
    }

    fn begin_vouch(&mut self, now: Now) -> Step {
        let marks = self.marks;
        let footer = self.active.as_ref().map_or(0, |a| self.footer_len(a));
        let Some(active) = self.active.as_mut() else { return Step::Wait(None) };
        if !active.fits(crate::format::batch::LEN as u64, false, footer) {
            active.vouched = (marks.written, marks.durable);
            return Step::Wait(None);
        }
        let Some(slot) = self.free_files.pop() else { return Step::Wait(None) };
        let placed = active.vouch(&marks, now);
        let id = self.next_id;
        self.next_id += 1;
        self.writes += 1;
        self.file_of.insert(id, slot);
        self.vouching = Some((id, placed.shares.clone()));
        Step::Run(Job::Write { id, file: active.files[slot].clone(), placed, durability: Durability::Written })
    }

    fn begin_open(&mut self, now: Now) -> Step {
        if self.closing && self.gather.is_empty() {
            self.busy = true;
            return Step::Run(Job::Close(None));
        }
        for reply in self.rotate_replies.drain(..) {
            let _ = reply.send(Ok(None));
        }
        if now.boot_ns < self.open_retry_ns {
            return Step::Wait(Some(self.open_retry_ns));
        }
        self.busy = true;
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
            next: self.marks.received,
            held,
            producers: self.producers.clone(),
            rewritten: self.rewritten,
        })))
    }

    // ---- results ----------------------------------------------------------------------------------------------

    /// Takes the result of a job. An error latches: from here on nothing is released until recovery is done.
    pub(crate) fn complete(&mut self, result: Result<Done, Failure>, now: Now) {
        self.marks.version += 1;
        match result {
            Ok(done) => self.done(done, now),
            Err(failure) => self.failed(failure, now),
        }
    }

    fn done(&mut self, done: Done, now: Now) {
        match done {
            Done::Write { id, durability } => {
                self.end_write(id);
                if self.vouching.as_ref().is_some_and(|v| v.0 == id) {
                    self.vouching = None;
                } else if let Some(entry) = self.in_flight.iter_mut().find(|e| e.id == id) {
                    entry.written = true;
                    entry.durable = durability == Durability::Synced;
                }
            }
            Done::Sync { upto } => {
                self.sync_running = false;
                for entry in self.in_flight.iter_mut().filter(|e| e.batch.end_offset() <= upto) {
                    entry.durable = true;
                }
                if self.state == State::Running && !self.config.policy.syncs() {
                    self.marks.durable = self.marks.durable.max(upto);
                }
            }
            Done::Rotated { next } => {
                self.busy = false;
                self.marks.durable = self.marks.written;
                for entry in &mut self.in_flight {
                    entry.durable = true;
                }
                self.take_active(next, now);
            }
            Done::Opened { next } => {
                self.busy = false;
                self.take_active(next, now);
            }
            Done::Recovered { next, epoch, end, producers } => self.recovered(next, epoch, end, producers, now),
            Done::Closed => {
                self.busy = false;
                self.marks.durable = self.marks.written;
                self.state = State::Closed { clean: true };
            }
        }
        if self.state == State::Running {
            self.advance();
        }
        self.idle_since_ns = now.boot_ns;
    }

    fn take_active(&mut self, next: Option<Active>, now: Now) {
        if next.is_none() {
            self.open_retry_ns = now.boot_ns + SPACE_NS;
            self.space_low = true;
        }
        self.active = next;
    }

    fn end_write(&mut self, id: u64) {
        self.writes -= 1;
        if let Some(slot) = self.file_of.remove(&id) {
            self.free_files.push(slot);
        }
    }

    /// Moves the marks over the unbroken row of what is done, and lets go of what nobody needs.
    fn advance(&mut self) {
        let keep_until_durable = self.config.policy.syncs();
        let done = self.in_flight.iter().take_while(|e| e.written).map(|e| e.batch.end_offset()).last();
        if let Some(end) = done
            && end > self.marks.written
        {
            let from = self.marks.written;
            self.marks.written = end;
            let fresh: Vec<_> = self
                .in_flight
                .iter()
                .map(|e| &e.batch)
                .filter(|b| b.first_offset >= from && b.end_offset() <= end)
                .cloned()
                .collect();
            fresh.into_iter().for_each(|b| self.remember(b));
        }
        if keep_until_durable {
            let end = self.in_flight.iter().take_while(|e| e.written && e.durable).map(|e| e.batch.end_offset()).last();
            self.marks.durable = self.marks.durable.max(end.unwrap_or(0));
        }
        while self.in_flight.front().is_some_and(|e| e.written && (e.durable || !keep_until_durable)) {
            self.in_flight.pop_front();
        }
        debug_assert!(self.marks.durable <= self.marks.written && self.marks.written <= self.marks.received);
    }

    fn remember(&mut self, batch: Arc<Batch>) {
        self.recent_bytes += batch.body.len();
        self.recent.push_back(batch);
        while self.recent_bytes > self.config.recent_bytes && self.recent.len() > 1 {
            self.recent_bytes -= self.recent.pop_front().map_or(0, |b| b.body.len());
        }
    }

    fn failed(&mut self, failure: Failure, now: Now) {
        // A batch of the block that the failed write repeated may be gone from the disk, durable or not.
        let mut from = self.marks.durable;
        match failure.of {
            FailedJob::Write(id) => {
                self.end_write(id);
                let shares = match self.vouching.as_ref().filter(|v| v.0 == id) {
                    Some((_, shares)) => shares.first(),
                    None => self.in_flight.iter().find(|e| e.id == id).and_then(|e| e.shares.first()),
                };
                from = from.min(shares.map_or(from, |b| b.first_offset));
            }
            FailedJob::Sync => self.sync_running = false,
            FailedJob::Rotate(rotation) => {
                self.busy = false;
                self.active = Some(rotation.active);
                self.prepared = rotation.prepared;
            }
            FailedJob::Mark => self.busy = false,
            FailedJob::Rescue(rescue) => {
                self.busy = false;
                self.rewritten = rescue.rewritten;
                self.active = rescue.active;
                self.prepared = rescue.prepared;
            }
        }
        let State::Failed { rescue_from, pause_ns, due_boot_ns, .. } = &mut self.state else {
            self.marks.failures += 1;
            self.state = State::Failed {
                reason: failure.reason,
                due_boot_ns: now.boot_ns + RETRY_NS,
                pause_ns: RETRY_NS,
                rescue_from: from,
            };
            return;
        };
        *rescue_from = (*rescue_from).min(from);
        if failure.was_rescue {
            *pause_ns = (*pause_ns * 2).min(RETRY_MAX_NS);
            *due_boot_ns = now.boot_ns + *pause_ns;
        }
    }

    fn recovered(&mut self, next: Option<Active>, epoch: u32, end: u64, producers: ProducerTable, now: Now) {
        self.busy = false;
        self.state = State::Running;
        self.rewritten = false;
        self.vouching = None;
        self.in_flight.clear(); // all of it is below the new segment's footer
        self.recent.clear();
        self.recent_bytes = 0;
        self.marks.epoch = epoch;
        self.marks.epoch_first = end;
        self.marks.received = end;
        self.marks.written = end;
        self.marks.durable = end;
        self.submitted = producers.clone();
        self.producers = producers;
        self.prepared = None;
        self.take_active(next, now);
    }

    /// Whether a second job could be begun right now, by another thread.
    pub(crate) fn more_to_do(&self) -> bool {
        if self.busy || self.state != State::Running {
            return false;
        }
        let sync = self.marks.written > self.marks.durable && !self.sync_running && self.config.policy.syncs();
        let write = !self.gather.is_empty() && (self.writes == 0 || self.gather.bytes() >= WORTH_ANOTHER);
        (sync || write) && self.writes < self.config.policy.in_flight()
    }

    /// Whether an append that just came must wake somebody: nothing is under way, or there is now enough for more.
    pub(crate) fn wants_wake(&self, bytes_before: usize) -> bool {
        let crossed = bytes_before < WORTH_ANOTHER && self.gather.bytes() >= WORTH_ANOTHER;
        let idle = self.writes == 0 && !self.busy;
        (idle && bytes_before == 0) || (crossed && self.writes < self.config.policy.in_flight())
    }

    pub(crate) fn gathered_bytes(&self) -> usize {
        self.gather.bytes()
    }

    pub(crate) fn in_flight_bytes(&self) -> usize {
        self.gather.bytes() + self.in_flight.iter().map(|e| e.batch.body.len()).sum::<usize>()
    }

    /// How long until the next attempt to recover.
    pub(crate) fn retry_in_ns(&self) -> u64 {
        match &self.state {
            State::Failed { pause_ns, .. } => *pause_ns,
            _ => 0,
        }
    }

    /// Gives up on a clean end.
    pub(crate) fn abandon(&mut self) {
        self.state = State::Closed { clean: false };
        self.marks.version += 1;
    }

    pub(crate) fn take_rotate_replies(&mut self) -> Vec<RotateReply> {
        std::mem::take(&mut self.rotate_replies)
    }
}

/// A job that did not work out.
pub(crate) struct Failure {
    pub(crate) of: FailedJob,
    pub(crate) reason: String,
    pub(crate) was_rescue: bool,
}

/// Which one.
pub(crate) enum FailedJob {
    Write(u64),
    Sync,
    Rotate(Box<Rotation>),
    /// The mark of a clean end, with everything sealed.
    Mark,
    Rescue(Box<Rescue>),
}

impl Failure {
    pub(crate) fn new(of: FailedJob, what: &str, error: &io::Error) -> Self {
        let was_rescue = matches!(of, FailedJob::Rescue(_));
        Self { of, reason: format!("{what}: {error}"), was_rescue }
    }
}
