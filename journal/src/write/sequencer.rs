//! The sequencer: judges appends by their producers' sequences, and knows who is connected and who was forgotten.
//!
//! Invariants: a sequence of a producer is stored once. A producer belongs to its owner while it is connected and while
//! it is remembered. A forgotten producer is answered only when the log durably contains its tombstone.

use std::collections::HashMap;

use super::producer::{ProducerId, ProducerState, ProducerTable, Verdict, counted_under};
use super::tombstones::Tombstones;
use crate::clock::Moment;
use crate::error::AppendError;
use crate::format::chunk::ChunkHeader;
use crate::format::footer::Footer;
use crate::format::origin;
use crate::format::tombstone::Tombstone;
use crate::write::batch::Row;
use crate::write::origin::{Forward, OriginTable};
use crate::write::resend::ResendWindow;

/// Relation of an accepted append to the stored records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stands {
    /// It is the next append of a known producer.
    InLine,
    /// It is the first of its producer.
    First,
    /// It is stored, at this offset.
    Stored(u64),
}

/// The sessions of a producer. It may have stored nothing yet, and be in no table: then its owner is known from here.
#[derive(Debug)]
pub(super) struct Connected {
    owner: u64,
    /// The owner whose share it counts in.
    counted: u64,
    sessions: usize,
    /// The highest epoch of the sessions.
    epoch: u32,
}

/// Producers: what they have stored, their sessions, and the forgotten ones.
pub(crate) struct Sequencer {
    producers: ProducerTable,
    /// Forgotten producers, until the log contains their tombstones.
    pub(super) tombstones: Tombstones,
    pub(super) connected: HashMap<ProducerId, Connected>,
}

impl Sequencer {
    pub(super) fn new(producers: ProducerTable) -> Self {
        Self { producers, tombstones: Tombstones::default(), connected: HashMap::new() }
    }

    /// The table of producers.
    pub(super) fn producers(&self) -> &ProducerTable {
        &self.producers
    }

    /// Gives a footer its producers and resends. The forgotten producers are left out; the footer stores that.
    pub(super) fn begin_footer(&mut self, footer: &mut Footer, now: Moment) {
        self.tombstones.begin_footer(footer.end_offset);
        self.producers.fill(footer, now);
    }

    /// Appends that their senders may send again without a sequence.
    pub(crate) fn resends(&self) -> &ResendWindow {
        &self.producers.resends
    }

    pub(super) fn resends_mut(&mut self) -> &mut ResendWindow {
        &mut self.producers.resends
    }

    /// Streams of other logs.
    pub(crate) fn origins(&self) -> &OriginTable {
        &self.producers.origins
    }

    pub(crate) fn origins_mut(&mut self) -> &mut OriginTable {
        &mut self.producers.origins
    }

    /// Judges a forwarded append; `true`: it is the first of its origin.
    pub(super) fn judge_forwarded(&self, header: &ChunkHeader, forward: &Forward) -> Result<bool, AppendError> {
        let is_first = self.origins().check(header, forward)?;
        match is_first && self.tombstones.holds(&origin::tombstone_id(header.owner, &header.producer)) {
            true => Err(AppendError::Forgetting),
            false => Ok(is_first),
        }
    }

    /// Forgets an origin. Nothing where it is not known; else `true` if a thread must check later, in time to write the
    /// tombstone.
    pub(super) fn drop_origin(&mut self, owner: u64, producer: &ProducerId, received: u64) -> Option<bool> {
        let known = self.origins_mut().forget(owner, producer);
        known.then(|| self.tombstones.push(origin::tombstone(owner, producer, received)))
    }

    /// Takes the table that recovery built from its copy. Connects and disconnects since then are preserved.
    pub(super) fn take_recovered(&mut self, mut recovered: ProducerTable) {
        recovered.catch_up(&self.producers);
        self.producers = recovered;
    }

    pub(crate) fn set_max_producers(&mut self, max: usize) {
        self.producers.set_max(max);
    }

    /// Updates the table of producers with the appends that were taken.
    pub(super) fn end_row(&mut self, row: &mut Option<Row>, submitted_end: u64, now: Moment) {
        if let Some(row) = row.take() {
            let counted = self.counted(&row.header.producer, row.header.owner);
            self.producers.store(&row.header, row.first_offset, counted, submitted_end, now);
        }
    }

    /// The owner whose share a producer counts in.
    fn counted(&self, id: &ProducerId, owner: u64) -> u64 {
        self.connected.get(id).map_or(counted_under(owner), |connected| connected.counted)
    }

    /// Makes room in the table for a newcomer, before it gets an offset.
    #[cold]
    pub(super) fn evict(&mut self, received: u64, now: Moment) {
        for producer in self.producers.make_room(now, &self.connected) {
            self.tombstones.push(Tombstone { producer, below: received });
        }
    }

    /// Compares an append with the stored records: returns its relation, or the reason of a refusal.
    pub(super) fn judge(&self, header: &ChunkHeader, gap: bool, now: Moment) -> Result<Stands, AppendError> {
        if let Some(connected) = self.connected.get(&header.producer) {
            if connected.owner != header.owner {
                return Err(AppendError::NotOwner);
            }
            let current = connected.epoch;
            if current > header.producer_epoch {
                return Err(AppendError::Fenced { current });
            }
        }
        let counted = self.counted(&header.producer, header.owner);
        match self.producers.check(header, gap, counted, now, &self.connected) {
            Verdict::Fresh => Ok(Stands::InLine),
            Verdict::First if self.tombstones.holds(&header.producer) => Err(AppendError::Forgetting),
            Verdict::First => Ok(Stands::First),
            Verdict::Duplicate { first_offset } => Ok(Stands::Stored(first_offset)),
            Verdict::Fenced { current } => Err(AppendError::Fenced { current }),
            Verdict::NotOwner => Err(AppendError::NotOwner),
            Verdict::Gap { expected } => Err(AppendError::Gap { expected }),
            Verdict::Overlap { expected } => Err(AppendError::Overlap { expected }),
            Verdict::TooOld => Err(AppendError::TooOld),
            Verdict::Skipped { expected } => Err(AppendError::Skipped { expected }),
            Verdict::TableFull => Err(AppendError::TooManyProducers),
        }
    }

    /// State of a producer, for its handshake; the id belongs to its owner from the first append on.
    pub(crate) fn producer(&self, id: &ProducerId, owner: u64) -> Result<Option<ProducerState>, AppendError> {
        let connected = self.connected.get(id);
        match self.producers.get(id) {
            Some((stored, _)) if stored != owner => Err(AppendError::NotOwner),
            _ if connected.is_some_and(|connected| connected.owner != owner) => Err(AppendError::NotOwner),
            // A producer that is connected and has stored nothing yet is in no table.
            None => Ok(connected.map(|connected| ProducerState { epoch: connected.epoch, last: None })),
            found => Ok(found.map(|(_, state)| state)),
        }
    }

    /// As [`Self::producer`], for a producer that is about to append: also refuses if its next record would be refused
    /// for reasons of its producer.
    pub(crate) fn may_append(
        &self,
        id: &ProducerId,
        owner: u64,
        epoch: u32,
        now: Moment,
    ) -> Result<Option<ProducerState>, AppendError> {
        let state = self.producer(id, owner)?;
        let next = state.and_then(|state| state.last).map_or(0, |(sequence, _)| sequence.saturating_add(1));
        self.judge(&one(id, owner, epoch, next), true, now)?;
        Ok(state)
    }

    /// True if a record of a producer is in the log, by its sequence; nothing if that is unknown. A producer that is
    /// not in the table may have been forgotten for its silence.
    pub(crate) fn is_stored(&self, id: &ProducerId, owner: u64, sequence: u64, now: Moment) -> Option<bool> {
        self.producers.get(id)?;
        // The check covers all sessions: no epoch fences it.
        match self.judge(&one(id, owner, u32::MAX, sequence), false, now) {
            Ok(Stands::Stored(_)) | Err(AppendError::TooOld) => Some(true),
            Ok(Stands::InLine | Stands::First) | Err(AppendError::Gap { .. } | AppendError::Skipped { .. }) => {
                Some(false)
            }
            Err(_) => None,
        }
    }

    pub(crate) fn producers_len(&self) -> usize {
        self.producers.len()
    }

    /// Number of producers of each owner, and the total above which newcomers are judged by their owner's share.
    pub(crate) fn producers_by_owner(&self) -> (Vec<(u64, usize)>, usize) {
        (self.producers.by_owner(), self.producers.max())
    }

    pub(crate) fn connect(&mut self, id: &ProducerId, owner: u64, epoch: u32, counted: u64) -> Result<(), AppendError> {
        self.producer(id, owner)?;
        if self.is_forgetting(id) {
            return Err(AppendError::Forgetting);
        }
        let connected = self.connected.entry(*id).or_insert(Connected { owner, counted, sessions: 0, epoch });
        connected.sessions += 1;
        connected.epoch = connected.epoch.max(epoch);
        self.producers.raise_epoch(id, epoch);
        Ok(())
    }

    /// True if an earlier life of a producer was forgotten, and the log does not durably contain that yet. Until then
    /// no answer about the producer is allowed: after a crash that life would be back. The caller wants this to end.
    pub(crate) fn is_forgetting(&mut self, id: &ProducerId) -> bool {
        self.tombstones.want(id)
    }

    /// Ends a session; `true` if a thread must check later, in time to write the resulting tombstone.
    pub(crate) fn disconnect(&mut self, id: &ProducerId, forget: bool, received: u64) -> bool {
        let Some(connected) = self.connected.get_mut(id) else { return false };
        assert!(connected.sessions > 0, "a session ends twice: its producer would be forgotten while it appends");
        connected.sessions -= 1;
        if connected.sessions > 0 {
            return false;
        }
        self.connected.remove(id);
        if !forget || !self.producers.forget(id) {
            return false;
        }
        self.tombstones.push(Tombstone { producer: *id, below: received })
    }
}

/// A record by itself, to be judged alone.
fn one(producer: &ProducerId, owner: u64, producer_epoch: u32, first_sequence: u64) -> ChunkHeader {
    ChunkHeader { flags: 0, count: 1, payload_checksum: 0, producer: *producer, owner, first_sequence, producer_epoch }
}
