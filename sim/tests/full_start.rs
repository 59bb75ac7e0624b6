//! A start on a disk that is full to its last block, behind a tail that is not kept.
//!
//! Invariants: it comes up. It frees what holds nothing, and moves the tail to quarantine there; where nothing can be freed, the
//! tail stays in its segment, behind the end. What was acknowledged is read, the tail's bytes are somewhere, and both stay so
//! over a further start, with the power or the process gone at any operation of the first.

#![allow(dead_code)] // of the scenes, the stage alone

mod scenes;

use std::sync::Arc;

use clad_journal::io::Storage;
use clad_journal::stepper::Stepper;
use clad_sim::disk::{Fault, Survival};
use clad_sim::{SimClock, SimDisk};
use scenes::Stage;

const ACTIVE: &str = "00000000000000000000.clog";
const PREPARED: &str = "00000000000000000001.clog";
const HALF_MADE: &str = "00000000000000000001.clog.tmp";
const SEGMENT_BYTES: usize = 64 << 10;
const RECORD_BYTES: usize = 3000;

/// What lies on the disk beside the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    HalfMade,
    Prepared,
    Nothing,
}

/// A record that is durable, one behind it that does not hold, no power, and no block that is free.
fn full(beside: Beside) -> Stage {
    let mut stage = Stage::new();
    for _ in 0..2 {
        stage.append(RECORD_BYTES, None);
        stage.run();
    }
    if beside == Beside::Prepared {
        stage.journal().prepare();
        assert!(stage.disk.names().contains(&PREPARED.to_owned()));
    }
    let at = in_file(&stage.disk, ACTIVE).expect("it was written") as u64;
    stage.disk.flip(ACTIVE, at + 2000, 1);
    stage.disk.power_cut_as(Survival::None);
    stage.clock = SimClock::new(stage.disk.boot_id());
    if beside == Beside::HalfMade {
        stage.disk.install(HALF_MADE, &vec![0; SEGMENT_BYTES]);
    }
    let space = stage.disk.reopen().space().expect("it is known");
    stage.disk.set_capacity(space.total - space.free);
    stage
}

/// Where the second record's bytes, as far as they hold, begin in a file.
fn in_file(disk: &SimDisk, name: &str) -> Option<usize> {
    disk.peek(name)?.windows(1500).position(|bytes| bytes == [2; 1500])
}

fn has_tail(disk: &SimDisk) -> bool {
    disk.names().iter().any(|name| in_file(disk, name).is_some())
}

fn recovered(stage: &Stage) {
    let report = stage.journal().report();
    assert_eq!(stage.read(0), Some(vec![1; RECORD_BYTES]), "{report}");
    assert!(stage.read(1).is_none() && report.next_offset == 1 && !report.is_damaged(), "{report}");
    assert!(has_tail(&stage.disk), "{report}; {:?}", stage.disk.names());
}

/// Appends go on once there is room; then the log is whole, also behind a further cut.
fn goes_on(stage: &mut Stage) {
    stage.disk.set_capacity(1 << 40);
    stage.journal().prepare();
    stage.run();
    stage.sequence = 1;
    let offset = stage.append(500, None);
    stage.run();
    stage.die();
    stage.disk.power_cut_as(Survival::None);
    stage.clock = SimClock::new(stage.disk.boot_id());
    stage.start();
    assert_eq!((offset, stage.read(0)), (1, Some(vec![1; RECORD_BYTES])));
    assert_eq!(stage.read(1), Some(vec![2; 500]), "{}", stage.journal().report());
}

#[test]
fn it_frees_what_holds_nothing_and_else_leaves_the_tail_in_place() {
    for beside in [Beside::HalfMade, Beside::Prepared, Beside::Nothing] {
        let mut stage = full(beside);
        stage.start();
        recovered(&stage);
        let report = stage.journal().report().clone();
        let in_place = beside == Beside::Nothing;
        assert_eq!(
            (report.quarantined.len(), report.left_in_place.len()),
            (!in_place as usize, in_place as usize),
            "{report}"
        );
        assert_eq!(in_file(&stage.disk, ACTIVE).is_some(), in_place, "{report}");
        let names = stage.disk.names();
        assert!(!names.contains(&HALF_MADE.to_owned()), "{names:?}");
        assert_eq!(names.iter().any(|name| name.ends_with(".tail")), !in_place, "{names:?}");
        goes_on(&mut stage);
    }
}

#[test]
fn cut_at_any_operation_the_next_start_comes_to_the_same_log() {
    for (beside, fault) in [Beside::HalfMade, Beside::Prepared, Beside::Nothing]
        .into_iter()
        .flat_map(|beside| [Fault::PowerCut, Fault::Kill, Fault::NoSpace].map(|fault| (beside, fault)))
    {
        let mut operations = 0;
        for at in 0.. {
            let mut stage = full(beside);
            let disk = stage.disk.reopen();
            let begun = disk.ops();
            disk.fail_at(begun + at, fault);
            let opened = Stepper::open(Arc::new(disk.clone()), stage.clock.clone(), stage.config, Arc::new(|_| {}));
            let done = opened.is_ok() && disk.ops() <= begun + at;
            drop(opened);
            assert!(has_tail(&disk), "{beside:?}, {fault:?} at {at}: {:?}", disk.names());
            disk.clear_faults();
            disk.kill();
            stage.clock = SimClock::new(disk.boot_id());
            stage.start();
            recovered(&stage);
            goes_on(&mut stage);
            if done {
                break;
            }
            operations += 1;
        }
        assert!(operations > 20, "{operations} operations of a start");
    }
}
