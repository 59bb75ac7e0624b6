//! A segment's first block that the device does not give any more: with the salt in it, all of that segment is lost, and
//! nothing else is.
//!
//! Invariants: a start that needs that header refuses, names the segment, and has changed nothing, for the device may
//! give it again; `repair` takes the file out of the way, whole; then everything else is read at its offset, and what is
//! lost is named. A start that does not need it goes on.

#![allow(dead_code)] // of the scenes, the stage alone

mod scenes;

use clad_journal::clock::Clock;
use clad_journal::format::META_NAME;
use clad_journal::format::meta::SLOT;
use clad_journal::io::Storage;
use clad_journal::repair::{Action, Left, repair_storage};
use clad_journal::stepper::Stepper;
use clad_journal::{Level, OpenError, ReadError};
use clad_sim::SimClock;
use clad_sim::disk::{Fault, OpKind, Survival};
use scenes::Stage;

fn name(segment: u64) -> String {
    format!("{segment:020}.clog")
}

/// Three sealed segments of two records each, and one in use, of a journal that was killed.
fn killed() -> Stage {
    let mut stage = Stage::new();
    for record in 0..8 {
        stage.append(3000, None);
        stage.run();
        if record % 2 == 1 && record < 7 {
            stage.journal().request_rotate();
            stage.run();
        }
    }
    stage.rest();
    stage.die();
    stage
}

fn refused(stage: &mut Stage) -> OpenError {
    stage.disk = stage.disk.reopen();
    let storage = std::sync::Arc::new(stage.disk.clone());
    let opened = Stepper::open(storage, stage.clock.clone(), stage.config, std::sync::Arc::new(|_| {}));
    opened.err().expect("it opens")
}

fn found(stage: &Stage) -> Vec<u64> {
    (0..8).filter(|offset| stage.read(*offset) == Some(vec![*offset as u8 + 1; 3000])).collect()
}

#[test]
fn a_header_that_the_start_needs() {
    // The newest that is sealed, and the one in use.
    for (segment, rest) in [(2, vec![0, 1, 2, 3, 6, 7]), (3, vec![0, 1, 2, 3, 4, 5])] {
        let mut stage = killed();
        stage.disk.spoil(&name(segment), 0);
        let before = stage.disk.digest();
        let error = refused(&mut stage);
        let text = error.to_string();
        assert!(matches!(error, OpenError::Unreadable { segment: it, .. } if it == segment), "{text}");
        assert!(text.contains(&format!("segment {segment}")) && text.contains("clactl repair"), "{text}");
        assert_eq!(stage.disk.digest(), before, "segment {segment}: the start has changed something");

        let action = Action::QuarantinedUnreadable { segment };
        for dry_run in [true, false] {
            let clock: &dyn Clock = stage.clock.as_ref();
            let done = repair_storage(&stage.disk, "simulated", clock, dry_run).expect("a report");
            assert_eq!(
                (done.actions.as_slice(), done.left.as_slice()),
                (&[action.clone()][..], &[Left::Missing(segment)][..])
            );
            assert_eq!(stage.disk.digest() == before, dry_run);
        }
        let quarantined = format!("quarantine/{}.0", name(segment));
        assert!(stage.disk.names().contains(&quarantined), "{:?}", stage.disk.names());
        stage.die();
        stage.start();
        let report = stage.journal().report();
        assert_eq!(report.missing, [segment], "{report}");
        assert_eq!(found(&stage), rest, "{report}");
        stage.sequence = if segment == 3 { 6 } else { 8 };
        let payload = stage.sequence as u8 + 1;
        let next = stage.append(3000, None);
        stage.rest();
        assert_eq!(stage.read(next), Some(vec![payload; 3000]));
    }
}

/// A repair has moved a segment, and failed before that was durable. A start that reports it missing makes it so: the power
/// fails, and it is still gone.
#[test]
fn what_is_reported_missing_is_not_back_after_a_power_cut() {
    for at in 1..3 {
        let mut stage = killed();
        stage.disk.spoil(&name(3), 0);
        stage.disk = stage.disk.reopen();
        (0..at).for_each(|n| {
            stage.disk.fail_next(OpKind::SyncDir, "", if n + 1 == at { Fault::Io } else { Fault::ShortWrite })
        });
        let clock: &dyn Clock = stage.clock.as_ref();
        let done = repair_storage(&stage.disk, "simulated", clock, false);
        assert!(done.is_err(), "{done:?}");
        // No further segment is made, and no name synced for it.
        let space = stage.disk.space().expect("it is known");
        stage.disk.set_capacity(space.total - space.free);
        stage.die();
        stage.start();
        assert_eq!(stage.journal().report().missing, [3], "{}", stage.journal().report());
        stage.disk.power_cut_as(Survival::None);
        stage.clock = SimClock::new(stage.disk.boot_id());
        assert!(!stage.disk.names().contains(&name(3)), "its name is back: {:?}", stage.disk.names());
        stage.start();
        assert_eq!(found(&stage), [0, 1, 2, 3, 4, 5], "{}", stage.journal().report());
    }
}

/// `repair` takes them all away, and then `clad.meta` goes as well: there was a log, and a start says so.
#[test]
fn all_headers_and_then_clad_meta() {
    let mut stage = killed();
    let all: Vec<_> = stage.disk.names().into_iter().filter(|name| name.ends_with(".clog")).collect();
    all.iter().for_each(|name| stage.disk.spoil(name, 0));
    stage.disk = stage.disk.reopen();
    let clock: &dyn Clock = stage.clock.as_ref();
    repair_storage(&stage.disk, "simulated", clock, false).expect("a report");
    stage.disk.kill();
    assert!(!stage.disk.names().iter().any(|name| name.ends_with(".clog") && !name.contains('/')));
    (0..2).for_each(|slot| stage.disk.flip(META_NAME, slot * SLOT as u64 + 48, 1));
    let before = stage.disk.digest();
    let error = refused(&mut stage);
    assert!(matches!(error, OpenError::Remains { .. }) && error.to_string().contains("quarantine/"), "{error}");
    assert_eq!(stage.disk.digest(), before, "the start has changed something");
    // With open eyes: a new log.
    let hand = stage.disk.reopen();
    for entry in hand.list("quarantine").expect("a list") {
        hand.remove(&format!("quarantine/{}", entry.name)).expect("removed");
    }
    hand.kill();
    stage.start();
    assert!(stage.journal().report().fresh);
}

#[test]
fn a_header_that_no_start_needs() {
    let mut stage = killed();
    stage.disk.spoil(&name(0), 0);
    stage.start();
    let report = stage.journal().report();
    assert!(report.missing.is_empty() && report.damage.is_empty(), "{report}");
    assert_eq!(found(&stage), [2, 3, 4, 5, 6, 7], "{report}");
    let gap = stage.journal().reader(0, Level::Durable).next_batch().err();
    assert!(matches!(gap, Some(ReadError::Gap { from: 0, to: 2, damaged: true })), "{gap:?}");
}

/// The block of a footer that the device does not give: the segment is scanned, and loses nothing. A block of records
/// costs those that lie in it, and is named.
#[test]
fn a_footer_and_a_record() {
    let mut stage = killed();
    let bytes = stage.disk.peek(&name(2)).expect("it is there").len() as u64;
    stage.disk.spoil(&name(2), bytes - 1);
    stage.start();
    assert_eq!(found(&stage), [0, 1, 2, 3, 4, 5, 6, 7], "{}", stage.journal().report());

    let mut stage = killed();
    stage.disk.spoil(&name(3), 4096);
    stage.start();
    let report = stage.journal().report();
    assert_eq!(report.damage.iter().map(|d| (d.from, d.to)).collect::<Vec<_>>(), [(6, 8)], "{report}");
    assert_eq!(found(&stage), [0, 1, 2, 3, 4, 5], "{report}");
}
