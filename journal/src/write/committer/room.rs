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
use crate::format::batch;
use crate::format::footer::{Footer, FooterEntries, INDEX_EVERY};
use crate::format::segment::SegmentHeader;
use crate::write::active::Active;
use crate::write::batch::BatchBuilder;
use crate::write::producer::ProducerTable;
use crate::write::segment_supply::SegmentSupply;

/// An append of everyday size, not the smallest that might still fit.
const EVERYDAY: u64 = 64 * 1024;

/// The active segment, and those behind it.
pub(crate) struct Segments {
    pub(super) active: Option<Active>,
    pub(crate) supply: SegmentSupply,
    pub(super) segment_bytes: u64,
    /// Block size of a write, as the last segment reported.
    pub(super) block: u64,
}

impl Segments {
    pub(super) fn new(segment_bytes: u64) -> Self {
        Self { active: None, supply: SegmentSupply::default(), segment_bytes, block: 4096 }
    }

    /// True if there is an active segment, and it holds no batch.
    pub(super) fn is_active_empty(&self) -> bool {
        self.active.as_ref().is_some_and(Active::is_empty)
    }

    /// Number of segments available behind the active one.
    fn ahead(&self) -> u64 {
        self.supply.available()
    }

    /// True if the active segment may be left while appends wait.
    pub(super) fn can_have_next(&self) -> bool {
        self.ahead() > 0
    }

    /// Segments that exist and are not sealed.
    pub(crate) fn held(&self) -> usize {
        usize::from(self.active.is_some()) + usize::from(self.supply.is_prepared())
    }

    /// The active segment's header, cloned only when it is another than `known`.
    pub(crate) fn active_header(&self, known: Option<SegmentHeader>) -> Option<SegmentHeader> {
        let active = self.active.as_ref()?;
        match known {
            Some(header) if header == active.header => Some(header),
            _ => Some(active.header.clone()),
        }
    }

    /// Part of the active segment that is used, 0 to 1.
    pub(crate) fn fill(&self) -> f64 {
        self.active.as_ref().map_or(0.0, |a| a.pos as f64 / a.header.capacity as f64)
    }

    /// The active segment's number, first offset, and where to start looking for an offset.
    pub(crate) fn seek(&self, offset: u64) -> Option<(u64, u64, Option<u64>)> {
        self.active.as_ref().map(|a| (a.header.number, a.content.first_offset, a.seek(offset)))
    }

    /// The active segment's number, first offset, and where its batches end so far.
    pub(crate) fn active_extent(&self) -> Option<(u64, u64, u64)> {
        self.active.as_ref().map(|a| (a.header.number, a.content.first_offset, a.pos))
    }
}

/// Everything that room depends on, at one moment.
pub(super) struct Room<'a> {
    pub(super) segments: &'a Segments,
    pub(super) waiting: &'a BatchBuilder,
    pub(super) producers: &'a ProducerTable,
    /// Every owner with payload in the active segment, or waiting for it, is counted here.
    pub(super) owners: usize,
    /// The append is the first of so many origins.
    pub(super) new_origins: usize,
    /// The active segment is about to be sealed: nothing more goes into it.
    pub(super) leaves: bool,
}

impl Room<'_> {
    /// True if the journal may report that appends are taken.
    pub(super) fn takes_what_comes(&self) -> bool {
        let everyday = (self.segments.segment_bytes / 8).min(EVERYDAY) as usize;
        (!self.segments.supply.refused || self.segments.can_have_next()) && self.check(everyday).is_ok()
    }

    /// Checks that an append of so many bytes has a place behind all that waits.
    #[inline]
    pub(super) fn check(&self, len: usize) -> Result<(), AppendError> {
        let batches = self.waiting.batches() as u64 + 1;
        let stored = self.waiting.bytes() as u64 + len as u64 + batches * batch::LEN as u64;
        match self.fits_later(stored, batches) || self.fits_here(stored, batches) {
            true => Ok(()),
            false => Err(self.segments.supply.refusal()),
        }
    }

    /// True if it fits into the rest of the active segment, unless that is about to be sealed.
    fn fits_here(&self, stored: u64, batches: u64) -> bool {
        let active = self.segments.active.as_ref().filter(|_| !self.leaves);
        active.is_some_and(|active| {
            let footer = self.footer_of(active.index_len() as u64 + index_entries(stored, batches));
            active.has_room(stored, batches, footer)
        })
    }

    /// True if it fits into segments that nothing was written to yet. One segment holds at least one batch. Batches
    /// are placed in order: of two adjacent segments, the second began because its content did not fit into the first.
    fn fits_later(&self, stored: u64, batches: u64) -> bool {
        let segments = self.segments.ahead();
        if batches <= segments {
            return true;
        }
        let block = self.segments.block;
        let taken = block + self.footer_of(index_entries(stored, batches));
        let each = self.segments.segment_bytes.saturating_sub(taken);
        segments > 0 && stored + batches * block <= each.saturating_mul((segments / 2).max(1))
    }

    /// True if one batch of so many bytes, and the footer, fit into the active segment. `fresh`: it may not share a
    /// block.
    pub(super) fn fits_active(&self, stored: u64, fresh: bool) -> bool {
        let longest = |active: &Active| self.footer_of(active.index_len() as u64 + 1);
        self.segments.active.as_ref().is_some_and(|active| active.fits(stored, fresh, longest(active)))
    }

    fn footer_of(&self, index: u64) -> u64 {
        // A footer is a cut of this table, and the table grows by appends alone, each of which was counted here.
        let t = self.producers;
        let entries = FooterEntries {
            producers: t.len() + 1,
            ranges: t.ranges() + 1,
            owners: self.owners + 1,
            resends: t.resends.len_after_next(),
            origins: t.origins.len() + self.new_origins,
        };
        Footer::max_len(index as usize, &entries, self.segments.block as usize)
    }
}

/// Most that so many batches add to an index.
fn index_entries(stored: u64, batches: u64) -> u64 {
    batches.min(stored / INDEX_EVERY + 1)
}
