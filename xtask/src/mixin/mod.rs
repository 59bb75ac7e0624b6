//! The mixin: Grafana dashboards, and recording and alert rules for Prometheus, made from what stands in this folder.
//!
//! What must hold: what is checked in below `deploy/mixin/` is what this makes; every panel has a description, a unit
//! and the variables of its dashboard; every alert has a severity, a summary, a description, and a section in the
//! runbook. That each metric exists in the daemon, with its type, is a test of the daemon's
//! (`daemon/tests/mixin.rs`); that each query gives data and each alert fires, `cargo xtask ci prometheus` shows.
//!
//! The files: `alerts` and `recording` the rules, `throughput` and `disk` the dashboards, `grafana` how a dashboard is
//! written, `yaml` how rules are, `pace` how long things take.

mod alerts;
mod disk;
mod grafana;
mod pace;
mod recording;
#[cfg(test)]
mod tests;
mod throughput;
mod yaml;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

pub(crate) use pace::Pace;

const JOB: &str = "clad";
/// Where a package puts the manual.
const RUNBOOK: &str = "file:///usr/share/doc/clad/OPERATIONS.md";

/// What a rendering may differ in.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The scrape job of clad in the Prometheus that loads the rules
    #[arg(long, default_value = JOB, value_name = "NAME")]
    pub(crate) job: String,
    /// Where the runbook is read; the alert's section follows behind a `#`
    #[arg(long, default_value = RUNBOOK, value_name = "URL")]
    pub(crate) runbook: String,
    /// Windows and waits: `real`, or `test` for a Prometheus that looks twice a second
    #[arg(long, value_enum, default_value_t = Pace::Real)]
    pub(crate) pace: Pace,
}

impl Default for Options {
    fn default() -> Self {
        Self { job: JOB.to_owned(), runbook: RUNBOOK.to_owned(), pace: Pace::Real }
    }
}

/// A rendered file: its path below the mixin's folder, and its text.
pub(crate) type File = (&'static str, String);

/// Everything that the mixin holds.
pub(crate) fn render(options: &Options) -> Vec<File> {
    vec![
        ("dashboards/clad-throughput.json", throughput::dashboard().json()),
        ("dashboards/clad-disk.json", disk::dashboard().json()),
        ("rules/clad-recording.yaml", yaml::recording(&recording::rules(options))),
        ("rules/clad-alerts.yaml", yaml::alerts(&alerts::alerts(options), &options.runbook)),
    ]
}

/// Where the mixin is.
pub(crate) fn folder(root: &Path) -> PathBuf {
    root.join("deploy/mixin")
}

/// Writes everything below a folder.
pub(crate) fn write(to: &Path, options: &Options) -> Result<()> {
    for (name, text) in render(options) {
        let path = to.join(name);
        let folder = path.parent().context("a file has a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// `cargo xtask mixin`
pub(crate) fn run(to: &Path, options: &Options) -> Result<ExitCode> {
    write(to, options)?;
    for (name, _) in render(options) {
        println!("{}", to.join(name).display());
    }
    Ok(ExitCode::SUCCESS)
}
