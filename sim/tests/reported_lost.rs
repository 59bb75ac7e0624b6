//! Records that a start reported as lost, because the device did not give their block, and that it gives again later.
//!
//! Invariants: lost is lost. Their offsets stay a gap for everybody, also where the footer that named them cannot be read
//! any more: their producers may have sent them again, and that was stored as new. Nothing else is lost by it. Without such a
//! start a block that is given again costs nothing.

#![allow(dead_code)] // of the scenes, the stage alone

mod scenes;

use std::sync::Arc;
use std::time::Duration;

use clad_journal::clock::Clock;
use clad_journal::format::META_NAME;
use clad_journal::format::footer::Damage;
use clad_journal::format::meta::{Meta, SLOT};
use clad_journal::io::Storage;
use clad_journal::repair::{Action, repair_storage};
use clad_journal::stepper::Stepper;
use clad_journal::{AppendError, Level, OfflineLog, OpenError, Policy, ReadError};
use clad_sim::disk::{Fault as DiskFault, OpKind};
use scenes::Stage;

const FIRST: &str = "00000000000000000000.clog";
/// A block with the end of record 1 and the begin of record 2, and nothing of others.
const BLOCK: u64 = 8192;
const RECORD: usize = 3000;
const LOST: Damage = Damage { from: 1, to: 3 };

/// Four records in the first segment, of a journal that was killed.
fn killed() -> Stage {
    let mut stage = Stage::new();
    append(&mut stage, 4);
    stage.die();
    stage
}

fn append(stage: &mut Stage, records: u64) {
    for _ in 0..records {
        stage.append(RECORD, None);
        stage.rest();
    }
}

/// The two in the middle are reported as lost.
fn with_reported_loss() -> Stage {
    let mut stage = killed();
    stage.disk.spoil(FIRST, BLOCK);
    stage.start();
    let report = stage.journal().report();
    assert_eq!(report.damage, [LOST], "{report}");
    assert_eq!(read(&stage), (vec![0, 3], vec![(1, 3)]));
    stage
}

/// The device gives the block again, and the segment loses its footer.
fn given_again(stage: &Stage) {
    stage.disk.heal(FIRST, BLOCK, 4096);
    let end = stage.disk.peek(FIRST).expect("it is there").len() as u64;
    stage.disk.flip(FIRST, end - 1, 1);
}

/// What a reader gets, and which offsets it gets as a gap.
fn read(stage: &Stage) -> (Vec<u64>, Vec<(u64, u64)>) {
    let (mut found, mut gaps) = (Vec::new(), Vec::new());
    let mut reader = stage.journal().reader(0, Level::Durable);
    loop {
        match reader.next_batch() {
            Ok(None) => return (found, gaps),
            Ok(Some(batch)) => found.push(batch.first_offset),
            Err(ReadError::Gap { from, to, damaged: true }) => gaps.push((from, to)),
            Err(e) => panic!("{e}"),
        }
    }
}

fn open(stage: &mut Stage) -> Result<Stepper, OpenError> {
    stage.disk = stage.disk.reopen();
    Stepper::open(Arc::new(stage.disk.clone()), stage.clock.clone(), stage.config, Arc::new(|_| {}))
}

fn lost_in_meta(stage: &Stage) -> Vec<Vec<Damage>> {
    let bytes = stage.disk.peek(META_NAME).expect("it is there");
    bytes.chunks(SLOT).map(|slot| Meta::decode(slot).expect("it holds").lost).collect()
}

#[test]
fn a_block_that_was_never_missed_costs_nothing() {
    let mut stage = killed();
    stage.start();
    append(&mut stage, 1);
    given_again(&stage);
    stage.die();
    stage.start();
    assert_eq!(read(&stage), ((0..5).collect(), vec![]));
}

#[test]
fn a_start_that_scans_the_segment_again() {
    let mut stage = with_reported_loss();
    assert_eq!(lost_in_meta(&stage), [[LOST], [LOST]]);
    stage.die();
    given_again(&stage);
    stage.start();
    let report = stage.journal().report();
    assert_eq!((report.damage.as_slice(), report.next_offset), (&[LOST][..], 4), "{report}");
    assert_eq!(read(&stage), (vec![0, 3], vec![(1, 3)]));
    // What can be read now is in quarantine for inspection.
    let quarantined = stage.disk.names().into_iter().filter(|name| name.ends_with(".damaged"));
    let holds =
        |name: String, byte| stage.disk.peek(&name).is_some_and(|b| b.windows(RECORD).any(|w| w == [byte; RECORD]));
    let quarantined: Vec<_> = quarantined.collect();
    assert!([2, 3].iter().all(|byte| quarantined.iter().any(|name| holds(name.clone(), *byte))), "{quarantined:?}");
}

#[test]
fn a_reader_of_the_life_that_reported_it_and_of_the_next() {
    let mut stage = with_reported_loss();
    append(&mut stage, 2);
    given_again(&stage);
    let expected = (vec![0, 3, 4, 5], vec![(1, 3)]);
    assert_eq!(read(&stage), expected);
    stage.journal().request_rotate();
    stage.run();
    stage.die();
    stage.start(); // another segment is the newest: this one is looked at by readers alone
    assert_eq!(stage.journal().report().damage, []);
    assert_eq!(read(&stage), expected);
}

#[test]
fn a_repair_that_seals_the_segment_again() {
    let mut stage = with_reported_loss();
    append(&mut stage, 2);
    stage.journal().request_rotate();
    stage.run();
    stage.die();
    for _ in 0..2 {
        given_again(&stage);
        stage.disk = stage.disk.reopen();
        let clock: &dyn Clock = stage.clock.as_ref();
        let done = repair_storage(&stage.disk, "simulated", clock, false).expect("a report");
        assert_eq!(done.actions, [Action::Resealed { segments: (0, 0), lost: vec![LOST] }]);
        stage.disk.kill();
    }
    given_again(&stage);
    stage.start();
    assert_eq!(read(&stage), (vec![0, 3, 4, 5], vec![(1, 3)]));
}

/// A repair that gives them up is cut at any one of its operations: once it has sealed the segment, the next start knows it.
#[test]
fn a_repair_that_is_cut_when_it_has_sealed_an_old_segment() {
    let hit = || {
        let mut stage = killed();
        stage.start();
        append(&mut stage, 2);
        stage.journal().request_rotate();
        stage.run();
        stage.die();
        stage.disk.spoil(FIRST, BLOCK);
        let end = stage.disk.peek(FIRST).expect("it is there").len() as u64;
        stage.disk.flip(FIRST, end - 1, 1);
        stage.disk = stage.disk.reopen();
        stage
    };
    let repair = |stage: &Stage| repair_storage(&stage.disk, "simulated", stage.clock.as_ref() as &dyn Clock, false);
    let well = hit();
    let from = well.disk.ops();
    assert_eq!(repair(&well).expect("a report").actions, [Action::Resealed { segments: (0, 0), lost: vec![LOST] }]);
    let (to, mut cut) = (well.disk.ops(), 0);
    for (at, fault) in (from..to).flat_map(|at| [(at, DiskFault::Kill), (at, DiskFault::Io)]) {
        let mut stage = hit();
        stage.disk.fail_at(at, fault);
        let done = repair(&stage);
        stage.die();
        stage.disk.clear_faults();
        let is_sealed = stage.disk.peek(FIRST).expect("it is there").last() == Some(&0);
        let noted = lost_in_meta(&stage).iter().any(|lost| lost == &[LOST]);
        cut += u64::from(is_sealed && !noted);
        stage.start();
        let what = format!("{fault:?} at operation {at}, of {from} to {to}: {done:?}, {}", stage.journal().report());
        assert_eq!(lost_in_meta(&stage) == [[LOST], [LOST]], is_sealed || noted, "{what}");
        assert_eq!(stage.journal().report().damage == [LOST], is_sealed && !noted, "{what}");
        assert_eq!(read(&stage), (vec![0, 3, 4, 5], vec![(1, 3)]), "{what}");
        stage.die();
        given_again(&stage);
        stage.start();
        let expected = if is_sealed { (vec![0, 3, 4, 5], vec![(1, 3)]) } else { ((0..6).collect(), vec![]) };
        assert_eq!(read(&stage), expected, "{what}");
    }
    assert!(cut > 0, "never is it cut when it has sealed the segment and reported nothing");
}

/// `clad.meta` made again learns it from the footers.
#[test]
fn a_repair_that_rebuilds_clad_meta() {
    let mut stage = with_reported_loss();
    append(&mut stage, 2);
    stage.die();
    (0..2).for_each(|slot| stage.disk.flip(META_NAME, slot * SLOT as u64 + 48, 1));
    stage.disk = stage.disk.reopen();
    let clock: &dyn Clock = stage.clock.as_ref();
    repair_storage(&stage.disk, "simulated", clock, false).expect("a report");
    stage.disk.kill();
    assert_eq!(lost_in_meta(&stage), [[LOST], [LOST]]);
    given_again(&stage);
    stage.start();
    assert_eq!(read(&stage), (vec![0, 3, 4, 5], vec![(1, 3)]));
}

/// What can be read with no daemon running.
#[test]
fn the_files_alone() {
    for rotated in [false, true] {
        let mut stage = with_reported_loss();
        if rotated {
            append(&mut stage, 2);
            stage.journal().request_rotate();
            stage.run();
        }
        stage.die();
        given_again(&stage);
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        for name in stage.disk.names().into_iter().filter(|name| !name.contains('/')) {
            std::fs::write(dir.path().join(&name), stage.disk.peek(&name).expect("it is there")).expect("written");
        }
        let log = OfflineLog::open(dir.path()).expect("a log");
        let (mut found, mut gaps) = (Vec::new(), Vec::new());
        let mut reader = log.read(0);
        loop {
            match reader.next_batch() {
                Ok(None) => break,
                Ok(Some(batch)) => found.push(batch.first_offset),
                Err(ReadError::Gap { from, to, .. }) => gaps.push((from, to)),
                Err(e) => panic!("{e}"),
            }
        }
        let rest = if rotated { vec![0, 3, 4, 5] } else { vec![0, 3] };
        assert_eq!((found, gaps), (rest, vec![(1, 3)]), "rotated: {rotated}");
    }
}

/// A write fails, and recovery in the process finds a block below it that the device does not give. It fails as well, at any one
/// of its operations, and is made again: that one reports what was lost, also where it finds the old segment ended already.
#[test]
fn a_recovery_in_the_process_that_is_made_again() {
    let failed = || {
        let mut stage = Stage::new();
        append(&mut stage, 4);
        stage.disk.spoil(FIRST, BLOCK);
        stage.append(RECORD, None);
        stage.disk.fail_next(OpKind::SyncedWrite, ".clog", DiskFault::Io);
        stage.run();
        stage.clock.step(Duration::from_secs(2));
        stage
    };
    let well = failed();
    let from = well.disk.ops();
    well.run();
    let to = well.disk.ops();
    assert_eq!((well.journal().watermarks().durable, to > from + 30), (5, true), "{:?}", well.journal().watermarks());
    for at in from..to {
        let stage = failed();
        stage.disk.fail_at(at, DiskFault::Io);
        stage.run();
        stage.disk.clear_faults();
        stage.clock.step(Duration::from_secs(10));
        stage.run();
        let what = format!("operation {at}, of {from} to {to}: {:?}", stage.journal().watermarks());
        assert_eq!(stage.journal().watermarks().losses, 1, "{what}");
        assert_eq!(lost_in_meta(&stage), [[LOST], [LOST]], "{what}");
        // Its producer sends it again, and gets no answer that it is stored.
        let again = stage.journal().append(scenes::one(1, &[2; RECORD]));
        assert!(matches!(again, Err(AppendError::Skipped { expected: 5 })), "{again:?}, {what}");
        assert_eq!(read(&stage), (vec![0, 3, 4], vec![(1, 3)]), "{what}");
    }
}

/// What is lost with a segment that is not there comes back when its file does: it is not noted, be the start that reports it cut
/// at any one of its operations, and what it had sealed by then found by the next.
#[test]
fn what_went_with_a_missing_segment_is_not_noted() {
    const MISSING: &str = "00000000000000000001.clog";
    let without = || {
        let mut stage = Stage::new();
        for _ in 0..2 {
            append(&mut stage, 1);
            stage.journal().request_rotate();
            stage.run();
        }
        append(&mut stage, 1);
        stage.die();
        stage.disk = stage.disk.reopen();
        stage.disk.remove(MISSING).expect("it was there");
        stage.disk.sync_dir("").expect("synced");
        stage.disk.kill();
        stage
    };
    let mut well = without();
    let from = well.disk.ops();
    drop(open(&mut well).expect("it starts"));
    let to = well.disk.ops();
    assert_eq!(lost_in_meta(&well), [[], []]);
    for at in from..to {
        let mut stage = without();
        stage.disk.fail_at(at, DiskFault::Kill);
        drop(open(&mut stage));
        stage.die();
        stage.disk.clear_faults();
        stage.start();
        let what = format!("operation {at}, of {from} to {to}: {}", stage.journal().report());
        assert_eq!(
            (stage.journal().report().missing.as_slice(), lost_in_meta(&stage)),
            (&[1][..], vec![vec![]; 2]),
            "{what}"
        );
        assert_eq!(read(&stage), (vec![0, 2], vec![(1, 2)]), "{what}");
    }
}

/// A segment that was sealed long ago has lost its footer, and a block of it is not given. The start that seals it again is cut at
/// any one of its operations: what it gives up lies below where the epoch began, and the next start reports it all the same; so it does
/// of what the segment begins with.
#[test]
fn a_start_that_is_cut_when_it_has_sealed_an_old_segment_again() {
    for (block, lost) in [(BLOCK, LOST), (4096, Damage { from: 0, to: 2 })] {
        sealed_again_and_cut(block, lost);
    }
}

fn sealed_again_and_cut(block: u64, lost: Damage) {
    let hit = || {
        let mut stage = killed();
        stage.start();
        stage.die();
        stage.disk.spoil(FIRST, block);
        let end = stage.disk.peek(FIRST).expect("it is there").len() as u64;
        stage.disk.flip(FIRST, end - 1, 1);
        stage
    };
    let mut well = hit();
    let from = well.disk.ops();
    drop(open(&mut well).expect("it starts"));
    let to = well.disk.ops();
    assert_eq!(lost_in_meta(&well), [[lost], [lost]]);
    let found: Vec<u64> = (0..4).filter(|offset| !lost.hits(*offset, offset + 1)).collect();
    for at in from..to {
        let mut stage = hit();
        stage.disk.fail_at(at, DiskFault::Kill);
        drop(open(&mut stage));
        stage.die();
        stage.disk.clear_faults();
        stage.start();
        let what = format!("operation {at}, of {from} to {to}: {}", stage.journal().report());
        assert_eq!(lost_in_meta(&stage), [[lost], [lost]], "{what}");
        assert_eq!(read(&stage), (found.clone(), vec![(lost.from, lost.to)]), "{what}");
    }
}

/// A sync fails and takes along what was written and is held by nobody any more; so does the recovery, at any one of its
/// operations, and is made again. Each record is there then, or reported.
#[test]
fn what_a_failed_sync_took_along_is_reported_by_whichever_attempt_counts() {
    const RECORDS: u64 = 6;
    let failed = || {
        let mut stage = Stage::new();
        stage.config.policy = Policy::FireAndForget { sync_interval: Duration::from_secs(1) };
        stage.config.recent_bytes = 1;
        stage.start();
        for _ in 0..RECORDS {
            stage.append(5000, None);
            stage.run();
        }
        stage.disk.fail_next(OpKind::SyncData, ".clog", DiskFault::Io);
        stage.clock.step(Duration::from_secs(2));
        stage.run();
        stage.disk.evict();
        stage.clock.step(Duration::from_secs(2));
        stage
    };
    let well = failed();
    let from = well.disk.ops();
    well.run();
    let to = well.disk.ops();
    let (found, gaps) = read(&well);
    assert!(!found.is_empty() && !gaps.is_empty(), "{found:?}, {gaps:?}");
    for at in from..to {
        let stage = failed();
        stage.disk.fail_at(at, DiskFault::Io);
        stage.run();
        stage.disk.clear_faults();
        for _ in 0..2 {
            stage.clock.step(Duration::from_secs(10));
            stage.run();
        }
        let (found, gaps) = read(&stage);
        let lost = &lost_in_meta(&stage)[0];
        let what = format!(
            "operation {at}, of {from} to {to}: {found:?}, {gaps:?}, {lost:?}, {:?}",
            stage.journal().watermarks()
        );
        let is_lost = |offset: &u64| lost.iter().any(|lost| lost.hits(*offset, *offset + 1));
        assert!((0..RECORDS).all(|offset| found.contains(&offset) != is_lost(&offset)), "{what}");
        assert_eq!(stage.journal().watermarks().losses, 1, "{what}");
        for offset in 0..RECORDS {
            let again = stage.journal().append(scenes::one(offset, &[offset as u8 + 1; 5000]));
            let stored = again.as_ref().is_ok_and(|given| given.duplicate && given.first_offset == offset);
            assert_eq!(stored, found.contains(&offset), "{offset} again: {again:?}, {what}");
        }
    }
}
