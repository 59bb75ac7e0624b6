//! The simulation, and the fuzz targets on fresh inputs.
//!
//! Invariants: a run is bounded and says its seed and its counts; what the suites show is what the tests print.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{Run, output};

/// Fresh histories; `cargo xtask ci sim 200000` says otherwise. What one of them breaks is mostly older than the change
/// under test, so most of those that every change has to pass are the same each time, and the long hunts are by hand.
const SEEDS: u64 = 2_000;
/// Histories that are the same each time.
const FIXED_HISTORIES: u64 = 4_000;
/// So many of them for one on a failing device, unless more than these are asked for: then [`FAILING_DEVICE_EVERY_LONG`].
const FAILING_DEVICE_EVERY: u64 = 40;
const FAILING_DEVICE_EVERY_LONG: u64 = 4;
/// So many histories of the journal alone for one of both sessions and the journal.
const WHOLE_SYSTEM_EVERY: u64 = 20;
/// So many of them for one fresh input of each fuzz target.
const INPUTS: u64 = 5;
/// What the targets say of themselves, each with its seed, and the end.
const FUZZED: [&str; 9] = [
    "frame: ",
    "handshake: ",
    "record: ",
    "segment: ",
    "footer: ",
    "meta: ",
    "recovery: ",
    "config: ",
    "test result: ",
];

/// Fixed seeds, every operation of small histories, and fresh seeds.
pub(super) fn run(run: &mut Run) -> Result<()> {
    let seeds = match run.args.as_slice() {
        [] => SEEDS,
        [seeds] => seeds.parse().context("cargo xtask ci sim [SEEDS]")?,
        more => anyhow::bail!("cargo xtask ci sim [SEEDS], not {}", more.join(" ")),
    };
    let root = run.root.clone();
    let tests =
        [("seeds", "fixed and fresh histories"), ("every_operation", "every operation fails"), ("scene", "scenes")];
    for (test, name) in tests {
        run.case(name, || {
            let mut command = cargo(&root);
            command.args(["test", "--profile", "sim", "--package", "clad-sim", "--test", test]);
            command.args(["--", "--nocapture"]).env("CLAD_SIM_RUNS", seeds.to_string());
            command.env("CLAD_SIM_FIXED", FIXED_HISTORIES.to_string());
            let failing_device =
                if seeds > SEEDS { seeds / FAILING_DEVICE_EVERY_LONG } else { seeds.div_ceil(FAILING_DEVICE_EVERY) };
            command.env("CLAD_SIM_FAILING", failing_device.to_string());
            let began = Instant::now();
            let said = output(&mut command)?;
            print_lines(
                &said,
                &[
                    "simulation: ",
                    "fixed: ",
                    "found: ",
                    "rot: ",
                    "found failing device: ",
                    "failing device: ",
                    "fresh: ",
                    "turnover: ",
                    "group_commit: ",
                    "per_message: ",
                    "sync_file_range: ",
                    "fire_and_forget: ",
                    "test result: ",
                ],
            )?;
            println!("          in {} s, building included", began.elapsed().as_secs());
            Ok(())
        });
    }
    run.case("fresh inputs for the fuzz targets", || {
        let mut command = cargo(&root);
        command.args(["test", "--workspace", "--test", "corpus", "--", "--nocapture"]);
        command.env("CLAD_FUZZ_RUNS", (seeds / INPUTS).max(1).to_string());
        if std::env::var_os("CLAD_SEED").is_none() {
            command.env("CLAD_SEED", "fresh");
        }
        print_lines(&output(&mut command)?, &FUZZED)
    });
    run.case("both sessions and the journal", || {
        let mut command = cargo(&root);
        // Of the whole workspace, so that crates have the features with which its tests were built.
        command.args(["test", "--workspace", "--lib", "every_receipt_is_kept"]);
        command.args(["--", "--nocapture"]).env("CLAD_WHOLE_RUNS", (seeds / WHOLE_SYSTEM_EVERY).max(1).to_string());
        print_lines(&output(&mut command)?, &["whole: "])
    });
    Ok(())
}

pub(super) fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root);
    cargo
}

/// Prints what a test said of itself; it must have said something.
fn print_lines(said: &str, starts: &[&str]) -> Result<()> {
    let lines = || said.lines().filter(|line| starts.iter().any(|start| line.starts_with(start)));
    lines().for_each(|line| println!("          {line}"));
    ensure!(lines().next().is_some(), "the tests said nothing:\n{said}");
    Ok(())
}
