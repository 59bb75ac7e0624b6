//! The histories that the table of deliberate faults in docs/TESTING.md names: each keeps every promise with the journal
//! as it is. `cargo xtask ci faults` runs each again with the fault of its row, and that run must fail.
//!
//! `CLAD_SIM_HISTORY=N` runs seed N alone; `CLAD_SIM_HISTORY=first` looks for the first seed that breaks, and says it.

#![allow(clippy::print_stdout)] // it says which seed breaks

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};

use clad_sim::World;
use clad_sim::world::Settings;

/// A fault must show within so many histories.
const SEEDS: u64 = 3000;
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/TESTING.md");

fn broken(seed: u64) -> Option<String> {
    let mut world = World::new(seed, Settings::default());
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(Ok(())) => None,
        Ok(Err(violation)) => Some(violation.0),
        Err(_) => Some("it panics".to_owned()),
    }
}

/// The seeds in the table.
fn named() -> Vec<u64> {
    let docs = std::fs::read_to_string(DOCS).expect("the docs");
    let seed = |line: &str| line.rsplit_once("| histories, seed ")?.1.strip_suffix(" |")?.parse().ok();
    let mut seeds: Vec<u64> = docs.lines().filter_map(seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    seeds
}

#[test]
fn each_history_of_the_table_keeps_every_promise() {
    let wanted = std::env::var("CLAD_SIM_HISTORY").ok();
    let seeds: Vec<u64> = match wanted.as_deref() {
        Some("first") => (0..SEEDS).collect(),
        Some(seed) => vec![seed.parse().expect("CLAD_SIM_HISTORY is a number, or `first`")],
        None => named(),
    };
    assert!(!seeds.is_empty(), "the table names no history");
    if wanted.is_some() {
        set_hook(Box::new(|_| {})); // an assertion of the journal is one way to be caught
    }
    if let Some((seed, why)) = seeds.iter().find_map(|seed| Some((seed, broken(*seed)?))) {
        println!("breaks: seed {seed}: {why}");
        panic!("seed {seed}: {why}");
    }
}
