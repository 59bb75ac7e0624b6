//! `clad.meta` where one of its two slots has rotted, or is not given by the device any more, and starts that are cut.
//!
//! What must hold: the loss of one slot costs nothing, whichever it is and whenever: no record, no offset, no epoch, nothing
//! of what retention had removed. With both gone a start refuses and has changed nothing. A prepared segment that cannot be
//! read is made anew, where `clad.meta` proves that it is not in use. A start that found damage and is cut at any operation
//! leaves an epoch behind that speaks for nothing that is lost.

#![allow(dead_code)] // of the scenes, the stage alone

mod scenes;

use std::sync::Arc;
use std::time::Duration;

use clad_journal::format::META_NAME;
use clad_journal::format::meta::{Meta, SLOT};
use clad_journal::format::segment::SegmentHeader;
use clad_journal::io::{Access, Storage};
use clad_journal::recovery::scan::scan;
use clad_journal::stepper::{Kind, Next, Stepper};
use clad_journal::{Faults, OpenError, Policy, Retention};
use clad_sim::SimClock;
use clad_sim::disk::Fault;
use scenes::Stage;

const RECORD: usize = 3000;

/// What the log looked like to somebody.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    epoch: u32,
    end: u64,
    lowest: u64,
}

fn name(segment: u64) -> String {
    format!("{segment:020}.clog")
}

fn append(stage: &mut Stage) {
    stage.append(RECORD, None);
    stage.rest();
}

fn rotate(stage: &mut Stage) {
    stage.journal().request_rotate();
    stage.run();
}

fn close(stage: &mut Stage) {
    stage.journal().close();
    stage.run();
}

fn die(stage: &mut Stage) {
    stage.die();
    stage.start();
}

/// A short life of a log in which every fact of `clad.meta` changes.
const STEPS: [fn(&mut Stage); 16] = [
    append,
    rotate,
    append,
    die,
    append,
    rotate,
    append,
    |stage| stage.journal().retain(),
    |stage| stage.journal().prepare(),
    rotate,
    append,
    |stage| stage.journal().retain(),
    append,
    close,
    die,
    append,
];

fn stage() -> Stage {
    let mut stage = Stage::new(Faults::default());
    stage.config.retention = Retention { max_bytes: 20 << 10, ..Retention::default() };
    die(&mut stage);
    stage
}

fn shown(stage: &Stage) -> Shown {
    let marks = stage.journal().marks();
    Shown { epoch: marks.epoch, end: marks.durable, lowest: stage.journal().meta().lowest_offset }
}

/// As far as that step, and then killed.
fn killed_after(step: usize) -> (Stage, Shown, bool) {
    let mut stage = stage();
    for step in &STEPS[..=step] {
        step(&mut stage);
    }
    let shown = shown(&stage);
    let clean = stage.journal().meta().clean;
    stage.die();
    (stage, shown, clean)
}

fn slots(stage: &Stage) -> Vec<Meta> {
    let bytes = stage.disk.peek(META_NAME).expect("it is there");
    bytes.chunks(SLOT).map(|slot| Meta::decode(slot).expect("both slots hold at all times")).collect()
}

fn newest(stage: &Stage) -> u64 {
    let slots = slots(stage);
    u64::from(slots[1].generation > slots[0].generation)
}

fn hit(stage: &Stage, slot: u64, rots: bool) {
    let at = slot * SLOT as u64 + 48;
    if rots { stage.disk.flip(META_NAME, at, 1) } else { stage.disk.spoil(META_NAME, at) }
}

fn open(stage: &mut Stage) -> Result<Stepper, OpenError> {
    stage.disk = stage.disk.reopen();
    Stepper::open(Arc::new(stage.disk.clone()), stage.clock.clone(), stage.config, Arc::new(|_| {}))
}

fn refused(stage: &mut Stage) -> OpenError {
    open(stage).err().expect("it opens")
}

fn all_is_there(stage: &Stage, before: Shown, what: &str) {
    for offset in before.lowest..before.end {
        assert_eq!(stage.read(offset), Some(vec![offset as u8 + 1; RECORD]), "{what}: {offset}");
    }
}

#[test]
fn the_loss_of_either_slot_costs_nothing() {
    let mut removed = 0;
    for step in 0..STEPS.len() {
        for (slot, rots) in [(0, true), (1, true), (0, false), (1, false)] {
            let (mut stage, before, clean) = killed_after(step);
            let what = format!("after step {step}, slot {slot}, rots: {rots}");
            hit(&stage, slot, rots);
            stage.start();
            let (report, after) = (stage.journal().report().clone(), shown(&stage));
            assert!(!report.is_damaged(), "{what}: {report}");
            let raised = after.epoch > before.epoch || clean && after.epoch == before.epoch;
            assert!(
                raised && after.end == before.end && after.lowest == before.lowest,
                "{what}: {before:?}, {after:?}"
            );
            all_is_there(&stage, before, &what);
            // It goes on, and the slot is whole again.
            append(&mut stage);
            stage.die();
            stage.start();
            assert_eq!(slots(&stage).len(), 2);
            let before = Shown { end: before.end + 1, ..before };
            assert_eq!(shown(&stage).end, before.end, "{what}");
            all_is_there(&stage, before, &what);
            removed += before.lowest;
        }
    }
    assert!(removed > 0, "retention has removed nothing");
}

#[test]
fn without_both_slots_a_start_refuses_and_changes_nothing() {
    for (first, second) in [(true, true), (true, false), (false, false)] {
        let (mut stage, ..) = killed_after(12);
        hit(&stage, 0, first);
        hit(&stage, 1, second);
        let before = stage.disk.digest();
        let error = refused(&mut stage);
        let right = match first && second {
            true => matches!(error, OpenError::MetaLost { .. }),
            // What the device may give tomorrow is not called lost.
            false => matches!(error, OpenError::Io { .. }),
        };
        assert!(right, "{error}");
        assert_eq!(stage.disk.digest(), before, "the start has changed something");
    }
}

#[test]
fn a_prepared_segment_that_cannot_be_read_holds_nothing() {
    let prepared = |stage: &Stage| slots(stage)[newest(stage) as usize].highest_segment + 1;
    for (at, rots) in [(64, true), (0, false), (4096, false)] {
        let (mut stage, before, _) = killed_after(8);
        let number = prepared(&stage);
        assert!(stage.disk.peek(&name(number)).is_some(), "none was prepared");
        if rots {
            stage.disk.flip(&name(number), at, 1)
        } else {
            stage.disk.spoil(&name(number), at)
        }
        stage.start();
        let report = stage.journal().report().clone();
        assert!(!report.is_damaged(), "{report}");
        all_is_there(&stage, before, &report.to_string());
        append(&mut stage);
        rotate(&mut stage);
        append(&mut stage);
        all_is_there(&stage, Shown { end: before.end + 2, ..before }, &report.to_string());
    }
    // Nobody can say that it was not put to use, where what would say so has rotted.
    let (mut stage, ..) = killed_after(8);
    let number = prepared(&stage);
    stage.disk.spoil(&name(number), 0);
    hit(&stage, newest(&stage), true);
    let before = stage.disk.digest();
    let error = refused(&mut stage);
    assert!(matches!(error, OpenError::Unreadable { segment, .. } if segment == number), "{error}");
    assert_eq!(stage.disk.digest(), before, "the start has changed something");
}

/// The newest slot and the first batch, or the header, of the segment that it alone names.
#[test]
fn a_segment_in_use_is_not_taken_for_a_prepared_one() {
    for at in [64, 4096 + 2000] {
        let (mut stage, before, _) = killed_after(10);
        let number = slots(&stage)[newest(&stage) as usize].highest_segment;
        assert_eq!(slots(&stage)[1 - newest(&stage) as usize].highest_segment, number - 1);
        hit(&stage, newest(&stage), true);
        // Of a header, one wrong byte would be put right.
        (at..at + 2).for_each(|at| stage.disk.flip(&name(number), at, 1));
        stage.start();
        let report = stage.journal().report().clone();
        assert!(report.is_damaged() || report.cut_at.is_some(), "{report}");
        assert!(!report.set_aside.is_empty() && report.epoch > before.epoch, "{report}");
    }
}

/// The slot that is left names one segment too few, and more epochs than a sector holds. The start that takes the segment in
/// loses the power at each of its operations, with any sectors of that write on the disk: one slot holds at all times.
#[test]
fn the_slot_that_is_left_is_not_put_at_risk() {
    let mut stage = stage();
    for _ in 0..50 {
        append(&mut stage);
        die(&mut stage);
    }
    append(&mut stage);
    rotate(&mut stage);
    append(&mut stage);
    assert!(slots(&stage)[0].encode()[512..].iter().any(|b| *b != 0), "each slot is one sector");
    let before = shown(&stage);
    stage.die();
    hit(&stage, newest(&stage), true);
    let left = stage.disk.clone();
    let mut ops = 0;
    for k in 0.. {
        for seed in 0..6 {
            stage.disk = left.fork(seed);
            let began = stage.disk.ops();
            stage.disk.fail_at(began + k, Fault::PowerCut);
            let opened = open(&mut stage);
            ops = stage.disk.ops() - began;
            let through = opened.is_ok();
            drop(opened);
            stage.disk.kill();
            stage.disk.clear_faults();
            let started = open(&mut stage).unwrap_or_else(|e| panic!("operation {k}, seed {seed}: {e}"));
            assert_eq!(started.marks().durable, before.end, "operation {k}, seed {seed}: {}", started.report());
            assert!(!started.report().is_damaged(), "operation {k}, seed {seed}: {}", started.report());
            assert!(through || k < ops, "operation {k} of {ops}");
        }
        if k >= ops {
            break;
        }
    }
    assert!(ops > 20, "{ops} operations");
}

/// What proves that a record was durable lies where the start that misses it writes the footer, and that start is cut at each
/// of its operations: the next one comes to the same log. Of two records that were in flight together the first rots.
#[test]
fn a_start_that_names_damage_is_cut_anywhere() {
    let mut stage = stage();
    stage.config.policy = Policy::GroupCommit { max_delay: Duration::ZERO, max_bytes: 4 << 10, in_flight: 2 };
    die(&mut stage);
    append(&mut stage);
    let jobs = [(); 2].map(|()| {
        stage.append(RECORD, None);
        let Next::Job(job) = stage.journal().begin() else { panic!("nothing to write") };
        assert_eq!(job.kind, Kind::Write);
        job
    });
    jobs.into_iter().for_each(|job| stage.journal().carry_out(job));
    stage.rest();
    let before = shown(&stage);
    assert_eq!(before.end, 3);
    stage.die();
    let active = name(slots(&stage)[newest(&stage) as usize].highest_segment);
    let bytes = stage.disk.peek(&active).expect("it is there");
    stage.disk.install(&active, &bytes); // the vouch too, which nobody syncs
    let second = bytes.windows(RECORD).position(|w| w.iter().all(|b| *b == 2)).expect("the second record");
    stage.disk.flip(&active, second as u64, 1);
    let (left, boot) = (stage.disk.clone(), stage.clock.clone());
    for fault in [Fault::Kill, Fault::PowerCut, Fault::Io] {
        let mut ops = u64::MAX;
        for (k, seed) in (0..).flat_map(|k| (0..4).map(move |seed| (k, seed))) {
            if k > ops {
                break;
            }
            (stage.disk, stage.clock) = (left.fork(seed), boot.clone());
            let began = stage.disk.ops();
            stage.disk.fail_at(began + k, fault);
            let opened = open(&mut stage);
            if opened.is_ok() {
                ops = stage.disk.ops() - began;
            }
            drop(opened);
            stage.disk.kill();
            stage.disk.clear_faults();
            stage.clock = SimClock::new(stage.disk.boot_id());
            stage.start();
            let what = format!("{fault:?} at operation {k}, seed {seed}: {}", stage.journal().report());
            assert_eq!(shown(&stage).end, before.end, "{what}");
            let read: Vec<_> = (0..3).map(|offset| stage.read(offset).is_some()).collect();
            assert_eq!(read, [true, false, true], "{what}");
            assert!(shown(&stage).epoch >= before.epoch + 2, "{what}");
            assert!(slots(&stage).iter().all(|slot| slot.proof.is_none()), "{what}");
        }
        assert!((30..1000).contains(&ops), "{ops} operations");
    }
}

/// A rotation is cut at each of its operations, and then the last record rots: as soon as the footer is durable it is proven
/// that there was one, also where the file still goes on behind it.
#[test]
fn what_a_footer_proves_is_told_before_the_file_ends_behind_it() {
    let mut in_the_middle = 0;
    for (k, fault) in (0..12).flat_map(|k| [(k, Fault::Kill), (k, Fault::PowerCut)]) {
        let mut stage = stage();
        for _ in 0..2 {
            stage.append(RECORD, None);
            stage.run();
        }
        let active = name(slots(&stage)[newest(&stage) as usize].highest_segment);
        stage.disk.fail_at(stage.disk.ops() + k, fault);
        rotate(&mut stage);
        stage.die();
        stage.disk.clear_faults();
        let bytes = stage.disk.peek(&active).expect("it is there");
        let second = bytes.windows(RECORD).position(|w| w.iter().all(|b| *b == 2)).expect("the second record");
        stage.disk.flip(&active, second as u64, 1);
        let header = SegmentHeader::decode(&bytes).expect("a header");
        let file = stage.disk.reopen().open(&active, Access::ReadDirect).expect("it is there");
        let footer = scan(file, &header).expect("there is memory").footer;
        in_the_middle += u32::from(footer.is_some() && bytes.len() as u64 == header.capacity);
        stage.clock = SimClock::new(stage.disk.boot_id());
        stage.start();
        let what = format!("{fault:?} at operation {k}: {}", stage.journal().report());
        assert!(stage.read(0).is_some() && stage.read(1).is_none(), "{what}");
        assert!(footer.is_none() || shown(&stage).end == 2, "{what}");
    }
    assert!(in_the_middle > 0, "none was cut between the footer and the length");
}

/// The header of the last segment with records rots after a clean end, in an epoch that gave no offset. The start that finds
/// it is cut at each of its operations, and so is the next.
#[test]
fn a_start_that_finds_a_header_lost_is_cut_anywhere() {
    let ended = || {
        let mut stage = stage();
        (0..3).for_each(|_| append(&mut stage));
        die(&mut stage);
        let before = shown(&stage);
        close(&mut stage);
        assert!(stage.journal().meta().clean);
        stage.die();
        let last = (0..).take_while(|n| stage.disk.peek(&name(*n)).is_some_and(|b| b[4096..].iter().any(|b| *b != 0)));
        let last = name(last.last().expect("a segment with records"));
        (64..66).for_each(|at| stage.disk.flip(&last, at, 1)); // one alone would be put right
        (stage, before)
    };
    let (mut calm, _) = ended();
    let began = calm.disk.ops();
    calm.start();
    let ops = calm.disk.ops() - began;
    for k in 0..ops {
        for (fault, again) in [(Fault::Kill, 1), (Fault::Kill, 2), (Fault::PowerCut, 1), (Fault::Io, 2)] {
            let (mut stage, before) = ended();
            for _ in 0..again {
                stage.disk.fail_at(stage.disk.ops() + k, fault);
                drop(open(&mut stage));
                stage.die();
            }
            stage.disk.clear_faults();
            stage.start();
            let (report, after) = (stage.journal().report().clone(), shown(&stage));
            let what = format!("{fault:?} at operation {k}, {again} times: {before:?}, {after:?}, {report}");
            assert!(after.epoch >= before.epoch + 2, "{what}");
            assert_eq!(after.end, before.end, "{what}");
            assert!(stage.disk.names().iter().any(|n| n.ends_with(".damaged")), "{what}");
        }
    }
    assert!(ops > 30, "{ops} operations");
}
