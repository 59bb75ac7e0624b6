//! `clad.meta` where one of its two slots has rotted, or is not given by the device any more, and starts that are cut.
//!
//! Invariants: the loss of one slot costs nothing, whichever it is and whenever: no record, no offset, no epoch, nothing
//! of what retention had removed. With both gone a start refuses and has changed nothing. A prepared segment that cannot be
//! read is made again, where `clad.meta` proves that it is not in use. A start that found damage and is cut at any operation
//! leaves an epoch behind that speaks for nothing that is lost.

#![allow(dead_code)] // of the scenes, the stage alone

mod scenes;

use std::sync::Arc;
use std::time::Duration;

use clad_journal::format::META_NAME;
use clad_journal::format::footer::Damage;
use clad_journal::format::meta::{Meta, SLOT};
use clad_journal::format::segment::SegmentHeader;
use clad_journal::io::{Access, Storage};
use clad_journal::recover::scan::scan;
use clad_journal::stepper::Stepper;
use clad_journal::{OpenError, Policy, Retention};
use clad_sim::SimClock;
use clad_sim::disk::{Fault, OpKind};
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
    let mut stage = Stage::new();
    stage.config.retention = Retention { max_bytes: 20 << 10, ..Retention::default() };
    die(&mut stage);
    stage
}

fn shown(stage: &Stage) -> Shown {
    let watermarks = stage.journal().watermarks();
    Shown { epoch: watermarks.epoch, end: watermarks.durable, lowest: stage.journal().meta().lowest_offset }
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

fn hit(stage: &Stage, slot: u64, bit_rot: bool) {
    let at = slot * SLOT as u64 + 48;
    if bit_rot { stage.disk.flip(META_NAME, at, 1) } else { stage.disk.spoil(META_NAME, at) }
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
        for (slot, bit_rot) in [(0, true), (1, true), (0, false), (1, false)] {
            let (mut stage, before, clean) = killed_after(step);
            let what = format!("after step {step}, slot {slot}, rots: {bit_rot}");
            hit(&stage, slot, bit_rot);
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
    for (at, bit_rot) in [(64, true), (0, false), (4096, false)] {
        let (mut stage, before, _) = killed_after(8);
        let number = prepared(&stage);
        assert!(stage.disk.peek(&name(number)).is_some(), "none was prepared");
        if bit_rot {
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
        assert!(!report.quarantined.is_empty() && report.epoch > before.epoch, "{report}");
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
            assert_eq!(started.watermarks().durable, before.end, "operation {k}, seed {seed}: {}", started.report());
            assert!(!started.report().is_damaged(), "operation {k}, seed {seed}: {}", started.report());
            assert!(through || k < ops, "operation {k} of {ops}");
        }
        if k >= ops {
            break;
        }
    }
    assert!(ops > 20, "{ops} operations");
}

/// Two records in the newest segment, of which the second has rotted: that it was durable a commit marker alone proves.
fn bit_rot_before_commit_marker() -> (Stage, Shown, String) {
    let mut stage = stage();
    append(&mut stage);
    append(&mut stage);
    let before = shown(&stage);
    assert_eq!(before.end, 2);
    stage.die();
    let active = name(slots(&stage)[newest(&stage) as usize].highest_segment);
    let bytes = stage.disk.peek(&active).expect("it is there");
    stage.disk.install(&active, &bytes); // the commit marker too, which nobody syncs
    let second = bytes.windows(RECORD).position(|w| w.iter().all(|b| *b == 2)).expect("the second record");
    stage.disk.flip(&active, second as u64, 1);
    (stage, before, active)
}

/// What proves that the last record was durable is a commit marker, which lies where the start that misses it writes the footer, and
/// that start is cut at each of its operations: the next one comes to the same log.
#[test]
fn a_start_that_names_damage_is_cut_anywhere() {
    let (mut stage, before, _) = bit_rot_before_commit_marker();
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
            let report = stage.journal().report();
            let what = format!("{fault:?} at operation {k}, seed {seed}: {report}");
            // Unless that one had raised the epoch: then it was about to say so itself.
            let reported = report.damage == [Damage { from: 1, to: 2 }] || report.epoch > before.epoch + 2;
            assert!(reported, "{what}");
            assert_eq!(shown(&stage).end, before.end, "{what}");
            assert!(stage.read(0).is_some() && stage.read(1).is_none(), "{what}");
            assert!(shown(&stage).epoch >= before.epoch + 2, "{what}");
            assert!(slots(&stage).iter().all(|slot| slot.proof.is_none()), "{what}");
        }
        assert!((30..1000).contains(&ops), "{ops} operations");
    }
}

/// The same, and what that start was about to seal is gone when the next one comes: no offset that was found proven is given
/// again, and all of them are named.
#[test]
fn what_a_start_found_proven_that_was_cut_is_named_where_the_segment_is_gone() {
    let (mut stage, before, active) = bit_rot_before_commit_marker();
    let (left, boot) = (stage.disk.clone(), stage.clock.clone());
    let mut announced = 0;
    for k in 0.. {
        (stage.disk, stage.clock) = (left.fork(k), boot.clone());
        stage.disk.fail_at(stage.disk.ops() + k, Fault::Kill);
        let through = open(&mut stage).is_ok();
        stage.disk.kill();
        stage.disk.clear_faults();
        let bytes = stage.disk.peek(META_NAME).expect("it is there");
        let said = |slot: &[u8]| Meta::decode(slot).is_ok_and(|meta| meta.proof.is_some());
        if bytes.chunks(SLOT).all(said) {
            let hand = stage.disk.reopen();
            hand.remove(&active).and_then(|()| hand.sync_dir("")).expect("removed");
            hand.kill();
            stage.start();
            let report = stage.journal().report();
            let lost: Vec<_> = report.damage.iter().map(|d| (d.from, d.to)).collect();
            assert_eq!((lost.as_slice(), report.next_offset), (&[(0, before.end)][..], before.end), "{report}");
            assert!(report.missing.len() == 1 && report.epoch >= before.epoch + 2, "{report}");
            announced += 1;
        }
        if through {
            break;
        }
    }
    assert!(announced > 5, "{announced} starts had found it");
}

/// A rotation is cut at each of its operations, and then the last record rots: as soon as the footer is durable it is proven
/// that there was one, also where the file still goes on behind it.
#[test]
fn what_a_footer_proves_is_reported_before_the_file_ends_behind_it() {
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

/// The write that names the next segment fails and is on the disk all the same; then that segment turns out to be unfit, and
/// another cannot be made in its place. It never held a record, and is not called missing.
#[test]
fn what_a_failed_write_may_have_named_is_not_taken_away() {
    let mut landed = 0;
    for seed in 0..16 {
        let mut stage = stage();
        append(&mut stage);
        stage.die();
        stage.disk = stage.disk.fork(seed);
        stage.start();
        append(&mut stage);
        stage.journal().prepare();
        let next = slots(&stage)[newest(&stage) as usize].highest_segment + 1;
        stage.disk.fail_next(OpKind::SyncedWrite, META_NAME, Fault::Io);
        rotate(&mut stage);
        let named = || slots(&stage)[newest(&stage) as usize].highest_segment == next;
        if !named() {
            continue;
        }
        landed += 1;
        (64..66).for_each(|at| stage.disk.flip(&name(next), at, 1));
        stage.disk.fail_next(OpKind::Write, &name(next), Fault::NoSpace);
        stage.clock.step(Duration::from_secs(2));
        stage.run();
        stage.die();
        stage.start();
        let report = stage.journal().report();
        assert!(report.missing.is_empty() && report.next_offset == 2, "seed {seed}: {report}");
    }
    assert!(landed > 2, "{landed} failed writes were on the disk");
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

/// A start finds damage at the end of the log, leaves word of what proves it, and is cut at each of its operations. Then a
/// lower segment rots as well, which it had found sealed: a recovery in the process had ended it, and the next one repeats
/// its end. What the start that finds both says of the lower one takes nothing from what was proven of the end.
#[test]
fn what_a_cut_start_had_proven_is_not_replaced_by_less() {
    let in_use = |stage: &Stage| slots(stage)[newest(stage) as usize].highest_segment;
    for (policy, faults) in [
        (Policy::PerMessage, [Fault::Kill, Fault::PowerCut].as_slice()),
        (Policy::FireAndForget { sync_interval: Duration::from_secs(3600) }, &[Fault::Kill]),
    ] {
        let mut stage = stage();
        stage.config.policy = policy;
        die(&mut stage);
        for _ in 0..4 {
            stage.append(RECORD, None);
            stage.run();
        }
        stage.journal().request_sync();
        stage.run();
        let lower = name(in_use(&stage));
        stage.disk.fail_next(OpKind::Write, ".clog", Fault::Io);
        stage.disk.fail_next(OpKind::SyncedWrite, ".clog", Fault::Io);
        stage.append(RECORD, None);
        stage.run();
        stage.disk.clear_faults();
        stage.clock.step(Duration::from_secs(2));
        stage.run();
        rotate(&mut stage);
        append(&mut stage);
        append(&mut stage);
        assert_eq!(lower, name(in_use(&stage) - 2), "one that repeats the end of the lower one lies between");
        let before = stage.journal().watermarks();
        stage.die();
        let last = name(in_use(&stage));
        let bytes = stage.disk.peek(&last).expect("it is there");
        stage.disk.install(&last, &bytes); // the commit marker too, which nobody syncs
        let at = |bytes: &[u8], offset: u64| {
            let found = bytes.windows(RECORD).position(|w| w.iter().all(|b| u64::from(*b) == offset + 1));
            found.expect("the record") as u64
        };
        stage.disk.flip(&last, at(&bytes, before.written - 1), 1);
        let (left, boot) = (stage.disk.clone(), stage.clock.clone());
        for fault in faults {
            let mut ops = u64::MAX;
            for k in 0.. {
                if k > ops {
                    break;
                }
                (stage.disk, stage.clock) = (left.fork(k), boot.clone());
                let began = stage.disk.ops();
                stage.disk.fail_at(began + k, *fault);
                let opened = open(&mut stage);
                if opened.is_ok() {
                    ops = stage.disk.ops() - began;
                }
                drop(opened);
                stage.disk.kill();
                stage.disk.clear_faults();
                let below = stage.disk.peek(&lower).expect("it is there");
                stage.disk.flip(&lower, at(&below, 1), 1);
                (1..=4).for_each(|n| stage.disk.flip(&lower, below.len() as u64 - 8 * n, 0xff)); // its footer
                stage.clock = SimClock::new(stage.disk.boot_id());
                stage.start();
                let what = format!("{policy:?}, {fault:?} at operation {k}: {}", stage.journal().report());
                assert_eq!(stage.journal().watermarks().durable, before.written, "{what}");
                for offset in 0..before.written {
                    let bit_rot = offset == 1 || offset == before.written - 1;
                    assert_eq!(stage.read(offset).is_none(), bit_rot, "{offset}, {what}");
                }
            }
            assert!((30..1000).contains(&ops), "{ops} operations");
        }
    }
}
