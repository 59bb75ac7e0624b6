//! Rings in shared memory, for longer than `cargo test` has time for.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Run, output, target};

/// `cargo xtask ci rings 1000000`: so many histories of hostile clients.
pub(super) fn run(run: &mut Run) -> Result<()> {
    let runs = match run.args.as_slice() {
        [] => 2_500,
        [runs] => runs.parse::<u32>().context("cargo xtask ci rings [HISTORIES]")?,
        more => anyhow::bail!("cargo xtask ci rings [HISTORIES], not {}", more.join(" ")),
    };
    let root = run.root.clone();
    let cargo = |args: &[&str]| {
        let mut cargo = super::sim::cargo(&root);
        cargo.args(args).args(["--package", "clad-shm"]);
        cargo
    };
    let e2e = |test: &[&str]| {
        let mut cargo = super::sim::cargo(&root);
        cargo.args(["test", "--workspace", "--test", "rings"]).args(test);
        cargo
    };
    run.case("a release build with stop points does not compile", || {
        let refused = cargo(&["check", "--quiet", "--release", "--features", "stop-points"]).output()?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(!refused.status.success() && said.contains("must not have it"), "it compiles: {said}");
        Ok(())
    });
    run.case("a program with stop points dies at its stop point, and what it had committed is there", || {
        passed(&mut cargo(&["test", "--features", "stop-points", "--test", "stop_points"]), 2)
    });
    run.case("a thread that stops in the middle of a push holds up nobody of its process", || {
        let mut command = e2e(&["--features", "clad-e2e/stop-points", "--", "a_thread_that_stops"]);
        passed(super::set_apart(&mut command, &root, &target(&root).join("stop-points")), 1)
    });
    run.case("a process with another clock (a time namespace) logs as any other", || {
        passed(&mut e2e(&["--", "--ignored", "a_process_with_another_clock"]), 1)
    });
    run.case(
        "load by rings in turn with load by a socket: each acked record is in the log once, at its offset",
        || {
            super::build(&root, "clad")?;
            let clactl = super::build(&root, "clactl")?;
            for records in ["1", "64", "1024"] {
                let mut clactl = Command::new(&clactl);
                clactl.args([
                    "bench",
                    "--spawn",
                    "--transport",
                    "shm",
                    "--compare",
                    "unix",
                    "--rounds",
                    "2",
                    "-o",
                    "json",
                ]);
                clactl.args(["--duration", "0.5", "--connections", "4", "--in-flight", "16", "--ack", "written"]);
                clactl.args(["--records-per-append", records, "--dir"]).arg(target(&root));
                let said = output(&mut clactl)?;
                let report: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
                ensure!(report["acked"].as_u64() > Some(0) && report["verified"] == report["acked"], "{said}");
            }
            Ok(())
        },
    );
    run.case("hostile clients: no panic, no call without an end, nobody else's ring", || {
        let mut command = cargo(&["test", "--profile", "sim", "--lib"]);
        command.env("CLAD_SHM_RUNS", runs.to_string()).args(["--", "tests::hostile"]);
        passed(&mut command, 7)
    });
    run.case("the models, deeper", || {
        let mut command = cargo(&["test", "--profile", "sim", "--lib"]);
        command.env("CLAD_SHM_PREEMPTIONS", "5").args(["--", "tests::model"]);
        passed(&mut command, 10)
    });
    Ok(())
}

/// Runs tests, of which there must be so many.
fn passed(command: &mut Command, count: u32) -> Result<()> {
    let said = output(command)?;
    ensure!(said.contains(&format!("{count} passed; 0 failed; 0 ignored")), "not {count} tests passed:\n{said}");
    Ok(())
}
