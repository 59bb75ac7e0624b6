//! The policy `sync_file_range`: where it is allowed it loses nothing; where it is refused, it would.

#![allow(clippy::print_stdout)] // it says what was done

use std::time::Duration;

use clad_journal::Policy;
use clad_sim::World;
use clad_sim::world::{Flaw, Settings, Stats};

fn settings() -> Settings {
    let policy = Policy::SyncFileRange { max_delay: Duration::from_micros(200), max_bytes: 16 << 10, in_flight: 3 };
    Settings { policy: Some(policy), volatile_cache: Some(false), zeroing_pays: Some(true), ..Settings::default() }
}

/// Runs so many seeds; what was done, and the first broken rule.
fn run(settings: &Settings, seeds: u64) -> (Stats, Option<(u64, String)>) {
    let mut all = Stats::default();
    for seed in 0..seeds {
        let mut world = World::new(seed, settings.clone());
        match world.run() {
            Ok(()) => all.add(&world.stats()),
            Err(broken) => return (all, Some((seed, broken.0))),
        }
    }
    (all, None)
}

fn is_a_loss(broken: &Option<(u64, String)>) -> bool {
    // Every text of the checker that says that something acknowledged is not there.
    broken.as_ref().is_some_and(|(_, text)| {
        ["is lost", "is gone", "damage", "ends at", "was acknowledged", "not found"]
            .iter()
            .any(|word| text.contains(word))
    })
}

#[test]
fn nothing_is_lost_where_it_is_allowed() {
    let (all, broken) = run(&settings(), 150);
    assert_eq!(broken, None);
    println!(
        "{} lives, {} cuts, {} kills, {} recoveries in the process, {} range syncs, {} acks checked, 0 lost",
        all.lives, all.cuts, all.kills, all.rescues, all.range_syncs, all.acked
    );
    assert!(all.range_syncs > 1000, "hardly any range sync was made: {all:?}");
}

#[test]
fn reserved_space_is_synced_with_its_metadata() {
    // Nothing is written ahead here, so no segment is in place, and no range sync is made.
    let (all, broken) = run(&Settings { zeroing_pays: Some(false), ..settings() }, 60);
    assert_eq!((broken, all.range_syncs), (None, 0));
}

#[test]
fn a_volatile_cache_loses_what_was_acknowledged() {
    let (_, broken) = run(&Settings { volatile_cache: Some(true), ..settings() }, 40);
    println!("{broken:?}");
    assert!(is_a_loss(&broken), "{broken:?}");
}

#[test]
fn reserved_space_that_passes_for_written_space_loses_it_too() {
    let flaw = Some(Flaw::AllInPlace);
    let (_, broken) = run(&Settings { zeroing_pays: Some(false), flaw, ..settings() }, 40);
    println!("{broken:?}");
    assert!(is_a_loss(&broken), "{broken:?}");
}

#[test]
fn a_range_sync_that_does_nothing_is_caught() {
    let (_, broken) = run(&Settings { flaw: Some(Flaw::SyncRangeLies), ..settings() }, 40);
    println!("{broken:?}");
    assert!(is_a_loss(&broken), "{broken:?}");
}
