//! Every deliberate fault of the journal is turned on, and something must notice: a fault that nothing catches means
//! that a test is missing. (Those that only threads can have are for `models/tests/orders.rs`.) Which test catches which is a table in docs/TESTING.md, and that table is compared here.
//!
//! Only with the feature `faults`: `cargo xtask ci faults`, or
//! `cargo test --profile sim -p clad-sim --features faults --test faults -- --nocapture`.

#![allow(clippy::print_stdout)] // it says what caught what

mod scenes;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use clad_journal::{Fault, Faults, Policy};
use clad_sim::World;
use clad_sim::world::Settings;

/// A fault must show within so many histories.
const SEEDS: u64 = 3000;

/// The histories of a fault: of the seed's choice, but where it shows under one policy only. A write of a dead process
/// comes late only where it is direct, and there must be several of them when a life ends.
fn settings(fault: Fault) -> Settings {
    let direct = Policy::GroupCommit { max_delay: Duration::ZERO, max_bytes: 4 << 10, in_flight: 4 };
    match fault {
        Fault::LockNotTaken => {
            Settings { policy: Some(direct), calm: true, zeroing_pays: Some(true), ..Settings::default() }
        }
        _ => Settings::default(),
    }
}

fn broken(seed: u64, settings: Settings) -> Option<String> {
    let mut world = World::new(seed, settings);
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
        Fault::TailNotSetAside => ("what_is_cut_off_is_set_aside", scenes::tail),
        Fault::RetentionBeforeMeta => ("retention_cut_anywhere_leaves_no_segment_missing", scenes::retention),
        Fault::SaltNotUsed => ("no_two_segments_have_one_salt", scenes::salt),
        Fault::RescueStartsTooHigh => ("a_failed_write_costs_nothing_that_shared_its_block", scenes::shared_block),
        Fault::DamagedUsedAgain => ("a_damaged_segment_is_not_used_again", scenes::damaged_goes),
        Fault::RecycledNotToldApart => ("a_segment_used_again_holds_nothing_of_what_it_was", scenes::used_again),
        _ => return None,
    })
}

fn hunt(fault: Fault) -> Option<(String, String)> {
    if let Some((name, run)) = scene(fault) {
        run(Faults::default());
        let caught = catch_unwind(|| run(Faults::only(fault))).is_err();
        return caught.then(|| (format!("scene {name}"), "its assertion fails".to_owned()));
    }
    let found = history(fault)?;
    assert_eq!(broken(found.0, settings(fault)), None, "seed {} is broken without a fault", found.0);
    Some((format!("history of seed {}", found.0), found.1))
}

fn history(fault: Fault) -> Option<(u64, String)> {
    (0..SEEDS).find_map(|seed| Some((seed, broken(seed, Settings { faults: Faults::only(fault), ..settings(fault) })?)))
}

#[test]
fn every_fault_is_caught() {
    std::panic::set_hook(Box::new(|_| {})); // a fault that ends in an assertion has been caught
    let mut missed = Vec::new();
    let all = || Fault::ALL.iter().filter(|fault| !Fault::OF_THREADS.contains(fault));
    for fault in all() {
        match hunt(*fault) {
            Some((what, text)) => {
                let text: String = text.chars().take(90).collect();
                println!("caught {fault:?}: {what}: {text}");
            }
            None => missed.push(fault),
        }
    }
    let (listed, missing) = (all().count(), missed.len());
    println!("faults: {} of {listed} caught, with at most {SEEDS} histories each", listed - missing);
    println!("tally: faults={}", listed - missing);
    assert!(missed.is_empty(), "nothing catches {missed:?}");
}

#[test]
fn the_table_in_the_docs_is_the_list() {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/TESTING.md")).unwrap();
    let row = |line: &str| Some(line.strip_prefix("| `")?.split_once("` | fault |")?.0.to_owned());
    let said: Vec<String> = docs.lines().filter_map(row).collect();
    let all: Vec<String> = Fault::ALL.iter().map(|fault| format!("{fault:?}")).collect();
    assert_eq!(said, all, "docs/TESTING.md and journal/src/faults.rs must list the same faults in the same order");
    for fault in Fault::ALL {
        let line = docs.lines().find(|l| l.starts_with(&format!("| `{fault:?}` |"))).unwrap();
        let threads = Fault::OF_THREADS.contains(fault).then_some("model ");
        let by = threads.unwrap_or_else(|| scene(*fault).map_or("histories", |s| s.0));
        assert!(line.contains(by), "{fault:?} is caught by {by}, the table says: {line}");
    }
}
