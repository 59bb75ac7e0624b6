//! Offsets that were found damaged or lost since the start.
//!
//! Invariants: an offset counts once, however often any reader meets it: a job that reads a damaged place every night
//! does not add to the count; the remembered ranges are bounded.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Ranges that are remembered. Of more the lowest is forgotten, and counts again when it is met again.
const MAX_RANGES: usize = 1024;

/// From and to, in order; none touches another.
#[derive(Debug, Default)]
pub(super) struct Damaged(Mutex<BTreeMap<u64, u64>>);

impl Damaged {
    /// Remembers `from` up to and without `to`, and returns the number of these that were not known.
    pub(super) fn note(&self, from: u64, to: u64) -> u64 {
        if from >= to {
            return 0;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let touching = known.range(..=to).rev().take_while(|(_, end)| **end >= from);
        let touching: Vec<(u64, u64)> = touching.map(|(start, end)| (*start, *end)).collect();
        let (mut all, mut new) = ((from, to), to - from);
        for (start, end) in touching {
            known.remove(&start);
            all = (all.0.min(start), all.1.max(end));
            new -= end.min(to) - start.max(from);
        }
        known.insert(all.0, all.1);
        if known.len() > MAX_RANGES {
            known.pop_first();
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All ranges of a few offsets, one after the other, beside a set of single offsets.
    #[test]
    fn each_offset_is_new_once() {
        const END: u64 = 12;
        for seed in 0..2000_u64 {
            let (damaged, mut single) = (Damaged::default(), std::collections::BTreeSet::new());
            let mut draw = seed;
            for _ in 0..6 {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (from, to) = ((draw >> 33) % END, (draw >> 43) % END);
                let new = (from..to).filter(|offset| single.insert(*offset)).count() as u64;
                assert_eq!(damaged.note(from, to), new, "{from} to {to}, seed {seed}");
            }
            let known = damaged.0.lock().unwrap();
            let listed: Vec<u64> = known.iter().flat_map(|(from, to)| *from..*to).collect();
            assert!(listed.iter().eq(single.iter()), "{known:?}");
            assert!(known.iter().zip(known.iter().skip(1)).all(|(one, next)| one.1 < next.0), "{known:?}");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let damaged = Damaged::default();
        for at in 0..2 * MAX_RANGES as u64 {
            assert_eq!(damaged.note(2 * at, 2 * at + 1), 1);
        }
        assert_eq!(damaged.0.lock().unwrap().len(), MAX_RANGES);
        assert_eq!(damaged.note(0, u64::MAX), u64::MAX - MAX_RANGES as u64, "the later half is known");
    }
}
