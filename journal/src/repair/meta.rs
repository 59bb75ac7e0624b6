//! The content of `clad.meta`: taken over, or made again from the segments.
//!
//! Invariants:
//! - No segment with a record is left out: a segment that may be in use counts, as at a start, if no proof remains that
//!   it is a prepared one.
//! - A start's conclusions from a lost slot are written before that slot is rewritten: afterwards no trace remains.
//! - A file made again means an unclean end: a start scans segments without a footer, and raises the epoch above all in
//!   the headers. Removals by retention cannot be known any more: the log begins with the lowest existing segment.

use std::io;
use std::sync::Arc;

use super::{Action, Repair, Said};
use crate::env::Observer;
use crate::format::meta::{EpochStart, Meta, NONE};
use crate::format::segment::SegmentHeader;
use crate::format::{META_NAME, segment_name};
use crate::io::Access;
use crate::recover::scan::scan;
use crate::recover::{self, State, holds_a_batch};
use crate::write::metafile::MetaFile;
use crate::write::segment_file;

impl Repair<'_> {
    /// Returns the content from now on.
    pub(super) fn meta(&mut self, found: Option<Said>) -> io::Result<Meta> {
        match found {
            Some(said) => self.take_over(said),
            None => self.rebuild(),
        }
    }

    /// Takes it over with all segments that are in use, in both slots.
    fn take_over(&mut self, Said { meta: said, slot, whole }: Said) -> io::Result<Meta> {
        let mut meta = said.clone();
        let above: Vec<u64> = self.files.range(said.next_segment()..).map(|(number, _)| *number).collect();
        for number in above {
            if self.is_used(number, whole && !said.latched)? {
                (meta.highest_segment, meta.clean) = (number, false);
            }
        }
        if !self.dry() && (!whole || meta != said) {
            // The valid slot may be the only one: it stays unchanged until the other is valid.
            let file = MetaFile::open(self.storage, said.clone(), slot)?;
            file.update(|now| *now = Meta { generation: now.generation, ..meta.clone() })?;
            file.update(|_| {})?;
        }
        if !whole {
            self.report.actions.push(Action::RewroteSlot);
        } else if meta != said {
            let named = Some(said.highest_segment).filter(|n| *n != NONE);
            self.report.actions.push(Action::NamedSegments { said: named, highest: meta.highest_segment });
        }
        Ok(meta)
    }

    fn rebuild(&mut self) -> io::Result<Meta> {
        let meta = self.meta_from_segments()?;
        if !self.dry() {
            let entries = self.storage.list("")?;
            if entries.iter().any(|entry| entry.name == META_NAME) {
                self.quarantine(META_NAME)?;
            }
            MetaFile::make(self.storage, meta.clone())?;
        }
        self.report.actions.push(Action::RebuiltMeta {
            segments: (meta.lowest_segment, meta.highest_segment),
            lowest_offset: meta.lowest_offset,
            epoch: meta.epoch(),
        });
        Ok(meta)
    }

    fn meta_from_segments(&self) -> io::Result<Meta> {
        let lowest = self.files.keys().next().copied().unwrap_or(0);
        let mut meta = Meta::new(self.report.log_id, self.clock.real_ns());
        (meta.lowest_segment, meta.highest_segment) = (lowest, lowest);
        let (mut lowest_offset, mut behind) = (None, None);
        for number in self.files.keys().copied() {
            // A prepared segment holds nothing: its epoch may never have been in force.
            if !self.is_used(number, false)? {
                continue;
            }
            meta.highest_segment = number;
            let Some(segment) = self.probe(number)? else { continue };
            let (epoch, first) = match &segment.state {
                State::Sealed { header, footer, .. } => {
                    behind = Some(footer.end_offset);
                    (header.epoch, Some(footer.first_offset))
                }
                State::Unsealed { header } => (header.epoch, self.first_offset(number, header, behind.take())?),
                State::Unreadable(_) => {
                    behind = None;
                    continue;
                }
            };
            let Some(first) = first else { continue };
            lowest_offset.get_or_insert(first);
            if epoch > meta.epochs.last().map_or(0, |e| e.epoch) {
                match meta.epochs.is_empty() {
                    true => meta.epochs.push(EpochStart { epoch, first_offset: first }),
                    false => meta.push_epoch(epoch, first),
                }
            }
        }
        // The lowest segment of all begins at 0, also when unreadable; other offsets below are lost or were removed.
        meta.lowest_offset = if lowest == 0 { 0 } else { lowest_offset.unwrap_or(0) };
        if meta.epochs.is_empty() {
            meta.epochs.push(EpochStart { epoch: 1, first_offset: meta.lowest_offset });
        }
        Ok(meta)
    }

    /// The first offset of a segment without a footer: of its first batch. Where that has bit rot, the end of the
    /// segment before it, or the first valid batch.
    fn first_offset(&self, number: u64, header: &SegmentHeader, behind: Option<u64>) -> io::Result<Option<u64>> {
        let Some(seen) = self.files.get(&number) else { return Ok(None) };
        let first = holds_a_batch(self.storage, seen.lies_at, header)?.or(behind);
        if first.is_some() {
            return Ok(first);
        }
        let found = scan(self.storage.open(&segment_name(seen.lies_at), Access::ReadDirect)?, header)?;
        Ok(found.batches.iter().find(|batch| batch.is_data()).map(|batch| batch.header.first_offset))
    }

    /// Returns true if a segment was put to use, as a start sees it. `sure`: nothing is lost that would show it.
    fn is_used(&self, number: u64, sure: bool) -> io::Result<bool> {
        let (Some(seen), Some(segment)) = (self.files.get(&number), self.probe(number)?) else { return Ok(false) };
        let mut state = segment.state;
        if !matches!(state, State::Sealed { .. }) {
            // Its writer may be dead, with a write still on its way.
            let observer: Observer = Arc::new(|_| {});
            let _alone = segment_file::open_alone(self.storage, seen.lies_at, Access::ReadDirect, &observer)?;
            if let Some(again) = self.probe(number)? {
                state = again.state;
            }
        }
        recover::is_used(self.storage, seen.lies_at, &state, &self.report.log_id, sure)
    }
}
