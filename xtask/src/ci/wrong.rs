//! Deliberate faults of the journal in real processes on real devices: what only a device can count, or only a kernel can do.
//!
//! Invariants: the daemon is built from a copy of the workspace, in which one patch lets the environment name a fault; with
//! none named the tests pass, with one they fail, where they are about it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::disk::{Kind, call, closing_words, on};
use super::patches::{self, Patch};
use super::{Run, output, target};

/// The variable that gives the daemon its fault.
const NAMED: Patch = Patch {
    name: "the daemon gets a fault",
    file: "daemon/src/life/setup.rs",
    right: "        ..JournalConfig::default()\n",
    wrong: "        faults: std::env::var(\"WRONG_ON_PURPOSE\").map_or_else(\n\
            \u{20}           |_| clad_journal::Faults::default(),\n\
            \u{20}           |name| {\n\
            \u{20}               let mut all = clad_journal::Fault::ALL.iter();\n\
            \u{20}               let fault = all.find(|fault| format!(\"{fault:?}\") == name).expect(\"a fault\");\n\
            \u{20}               clad_journal::Faults::only(*fault)\n\
            \u{20}           },\n\
            \u{20}       ),\n\
            \u{20}       ..JournalConfig::default()\n",
};

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
                let said = output(command.arg("--nocapture").env("CLAD_E2E_BIN", folder.path()))?;
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
                command.arg("--nocapture").env("CLAD_E2E_BIN", folder.path()).env("WRONG_ON_PURPOSE", fault);
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

/// `clad` and `clactl`, in a folder of their own.
fn build(root: &Path) -> Result<tempfile::TempDir> {
    let copy = tempfile::Builder::new().prefix("wrong-").tempdir_in(target(root)).context("no folder")?;
    patches::copy(root, copy.path())?;
    let path = copy.path().join(NAMED.file);
    fs::write(&path, patches::patched(&fs::read_to_string(&path)?, &NAMED)?)?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(copy.path()).env("CARGO_TARGET_DIR", target(root)).env("CARGO_INCREMENTAL", "0");
    command.args(["build", "--quiet", "--offline", "--features", "clad-journal/faults"]);
    output(command.args(["--package", "clad-journal", "--package", "clad", "--package", "clactl"]))?;
    let binaries = tempfile::Builder::new().prefix("wrong-bin-").tempdir_in(target(root)).context("no folder")?;
    for name in ["clad", "clactl"] {
        let built = target(root).join("debug").join(name);
        fs::copy(&built, binaries.path().join(name)).with_context(|| format!("{name} was not built"))?;
    }
    Ok(binaries)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without compiling anything: that the patch has lost its place is known in `cargo test`.
    #[test]
    fn the_patch_fits_one_place() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        patches::patched(&fs::read_to_string(root.join(NAMED.file)).unwrap(), &NAMED).unwrap();
    }
}
