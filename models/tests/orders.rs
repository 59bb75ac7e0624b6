//! What threads share, in many orders: `cargo xtask ci models`, or
//! `cargo test -p clad-models --features journal --test orders -- --nocapture`.
//!
//! Each model holds in every order that is tried, and each wrong version of the code that it is about is found.
//! `CLAD_SEED=N` tries the same orders again, `CLAD_MODEL_ORDERS=N` so many of each model, `CLAD_MODEL=WORDS` only
//! models with these words in their name.

#![allow(clippy::print_stdout)] // it says its seed and what it tried

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use clad_journal::{Fault, Faults};
use clad_models::journal::{self, SCENES};
use clad_models::orders::{repeats, tried};
use clad_models::{latch, permits};

/// Orders of each model of the whole journal, and so many times more of the small ones.
const ORDERS: usize = 2_000;
const SMALL: usize = 20;
/// Orders of each that are run twice.
const TWICE: usize = 5;
/// A wrong version must be found within so many.
const FAULTY: usize = 20_000;

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
/// Orders begun.
static BEGUN: AtomicUsize = AtomicUsize::new(0);
/// The fault in it: none, or a number in [`Fault::OF_THREADS`].
static FAULT: AtomicUsize = AtomicUsize::new(usize::MAX);

fn scene() {
    BEGUN.fetch_add(1, Ordering::Relaxed);
    let fault = Fault::OF_THREADS.get(FAULT.load(Ordering::Relaxed));
    journal::run(
        &SCENES[SCENE.load(Ordering::Relaxed)],
        fault.map_or_else(Faults::default, |fault| Faults::only(*fault)),
    );
}

fn wrong_permits() {
    BEGUN.fetch_add(1, Ordering::Relaxed);
    permits::wrong();
}

fn unlatched() {
    BEGUN.fetch_add(1, Ordering::Relaxed);
    latch::wrong();
}

/// The model that finds a wrong version of the journal.
fn finds(fault: Fault) -> &'static str {
    match fault {
        Fault::TurnNotPassedOn => "per_message, a ring, a full segment",
        Fault::RotationForgotten => "closed meanwhile, a ring",
        _ => "group_commit, threads, rotations",
    }
}

#[test]
fn every_order_keeps_what_must_hold() {
    let (seed, began) = (seed(), Instant::now());
    println!("models: CLAD_SEED={seed}");
    let orders = number("CLAD_MODEL_ORDERS").map_or(ORDERS, |n| n as usize);
    let (mut models, mut all) = (0, 0);
    let mut hold = |name: &str, orders: usize, model: fn()| {
        if wanted(name) {
            let from = Instant::now();
            match tried(seed, orders, model) {
                Ok(tried) => {
                    println!("model {name}: holds in {tried} orders, {} ms", from.elapsed().as_millis());
                    (models, all) = (models + 1, all + tried);
                }
                Err(why) => panic!("model {name}, CLAD_SEED={seed}: {why}"),
            }
        }
    };
    for (number, its) in SCENES.iter().enumerate() {
        SCENE.store(number, Ordering::Relaxed);
        hold(its.name, orders, scene);
        if let Err(why) = repeats(seed, TWICE, scene) {
            panic!("model {}, CLAD_SEED={seed}: the same order is not the same again: {why}", its.name);
        }
    }
    hold("permits while the total changes", SMALL * orders, permits::right);
    hold("the latch", SMALL * orders, latch::right);
    let (caught, wrong) = find_wrong_versions();
    println!(
        "models: {models} models, {all} orders, 0 failed; {caught} of {wrong} wrong versions found; seed {seed}, {} s",
        began.elapsed().as_secs()
    );
    assert_eq!(caught, wrong, "a wrong version that no model finds");
}

/// So many are found, of so many.
fn find_wrong_versions() -> (usize, usize) {
    std::panic::set_hook(Box::new(|_| {})); // they are meant to fail
    let mut found = Vec::new();
    let counted = |model: fn()| {
        BEGUN.store(0, Ordering::Relaxed);
        let outcome = tried(1, FAULTY, model);
        (outcome, BEGUN.load(Ordering::Relaxed))
    };
    for (number, fault) in Fault::OF_THREADS.iter().enumerate() {
        let name = finds(*fault);
        FAULT.store(number, Ordering::Relaxed);
        SCENE.store(SCENES.iter().position(|scene| scene.name == name).expect("a model's name"), Ordering::Relaxed);
        found.push((format!("{fault:?}"), name, counted(scene)));
    }
    FAULT.store(usize::MAX, Ordering::Relaxed);
    found.push(("permits asked for in two looks".into(), "permits", counted(wrong_permits)));
    found.push(("a file without its latch".into(), "the latch", counted(unlatched)));
    drop(std::panic::take_hook());
    for (wrong, model, (outcome, begun)) in &found {
        match outcome {
            Ok(orders) => println!("MISSED {wrong}: model {model} holds in {orders} orders"),
            Err(why) => {
                println!("caught {wrong}: model {model}, order {begun}: {}", why.chars().take(90).collect::<String>());
            }
        }
    }
    (found.iter().filter(|(.., (outcome, _))| outcome.is_err()).count(), found.len())
}
