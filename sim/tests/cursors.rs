//! Named cursors: what is committed lasts, and what holds is passed over.
//!
//! Invariants: after any death at any operation a cursor is where its last answered commit put it, or where the one that was
//! under way would have put it; never anywhere else. A slot that rots costs one commit, both cost the cursors and nothing
//! more. Retention passes over what a cursor holds, up to the bound, and a full disk removes it all the same; each removal
//! of what was not read is reported.

#![allow(dead_code)] // of the scenes, the stage alone

mod scenes;

use std::sync::Arc;

use clad_journal::format::cursors::{NOTE_BYTES_MAX, SLOT};
use clad_journal::format::{CURSORS_NAME, segment_name};
use clad_journal::io::Storage;
use clad_journal::stepper::Stepper;
use clad_journal::{Append, CursorChange, CursorError, Event, OpenError, Retention};
use clad_sim::SimClock;
use clad_sim::disk::{Fault, OpKind, Survival};
use scenes::{Stage, one};

const MAX: usize = 64;

fn to(name: &str, owner: u64, offset: u64, hold: bool) -> CursorChange {
    CursorChange::Commit { name: name.to_owned(), owner, epoch: 1, offset, hold, note: b"n".to_vec() }
}

fn commit(journal: &Stepper, change: CursorChange) -> std::io::Result<Result<(), CursorError>> {
    journal.change_cursors(&[change], MAX).map(|mut answers| answers.pop().expect("one change has one answer"))
}

fn offset(journal: &Stepper, name: &str) -> Option<u64> {
    journal.cursors().iter().find(|cursor| cursor.name == name).map(|cursor| cursor.offset)
}

/// Commits, one after the other: the name, and the place; none removes it.
const COMMITS: [(&str, Option<u64>); 7] =
    [("a", Some(5)), ("b", Some(9)), ("a", Some(6)), ("a", Some(2)), ("b", None), ("a", Some(7)), ("b", Some(1))];

fn change(at: usize) -> CursorChange {
    let (name, offset) = COMMITS[at];
    match offset {
        Some(offset) => to(name, 7, offset, false),
        None => CursorChange::Drop { name: name.to_owned(), owner: Some(7) },
    }
}

/// Places of both after so many commits.
fn after(commits: usize) -> [Option<u64>; 2] {
    ["a", "b"].map(|name| COMMITS[..commits].iter().rev().find(|(of, _)| *of == name).and_then(|(_, offset)| *offset))
}

#[test]
fn a_death_at_any_operation_leaves_the_last_commit_or_the_one_under_way() {
    let began = Stage::new().disk.ops();
    let mut calm = Stage::new();
    (0..COMMITS.len()).for_each(|at| commit(calm.journal(), change(at)).unwrap().unwrap());
    let ops = calm.disk.ops() - began;
    assert!(ops >= COMMITS.len() as u64 + 5, "{ops} operations");
    calm.die();
    let mut landed = 0;
    for k in 0..ops {
        for fault in [Fault::Kill, Fault::PowerCut, Fault::Io, Fault::NoSpace] {
            for survival in [Survival::All, Survival::None] {
                let mut stage = Stage::new();
                stage.disk.fail_at(stage.disk.ops() + k, fault);
                let failed = (0..COMMITS.len()).find(|at| commit(stage.journal(), change(*at)).is_err());
                let answered = failed.unwrap_or(COMMITS.len());
                let now = ["a", "b"].map(|name| offset(stage.journal(), name));
                let what = format!("{fault:?} at operation {k}, {survival:?}, {answered} commits");
                assert_eq!(now, after(answered), "in memory, {what}");
                match fault {
                    Fault::Kill => stage.die(),
                    _ => stage.cut_power(survival),
                }
                stage.disk.clear_faults();
                for _ in 0..2 {
                    stage.start();
                    let found = ["a", "b"].map(|name| offset(stage.journal(), name));
                    let under_way = after((answered + 1).min(COMMITS.len()));
                    landed += u64::from(found == under_way && found != after(answered));
                    assert!(found == after(answered) || found == under_way, "{what}: {found:?}");
                    assert!(stage.journal().report().unknown.is_empty(), "{what}");
                    // And what was found stays: it may not have been on the disk.
                    stage.cut_power(survival);
                }
                stage.start();
                commit(stage.journal(), to("c", 7, 3, false)).unwrap().unwrap();
                assert_eq!(offset(stage.journal(), "c"), Some(3), "{what}");
            }
        }
    }
    assert!(landed > 0, "no write that failed was on the disk");
}

#[test]
fn a_slot_that_rots_costs_one_commit_and_both_cost_the_cursors_alone() {
    for (slots, a) in [(&[0][..], [2, 3]), (&[1], [2, 3]), (&[0, 1], [0, 0])] {
        let mut stage = Stage::new();
        stage.append(100, None);
        stage.run();
        (1..4).for_each(|place| commit(stage.journal(), to("a", 7, place, true)).unwrap().unwrap());
        stage.die();
        slots.iter().for_each(|slot| stage.disk.flip(CURSORS_NAME, slot * SLOT as u64 + 60, 1));
        stage.start();
        let report = stage.journal().report().clone();
        let found = offset(stage.journal(), "a").unwrap_or(0);
        assert!(a.contains(&found), "slots {slots:?}: {found}");
        let moved: &[&str] = if slots.len() == 2 { &["quarantine/cursors-table.0"] } else { &[] };
        assert_eq!(report.unknown, moved, "{report}");
        assert!(!report.is_damaged() && stage.read(0).is_some());
        commit(stage.journal(), to("a", 7, 9, true)).unwrap().unwrap();
        stage.die();
        stage.start();
        assert_eq!(offset(stage.journal(), "a"), Some(9));
    }
}

#[test]
fn a_newer_version_is_refused_and_left_as_it_is() {
    let mut stage = Stage::new();
    commit(stage.journal(), to("a", 7, 1, true)).unwrap().unwrap();
    stage.die();
    let mut bytes = stage.disk.peek(CURSORS_NAME).expect("it is there");
    let len = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    bytes[8] = 2;
    let crc = clad_journal::format::checksum::plain(&bytes[..len - 4]);
    bytes[len - 4..len].copy_from_slice(&crc.to_le_bytes());
    stage.disk.install(CURSORS_NAME, &bytes);
    let disk = stage.disk.reopen();
    let opened = Stepper::open(Arc::new(disk.clone()), SimClock::new(disk.boot_id()), stage.config, Arc::new(|_| {}));
    let Err(OpenError::Newer(text)) = opened else { panic!("it was opened") };
    assert!(text.contains("version 2"), "{text}");
    assert_eq!(disk.peek(CURSORS_NAME), Some(bytes));
}

#[test]
fn each_change_is_judged_by_itself_and_a_name_belongs_to_its_owner() {
    let stage = Stage::new();
    let drop = |name: &str, owner| CursorChange::Drop { name: name.to_owned(), owner };
    let long = CursorChange::Commit {
        name: "l".to_owned(),
        owner: 7,
        epoch: 1,
        offset: 0,
        hold: false,
        note: vec![0; NOTE_BYTES_MAX + 1],
    };
    let writes = || stage.disk.counters_of(CURSORS_NAME).writes;
    let changes = [
        to("a", 7, 1, false),
        to("a", 8, 2, false),
        to(".a", 7, 2, false),
        long,
        drop("b", Some(7)),
        drop("a", Some(8)),
        to("a", 7, 3, true),
        to("b", 8, 4, false),
        drop("b", None),
    ];
    let answers = stage.journal().change_cursors(&changes, MAX).unwrap();
    let refused: Vec<_> = answers.into_iter().map(Result::err).collect();
    use CursorError::{BadName, NotOwner, NotThere};
    let wanted = [None, Some(NotOwner), Some(BadName), Some(BadName), Some(NotThere), Some(NotOwner), None, None, None];
    assert_eq!(refused, wanted);
    let all = stage.journal().cursors();
    let all: Vec<_> = all.iter().map(|c| (c.name.clone(), c.owner, c.offset, c.hold)).collect();
    assert_eq!(all, [("a".to_owned(), 7, 3, true)]);
    let before = writes();
    stage.journal().change_cursors(&[to("a", 7, 4, true), to("c", 7, 4, true), to("d", 7, 4, true)], MAX).unwrap();
    assert_eq!(writes(), before + 1, "changes that come together are one write");
}

#[test]
fn an_owner_has_a_share_of_the_places() {
    let stage = Stage::new();
    let make = |owner: u64, n: usize| commit(stage.journal(), to(&format!("{owner}-{n}"), owner, 0, false)).unwrap();
    let taken = (0..MAX).take_while(|n| make(7, *n).is_ok()).count();
    assert_eq!(taken, MAX / 2, "one alone has half");
    assert_eq!(make(7, 99), Err(CursorError::TooMany { max: MAX }));
    assert_eq!(make(8, 0), Ok(()));
    assert_eq!(commit(stage.journal(), to("7-0", 7, 5, false)).unwrap(), Ok(()), "who has one keeps it");
    let of_root = (0..MAX).take_while(|n| make(0, *n).is_ok()).count();
    assert_eq!(of_root, MAX / 2 - 1, "root takes the last");
}

/// Segments of one record each.
fn segments(stage: &mut Stage, count: u64) {
    for _ in 0..count {
        stage.append(10_000, None);
        stage.run();
        stage.journal().request_rotate();
        stage.run();
    }
}

fn lowest(stage: &Stage) -> u64 {
    stage.journal().meta().lowest_offset
}

fn lost(stage: &Stage) -> Vec<(u64, u64)> {
    let events = stage.events.lock().unwrap();
    let lost = events.iter().filter_map(|event| match event {
        Event::CursorLost { name, from, to } if name == "a" => Some((*from, *to)),
        _ => None,
    });
    lost.collect()
}

fn retain(stage: &Stage, retention: Retention) {
    stage.journal().set_retention(retention);
    (0..20).for_each(|_| stage.journal().retain());
}

#[test]
fn retention_passes_over_what_a_cursor_holds_and_no_further() {
    let mut stage = Stage::new();
    segments(&mut stage, 10);
    let bytes = stage.disk.peek(&segment_name(0)).expect("it is there").len() as u64;
    let by_size = Retention { max_bytes: 2 * bytes, max_held_bytes: 6 * bytes, ..Retention::default() };
    commit(stage.journal(), to("free", 7, 0, false)).unwrap().unwrap();
    commit(stage.journal(), to("a", 7, 4, true)).unwrap().unwrap();
    retain(&stage, by_size);
    assert_eq!((lowest(&stage), stage.journal().held_bytes()), (4, 4 * bytes), "what it has read goes");
    segments(&mut stage, 2);
    retain(&stage, by_size);
    assert_eq!((lowest(&stage), stage.journal().held_bytes()), (4, 6 * bytes));
    assert!(lost(&stage).is_empty());
    // One segment beyond the bound: the oldest goes, and no more.
    segments(&mut stage, 1);
    retain(&stage, by_size);
    assert_eq!((lowest(&stage), stage.journal().held_bytes()), (5, 6 * bytes));
    assert_eq!(lost(&stage), [(4, 5)]);
    segments(&mut stage, 1);
    retain(&stage, by_size);
    assert_eq!((lowest(&stage), lost(&stage).len()), (6, 1), "it is lost once");
    // It has come on, then it goes.
    commit(stage.journal(), to("a", 7, 9, true)).unwrap().unwrap();
    retain(&stage, by_size);
    assert_eq!(lowest(&stage), 9);
    commit(stage.journal(), CursorChange::Drop { name: "a".to_owned(), owner: None }).unwrap().unwrap();
    retain(&stage, by_size);
    assert_eq!((lowest(&stage), stage.journal().held_bytes()), (12, 0));
    assert_eq!(lost(&stage).len(), 1);
}

#[test]
fn age_holds_as_well_and_a_floor_is_no_hold() {
    let mut stage = Stage::new();
    segments(&mut stage, 6);
    stage.clock.step(std::time::Duration::from_secs(7200));
    let by_age =
        Retention { max_age: std::time::Duration::from_secs(60), max_held_bytes: u64::MAX, ..Retention::default() };
    commit(stage.journal(), to("a", 7, 2, true)).unwrap().unwrap();
    retain(&stage, by_age);
    assert_eq!(lowest(&stage), 2);
    assert!(stage.journal().held_bytes() > 0);
    // Over a start as well, before anybody could commit again.
    stage.die();
    stage.start();
    stage.clock.step(std::time::Duration::from_secs(7200));
    retain(&stage, Retention { max_bytes: 1, ..by_age });
    assert_eq!(lowest(&stage), 2);
    retain(&stage, Retention { keep_bytes: u64::MAX, ..by_age });
    assert_eq!(stage.journal().held_bytes(), 0, "it is there for another reason");
}

#[test]
fn a_full_disk_wins() {
    let hold_all = Retention { max_bytes: 1, max_held_bytes: u64::MAX, ..Retention::default() };
    let mut stage = Stage::new();
    stage.config.recycle = false;
    stage.die();
    stage.start();
    commit(stage.journal(), to("a", 7, 0, true)).unwrap().unwrap();
    segments(&mut stage, 6);
    retain(&stage, hold_all);
    assert_eq!(lowest(&stage), 0);
    // By the operator's bound: as much goes as is missing. (An empty one has gone before; its space is awaited no more.)
    stage.clock.step(std::time::Duration::from_secs(61));
    let free = stage.disk.space().unwrap().free;
    retain(&stage, Retention { min_free: free + 1, ..hold_all });
    assert_eq!((lowest(&stage), lost(&stage)), (1, vec![(0, 1)]));
}

/// Without a bound of the operator's: when no next segment can be made.
#[test]
fn a_log_with_a_hold_goes_on_for_as_long_as_one_without() {
    let stored = |hold: bool| {
        let mut stage = Stage::new();
        stage.config.recycle = false;
        stage.die();
        stage.start();
        commit(stage.journal(), to("a", 7, 0, hold)).unwrap().unwrap();
        segments(&mut stage, 14);
        let space = stage.disk.space().unwrap();
        stage.disk.set_capacity(space.total - space.free);
        stage.journal().prepare();
        let before = lowest(&stage);
        stage.journal().set_retention(Retention { max_bytes: 1, max_held_bytes: u64::MAX, ..Retention::default() });
        stage.journal().retain();
        assert_eq!(lowest(&stage) - before, if hold { 1 } else { 13 }, "one goes, to see whether that is enough");
        // Each look of the background thread first removes, then sees what there is room for.
        for _ in 0..200 {
            let payload = [7; 10_000];
            let taken = stage.journal().append(Append { gap: true, ..one(stage.sequence, &payload) });
            stage.sequence += u64::from(taken.is_ok());
            stage.run();
            stage.journal().retain();
            stage.journal().prepare();
            stage.run();
        }
        let watermarks = stage.journal().watermarks();
        assert_eq!(watermarks.durable, watermarks.received);
        watermarks.received
    };
    let (with, without) = (stored(true), stored(false));
    assert!(with > 150 && with + 20 > without, "{with} stored with a hold, {without} without");
}

/// A cursor of a history that was abandoned holds from where the histories part.
#[test]
fn an_abandoned_cursor_holds_from_the_parting() {
    let mut stage = Stage::new();
    stage.config.policy = clad_journal::Policy::FireAndForget { sync_interval: std::time::Duration::from_secs(3600) };
    stage.die();
    stage.start();
    let epoch = stage.journal().meta().epoch();
    stage.append(1000, None);
    stage.run();
    stage.journal().request_sync();
    stage.run();
    (0..3).for_each(|_| _ = stage.append(1000, None));
    stage.run();
    let change =
        CursorChange::Commit { name: "a".to_owned(), owner: 7, epoch, offset: 4, hold: true, note: Vec::new() };
    commit(stage.journal(), change).unwrap().unwrap();
    stage.cut_power(Survival::None);
    stage.start();
    assert_eq!(stage.journal().watermarks().received, 1, "the rest is gone");
    stage.sequence = 1;
    segments(&mut stage, 6);
    retain(&stage, Retention { max_bytes: 1, max_held_bytes: u64::MAX, ..Retention::default() });
    assert_eq!(lowest(&stage), 1, "what it has read there is not what is here");
}

/// No commit waits for retention, and none is answered before the disk has it.
#[test]
fn a_commit_that_fails_changes_nothing_for_retention() {
    let mut stage = Stage::new();
    segments(&mut stage, 4);
    commit(stage.journal(), to("a", 7, 1, true)).unwrap().unwrap();
    stage.disk.fail_next(OpKind::SyncedWrite, CURSORS_NAME, Fault::Io);
    assert!(commit(stage.journal(), to("a", 7, 3, true)).is_err());
    retain(&stage, Retention { max_bytes: 1, max_held_bytes: u64::MAX, ..Retention::default() });
    assert_eq!(lowest(&stage), 1);
}
