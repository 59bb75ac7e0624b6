//! The Rust client under chaos: its receipts over deaths of daemon, clients and connections.

use anyhow::Result;

use super::{Run, chaos, target};

pub(super) fn run(run: &mut Run) -> Result<()> {
    let kills = chaos::kills(run)?;
    // Built with the harness.
    let agent = target(&run.root).join("debug/clad-e2e-chaos-agent");
    chaos::chaos_with_rings(run, "Rust", &agent.display().to_string(), kills);
    Ok(())
}
