//! Bit rot in what was acknowledged: a byte of a segment turns over on the media, in a life or between two.
//!
//! Invariants, checked with the rest of the model:
//! - No reader gets other bytes than were appended, and none misses a report: what it does not get, it gets as a gap.
//! - Such a gap holds nothing but what was hit (the batches whose bytes turned over; all of a segment whose header
//!   did), or what the journal reported as lost before.
//! - A start loses nothing else: the log continues behind all that is proven, also by what a start has written over
//!   that was cut. It may be cut only where a batch was hit that no other proves (in the last, unsealed segment, or one
//!   that lost its footer). Then it reports that and quarantines.
//! - The files alone show it: `verify` has a problem where a byte of a sealed segment is still wrong.
//! - A slot of `clad.meta` that rots costs nothing, whichever it is: neither an offset, nor an epoch, nor what was
//!   removed. The start is refused only if the power took the other slot in the middle of a write (or the device wears
//!   out, `failing_device.rs`). It has then changed nothing, and succeeds when the file is given back.

use std::collections::BTreeSet;

use clad_journal::format::batch::{BatchHeader, KIND_DATA, LEN};
use clad_journal::format::footer::{Footer, TRAILER};
use clad_journal::format::meta::{MAX_LOST, Meta, SLOT};
use clad_journal::format::segment::SegmentHeader;
use clad_journal::format::{ALIGN, META_NAME, parse_segment_name, segment_name};
use clad_journal::stepper::Stepper;

use super::World;
use super::model::{Check, ensure};

/// A byte that turned over.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    pub(super) name: String,
    pos: u64,
    mask: u8,
    /// The byte there since.
    byte: u8,
    part: Part,
    /// First of the offsets that were hit.
    first_offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Header,
    Batch,
    Footer,
    /// Padding, or nothing yet.
    Nothing,
}

/// So many bits of one header are looked at, the newest.
const BIT_ROT_SPOTS_MAX: usize = 8;

/// A bit of `clad.meta` that turned over.
#[derive(Clone, Copy, Debug)]
pub(super) struct MetaSpot {
    pos: u64,
    mask: u8,
    byte: u8,
}

/// An intact batch.
struct Batch {
    pos: u64,
    end: u64,
    header: BatchHeader,
}

/// Layout of a segment's bytes.
struct Layout {
    header: SegmentHeader,
    batches: Vec<Batch>,
    footer: Option<(u64, Footer)>,
    /// One that lies behind the batches of a file which continues: the process that sealed it was cut before the file
    /// was made shorter.
    early_footer: Option<Footer>,
}

impl Layout {
    fn of(bytes: &[u8]) -> Option<Self> {
        let header = SegmentHeader::decode(bytes).ok()?;
        let (seed, len) = (header.seed(), bytes.len() as u64);
        let footer = bytes.len().checked_sub(TRAILER).and_then(|at| {
            let (pos, _) = Footer::locate(&bytes[at..], len, &seed)?;
            let (footer, _) = Footer::decode(&bytes[pos as usize..], &seed, pos)?;
            Some((pos, footer))
        });
        let (mut batches, mut pos) = (Vec::new(), u64::from(header.block_size));
        while let Some(rest) = bytes.get(pos as usize..).filter(|rest| rest.len() >= LEN) {
            let found = BatchHeader::decode(rest, &seed, pos).filter(|d| {
                let body = rest.get(d.header_len..d.header_len + d.header.stored_len as usize);
                d.header.epoch == header.epoch && body.is_some_and(|body| d.body_holds(&seed, pos, body))
            });
            let end = found.as_ref().map_or(pos + 1, |d| pos + d.total_len());
            batches.extend(found.map(|d| Batch { pos, end, header: d.header }));
            pos = end.next_multiple_of(ALIGN);
        }
        let data_end = batches.last().map_or(u64::from(header.block_size), |b| b.end).next_multiple_of(ALIGN);
        let places = (data_end..len).step_by(ALIGN as usize).filter(|_| footer.is_none());
        let early_footer =
            places.filter_map(|at| Footer::decode(&bytes[at as usize..], &seed, at)).map(|(f, _)| f).next();
        Some(Self { header, batches, footer, early_footer })
    }

    fn part(&self, pos: u64) -> (Part, Option<&Batch>) {
        let batch = self.batches.iter().find(|b| (b.pos..b.end).contains(&pos));
        match (&self.footer, batch) {
            _ if pos < u64::from(self.header.block_size) => (Part::Header, None),
            (Some((at, _)), _) if pos >= *at => (Part::Footer, None),
            (_, Some(batch)) => (Part::Batch, Some(batch)),
            _ => (Part::Nothing, None),
        }
    }

    /// From the first offset to the end of the last.
    fn offsets(&self) -> Option<(u64, u64)> {
        let data = || self.batches.iter().map(|b| &b.header).filter(|h| h.kind == KIND_DATA && h.count > 0);
        Some((data().map(|h| h.first_offset).min()?, data().map(BatchHeader::end_offset).max()?))
    }
}

impl World {
    /// A byte of some segment turns over.
    pub(super) fn bit_rot(&mut self) {
        self.proven = 0;
        if self.settings.failing_device && self.rng.chance(1, 3) {
            return self.damage_device();
        }
        if self.rng.chance(1, 8) {
            return self.meta_bit_rot();
        }
        let names: Vec<_> = self.disk.names().into_iter().filter(|n| n.ends_with(".clog")).collect();
        if names.is_empty() {
            return;
        }
        let name = names[self.rng.index(names.len())].clone();
        let bytes = self.disk.peek(&name).unwrap_or_default();
        let (kind, pick, bit) = (self.rng.below(16), self.rng.number(), self.rng.below(8));
        let Some(layout) = Layout::of(&bytes) else { return };
        let within = |from: u64, to: u64| from + pick % to.saturating_sub(from).max(1);
        let pos = match (kind, &layout.footer) {
            (0, _) => within(0, 128),
            (1 | 2, Some((at, _))) => within(*at, bytes.len() as u64),
            (3, _) => within(0, bytes.len() as u64),
            _ if layout.batches.is_empty() => return,
            _ => {
                let b = &layout.batches[(pick >> 32) as usize % layout.batches.len()];
                within(b.pos, b.end)
            }
        };
        if pos >= bytes.len() as u64 {
            return;
        }
        let ((part, batch), sealed) = (layout.part(pos), layout.footer.is_some());
        let hit = batch.map(|b| (b.header.first_offset, b.header.end_offset())).filter(|(from, to)| from < to);
        self.model.bit_rot.extend(hit);
        let mask = 1 << bit;
        self.disk.flip(&name, pos, mask);
        self.note(|| format!("a bit turns over in {name} at {pos} ({part:?}, offsets {hit:?})"));
        let byte = bytes[pos as usize] ^ mask;
        self.sealed.remove(&name);
        // A missing commit marker is no loss; and what no footer proves yet may come to be a tail.
        let part = if part == Part::Batch && (hit.is_none() || !sealed) { Part::Nothing } else { part };
        let first_offset = hit.map_or(0, |(from, _)| from);
        self.spots.push(Spot { name, pos, mask, byte, part, first_offset });
        self.stats.bit_rot += 1;
        self.whole_segments();
    }

    /// A bit of one slot turns over, while the other holds.
    fn meta_bit_rot(&mut self) {
        let bytes = self.disk.peek(META_NAME).unwrap_or_default();
        let (slot, pick, bit) = (self.rng.below(2), self.rng.number(), self.rng.below(8));
        let lens: Vec<_> =
            bytes.chunks(SLOT).filter_map(|s| Some(Meta::decode(s).ok()?.epochs.len() * 12 + 84)).collect();
        let &[_, _] = lens.as_slice() else { return };
        let pos = slot * SLOT as u64 + pick % lens[slot as usize] as u64;
        if !self.settings.failing_device {
            self.meta_spots.clear();
        }
        self.flip_in_meta(pos, 1 << bit);
    }

    /// A bit of this slot turns over, if it holds.
    pub(super) fn slot_bit_rot(&mut self, slot: u64) {
        let bytes = self.disk.peek(META_NAME).unwrap_or_default();
        let (pick, bit) = (self.rng.number(), self.rng.below(8));
        let meta = bytes.chunks(SLOT).nth(slot as usize).and_then(|slot| Meta::decode(slot).ok());
        if let Some(meta) = meta {
            self.flip_in_meta(slot * SLOT as u64 + pick % (meta.epochs.len() as u64 * 12 + 84), 1 << bit);
        }
    }

    fn flip_in_meta(&mut self, pos: u64, mask: u8) {
        let Some(byte) = self.disk.peek(META_NAME).and_then(|bytes| bytes.get(pos as usize).copied()) else { return };
        self.disk.flip(META_NAME, pos, mask);
        self.note(|| format!("a bit turns over in clad.meta, at {pos}"));
        self.meta_spots.push(MetaSpot { pos, mask, byte: byte ^ mask });
        self.stats.bit_rot += 1;
    }

    /// True if neither slot holds. Then rot took one and a power cut the other, or the device both.
    pub(super) fn has_lost_meta(&self) -> bool {
        let failing_device = !self.meta_spots.is_empty() || !self.bad_blocks(META_NAME).is_empty();
        failing_device && self.disk.peek(META_NAME).is_some() && self.newest_meta_left().is_none()
    }

    /// Files that a refused start must leave as they are.
    pub(super) fn files_of_the_log(&self) -> Vec<(String, Option<Vec<u8>>)> {
        let ours = |n: &String| n == META_NAME || parse_segment_name(n).is_some();
        let names = self.disk.names().into_iter().filter(ours);
        names.map(|n| (n.clone(), self.disk.peek(&n))).collect()
    }

    /// The bits that turned over are turned back, as by an operator with a copy.
    pub(super) fn give_meta_back(&mut self) {
        let before = self.disk.peek(META_NAME).unwrap_or_default();
        let mut after = before.clone();
        self.unrot(&mut after);
        self.meta_spots.clear();
        for (pos, (bit_rot, right)) in before.iter().zip(&after).enumerate().filter(|(_, (a, b))| a != b) {
            self.disk.flip(META_NAME, pos as u64, bit_rot ^ right);
        }
        self.note(|| "clad.meta is given back".to_owned());
    }

    /// Turns back what turned over in slots that do not hold, where they hold then.
    fn unrot(&self, bytes: &mut [u8]) {
        for (at, slot) in bytes.chunks_mut(SLOT).enumerate().filter(|(_, slot)| Meta::decode(slot).is_err()) {
            let (mut right, from) = (slot.to_vec(), (at * SLOT) as u64);
            for spot in self.meta_spots.iter().rev().filter(|s| (from..from + SLOT as u64).contains(&s.pos)) {
                let byte = &mut right[(spot.pos - from) as usize];
                *byte ^= if *byte == spot.byte { spot.mask } else { 0 };
            }
            if Meta::decode(&right).is_ok() {
                slot.copy_from_slice(&right);
            }
        }
    }

    /// Of a segment whose header turned over everything is hit, also what came into it since.
    pub(super) fn whole_segments(&mut self) {
        let headers: BTreeSet<_> = self.spots.iter().filter(|s| s.part == Part::Header).map(|s| &s.name).collect();
        for name in headers {
            let Some(mut bytes) = self.disk.peek(name) else { continue };
            let there =
                |s: &&Spot| s.part == Part::Header && s.name == *name && bytes.get(s.pos as usize) == Some(&s.byte);
            // Of the newest; those before may be of another file, which had the name.
            let spots: Vec<_> = self.spots.iter().rev().filter(there).take(BIT_ROT_SPOTS_MAX).cloned().collect();
            let mut turned_back = |some: usize| {
                let spots = || spots.iter().enumerate().filter(|(i, _)| some >> i & 1 == 1);
                spots().for_each(|(_, s)| bytes[s.pos as usize] ^= s.mask);
                let layout = Layout::of(&bytes);
                spots().for_each(|(_, s)| bytes[s.pos as usize] ^= s.mask);
                layout
            };
            let range = (0..1 << spots.len()).find_map(&mut turned_back).and_then(|layout| layout.offsets());
            self.model.bit_rot.extend(range.filter(|range| !self.model.bit_rot.contains(range)));
        }
        if self.settings.failing_device {
            self.note_bad_sectors();
        }
    }

    /// Blocks that the device does not give are hit, also what came into them since.
    fn note_bad_sectors(&mut self) {
        for name in self.disk.names().into_iter().filter(|n| parse_segment_name(n).is_some()) {
            let bad = self.bad_blocks(&name);
            let Some(layout) = self.disk.peek(&name).filter(|_| !bad.is_empty()).and_then(|b| Layout::of(&b)) else {
                continue;
            };
            self.failing_device.hit.extend(parse_segment_name(&name)); // by another number, for a reused file
            let block = u64::from(layout.header.block_size);
            let whole = bad.contains(&0).then(|| layout.offsets()).flatten();
            let in_bad = |b: &&Batch| bad.range(b.pos / block * block..b.end).next().is_some();
            let hit = layout.batches.iter().filter(in_bad).map(|b| (b.header.first_offset, b.header.end_offset()));
            for range in hit.filter(|(from, to)| from < to).chain(whole) {
                if !self.model.bit_rot.contains(&range) {
                    self.model.bit_rot.push(range);
                }
            }
        }
    }

    /// True if a segment's file has its footer, be it that the device gives it or not.
    pub(super) fn has_footer(&self, name: &str) -> bool {
        self.disk.peek(name).and_then(|bytes| Layout::of(&bytes)).is_some_and(|layout| layout.footer.is_some())
    }

    /// Of a segment: where its header ends, where its batches do, and how long it is.
    pub(super) fn landmarks(&self, name: &str) -> Option<(u64, u64, u64)> {
        let bytes = self.disk.peek(name)?;
        let layout = Layout::of(&bytes)?;
        let header = u64::from(layout.header.block_size);
        Some((header, layout.batches.last().map_or(header, |b| b.end), bytes.len() as u64))
    }

    /// Ranges lost by the word of the footers.
    pub(super) fn missing_ranges(&self) -> Vec<(u64, u64)> {
        let lowest = self.newest_meta().map_or(0, |m| m.lowest_segment);
        let there = |n: &String| parse_segment_name(n).is_some_and(|number| number >= lowest);
        let names = self.disk.names().into_iter().filter(there);
        let layouts = names.filter_map(|n| Layout::of(&self.legible(&n)?));
        let footers = layouts.filter_map(|layout| layout.footer.map(|(_, footer)| footer).or(layout.early_footer));
        footers.flat_map(|footer| footer.damage).map(|d| (d.from, d.to)).collect()
    }

    /// Once a start or a recovery counts, what the footers abandon is in `clad.meta` as well: it was reported, and
    /// stays lost without them. But for what a segment begins with: that may have gone with one that is not there.
    pub(super) fn check_noted(&self) -> Check {
        let known = self.stepper.as_ref().map(Stepper::meta).filter(|meta| meta.lost.len() < MAX_LOST);
        let Some(meta) = known else { return Ok(()) };
        let names = self.disk.names();
        let numbers = names.iter().filter_map(|name| parse_segment_name(name));
        for number in numbers.filter(|number| *number >= meta.lowest_segment) {
            let layout = self.legible(&segment_name(number)).and_then(|bytes| Layout::of(&bytes));
            let Some((_, footer)) = layout.and_then(|layout| layout.footer) else { continue };
            for lost in footer.lost_here(false).filter(|lost| lost.to > meta.lowest_offset) {
                let from = lost.from.max(meta.lowest_offset);
                let noted = meta.lost.iter().any(|known| known.from <= from && lost.to <= known.to);
                ensure(noted, || format!("{lost:?} of segment {number} is not noted: {:?}", meta.lost))?;
            }
        }
        Ok(())
    }

    /// Content of `clad.meta`; on a failing device, where nothing of it is left, its content when it is given back.
    fn newest_meta(&self) -> Option<Meta> {
        let of_old = || self.settings.failing_device.then(|| self.meta_of_old()).flatten();
        self.newest_meta_left().or_else(of_old)
    }

    fn newest_meta_left(&self) -> Option<Meta> {
        let mut bytes = self.disk.peek(META_NAME)?;
        // A slot is read as a whole.
        let bad = self.bad_blocks(META_NAME);
        for (at, slot) in (0..).step_by(SLOT).zip(bytes.chunks_mut(SLOT)) {
            if bad.range(at..at + SLOT as u64).next().is_some() {
                slot.fill(0);
            }
        }
        newest(&bytes)
    }

    fn meta_of_old(&self) -> Option<Meta> {
        let mut bytes = self.disk.peek(META_NAME)?;
        self.unrot(&mut bytes);
        newest(&bytes)
    }

    /// Where the next start may cut the log, though more was acknowledged: at the first batch that was hit and that no
    /// other proves. `by_boot`: what is only written counts as proven, in the boot in which it was.
    pub(super) fn may_be_cut_at(&self, by_boot: bool) -> Option<u64> {
        self.cut_above(self.proven(by_boot))
    }

    fn cut_above(&self, proven: u64) -> Option<u64> {
        self.model.bit_rot.iter().filter(|(_, to)| *to > proven).map(|(from, _)| *from).min()
    }

    /// Below this everything is proven by what the media hold now.
    fn proven(&self, by_boot: bool) -> u64 {
        let newest = self.newest_meta();
        // A late write may be that of the latch.
        let latched = newest.as_ref().is_none_or(|m| m.latched) || self.disk.late_writes() > 0;
        // What was there when the newest epoch began is known from `clad.meta` as well.
        let (lowest, begun) = newest.as_ref().map_or((0, 0), |m| (m.lowest_segment, m.epoch_start().first_offset));
        let mut proven = 0;
        // A power cut may bring back what was removed.
        let there = |n: &String| parse_segment_name(n).is_some_and(|number| number >= lowest);
        let names = self.disk.names().into_iter().filter(there);
        for layout in names.filter_map(|n| Layout::of(&self.legible(&n)?)) {
            let same_boot = by_boot && !latched && layout.header.boot_id == self.disk.boot_id();
            let watermarks = |h: &BatchHeader| if same_boot { h.durable.max(h.written) } else { h.durable };
            proven = match &layout.footer {
                Some((_, footer)) => proven.max(footer.end_offset),
                None => layout.batches.iter().map(|b| watermarks(&b.header)).fold(proven, u64::max),
            };
        }
        // What a failed sync took along proves nothing.
        if self.shaken { begun } else { proven.max(begun) }
    }

    /// The same by what no write of records covers: footers, and where the newest epoch began.
    fn proven_by_ends(&self) -> u64 {
        let begun = self.newest_meta().map_or(0, |m| m.epoch_start().first_offset);
        let segments = self.disk.names().into_iter().filter(|n| parse_segment_name(n).is_some());
        let footers = segments.filter_map(|n| Some(Layout::of(&self.legible(&n)?)?.footer?.1.end_offset));
        footers.fold(begun, u64::max)
    }

    /// Notes that for the next start that succeeds. What one that fails has done, the next one finds done. But it may
    /// not have destroyed what the media proved before it, and neither rot nor a power cut has taken since.
    pub(super) fn note_cut(&mut self) {
        if self.settings.bit_rot {
            let proven = self.proven(true).max(self.proven);
            // A write that is still on its way may tear what it covers: the last commit marker, say.
            let late = self.disk.late_writes() > 0;
            self.proven = if self.shaken || late { 0 } else { proven };
            let sure = if late { self.proven_by_ends() } else { proven };
            self.cut = [self.cut, self.cut_above(sure)].into_iter().flatten().min();
            let (cut, bit_rot) = (self.cut, self.model.bit_rot.clone());
            self.note(|| format!("the next start may cut at {cut:?}, {bit_rot:?} are hit"));
        }
    }

    /// The batches, by offsets, that lie where the next start may cut the log off, because of rot.
    pub(super) fn behind_the_cut(&self) -> BTreeSet<(u64, u64)> {
        let Some(cut) = self.cut else { return BTreeSet::new() };
        let names = self.disk.names().into_iter().filter(|n| parse_segment_name(n).is_some());
        let layouts = names.filter_map(|n| Layout::of(&self.disk.peek(&n)?));
        let batches = layouts.flat_map(|layout| layout.batches).map(|b| (b.header.first_offset, b.header.end_offset()));
        batches.filter(|(from, to)| from < to && *from >= cut).collect()
    }

    /// A start has failed: which of these it has written over, once they were in `quarantine/`, is as if it had been
    /// hit. The next one may find a later batch, in a block that is given again by then, which proves that they were
    /// there.
    pub(super) fn written_over(&mut self, before: BTreeSet<(u64, u64)>) {
        if !before.is_empty() && self.disk.names().contains(&"quarantine/".to_owned()) {
            let left = self.behind_the_cut();
            self.model.bit_rot.extend(before.difference(&left));
        }
    }

    /// True if each append in a range was hit, or is one that a failed sync has taken along from the page cache
    /// (`shaken`).
    pub(super) fn may_be_gone(&self, from: u64, to: u64, shaken: bool) -> bool {
        let durable = self.model.durable;
        self.model.is_excused_or(from, to, |offset| shaken && offset >= durable)
    }

    /// True if a part of a sealed segment is still wrong.
    pub(super) fn has_bit_rot(&self) -> bool {
        let lowest = self.newest_meta().map_or(0, |m| m.lowest_segment);
        let still = |s: &&Spot| {
            parse_segment_name(&s.name).is_some_and(|number| number >= lowest)
                // It is not bit rot any more if the segment was sealed again since, and the byte has no meaning there.
                && s.byte != 0
                && self.sealed_bytes(&s.name).get(s.pos as usize) == Some(&s.byte)
                && self.disk.is_sealed_mode(&s.name)
        };
        self.spots.iter().filter(still).any(|s| s.part == Part::Batch && !self.is_superseded(s))
    }

    /// True if a later segment repeats what was hit: then that is the copy that counts.
    fn is_superseded(&self, spot: &Spot) -> bool {
        let names = self.disk.names().into_iter().filter(|n| parse_segment_name(n) > parse_segment_name(&spot.name));
        let mut later = names.filter_map(|n| Layout::of(&self.disk.peek(&n)?)?.footer?.1.supersedes_from);
        later.any(|from| from <= spot.first_offset)
    }

    /// True if a segment was hit.
    pub(super) fn was_hit(&self, number: u64) -> bool {
        self.spots.iter().any(|s| parse_segment_name(&s.name) == Some(number))
            || self.failing_device.hit.contains(&number)
    }

    /// True if anything of the log was hit, so that it has to report it.
    pub(super) fn was_damaged(&self) -> bool {
        !self.spots.is_empty() || self.stats.bad_sectors > 0
    }
}

fn newest(slots: &[u8]) -> Option<Meta> {
    slots.chunks(SLOT).filter_map(|slot| Meta::decode(slot).ok()).max_by_key(|meta| meta.generation)
}
