//! The main job under `kill -9`, as often as a change must survive it: each policy, with the seed printed.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Run;
use super::disk::{built_tests, closing_words};

/// Kills under `group_commit`; the other policies get a third. `cargo xtask ci kill 1000` says otherwise.
const KILLS_DEFAULT: u64 = 50;
const TESTS: [(&str, &str); 4] = [
    ("group_commit", "what_was_acknowledged_survives"),
    ("per_message", "what_was_acknowledged_survives_per_message"),
    ("fire_and_forget", "what_was_acknowledged_survives_fire_and_forget"),
    ("sync_file_range", "what_was_acknowledged_survives_sync_file_range"),
];

pub(super) fn run(run: &mut Run) -> Result<()> {
    let rounds = match run.args.as_slice() {
        [] => KILLS_DEFAULT,
        [rounds] => rounds.parse().context("cargo xtask ci kill [KILLS_DEFAULT]")?,
        more => anyhow::bail!("cargo xtask ci kill [KILLS_DEFAULT], not {}", more.join(" ")),
    };
    let binary = built_tests(&run.root, "kill")?;
    for (policy, test) in TESTS {
        run.case(&format!("{policy} under kill -9"), || {
            let mut command = Command::new(&binary);
            command.args([test, "--exact", "--nocapture"]).env("CLAD_KILL_ROUNDS", rounds.to_string());
            let said = super::output(&mut command)?;
            let result = said.lines().find(|line| line.starts_with("kill: ")).context("no word of how it went")?;
            println!("          {result}");
            ensure!(closing_words(&said), "the test did not run:\n{said}");
            Ok(())
        });
    }
    Ok(())
}
