//! Every deliberate fault of the journal is turned on, and something must notice: a fault that nothing catches means
//! that a test is missing. Which test catches which is a table in docs/TESTING.md, and that table is compared here.
//!
//! Only with the feature `faults`: `cargo xtask ci faults`, or
//! `cargo test --profile sim -p clad-sim --features faults --test faults -- --nocapture`.

#![allow(clippy::print_stdout)] // it says what caught what

use std::panic::{AssertUnwindSafe, catch_unwind};

use clad_journal::{Fault, Faults};
use clad_sim::World;
use clad_sim::world::Settings;

/// A fault must show within so many histories.
const SEEDS: u64 = 3000;

fn broken(seed: u64, faults: Faults) -> Option<String> {
    let mut world = World::new(seed, Settings { faults, ..Settings::default() });
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(Ok(())) => None,
        Ok(Err(violation)) => Some(violation.0),
        Err(_) => Some("it panics".to_owned()),
    }
}

fn hunt(fault: Fault) -> Option<(u64, String)> {
    (0..SEEDS).find_map(|seed| Some((seed, broken(seed, Faults::only(fault))?)))
}

#[test]
fn every_fault_is_caught_by_the_histories() {
    std::panic::set_hook(Box::new(|_| {})); // a fault that ends in an assertion has been caught
    let mut missed = Vec::new();
    for fault in Fault::ALL {
        match hunt(*fault) {
            Some((seed, text)) => {
                let text: String = text.chars().take(90).collect();
                println!("caught {fault:?}: seed {seed}: {text}");
                assert_eq!(broken(seed, Faults::default()), None, "seed {seed} is broken without a fault");
            }
            None => missed.push(fault),
        }
    }
    let caught = Fault::ALL.len() - missed.len();
    println!("faults: {caught} of {} caught within {SEEDS} seeds each", Fault::ALL.len());
    assert!(missed.is_empty(), "nothing catches {missed:?}");
}
