//! A small history, and at every single operation of it every way to fail; the same for every operation of a start.
//!
//! `CLAD_SEED` makes it another history. `CLAD_SIM_RUNS`, which `cargo xtask ci sim` sets, asks for every way at every operation, and
//! for all histories of unreadable blocks; without it each operation has two ways of the six, in turn, and one history is tried.

#![allow(clippy::print_stdout)] // it says what was done

use std::sync::Mutex;
use std::thread;

use clad_journal::Policy;
use clad_sim::World;
use clad_sim::disk::Fault;
use clad_sim::world::{Death, Settings, Stats, Violation};

const FAULTS: [Fault; 6] =
    [Fault::Io, Fault::NoSpace, Fault::WriteZero, Fault::ShortWrite, Fault::PowerCut, Fault::Kill];

/// The ways that are tried at an operation.
fn faults(operation: u64) -> impl Iterator<Item = Fault> {
    let is_whole = std::env::var_os("CLAD_SIM_RUNS").is_some();
    let places = (operation..).zip(FAULTS);
    places.filter(move |(place, _)| is_whole || place % 3 == 0).map(|(_, fault)| fault)
}

fn policies() -> [Policy; 4] {
    use std::time::Duration;
    let (max_delay, max_bytes, in_flight) = (Duration::ZERO, 8 << 10, 3);
    let group = Policy::GroupCommit { max_delay, max_bytes, in_flight };
    let ranges = Policy::SyncFileRange { max_delay, max_bytes, in_flight };
    [group, Policy::PerMessage, Policy::FireAndForget { sync_interval: Duration::from_millis(5) }, ranges]
}

/// Runs `each` once for each policy, side by side, and returns the sum of what they did.
fn for_each_policy(each: impl Fn(usize, Policy, &mut Stats) + Sync) -> Stats {
    let all = Mutex::new(Stats::default());
    thread::scope(|scope| {
        for (i, policy) in policies().into_iter().enumerate() {
            let (all, each) = (&all, &each);
            scope.spawn(move || {
                let mut own = Stats::default();
                each(i, policy, &mut own);
                all.lock().unwrap().add(&own);
            });
        }
    });
    all.into_inner().unwrap()
}

fn world(seed: u64, policy: Policy) -> World {
    let base: u64 = std::env::var("CLAD_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let seed = seed.wrapping_add(base);
    let trace = std::env::var_os("CLAD_SIM_TRACE").is_some();
    World::new(seed, Settings { policy: Some(policy), calm: true, trace, ..Settings::default() })
}

fn must(world: &World, what: &str, ran: Result<(), Violation>) {
    if let Err(broken) = ran {
        world.trace().iter().for_each(|line| println!("{line}"));
        panic!("{what}: {}", broken.0);
    }
}

/// Two lives, the first one ending in `death`.
fn history(w: &mut World, death: Death) -> Result<(), Violation> {
    w.start()?;
    w.work(45)?;
    w.settle()?;
    w.work(10)?;
    w.end(death)?;
    aftermath(w)
}

/// What was found must last: another start, some work, a cut, a start, a clean end, a start.
fn aftermath(w: &mut World) -> Result<(), Violation> {
    w.start()?;
    w.work(8)?;
    w.end(Death::PowerCut)?;
    w.start()?;
    w.settle()?;
    w.close()?;
    w.start()
}

#[test]
fn every_operation_fails_in_every_way() {
    let all = for_each_policy(|i, policy, all| {
        let mut calm = world(i as u64, policy);
        let ran = history(&mut calm, Death::Kill);
        must(&calm, "calm", ran);
        let ops = calm.disk().ops();
        assert!((100..1500).contains(&ops), "{ops} operations");
        for k in 0..ops {
            for fault in faults(k) {
                let death = if k % 2 == 0 { Death::Kill } else { Death::PowerCut };
                let mut w = world(i as u64, policy);
                w.plan(k, fault);
                let ran = history(&mut w, death);
                must(&w, &format!("{}, {fault:?} at operation {k}, then {death:?}", policy.name()), ran);
                all.add(&w.stats());
            }
        }
        println!("{}: {ops} operations, {} ways each, 0 lost", policy.name(), faults(0).count());
    });
    println!("{} lives, {} recoveries in the process, {} acks checked", all.lives, all.rescues, all.acked);
    println!("tally: {}", all.tally());
}

#[test]
fn every_operation_of_a_start_fails_in_every_way() {
    let all = for_each_policy(|i, policy, all| {
        for death in [Death::Kill, Death::PowerCut] {
            let until_dead = |seed| {
                let mut w = world(seed, policy);
                let ran = w.start().and_then(|()| w.work(70)).and_then(|()| w.die(death));
                must(&w, "calm", ran);
                w
            };
            let seed = 50 + i as u64;
            let mut calm = until_dead(seed);
            let before = calm.disk().ops();
            let ran = calm.start();
            must(&calm, "calm", ran);
            let ops = calm.disk().ops() - before;
            assert!(ops > 30, "{ops} operations");
            for k in 0..ops {
                for fault in faults(k) {
                    let mut w = until_dead(seed);
                    w.plan(k, fault);
                    let ran = aftermath(&mut w);
                    must(
                        &w,
                        &format!("{}, {fault:?} at operation {k} of the start after {death:?}", policy.name()),
                        ran,
                    );
                    all.add(&w.stats());
                }
            }
            println!(
                "{}: {ops} operations of a start after {death:?}, {} ways each, 0 lost",
                policy.name(),
                faults(0).count()
            );
        }
    });
    println!("{} lives, {} failed starts, {} acks checked", all.lives, all.failed_starts, all.acked);
    println!("tally: {}", all.tally());
}

/// A block that is refused twice, once with its neighbours and once alone, and can be read later: nothing may be lost
/// in silence because of it. What is said to be damaged is another matter.
#[test]
fn a_block_that_cannot_be_read_for_a_while_costs_nothing_in_silence() {
    let mut broken = std::collections::BTreeMap::new();
    let seeds = if std::env::var_os("CLAD_SIM_RUNS").is_some() { 3 } else { 1 };
    for (seed, policy) in (0..seeds).flat_map(|seed| policies().map(|policy| (seed, policy))) {
        for (k, more) in (0..60).flat_map(|k| [1, 2, 3, 5].map(|more| (k, more))) {
            let mut w = world(seed, policy);
            let ran = w.start().and_then(|()| w.work(70)).and_then(|()| w.die(Death::Kill));
            must(&w, "calm", ran);
            w.plan(k, Fault::Io);
            w.plan(k + more, Fault::Io);
            match w.start() {
                Err(Violation(text)) if !text.starts_with("damage") && !text.starts_with("read") => {
                    let kind: String = text.chars().filter(|c| !c.is_ascii_digit()).take(40).collect();
                    let example = || format!("seed {seed}, {}, reads {k} and {}: {text}", policy.name(), k + more);
                    broken.entry(kind).or_insert_with(|| (0, example())).0 += 1;
                }
                _ => {}
            }
        }
    }
    broken.values().for_each(|(times, example)| println!("{times} times, as with {example}"));
    assert!(broken.is_empty(), "{} kinds of loss", broken.len());
}
