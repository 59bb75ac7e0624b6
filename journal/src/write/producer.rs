//! The producer table: the stored state of each producer, so that a resend is stored once.
//!
//! Invariants:
//! - A sequence is stored at most once. A resend of stored records gets the offset that they have; a jump ahead needs
//!   the producer's explicit mark; an append that is partly stored, or older than what is remembered, is refused.
//! - A lower epoch of a producer is fenced, and an id belongs to the owner that first used it.
//! - There is one table. A footer is a cut of it at the footer's end ([`ProducerTable::snapshot`]): an append with an
//!   offset behind that end leaves no trace in the footer. So a producer retains every range that a footer may still
//!   need, and beyond these `window` ranges.
//! - Forgetting is decided only here: by BYE, or to make room for a newcomer. It takes effect for the log with a
//!   [`Tombstone`]: everything of that producer below an offset is forgotten. A start applies tombstones, and evicts
//!   no producer by itself; so it may hold more than [`ProducerTable::max`].
//! - A producer is evicted only while it is not `pinned` (connected), after `keep` nanoseconds without an append, the
//!   longest silent first. Exactly-once ends there, and docs say so.
//! - Silence is measured by the boot clock, which cannot jump. Only a start reads the wall clock, and clamps its
//!   value: a producer is then at least a tenth of `keep` away from eviction, so that it has time to connect again.
//! - The places are shared by owner, max-min: an owner grows only while as many places as it has are still free. An
//!   owner with less than [`guarantee`] producers gets a place also above `max`, up to twice `max`, and root up to
//!   three times.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use crate::clock::Moment;
use crate::format::chunk::{Chunk, ChunkHeader};
use crate::format::footer::{Footer, ProducerEntry, StoredRange};
use crate::format::tombstone::Tombstone;
use crate::write::origin::OriginTable;
use crate::write::owner_bytes::NETWORK;
use crate::write::resend::ResendWindow;

/// Root's uid.
const ROOT: u64 = 0;
/// Most producers that an owner is guaranteed.
const GUARANTEE_MAX: usize = 8;

/// The owner that a producer is counted under, if no other owner is known: ids of the network differ by secrets, and a
/// client can have any number of those.
pub(crate) fn counted_under(owner: u64) -> u64 {
    if owner & NETWORK != 0 { NETWORK } else { owner }
}

/// Producers that every owner may have, though all places are taken.
fn guarantee(max: usize) -> usize {
    (max / 8).clamp(1, GUARANTEE_MAX)
}

/// A producer's 128-bit id.
pub type ProducerId = [u8; 16];

/// Verdict of the table on an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Not stored yet and next in line.
    Fresh,
    /// As [`Verdict::Fresh`], of a producer that is not in the table: it takes a place.
    First,
    /// Stored already.
    Duplicate {
        /// The offset that its first record has.
        first_offset: u64,
    },
    /// A newer session of the same producer exists.
    Fenced {
        /// The epoch that is in force.
        current: u32,
    },
    /// The id was first used by another owner.
    NotOwner,
    /// It jumps ahead without saying so.
    Gap {
        /// The sequence that is next.
        expected: u64,
    },
    /// Part of it is stored, part is not.
    Overlap {
        /// The sequence that is next.
        expected: u64,
    },
    /// Older than what is remembered: it was stored once, or skipped, and its offset is forgotten.
    TooOld,
    /// In a gap of the sequence, made by the gap mark or a loss: not stored, and not accepted any more.
    Skipped {
        /// The sequence that is next.
        expected: u64,
    },
    /// No room for a further producer.
    TableFull,
}

/// State of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerState {
    /// The epoch in force.
    pub epoch: u32,
    /// The last stored record: its sequence and offset.
    pub last: Option<(u64, u64)>,
}

#[derive(Clone, Debug)]
struct Producer {
    owner: u64,
    /// The owner whose share it is of.
    counted: u64,
    epoch: u32,
    /// Time of its last append by the wall clock: the value in a footer.
    last_active_ns: i64,
    /// The same by the boot clock: the value that decides. Before the boot it is negative.
    active_boot_ns: i64,
    /// Offset of the first record of this life: of an earlier life nothing is known.
    born_at: u64,
    ranges: VecDeque<StoredRange>,
    /// Below it nothing more is known. It follows the ranges that leave the window, not the lost ones: those are known
    /// not to be stored.
    forgotten_below: u64,
}

impl Producer {
    fn next_sequence(&self) -> u64 {
        self.ranges.back().map_or(self.forgotten_below, |r| r.first_sequence + u64::from(r.count))
    }

    fn silent_ns(&self, now: Moment) -> i64 {
        boot(now).saturating_sub(self.active_boot_ns)
    }

    /// Entry of a footer that ends at `end`; nothing if this life began later.
    fn entry(&self, id: &ProducerId, end: u64, window: usize, now: Moment) -> Option<ProducerEntry> {
        if self.born_at >= end {
            return None;
        }
        let below = |r: &StoredRange| (r.first_offset < end).then(|| cut(*r, end));
        let mut appends: Vec<StoredRange> = self.ranges.iter().map_while(below).collect();
        let mut forgotten_below = self.forgotten_below;
        for old in appends.drain(..appends.len().saturating_sub(window)) {
            forgotten_below = old.first_sequence + u64::from(old.count);
        }
        // A wall clock that was ahead and was put right must not make it younger at each start.
        let last_active_ns = match self.last_active_ns <= now.real_ns {
            true => self.last_active_ns,
            false => now.real_ns.saturating_sub(self.silent_ns(now)),
        };
        Some(ProducerEntry { id: *id, owner: self.owner, epoch: self.epoch, last_active_ns, appends, forgotten_below })
    }
}

/// The part of a range below an offset in it.
fn cut(range: StoredRange, end: u64) -> StoredRange {
    let count = u64::from(range.count).min(end - range.first_offset);
    StoredRange { count: count as u32, ..range }
}

fn boot(now: Moment) -> i64 {
    i64::try_from(now.boot_ns).unwrap_or(i64::MAX)
}

/// The table.
#[derive(Clone, Debug)]
pub(crate) struct ProducerTable {
    producers: HashMap<ProducerId, Producer>,
    /// Ranges in all that a footer may have: of each producer at most `window`.
    ranges: usize,
    window: usize,
    max: usize,
    keep_ns: i64,
    /// Appends without a sequence of their sender's: they are recovered and lost with the rest of the table.
    pub(crate) resends: ResendWindow,
    /// Streams of other logs, likewise.
    pub(crate) origins: OriginTable,
}

impl ProducerTable {
    /// A table for `max` producers that remembers `window` appends of each and forgets none before `keep_ns`.
    pub(crate) fn new(max: usize, window: usize, keep_ns: i64) -> Self {
        let (resends, origins) = (ResendWindow::default(), OriginTable::default());
        Self { producers: HashMap::new(), ranges: 0, window: window.max(1), max: max.max(1), keep_ns, resends, origins }
    }

    /// The same table with this resend window, and these origins.
    pub(crate) fn with(self, resends: ResendWindow, origins: OriginTable) -> Self {
        Self { resends, origins, ..self }
    }

    /// Number of producers that are remembered.
    pub(crate) fn len(&self) -> usize {
        self.producers.len()
    }

    /// Number of producers above which newcomers are judged by their owner's share.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Stored ranges in all, as many as a footer may have of them.
    pub(crate) fn ranges(&self) -> usize {
        self.ranges
    }

    /// Number of producers of each owner, in no order.
    pub(crate) fn by_owner(&self) -> Vec<(u64, usize)> {
        let mut owners: HashMap<u64, usize> = HashMap::new();
        self.producers.values().for_each(|p| *owners.entry(p.counted).or_default() += 1);
        owners.into_iter().collect()
    }

    /// State of a producer, if it is remembered.
    pub(crate) fn get(&self, id: &ProducerId) -> Option<(u64, ProducerState)> {
        let p = self.producers.get(id)?;
        let last = p.ranges.back().map(|r| {
            let more = u64::from(r.count) - 1;
            (r.first_sequence + more, r.first_offset + more)
        });
        Some((p.owner, ProducerState { epoch: p.epoch, last }))
    }

    /// Judges an append. Changes nothing. `counted`: the owner whose share a newcomer would count in.
    pub(crate) fn check(
        &self,
        append: &ChunkHeader,
        gap: bool,
        counted: u64,
        now: Moment,
        pinned: &HashMap<ProducerId, impl Sized>,
    ) -> Verdict {
        let Some(p) = self.producers.get(&append.producer) else {
            return match append.first_sequence {
                s if s != 0 && !gap => Verdict::Gap { expected: 0 },
                _ if self.has_room_for(counted, now, pinned) => Verdict::First,
                _ => Verdict::TableFull,
            };
        };
        if p.owner != append.owner {
            return Verdict::NotOwner;
        }
        if append.producer_epoch < p.epoch {
            return Verdict::Fenced { current: p.epoch };
        }
        let expected = p.next_sequence();
        let end = append.first_sequence.saturating_add(u64::from(append.count));
        match append.first_sequence {
            s if s == expected => Verdict::Fresh,
            s if s > expected && gap => Verdict::Fresh,
            s if s > expected => Verdict::Gap { expected },
            _ if end > expected => Verdict::Overlap { expected },
            _ => Self::find(p, append.first_sequence, end),
        }
    }

    fn find(p: &Producer, first: u64, end: u64) -> Verdict {
        // From the newest: resends are of the last few.
        for r in p.ranges.iter().rev() {
            let range_end = r.first_sequence + u64::from(r.count);
            if r.first_sequence < end && first < range_end {
                return match r.first_sequence <= first && end <= range_end {
                    true => Verdict::Duplicate { first_offset: r.first_offset + (first - r.first_sequence) },
                    // Split differently than it was stored, or a part of it lies in a gap: it has no single run of
                    // offsets.
                    false => Verdict::Overlap { expected: p.next_sequence() },
                };
            }
        }
        match first {
            // A part of it may be stored, and the rest is known not to be.
            _ if first < p.forgotten_below && end > p.forgotten_below => {
                Verdict::Overlap { expected: p.next_sequence() }
            }
            _ if first < p.forgotten_below => Verdict::TooOld,
            _ => Verdict::Skipped { expected: p.next_sequence() },
        }
    }

    /// Stores an append that was checked as [`Verdict::Fresh`] or [`Verdict::First`]. A newcomer counts in the share
    /// of `counted`. Everything below `settled` is in the segments already; a footer may have to leave out later
    /// entries again.
    pub(crate) fn store(&mut self, append: &ChunkHeader, first_offset: u64, counted: u64, settled: u64, now: Moment) {
        let new = StoredRange { first_sequence: append.first_sequence, first_offset, count: append.count };
        let p = self.producers.entry(append.producer).or_insert_with(|| Producer {
            owner: append.owner,
            counted,
            epoch: append.producer_epoch,
            last_active_ns: now.real_ns,
            active_boot_ns: boot(now),
            born_at: first_offset,
            ranges: VecDeque::new(),
            // It may have been here before, and was forgotten altogether.
            forgotten_below: append.first_sequence,
        });
        p.epoch = p.epoch.max(append.producer_epoch);
        (p.last_active_ns, p.active_boot_ns) = (now.real_ns, boot(now));
        let before = p.ranges.len().min(self.window);
        let follows = p.ranges.back().filter(|r| {
            r.first_sequence + u64::from(r.count) == new.first_sequence
                && r.first_offset + u64::from(r.count) == new.first_offset
        });
        match follows.and_then(|r| r.count.checked_add(new.count)) {
            Some(count) => p.ranges.back_mut().expect("it was just looked at").count = count,
            None => p.ranges.push_back(new),
        }
        // Of those that a footer may show `window` are left.
        while p.ranges.get(self.window).is_some_and(|r| r.first_offset < settled)
            && let Some(oldest) = p.ranges.pop_front()
        {
            p.forgotten_below = oldest.first_sequence + u64::from(oldest.count);
        }
        self.ranges = self.ranges - before + p.ranges.len().min(self.window);
    }

    /// Stores an append read back from the log, where appends of its kind are remembered.
    pub(crate) fn replay_chunk(&mut self, chunk: &Chunk<'_>, first_offset: u64, append_real_ns: i64, now: Moment) {
        if chunk.header.is_forwarded() {
            self.origins.replay(&chunk.header, chunk.peer_meta, first_offset);
            return;
        }
        self.replay(&chunk.header, first_offset, append_real_ns, now);
        self.resends.replay(chunk.peer_meta, chunk.header.count, first_offset);
    }

    /// Stores an append of a producer read back from the log. No producer is evicted. The log takes a sequence twice only where a
    /// tombstone lies between: if that one was lost, this is still a later life.
    fn replay(&mut self, append: &ChunkHeader, first_offset: u64, append_real_ns: i64, now: Moment) {
        let is_new_life =
            self.producers.get(&append.producer).is_some_and(|p| append.first_sequence < p.next_sequence());
        if is_new_life {
            self.forget(&append.producer);
        }
        self.store(append, first_offset, counted_under(append.owner), u64::MAX, now);
        let active_boot_ns = self.loaded(append_real_ns, now);
        if let Some(p) = self.producers.get_mut(&append.producer) {
            (p.last_active_ns, p.active_boot_ns) = (append_real_ns, active_boot_ns);
        }
    }

    /// Makes room for a newcomer, where that takes an eviction; its tombstone is the caller's to write. None is evicted
    /// that was active within its time: then the newcomer has a place above the limit ([`Verdict::First`] said so).
    pub(crate) fn make_room(&mut self, now: Moment, pinned: &HashMap<ProducerId, impl Sized>) -> Vec<ProducerId> {
        let mut evicted = Vec::new();
        while self.producers.len() >= self.max
            && let Some(id) = self.victim(now, pinned)
        {
            self.forget(&id);
            evicted.push(id);
        }
        evicted
    }

    /// Changes the number of producers that are remembered. None is forgotten early: a newcomer is refused until
    /// enough have been silent for long enough.
    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max.max(1);
    }

    /// Raises a producer's epoch, so that appends of an earlier session are fenced from now on.
    pub(crate) fn raise_epoch(&mut self, id: &ProducerId, epoch: u32) {
        if let Some(p) = self.producers.get_mut(id) {
            p.epoch = p.epoch.max(epoch);
        }
    }

    /// Adopts changes of the live table since this copy of it was made, while nothing was stored: raised epochs and
    /// forgotten producers.
    pub(crate) fn catch_up(&mut self, live: &Self) {
        self.producers.retain(|id, p| {
            let now = live.producers.get(id);
            p.epoch = now.map_or(p.epoch, |now| p.epoch.max(now.epoch));
            now.is_some()
        });
        self.count_ranges();
        self.resends.catch_up(&live.resends);
        self.origins.catch_up(&live.origins);
    }

    /// Forgets a producer; `false` where it was not remembered.
    pub(crate) fn forget(&mut self, id: &ProducerId) -> bool {
        let gone = self.producers.remove(id);
        self.ranges -= gone.as_ref().map_or(0, |p| p.ranges.len().min(self.window));
        gone.is_some()
    }

    /// Applies a tombstone: forgets everything of that producer below an offset. A later life stays.
    pub(crate) fn bury(&mut self, tombstone: &Tombstone) {
        let is_older = |p: &Producer| p.born_at < tombstone.below;
        if self.producers.get(&tombstone.producer).is_some_and(is_older) {
            self.forget(&tombstone.producer);
        }
        self.origins.bury(tombstone);
    }

    /// True if there is a place for a further producer of this owner. One that may be evicted counts as free.
    fn has_room_for(&self, counted: u64, now: Moment, pinned: &HashMap<ProducerId, impl Sized>) -> bool {
        let (mut kept, mut theirs) = (0, 0);
        for (id, p) in &self.producers {
            if pinned.contains_key(id) || p.silent_ns(now) < self.keep_ns {
                kept += 1;
                theirs += usize::from(p.counted == counted);
            }
        }
        // Of more than a lowered limit allows, one that may go makes room for one.
        let silent = self.producers.len() - kept;
        let free = self.max.saturating_sub(kept).max(silent.min(1));
        let grows = free > 0 && (theirs == 0 || theirs + 1 < free);
        // Users leave root a third limit's worth.
        let has_few = kept < 2 * self.max && theirs < guarantee(self.max);
        grows || has_few || (counted == ROOT && kept < 3 * self.max)
    }

    fn victim(&self, now: Moment, pinned: &HashMap<ProducerId, impl Sized>) -> Option<ProducerId> {
        let may = self.producers.iter().filter(|(id, p)| !pinned.contains_key(*id) && p.silent_ns(now) >= self.keep_ns);
        may.min_by_key(|(id, p)| (p.active_boot_ns, **id)).map(|(id, _)| *id)
    }

    /// Last activity by the current boot clock, from the wall clock time on disk. That clock may have been ahead, or
    /// behind. The time is limited: no producer becomes younger than now, or so old that it may be evicted before it
    /// had time to come back.
    fn loaded(&self, last_active_ns: i64, now: Moment) -> i64 {
        let oldest = self.keep_ns - self.keep_ns / 10;
        boot(now).saturating_sub(now.real_ns.saturating_sub(last_active_ns).clamp(0, oldest))
    }

    fn count_ranges(&mut self) {
        self.ranges = self.producers.values().map(|p| p.ranges.len().min(self.window)).sum();
    }

    /// Removes the entries at these offsets: they are lost, so a resend of them must not be called stored.
    pub(crate) fn lose(&mut self, from: u64, to: u64) {
        for p in self.producers.values_mut() {
            for r in std::mem::take(&mut p.ranges) {
                let (begin, end) = (r.first_offset, r.first_offset + u64::from(r.count));
                for (b, e) in [(begin, end.min(from)), (begin.max(to), end)].into_iter().filter(|(b, e)| b < e) {
                    let first_sequence = r.first_sequence + (b - begin);
                    p.ranges.push_back(StoredRange { first_sequence, first_offset: b, count: (e - b) as u32 });
                }
            }
        }
        self.count_ranges();
        self.resends.lose(from, to);
        self.origins.lose(from, to);
    }

    /// Gives a footer what the table knows of the log up to the footer's end.
    pub(crate) fn fill(&self, footer: &mut Footer, now: Moment) {
        footer.producers = self.snapshot(footer.end_offset, now);
        footer.resends = self.resends.snapshot(footer.end_offset);
        footer.origins = self.origins.snapshot(footer.end_offset);
    }

    /// Takes over what a footer knows.
    pub(crate) fn load_footer(&mut self, footer: &Footer, now: Moment) {
        self.load(&footer.producers, now);
        self.resends.load(&footer.resends);
        self.origins.load(&footer.origins);
    }

    /// Content of a footer that ends at offset `end`; sorted, so that the same table makes the same bytes.
    pub(crate) fn snapshot(&self, end: u64, now: Moment) -> Vec<ProducerEntry> {
        let entries = self.producers.iter().filter_map(|(id, p)| p.entry(id, end, self.window, now));
        let mut all: Vec<_> = entries.collect();
        all.sort_by_key(|p| p.id);
        all
    }

    /// Takes over a snapshot.
    pub(crate) fn load(&mut self, entries: &[ProducerEntry], now: Moment) {
        let producer = |e: &ProducerEntry| Producer {
            owner: e.owner,
            counted: counted_under(e.owner),
            epoch: e.epoch,
            last_active_ns: e.last_active_ns,
            active_boot_ns: self.loaded(e.last_active_ns, now),
            born_at: 0,
            ranges: e.appends.iter().copied().collect(),
            forgotten_below: e.forgotten_below,
        };
        self.producers = entries.iter().map(|e| (e.id, producer(e))).collect();
        self.count_ranges();
    }
}
