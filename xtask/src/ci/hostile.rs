//! Hostile clients in masses: what they can make the daemon hold, and that everybody else is served meanwhile. The tests have
//! those in small numbers, and lengths, syslog and RELP.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::disk::built_tests;
use super::{Run, output};

pub(super) fn run(run: &mut Run) -> Result<()> {
    run.no_args()?;
    let binary = built_tests(&run.root, "hostile")?;
    for (name, module) in [
        ("ten thousand connections", "many_connections::"),
        ("half frames, and clients that never read", "slow::"),
        ("gRPC: messages that begin and never end", "messages::"),
        (
            "gRPC: metadata, reset storms, streams, windows, answers that nobody reads, in plain and within TLS",
            "streams::",
        ),
        ("TLS: half-open handshakes, half records, noise, bombs, clients that never read", "tls::"),
    ] {
        run.case(name, || {
            let mut command = Command::new(&binary);
            command.args(["--ignored", "--nocapture", "--test-threads=2", module]).env("RUST_BACKTRACE", "0");
            let said = output(&mut command)?;
            let figures: Vec<&str> = said.lines().filter(|line| line.starts_with("hostile: ")).collect();
            figures.iter().for_each(|line| println!("          {line}"));
            said.lines().filter(|line| line.starts_with("NOT RUN")).for_each(|line| println!("          {line}"));
            let result = said.lines().find(|line| line.starts_with("test result: ok.")).context("no result")?;
            ensure!(!figures.is_empty() && !result.contains(" 0 passed"), "nothing was attacked:\n{said}");
            Ok(())
        });
    }
    Ok(())
}
