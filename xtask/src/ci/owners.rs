//! Many users of one daemon, as root: what one of them takes, or leaves behind, costs nobody else.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::disk::{built_tests, is_root};
use super::{Run, output};

pub(super) fn run(run: &mut Run) -> Result<()> {
    run.no_args()?;
    ensure!(is_root()?, "only root can be other users");
    let binary = built_tests(&run.root, "owners")?;
    for (name, module) in [
        ("thousands who say BYE push nobody out, over restarts and crashes", "goodbyes::"),
        ("an id that comes back after BYE begins again", "returns::"),
        ("a user is one owner of producers by every transport, and who has few is let in", "producer_slots::"),
        ("one user takes all he can of everything, and nobody else is refused", "greed::"),
    ] {
        run.case(name, || {
            let mut command = Command::new(&binary);
            command.args(["--nocapture", "--test-threads=2", module]).env("RUST_BACKTRACE", "0");
            let said = output(&mut command)?;
            let result = said.lines().find(|line| line.starts_with("test result: ok.")).context("no result")?;
            ensure!(!result.contains(" 0 passed") && !said.contains("NOT RUN"), "nothing was shown:\n{said}");
            Ok(())
        });
    }
    Ok(())
}
