//! Bit rot in what was acknowledged: a byte of a segment turns over on the media, in a life or between two.
//!
//! What must hold, and is checked with the rest of the model:
//! - No reader gets other bytes than were appended, and none is told nothing: what it does not get, it gets as a gap.
//! - Such a gap holds nothing but what was hit (the batches whose bytes turned over; all of a segment whose header did), or
//!   what the journal told to be lost before.
//! - A start loses nothing else: the log goes on behind all that is proven. Only where a batch was hit that no other proves
//!   (in the last, unsealed segment, or one that lost its footer) may it be cut there, and then it says so and sets aside.
//! - The files alone show it: `verify` has a problem where a byte of a sealed segment is still wrong.

use clad_journal::format::batch::{BatchHeader, KIND_DATA, LEN};
use clad_journal::format::footer::{Footer, TRAILER};
use clad_journal::format::meta::{Meta, SLOT};
use clad_journal::format::segment::SegmentHeader;
use clad_journal::format::{ALIGN, parse_segment_name};

use super::World;

/// A byte that turned over.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    pub(super) name: String,
    pos: u64,
    mask: u8,
    /// What is there since.
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

/// An intact batch.
struct Batch {
    pos: u64,
    end: u64,
    header: BatchHeader,
}

/// What the bytes of a segment are.
struct Layout {
    header: SegmentHeader,
    batches: Vec<Batch>,
    footer: Option<(u64, Footer)>,
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
        Some(Self { header, batches, footer })
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
    pub(super) fn rot(&mut self) {
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
        self.model.rotten.extend(hit);
        let mask = 1 << bit;
        self.disk.flip(&name, pos, mask);
        self.note(|| format!("a bit turns over in {name} at {pos} ({part:?}, offsets {hit:?})"));
        let byte = bytes[pos as usize] ^ mask;
        self.sealed.remove(&name);
        // Nobody misses a vouch; and what no footer proves yet may come to be a tail.
        let part = if part == Part::Batch && (hit.is_none() || !sealed) { Part::Nothing } else { part };
        let first_offset = hit.map_or(0, |(from, _)| from);
        self.spots.push(Spot { name, pos, mask, byte, part, first_offset });
        self.stats.rotten += 1;
        self.whole_segments();
    }

    /// Of a segment whose header turned over everything is hit, also what came into it since.
    pub(super) fn whole_segments(&mut self) {
        for spot in self.spots.iter().filter(|s| s.part == Part::Header) {
            let Some(mut bytes) = self.disk.peek(&spot.name) else { continue };
            let ours = self.spots.iter().filter(|s| s.part == Part::Header && s.name == spot.name);
            for s in ours {
                if bytes.get(s.pos as usize) == Some(&s.byte) {
                    bytes[s.pos as usize] ^= s.mask;
                }
            }
            let range = Layout::of(&bytes).and_then(|layout| layout.offsets());
            self.model.rotten.extend(range.filter(|range| !self.model.rotten.contains(range)));
        }
    }

    /// What the footers say is lost.
    pub(super) fn holes(&self) -> Vec<(u64, u64)> {
        let lowest = self.newest_meta().map_or(0, |m| m.lowest_segment);
        let there = |n: &String| parse_segment_name(n).is_some_and(|number| number >= lowest);
        let names = self.disk.names().into_iter().filter(there);
        let footers = names.filter_map(|n| Layout::of(&self.disk.peek(&n)?)?.footer);
        footers.flat_map(|(_, footer)| footer.damage).map(|d| (d.from, d.to)).collect()
    }

    fn newest_meta(&self) -> Option<Meta> {
        let slots = self.disk.peek("clad.meta").unwrap_or_default();
        slots.chunks(SLOT).filter_map(|s| Meta::decode(s).ok()).max_by_key(|m| m.generation)
    }

    /// Where the next start may cut the log, though more was acknowledged: at the first batch that was hit and that no
    /// other proves. `by_boot`: what is only written counts as proven, in the boot in which it was.
    pub(super) fn may_be_cut_at(&self, by_boot: bool) -> Option<u64> {
        let newest = self.newest_meta();
        // A late write may be that of the latch.
        let latched = newest.as_ref().is_none_or(|m| m.latched) || self.disk.late_writes() > 0;
        // What was there when the newest epoch began is known from `clad.meta` as well.
        let (lowest, begun) = newest.as_ref().map_or((0, 0), |m| (m.lowest_segment, m.epoch_start().first_offset));
        let mut proven = 0;
        // A power cut may bring back what was removed.
        let there = |n: &String| parse_segment_name(n).is_some_and(|number| number >= lowest);
        let names = self.disk.names().into_iter().filter(there);
        for layout in names.filter_map(|n| Layout::of(&self.disk.peek(&n)?)) {
            let same_boot = by_boot && !latched && layout.header.boot_id == self.disk.boot_id();
            let marks = |h: &BatchHeader| if same_boot { h.durable.max(h.written) } else { h.durable };
            proven = match &layout.footer {
                Some((_, footer)) => proven.max(footer.end_offset),
                None => layout.batches.iter().map(|b| marks(&b.header)).fold(proven, u64::max),
            };
        }
        // What a failed sync took along proves nothing.
        let proven = if self.shaken { begun } else { proven.max(begun) };
        self.model.rotten.iter().filter(|(_, to)| *to > proven).map(|(from, _)| *from).min()
    }

    /// Notes that for the next start that succeeds. What one that fails has done, the next one finds done.
    pub(super) fn note_cut(&mut self) {
        if self.settings.rot {
            self.cut = [self.cut, self.may_be_cut_at(true)].into_iter().flatten().min();
        }
    }

    /// Whether a range was hit, and nothing else is in it.
    pub(super) fn is_rot(&self, from: u64, to: u64) -> bool {
        self.settings.rot && self.model.is_excused(from, to)
    }

    /// Whether a part of a sealed segment is still wrong.
    pub(super) fn is_rotten(&self) -> bool {
        let lowest = self.newest_meta().map_or(0, |m| m.lowest_segment);
        let still = |s: &&Spot| {
            parse_segment_name(&s.name).is_some_and(|number| number >= lowest)
                // Nor is it rot any more where the segment was sealed anew since, and has no meaning there.
                && s.byte != 0
                && self.sealed_bytes(&s.name).get(s.pos as usize) == Some(&s.byte)
                && self.disk.is_sealed_mode(&s.name)
        };
        self.spots.iter().filter(still).any(|s| s.part == Part::Batch && !self.is_superseded(s))
    }

    /// Whether a later segment repeats what was hit: then that is the copy that counts.
    fn is_superseded(&self, spot: &Spot) -> bool {
        let names = self.disk.names().into_iter().filter(|n| parse_segment_name(n) > parse_segment_name(&spot.name));
        let mut later = names.filter_map(|n| Layout::of(&self.disk.peek(&n)?)?.footer?.1.supersedes_from);
        later.any(|from| from <= spot.first_offset)
    }

    /// Whether a segment was hit.
    pub(super) fn was_hit(&self, number: u64) -> bool {
        self.spots.iter().any(|s| parse_segment_name(&s.name) == Some(number))
    }
}
