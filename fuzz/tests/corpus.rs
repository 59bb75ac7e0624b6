//! Every target over its kept corpus, and over seeded mutations of it.
//!
//! The same inputs at each run, for a test of a change answers for that change; `CLAD_SEED=fresh` makes others, as the
//! suite `sim` does, `CLAD_SEED=N` those of that seed, and `CLAD_FUZZ_RUNS=N` more or fewer of them (1,000 without).
//! An input that breaks a promise is written to `target/tmp/fuzz-NAME-SEED-K` and named; kept in `fuzz/corpus/NAME/`,
//! it is a test.

#![expect(clippy::print_stdout, reason = "the seed, for who wants the same inputs again")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use clad_fuzz::{Mutator, TARGETS, Target};

const RUNS: u64 = 1_000;
/// Without `CLAD_SEED`.
const SEED: u64 = 1;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn check(name: &str) {
    let target = Target::named(name).expect("a target of that name");
    let corpus = target.corpus().expect("the corpus can be read");
    assert!(!corpus.is_empty(), "{name} has no corpus");
    for (file, bytes) in &corpus {
        run(target, bytes, || format!("the kept input {file}"));
    }
    let seed = if std::env::var("CLAD_SEED").is_ok_and(|text| text == "fresh") {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::from(d.subsec_nanos()) ^ d.as_secs() << 20)
    } else {
        number("CLAD_SEED").unwrap_or(SEED)
    };
    let runs = number("CLAD_FUZZ_RUNS").unwrap_or(RUNS);
    let threads = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let made = |k: u64, input: &[u8]| {
        run(target, input, || {
            let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}-{seed}-{k}"));
            let written = std::fs::write(&kept, input).map_or_else(|e| e.to_string(), |()| kept.display().to_string());
            format!("input {k} of CLAD_SEED={seed} ({written})")
        });
    };
    // Each thread makes all inputs, which costs little, and runs its part of them.
    thread::scope(|scope| {
        for thread in 0..threads {
            let (corpus, made) = (&corpus, &made);
            scope.spawn(move || {
                let mut mutator = Mutator::new(seed, target.max_len);
                for k in 0..runs {
                    let input = mutator.input(corpus);
                    if k % threads == thread {
                        made(k, &input);
                    }
                }
            });
        }
    });
    println!("tally: inputs={}", corpus.len() as u64 + runs);
    println!("{name}: {} kept inputs, {runs} made with CLAD_SEED={seed}", corpus.len());
}

fn run(target: &Target, input: &[u8], which: impl FnOnce() -> String) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err() {
        panic!("{} breaks on {}", target.name, which());
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check(stringify!($name)); })*

        #[test]
        fn every_target_is_run() {
            let run = [$(stringify!($name)),*];
            assert_eq!(run.as_slice(), TARGETS.iter().map(|t| t.name).collect::<Vec<_>>());
        }
    };
}

targets! { frame handshake forward record segment footer meta recovery otlp otlp_json syslog relp export_format access certificate_name config }

/// The runner itself: a target that breaks is seen.
#[test]
#[should_panic(expected = "broken breaks on")]
fn a_broken_target_is_seen() {
    let broken = Target { name: "broken", run: |data| assert!(data.is_empty()), golden: &[], max_len: 1 };
    run(&broken, b"x", || "this".to_owned());
}

/// The same seed makes the same inputs.
#[test]
fn seeds_repeat() {
    let corpus = Target::named("frame").expect("it exists").corpus().expect("it can be read");
    let inputs = |seed| {
        let mut mutator = Mutator::new(seed, 4096);
        (0..200).map(|_| mutator.input(&corpus)).collect::<Vec<_>>()
    };
    assert_eq!(inputs(5), inputs(5));
    assert_ne!(inputs(5), inputs(6));
}
