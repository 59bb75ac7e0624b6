//! The chaos harness (`e2e/tests/chaos/`) over the agent of a language: one way for the suites of all clients.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::disk::{built_tests, closing_words};
use super::{Run, output};

/// Deaths of daemon, clients and connections.
const KILLS_DEFAULT: u64 = 200;
const TEST: &str = "every_receipt_is_kept";

/// The deaths that a suite is to make: `cargo xtask ci SUITE [KILLS]`.
pub(super) fn kills(run: &Run) -> Result<u64> {
    match run.args.as_slice() {
        [] => Ok(KILLS_DEFAULT),
        [kills] => kills.parse().with_context(|| format!("a number of kills, not {kills}")),
        more => bail!("[KILLS], not {}", more.join(" ")),
    }
}

/// Runs an agent (a program with its arguments, between spaces) over TCP and the Unix socket.
pub(super) fn chaos(run: &mut Run, name: &str, agent: &str, kills: u64) {
    one(run, name, &[("CLAD_AGENT", agent)], kills);
}

/// As [`chaos`], and over rings of shared memory.
pub(super) fn chaos_with_rings(run: &mut Run, name: &str, agent: &str, kills: u64) {
    one(run, name, &[("CLAD_AGENT", agent), ("CLAD_AGENT_RINGS", "1")], kills);
}

/// The case of a client.
pub(super) fn case(name: &str) -> String {
    format!("every receipt is kept while daemon, clients and connections die: {name}")
}

fn one(run: &mut Run, name: &str, variables: &[(&str, &str)], kills: u64) {
    let root = run.root.clone();
    run.case(&case(name), || {
        let mut command = Command::new(built_tests(&root, "chaos")?);
        command.args([TEST, "--exact", "--nocapture"]).env("CLAD_CHAOS_KILLS", kills.to_string());
        let said = output(command.env_remove("CLAD_AGENT_RINGS").envs(variables.iter().copied()))?;
        let result = said.lines().find_map(|line| line.find("chaos: seed ").map(|at| &line[at..]));
        println!("          {}", result.context("no word of how it went")?);
        ensure!(closing_words(&said), "the test did not run:\n{said}");
        Ok(())
    });
}
