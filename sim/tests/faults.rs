//! Every deliberate fault of the journal is turned on, and the test that the table in docs/TESTING.md names for it must
//! notice: a scene, or the history of the seed that stands there. (Those that only threads can have are for
//! `models/tests/orders.rs`.) A fault that nothing catches means that a test is missing.
//!
//! Only with the feature `faults`: `cargo xtask ci faults`, or
//! `cargo test --profile sim -p clad-sim --features faults --test faults -- --nocapture`. With `CLAD_UPDATE=1` the first
//! seeds that catch are looked for again, and written into the table: after a change of what a seed means.

#![allow(clippy::print_stdout)] // it says what caught what

#[allow(dead_code)] // a scene is not for a fault only
mod scenes;

use std::panic::{AssertUnwindSafe, catch_unwind};

use clad_journal::{Fault, Faults};
use clad_sim::World;
use clad_sim::world::Settings;

/// A fault must show within so many histories.
const SEEDS: u64 = 3000;
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/TESTING.md");

fn broken(seed: u64, faults: Faults) -> Option<String> {
    let mut world = World::new(seed, Settings { faults, ..Settings::default() });
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(Ok(())) => None,
        Ok(Err(violation)) => Some(violation.0),
        Err(_) => Some("it panics".to_owned()),
    }
}

/// A scene: its test in `scene.rs`, and what runs it with a fault.
type Scene = (&'static str, fn(Faults));

/// The scene that shows a fault which the histories cannot: what it needs is too rare there, or is not in them.
fn scene(fault: Fault) -> Option<Scene> {
    Some(match fault {
        Fault::PermitReleasedEarly => ("permits_stay_while_the_write_is_in_flight", scenes::permits),
        Fault::DamageCutOff => ("damage_below_the_proven_end_is_named_and_never_cut", scenes::damage),
        Fault::TailNotQuarantined => ("what_is_cut_off_is_quarantined", scenes::tail),
        Fault::RetentionBeforeMeta => ("retention_cut_anywhere_leaves_no_segment_missing", scenes::retention),
        Fault::SaltNotUsed => ("no_two_segments_have_one_salt", scenes::salt),
        Fault::RescueStartsTooHigh => ("a_failed_write_costs_nothing_that_shared_its_block", scenes::shared_block),
        Fault::CommitMarkerForgotten => (
            "a_commit_marker_that_cannot_be_written_back_costs_nothing_that_shared_its_block",
            scenes::unsynced::commit_marker_block,
        ),
        Fault::DamagedUsedAgain => ("a_damaged_segment_is_not_used_again", scenes::damaged_goes),
        Fault::RecycledNotDistinguished => ("a_segment_used_again_holds_nothing_of_what_it_was", scenes::used_again),
        Fault::LockNotTaken => ("a_late_write_of_a_dead_process_is_waited_for", scenes::late_write),
        Fault::CutInPlace => ("what_lies_behind_a_cut_never_comes_back", scenes::behind_the_cut),
        Fault::RoomNotCounted => ("what_has_an_offset_has_room_on_a_disk_that_fills", scenes::full_disk),
        _ => return None,
    })
}

/// The cell of the table that says what catches a fault.
fn caught_by(docs: &str, fault: Fault) -> &str {
    let row = docs.lines().find(|l| l.starts_with(&format!("| `{fault:?}` | fault |"))).expect("a row for each");
    row.trim_end_matches(" |").rsplit_once(" | ").expect("cells").1
}

fn seed_of(cell: &str) -> Option<u64> {
    cell.strip_prefix("histories, seed ")?.parse().ok()
}

/// What a fault ends in, by the test that the table names; an error says what to do about it.
fn caught(fault: Fault, cell: &str) -> Result<String, String> {
    if let Some((_, run)) = scene(fault) {
        run(Faults::default());
        let why = catch_unwind(|| run(Faults::only(fault))).err().ok_or("it holds")?;
        let text = why.downcast_ref::<String>().map(|text| text.replace('\n', " "));
        return Ok(text.unwrap_or_else(|| "its assertion fails".to_owned()));
    }
    let seed = seed_of(cell).ok_or_else(|| format!("the table names no seed: {cell}"))?;
    assert_eq!(broken(seed, Faults::default()), None, "seed {seed} is broken without a fault");
    broken(seed, Faults::only(fault))
        .ok_or_else(|| "its history keeps every promise: CLAD_UPDATE=1 looks for another".to_owned())
}

/// The table with the first seed that catches each fault.
fn updated(mut docs: String) -> String {
    for fault in journals().filter(|fault| scene(**fault).is_none()) {
        let catches = |seed: &u64| broken(*seed, Faults::only(*fault)).is_some();
        let found = (0..SEEDS).find(|seed| catches(seed) && broken(*seed, Faults::default()).is_none());
        let found = found.unwrap_or_else(|| panic!("no history of {SEEDS} catches {fault:?}"));
        let row = docs.lines().find(|l| l.starts_with(&format!("| `{fault:?}` | fault |"))).expect("a row for each");
        let cell = caught_by(&docs, *fault);
        let new = format!("{}histories, seed {found} |", &row[..row.len() - cell.len() - " |".len()]);
        docs = docs.replace(row, &new);
    }
    docs
}

/// Those that need no threads.
fn journals() -> impl Iterator<Item = &'static Fault> {
    Fault::ALL.iter().filter(|fault| !Fault::OF_THREADS.contains(fault))
}

#[test]
fn every_fault_is_caught() {
    std::panic::set_hook(Box::new(|_| {})); // a fault that ends in an assertion has been caught
    let mut docs = std::fs::read_to_string(DOCS).expect("the docs");
    if std::env::var_os("CLAD_UPDATE").is_some() {
        docs = updated(docs);
        std::fs::write(DOCS, &docs).expect("the docs can be written");
    }
    let mut missed = Vec::new();
    for fault in journals() {
        let by = caught_by(&docs, *fault);
        match caught(*fault, by) {
            Ok(text) => println!("caught {fault:?}: {by}: {}", text.chars().take(90).collect::<String>()),
            Err(why) => missed.push(format!("{fault:?} by {by}: {why}")),
        }
    }
    let (listed, missing) = (journals().count(), missed.len());
    println!("faults: {} of {listed} caught, each by the test that is named for it", listed - missing);
    println!("tally: faults={}", listed - missing);
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not caught:\n{}", missed.join("\n"));
}

#[test]
fn the_table_in_the_docs_is_the_list() {
    let docs = std::fs::read_to_string(DOCS).expect("the docs");
    let row = |line: &str| Some(line.strip_prefix("| `")?.split_once("` | fault |")?.0.to_owned());
    let said: Vec<String> = docs.lines().filter_map(row).collect();
    let all: Vec<String> = Fault::ALL.iter().map(|fault| format!("{fault:?}")).collect();
    assert_eq!(said, all, "docs/TESTING.md and journal/src/faults.rs must list the same faults in the same order");
    for fault in Fault::ALL {
        let cell = caught_by(&docs, *fault);
        let right = match scene(*fault) {
            _ if Fault::OF_THREADS.contains(fault) => cell.starts_with("model "),
            Some((name, _)) => cell == name,
            None => seed_of(cell).is_some(),
        };
        assert!(right, "{fault:?}: {cell}");
    }
}
