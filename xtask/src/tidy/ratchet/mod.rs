//! Counts that may only fall, and a few that may only rise: what the code and the docs weigh.
//!
//! Invariants: `xtask/ratchets.toml` has every count. One that is worse than there is a finding. One that is better by
//! more than 2 % is a finding as well, until `cargo xtask tidy --write` has written it down: so it cannot come back.
//!
//! `shape`: lines, tokens, fields, implementations, assertions. `graph`: circles between files. `words`: words that have
//! a replacement in the field's own language. `directions`: imports that are never made, however often they are counted.

mod directions;
mod graph;
mod shape;
mod words;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::code::is_test;
use super::walk::File;
use super::{Finding, docs};

/// Where the counts are written down, below the root.
const RATCHETS: &str = "xtask/ratchets.toml";
const HEADER: &str = "# Counts that may not get worse (`at_most`, `at_least`). `cargo xtask tidy --write` writes down what got better.\n\
# What counts how stands in xtask/src/tidy/ratchet/.\n\n";
/// Crates whose `src` is shipped.
const SHIPPED: [&str; 9] = [
    "proto",
    "journal",
    "shm",
    "daemon",
    "client-sdk",
    "client-sdk/tracing",
    "client-sdk/c",
    "client-sdk/python",
    "cli",
];

type Counts = BTreeMap<String, usize>;

/// All counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Ratchets {
    at_most: Counts,
    at_least: Counts,
}

/// The crate that ships this file, and its path below the crate's `src`.
fn shipped(file: &File) -> Option<(&str, &Path)> {
    let below = |name: &&str| file.path.strip_prefix(Path::new(name).join("src")).ok();
    let (name, path) = SHIPPED.iter().find_map(|name| Some((*name, below(name)?)))?;
    (file.ends_with(&[".rs"]) && !is_test(file)).then_some((name, path))
}

fn measure(files: &[File]) -> Result<Ratchets> {
    let mut all = Ratchets::default();
    shape::measure(files, &mut all)?;
    all.at_most.insert("circles between files".to_owned(), graph::circles(files)?.len());
    all.at_most.insert("imports of a higher layer inside a crate".to_owned(), graph::upward(files)?.len());
    words::measure(files, &mut all.at_most);
    all.at_most.extend(docs::measure(files).map(|(name, count)| (name.to_owned(), count)));
    Ok(all)
}

/// What is worse than it was, or better and not written down.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let finding = |what: String| Finding { path: PathBuf::from(RATCHETS), line: 0, what };
    let compared = measure(files).and_then(|now| Ok((written(files)?, now)));
    let mut findings = match compared {
        Ok((before, now)) => differences(&before, &now).into_iter().map(finding).collect(),
        Err(error) => vec![finding(format!("{error:#}"))],
    };
    findings.extend(directions::check(files));
    findings
}

fn written(files: &[File]) -> Result<Ratchets> {
    let file = files.iter().find(|file| file.path == Path::new(RATCHETS)).context("there is no such file")?;
    Ok(toml::from_str(&file.text)?)
}

fn differences(before: &Ratchets, now: &Ratchets) -> Vec<String> {
    let mut all = Vec::new();
    for (name, count) in &now.at_most {
        match before.at_most.get(name) {
            None => all.push(format!("{name}: {count}, and no count is written down")),
            Some(limit) if count > limit => all.push(format!("{name}: {count}, at most {limit}{}", words::hint(name))),
            Some(limit) if limit - count > limit / 50 => {
                all.push(format!("{name}: {count}, {limit} before: cargo xtask tidy --write"));
            }
            Some(_) => {}
        }
    }
    for (name, count) in &now.at_least {
        match before.at_least.get(name) {
            None => all.push(format!("{name}: {count}, and no count is written down")),
            Some(limit) if count < limit => all.push(format!("{name}: {count}, at least {limit}")),
            Some(limit) if count > limit => {
                all.push(format!("{name}: {count}, {limit} before: cargo xtask tidy --write"))
            }
            Some(_) => {}
        }
    }
    let gone = before.at_most.keys().filter(|name| !now.at_most.contains_key(*name));
    let gone = gone.chain(before.at_least.keys().filter(|name| !now.at_least.contains_key(*name)));
    all.extend(gone.map(|name| format!("{name} is not counted any more: take it out")));
    all
}

/// `cargo xtask tidy --write`: writes down what got better, and what is counted for the first time.
pub(super) fn write(root: &Path, files: &[File]) -> Result<()> {
    let (before, mut now) = (written(files).unwrap_or_default(), measure(files)?);
    for (name, count) in &mut now.at_most {
        *count = before.at_most.get(name).copied().unwrap_or(*count).min(*count);
    }
    for (name, count) in &mut now.at_least {
        *count = before.at_least.get(name).copied().unwrap_or(*count).max(*count);
    }
    let text = format!("{HEADER}{}", toml::to_string(&now)?);
    ensure!(toml::from_str::<Ratchets>(&text)? == now, "what is written is not what was counted");
    Ok(std::fs::write(root.join(RATCHETS), text)?)
}

/// `cargo xtask tidy --circles`: what ties each circle, and what is imported against the layers.
pub(super) fn print_circles(files: &[File]) -> Result<()> {
    for circle in graph::circles(files)? {
        println!("circle of {} files:", circle.files.len());
        for (from, to, names) in circle.ties {
            println!("  {from} -> {to}: {}", names.join(", "));
        }
    }
    for (from, to, names) in graph::upward(files)? {
        println!("upward: {from} -> {to}: {}", names.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(most: usize, least: usize) -> Ratchets {
        let one = |name: &str, count| Counts::from([(name.to_owned(), count)]);
        Ratchets { at_most: one("lines", most), at_least: one("assertions", least) }
    }

    #[test]
    fn what_gets_worse_is_found_and_what_gets_better_is_to_be_written_down() {
        let before = counts(1000, 10);
        assert!(differences(&before, &before).is_empty());
        assert!(differences(&before, &counts(980, 10)).is_empty(), "within 2 %");
        assert_eq!(differences(&before, &counts(1001, 10)), ["lines: 1001, at most 1000"]);
        assert_eq!(differences(&before, &counts(1000, 9)), ["assertions: 9, at least 10"]);
        assert_eq!(differences(&before, &counts(979, 11)).len(), 2);
        assert_eq!(differences(&Ratchets::default(), &before).len(), 2);
        assert_eq!(differences(&before, &Ratchets::default()).len(), 2);
    }

    #[test]
    fn only_what_is_shipped_counts_as_such() {
        for (path, name) in [
            ("journal/src/a/b.rs", Some("journal")),
            ("client-sdk/src/lib.rs", Some("client-sdk")),
            ("client-sdk/tracing/src/lib.rs", Some("client-sdk/tracing")),
            ("client-sdk/c/src/ticket.rs", Some("client-sdk/c")),
            ("client-sdk/tracing/examples/a.rs", None),
            ("journal/src/a/tests.rs", None),
            ("journal/tests/a.rs", None),
            ("sim/src/a.rs", None),
            ("proto/src/a.proto", None),
        ] {
            assert_eq!(shipped(&File::new(path, "")).map(|(name, _)| name), name, "{path}");
        }
    }
}
