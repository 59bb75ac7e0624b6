//! Conclusions of recovery, as a pure function of the scan results.
//!
//! Invariants:
//! - A batch **continues the log** when its first offset is the one expected and its chain names the batch before it
//!   in the same segment (zero for the first).
//! - The **proven end** is the greatest `durable` in any intact batch or footer end. If the segment was used under
//!   this very boot and no failure was latched, the greatest `written` also counts. It is never below the first offset
//!   of the newest epoch in `clad.meta`, which was written when everything below that was durable, or reported lost.
//!   It is also never below the proven end that an interrupted start recorded there: that start may have overwritten
//!   the batch with those watermarks.
//! - A failure **below** the proven end is damage: it is named, and the rest is preserved. The **cut** is the first
//!   failure at or above it: nothing behind it is certain, so that is quarantined.
//! - A batch that begins where the damage ends is preserved though its chain names an unreadable batch. Its
//!   predecessor was proven, and one process writes a segment in one epoch, so no other batch ever had its offset
//!   there. It may have been acknowledged; bit rot in the batch before it is no reason to drop it.
//! - Proven offsets are never assigned again in this history: the log resumes at the proven end at least.
//! - Data that was reported lost stays lost, even if the device returns it later. Its offsets are in `clad.meta`, and
//!   its producers may have sent it again since, which was stored as new.
//! - A batch that repeats preserved data is skipped, and the next one may name it. A segment that recovery in the
//!   process wrote repeats the data that it supersedes, also when it has lost the footer that says so.
//! - Of such a segment and the one before it, the later counts. The earlier one may continue behind a gap in which a
//!   batch of the later one begins. Then the rest of the earlier one was left there when its end was repeated.
//! - The same input gives the same plan, and a partly executed plan gives the same result when made again.
//!
//! | next batch           | expected < proven end                  | expected >= proven end |
//! |----------------------|----------------------------------------|------------------------|
//! | continues            | keep                                   | keep                   |
//! | starts further on, a later segment in between | skip the rest of this segment | likewise |
//! | starts further on, below the proven end | damage up to it; keep it | cut before it     |
//! | starts at the proven end | damage up to it; keep it             | cut before it          |
//! | starts above the proven end | damage up to the proven end; cut there | cut before it     |
//! | right offset, other chain | keep it, counted as unchained     | cut before it          |
//! | repeats: ends at or below expected | skip it; the next may name it | likewise          |
//! | overlaps             | skip it                                | cut before it          |
//! | none left            | damage up to the proven end            | end of the log         |
//! | at or above the limit | skip it                               | skip it                |
//! | was reported lost    | skip it                                | skip it                |
//!
//! The limit is where a later segment repeats the log, or where an epoch later than the segment's began.

use std::sync::Arc;

use super::scan::{Found, Scan};
use crate::format::footer::Damage;
use crate::format::meta::Meta;
use crate::format::segment::SegmentHeader;

/// One unsealed segment, as the plan sees it.
#[derive(Clone, Debug)]
pub struct Unsealed {
    /// Its content. A footer in it, behind which the file continues, proves the end that it names: the sealing process
    /// was cut before it shortened the file, and all below was durable, or reported lost.
    pub scan: Scan,
    /// It was used under the boot that runs now.
    pub same_boot: bool,
    /// From this offset on nothing in it counts: a later segment repeats the log, or a later epoch began there.
    /// Everything below was durable at that time, or reported lost.
    pub limit: Option<u64>,
    /// Offsets that were reported lost.
    pub lost: Arc<[Damage]>,
}

impl Unsealed {
    /// Input for a scanned segment, by a `clad.meta` and under this boot; `limit`: where a later segment repeats the
    /// log.
    pub fn new(scan: Scan, header: &SegmentHeader, said: &Meta, boot_id: [u8; 16], limit: Option<u64>) -> Self {
        Self {
            scan,
            same_boot: header.boot_id == boot_id && boot_id != [0; 16],
            // Data cut off when a later epoch began may still lie behind the end that its footer had.
            limit: limit.into_iter().chain(said.end_of(header.epoch)).min(),
            lost: said.lost.as_slice().into(),
        }
    }

    /// True if a batch holds data that was reported lost.
    pub fn was_lost(&self, batch: &Found) -> bool {
        self.lost.iter().any(|lost| lost.hits(batch.header.first_offset, batch.header.end_offset()))
    }

    /// True if a batch has records that may be preserved.
    fn counts(&self, batch: &Found) -> bool {
        let ended = self.limit.is_some_and(|limit| batch.header.end_offset() > limit);
        batch.is_data() && !ended && !self.was_lost(batch)
    }

    /// True if a batch that may be preserved begins at an offset in this range. They lie in the order of their
    /// offsets.
    fn holds_one_in(&self, from: u64, to: u64) -> bool {
        let batches = &self.scan.batches;
        let first = batches.partition_point(|batch| batch.header.first_offset < from);
        let mut within = batches[first..].iter().take_while(|batch| batch.header.first_offset < to);
        within.any(|batch| self.counts(batch))
    }
}

/// Preserved part of one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Indexes of its batches, ascending.
    pub batches: Vec<usize>,
    /// Expected offset at its start.
    pub first_offset: u64,
    /// One past its last preserved offset.
    pub end_offset: u64,
    /// Lost offsets in it.
    pub damage: Vec<Damage>,
    /// The cut is in it or before it: its dropped part is an unproven tail.
    pub cut: bool,
    /// Batches whose chain does not name the batch before, preserved because they are proven.
    pub unchained: u32,
}

/// The conclusion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// For each unsealed segment, in order.
    pub kept: Vec<Kept>,
    /// The offset at which the log resumes.
    pub next_offset: u64,
    /// Everything below this was durable, by the watermarks in a batch or the end of a footer.
    pub proven_durable: u64,
    /// Everything below this is proven to have been acknowledged or acknowledgeable.
    pub proven_end: u64,
    /// A cut was made, before this offset.
    pub cut_at: Option<u64>,
}

/// The log's progress by `clad.meta`. Nothing, where other segments follow these: then they define it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said {
    /// Below this everything was durable, or reported lost: the start of the newest epoch, or the end that an
    /// interrupted start found proven.
    pub durable: u64,
    /// Below this everything was written, under the boot that runs now, as such a start found it.
    pub written: u64,
}

impl Said {
    /// Reads it from a `clad.meta`, under this boot.
    pub fn by(meta: &Meta, boot_id: [u8; 16]) -> Self {
        let begun = meta.epoch_start().first_offset;
        let same_boot = meta.proof.filter(|proof| proof.boot_id == boot_id && boot_id != [0; 16]);
        Self {
            durable: meta.proof.map_or(0, |proof| proof.durable).max(begun),
            written: same_boot.map_or(0, |proof| proof.written),
        }
    }
}

/// Makes the plan. `start` is where the last sealed segment ended; `latched`: a failure was latched and not recovered.
pub fn plan(start: u64, said: Said, segments: &[&Unsealed], latched: bool) -> Plan {
    let all = || segments.iter().flat_map(|s| s.scan.batches.iter().map(move |b| (s, b)));
    let footers = segments.iter().filter_map(|s| s.scan.footer_end());
    let claimed_durable = all().map(|(_, b)| b.header.durable).chain(footers).max().unwrap_or(0);
    let durable = claimed_durable.max(start).max(said.durable);
    let here = all().filter(|(s, _)| s.same_boot).map(|(_, b)| b.header.written).max().unwrap_or(0);
    let written = if latched { 0 } else { here.max(said.written) };
    let said = said.durable.max(if latched { 0 } else { said.written });
    let proven = durable.max(written);
    let mut plan = Plan { proven_durable: durable, proven_end: proven, ..Plan::default() };
    let mut expected = start;
    for (at, segment) in segments.iter().enumerate() {
        let kept = walk(segment, &segments[at + 1..], &mut expected, proven, &mut plan.cut_at);
        plan.kept.push(kept);
    }
    let proven = segments.last().and_then(|s| s.limit).map_or(proven, |limit| limit.max(said));
    if expected < proven
        && let Some(last) = plan.kept.last_mut()
    {
        last.damage.push(Damage { from: expected, to: proven });
        last.end_offset = proven;
        expected = proven;
    }
    assert!(
        expected >= start && plan.cut_at.is_none_or(|cut| start <= cut),
        "the plan resumes at {expected}, below the sealed log that ends at {start}: its records would be lost"
    );
    plan.next_offset = expected;
    plan
}

fn walk(segment: &Unsealed, later: &[&Unsealed], expected: &mut u64, proven: u64, cut: &mut Option<u64>) -> Kept {
    let mut kept = Kept { first_offset: *expected, ..Kept::default() };
    // Behind a superseding segment everything below the limit was durable elsewhere when that one was sealed.
    let proven = segment.limit.unwrap_or(proven);
    let mut chain = 0;
    for (i, batch) in segment.scan.batches.iter().enumerate().filter(|(_, b)| b.is_data()) {
        let h = &batch.header;
        if cut.is_some() {
            kept.cut = true;
            break;
        }
        if !segment.counts(batch) {
            continue;
        }
        let continues = h.first_offset == *expected && h.previous == chain;
        if !continues {
            if h.end_offset() <= *expected {
                chain = batch.checksum;
                continue;
            }
            if later.iter().any(|later| later.holds_one_in(*expected, h.first_offset)) {
                break;
            }
            if *expected >= proven {
                *cut = Some(*expected);
                kept.cut = true;
                break;
            }
            if h.first_offset < *expected {
                continue;
            }
            if h.first_offset > *expected {
                let to = h.first_offset.min(proven);
                kept.damage.push(Damage { from: *expected, to });
                *expected = to;
            } else {
                kept.unchained += 1;
            }
            if h.first_offset > *expected {
                // Between it and the proven end is a gap that nothing proves.
                *cut = Some(*expected);
                kept.cut = true;
                break;
            }
        }
        chain = batch.checksum;
        assert!(h.end_offset() >= *expected, "batch {i} is kept below {expected}: its records would be there twice");
        kept.batches.push(i);
        *expected = h.end_offset();
    }
    kept.end_offset = *expected;
    kept.cut |= cut.is_some();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::batch::{BatchHeader, KIND_COMMIT_MARKER, KIND_DATA};
    use crate::format::footer::Footer;
    use crate::format::meta::{EpochStart, Proof, example};

    /// A batch of one record; its checksum is its first offset plus one.
    fn data(first: u64, durable: u64, written: u64) -> Found {
        chained(first, durable, written, if first.is_multiple_of(10) { 0 } else { first as u32 })
    }

    fn chained(first: u64, durable: u64, written: u64, previous: u32) -> Found {
        let header = BatchHeader {
            kind: KIND_DATA,
            codec: 0,
            flags: 0,
            epoch: 1,
            first_offset: first,
            count: 1,
            stored_len: 0,
            plain_len: 0,
            previous,
            written,
            durable,
            append_real_ns: 0,
            append_boot_ns: 0,
            min_time_ns: 0,
            max_time_ns: 0,
            body_checksum: 0,
        };
        Found {
            pos: 4096 + first * 128,
            end: 4096 + first * 128 + 96,
            header_len: 96,
            header,
            checksum: first as u32 + 1,
        }
    }

    fn commit_marker(at: u64, durable: u64) -> Found {
        let mut f = data(at, durable, durable);
        f.header.kind = KIND_COMMIT_MARKER;
        f.header.count = 0;
        f
    }

    fn durable(durable: u64) -> Said {
        Said { durable, written: 0 }
    }

    fn segment(batches: Vec<Found>) -> Unsealed {
        let scan = Scan { batches, ..Scan::default() };
        Unsealed { scan, same_boot: false, limit: None, lost: Arc::default() }
    }

    /// Every subset of five batches may be missing, under every proven end, with and without today's boot. The result
    /// must follow from the rules, stated here a second time and more slowly.
    #[test]
    fn every_combination_of_missing_batches_and_proofs() {
        let mut cases = 0;
        for present in 0u32..32 {
            for proven in 0..=5u64 {
                for by_written in [false, true] {
                    for latched in [false, true] {
                        let mut batches: Vec<_> =
                            (0..5).filter(|i| present >> i & 1 == 1).map(|i| data(i, 0, 0)).collect();
                        let mut proof = commit_marker(40, if by_written { 0 } else { proven });
                        proof.header.written = proven;
                        batches.push(proof);
                        let s = Unsealed { same_boot: by_written, ..segment(batches.clone()) };
                        let got = plan(0, Said::default(), &[&s], latched);
                        let proven = if by_written && latched { 0 } else { proven };
                        check(present, proven, &got, &batches);
                        cases += 1;
                    }
                }
            }
        }
        assert_eq!(cases, 32 * 6 * 4);
    }

    fn check(present: u32, proven: u64, got: &Plan, batches: &[Found]) {
        let kept: Vec<u64> = got.kept[0].batches.iter().map(|i| batches[*i].header.first_offset).collect();
        let has = |o: u64| present >> o & 1 == 1;
        // Every offset below the proven end is preserved or named as lost. From there on only an unbroken row is
        // preserved.
        let mut want: Vec<u64> = (0..proven).filter(|o| has(*o)).collect();
        let mut lost: Vec<Damage> = Vec::new();
        for o in (0..proven).filter(|o| !has(*o)) {
            match lost.last_mut() {
                Some(d) if d.to == o => d.to = o + 1,
                _ => lost.push(Damage { from: o, to: o + 1 }),
            }
        }
        let mut end = proven;
        while has(end) {
            want.push(end);
            end += 1;
        }
        assert_eq!(kept, want, "present {present:05b}, proven {proven}");
        assert_eq!(got.kept[0].damage, lost, "present {present:05b}, proven {proven}");
        assert_eq!(got.next_offset, end.max(proven), "present {present:05b}, proven {proven}");
        let behind = (end..5).any(has);
        assert_eq!(got.cut_at.is_some(), behind, "present {present:05b}, proven {proven}");
    }

    #[test]
    fn a_cut_in_one_segment_puts_the_following_ones_behind_it() {
        let got = plan(
            0,
            Said::default(),
            &[&segment(vec![data(0, 0, 0), data(2, 0, 0)]), &segment(vec![data(10, 0, 0)])],
            false,
        );
        assert_eq!(got.kept[0].batches, [0]);
        assert_eq!((got.cut_at, got.next_offset), (Some(1), 1));
        assert!(got.kept[1].cut && got.kept[1].batches.is_empty());
        assert_eq!((got.kept[1].first_offset, got.kept[1].end_offset), (1, 1));
    }

    #[test]
    fn a_wrong_chain_is_a_cut_unless_it_is_proven() {
        let stranger = |durable| vec![data(0, 0, 0), chained(1, durable, durable, 99)];
        assert_eq!(plan(0, Said::default(), &[&segment(stranger(0))], false).next_offset, 1);
        let kept = plan(0, Said::default(), &[&segment(stranger(2))], false);
        assert_eq!((kept.next_offset, kept.kept[0].unchained), (2, 1));
    }

    #[test]
    fn what_a_later_segment_supersedes_is_not_kept_twice() {
        let s = Unsealed { limit: Some(1), ..segment(vec![data(0, 0, 0), data(1, 0, 0), data(2, 0, 0)]) };
        let got = plan(0, Said::default(), &[&s], true);
        assert_eq!((got.kept[0].batches.clone(), got.kept[0].end_offset, got.cut_at), (vec![0], 1, None));
    }

    #[test]
    fn what_the_newest_epoch_began_behind_is_proven() {
        // Whatever bit rot hits the last segments, their header included: the log resumes where the epoch began.
        for segments in [vec![segment(Vec::new())], vec![segment(vec![data(10, 0, 0), data(12, 0, 0)])]] {
            let got = plan(10, durable(14), &segments.iter().collect::<Vec<_>>(), false);
            assert_eq!((got.next_offset, got.cut_at), (14, None));
            assert_eq!(got.kept[0].damage.last().map(|d| d.to), Some(14));
        }
        // Also where the last one is of an epoch before.
        let older = Unsealed { limit: Some(12), ..segment(vec![data(10, 0, 0)]) };
        let got = plan(10, durable(14), &[&older], false);
        assert_eq!((got.next_offset, got.kept[0].damage.clone()), (14, vec![Damage { from: 11, to: 14 }]));
    }

    /// A start that was cut may have overwritten the batch with these watermarks.
    #[test]
    fn what_a_start_found_proven_that_was_cut_stays_proven() {
        let batches = || segment(vec![data(0, 0, 0), chained(2, 0, 0, 77)]);
        assert_eq!(plan(0, Said::default(), &[&batches()], false).cut_at, Some(1), "nothing proves it any more");
        for (said, latched, kept) in [
            (durable(3), true, true),
            (Said { durable: 1, written: 3 }, false, true),
            (Said { durable: 1, written: 3 }, true, false),
        ] {
            let got = plan(0, said, &[&batches()], latched);
            let (batches, damage): (&[usize], _) =
                if kept { (&[0, 1], vec![Damage { from: 1, to: 2 }]) } else { (&[0], Vec::new()) };
            assert_eq!((got.kept[0].batches.as_slice(), &got.kept[0].damage), (batches, &damage), "{said:?}");
        }
    }

    /// A rotation, a close or a start that was cut when the footer was durable and the file's length was not.
    #[test]
    fn what_a_footer_ended_is_proven_where_the_file_goes_on_behind_it() {
        let sealed = |end: Option<u64>| {
            let mut seen = segment(vec![data(0, 0, 0), chained(2, 0, 0, 77)]);
            seen.scan.footer = end.map(|end_offset| (8192, Footer { end_offset, ..Footer::default() }, 0));
            seen
        };
        let got = plan(0, Said::default(), &[&sealed(Some(4))], true);
        assert_eq!(got.kept[0].batches, [0, 1]);
        assert_eq!(got.kept[0].damage, [Damage { from: 1, to: 2 }, Damage { from: 3, to: 4 }]);
        assert_eq!((got.next_offset, got.cut_at), (4, None));
        assert_eq!(plan(0, Said::default(), &[&sealed(None)], true).next_offset, 1);
    }

    #[test]
    fn what_is_said_of_what_was_written_holds_under_that_boot() {
        let proof = Some(Proof { durable: 7, written: 9, boot_id: [1; 16] });
        let epochs = vec![EpochStart { epoch: 1, first_offset: 5 }];
        let meta = Meta { proof, epochs, ..example() };
        for (boot_id, written) in [([1; 16], 9), ([2; 16], 0)] {
            let said = Said::by(&meta, boot_id);
            assert_eq!((said.durable, said.written), (7, written));
        }
        let none = Meta { proof: None, ..meta };
        assert_eq!(Said::by(&none, [1; 16]).durable, 5);
    }

    #[test]
    fn what_was_cut_off_before_a_later_epoch_does_not_come_back() {
        let older = Unsealed { limit: Some(11), ..segment(vec![data(10, 0, 0), data(11, 0, 0)]) };
        let newer = segment(vec![chained(11, 11, 11, 0)]);
        let got = plan(10, durable(11), &[&older, &newer], false);
        assert_eq!(got.kept.iter().map(|k| k.batches.clone()).collect::<Vec<_>>(), [[0], [0]]);
        assert_eq!((got.next_offset, got.cut_at), (12, None));
    }

    #[test]
    fn what_was_reported_lost_does_not_come_back() {
        let batches = || vec![data(0, 0, 0), data(1, 0, 0), data(2, 0, 0), data(3, 0, 0)];
        let lost = |from, to| Unsealed { lost: [Damage { from, to }].into(), ..segment(batches()) };
        for (from, to, kept, damage) in
            [(1, 2, &[0, 2, 3][..], (1, 2)), (2, 4, &[0, 1], (2, 4)), (0, 1, &[1, 2, 3], (0, 1))]
        {
            for seen in [lost(from, to), Unsealed { limit: Some(4), ..lost(from, to) }] {
                let got = plan(0, durable(4), &[&seen], false);
                assert_eq!((got.kept[0].batches.as_slice(), got.next_offset), (kept, 4));
                assert_eq!(got.kept[0].damage, [Damage { from: damage.0, to: damage.1 }]);
            }
        }
        // Batches with watermarks still prove it.
        let with_markers = vec![data(0, 0, 0), data(1, 3, 3), data(2, 0, 0)];
        let got = plan(
            0,
            durable(2),
            &[&Unsealed { lost: [Damage { from: 1, to: 2 }].into(), ..segment(with_markers) }],
            false,
        );
        assert_eq!((got.kept[0].batches.as_slice(), got.proven_end), (&[0, 2][..], 3));
    }

    /// A segment that recovery in the process wrote, without the footer that says what it supersedes.
    #[test]
    fn what_repeats_the_log_is_passed_over_and_what_follows_it_is_kept() {
        let repeats = |proven| vec![chained(10, 0, 0, 0), data(11, 0, 0), data(12, proven, proven)];
        for proven in [0, 13] {
            let got = plan(
                10,
                Said::default(),
                &[&segment(vec![data(10, 0, 0), data(11, 0, 0)]), &segment(repeats(proven))],
                false,
            );
            assert_eq!((got.kept[0].batches.as_slice(), got.kept[1].batches.as_slice()), (&[0, 1][..], &[2][..]));
            assert_eq!((got.next_offset, got.cut_at, got.kept[1].unchained), (13, None, 0));
        }
    }

    /// The old one was ended by a footer over 11, and not made shorter; or 11 was hit in it.
    #[test]
    fn what_repeats_the_log_is_kept_where_the_one_before_has_a_gap() {
        let old = || segment(vec![data(10, 0, 0), data(12, 0, 0), data(13, 0, 0)]);
        let new = || [chained(11, 0, 0, 0), data(12, 0, 0), data(13, 0, 0)];
        let kept = |plan: &Plan| plan.kept.iter().map(|kept| kept.batches.clone()).collect::<Vec<_>>();
        for proven in [0, 12, 14] {
            let got = plan(10, durable(proven), &[&old(), &segment(new().to_vec())], false);
            assert_eq!(kept(&got), [&[0][..], &[0, 1, 2]], "proven below {proven}");
            assert_eq!((got.next_offset, got.cut_at, got.kept[0].damage.len()), (14, None, 0));
        }
        // Data damaged in the new one as well is lost, with its remains in the old one.
        let got = plan(10, durable(14), &[&old(), &segment(new()[..1].to_vec())], false);
        assert_eq!((kept(&got), got.next_offset), (vec![vec![0], vec![0]], 14));
        assert_eq!(got.kept[1].damage, [Damage { from: 12, to: 14 }]);
        // A gap of which the new one has nothing that counts is one.
        let lost = Unsealed { lost: [Damage { from: 11, to: 12 }].into(), ..segment(new().to_vec()) };
        let ended = Unsealed { limit: Some(11), ..segment(new().to_vec()) };
        for new in [segment(new()[1..].to_vec()), lost, ended] {
            let got = plan(10, durable(14), &[&old(), &new], false);
            assert_eq!((kept(&got), got.next_offset), (vec![vec![0, 1, 2], vec![]], 14));
            assert_eq!(got.kept[0].damage, [Damage { from: 11, to: 12 }]);
        }
    }

    #[test]
    fn a_missing_segment_is_damage_that_the_next_one_proves() {
        let got = plan(5, Said::default(), &[&segment(vec![data(10, 10, 10), data(11, 10, 10)])], false);
        assert_eq!(got.kept[0].damage, [Damage { from: 5, to: 10 }]);
        assert_eq!(got.next_offset, 12);
    }
}
