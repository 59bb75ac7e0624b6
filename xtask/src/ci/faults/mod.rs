//! Deliberate faults: wrong versions of the code, each of which the test that docs/TESTING.md names for it must catch.
//!
//! Invariants:
//! - A fault is one or more patches of the text. All of them stand in one copy of the workspace, which is built once for
//!   each profile. The shipped code has no trace of them.
//! - A patch fits exactly one place, so that none gets lost when the code changes: `cargo test` sees it.
//! - A patch asks [`ON`] whether its fault is the one that the environment names. So a process has one fault or none, and
//!   nothing of the code has to hand a choice down to the place.
//! - With none turned on the tests pass. With one turned on, what the table names fails, and of unit tests nothing else.

mod client;
mod daemon;
mod journal;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{Run, is_left_out, output, target};

/// One changed place of a wrong version.
struct Patch {
    name: &'static str,
    file: &'static str,
    right: &'static str,
    /// Does what is right unless [`ON`].
    wrong: &'static str,
}

/// Unit tests that faults are tried against: those of a package with these words in their names.
struct UnitTests {
    package: &'static str,
    filter: &'static str,
    patches: &'static [Patch],
}

/// Without `whole`, one of so many faults is tried: all of them would take CI past its hour.
const SLICE_STEP: usize = 4;
/// Stands for the question whether this fault is turned on.
const ON: &str = "ON!";
/// Names the fault that is turned on.
pub(super) const VARIABLE: &str = "WRONG_ON_PURPOSE";
const DOCS: &str = "docs/TESTING.md";
/// Orders of each model without a fault.
const MODEL_ORDERS: &str = "100";
/// A fault must show within so many orders of its model, from this seed.
const MODEL_ORDERS_WITH_A_FAULT: &str = "4000";
const MODEL_SEED: &str = "1";
/// More than processors: most of these tests wait.
const UNIT_TEST_THREADS: &str = "16";

const UNIT_TESTS: &[UnitTests] = &[
    UnitTests { package: "clad-client", filter: "session::tests::whole", patches: daemon::SESSIONS },
    UnitTests { package: "clad-client", filter: "ring::tests", patches: daemon::CLIENT_RINGS },
    UnitTests { package: "clad", filter: "rings::tests", patches: daemon::RINGS },
];

fn all() -> impl Iterator<Item = &'static Patch> {
    let of_units = UNIT_TESTS.iter().flat_map(|tests| tests.patches);
    journal::ALL.iter().chain(of_units).chain(daemon::QUEUE).chain(client::THREADS)
}

/// What catches a fault, by the last cell of its row.
enum CaughtBy {
    /// The history of this seed (`sim/tests/histories.rs`).
    History(u64),
    /// A test of `sim/tests/scene.rs`.
    Scene(String),
    /// A model of `models/tests/orders.rs`.
    Model(String),
    /// These unit tests and no other.
    Units(Vec<String>),
}

/// `cargo xtask ci faults`; with `update` the first seeds that catch are looked for, and written into the table.
pub(super) fn run(run: &mut Run) -> Result<()> {
    let copied = Copied::new(&run.root)?;
    let programs = Programs::build(&copied)?;
    let step = match run.args.as_slice() {
        [] => SLICE_STEP,
        [word] if word == "whole" => 1,
        [word] if word == "update" => return programs.update(&run.root),
        more => bail!("cargo xtask ci faults [whole | update], not {}", more.join(" ")),
    };
    let docs = docs(&run.root)?;
    run.case("without a fault the tests pass", || programs.holds());
    let faults: Vec<_> = faults().into_iter().step_by(step).filter(|fault| !is_left_out(&case_name(fault))).collect();
    in_order(
        &faults,
        |fault| programs.caught(&docs, fault),
        |fault, result| {
            run.case(&case_name(fault), || {
                println!("          caught {fault}: {}", result?.chars().take(150).collect::<String>());
                println!("tally: faults=1");
                super::tally::note("tally: faults=1");
                Ok(())
            });
        },
    );
    Ok(())
}

fn case_name(fault: &str) -> String {
    format!("{fault} is caught")
}

/// Tries each fault on one of twice as many threads as the machine has processors, since many of the tests wait. Each
/// result is reported as soon as those of the faults before it were.
fn in_order<T: Send>(faults: &[&str], work: impl Fn(&str) -> T + Sync, mut report: impl FnMut(&str, T)) {
    let left = Mutex::new(faults.iter().enumerate());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let (sender, receiver) = mpsc::sync_channel(faults.len());
    thread::scope(|scope| {
        for _ in 0..(2 * thread::available_parallelism().map_or(1, NonZero::get)).min(faults.len()) {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                while let Some((at, fault)) = next() {
                    let _ = sender.send((at, work(fault)));
                }
            });
        }
        drop(sender);
        let (mut early, mut at) = (BTreeMap::new(), 0);
        for (number, result) in receiver {
            early.insert(number, result);
            while let Some(result) = early.remove(&at) {
                report(faults[at], result);
                at += 1;
            }
        }
    });
}

/// Their names, each once, in the order of the table.
fn faults() -> Vec<&'static str> {
    let mut names: Vec<_> = all().map(|patch| patch.name).collect();
    names.dedup();
    names
}

fn docs(root: &Path) -> Result<String> {
    fs::read_to_string(root.join(DOCS)).context(DOCS)
}

/// The row of a fault.
fn row<'a>(docs: &'a str, fault: &str) -> Result<&'a str> {
    let row = docs.lines().find(|line| line.starts_with(&format!("| `{fault}` |")));
    row.with_context(|| format!("{fault} is not in the table of {DOCS}"))
}

fn caught_by(docs: &str, fault: &str) -> Result<CaughtBy> {
    let (_, cell) = row(docs, fault)?.trim_end_matches(" |").rsplit_once(" | ").context("a row has cells")?;
    let mut names: Vec<String> = cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    names.sort();
    Ok(if let Some(seed) = cell.strip_prefix("histories, seed ") {
        CaughtBy::History(seed.parse().with_context(|| format!("{fault}: {cell}"))?)
    } else if let Some(model) = cell.strip_prefix("model \"").and_then(|rest| rest.strip_suffix('"')) {
        CaughtBy::Model(model.to_owned())
    } else if let (true, [scene]) = (cell.starts_with("scene "), names.as_slice()) {
        CaughtBy::Scene(scene.clone())
    } else {
        ensure!(!names.is_empty(), "{DOCS} names no test for {fault}: {cell}");
        CaughtBy::Units(names)
    })
}

/// The texts of all files that a fault changes, with all faults in them.
fn patched(root: &Path) -> Result<BTreeMap<&'static str, String>> {
    let mut texts: BTreeMap<&str, String> = BTreeMap::new();
    for patch in all() {
        let text = match texts.remove(patch.file) {
            Some(text) => text,
            None => fs::read_to_string(root.join(patch.file)).context(patch.file)?,
        };
        let places = text.matches(patch.right).count();
        ensure!(places == 1, "{} fits {places} places in {}, not one: {}", patch.name, patch.file, patch.right);
        let on = format!(
            "({{ static ON: std::sync::OnceLock<bool> = std::sync::OnceLock::new(); \
             *ON.get_or_init(|| std::env::var(\"{VARIABLE}\").is_ok_and(|wrong| wrong == \"{}\")) }})",
            patch.name
        );
        texts.insert(patch.file, text.replace(patch.right, &patch.wrong.replace(ON, &on)));
    }
    Ok(texts)
}

/// A manifest or a lock file in which the workspace's packages have another version. Where cargo builds, packages of the
/// copy would else be taken for those of the workspace.
fn set_apart_by_version(text: &str) -> String {
    let version = concat!("version = \"", env!("CARGO_PKG_VERSION"), "\"");
    let packages = text.split("\n\n").map(|package| match package.contains("source = ") {
        true => package.to_owned(),
        false => package.replace(version, concat!("version = \"", env!("CARGO_PKG_VERSION"), "+faults\"")),
    });
    packages.collect::<Vec<_>>().join("\n\n")
}

/// A copy of the workspace with all faults in it. It stays, so that what was built of it is built once for all suites.
pub(super) struct Copied {
    root: PathBuf,
    folder: PathBuf,
}

impl Copied {
    pub(super) fn new(root: &Path) -> Result<Self> {
        // The copy is built offline, with features whose crates nothing else needs.
        output(super::sim::cargo(root).args(["fetch", "--quiet", "--locked"]))?;
        let folder = target(root).join("patched");
        fs::create_dir_all(&folder).context("no folder")?;
        // Another suite may bring it up to date at the same time.
        let lock = fs::File::open(&folder)?;
        lock.lock().context("the copy cannot be locked")?;
        let mut texts = patched(root)?;
        for file in ["Cargo.toml", "Cargo.lock"] {
            texts.insert(file, set_apart_by_version(&fs::read_to_string(root.join(file)).context(file)?));
        }
        let texts = texts.into_iter().map(|(file, text)| (root.join(file), text)).collect();
        bring_up_to_date(root, &folder, &texts)?;
        Ok(Self { root: root.to_owned(), folder })
    }

    /// Where its programs are built, if they are no tests.
    pub(super) fn programs(&self) -> PathBuf {
        self.target().join("debug")
    }

    fn target(&self) -> PathBuf {
        target(&self.root).join("patched-programs")
    }

    /// A command of cargo, which `args` begin with.
    pub(super) fn cargo(&self, args: &[&str]) -> Command {
        let mut command = super::sim::cargo(&self.folder);
        super::set_apart(&mut command, &self.root, &self.target()).env("CARGO_INCREMENTAL", "0");
        command.arg(args[0]).arg("--offline").args(&args[1..]).env_remove(VARIABLE);
        command
    }

    /// Builds tests of the copy, and answers the program of that package.
    fn test_program(&self, package: &str, args: &[&str]) -> Result<Program> {
        let said = output(self.cargo(&["test", "--no-run", "--message-format=json"]).args(args))?;
        for line in said.lines().filter(|line| line.starts_with('{')) {
            let artifact: Value = serde_json::from_str(line).context("cargo's messages")?;
            let (path, manifest) = (artifact["executable"].as_str(), artifact["manifest_path"].as_str());
            let id = artifact["package_id"].as_str().unwrap_or_default();
            let is_it = artifact["profile"]["test"] == true && id.contains(&format!("#{package}@"));
            if let (Some(path), Some(manifest), true) = (path, manifest, is_it) {
                let folder = Path::new(manifest).parent().context("a manifest's folder")?;
                return Ok(Program { path: path.into(), folder: folder.to_owned() });
            }
        }
        bail!("no test of {package} was built by {}:\n{said}", args.join(" "))
    }
}

/// A test program, and the folder of its package.
struct Program {
    path: PathBuf,
    folder: PathBuf,
}

impl Program {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder).env_remove(VARIABLE).args(args);
        command
    }
}

/// The tests, built with all faults in them.
struct Programs {
    histories: Program,
    scenes: Program,
    models: Program,
    /// One for each of [`UNIT_TESTS`].
    units: Vec<Program>,
}

impl Programs {
    fn build(copied: &Copied) -> Result<Self> {
        let sim =
            |test| copied.test_program("clad-sim", &["--profile", "sim", "--package", "clad-sim", "--test", test]);
        let models = ["--profile", "sim", "--package", "clad-models", "--features", "journal", "--test", "orders"];
        // Of the whole workspace: the libraries that others wrote are then those that its tests have built already.
        let units = |tests: &UnitTests| copied.test_program(tests.package, &["--workspace", "--lib"]);
        Ok(Self {
            histories: sim("histories")?,
            scenes: sim("scene")?,
            models: copied.test_program("clad-models", &models)?,
            units: UNIT_TESTS.iter().map(units).collect::<Result<_>>()?,
        })
    }

    fn histories(&self, which: Option<&str>) -> Command {
        let mut command = self.histories.command(&["--nocapture"]);
        command.envs(which.map(|which| ("CLAD_SIM_HISTORY", which)));
        command
    }

    fn scenes(&self, scene: Option<&str>) -> Command {
        let mut command = self.scenes.command(&[]);
        command.args(scene.iter().flat_map(|scene| ["--exact", scene]));
        command
    }

    fn models(&self, orders: &str) -> Command {
        let mut command = self.models.command(&["--exact", "every_order_keeps_what_must_hold", "--nocapture"]);
        command.env("CLAD_SEED", MODEL_SEED).env("CLAD_MODEL_ORDERS", orders);
        command
    }

    fn units(&self, at: usize) -> Command {
        self.units[at].command(&[UNIT_TESTS[at].filter, "--test-threads", UNIT_TEST_THREADS])
    }

    /// The tests with none turned on.
    fn holds(&self) -> Result<()> {
        let commands = [self.histories(None), self.scenes(None), self.models(MODEL_ORDERS)];
        for mut command in commands.into_iter().chain((0..UNIT_TESTS.len()).map(|at| self.units(at))) {
            let (passed, output) = ran(&mut command)?;
            ensure!(passed && output.contains("test result: ok. "), "as it is, this fails: {command:?}\n{output}");
        }
        Ok(())
    }

    /// What a fault ends in, by what the table names.
    fn caught(&self, docs: &str, fault: &str) -> Result<String> {
        let wrong = |mut command: Command| {
            let (passed, output) = ran(command.env(VARIABLE, fault))?;
            ensure!(!passed, "nothing catches it:\n{output}");
            Ok(output)
        };
        let line = |output: &str, start: &str| {
            let line = output.lines().find_map(|line| line.find(start).map(|at| line[at..].to_owned()));
            line.with_context(|| format!("it fails in another way:\n{output}"))
        };
        match caught_by(docs, fault)? {
            CaughtBy::History(seed) => line(&wrong(self.histories(Some(&seed.to_string())))?, "breaks: seed "),
            CaughtBy::Scene(scene) => {
                let output = wrong(self.scenes(Some(&scene)))?;
                line(&output, "test result: FAILED. 0 passed; 1 failed").map(|_| scene)
            }
            CaughtBy::Model(model) => {
                let mut command = self.models(MODEL_ORDERS_WITH_A_FAULT);
                command.env("CLAD_MODEL", &model);
                line(&wrong(command)?, &format!("FAILED model {model},"))
            }
            CaughtBy::Units(named) => {
                let tests = UNIT_TESTS.iter().position(|tests| tests.patches.iter().any(|patch| patch.name == fault));
                let output = wrong(self.units(tests.context("tests of its package")?))?;
                let failed = output.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
                let mut failed: Vec<_> = failed.map(|name| name.rsplit("::").next().unwrap_or(name)).collect();
                failed.sort_unstable();
                let failed = failed.join(", ");
                ensure!(failed == named.join(", "), "{failed} catch it; {DOCS} names {}", named.join(", "));
                Ok(failed)
            }
        }
    }

    /// Writes the first seed that catches each fault that a history catches: after a change of what a seed means.
    fn update(&self, root: &Path) -> Result<()> {
        let mut docs = docs(root)?;
        for fault in faults() {
            let CaughtBy::History(seed) = caught_by(&docs, fault)? else { continue };
            let (_, output) = ran(self.histories(Some("first")).env(VARIABLE, fault))?;
            let found = output.lines().find_map(|line| line.split_once("breaks: seed ")?.1.split_once(':'));
            let (found, _) = found.with_context(|| format!("no history catches {fault}:\n{output}"))?;
            let old = row(&docs, fault)?.to_owned();
            let new = old.replace(&format!("histories, seed {seed} |"), &format!("histories, seed {found} |"));
            docs = docs.replace(&old, &new);
            println!("{fault}: seed {found}");
        }
        fs::write(root.join(DOCS), docs).context(DOCS)
    }
}

/// Whether a command succeeded, and its output.
fn ran(command: &mut Command) -> Result<(bool, String)> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(text.contains("running "), "no test ran:\n{text}");
    Ok((output.status.success(), text))
}

/// Makes a folder what another is, but for these texts and without what was built and what git keeps. Files that are the same
/// are left alone: cargo builds again what is newer.
pub(super) fn bring_up_to_date(from: &Path, to: &Path, texts: &BTreeMap<PathBuf, String>) -> Result<()> {
    let is_left_out = |name: &OsStr| name == "target" || name == ".git";
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        let original = from.join(entry.file_name());
        let kind = fs::metadata(&original).ok().filter(|_| !is_left_out(&entry.file_name()));
        if kind.is_some_and(|kind| kind.is_dir() == entry.path().is_dir()) {
            continue;
        }
        if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, kind, into) = (entry.path(), entry.file_type()?, to.join(entry.file_name()));
        if is_left_out(&entry.file_name()) {
            continue;
        }
        if kind.is_dir() {
            fs::create_dir_all(&into)?;
            bring_up_to_date(&path, &into, texts)?;
        } else if kind.is_file() {
            let bytes = texts.get(&path).map_or_else(|| fs::read(&path), |text| Ok(text.clone().into_bytes()))?;
            if fs::read(&into).ok().as_ref() != Some(&bytes) {
                fs::write(&into, bytes)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without compiling anything: that a patch has lost its place is known in `cargo test`.
    #[test]
    fn every_fault_fits_one_place_and_is_in_the_table_with_tests_that_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let docs = docs(root).unwrap();
        patched(root).unwrap();
        for fault in faults() {
            assert!(all().any(|patch| patch.name == fault && patch.wrong.contains(ON)), "{fault} is always on");
            let exists = |folders: &[&str], text: &str| {
                let found = folders.iter().any(|folder| is_somewhere(&root.join(folder), text));
                assert!(found, "{fault}: {folders:?} have no {text}");
            };
            match caught_by(&docs, fault).unwrap() {
                CaughtBy::History(_) => {}
                CaughtBy::Scene(scene) => exists(&["sim/tests"], &format!("fn {scene}()")),
                CaughtBy::Model(model) => exists(&["models"], &format!("\"{model}\"")),
                // A session of the client is tested with that of the daemon, whose file has its own tests.
                CaughtBy::Units(names) => {
                    names.iter().for_each(|name| exists(&["daemon/src", "client-sdk/src"], &format!("fn {name}()")));
                }
            }
        }
    }

    #[test]
    fn the_table_has_no_fault_that_is_not_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let docs = docs(root).unwrap();
        let (_, table) = docs.split_once("| fault | what is wrong | caught by |\n|---|---|---|\n").expect("the table");
        let rows = table.lines().map_while(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0));
        assert_eq!(rows.collect::<Vec<_>>(), faults());
    }

    fn is_somewhere(folder: &Path, text: &str) -> bool {
        fs::read_dir(folder).unwrap().any(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() { is_somewhere(&path, text) } else { fs::read_to_string(&path).unwrap().contains(text) }
        })
    }
}
