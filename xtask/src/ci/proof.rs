//! `cargo xtask proof quick` and `cargo xtask proof slow`: every suite that tries to break the promise, and one closing line.
//!
//! Invariants: the closing line counts what the tests themselves say they tried; it ends in `0 lost` only where every
//! suite passed, and nothing that is counted is zero there. With `CLAD_PROOF_PART=N` each suite does the N-th part of what it
//! would do, and the line says so: whether all of it runs to its end is known before the hours are spent.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::{Run, SUITES, output, sim, tally};

/// A suite, with what stands behind its name.
type Call = (&'static str, &'static [&'static str]);

/// Some minutes, without root.
const QUICK: &[Call] =
    &[("faults", &["whole"]), ("sim", &["2000"]), ("models", &[]), ("kill", &["12"]), ("hostile", &[])];
const QUICK_INPUTS: u64 = 10_000;
/// Hours, as root.
const SLOW: &[Call] = &[
    ("faults", &["whole"]),
    ("sim", &["200000"]),
    ("models", &["100000"]),
    ("rings", &[]),
    ("kill", &["500"]),
    ("hostile", &[]),
    ("disk", &[]),
    ("cuts", &["200"]),
];
const SLOW_INPUTS: u64 = 1_000_000;
/// How long the slow device of the suite `disk` takes to flush then, in seconds.
const SLOW_FLUSH_SECONDS: &str = "30";
/// No suite shows anything with less.
const ROUNDS_MIN: u64 = 12;
/// What each of them must have tried.
const TRIED: [&str; 5] = ["states", "kills", "faults", "inputs", "attacks"];

pub(crate) fn run(root: &Path, which: &str) -> Result<ExitCode> {
    let (calls, inputs, flush) = match which {
        "quick" => (QUICK, QUICK_INPUTS, "0"),
        "slow" => (SLOW, SLOW_INPUTS, SLOW_FLUSH_SECONDS),
        other => bail!("cargo xtask proof quick|slow, not {other}"),
    };
    let part = match std::env::var("CLAD_PROOF_PART") {
        Ok(part) => part.parse::<u64>().context("CLAD_PROOF_PART is a number")?.max(1),
        Err(_) => 1,
    };
    let of = |all: u64| (all / part).max(ROUNDS_MIN.min(all));
    let inputs = of(inputs);
    let optimised = which == "slow";
    let began = Instant::now();
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    for (name, args) in calls {
        let scaled = |arg: &&str| arg.parse().map_or_else(|_| (*arg).to_owned(), |all| of(all).to_string());
        let args: Vec<String> = args.iter().map(scaled).collect();
        println!("==== {name} {}", args.join(" "));
        let since = Instant::now();
        let mut suite =
            Run { root: root.to_owned(), args, passed: 0, failed: 0, failure_lines: Vec::new(), flush_seconds: flush };
        let run = SUITES.iter().find(|suite| suite.name == *name).map(|suite| suite.run);
        let ended = run.map_or_else(|| Err(anyhow::anyhow!("there is no suite {name}")), |run| run(&mut suite));
        if let Err(error) = ended {
            suite.case("the suite itself", || Err(error));
        }
        let good = suite.failed == 0 && suite.passed > 0;
        suite.failure_lines.iter().for_each(|line| println!("  FAILED  {line}"));
        println!("{name}: {} passed, {} failed, {} s", suite.passed, suite.failed, since.elapsed().as_secs());
        if good { &mut passed } else { &mut failed }.push(*name);
    }
    println!("==== fuzz {inputs}");
    let since = Instant::now();
    match fuzz(root, inputs, optimised) {
        Ok(()) => passed.push("fuzz"),
        Err(error) => {
            println!("  FAILED  {error:#}");
            failed.push("fuzz");
        }
    }
    println!("fuzz: {} s", since.elapsed().as_secs());
    let untried: Vec<_> = TRIED.into_iter().filter(|name| tally::of(name) == 0).collect();
    let good = failed.is_empty() && untried.is_empty() && tally::of("lost") == 0;
    let verdict = match good {
        true => tally::words(),
        false => format!("FAILED: {} (nothing of: {}); {}", failed.join(" "), untried.join(" "), tally::words()),
    };
    let which = if part == 1 { which.to_owned() } else { format!("{which}, the {part}th part") };
    println!("proof {which}: {} suites passed: {verdict}; {} s", passed.len(), began.elapsed().as_secs());
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every fuzz target over its kept inputs and so many made ones.
fn fuzz(root: &Path, inputs: u64, optimised: bool) -> Result<()> {
    let mut command = sim::cargo(root);
    command.args(["test", "--package", "clad-fuzz", "--test", "corpus"]);
    if optimised {
        command.arg("--release");
    }
    command.args(["--", "--nocapture"]);
    if std::env::var_os("CLAD_SEED").is_none() {
        command.env("CLAD_SEED", "fresh"); // the tests name it where a promise breaks
    }
    let said = output(command.env("CLAD_FUZZ_RUNS", inputs.to_string()))?;
    let tried = || said.lines().filter(|line| line.contains(" kept inputs, "));
    tried().for_each(|line| println!("          {line}"));
    ensure!(said.contains("test result: ok. ") && tried().next().is_some(), "the tests said nothing:\n{said}");
    Ok(())
}
