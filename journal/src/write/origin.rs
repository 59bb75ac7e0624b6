//! The table of origins: how far this log has taken over the streams of other logs.
//!
//! Invariants:
//! - An append of an origin is stored only if it begins where the last one ended, by what its forwarder says and by this
//!   table. So nothing is stored twice, out of order, or with a part left out in silence, whoever forwards and how often.
//! - Nothing is answered as stored before: what is below the expected source offset is refused with that offset. So no
//!   forwarder takes for stored what nobody has compared.
//! - The table never says more than what is stored. A footer is a cut of it at the footer's end ([`OriginTable::snapshot`]),
//!   and a start builds it from the newest footer and the appends behind that. After a loss of the last appends it is put
//!   back ([`OriginTable::lose`]); where it does not know to where, it takes nothing more of that origin.
//! - For that it has of each origin every append that is not durable, and the last that is: so many as fit one segment.
//! - No origin ages, and none makes room for another. Only [`OriginTable::forget`] removes one, by a tombstone.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use crate::error::{AppendError, Parting};
use crate::format::chunk::ChunkHeader;
use crate::format::origin::{self, ForwardedAppend, Origin, OriginEntry};
use crate::format::tombstone::Tombstone;

/// Producer id of the chunks of an origin.
type ProducerId = [u8; 16];

/// Part of a segment that all origins may take in its footer: a 32nd.
const SEGMENT_PART: u64 = 32;

/// The word of a forwarder on an append, besides its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The origin.
    pub origin: Origin,
    /// The source offset that it takes to be expected: the end of what it forwarded before.
    pub previous: u64,
    /// The log is not to know the origin yet.
    pub begins: bool,
}

/// A stored append, and what was expected before it, where that is known.
#[derive(Clone, Copy, Debug)]
struct Stored {
    append: ForwardedAppend,
    previous: Option<u64>,
}

#[derive(Clone, Debug)]
struct Known {
    origin: Origin,
    /// Offset at which this life of it began; 0 where it began before the newest footer.
    born_at: u64,
    /// Its last appends, oldest first; never empty.
    stored: VecDeque<Stored>,
    /// Offset behind what was before these.
    trimmed_end: u64,
    is_lost: bool,
}

impl Known {
    fn last(&self) -> ForwardedAppend {
        self.stored.back().map(|stored| stored.append).unwrap_or_default()
    }

    /// The state before all that is known of its appends: where the origin went on there, and if that is certain. What was
    /// trimmed must lie below `upto`.
    fn before_all(&self, upto: u64) -> (ForwardedAppend, bool) {
        let oldest = self.stored.front();
        let first = oldest.and_then(|oldest| oldest.previous);
        let epoch = oldest.map_or(0, |oldest| oldest.append.epoch);
        let offset = self.trimmed_end.min(upto);
        let append = ForwardedAppend { epoch, first: first.unwrap_or_default(), count: 0, payload_checksum: 0, offset };
        (append, first.is_some() && self.trimmed_end <= upto)
    }

    /// Its entry in a footer that ends at `end`; nothing if this life began later.
    fn entry(&self, (owner, producer): &(u64, ProducerId), end: u64) -> Option<OriginEntry> {
        let below = self.stored.iter().rev().find(|stored| stored.append.end_offset() <= end);
        let (last, is_certain) = match below {
            Some(stored) => (stored.append, true),
            None if self.born_at >= end => return None,
            None => self.before_all(end),
        };
        let (origin, is_lost) = (self.origin, self.is_lost || !is_certain);
        Some(OriginEntry { owner: *owner, producer: *producer, origin, last, is_lost })
    }

    /// Removes what lies at these offsets, from the newest on. Losses before an append that is still there stay losses.
    fn lose(&mut self, from: u64, to: u64) {
        let is_gone = |stored: &Stored| stored.append.offset < to && from < stored.append.end_offset();
        while self.stored.back().is_some_and(is_gone) {
            if self.stored.len() == 1 {
                let (before, is_certain) = self.before_all(from);
                self.is_lost |= !is_certain;
                self.stored = VecDeque::from([Stored { append: before, previous: None }]);
                return;
            }
            self.stored.pop_back();
        }
    }

    /// Forgets appends below an offset, but for the last of them.
    fn trim(&mut self, settled: u64) {
        while self.stored.get(1).is_some_and(|next| next.append.end_offset() <= settled)
            && let Some(oldest) = self.stored.pop_front()
        {
            self.trimmed_end = oldest.append.end_offset();
        }
    }
}

/// The table.
#[derive(Clone, Debug, Default)]
pub(crate) struct OriginTable {
    max: usize,
    /// Most that the footers of small segments have room for.
    fitting: usize,
    known: BTreeMap<(u64, ProducerId), Known>,
}

impl OriginTable {
    /// A table for `max` origins, fewer where segments are small.
    pub(crate) fn new(max: usize, segment_bytes: u64) -> Self {
        let fitting = segment_bytes / SEGMENT_PART / origin::ENTRY_BYTES as u64;
        Self { max, fitting: usize::try_from(fitting).unwrap_or(usize::MAX), known: BTreeMap::new() }
    }

    /// Changes the number of origins that are taken. None is forgotten.
    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    /// Number of origins.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// All of them, as they are now.
    pub(crate) fn all(&self) -> Vec<OriginEntry> {
        self.snapshot(u64::MAX)
    }

    /// One of them.
    pub(crate) fn get(&self, owner: u64, producer: &ProducerId) -> Option<OriginEntry> {
        let key = (owner, *producer);
        self.known.get(&key)?.entry(&key, u64::MAX)
    }

    /// Judges an append, and changes nothing. `true`: it is the first of its origin.
    pub(crate) fn check(&self, append: &ChunkHeader, forward: &Forward) -> Result<bool, AppendError> {
        let most = self.max.min(self.fitting);
        let Some(known) = self.known.get(&(append.owner, append.producer)) else {
            return match forward.begins {
                false => Err(AppendError::UnknownOrigin),
                true if self.len() >= most => Err(AppendError::TooManyOrigins { limit: most }),
                true => Ok(true),
            };
        };
        let last = known.last();
        let sent = ForwardedAppend { offset: 0, ..forwarded(append, 0) };
        let parted = |is_lost| Err(AppendError::Parted(Box::new(Parting { stored: last, sent, is_lost })));
        let is_last_again = last.count > 0 && sent.first == last.first;
        let is_other = (sent.count, sent.payload_checksum) != (last.count, last.payload_checksum);
        match forward {
            _ if known.is_lost => parted(true),
            _ if sent.epoch < last.epoch || is_last_again && is_other => parted(false),
            Forward { begins: true, .. } => Err(AppendError::Gap { expected: last.end() }),
            _ if forward.previous != last.end() || sent.first < forward.previous => {
                Err(AppendError::Gap { expected: last.end() })
            }
            _ => Ok(false),
        }
    }

    /// Stores an append that was checked. What lies below `settled` cannot be lost any more.
    pub(crate) fn store(&mut self, append: &ChunkHeader, forward: &Forward, offset: u64, settled: u64) {
        let key = (append.owner, append.producer);
        let stored = Stored { append: forwarded(append, offset), previous: Some(forward.previous) };
        let known = self.known.entry(key).or_insert_with(|| Known::born(forward.origin, offset));
        known.stored.push_back(stored);
        known.trim(settled);
    }

    /// Stores an append read back from the log. The log takes a source offset twice only where a tombstone lies between: if
    /// that one was lost, this is still a later life.
    pub(crate) fn replay(&mut self, append: &ChunkHeader, peer_meta: &[u8], offset: u64) {
        let Some(origin) = Origin::find(peer_meta) else { return };
        let key = (append.owner, append.producer);
        let stored = forwarded(append, offset);
        if self.known.get(&key).is_some_and(|known| stored.first < known.last().end()) {
            self.known.remove(&key);
        }
        let known = self.known.entry(key).or_insert_with(|| Known::born(origin, offset));
        let previous = (!known.stored.is_empty()).then(|| known.last().end());
        known.stored.push_back(Stored { append: stored, previous });
        known.trim(u64::MAX);
    }

    /// Forgets an origin, whose tombstone is the caller's to write; `false` where it was not known.
    pub(crate) fn forget(&mut self, owner: u64, producer: &ProducerId) -> bool {
        self.known.remove(&(owner, *producer)).is_some()
    }

    /// Applies a tombstone. A later life stays.
    pub(crate) fn bury(&mut self, tombstone: &Tombstone) {
        let names = |(owner, producer): &(u64, ProducerId)| {
            origin::tombstone(*owner, producer, 0).producer == tombstone.producer
        };
        self.known.retain(|key, known| known.born_at >= tombstone.below || !names(key));
    }

    /// Puts back what lies at these offsets: it is lost.
    pub(crate) fn lose(&mut self, from: u64, to: u64) {
        self.known.values_mut().for_each(|known| known.lose(from, to));
    }

    /// Content of a footer that ends at this offset.
    pub(crate) fn snapshot(&self, end: u64) -> Vec<OriginEntry> {
        self.known.iter().filter_map(|(key, known)| known.entry(key, end)).collect()
    }

    /// Takes over a snapshot.
    pub(crate) fn load(&mut self, entries: &[OriginEntry]) {
        let known = |e: &OriginEntry| Known {
            origin: e.origin,
            born_at: 0,
            stored: VecDeque::from([Stored { append: e.last, previous: None }]),
            trimmed_end: e.last.offset,
            is_lost: e.is_lost,
        };
        self.known = entries.iter().map(|e| ((e.owner, e.producer), known(e))).collect();
    }

    /// Adopts changes of the live table since this copy of it was made, while nothing was stored.
    pub(crate) fn catch_up(&mut self, live: &Self) {
        self.max = live.max;
        self.known.retain(|key, _| live.known.contains_key(key));
    }
}

impl Known {
    /// Without its first append.
    fn born(origin: Origin, born_at: u64) -> Self {
        Self { origin, born_at, stored: VecDeque::new(), trimmed_end: 0, is_lost: false }
    }
}

fn forwarded(append: &ChunkHeader, offset: u64) -> ForwardedAppend {
    ForwardedAppend {
        epoch: append.producer_epoch,
        first: append.first_sequence,
        count: append.count,
        payload_checksum: append.payload_checksum,
        offset,
    }
}
