//! The sequencer: the one place where an append is judged and given its offset, and where producers come and go.

use crate::active::Active;
use crate::clock::Moment;
use crate::error::AppendError;
use crate::faults::Fault;
use crate::format::chunk::ChunkHeader;
use crate::format::footer::Footer;
use crate::gather::Entering;
use crate::marks::{Accepting, Level, Marks};
use crate::producer::{ProducerId, ProducerState, Verdict};

use super::{Accepted, Append, Committer, RotateReply, State};

impl Committer {
    /// Takes an append and gives it its offset, or refuses it; a refusal leaves no trace.
    pub(crate) fn append(&mut self, a: Append<'_>, now: Moment) -> Result<Accepted, AppendError> {
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
            Verdict::Duplicate { .. } if self.config.faults.has(Fault::ResendStoredTwice) => {}
            Verdict::Duplicate { first_offset } => return Ok(given(first_offset, true, &self.marks)),
            Verdict::Fenced { current } => return Err(AppendError::Fenced { current }),
            Verdict::NotOwner => return Err(AppendError::NotOwner),
            Verdict::Gap { expected } => return Err(AppendError::Gap { expected }),
            Verdict::Overlap { expected } => return Err(AppendError::Overlap { expected }),
            Verdict::TooOld => return Err(AppendError::TooOld),
            Verdict::Skipped { expected } => return Err(AppendError::Skipped { expected }),
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
    pub(super) fn check_room(&self, len: usize) -> Result<(), AppendError> {
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

    pub(super) fn footer_len(&self, active: &Active) -> u64 {
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
        self.submitted.raise_epoch(id, epoch);
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
            // An append of everyday size, not the smallest that might still slip in.
            State::Running => match self.check_room((self.config.segment_bytes / 8).min(64 * 1024) as usize) {
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
}
