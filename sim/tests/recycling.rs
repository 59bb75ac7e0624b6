//! Segments whose file becomes another segment's: what it held before is never taken for records, whatever fails.
//!
//! `CLAD_SEED` is the first seed of the histories, `CLAD_SIM_RUNS` how many under each policy.

#![allow(clippy::print_stdout)] // it says what was done

use std::time::Duration;

use clad_journal::Policy;
use clad_sim::World;
use clad_sim::disk::Fault;
use clad_sim::world::{Death, Settings, Stats, Violation};

const FAULTS: [Fault; 5] = [Fault::Io, Fault::NoSpace, Fault::ShortWrite, Fault::PowerCut, Fault::Kill];

fn policies() -> [Policy; 3] {
    let (max_delay, max_bytes, in_flight) = (Duration::ZERO, 16 << 10, 3);
    [
        Policy::GroupCommit { max_delay, max_bytes, in_flight },
        Policy::PerMessage,
        Policy::SyncFileRange { max_delay, max_bytes, in_flight },
    ]
}

/// All but the newest sealed segment goes.
fn settings(policy: Policy) -> Settings {
    let trace = std::env::var_os("CLAD_SIM_TRACE").is_some();
    Settings { policy: Some(policy), zeroing_pays: Some(true), max_bytes: Some(1), trace, ..Settings::default() }
}

fn must(world: &World, what: &str, ran: Result<(), Violation>) {
    if let Err(broken) = ran {
        world.trace().iter().for_each(|line| println!("{line}"));
        panic!("{what}: {}", broken.0);
    }
}

#[test]
fn what_a_file_held_before_is_never_found_again() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let (first, runs) = (number("CLAD_SEED").unwrap_or(0), number("CLAD_SIM_RUNS").unwrap_or(40));
    let mut all = Stats::default();
    for (policy, i) in policies().into_iter().flat_map(|policy| (0..runs).map(move |i| (policy, i))) {
        let seed = first.wrapping_add(i);
        // Where nothing else fails, lives last until they are ended.
        let mut world = World::new(seed, Settings { calm: seed.is_multiple_of(2), ..settings(policy) });
        let ran = long_lives(&mut world, seed);
        must(&world, &format!("{}, seed {seed}", policy.name()), ran);
        all.add(&world.stats());
    }
    println!(
        "{} lives, {} cuts, {} kills, {} segments removed, {} of them used again, {} acks checked, 0 lost",
        all.lives, all.cuts, all.kills, all.removed, all.recycled, all.acked
    );
    println!("tally: {}", all.tally());
    assert!(all.recycled > 2 * runs, "hardly any was used again: {all:?}");
}

/// Long enough for segments to fill.
fn long_lives(w: &mut World, seed: u64) -> Result<(), Violation> {
    for life in 0..4 {
        w.start()?;
        w.work(600)?;
        w.end(if (seed / 2).wrapping_add(life).is_multiple_of(2) { Death::Kill } else { Death::PowerCut })?;
    }
    w.start()?;
    w.settle()?;
    w.close()?;
    w.start()
}

/// Until a file has been used again, and some work in it.
fn until_used_again(w: &mut World) -> Result<bool, Violation> {
    w.start()?;
    for _ in 0..60 {
        w.work(12)?;
        if w.stats().recycled >= 1 {
            w.work(6)?;
            return Ok(true);
        }
        if !w.disk().is_alive() {
            break;
        }
    }
    Ok(false)
}

fn aftermath(w: &mut World, death: Death) -> Result<(), Violation> {
    w.end(death)?;
    w.start()?;
    w.work(8)?;
    w.end(Death::PowerCut)?;
    w.start()?;
    w.settle()?;
    w.close()?;
    w.start()
}

#[test]
fn every_operation_of_it_fails_in_every_way() {
    let mut all = Stats::default();
    for policy in policies() {
        let world = |seed| World::new(seed, Settings { calm: true, ..settings(policy) });
        // A seed that comes to it soon, and where that was.
        let (seed, from, to) = (0..200)
            .find_map(|seed| {
                let mut calm = world(seed);
                let came = until_used_again(&mut calm);
                let to = calm.disk().ops();
                let at = calm.recycled_at()?;
                (matches!(came, Ok(true)) && to < 1500).then_some((seed, at.saturating_sub(30), to))
            })
            .expect("some seed comes to it");
        let mut calm = world(seed);
        let ran = until_used_again(&mut calm).and_then(|_| aftermath(&mut calm, Death::Kill));
        must(&calm, "calm", ran);
        for k in from..to {
            for fault in FAULTS {
                let death = if k % 2 == 0 { Death::Kill } else { Death::PowerCut };
                let mut w = world(seed);
                w.plan(k, fault);
                let ran = until_used_again(&mut w).and_then(|_| aftermath(&mut w, death));
                must(&w, &format!("{}, {fault:?} at operation {k}, then {death:?}", policy.name()), ran);
                all.add(&w.stats());
            }
        }
        println!("{}: operations {from} to {to}, {} ways each, 0 lost", policy.name(), FAULTS.len());
    }
    println!("{} lives, {} used again, {} acks checked", all.lives, all.recycled, all.acked);
    println!("tally: {}", all.tally());
}
