//! Known losses of the log, for monitoring.
//!
//! Invariant: the numbers follow the log, not the findings of one start: a restart does not change them. The exception
//! is segments without their footers, which only the start that ended them can report. Ranges that retention has
//! passed are not counted any more, nor those resolved by an operator (a missing segment that is back, a file that was
//! moved out of `quarantine/`).

use std::collections::BTreeSet;

use crate::format::meta::Meta;
use crate::read::offline::abandoned;
use crate::recover::Report;
use crate::run::shared::Shared;
use crate::sync::{Mutex, unpoisoned};

/// Time for which the content of `quarantine/` is assumed constant: each file there costs a call, and there may be
/// thousands.
const QUARANTINE_SCAN_INTERVAL_NS: u64 = 60_000_000_000;

/// Segments abandoned as a whole, by the content of `quarantine/`, and the time of that scan (boot time).
#[derive(Debug, Default)]
pub(super) struct AbandonedSegments {
    numbers: Vec<u64>,
    seen: Option<u64>,
}

/// Acknowledged data that is known to be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records whose offsets were reported lost, except those of segments that do not exist. A lower bound: beyond 128
    /// ranges of offsets the lowest are forgotten.
    pub records: u64,
    /// Segments that do not exist and were not removed by retention. The number of their records is unknown.
    pub missing: u64,
    /// Segments whose header was lost: their remains are in `quarantine/`. The number of their records is unknown.
    pub unreadable: u64,
    /// Segments that the last start found without their former footers: they may have lost records at their ends.
    pub missing_footer: u64,
}

impl Losses {
    pub(super) fn of(meta: &Meta, report: &Report, abandoned: impl Iterator<Item = u64>) -> Self {
        let kept = |number: &u64| *number >= meta.lowest_segment;
        let kept_of = |numbers: &[u64]| numbers.iter().filter(|number| kept(number)).count() as u64;
        let unreadable: BTreeSet<u64> = report.unreadable.iter().copied().chain(abandoned).filter(kept).collect();
        Self {
            records: meta.lost.iter().map(|lost| lost.to.saturating_sub(lost.from.max(meta.lowest_offset))).sum(),
            missing: kept_of(&report.missing),
            unreadable: unreadable.len() as u64,
            missing_footer: kept_of(&report.missing_footer),
        }
    }

    /// True if a loss is certain. For a segment that has lost its footer this is unknown.
    pub const fn are_certain(&self) -> bool {
        self.records > 0 || self.missing > 0 || self.unreadable > 0
    }

    /// True if a loss is certain or possible.
    pub const fn are_there(&self) -> bool {
        self.are_certain() || self.missing_footer > 0
    }
}

/// Abandoned segments; a caller does not wait for another caller's scan.
pub(super) fn abandoned_of(shared: &Shared, known: &Mutex<AbandonedSegments>) -> Vec<u64> {
    let known = || unpoisoned(known.lock());
    let now = shared.env().clock.boot_ns();
    let mut kept = known();
    if kept.seen.is_some_and(|seen| now.saturating_sub(seen) < QUARANTINE_SCAN_INTERVAL_NS) {
        return kept.numbers.clone();
    }
    kept.seen = Some(now);
    drop(kept);
    let found = abandoned(shared.storage().as_ref(), &shared.env().meta.get());
    let mut kept = known();
    if let Ok(found) = found {
        kept.numbers = found.into_iter().map(|broken| broken.segment).collect();
    }
    kept.numbers.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::meta::example;

    /// That segment has lost 120 to 130 and 140 to 141; the log begins with segment 2, at 100.
    fn of(meta: &Meta, report: &Report, abandoned: &[u64]) -> [u64; 4] {
        let losses = Losses::of(meta, report, abandoned.iter().copied());
        [losses.records, losses.missing, losses.unreadable, losses.missing_footer]
    }

    #[test]
    fn what_two_sources_report_is_counted_once() {
        let report = Report { missing: vec![5], unreadable: vec![3], missing_footer: vec![4, 6], ..Report::default() };
        assert_eq!(of(&example(), &Report::default(), &[]), [11, 0, 0, 0]);
        assert_eq!(of(&example(), &report, &[3, 3, 7]), [11, 1, 2, 2]);
    }

    #[test]
    fn what_retention_has_passed_is_not_counted() {
        let report =
            Report { missing: vec![2, 5], unreadable: vec![2], missing_footer: vec![2, 6], ..Report::default() };
        let mut meta = example();
        meta.pass(3, 128);
        assert_eq!(of(&meta, &report, &[2]), [3, 1, 0, 1], "two of a range that reaches into what is kept, and one");
        meta.pass(7, 300);
        assert_eq!(of(&meta, &report, &[2]), [0, 0, 0, 0]);
    }

    #[test]
    fn of_a_footer_alone_nothing_is_certain() {
        let missing_footer = Losses { missing_footer: 1, ..Losses::default() };
        assert!(missing_footer.are_there() && !missing_footer.are_certain());
        for certain in [
            Losses { records: 1, ..missing_footer },
            Losses { missing: 1, ..missing_footer },
            Losses { unreadable: 1, ..missing_footer },
        ] {
            assert!(certain.are_there() && certain.are_certain());
        }
        assert!(!Losses::default().are_there());
    }
}
