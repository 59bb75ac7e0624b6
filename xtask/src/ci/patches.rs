//! Deliberate faults of the daemon and the client: each is a patch of the code as it is, in a copy of the workspace.
//!
//! What must hold: without a patch the tests pass; a patch fits exactly one place (so that none gets lost when the code
//! changes), compiles, and is caught by a test, which is named. The journal's own faults are switches
//! (`journal/src/faults.rs`), because there are histories to be searched for each of them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Run, target};

/// A wrong version.
pub(super) struct Patch {
    pub(super) name: &'static str,
    pub(super) file: &'static str,
    pub(super) right: &'static str,
    pub(super) wrong: &'static str,
}

const DAEMON: &str = "daemon/src/ingest/session.rs";

/// The faults. What is wrong with each stands in docs/TESTING.md.
pub(super) const PATCHES: &[Patch] = &[
    Patch {
        name: "AnsweredOutOfOrder",
        file: DAEMON,
        right: "_ if mark >= self.end => self.appends,",
        wrong: "_ if mark > self.end - self.records() => self.appends,",
    },
    Patch {
        name: "DurableByTheMarkOfWritten",
        file: DAEMON,
        right: "AckLevel::Durable, m.durable)",
        wrong: "AckLevel::Durable, m.written)",
    },
    Patch {
        name: "FailureForgotten",
        file: DAEMON,
        right: "let failed = w.failures < m.failures;",
        wrong: "let failed = w.failures > m.failures;",
    },
    Patch {
        name: "ShareReleasedEarly",
        file: DAEMON,
        right: "(held.end <= m.written ||",
        wrong: "(held.end <= m.received ||",
    },
    Patch {
        name: "ResentUnderAnotherSequence",
        file: "client-sdk/src/session/send.rs",
        right: "let seq = self.base.wrapping_add(entry.index);",
        wrong: "let seq = if entry.was_sent { link.expected } else { self.base.wrapping_add(entry.index) };",
    },
    Patch {
        name: "AcceptedTakenForWritten",
        file: "client-sdk/src/session/answers.rs",
        right: "level <= AckLevel::Received\n",
        wrong: "level <= AckLevel::Written\n",
    },
    Patch {
        name: "MarksOfAnotherEpochBelieved",
        file: "client-sdk/src/session/resume.rs",
        right: "        if same_epoch {\n            self.release",
        wrong: "        if same_epoch || self.frontier > 0 {\n            self.release",
    },
];

pub(super) fn run(run: &mut Run) -> Result<()> {
    let root = run.root.clone();
    let folder = tempfile::Builder::new().prefix("patched-").tempdir_in(target(&root)).context("no folder")?;
    copy(&root, folder.path())?;
    run.case("without a patch the tests pass", || {
        let (good, said) = tests(&root, folder.path())?;
        ensure!(good, "they fail as it is:\n{said}");
        Ok(())
    });
    for patch in PATCHES {
        run.case(&format!("{} is caught", patch.name), || caught(&root, folder.path(), patch));
    }
    Ok(())
}

fn caught(root: &Path, copy: &Path, patch: &Patch) -> Result<()> {
    let path = copy.join(patch.file);
    let text = fs::read_to_string(&path)?;
    fs::write(&path, patched(&text, patch)?)?;
    let ran = tests(root, copy);
    fs::write(&path, &text)?;
    let (good, said) = ran?;
    ensure!(!said.contains("could not compile"), "it does not compile:\n{said}");
    let failed: Vec<&str> = said.lines().filter_map(|l| l.strip_prefix("test ")?.strip_suffix(" ... FAILED")).collect();
    ensure!(!good && !failed.is_empty(), "nothing catches it:\n{said}");
    println!("          caught {}: {}", patch.name, failed.join(", "));
    println!("tally: faults=1");
    super::tally::note("tally: faults=1");
    Ok(())
}

/// The text with the one place that a patch fits changed.
pub(super) fn patched(text: &str, patch: &Patch) -> Result<String> {
    let places = text.matches(patch.right).count();
    ensure!(places == 1, "{} fits {places} places in {}, not one", patch.name, patch.file);
    Ok(text.replace(patch.right, patch.wrong))
}

/// Whether the tests pass, and what they said.
fn tests(root: &Path, copy: &Path) -> Result<(bool, String)> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(copy).env("CARGO_TARGET_DIR", target(root)).env("CARGO_INCREMENTAL", "0");
    command.args(["test", "--offline", "--package", "clad-client", "--lib", "session::tests::whole"]);
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
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
    fn every_patch_fits_one_place_and_is_in_the_table() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let docs = fs::read_to_string(root.join("docs/TESTING.md")).unwrap();
        for patch in PATCHES {
            let text = fs::read_to_string(root.join(patch.file)).unwrap();
            patched(&text, patch).unwrap();
            assert!(docs.contains(&format!("| `{}` | patch |", patch.name)), "{} is not in the table", patch.name);
        }
        let rows = docs.lines().filter(|line| line.contains("` | patch |")).count();
        assert_eq!(rows, PATCHES.len(), "docs/TESTING.md lists patches that are not there");
    }
}
