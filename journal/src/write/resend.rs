//! The resend window: appends of senders whose protocol has no sequence, so that one sent again is stored once.
//!
//! Invariants:
//! - An append is found again only under the same sender, digest and number of records. What is found is in the log, or
//!   on its way there, or was removed by retention; what was reported lost is not found.
//! - There is one window. A footer is a cut of it at the footer's end ([`ResendWindow::snapshot`]), and a start builds it
//!   from the newest footer and the appends behind that.
//! - It is bounded. A full window loses the oldest entry of the sender with the most, so that a flood loses its own. While
//!   other senders have entries, a sender with half of all places grows no further. A loss before its time is counted.
//! - An entry ages only while the journal takes appends ([`ResendWindow::pass`]): who is refused meanwhile can still send
//!   again. The disk has no ages: after a start and after a recovery every entry is young again.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::format::resend::{ResendEntry, ResendKey};

/// Most entries of any window.
const RESEND_ENTRIES_MAX: usize = 65_536;
/// Part of a segment that a full window may take in its footer: a 32nd.
const SEGMENT_PART: u64 = 32;
/// Bytes that an entry counts for in that part.
const ENTRY_BYTES: u64 = 52;
/// Old entries that leave at one look.
const EXPIRED_PER_LOOK_MAX: usize = 64;

/// An append that is remembered; its offset is the key of the map.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    key: ResendKey,
    count: u32,
    /// Open time at which it came.
    since_ns: u64,
}

/// Time in which the journal took appends.
#[derive(Clone, Copy, Debug, Default)]
struct OpenTime {
    ns: u64,
    /// Boot time of the last look.
    seen_boot_ns: u64,
    /// The journal took appends at that look.
    runs: bool,
}

/// The window. Without a place it is off: it keeps nothing and finds nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResendWindow {
    max: usize,
    keep_ns: u64,
    /// By offset, so in the order in which they came.
    entries: BTreeMap<u64, Remembered>,
    offsets: HashMap<(ResendKey, u32), u64>,
    /// Offsets of each sender's entries.
    senders: HashMap<u64, BTreeSet<u64>>,
    /// Of each sender the number of its entries, and the offset of its oldest.
    greed: BTreeSet<(usize, Reverse<u64>)>,
    open: OpenTime,
    evicted_early: u64,
}

impl ResendWindow {
    /// A window of so many entries, fewer where segments are small. No entries or no time: it is off.
    pub(crate) fn new(entries: usize, keep: Duration, segment_bytes: u64) -> Self {
        let fitting = usize::try_from(segment_bytes / SEGMENT_PART / ENTRY_BYTES).unwrap_or(usize::MAX);
        let max = if keep.is_zero() { 0 } else { entries.min(RESEND_ENTRIES_MAX).min(fitting) };
        Self { max, keep_ns: u64::try_from(keep.as_nanos()).unwrap_or(u64::MAX), ..Self::default() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.max > 0
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Most entries that a footer may have after one more append.
    pub(crate) fn len_after_next(&self) -> usize {
        if self.is_on() { self.len() + 1 } else { 0 }
    }

    /// Entries that were evicted before their time, since the start.
    pub(crate) fn evicted_early(&self) -> u64 {
        self.evicted_early
    }

    /// Notes the time, and that the journal takes appends from now on, or does not. Time counts while it did.
    pub(crate) fn pass(&mut self, now_boot_ns: u64, takes_appends: bool) {
        if self.open.runs {
            self.open.ns += now_boot_ns.saturating_sub(self.open.seen_boot_ns);
        }
        (self.open.seen_boot_ns, self.open.runs) = (now_boot_ns, takes_appends);
        self.expire();
    }

    /// The offset of an append that was sent before.
    pub(crate) fn find(&self, key: &ResendKey, count: u32) -> Option<u64> {
        let first_offset = self.offsets.get(&(*key, count))?;
        self.entries.get(first_offset).filter(|entry| !self.is_old(entry)).map(|_| *first_offset)
    }

    /// Remembers an append that was given its offset.
    pub(crate) fn remember(&mut self, key: ResendKey, count: u32, first_offset: u64) {
        if !self.is_on() {
            return;
        }
        self.expire();
        self.evicted_early += u64::from(self.insert(key, count, first_offset));
    }

    /// Remembers an append read back from the log. The log does not say when others left the window: they leave for want
    /// of a place alone, and that is not counted.
    pub(crate) fn replay(&mut self, peer_meta: &[u8], count: u32, first_offset: u64) {
        if self.is_on()
            && let Some(key) = ResendKey::find(peer_meta)
        {
            self.insert(key, count, first_offset);
        }
    }

    /// Removes the appends with any of these offsets: they are lost, so a resend of them is stored again.
    pub(crate) fn lose(&mut self, from: u64, to: u64) {
        let reaches_in = |(first, entry): &(&u64, &Remembered)| end(**first, entry.count) > from;
        let before = self.entries.range(..from).next_back().filter(reaches_in);
        let lost: Vec<u64> =
            before.into_iter().chain(self.entries.range(from..to.max(from))).map(|(first, _)| *first).collect();
        lost.into_iter().for_each(|first| self.remove(first));
    }

    /// Content of a footer that ends at this offset.
    pub(crate) fn snapshot(&self, footer_end: u64) -> Vec<ResendEntry> {
        let below = self.entries.range(..footer_end).filter(|(first, entry)| end(**first, entry.count) <= footer_end);
        let below = below.filter(|(_, entry)| !self.is_old(entry));
        below.map(|(first, entry)| ResendEntry { key: entry.key, first_offset: *first, count: entry.count }).collect()
    }

    /// Takes over a snapshot: its newest entries, where it has more than there are places.
    pub(crate) fn load(&mut self, entries: &[ResendEntry]) {
        (self.entries, self.offsets) = (BTreeMap::new(), HashMap::new());
        (self.senders, self.greed) = (HashMap::new(), BTreeSet::new());
        for entry in &entries[entries.len().saturating_sub(self.max)..] {
            self.put(entry.key, entry.count, entry.first_offset);
        }
    }

    /// Goes on with the time and the counts of the live window, of which this was a copy. Every entry is young again.
    pub(crate) fn catch_up(&mut self, live: &Self) {
        (self.open, self.evicted_early) = (live.open, live.evicted_early);
        self.entries.values_mut().for_each(|entry| entry.since_ns = live.open.ns);
    }

    fn is_old(&self, entry: &Remembered) -> bool {
        self.open.ns.saturating_sub(entry.since_ns) > self.keep_ns
    }

    /// Removes old entries, a few at a time: the journal's lock is held. Those that are left are found no more.
    fn expire(&mut self) {
        for _ in 0..EXPIRED_PER_LOOK_MAX {
            match self.entries.first_key_value() {
                Some((oldest, entry)) if self.is_old(entry) => self.remove(*oldest),
                _ => return,
            }
        }
    }

    /// Inserts an entry; returns true if another was evicted for it.
    fn insert(&mut self, key: ResendKey, count: u32, first_offset: u64) -> bool {
        self.put(key, count, first_offset);
        let victim = self.victim(key.identity);
        victim.into_iter().for_each(|oldest| self.remove(oldest));
        victim.is_some()
    }

    /// The entry that has to go, now that a sender has one more.
    fn victim(&self, identity: u64) -> Option<u64> {
        if self.len() > self.max {
            return self.greed.last().map(|(_, Reverse(oldest))| *oldest);
        }
        let theirs = self.senders.get(&identity)?;
        let has_too_many = theirs.len() > self.max.div_ceil(2) && theirs.len() < self.len();
        theirs.first().copied().filter(|_| has_too_many)
    }

    fn put(&mut self, key: ResendKey, count: u32, first_offset: u64) {
        // It may be in the log twice, where it was forgotten in between: the later one counts.
        let earlier = self.offsets.get(&(key, count)).copied();
        earlier.into_iter().chain([first_offset]).for_each(|before| self.remove(before));
        self.entries.insert(first_offset, Remembered { key, count, since_ns: self.open.ns });
        self.offsets.insert((key, count), first_offset);
        self.change(key.identity, |theirs| theirs.insert(first_offset));
    }

    fn remove(&mut self, first_offset: u64) {
        let Some(gone) = self.entries.remove(&first_offset) else { return };
        self.offsets.remove(&(gone.key, gone.count));
        self.change(gone.key.identity, |theirs| theirs.remove(&first_offset));
    }

    /// Changes the offsets of a sender, and its place in the order of greed.
    fn change(&mut self, identity: u64, change: impl FnOnce(&mut BTreeSet<u64>) -> bool) {
        let greed = |theirs: &BTreeSet<u64>| theirs.first().map(|oldest| (theirs.len(), Reverse(*oldest)));
        let theirs = self.senders.entry(identity).or_default();
        if let Some(before) = greed(theirs) {
            self.greed.remove(&before);
        }
        change(theirs);
        match greed(theirs) {
            Some(now) => drop(self.greed.insert(now)),
            None => drop(self.senders.remove(&identity)),
        }
    }
}

/// One past the last offset of an append. What a file says may be beyond all numbers.
fn end(first_offset: u64, count: u32) -> u64 {
    first_offset.saturating_add(count.into())
}
