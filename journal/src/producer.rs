//! What the log remembers of its producers, so that a resend is stored once.
//!
//! What must hold:
//! - A sequence is stored at most once. A resend of stored records gets the offset that they have; a jump ahead needs
//!   the producer's explicit mark; an append that is partly stored, or older than what is remembered, is refused.
//! - A lower epoch of a producer is fenced, and an id belongs to the owner that first used it.
//! - The table is bounded: [`ProducerTable::max`] producers, `window` stored ranges each. Ranges that follow each
//!   other in sequence and offset are one range, so a window of ranges covers at least a window of appends.
//! - Making room forgets the producer that has been silent longest, never one that is `pinned` (connected), and only
//!   after `keep` nanoseconds of silence: that is where exactly-once ends, and docs say so.
//! - Nobody keeps all others out: an owner who has half of the places gets a further one only while a place is free (or of
//!   such a silent producer) for each [`SHARE`] that he has. Alone he has all but an eighth.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::format::chunk::ChunkHeader;
use crate::format::footer::{ProducerEntry, StoredRange};

/// Producers that an owner may have for each place that is free, beyond half of all.
const SHARE: usize = 7;
/// The bit of owners that are no users: their ids are told apart by secrets, which anybody can have as many of as he likes.
/// All of them together are one, where producers are counted.
const NO_USER: u64 = 1 << 63;

/// A producer's 128-bit id.
pub type ProducerId = [u8; 16];

/// What the table says to an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Not stored yet and next in line.
    Fresh,
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
    /// The id was first used by somebody else.
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
    /// In a hole of the sequence, which the gap mark or a loss made: not stored, and no longer welcome.
    Skipped {
        /// The sequence that is next.
        expected: u64,
    },
    /// No room for a further producer.
    TableFull,
}

/// Where a producer stands.
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
    epoch: u32,
    last_active_ns: i64,
    ranges: VecDeque<StoredRange>,
    /// Below it nothing more is known. It follows what the window lets go, and not what is lost: that is known not to be
    /// stored.
    forgotten_below: u64,
}

impl Producer {
    fn next_sequence(&self) -> u64 {
        self.ranges.back().map_or(self.forgotten_below, |r| r.first_sequence + u64::from(r.count))
    }
}

/// The table.
#[derive(Clone, Debug)]
pub(crate) struct ProducerTable {
    producers: HashMap<ProducerId, Producer>,
    ranges: usize,
    window: usize,
    max: usize,
    keep_ns: i64,
}

impl ProducerTable {
    /// A table for `max` producers that remembers `window` appends of each and forgets nobody before `keep_ns`.
    pub(crate) fn new(max: usize, window: usize, keep_ns: i64) -> Self {
        Self { producers: HashMap::new(), ranges: 0, window: window.max(1), max: max.max(1), keep_ns }
    }

    /// How many producers are remembered.
    pub(crate) fn len(&self) -> usize {
        self.producers.len()
    }

    /// Stored ranges in all.
    pub(crate) fn ranges(&self) -> usize {
        self.ranges
    }

    /// Where a producer stands, if it is remembered.
    pub(crate) fn get(&self, id: &ProducerId) -> Option<(u64, ProducerState)> {
        let p = self.producers.get(id)?;
        let last = p.ranges.back().map(|r| {
            let more = u64::from(r.count) - 1;
            (r.first_sequence + more, r.first_offset + more)
        });
        Some((p.owner, ProducerState { epoch: p.epoch, last }))
    }

    /// What to do with an append. Changes nothing.
    pub(crate) fn check(&self, append: &ChunkHeader, gap: bool, now_ns: i64, pinned: &HashSet<ProducerId>) -> Verdict {
        let Some(p) = self.producers.get(&append.producer) else {
            return match append.first_sequence {
                s if s != 0 && !gap => Verdict::Gap { expected: 0 },
                _ if self.has_room_for(append.owner, now_ns, pinned) => Verdict::Fresh,
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
                    // Cut differently than it was stored, or a part of it lies in a hole: it has no single run of offsets.
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

    /// Stores what was checked as [`Verdict::Fresh`], or was read back from the disk.
    pub(crate) fn store(&mut self, append: &ChunkHeader, first_offset: u64, now_ns: i64, pinned: &HashSet<ProducerId>) {
        let Some(p) = self.producers.get_mut(&append.producer) else {
            return self.store_first(append, first_offset, now_ns, pinned);
        };
        p.epoch = p.epoch.max(append.producer_epoch);
        p.last_active_ns = now_ns;
        let new = StoredRange { first_sequence: append.first_sequence, first_offset, count: append.count };
        let follows = p.ranges.back().filter(|r| {
            r.first_sequence + u64::from(r.count) == new.first_sequence
                && r.first_offset + u64::from(r.count) == new.first_offset
        });
        match follows.and_then(|r| r.count.checked_add(new.count)) {
            Some(count) => p.ranges.back_mut().expect("it was just looked at").count = count,
            None => {
                p.ranges.push_back(new);
                self.ranges += 1;
                if p.ranges.len() > self.window
                    && let Some(oldest) = p.ranges.pop_front()
                {
                    p.forgotten_below = oldest.first_sequence + u64::from(oldest.count);
                    self.ranges -= 1;
                }
            }
        }
    }

    /// The first of a producer.
    fn store_first(&mut self, append: &ChunkHeader, first_offset: u64, now_ns: i64, pinned: &HashSet<ProducerId>) {
        self.make_room(now_ns, pinned);
        let stored = StoredRange { first_sequence: append.first_sequence, first_offset, count: append.count };
        let fresh = Producer {
            owner: append.owner,
            epoch: append.producer_epoch,
            last_active_ns: now_ns,
            ranges: VecDeque::from([stored]),
            // It may have been here before, and was forgotten altogether.
            forgotten_below: append.first_sequence,
        };
        self.ranges += 1;
        self.producers.insert(append.producer, fresh);
    }

    fn make_room(&mut self, now_ns: i64, pinned: &HashSet<ProducerId>) {
        let before = self.producers.len();
        while self.producers.len() >= self.max {
            let Some(id) = self.victim(now_ns, pinned) else { break };
            self.forget(&id);
        }
        // A limit that was lowered is reached as producers fall silent: one for one until then.
        while self.producers.len() >= self.max && self.producers.len() == before {
            // From the disk there may be more than today's limit allows: then the oldest goes all the same.
            let Some(id) = self.oldest(|_| true) else { return };
            self.forget(&id);
        }
    }

    /// Changes how many are remembered. Nobody is forgotten for it before its time: a newcomer is refused until enough
    /// have been silent for long enough.
    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max.max(1);
    }

    /// Raises a producer's epoch, so that appends of an earlier session are fenced from now on.
    pub(crate) fn raise_epoch(&mut self, id: &ProducerId, epoch: u32) {
        if let Some(p) = self.producers.get_mut(id) {
            p.epoch = p.epoch.max(epoch);
        }
    }

    /// Takes over what has happened in the live table since this copy of it was made, while nothing was stored: epochs that
    /// were raised, and who was forgotten.
    pub(crate) fn catch_up(&mut self, live: &Self) {
        self.producers.retain(|id, p| {
            let now = live.producers.get(id);
            p.epoch = now.map_or(p.epoch, |now| p.epoch.max(now.epoch));
            now.is_some()
        });
        self.ranges = self.producers.values().map(|p| p.ranges.len()).sum();
    }

    /// Forgets a producer (it said goodbye, with nothing unacknowledged).
    pub(crate) fn forget(&mut self, id: &ProducerId) {
        if let Some(p) = self.producers.remove(id) {
            self.ranges -= p.ranges.len();
        }
    }

    /// Whether there is a place for a further producer of this owner. One that may be forgotten counts as free.
    fn has_room_for(&self, owner: u64, now_ns: i64, pinned: &HashSet<ProducerId>) -> bool {
        let same = |other: u64| other == owner || (other & owner & NO_USER) != 0;
        let (mut kept, mut theirs) = (0, 0);
        for (id, p) in &self.producers {
            if pinned.contains(id) || now_ns.saturating_sub(p.last_active_ns) < self.keep_ns {
                kept += 1;
                theirs += usize::from(same(p.owner));
            }
        }
        // Of more than a lowered limit allows, one that may go makes room for one.
        let silent = self.producers.len() - kept;
        let free = self.max.saturating_sub(kept).max(silent.min(1));
        free > 0 && (theirs < self.max.div_ceil(2) || theirs < SHARE * free)
    }

    fn victim(&self, now_ns: i64, pinned: &HashSet<ProducerId>) -> Option<ProducerId> {
        let id = self.oldest(|id| !pinned.contains(id))?;
        let silent = now_ns.saturating_sub(self.producers[&id].last_active_ns);
        (silent >= self.keep_ns).then_some(id)
    }

    fn oldest(&self, may: impl Fn(&ProducerId) -> bool) -> Option<ProducerId> {
        let all = self.producers.iter().filter(|(id, _)| may(id));
        all.min_by_key(|(id, p)| (p.last_active_ns, **id)).map(|(id, _)| *id)
    }

    /// Takes out what was stored at these offsets: it is lost, so a resend of it must not be called stored.
    pub(crate) fn lose(&mut self, from: u64, to: u64) {
        for p in self.producers.values_mut() {
            let ranges = std::mem::take(&mut p.ranges);
            self.ranges -= ranges.len();
            for r in ranges {
                let (begin, end) = (r.first_offset, r.first_offset + u64::from(r.count));
                for (b, e) in [(begin, end.min(from)), (begin.max(to), end)].into_iter().filter(|(b, e)| b < e) {
                    let first_sequence = r.first_sequence + (b - begin);
                    p.ranges.push_back(StoredRange { first_sequence, first_offset: b, count: (e - b) as u32 });
                }
            }
            self.ranges += p.ranges.len();
        }
    }

    /// Everything, for a footer; sorted, so that the same table makes the same bytes.
    pub(crate) fn snapshot(&self) -> Vec<ProducerEntry> {
        let entry = |(id, p): (&ProducerId, &Producer)| ProducerEntry {
            id: *id,
            owner: p.owner,
            epoch: p.epoch,
            last_active_ns: p.last_active_ns,
            appends: p.ranges.iter().copied().collect(),
            forgotten_below: p.forgotten_below,
        };
        let mut all: Vec<_> = self.producers.iter().map(entry).collect();
        all.sort_by_key(|p| p.id);
        all
    }

    /// Takes over a snapshot.
    pub(crate) fn load(&mut self, entries: &[ProducerEntry]) {
        self.producers.clear();
        self.ranges = 0;
        for e in entries {
            self.ranges += e.appends.len();
            let p = Producer {
                owner: e.owner,
                epoch: e.epoch,
                last_active_ns: e.last_active_ns,
                ranges: e.appends.iter().copied().collect(),
                forgotten_below: e.forgotten_below,
            };
            self.producers.insert(e.id, p);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(producer: u8, first_sequence: u64, count: u32) -> ChunkHeader {
        ChunkHeader {
            flags: 0,
            count,
            payload_checksum: 0,
            producer: [producer; 16],
            owner: 1000,
            first_sequence,
            producer_epoch: 1,
        }
    }

    fn check(t: &ProducerTable, a: &ChunkHeader) -> Verdict {
        t.check(a, false, 0, &HashSet::new())
    }

    #[test]
    fn a_resend_gets_its_first_offset_and_nothing_else_passes_twice() {
        let none = HashSet::new();
        let mut t = ProducerTable::new(10, 4, 0);
        assert_eq!(check(&t, &append(1, 0, 2)), Verdict::Fresh);
        t.store(&append(1, 0, 2), 100, 0, &none);
        t.store(&append(1, 2, 3), 200, 0, &none);
        assert_eq!(check(&t, &append(1, 0, 2)), Verdict::Duplicate { first_offset: 100 });
        assert_eq!(check(&t, &append(1, 3, 2)), Verdict::Duplicate { first_offset: 201 });
        assert_eq!(check(&t, &append(1, 4, 2)), Verdict::Overlap { expected: 5 });
        assert_eq!(check(&t, &append(1, 1, 2)), Verdict::Overlap { expected: 5 });
        assert_eq!(check(&t, &append(1, 6, 1)), Verdict::Gap { expected: 5 });
        assert_eq!(t.check(&append(1, 6, 1), true, 0, &none), Verdict::Fresh);
        assert_eq!(check(&t, &append(1, 5, 1)), Verdict::Fresh);
        assert_eq!(check(&t, &ChunkHeader { owner: 7, ..append(1, 5, 1) }), Verdict::NotOwner);
        assert_eq!(check(&t, &ChunkHeader { producer_epoch: 0, ..append(1, 5, 1) }), Verdict::Fenced { current: 1 });
        assert_eq!(check(&t, &append(2, 9, 1)), Verdict::Gap { expected: 0 });
    }

    #[test]
    fn what_lies_in_a_hole_is_not_stored_and_what_reaches_out_of_it_is_in_part() {
        let none = HashSet::new();
        let mut t = ProducerTable::new(10, 4, 0);
        t.store(&append(1, 0, 2), 100, 0, &none);
        t.store(&append(1, 10, 2), 102, 0, &none); // with the gap mark
        assert_eq!(check(&t, &append(1, 2, 8)), Verdict::Skipped { expected: 12 });
        assert_eq!(check(&t, &append(1, 5, 2)), Verdict::Skipped { expected: 12 });
        for (first, count) in [(1, 2), (8, 3), (9, 3), (1, 10)] {
            assert_eq!(check(&t, &append(1, first, count)), Verdict::Overlap { expected: 12 }, "{first} {count}");
        }
        assert_eq!(check(&t, &append(1, 10, 2)), Verdict::Duplicate { first_offset: 102 });
    }

    #[test]
    fn the_window_bounds_what_is_remembered_and_a_row_is_one_range() {
        let none = HashSet::new();
        let mut t = ProducerTable::new(10, 2, 0);
        for i in 0..100 {
            t.store(&append(1, i, 1), i, 0, &none);
        }
        assert_eq!(t.ranges(), 1);
        for i in 0..5 {
            t.store(&append(1, 100 + i, 1), 1000 + i * 10, 0, &none);
        }
        assert_eq!(t.ranges(), 2);
        assert_eq!(check(&t, &append(1, 50, 1)), Verdict::TooOld);
        assert_eq!(check(&t, &append(1, 103, 1)), Verdict::Duplicate { first_offset: 1030 });
    }

    #[test]
    fn what_is_lost_is_never_called_stored_though_nothing_older_is_remembered() {
        let none = HashSet::new();
        let mut t = ProducerTable::new(10, 2, 0);
        for i in 0..4 {
            t.store(&append(1, i * 10, 10), 1000 + i * 100, 0, &none); // ranges of their own, two of them forgotten
        }
        t.lose(1200, 1300);
        let mut again = ProducerTable::new(10, 2, 0);
        again.load(&t.snapshot());
        for t in [&t, &again] {
            assert_eq!(check(t, &append(1, 10, 10)), Verdict::TooOld);
            assert_eq!(check(t, &append(1, 20, 10)), Verdict::Skipped { expected: 40 });
            assert_eq!(check(t, &append(1, 15, 10)), Verdict::Overlap { expected: 40 }, "a part of it was stored");
        }
        // With nothing left it goes on where that which is known ends.
        t.lose(0, u64::MAX);
        let mut again = ProducerTable::new(10, 2, 0);
        again.load(&t.snapshot());
        for t in [&t, &again] {
            assert_eq!(check(t, &append(1, 0, 1)), Verdict::TooOld);
            assert_eq!(check(t, &append(1, 20, 10)), Verdict::Fresh);
            assert_eq!(check(t, &append(1, 30, 10)), Verdict::Gap { expected: 20 });
        }
    }

    #[test]
    fn room_is_made_by_forgetting_the_longest_silent_that_may_go() {
        let mut t = ProducerTable::new(2, 2, 100);
        let none = HashSet::new();
        t.store(&append(1, 0, 1), 0, 10, &none);
        t.store(&append(2, 0, 1), 1, 20, &none);
        assert_eq!(t.check(&append(3, 0, 1), false, 50, &none), Verdict::TableFull, "nobody was silent long enough");
        assert_eq!(t.check(&append(3, 0, 1), false, 110, &none), Verdict::Fresh);
        let pinned = HashSet::from([[1; 16]]);
        assert_eq!(t.check(&append(3, 0, 1), false, 115, &pinned), Verdict::TableFull);
        t.store(&append(3, 0, 1), 2, 130, &pinned);
        assert!(t.get(&[1; 16]).is_some() && t.get(&[2; 16]).is_none());
    }

    #[test]
    fn one_owner_leaves_places_for_all_others_and_alone_has_nearly_all() {
        const MAX: usize = 1024;
        let none = HashSet::new();
        let mut t = ProducerTable::new(MAX, 2, 100);
        let mut ids = 0_u64;
        // As many as it gets, at this time.
        let mut fill = |t: &mut ProducerTable, owner: u64, now_ns: i64| {
            let mut got = 0;
            loop {
                let mut producer = [0; 16];
                producer[..8].copy_from_slice(&ids.to_le_bytes());
                ids += 1;
                let append = ChunkHeader { producer, owner, ..append(0, 0, 1) };
                if t.check(&append, false, now_ns, &none) != Verdict::Fresh {
                    return got;
                }
                t.store(&append, ids, now_ns, &none);
                got += 1;
            }
        };
        assert_eq!(fill(&mut t, 1000, 0), MAX - MAX / 8);
        assert_eq!((fill(&mut t, 1001, 0), t.len()), (MAX / 8, MAX), "and another has what is left");
        assert_eq!(fill(&mut t, 1002, 50), 0);
        // Whatever their secrets are, who come by the network are one.
        let mut network = ProducerTable::new(MAX, 2, 100);
        assert_eq!((fill(&mut network, NO_USER | 5, 0), fill(&mut network, NO_USER | 6, 0)), (MAX - MAX / 8, 0));
        // Two who have half each are in nobody's way.
        let mut halves = ProducerTable::new(MAX, 2, 100);
        for n in 0..MAX as u64 {
            let mut producer = [1; 16];
            producer[..8].copy_from_slice(&n.to_le_bytes());
            let append = ChunkHeader { producer, owner: 1000 + n % 2, ..append(0, 0, 1) };
            assert_eq!(halves.check(&append, false, 0, &none), Verdict::Fresh, "{n}");
            halves.store(&append, n, 0, &none);
        }
        // What has been silent for long enough is as good as free, whoever's it was.
        assert_eq!(fill(&mut t, 1003, 100), MAX - MAX / 8);
        assert_eq!(t.len(), MAX);
    }

    #[test]
    fn few_producers_are_for_whoever_comes() {
        for max in 1..=4 {
            let mut t = ProducerTable::new(max, 2, 100);
            for id in 0..max as u8 {
                assert_eq!(check(&t, &append(id, 0, 1)), Verdict::Fresh, "{id} of {max}");
                t.store(&append(id, 0, 1), id.into(), 0, &HashSet::new());
            }
            assert_eq!(check(&t, &append(9, 0, 1)), Verdict::TableFull);
        }
    }

    #[test]
    fn a_lower_limit_forgets_nobody_before_its_time() {
        let pinned = HashSet::from([[1; 16]]);
        let mut t = ProducerTable::new(4, 2, 100);
        for id in 1..=4 {
            t.store(&append(id, 0, 1), u64::from(id), i64::from(id), &pinned);
        }
        t.set_max(1);
        assert_eq!(t.check(&append(9, 0, 1), false, 50, &pinned), Verdict::TableFull, "none is silent for 100");
        assert_eq!(t.check(&append(3, 1, 1), false, 50, &pinned), Verdict::Fresh, "who is known stays");
        // At 103 two of the three that may go have been silent for long enough, and both go; two are left.
        assert_eq!(t.check(&append(9, 0, 1), false, 103, &pinned), Verdict::Fresh);
        t.store(&append(9, 0, 1), 9, 103, &pinned);
        assert!(t.get(&[1; 16]).is_some() && t.get(&[4; 16]).is_some() && t.get(&[9; 16]).is_some());
        assert_eq!(t.len(), 3);
    }

    #[test]
    fn a_snapshot_is_the_table() {
        let none = HashSet::new();
        let mut t = ProducerTable::new(10, 4, 0);
        t.store(&append(1, 0, 2), 100, 5, &none);
        t.store(&append(2, 0, 1), 102, 6, &none);
        let mut back = ProducerTable::new(10, 4, 0);
        back.load(&t.snapshot());
        assert_eq!(back.snapshot(), t.snapshot());
        assert_eq!(back.ranges(), 2);
        assert_eq!(check(&back, &append(1, 0, 2)), Verdict::Duplicate { first_offset: 100 });
    }

    #[test]
    fn what_recovery_gives_back_takes_no_fence_away() {
        let none = HashSet::new();
        let mut live = ProducerTable::new(10, 4, 0);
        live.store(&append(1, 0, 2), 100, 5, &none);
        live.store(&append(2, 0, 1), 102, 6, &none);
        let mut recovered = live.clone();
        recovered.lose(101, 102);
        live.raise_epoch(&[1; 16], 9);
        live.forget(&[2; 16]);
        recovered.catch_up(&live);
        assert_eq!((recovered.len(), recovered.ranges()), (1, 1));
        assert_eq!(check(&recovered, &append(1, 1, 1)), Verdict::Fenced { current: 9 });
        assert_eq!(check(&recovered, &ChunkHeader { producer_epoch: 9, ..append(1, 1, 1) }), Verdict::Fresh, "lost");
    }
}
