//! The mixin of `deploy/mixin/`: Grafana dashboards, and recording and alert rules for Prometheus, edited by hand.
//!
//! Invariants: the rules of the tests are those that operators load, with shorter times. What is shown of a rule in
//! seconds so holds of it in hours; names, and all else, stay. A time without a shorter one is an error.
//!
//! That dashboards and rules are complete, `tests` says. That each metric exists in the daemon, with its type, is a
//! test of the daemon's (`daemon/tests/mixin.rs`), and of the relay's (`relay/src/metrics.rs`). That each query gives data and each alert fires, `cargo xtask ci
//! prometheus` shows.

#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The files of rules, below the mixin's folder.
pub(crate) const RULES: [&str; 3] =
    ["rules/clad-recording.yaml", "rules/clad-alerts.yaml", "rules/clad-relay-alerts.yaml"];

/// Each time in the rules, and what the tests have in its place: their Prometheus scrapes and evaluates twice a second.
const SHORTER: [(&str, &str); 12] = [
    // Windows: 16 samples at least, and soon over.
    ("[5m]", "[8s]"),
    ("[15m]", "[15s]"),
    ("[1h]", "[16s]"),
    // A window, and how far ahead is looked: CladDiskFullSoon.
    ("[6h], 86400)", "[16s], 24)"),
    // Waits.
    ("for: 1m\n", "for: 1s\n"),
    ("for: 2m\n", "for: 2s\n"),
    ("for: 5m\n", "for: 2s\n"),
    ("for: 10m\n", "for: 2s\n"),
    ("for: 15m\n", "for: 2s\n"),
    ("for: 1h\n", "for: 2s\n"),
    // Ages: CladCursorBehind, CladDurableLag.
    ("clad_cursor_lag_seconds{job=\"clad\"} > 900\n", "clad_cursor_lag_seconds{job=\"clad\"} > 3\n"),
    ("clad_oldest_undurable_age_seconds{job=\"clad\"} > 30\n", "clad_oldest_undurable_age_seconds{job=\"clad\"} > 3\n"),
];
/// No time of the tests is longer, in seconds.
const LONGEST: u64 = 16;

/// Where the mixin is.
pub(crate) fn folder(root: &Path) -> PathBuf {
    root.join("deploy/mixin")
}

/// Writes the rules with the times of the tests below another folder.
pub(crate) fn write_shorter(root: &Path, to: &Path) -> Result<()> {
    for name in RULES {
        let (from, to) = (folder(root).join(name), to.join(name));
        let text = fs::read_to_string(&from).with_context(|| format!("cannot read {}", from.display()))?;
        let text = shorter(&text).with_context(|| from.display().to_string())?;
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        fs::write(&to, text).with_context(|| format!("cannot write {}", to.display()))?;
    }
    Ok(())
}

/// These rules with the times of the tests.
fn shorter(rules: &str) -> Result<String> {
    let text = SHORTER.iter().fold(rules.to_owned(), |text, (real, short)| text.replace(real, short));
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    if let Some(word) =
        words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit())).find(|word| takes_long(word))
    {
        bail!("{word} has no shorter time for the tests: give it one in xtask/src/mixin/mod.rs");
    }
    Ok(text)
}

/// Whether this is a time, as Prometheus writes it, that no test waits for. A number without a unit is none.
fn takes_long(word: &str) -> bool {
    let seconds = word.strip_suffix('s').and_then(|number| number.parse::<u64>().ok());
    !word.bytes().all(|byte| byte.is_ascii_digit()) && seconds.is_none_or(|seconds| seconds > LONGEST)
}
