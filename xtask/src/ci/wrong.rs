//! Deliberate faults of the journal in real processes on real devices: what only a device can count, or only a kernel can do.
//!
//! Invariants: the daemon is built from the copy of the workspace that has the faults in it; with none named the tests
//! pass, with one they fail, where they are about it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::disk::{Kind, call, closing_words, on};
use super::faults::{Copied, VARIABLE};
use super::{Run, output};

/// A fault, the test that must see it, and where in the text of its failure that shows.
const CAUGHT: [(&str, &str, &str); 2] = [
    ("PerMessageNeverFlushes", "flushes::are_one_for_each_append_under_per_message", " flushes for "),
    ("LockNotTaken", "dead_writes::are_waited_for", "e2e/tests/disk/dead_writes.rs"),
];

/// Each on a file system of its own.
pub(super) fn run(run: &mut Run, tests: &Path, kind: &Kind) {
    let root = run.root.clone();
    let mut built = None;
    run.case("wrong on purpose: without a fault the tests pass", || {
        let folder = build(&root)?;
        for (_, test, _) in CAUGHT {
            on(kind, |point| {
                let mut command = call(tests, test, Some(point));
                let said = output(command.arg("--nocapture").env("CLAD_E2E_BIN", &folder))?;
                ensure!(closing_words(&said), "{test} fails as it is:\n{said}");
                Ok(())
            })?;
        }
        built = Some(folder);
        Ok(())
    });
    let Some(folder) = built else { return };
    for (fault, test, shown) in CAUGHT {
        run.case(&format!("wrong on purpose: {fault} is caught"), || {
            on(kind, |point| {
                let mut command = call(tests, test, Some(point));
                command.arg("--nocapture").env("CLAD_E2E_BIN", &folder).env(VARIABLE, fault);
                let ran = command.output().with_context(|| format!("cannot run {command:?}"))?;
                let said = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
                let failed = said.contains("test result: FAILED. 0 passed; 1 failed") && said.contains(shown);
                ensure!(failed, "nothing catches it:\n{said}");
                println!("          caught {fault}: {test}");
                println!("tally: faults=1");
                super::tally::note("tally: faults=1");
                Ok(())
            })
        });
    }
}

/// `clad` and `clactl`; the folder in which they are.
fn build(root: &Path) -> Result<PathBuf> {
    let copied = Copied::new(root)?;
    output(&mut copied.cargo(&["build", "--quiet", "--workspace", "--bin", "clad", "--bin", "clactl"]))?;
    Ok(copied.programs())
}
