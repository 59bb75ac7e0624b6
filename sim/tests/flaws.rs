//! The checker must be able to fail: on disks that break their word all the time it must notice, and soon.

use std::time::Duration;

use clad_journal::Policy;
use clad_sim::World;
use clad_sim::world::{Flaw, Settings};

/// The first of some seeds that shows the flaw, and what it shows.
fn caught(flaw: Option<Flaw>, seeds: u64) -> Option<(u64, String)> {
    caught_in(&Settings { flaw, ..Settings::default() }, seeds)
}

fn caught_in(settings: &Settings, seeds: u64) -> Option<(u64, String)> {
    (0..seeds).find_map(|seed| {
        let mut world = World::new(seed, settings.clone());
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
        match ran {
            Ok(Ok(())) => None,
            Ok(Err(broken)) => Some((seed, broken.0)),
            Err(_) => Some((seed, "it panics".to_owned())),
        }
    })
}

#[test]
fn a_synced_write_that_is_not_synced_is_caught() {
    assert!(caught(Some(Flaw::SyncedIsWritten), 20).is_some());
}

#[test]
fn a_sync_of_data_that_does_nothing_is_caught() {
    assert!(caught(Some(Flaw::SyncDataLies), 60).is_some());
}

#[test]
fn a_sync_of_everything_that_does_nothing_is_caught() {
    assert!(caught(Some(Flaw::SyncAllLies), 20).is_some());
}

#[test]
fn a_sync_of_a_folder_that_does_nothing_is_caught() {
    assert!(caught(Some(Flaw::SyncDirLies), 20).is_some());
}

#[test]
fn a_lock_that_keeps_nobody_out_is_caught() {
    // Only direct writes come late, and there must be several of them when a life ends.
    let policy = Some(Policy::GroupCommit { max_delay: Duration::ZERO, max_bytes: 4 << 10, in_flight: 4 });
    let flaw = Some(Flaw::LockAtOnce);
    let settings = Settings { flaw, policy, calm: true, zeroing_pays: Some(true), ..Settings::default() };
    assert!(caught_in(&settings, 2000).is_some());
}

#[test]
fn a_disk_that_keeps_its_word_is_not_blamed() {
    assert_eq!(caught(None, 20), None);
}
