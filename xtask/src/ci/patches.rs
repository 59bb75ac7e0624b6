//! Deliberate faults of the daemon and the client: each is a patch of the code as it is, in a copy of the workspace.
//!
//! Invariants: a patch fits exactly one place (so that none gets lost when the code changes); with all of them in place and
//! none turned on the tests pass, and with one turned on exactly those tests fail that are named for it in docs/TESTING.md.
//! The journal's own faults are switches (`journal/src/faults.rs`), because there are histories to be searched for each of
//! them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Run, target};

/// A wrong version. In what is `wrong`, [`ON`] asks whether it is turned on: without that it does what is right.
pub(super) struct Patch {
    pub(super) name: &'static str,
    pub(super) file: &'static str,
    pub(super) right: &'static str,
    pub(super) wrong: &'static str,
}

/// Tests that patches are run against.
struct Tests {
    package: &'static str,
    /// Those with this in their names.
    filter: &'static str,
    patches: &'static [Patch],
}

/// Stands for the question whether this patch is turned on.
const ON: &str = "ON!";
/// Names the patch that is turned on.
const VARIABLE: &str = "WRONG_ON_PURPOSE";

const SESSION: &str = "daemon/src/ingest/session.rs";
const RING: &str = "daemon/src/ingest/rings/ring.rs";
const IN_FLIGHT: &str = "daemon/src/ingest/rings/in_flight.rs";
const CYCLE: &str = "daemon/src/ingest/rings/cycle.rs";

/// The faults. What is wrong with each, and what catches it, stands in docs/TESTING.md.
const ALL: &[Tests] = &[
    Tests { package: "clad-client", filter: "session::tests::whole", patches: SESSIONS },
    Tests { package: "clad-client", filter: "ring::tests", patches: CLIENT_RINGS },
    Tests { package: "clad", filter: "rings::tests", patches: RINGS },
];

const SESSIONS: &[Patch] = &[
    Patch {
        name: "AnsweredOutOfOrder",
        file: SESSION,
        right: "_ if mark >= self.end => self.appends,",
        wrong: "_ if ON! && mark > self.end - self.records() => self.appends,\n_ if mark >= self.end => self.appends,",
    },
    Patch {
        name: "DurableByTheMarkOfWritten",
        file: SESSION,
        right: "AckLevel::Durable, m.durable)",
        wrong: "AckLevel::Durable, if ON! { m.written } else { m.durable })",
    },
    Patch {
        name: "FailureForgotten",
        file: SESSION,
        right: "let failed = w.failures < m.failures;",
        wrong: "let failed = if ON! { w.failures > m.failures } else { w.failures < m.failures };",
    },
    Patch {
        name: "ShareReleasedEarly",
        file: SESSION,
        right: "(unwritten.end <= m.written ||",
        wrong: "(unwritten.end <= (if ON! { m.received } else { m.written }) ||",
    },
    Patch {
        name: "ResentUnderAnotherSequence",
        file: "client-sdk/src/session/send.rs",
        right: "let seq = self.base.wrapping_add(entry.index);",
        wrong: "let seq = if ON! && entry.was_sent { link.expected } else { self.base.wrapping_add(entry.index) };",
    },
    Patch {
        name: "AcceptedTakenForWritten",
        file: "client-sdk/src/session/answers.rs",
        right: "level <= AckLevel::Received\n",
        wrong: "level <= (if ON! { AckLevel::Written } else { AckLevel::Received })\n",
    },
    Patch {
        name: "MarksOfAnotherEpochBelieved",
        file: "client-sdk/src/session/resume.rs",
        right: "        if same_epoch {\n            self.release",
        wrong: "        if same_epoch || ON! && self.frontier > 0 {\n            self.release",
    },
];

const CLIENT_RINGS: &[Patch] = &[Patch {
    name: "PostedBeforeItIsCommitted",
    file: "client-sdk/src/ring/handle.rs",
    right: "            Err(_) => Posted::Wait(append, claim),",
    wrong: "            Err(_) if ON! && level == AckLevel::Posted => {\n\
            \u{20}   self.resolve(claim, count, Ok(self.receipt(count, level)));\n\
            \u{20}   Posted::Done\n\
            }\n\
            Err(_) => Posted::Wait(append, claim),",
}];

const RINGS: &[Patch] = &[
    Patch {
        name: "SpaceBackBeforeWritten",
        file: RING,
        right: "        self.again = 0; // counted again as it is taken again",
        wrong: "        if ON! {\n            self.drain.release(self.drain.next());\n        }\n\
            \u{20}       self.again = 0; // counted again as it is taken again",
    },
    Patch {
        name: "RingsForgetAFailure",
        file: IN_FLIGHT,
        right: "|out: &&Run| out.failures == watermarks.failures && ",
        wrong: "|out: &&Run| (ON! || out.failures == watermarks.failures) && ",
    },
    Patch {
        name: "RingsReportDurableByWritten",
        file: IN_FLIGHT,
        right: "self.reached(self.durable, watermarks, watermarks.durable)",
        wrong: "self.reached(self.durable, watermarks, if ON! { watermarks.written } else { watermarks.durable })",
    },
    Patch {
        name: "NotTakenAgain",
        file: RING,
        right: "        self.drain.rewind();",
        wrong: "        if !ON! {\n            self.drain.rewind();\n        }",
    },
    Patch {
        name: "DrainedAsAnotherProducer",
        file: "daemon/src/ingest/rings/give.rs",
        right: "Producer::begin(self.journal.clone(), note.producer, ",
        wrong: "Producer::begin(self.journal.clone(), if ON! { ProducerId::from_bytes([7; 16]) } else { note.producer }, ",
    },
    Patch {
        name: "TimeTakenAgainForEachRing",
        file: CYCLE,
        right: "        let mut frontier = before;\n\
            \u{20}       for ring in rings.iter_mut() {\n\
            \u{20}           frontier = frontier.min(ring.look(before));\n\
            \u{20}       }\n",
        wrong: "        let anew = ON!;\n\
            \u{20}       let (mut before, mut frontier) = (before, if anew { u64::MAX } else { before });\n\
            \u{20}       for ring in rings.iter_mut() {\n\
            \u{20}           before = if anew { clad_shm::clock::now_before_looking() } else { before };\n\
            \u{20}           let upto = ring.look(before);\n\
            \u{20}           frontier = frontier.min(if anew && upto == before { u64::MAX } else { upto });\n\
            \u{20}       }\n\
            \u{20}       frontier = frontier.min(before);\n",
    },
    Patch {
        name: "SocketsDoNotWait",
        file: "daemon/src/ingest/rings/mod.rs",
        right: "        if !shared.registry.is_behind(of) {\n            return Ok(());",
        wrong: "        if ON! || !shared.registry.is_behind(of) {\n            return Ok(());",
    },
    Patch {
        name: "CutOffRingTakenAgain",
        file: RING,
        right: "self.nonsense.is_some_and(|append| append <= self.drain.next())",
        wrong: "!ON! && self.nonsense.is_some_and(|append| append <= self.drain.next())",
    },
    Patch {
        name: "OneProducerHoldsAll",
        file: CYCLE,
        right: "match why.is_for_all() {",
        wrong: "match ON! || why.is_for_all() {",
    },
    Patch {
        name: "WhatWaitsIsOvertaken",
        file: CYCLE,
        right: "stopped[taken.ring] = true;",
        wrong: "stopped[taken.ring] = !ON!;",
    },
];

pub(super) fn run(run: &mut Run) -> Result<()> {
    let root = run.root.clone();
    // The same folder each time: cargo knows what it built there, and does not keep it again for each run.
    let copied = target(&root).join("patched");
    clear(&copied)?;
    fs::create_dir_all(&copied).context("no folder")?;
    copy(&root, &copied)?;
    for patch in ALL.iter().flat_map(|tests| tests.patches) {
        let path = copied.join(patch.file);
        fs::write(&path, patched(&fs::read_to_string(&path)?, patch)?)?;
    }
    for tests in ALL {
        run.case(&format!("without a fault {} of {} pass", tests.filter, tests.package), || {
            let (failed, said) = tests.run(&root, &copied, "none")?;
            ensure!(failed.is_empty() && said.contains("test result: ok. "), "they fail as it is:\n{said}");
            Ok(())
        });
        for patch in tests.patches {
            run.case(&format!("{} is caught", patch.name), || caught(&root, &copied, tests, patch));
        }
    }
    clear(&copied)
}

fn clear(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).context("an old copy cannot be removed"),
        _ => Ok(()),
    }
}

fn caught(root: &Path, copied: &Path, tests: &Tests, patch: &Patch) -> Result<()> {
    let wanted = named(&docs(root)?, patch.name)?;
    let (failed, said) = tests.run(root, copied, patch.name)?;
    ensure!(!failed.is_empty(), "nothing catches it:\n{said}");
    ensure!(failed == wanted, "it is caught by {}; docs/TESTING.md names {}", failed.join(", "), wanted.join(", "));
    println!("          caught {}: {}", patch.name, failed.join(", "));
    println!("tally: faults=1");
    super::tally::note("tally: faults=1");
    Ok(())
}

fn docs(root: &Path) -> Result<String> {
    fs::read_to_string(root.join("docs/TESTING.md")).context("docs/TESTING.md")
}

/// The tests that the table names for a patch, in order: what is quoted in the last cell of its row.
fn named(docs: &str, patch: &str) -> Result<Vec<String>> {
    let row = docs.lines().find(|line| line.starts_with(&format!("| `{patch}` | patch |")));
    let row = row.with_context(|| format!("{patch} is not in the table"))?;
    let (_, cell) = row.trim_end_matches(" |").rsplit_once(" | ").context("a row has cells")?;
    let mut names: Vec<String> = cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    names.sort();
    ensure!(!names.is_empty(), "no test is named for {patch}");
    Ok(names)
}

/// The text with the one place that a patch fits changed.
pub(super) fn patched(text: &str, patch: &Patch) -> Result<String> {
    let places = text.matches(patch.right).count();
    ensure!(places == 1, "{} fits {places} places in {}, not one", patch.name, patch.file);
    let on = format!("std::env::var(\"{VARIABLE}\").is_ok_and(|wrong| wrong == \"{}\")", patch.name);
    Ok(text.replace(patch.right, &patch.wrong.replace(ON, &on)))
}

impl Tests {
    /// The tests that fail with a patch turned on, in order, by the last words of their names; and what was said.
    fn run(&self, root: &Path, copied: &Path, patch: &str) -> Result<(Vec<String>, String)> {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(copied).env("CARGO_TARGET_DIR", target(root)).env("CARGO_INCREMENTAL", "0");
        command.args(["test", "--offline", "--package", self.package, "--lib", self.filter]).env(VARIABLE, patch);
        let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        ensure!(said.contains("test result: "), "no test ran:\n{said}");
        let failed = said.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        let mut failed: Vec<String> =
            failed.map(|name| name.rsplit_once("::").map_or(name, |(_, name)| name).to_owned()).collect();
        failed.sort();
        Ok((failed, said))
    }
}

/// The workspace without what was built and what git keeps.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if name == "target" || name == ".git" {
            continue;
        }
        let into = to.join(&name);
        if kind.is_dir() {
            fs::create_dir(&into)?;
            copy(&entry.path(), &into)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), &into)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without compiling anything: that a patch has lost its place is known in `cargo test`.
    #[test]
    fn every_patch_fits_one_place_and_is_in_the_table_with_tests_that_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let docs = docs(root).unwrap();
        for patch in ALL.iter().flat_map(|tests| tests.patches) {
            let text = fs::read_to_string(root.join(patch.file)).unwrap();
            patched(&text, patch).unwrap();
            assert!(patch.wrong.contains(ON), "{} is always on", patch.name);
            for test in named(&docs, patch.name).unwrap() {
                let source = format!("fn {test}()");
                assert!(
                    is_somewhere(&root.join("daemon/src"), &source)
                        || is_somewhere(&root.join("client-sdk/src"), &source),
                    "{}: {test}",
                    patch.name
                );
            }
        }
        let rows = docs.lines().filter(|line| line.contains("` | patch |")).count();
        let patches: usize = ALL.iter().map(|tests| tests.patches.len()).sum();
        assert_eq!(rows, patches, "docs/TESTING.md lists patches that are not there");
    }

    fn is_somewhere(folder: &Path, text: &str) -> bool {
        fs::read_dir(folder).unwrap().any(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() { is_somewhere(&path, text) } else { fs::read_to_string(&path).unwrap().contains(text) }
        })
    }
}
