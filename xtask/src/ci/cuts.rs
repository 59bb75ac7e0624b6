//! Power cuts on real kernels and real file systems: the matrix of policy × engine × file system × cache, and the table
//! of ways to write. `cargo xtask ci cuts 200` is the long run; `CLAD_CUTS_TRACE=FOLDER` checks what failed again.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::disk::{built_tests, closing_words, is_root};
use super::{Run, need};

/// States of each cell, in CI.
const STATES: u64 = 10;

pub(super) fn run(run: &mut Run) -> Result<()> {
    let states = match run.args.as_slice() {
        [] => STATES,
        [states] => states.parse().context("cargo xtask ci cuts [STATES]")?,
        more => anyhow::bail!("cargo xtask ci cuts [STATES], not {}", more.join(" ")),
    };
    ensure!(is_root()?, "only root can mount");
    ensure!(Path::new("/dev/fuse").exists(), "/dev/fuse is not there");
    need("mkfs.ext4", &["e2fsprogs"])?;
    need("losetup", &["mount", "util-linux"])?;
    need("mkfs.xfs", &["xfsprogs"])?;
    need("mkfs.btrfs", &["btrfs-progs"])?;
    need("fusermount3", &["fuse3"])?;
    need("perl", &["perl-base"])?;
    let binary = built_tests(&run.root, "cuts")?;
    if std::env::var_os("CLAD_CUTS_TRACE").is_some() {
        run.case("a kept trace", || test(&binary, "saved_trace::a_saved_trace_is_replayed", 0));
        return Ok(());
    }
    run.case("the device sees what is lost, and what is kept", || {
        test(&binary, "table::which_way_of_writing_keeps_what", states)
    });
    run.case("what was acknowledged survives power cuts", || {
        test(&binary, "matrix::what_was_acknowledged_survives", states)
    });
    Ok(())
}

/// One test, which prints as it goes: the long run takes hours.
fn test(binary: &Path, name: &str, states: u64) -> Result<()> {
    let mut command = Command::new(binary);
    command.args(["--ignored", "--exact", name, "--nocapture"]);
    command.env("CLAD_CUTS_STATES", states.to_string()).env("RUST_BACKTRACE", "0").stderr(Stdio::inherit());
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot run {command:?}"))?;
    let mut said = String::new();
    for line in std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().context("a pipe")?)) {
        let line = line?;
        if line.starts_with("cuts: ") || line.starts_with("  ") || line.starts_with('|') || line.contains("CLAD_SEED=")
        {
            println!("          {}", line.trim());
        }
        super::tally::note(&line);
        said.push_str(&line);
        said.push('\n');
    }
    let status = child.wait()?;
    ensure!(status.success() && closing_words(&said), "the test did not pass ({status}):\n{said}");
    Ok(())
}
