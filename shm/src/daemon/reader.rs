//! The daemon's end of the protocol: look, take, give back.
//!
//! Invariants:
//! - **Nothing is believed.** The deciding state is private to this end (the next append, places, sequences). Each
//!   value from the ring is copied once, checked, and used from the copy. Nonsense is a [`Corrupt`]: never a panic,
//!   never a loop without end. One call looks at [`PEEK_SLOTS_MAX`] slots at most and copies one entry.
//! - **Appends come in the order of their numbers**, which is the order of reservation. An append that is not committed
//!   while a later one is stops the row. When its [`StallBudget`] is spent it is abandoned, in its slot, and so for
//!   every later drain.
//! - **Times never fall** within a ring, and lie between the begin of a push and its commit; see `client/writer.rs` for the
//!   purpose. A timestamp is believed within what the drain knows itself. An entry is no younger than the look that
//!   finds it, and no older than the last look that saw it was not there ([`Reader::absent`], [`Waypoint`]). So, by a
//!   made-up timestamp, no entry comes before what was there long before, nor waits at the front for a future time.
//! - **Space is given back by [`Reader::release`] alone.** A drain that begins again at the tail finds the same
//!   appends, with the same numbers and sequences.

use std::collections::VecDeque;

use crate::checksum;
use crate::daemon::abandoned_regions;
use crate::daemon::stall_budget::StallBudget;
use crate::daemon::tail::{Log, Stored, Tail};
use crate::error::{Corrupt, OpenError};
use crate::layout::entry::{HEADER, Header, TRAILER};
use crate::layout::space::AbandonedRegion;
use crate::layout::{Cursor, RING_MAGIC, Shape, Slot, State, VERSION, at, units_of};
use crate::memory::{Memory, Ordering};

/// Slots that one call looks at.
pub const PEEK_SLOTS_MAX: u64 = 1024;
/// The largest distance of a timestamp into the future, nanoseconds: far more than a clock can be off between
/// processors.
const TIMESTAMP_SKEW_NS_MAX: u64 = 1_000_000_000;

/// Where the times of entries come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampSource {
    /// From the client's clock, which is ours.
    Client,
    /// From the drain: the client is in another time namespace. An entry has the time of the drain cycle that finds it.
    Drain,
}

/// Front of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// An entry that is older than asked for. [`crate::Drain::take`] takes it.
    Ready {
        /// Its time, nanoseconds.
        time: u64,
    },
    /// An entry that is not older; look again in the next pass.
    Later {
        /// Its time, nanoseconds.
        time: u64,
    },
    /// Nothing is committed.
    Empty,
    /// An entry is not committed yet and others behind it are, none of which is older than `bound`. Take nothing from
    /// other rings at or above `bound` in this pass, and pass again soon: this ends by [`crate::StallLimits`].
    Blocked {
        /// A time, nanoseconds.
        bound: u64,
    },
}

/// An entry that was taken. The payload is with the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number in the ring: from 0, dense but for those that were abandoned.
    pub append: u64,
    /// The sequence of its first record: the first sequence of the ring plus the records of all entries before it.
    pub sequence: u64,
    /// Number of records it holds, as its client says.
    pub records: u32,
    /// Its time (CLOCK_MONOTONIC nanoseconds), never smaller than that of the entry before.
    pub time: u64,
    /// The CRC-32C of its payload but for the last [`TRAILER`] bytes, as it was found when the entry was checked.
    pub sum: u32,
}

/// An entry that was looked at: its header is private and its bounds are checked.
#[derive(Clone, Copy, Debug)]
struct Found {
    start: u32,
    header: Header,
    time: u64,
}

/// An append that was taken or abandoned, and not given back.
#[derive(Clone, Copy, Debug)]
enum Passed {
    Entry { start: u32, end: u32, records: u32, time: u64 },
    Abandoned,
}

/// An append at the front that is not committed while others behind it are.
#[derive(Clone, Copy, Debug)]
struct Stall {
    /// Of what lies behind it nothing is older.
    bound: u64,
    /// The pass from which on it held others up, and spends what it may.
    since: Option<u64>,
}

/// A place that no writer could reach at a time: it was too far from the tail, and is no older than that.
#[derive(Clone, Copy, Debug)]
struct Waypoint {
    /// Appends from this number on, and what ends behind this place.
    append: u64,
    place: u32,
    time: u64,
}

/// The reading end of a ring.
#[derive(Debug)]
pub(crate) struct Reader {
    shape: Shape,
    stall_budget: StallBudget,
    timestamp_source: TimestampSource,
    /// The next append, where the last entry ended, the next sequence, the time of the last entry.
    next: u64,
    place: u32,
    sequence: u64,
    time: u64,
    /// From the next append on nothing was committed when this time was read.
    absent: u64,
    waypoint: Waypoint,
    found: Option<Found>,
    stall: Option<Stall>,
    /// Entries between tail and next.
    passed: VecDeque<Passed>,
    tail: Tail,
    /// Where what was given back lies.
    log: Log,
    /// The time of the last entry that was given back.
    tail_time: u64,
    gone: bool,
    /// Nothing from this append on is ever taken: the ring was closed there.
    end: u64,
}

impl Reader {
    /// Writes the header of a new ring (which is all zeroes) and reads from its start.
    pub(crate) fn create<M: Memory>(ring: &M, shape: Shape, first_sequence: u64) -> Self {
        ring.store(at::VERSION, VERSION, Ordering::Relaxed);
        ring.store(at::DATA_BYTES, u64::from(shape.data_bytes()), Ordering::Relaxed);
        ring.store(at::SLOTS, u64::from(shape.slots()), Ordering::Relaxed);
        ring.store(at::CHECKPOINTS[0] + 16, first_sequence, Ordering::Relaxed);
        // The other one must not match the same tail.
        ring.store(at::CHECKPOINTS[1], u64::MAX, Ordering::Relaxed);
        ring.store(at::MAGIC, RING_MAGIC, Ordering::Release);
        Self::at_tail(shape, Tail { append: 0, place: 0, sequence: first_sequence, end: 0 }, Log::default())
    }

    /// Reads on where the last drain of this ring gave space back.
    pub(crate) fn adopt<M: Memory>(ring: &M, shape: Shape) -> Result<Self, OpenError> {
        let tail = Tail::left(ring)?;
        ring.store(at::RELEASED, tail.append, Ordering::Relaxed);
        Ok(Self::at_tail(shape, tail, Log::left(ring, &tail)))
    }

    fn at_tail(shape: Shape, tail: Tail, log: Log) -> Self {
        Self {
            shape,
            stall_budget: StallBudget::default(),
            timestamp_source: TimestampSource::Client,
            next: tail.append,
            place: tail.place,
            sequence: tail.sequence,
            time: 0,
            absent: 0,
            waypoint: Waypoint { append: tail.append, place: tail.place, time: 0 },
            found: None,
            stall: None,
            passed: VecDeque::new(),
            tail,
            log,
            tail_time: 0,
            gone: false,
            end: u64::MAX,
        }
    }

    /// Reads on at this append, or at the tail if that is behind it. The times of what is read again also start again,
    /// at that of the entry before: the known times of later ones say nothing about them.
    pub(crate) fn rewind_to(&mut self, append: u64) {
        while self.next > append
            && let Some(passed) = self.passed.pop_back()
        {
            self.next -= 1;
            if let Passed::Entry { records, .. } = passed {
                self.sequence = self.sequence.wrapping_sub(u64::from(records));
            }
        }
        let last = self.passed.iter().rev().find_map(|passed| match passed {
            Passed::Entry { end, time, .. } => Some((*end, *time)),
            Passed::Abandoned => None,
        });
        (self.place, self.time) = last.unwrap_or((self.tail.place, self.tail_time));
        (self.absent, self.found) = (0, None);
        self.end_stall();
    }

    pub(crate) fn set_stall_budget(&mut self, stall_budget: StallBudget) {
        self.end_stall();
        self.stall_budget = stall_budget;
    }

    pub(crate) fn stall_budget(&self) -> &StallBudget {
        &self.stall_budget
    }

    pub(crate) fn set_timestamp_source(&mut self, timestamp_source: TimestampSource) {
        self.timestamp_source = timestamp_source;
    }

    /// The client's process is no more: what it has not committed it never will.
    pub(crate) fn set_gone(&mut self) {
        self.gone = true;
        self.end_stall();
    }

    /// The ring was closed when its head was this. What is reserved later, by a client that takes no notice, is not
    /// taken.
    pub(crate) fn set_end(&mut self, head: Cursor) {
        let room = u64::from(self.shape.slots()) - (self.next - self.tail.append);
        self.end = self.end.min(self.next + head.ahead_of(self.next).min(room));
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn released(&self) -> u64 {
        self.tail.append
    }

    /// One past the last sequence of what was given back.
    pub(crate) fn released_sequence(&self) -> u64 {
        self.tail.sequence
    }

    /// Where what was given back is stored, if that is known.
    pub(crate) fn stored(&self) -> Option<Stored> {
        self.log.stored()
    }

    /// All that was given back, and all that is given back from now on, is stored there.
    pub(crate) fn note_stored(&mut self, stored: Stored) {
        self.log.note(stored);
    }

    /// Looks at the front; `before` is the time of the drain cycle.
    pub(crate) fn peek<M: Memory>(&mut self, ring: &M, before: u64) -> Result<Peek, Corrupt> {
        for _ in 0..PEEK_SLOTS_MAX {
            if let Some(found) = self.found {
                return Ok(verdict(found.time, before));
            }
            if self.next >= self.end || self.next - self.tail.append >= u64::from(self.shape.slots()) {
                return Ok(Peek::Empty); // all that the ring can hold was taken; whatever the slots say is not true
            }
            match self.state(ring, self.next) {
                State::Committed(start) => {
                    let header = self.header(ring, self.next, start)?;
                    let time = self.time_of(self.next, start, &header, before)?;
                    self.end_stall_at(before);
                    if self.waypoint.is_reached(self.next, end_of(start, &header)) {
                        (self.absent, self.waypoint) =
                            (self.absent.max(self.waypoint.time), self.farthest(before.saturating_sub(1)));
                    }
                    self.found = Some(Found { start, header, time });
                }
                State::Abandoned | State::Left => self.pass(Passed::Abandoned),
                State::Pending => match self.pending(ring, before)? {
                    Some(peek) => return Ok(peek),
                    None => {
                        self.end_stall_at(before);
                        self.abandon(ring);
                    }
                },
            }
        }
        // A row of abandoned appends as long as no program has threads. There may be more behind it, in the next pass.
        Ok(Peek::Later { time: before })
    }

    /// The append at the front is not committed. `None`: it is to be abandoned.
    fn pending<M: Memory>(&mut self, ring: &M, before: u64) -> Result<Option<Peek>, Corrupt> {
        let head = Cursor(ring.load(at::HEAD, Ordering::Acquire));
        let reserved = head.ahead_of(self.next);
        if reserved + (self.next - self.tail.append) > u64::from(self.shape.slots()) {
            return Err(Corrupt::Head);
        }
        if reserved != 0 && self.gone {
            return Ok(None);
        }
        let mut behind = self.next + 1..self.next + reserved.clamp(1, PEEK_SLOTS_MAX);
        let committed = behind.find_map(|append| match self.state(ring, append) {
            State::Committed(start) => Some((append, start)),
            _ => None,
        });
        let Some((append, start)) = committed else {
            if reserved <= PEEK_SLOTS_MAX {
                self.absent = before.saturating_sub(1); // every slot was looked at, after that time was read
            }
            self.end_stall_at(before);
            return Ok(Some(Peek::Empty));
        };
        let header = self.header(ring, append, start)?;
        let bound = self.time_of(append, start, &header, before)?;
        Ok(self.may_stall(bound, before).map(|bound| Peek::Blocked { bound }))
    }

    /// Returns the time from which the front may still hold others up, if it may. What lies behind it is no older than
    /// `bound`; nor is it younger than it once was, whatever is committed or said there meanwhile.
    fn may_stall(&mut self, bound: u64, now: u64) -> Option<u64> {
        let stall = self.stall.get_or_insert(Stall { bound, since: None });
        stall.bound = stall.bound.min(bound);
        let may = match stall.since {
            _ if stall.bound >= now => true, // it holds up nothing yet
            Some(since) => self.stall_budget.may_continue(since, now),
            None => {
                stall.since = self.stall_budget.begin(now).then_some(now);
                stall.since.is_some()
            }
        };
        may.then_some(stall.bound)
    }

    /// Books the time for which the front held others up.
    fn end_stall_at(&mut self, now: u64) {
        if self.stall.is_some_and(|stall| stall.since.is_some()) {
            self.stall_budget.lasts(now);
        }
        self.end_stall();
    }

    fn end_stall(&mut self) {
        if self.stall.take().is_some_and(|stall| stall.since.is_some()) {
            self.stall_budget.end();
        }
    }

    /// Gives the front up, unless it is committed in the last moment.
    fn abandon<M: Memory>(&mut self, ring: &M) {
        let slot = self.shape.slot_at(self.next);
        let now = ring.load(slot, Ordering::Relaxed);
        if Slot(now).state_of(self.next) == State::Pending {
            // Failure means that it was committed (or that another process scribbles): the caller's loop looks again.
            let _ = ring.exchange(slot, now, Slot::abandoned(self.next).0, Ordering::SeqCst, Ordering::Relaxed);
            ring.point("abandon: done");
        }
    }

    /// Takes the entry that `peek` found, and appends its payload to `out`. `None`: nothing was found.
    pub(crate) fn take<M: Memory>(&mut self, ring: &M, out: &mut Vec<u8>) -> Result<Option<Entry>, Corrupt> {
        let Some(Found { start, header, time }) = self.found.take() else { return Ok(None) };
        let from = out.len();
        let len = header.len as usize;
        ring.append_to(self.shape.place_at(start) + HEADER, len, out);
        let (sum, whole) = sums(&out[from..]);
        if header.expected(whole) != header.check {
            out.truncate(from);
            return Err(Corrupt::Checksum(self.next));
        }
        let entry = Entry { append: self.next, sequence: self.sequence, records: header.records, time, sum };
        let end = start.wrapping_add(units_of(len));
        self.place = end;
        self.time = time;
        self.sequence = self.sequence.wrapping_add(u64::from(header.records));
        self.pass(Passed::Entry { start, end, records: header.records, time });
        Ok(Some(entry))
    }

    /// True if nothing is there that a drain cycle could take or would have to wait for: the next event is a commit.
    /// True whenever [`Reader::peek`] says [`Peek::Empty`] of the same memory: else a hostile ring could keep its drain
    /// awake.
    pub(crate) fn is_idle<M: Memory>(&self, ring: &M) -> bool {
        let head = Cursor(ring.load(at::HEAD, Ordering::Acquire));
        let behind = self.next + 1..self.next + head.ahead_of(self.next).clamp(1, PEEK_SLOTS_MAX);
        let waits_for_space = self.next - self.tail.append >= u64::from(self.shape.slots());
        let is_committed = |append| matches!(self.state(ring, append), State::Committed(_));
        waits_for_space
            || self.next >= self.end
            || self.found.is_none()
                && self.state(ring, self.next) == State::Pending
                && !behind.into_iter().any(is_committed)
    }

    fn pass(&mut self, passed: Passed) {
        let held = self.next - self.tail.append;
        assert!(held < u64::from(self.shape.slots()), "more is taken than the ring has slots: an append would be lost");
        self.passed.push_back(passed);
        self.next += 1;
    }

    fn state<M: Memory>(&self, ring: &M, append: u64) -> State {
        // Acquire: the entry was written before its commit.
        Slot(ring.load(self.shape.slot_at(append), Ordering::Acquire)).state_of(append)
    }

    /// Copies and checks the header of a committed append.
    fn header<M: Memory>(&self, ring: &M, append: u64, start: u32) -> Result<Header, Corrupt> {
        let units = self.shape.units();
        let (from, to) = (self.place.wrapping_sub(self.tail.place), start.wrapping_sub(self.tail.place));
        let in_area = start & (units - 1);
        if to < from || to > units || in_area + units_of(1) > units {
            return Err(Corrupt::Place(append));
        }
        let from = self.shape.place_at(start);
        let header = Header::from_words([0, 8, 16].map(|at| ring.load(from + at, Ordering::Relaxed)));
        let len = header.len as usize;
        if len == 0 || len > self.shape.max_payload() {
            return Err(Corrupt::Length(append));
        }
        let need = units_of(len);
        if in_area + need > units || to + need > units {
            return Err(Corrupt::Length(append));
        }
        if header.append != append as u32 {
            return Err(Corrupt::Number(append));
        }
        Ok(header)
    }

    /// Its own timestamp, or the latest before it, but for what cannot be true of one that is seen now.
    fn time_of(&self, append: u64, start: u32, header: &Header, before: u64) -> Result<u64, Corrupt> {
        let timestamp = match self.timestamp_source {
            TimestampSource::Drain => before.saturating_sub(1),
            TimestampSource::Client if header.time > before => past(header.time).ok_or(Corrupt::Time(append))?,
            TimestampSource::Client => header.time,
        };
        let reached = self.waypoint.is_reached(append, end_of(start, header));
        let absent = if reached { self.absent.max(self.waypoint.time) } else { self.absent };
        Ok(self.time.max(timestamp).max(absent))
    }

    /// The first place that no writer can reach before space is given back.
    fn farthest(&self, time: u64) -> Waypoint {
        let append = self.tail.append + u64::from(self.shape.slots());
        Waypoint { append, place: self.tail.place.wrapping_add(self.shape.units()), time }
    }

    /// Gives back the space of all appends below `upto`; says whether any was.
    pub(crate) fn release<M: Memory>(&mut self, ring: &M, upto: u64) -> bool {
        abandoned_regions::clear(ring, self.gone);
        let stored_below = self.log.stored().map_or(self.tail.end, |stored| stored.end);
        let upto = upto.min(self.next);
        let (mut tail, mut tail_time) = (self.tail, self.tail_time);
        let mut done = 0; // of `passed`, what lies below `tail`
        let mut index = 0;
        while tail.append + ((index - done) as u64) < upto {
            let Passed::Entry { start, end, records, time } = self.passed[index] else {
                index += 1; // its space ends where the next entry starts: goes with that one
                continue;
            };
            let abandoned = tail.append..tail.append + (index - done) as u64;
            let space = AbandonedRegion { start: tail.place, end: start };
            if !self.gone && !abandoned_regions::leave(ring, self.shape, abandoned, space) {
                break;
            }
            tail = Tail {
                append: tail.append + (index - done) as u64 + 1,
                place: end,
                sequence: tail.sequence.wrapping_add(u64::from(records)),
                end: stored_below,
            };
            tail_time = time;
            index += 1;
            done = index;
        }
        if done == 0 {
            return false;
        }
        let released = tail.append - self.tail.append;
        assert!(
            released > 0 && tail.append <= upto,
            "the tail passes what was taken: appends not written would be lost"
        );
        assert!(released == done as u64, "space and appends part: the entries behind would be lost");
        self.passed.drain(..done);
        (self.tail, self.tail_time) = (tail, tail_time);
        self.log.publish(ring, tail);
        true
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.end_stall();
    }
}

impl Waypoint {
    fn is_reached(&self, append: u64, end: u32) -> bool {
        append >= self.append || end.wrapping_sub(self.place).cast_signed() > 0
    }
}

/// The checksums of a payload: without its trailer, and whole.
fn sums(payload: &[u8]) -> (u32, u32) {
    match payload.split_last_chunk::<TRAILER>() {
        Some((bytes, trailer)) => {
            let sum = checksum::of(bytes);
            (sum, checksum::extend_word(sum, u64::from_le_bytes(*trailer)))
        }
        None => (checksum::of(&[]), checksum::of(payload)),
    }
}

/// Where an entry ends.
fn end_of(start: u32, header: &Header) -> u32 {
    start.wrapping_add(units_of(header.len as usize))
}

/// A timestamp that is not older than the drain cycle was read before its entry was committed, and that is past: it is
/// now, if it seems to be in the future. `None`: it cannot be true. The time of the cycle may be older than the cycle
/// by as much as the daemon was held up, so it does not decide.
fn past(timestamp: u64) -> Option<u64> {
    let now = crate::clock::now();
    (timestamp <= now.saturating_add(TIMESTAMP_SKEW_NS_MAX)).then_some(timestamp.min(now))
}

fn verdict(time: u64, before: u64) -> Peek {
    if time < before { Peek::Ready { time } } else { Peek::Later { time } }
}
