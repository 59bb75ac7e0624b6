//! Room: the check that a record with an offset has a place in the files.
//!
//! Invariant: everything that waits fits, at worst, into the rest of the active segment, or into further segments.
//! Those are prepared, or were seen to have room on the disk (and were not claimed since), each with its footer. The
//! check runs where offsets are assigned, for all that waits and the current append together. So nothing counted
//! before can take the place of a later append. A segment that records wait for may use the reserved space
//! (`reserve_free`): the reserve covers what others take of the disk between two checks.
//!
//! After an append was refused because no segment is available behind the active one, the journal reports that it
//! takes none. This lasts until a segment is available, though smaller appends are still accepted. A refused sender
//! may be refused for that whole time, and each accepted append shrinks the rest of the active segment.

use crate::error::AppendError;
use crate::faults::Fault;
use crate::format::batch;
use crate::format::footer::Footer;
use crate::write::active::{Active, INDEX_EVERY};

use super::{Committer, Wanted};

/// An append of everyday size, not the smallest that might still fit.
const EVERYDAY: u64 = 64 * 1024;

impl Committer {
    /// As [`Self::check_room`], for the current append.
    #[inline]
    pub(super) fn find_room(&mut self, len: usize) -> Result<(), AppendError> {
        let found = self.check_room(len);
        if found.is_err() {
            self.note_refused();
        }
        found
    }

    #[cold]
    fn note_refused(&mut self) {
        // With a segment behind this one it is over once that is written to.
        if !self.can_have_next() && self.supply.note_refused() {
            self.watermarks.version += 1;
        }
    }

    /// True if the journal may report that appends are taken.
    pub(super) fn takes_what_comes(&self) -> bool {
        let everyday = (self.config.segment_bytes / 8).min(EVERYDAY) as usize;
        (!self.supply.has_refused() || self.can_have_next()) && self.check_room(everyday).is_ok()
    }

    /// Checks that an append of so many bytes has a place behind all that waits.
    pub(super) fn check_room(&self, len: usize) -> Result<(), AppendError> {
        let batches = self.builder.batches() as u64 + 1;
        let stored = self.builder.bytes() as u64 + len as u64 + batches * batch::LEN as u64;
        match self.fits_later(stored, batches) || self.fits_here(stored, batches) {
            true => Ok(()),
            false => Err(self.supply.refusal()),
        }
    }

    /// True if it fits into the rest of the active segment, unless that is about to be sealed.
    fn fits_here(&self, stored: u64, batches: u64) -> bool {
        let active = self.active.as_ref().filter(|_| self.rotate_replies.is_empty());
        active.is_some_and(|active| {
            let footer = self.footer_of(active.index_len() as u64 + index_entries(stored, batches));
            active.has_room(stored, batches, footer)
        })
    }

    /// True if it fits into segments that nothing was written to yet. One segment holds at least one batch. Batches
    /// are placed in order: of two adjacent segments, the second began because its content did not fit into the first.
    fn fits_later(&self, stored: u64, batches: u64) -> bool {
        let segments = self.segments_ahead();
        if batches <= segments {
            return true;
        }
        let taken = self.block + self.footer_of(index_entries(stored, batches));
        let each = self.config.segment_bytes.saturating_sub(taken);
        segments > 0 && stored + batches * self.block <= each.saturating_mul((segments / 2).max(1))
    }

    /// Number of segments available behind the active one.
    fn segments_ahead(&self) -> u64 {
        if self.config.faults.has(Fault::RoomNotCounted) && !self.supply.is_low() {
            return u64::MAX;
        }
        self.supply.available()
    }

    /// True if the active segment may be left while appends wait.
    pub(super) fn can_have_next(&self) -> bool {
        self.segments_ahead() > 0
    }

    /// Takes the next segment for a job: the prepared one, or one that is still to be made.
    pub(super) fn claim_next(&mut self) -> Wanted {
        Wanted { prepared: self.supply.claim(), for_accepted: !self.builder.is_empty() }
    }

    /// The longest footer of the active segment with one more batch in it.
    pub(super) fn footer_len(&self, active: &Active) -> u64 {
        self.footer_of(active.index_len() as u64 + 1)
    }

    fn footer_of(&self, index: u64) -> u64 {
        // A footer is a cut of this table, and the table grows by appends alone, each of which was counted here. Every
        // owner with payload in the segment, or waiting for it, has an entry in `held`.
        let (t, owners) = (self.sequencer.producers(), self.quota.held.len() + 1);
        Footer::max_len(index as usize, t.len() + 1, t.ranges() + 1, owners, self.block as usize)
    }
}

/// Most that so many batches add to an index.
fn index_entries(stored: u64, batches: u64) -> u64 {
    batches.min(stored / INDEX_EVERY + 1)
}
