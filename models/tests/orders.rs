//! What threads share, in many orders: `cargo xtask ci models`, or
//! `cargo test --profile sim -p clad-models --features journal --test orders -- --nocapture`.
//!
//! Each model holds in every order that is tried, and each wrong version of the code that it is about is found.
//! `CLAD_SEED=N` tries the same orders again, `CLAD_MODEL_ORDERS=N` so many of each model, `CLAD_MODEL=WORDS` only
//! models with these words in their name.
//!
//! An order that fails ends the process, after a line that says which: its threads are left in the middle of something.
//! So a wrong version runs in a process of its own, which is this test again, by an environment variable.

#![allow(clippy::print_stdout)] // it says its seed and what it tried

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use clad_models::journal::{self, SCENES};
use clad_models::orders::{begun, repeats, tried};
use clad_models::{client, latch, permits, publication, reactor, room};

/// Orders of each model of the whole journal, and so many times more of the small ones.
const ORDERS: usize = 2_000;
const SMALL_MODEL_ORDERS_FACTOR: usize = 20;
/// Orders of each that are run twice.
const TWICE: usize = 5;
/// A wrong version must be found within so many, from this seed.
const FAULTY: usize = 4_000;
const FAULTY_SEED: u64 = 1;
/// Which wrong version this process has.
const WRONG: &str = "CLAD_MODEL_WRONG";
/// How the line of an order that failed begins.
const FAILED: &str = "FAILED ";
/// The model of `journal/src/run/waiters.rs` alone.
const PUBLICATION_MODEL: &str = "the published watermarks";
/// The model of `daemon/src/ingest/reactor/queue.rs` alone.
const REACTOR: &str = "the ingest threads";

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    number("CLAD_SEED").unwrap_or(now.as_nanos() as u64)
}

fn wanted(name: &str) -> bool {
    std::env::var("CLAD_MODEL").map_or(true, |words| name.contains(&words))
}

/// The scene that runs, for a model that takes nothing.
static SCENE: AtomicUsize = AtomicUsize::new(0);

fn scene() {
    journal::run(&SCENES[SCENE.load(Ordering::Relaxed)]);
}

/// Tries a model; an order that fails ends the process.
fn hold(name: &str, seed: u64, orders: usize, model: fn()) -> usize {
    let name = name.to_owned();
    std::panic::set_hook(Box::new(move |why| {
        let text = why.payload_as_str().unwrap_or("a panic");
        println!("{FAILED}model {name}, CLAD_SEED={seed}, order {}: {text} ({})", begun(), why.location().unwrap());
        #[allow(clippy::disallowed_methods)] // nothing of it may be dropped any more
        std::process::exit(101);
    }));
    let orders = tried(seed, orders, model);
    repeats(seed, TWICE, model);
    drop(std::panic::take_hook());
    orders
}

#[test]
fn every_order_keeps_what_must_hold() {
    if let Ok(name) = std::env::var(WRONG) {
        let (_, model, run) = wrong_versions().into_iter().find(|(wrong, ..)| *wrong == name).expect("its name");
        run(&model);
        return;
    }
    let (seed, began) = (seed(), Instant::now());
    println!("models: CLAD_SEED={seed}");
    let orders = number("CLAD_MODEL_ORDERS").map_or(ORDERS, |n| n as usize);
    let (mut models, mut all) = (0, 0);
    let mut holds = |name: &str, orders: usize, model: fn()| {
        if wanted(name) {
            let from = Instant::now();
            let tried = hold(name, seed, orders, model);
            println!("model {name}: holds in {tried} orders, {} ms", from.elapsed().as_millis());
            (models, all) = (models + 1, all + tried);
        }
    };
    for (number, its) in SCENES.iter().enumerate() {
        SCENE.store(number, Ordering::Relaxed);
        holds(its.name, orders, scene);
    }
    holds("permits while the total changes", SMALL_MODEL_ORDERS_FACTOR * orders, permits::right);
    holds("the latch", SMALL_MODEL_ORDERS_FACTOR * orders, latch::right);
    holds(PUBLICATION_MODEL, SMALL_MODEL_ORDERS_FACTOR * orders, publication::right);
    holds(REACTOR, SMALL_MODEL_ORDERS_FACTOR * orders, reactor::right);
    holds("the client's ring", orders, client::mixed);
    holds("the client's pairs", orders, client::in_pairs);
    holds("the client's flush", orders, client::looked_for);
    holds("the client's groups", orders, client::grouped);
    holds("the client's room, oldest dropped", orders, room::oldest);
    holds("the client's room, the less severe dropped", orders, room::below);
    holds("the client's room, newest dropped", orders, room::newest);
    let wrong: Vec<_> =
        wrong_versions().into_iter().filter(|(_, model, _)| wanted(model)).map(|(wrong, ..)| wrong).collect();
    let missed: Vec<_> = wrong.iter().filter(|wrong| !is_found(wrong)).collect();
    println!(
        "models: {models} models, {all} orders, 0 failed; {} of {} wrong versions found; seed {seed}, {} s",
        wrong.len() - missed.len(),
        wrong.len(),
        began.elapsed().as_secs()
    );
    println!("tally: orders={all} faults={} lost=0", wrong.len() - missed.len());
    assert!(missed.is_empty(), "wrong versions that no model finds: {missed:?}");
}

/// A wrong version, the model that must find it, and what runs that.
type Wrong = (String, String, fn(&str));

fn wrong_versions() -> Vec<Wrong> {
    let permits: Wrong = ("permits asked for in two looks".into(), "permits while the total changes".into(), |name| {
        hold(name, FAULTY_SEED, FAULTY, permits::wrong);
    });
    let latch: Wrong = ("a file without its latch".into(), "the latch".into(), |name| {
        hold(name, FAULTY_SEED, FAULTY, latch::wrong);
    });
    let unversioned: Wrong =
        ("watermarks published under a version that is there".into(), PUBLICATION_MODEL.into(), |name| {
            hold(name, FAULTY_SEED, FAULTY, publication::wrong);
        });
    let sleeps: Wrong = ("a drain that falls asleep over a record".into(), REACTOR.into(), |name| {
        hold(name, FAULTY_SEED, FAULTY, reactor::sleeps_over_a_record);
    });
    let rings: Wrong = ("a doorbell that is rung before the record is committed".into(), REACTOR.into(), |name| {
        hold(name, FAULTY_SEED, FAULTY, reactor::rings_too_early);
    });
    let trusts: Wrong = ("a drain that leaves its word as it was".into(), REACTOR.into(), |name| {
        hold(name, FAULTY_SEED, FAULTY, reactor::trusts_its_old_word);
    });
    vec![permits, latch, unversioned, sleeps, rings, trusts]
}

fn is_found(wrong: &str) -> bool {
    let test = ["--exact", "every_order_keeps_what_must_hold", "--nocapture"];
    let again = std::env::current_exe().expect("a test has a name");
    let ran = Command::new(again).args(test).env(WRONG, wrong).output().expect("it runs again");
    let said = String::from_utf8_lossy(&ran.stdout);
    let line = said.lines().find_map(|line| Some(&line[line.find(FAILED)? + FAILED.len()..]));
    match line {
        Some(line) => println!("caught {wrong}: {}", line.chars().take(150).collect::<String>()),
        None => println!("MISSED {wrong}: {} {said}", ran.status),
    }
    line.is_some()
}
