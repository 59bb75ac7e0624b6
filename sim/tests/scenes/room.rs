//! Retention by free space, where space comes back later than the names go.

use clad_journal::format::segment_name;
use clad_journal::io::{Access, File};

use super::*;

const SEGMENTS: u64 = 20;

/// Somebody has every segment open, so that none gives its space back. No more of them go than make the room that is asked for;
/// after a minute, as many again; and none for what came back.
pub(crate) fn held_open() {
    let mut stage = Stage::new();
    stage.config.recycle = false;
    stage.start();
    for _ in 0..SEGMENTS {
        stage.append(10_000, None);
        stage.run();
        stage.journal().request_rotate();
        stage.run();
    }
    stage.rest();
    let is_there =
        |stage: &Stage, number: u64| stage.disk.list("").unwrap().iter().any(|e| e.name == segment_name(number));
    let bytes = |number| stage.disk.open(&segment_name(number), Access::ReadCached).unwrap().len().unwrap();
    let of = |numbers: std::ops::Range<u64>| numbers.map(bytes).sum::<u64>();
    let missing = of(4..7) - 1;
    let mut held: Vec<Arc<dyn File>> =
        (0..SEGMENTS).map(|number| stage.disk.open(&segment_name(number), Access::ReadCached).unwrap()).collect();
    let lowest = |stage: &Stage| (0..SEGMENTS).find(|number| is_there(stage, *number)).unwrap();

    let free = stage.disk.space().unwrap().free;
    let min_free = free + of(0..2) - 1;
    stage.journal().set_retention(Retention { min_free, ..Retention::default() });
    for _ in 0..50 {
        stage.journal().retain();
        stage.clock.step(Duration::from_secs(1));
    }
    assert_eq!(lowest(&stage), 2, "what two segments hold is missing");
    stage.clock.step(Duration::from_secs(11));
    for _ in 0..50 {
        stage.journal().retain();
        stage.clock.step(Duration::from_secs(1));
    }
    assert_eq!(lowest(&stage), 4, "those two did not come back within a minute");
    assert_eq!(stage.disk.space().unwrap().free, free);
    // Now all four do, which is more than there must be.
    held.clear();
    assert!(stage.disk.space().unwrap().free > min_free);
    stage.clock.step(Duration::from_secs(100));
    stage.journal().retain();
    assert_eq!(lowest(&stage), 4);
    // And what is missing then is made good at once, by as much.
    let min_free = stage.disk.space().unwrap().free + missing;
    stage.journal().set_retention(Retention { min_free, ..Retention::default() });
    for _ in 0..5 {
        stage.journal().retain();
    }
    assert_eq!(lowest(&stage), 7);
}

/// A file cannot be removed: that its space does not come back takes no other one along, which nobody could say would help.
pub(crate) fn not_removed() {
    let mut stage = Stage::new();
    stage.config.recycle = false;
    stage.start();
    for _ in 0..5 {
        stage.append(10_000, None);
        stage.run();
        stage.journal().request_rotate();
        stage.run();
    }
    let oldest = segment_name(stage.journal().meta().lowest_segment);
    let min_free = stage.disk.space().unwrap().free + 1;
    stage.disk.fail_next(OpKind::Remove, &oldest, DiskFault::Io);
    stage.journal().set_retention(Retention { min_free, ..Retention::default() });
    let passed = |stage: &Stage| stage.journal().meta().lowest_segment;
    let first = passed(&stage);
    for _ in 0..50 {
        stage.journal().retain();
        assert_eq!(passed(&stage), first + 1);
        stage.clock.step(Duration::from_secs(1));
    }
    assert!(stage.disk.list("").unwrap().iter().any(|e| e.name == oldest), "it was removed");
    stage.clock.step(Duration::from_secs(11));
    stage.journal().retain();
    assert_eq!(passed(&stage), first + 2, "it did not come back within a minute");
}
