//! The daemon's end of the protocol: look, take, give back.
//!
//! Invariants:
//! - **Nothing is believed.** The deciding state is private to this end (the next append, places, sequences). Each
//!   value from the ring is copied once, checked, and used from the copy. Nonsense is a [`Corrupt`]: never a panic,
//!   never a loop without end. One call looks at [`PEEK_SLOTS_MAX`] slots at most and copies one entry.
//! - **Appends come in the order of their numbers**, which is the order of reservation. An append that is not committed
//!   while a later one is stops the row, for [`COMMIT_TIMEOUT_NS`] at most. Then it is abandoned, in its slot, and so
//!   for every later drain. No other ring waits for it.
//! - **Space is given back by [`Reader::release`] alone.** A drain that begins again at the tail finds the same
//!   appends, with the same numbers and sequences.

use std::collections::VecDeque;

use crate::checksum;
use crate::daemon::abandoned_regions;
use crate::daemon::tail::{Log, Stored, Tail};
use crate::error::{Corrupt, OpenError};
use crate::layout::entry::{HEADER, Header, TRAILER};
use crate::layout::space::AbandonedRegion;
use crate::layout::{Cursor, RING_MAGIC, Shape, Slot, State, VERSION, at, units_of};
use crate::memory::{Memory, Ordering};

/// Slots that one call looks at.
pub const PEEK_SLOTS_MAX: u64 = 1024;
/// Time that an append which is reserved and not committed has, from when a later one of its ring was seen committed:
/// until then what lies behind it waits, and no longer. Nanoseconds.
pub const COMMIT_TIMEOUT_NS: u64 = 2_000_000;

/// Front of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// An entry. [`crate::Drain::take`] takes it.
    Ready,
    /// Nothing is committed.
    Empty,
    /// An entry is not committed yet and others behind it are. Look again soon: this ends by itself, in
    /// [`COMMIT_TIMEOUT_NS`].
    Blocked,
    /// A long row of abandoned appends was passed, and there may be more behind it.
    More,
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
    /// The CRC-32C of its payload but for the last [`TRAILER`] bytes, as it was found when the entry was checked.
    pub sum: u32,
}

/// An entry that was looked at: its header is private and its bounds are checked.
#[derive(Clone, Copy, Debug)]
struct Found {
    start: u32,
    header: Header,
}

/// An append that was taken or abandoned, and not given back.
#[derive(Clone, Copy, Debug)]
enum Passed {
    Entry { start: u32, end: u32, records: u32 },
    Abandoned,
}

/// The reading end of a ring.
#[derive(Debug)]
pub(crate) struct Reader {
    shape: Shape,
    /// The next append, where the last entry ended, the next sequence.
    next: u64,
    place: u32,
    sequence: u64,
    found: Option<Found>,
    commit_timeout_ns: u64,
    /// Time since when what is committed waits for an append before it.
    blocked_since: Option<u64>,
    /// Entries between tail and next.
    passed: VecDeque<Passed>,
    tail: Tail,
    /// Where what was given back lies.
    log: Log,
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
            next: tail.append,
            place: tail.place,
            sequence: tail.sequence,
            found: None,
            commit_timeout_ns: COMMIT_TIMEOUT_NS,
            blocked_since: None,
            passed: VecDeque::new(),
            tail,
            log,
            gone: false,
            end: u64::MAX,
        }
    }

    /// Reads on at this append, or at the tail if that is behind it.
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
            Passed::Entry { end, .. } => Some(*end),
            Passed::Abandoned => None,
        });
        self.place = last.unwrap_or(self.tail.place);
        (self.found, self.blocked_since) = (None, None);
    }

    pub(crate) fn set_commit_timeout_ns(&mut self, commit_timeout_ns: u64) {
        self.commit_timeout_ns = commit_timeout_ns;
    }

    /// The client's process is no more: what it has not committed it never will.
    pub(crate) fn set_gone(&mut self) {
        self.gone = true;
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

    /// Looks at the front; `now` is CLOCK_MONOTONIC, nanoseconds.
    pub(crate) fn peek<M: Memory>(&mut self, ring: &M, now: u64) -> Result<Peek, Corrupt> {
        for _ in 0..PEEK_SLOTS_MAX {
            if self.found.is_some() {
                return Ok(Peek::Ready);
            }
            if self.next >= self.end || self.next - self.tail.append >= u64::from(self.shape.slots()) {
                return Ok(Peek::Empty); // all that the ring can hold was taken; whatever the slots say is not true
            }
            match self.state(ring, self.next) {
                State::Committed(start) => {
                    let header = self.header(ring, self.next, start)?;
                    self.blocked_since = None;
                    self.found = Some(Found { start, header });
                }
                State::Abandoned | State::Left => self.pass(Passed::Abandoned),
                State::Pending => match self.pending(ring, now)? {
                    Some(peek) => return Ok(peek),
                    None => self.abandon(ring),
                },
            }
        }
        // A row of abandoned appends as long as no program has threads. There may be more behind it, in the next cycle.
        Ok(Peek::More)
    }

    /// The append at the front is not committed. `None`: it is to be abandoned. What waits behind a row of such appends
    /// waits once, not for each of them.
    fn pending<M: Memory>(&mut self, ring: &M, now: u64) -> Result<Option<Peek>, Corrupt> {
        let head = Cursor(ring.load(at::HEAD, Ordering::Acquire));
        let reserved = head.ahead_of(self.next);
        if reserved + (self.next - self.tail.append) > u64::from(self.shape.slots()) {
            return Err(Corrupt::Head);
        }
        if reserved != 0 && self.gone {
            return Ok(None);
        }
        let mut behind = self.next + 1..self.next + reserved.clamp(1, PEEK_SLOTS_MAX);
        if !behind.any(|append| matches!(self.state(ring, append), State::Committed(_))) {
            self.blocked_since = None;
            return Ok(Some(Peek::Empty));
        }
        let since = *self.blocked_since.get_or_insert(now);
        Ok((now.saturating_sub(since) < self.commit_timeout_ns).then_some(Peek::Blocked))
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
        let Some(Found { start, header }) = self.found.take() else { return Ok(None) };
        let from = out.len();
        let len = header.len as usize;
        ring.append_to(self.shape.place_at(start) + HEADER, len, out);
        let (sum, whole) = sums(&out[from..]);
        if header.expected(whole) != header.check {
            out.truncate(from);
            return Err(Corrupt::Checksum(self.next));
        }
        let entry = Entry { append: self.next, sequence: self.sequence, records: header.records, sum };
        let end = start.wrapping_add(units_of(len));
        self.place = end;
        self.sequence = self.sequence.wrapping_add(u64::from(header.records));
        self.pass(Passed::Entry { start, end, records: header.records });
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

    /// Gives back the space of all appends below `upto`; says whether any was.
    pub(crate) fn release<M: Memory>(&mut self, ring: &M, upto: u64) -> bool {
        abandoned_regions::clear(ring, self.gone);
        let stored_below = self.log.stored().map_or(self.tail.end, |stored| stored.end);
        let upto = upto.min(self.next);
        let mut tail = self.tail;
        let mut done = 0; // of `passed`, what lies below `tail`
        let mut index = 0;
        while tail.append + ((index - done) as u64) < upto {
            let Passed::Entry { start, end, records } = self.passed[index] else {
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
        self.tail = tail;
        self.log.publish(ring, tail);
        true
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
