//! What a power cut leaves of a trace.
//!
//! Invariants: what was flushed (with a volatile cache) or complete (without) is on the image; what the device never
//! got is not; all the rest is there or not, sector by sector, as the seed says. The same trace, place and seed
//! give the same image.

use std::fmt;

use bytes::Bytes;
use clad_sim::Rng;
pub use clad_sim::disk::Survival;

use super::pages::{PAGE, SECTOR};
use super::{Event, Pages, Trace};

/// What the device does with a write that it has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// It may keep it in memory until it is flushed.
    Volatile,
    /// It has it.
    None,
}

impl Cache {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Volatile, Self::None];

    /// What `queue/write_cache` calls it.
    #[must_use]
    pub const fn queue_name(self) -> &'static str {
        match self {
            Self::Volatile => "write back",
            Self::None => "write through",
        }
    }

    /// The one of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cache| cache.to_string() == name)
    }
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Volatile => "volatile",
            Self::None => "none",
        })
    }
}

/// A place to cut, and what decides about the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// So many events have happened.
    pub at: usize,
    /// Decides what survives of that which may be lost.
    pub seed: u64,
    /// Bytes that survive as one or not at all: those of a sector, or of a block.
    pub grain: usize,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.at, self.seed, self.grain)
    }
}

impl Cut {
    /// The one that its text names.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(':');
        let at = numbers.next()?.parse().ok()?;
        let seed = numbers.next()?.parse().ok()?;
        let grain = numbers.next()?.parse().ok().filter(|grain| [SECTOR, PAGE].contains(grain))?;
        Some(Self { at, seed, grain })
    }

    /// A cut that tears writes at sectors.
    #[must_use]
    pub const fn new(at: usize, seed: u64) -> Self {
        Self { at, seed, grain: SECTOR }
    }

    /// Which kind of choice it makes.
    #[must_use]
    pub fn survival(self) -> Survival {
        Survival::ALL[Rng::new(self.seed).index(Survival::ALL.len())]
    }

    /// The same cut on a disk that tears no block of 4096 bytes.
    #[must_use]
    pub const fn in_blocks(self) -> Self {
        Self { grain: PAGE, ..self }
    }

    /// The pages that the cut leaves over the base of a trace.
    #[must_use]
    pub fn leaves(self, trace: &Trace, cache: Cache) -> Pages {
        let split = Split::of(&trace.events[..self.at], cache);
        let mut over = Pages::default();
        for at in &split.kept {
            let (offset, data) = write_at(trace, *at);
            over.write(&trace.base, offset, data);
        }
        let mut rng = Rng::new(self.seed);
        let survival = Survival::ALL[rng.index(Survival::ALL.len())];
        let mut sectors = Vec::new();
        for (write, at) in split.open.iter().enumerate() {
            let (offset, data) = write_at(trace, *at);
            sectors.extend(parts(offset, data.len(), self.grain).map(|part| (write, part)));
        }
        for (write, (from, to)) in choose(survival, &sectors, split.open.len(), &mut rng) {
            let (offset, data) = write_at(trace, split.open[write]);
            over.write(&trace.base, offset + from as u64, &data.slice(from..to));
        }
        over
    }
}

/// From where to where a part of a write goes that survives or not as one.
type Part = (usize, usize);

/// The sectors of a write.
fn parts(offset: u64, length: usize, grain: usize) -> impl Iterator<Item = Part> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let step = grain - ((offset + from as u64) % grain as u64) as usize;
        let part = (from, length.min(from + step));
        from = part.1;
        (part.0 < part.1).then_some(part)
    })
}

fn write_at(trace: &Trace, at: usize) -> (u64, &Bytes) {
    match &trace.events[at] {
        Event::Write { offset, data } => (*offset, data),
        other => panic!("event {at} is no write: {other:?}"),
    }
}

/// Writes that surely survive, in the order in which they were answered, and those that may, as they were taken.
struct Split {
    kept: Vec<usize>,
    open: Vec<usize>,
}

impl Split {
    fn of(events: &[Event], cache: Cache) -> Self {
        let all = events.len();
        // Complete before this place is on the disk: the latest start of a flush that was answered, or now.
        let line = match cache {
            Cache::None => all,
            Cache::Volatile => {
                let flushed = events.iter().filter_map(|event| match event {
                    Event::Flushed(start) => Some(*start),
                    _ => None,
                });
                flushed.max().unwrap_or(0)
            }
        };
        let mut is_kept = vec![false; all];
        let mut kept = Vec::new();
        for event in &events[..line] {
            if let Event::Done(write) = event {
                is_kept[*write] = true;
                kept.push(*write);
            }
        }
        let open = (0..all).filter(|at| matches!(events[*at], Event::Write { .. }) && !is_kept[*at]).collect();
        Self { kept, open }
    }
}

/// Which of these (write, sector) survive; in their order, so that a later one lies over an earlier one.
fn choose(survival: Survival, sectors: &[(usize, Part)], writes: usize, rng: &mut Rng) -> Vec<(usize, Part)> {
    if sectors.is_empty() {
        return Vec::new();
    }
    let pick = |rng: &mut Rng, holds: &mut dyn FnMut(&mut Rng, (usize, Part)) -> bool| {
        sectors.iter().copied().filter(|sector| holds(rng, *sector)).collect()
    };
    match survival {
        Survival::None => Vec::new(),
        Survival::All => sectors.to_vec(),
        Survival::Half => pick(rng, &mut |rng, _| rng.coin()),
        Survival::Most => pick(rng, &mut |rng, _| !rng.chance(1, 8)),
        Survival::Writes => {
            let whole: Vec<bool> = (0..writes).map(|_| rng.coin()).collect();
            pick(rng, &mut |_, (write, _)| whole[write])
        }
        Survival::Prefix => sectors[..rng.index(sectors.len() + 1)].to_vec(),
        Survival::Suffix => sectors[rng.index(sectors.len() + 1)..].to_vec(),
        Survival::Single => {
            let mut few: Vec<usize> = (0..1 + rng.below(3)).map(|_| rng.index(sectors.len())).collect();
            few.sort_unstable();
            few.dedup();
            few.into_iter().map(|at| sectors[at]).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn write(page: u64, byte: u8) -> Event {
        Event::Write { offset: page * PAGE as u64, data: Bytes::from(vec![byte; PAGE]) }
    }

    /// What each sector of a page may hold, over many seeds.
    fn seen(trace: &Trace, at: usize, cache: Cache, page: u64) -> BTreeSet<u8> {
        let mut seen = BTreeSet::new();
        for seed in 0..400 {
            let over = Cut::new(at, seed).leaves(trace, cache);
            let bytes = over.read(&trace.base, page * PAGE as u64, PAGE);
            for sector in bytes.chunks(SECTOR) {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn");
                seen.insert(sector[0]);
            }
        }
        seen
    }

    #[test]
    fn only_what_was_complete_before_the_flush_began_is_safe() {
        // Write 0 is complete before the flush, write 1 while it runs, write 2 was only taken.
        let events = vec![
            write(0, 1),
            write(1, 2),
            Event::Done(0),
            Event::Flush,
            Event::Done(1),
            write(2, 3),
            Event::Flushed(3),
            write(3, 4),
        ];
        let trace = Trace { base: Pages::default(), events };
        assert_eq!(seen(&trace, 7, Cache::Volatile, 0), [1].into());
        assert_eq!(seen(&trace, 7, Cache::Volatile, 1), [0, 2].into());
        assert_eq!(seen(&trace, 7, Cache::Volatile, 2), [0, 3].into());
        assert_eq!(seen(&trace, 7, Cache::Volatile, 3), [0].into(), "it was not taken yet");
        assert_eq!(seen(&trace, 6, Cache::Volatile, 0), [0, 1].into(), "the flush was not answered yet");
        assert_eq!(seen(&trace, 7, Cache::None, 1), [2].into());
        assert_eq!(seen(&trace, 7, Cache::None, 2), [0, 3].into());
    }

    #[test]
    fn each_of_several_writes_may_be_what_is_there() {
        let events = vec![write(0, 1), Event::Done(0), write(0, 2), Event::Done(2), write(0, 3), Event::Done(4)];
        let trace = Trace { base: Pages::default(), events };
        assert_eq!(seen(&trace, 6, Cache::Volatile, 0), [0, 1, 2, 3].into());
        assert_eq!(seen(&trace, 6, Cache::None, 0), [3].into());
    }

    #[test]
    fn in_blocks_nothing_is_torn() {
        let trace = Trace { base: Pages::default(), events: vec![write(0, 1), Event::Done(0)] };
        for seed in 0..400 {
            let over = Cut::new(2, seed).in_blocks().leaves(&trace, Cache::Volatile);
            let bytes = over.read(&trace.base, 0, PAGE);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn under seed {seed}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_image() {
        let events = (0..40).map(|page| write(page, page as u8 + 1)).collect();
        let trace = Trace { base: Pages::default(), events };
        for seed in 0..50 {
            let cut = Cut::new(40, seed);
            let leaves = || cut.leaves(&trace, Cache::Volatile).all();
            assert_eq!(leaves(), leaves());
            assert_eq!(Cut::parse(&cut.to_string()), Some(cut));
        }
    }
}
