//! Whole histories: the same seeds every time, and fresh ones.
//!
//! `CLAD_SEED` is the first seed, `CLAD_SIM_RUNS` how many (default a few hundred), `CLAD_SIM_TRACE` tells what
//! happened before a rule was broken.

#![allow(clippy::print_stdout)] // it says its seeds and what was done

use clad_sim::World;
use clad_sim::world::{Settings, Stats};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn run(seed: u64) -> Result<Stats, String> {
    let trace = std::env::var_os("CLAD_SIM_TRACE").is_some();
    let mut world = World::new(seed, Settings { trace, ..Settings::default() });
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
    let broken = match ran {
        Ok(Ok(())) => return Ok(world.stats()),
        Ok(Err(broken)) => broken.0,
        Err(_) => "it panics".to_owned(),
    };
    world.trace().iter().for_each(|line| println!("{line}"));
    Err(format!("CLAD_SEED={seed} CLAD_SIM_RUNS=1: {broken}"))
}

/// All of them, and then the broken ones.
fn run_all(name: &str, first: u64, runs: u64) {
    let (mut all, mut broken) = (Stats::default(), Vec::new());
    for i in 0..runs {
        match run(first.wrapping_add(i)) {
            Ok(stats) => all.add(&stats),
            Err(text) => broken.push(text),
        }
    }
    tell(name, runs, &all);
    assert!(broken.is_empty(), "{} of {runs} seeds broke a rule:\n{}", broken.len(), broken.join("\n"));
}

fn tell(name: &str, seeds: u64, s: &Stats) {
    println!(
        "{name}: {seeds} seeds, {} lives, {} cuts, {} kills, {} failed starts, {} recoveries in the process, {} clean ends, \
         {} acks checked, {} duplicates, {} records read, {} seals compared, {} looks at the files, 0 lost",
        s.lives, s.cuts, s.kills, s.failed_starts, s.rescues, s.closes, s.acked, s.duplicates, s.read, s.sealed, s.inspected
    );
}

#[test]
fn fixed_seeds() {
    run_all("fixed", 0, 100);
}

#[test]
fn fresh_seeds() {
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64);
    let first = number("CLAD_SEED").unwrap_or_else(clock);
    let runs = number("CLAD_SIM_RUNS").unwrap_or(200);
    println!("simulation: CLAD_SEED={first} CLAD_SIM_RUNS={runs}");
    run_all("fresh", first, runs);
}

#[test]
fn the_same_seed_makes_the_same_history() {
    for seed in 1000..1010 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(1000).unwrap().digest, run(1001).unwrap().digest);
}
