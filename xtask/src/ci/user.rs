//! The tests as an ordinary user: the README's command is for newcomers, and a CI machine is root's.
//!
//! Invariants: the user's number is nobody's, and has no rights. A build folder, a home and a folder for temporary files
//! are made for the suite; the user can write nowhere else. The build folder holds hard links to what root built, and is
//! seen in place of the real one in a mount namespace, which ends with each program. There the workspace can also be
//! entered where a folder above it is closed to others. A test that needs root fails, unless it says by name that it
//! could not run. Folders and processes that a program leaves behind are a failure too.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::disk::is_root;
use super::{Run, is_left_out, need, output, tally, target};

const UID: u32 = 61_001;
/// Folders of the packages whose tests are run.
const PACKAGES: [&str; 4] = ["e2e", "client-sdk", "journal", "daemon"];
/// Programs whose tests are long, and do nothing that depends on the user: only `cargo xtask ci user whole` runs them.
const LONG: [&str; 9] = [
    "e2e: bad_input",
    "e2e: bounds",
    "e2e: chaos",
    "e2e: hostile",
    "e2e: kill",
    "e2e: rings",
    "e2e: senders",
    "e2e: syslog",
    "journal: kill",
];
/// More than processors: most of these tests wait.
const TEST_THREADS: &str = "4";
/// The longest wait for the end of a process that was killed as its test ended.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of the end of an output that are shown where it does not say what failed.
const SHOWN_BYTES_MAX: usize = 20_000;

/// Runs in a mount namespace: ROOT TARGET SHOWN STASH CLOSED PROGRAM...; CLOSED is the highest folder that others may not
/// enter, or empty. It is covered by an empty one, in which everything of the workspace is seen again.
const SCRIPT: &str = r#"set -e
root=$1 target=$2 shown=$3 stash=$4 closed=$5
shift 5
mount --bind "$shown" "$target"
if [ -n "$closed" ]; then
    mount --rbind "$root" "$stash"
    mount -t tmpfs -o mode=755 none "$closed"
    mkdir -p "$root"
    for entry in "$stash"/* "$stash"/.[!.]*; do
        place=$root/${entry##*/}
        if [ -d "$entry" ]; then mkdir "$place"; elif [ -f "$entry" ]; then : > "$place"; else continue; fi
        mount --rbind "$entry" "$place"
    done
fi
cd "$CARGO_MANIFEST_DIR"
exec setpriv --reuid=UID --regid=UID --clear-groups -- "$@"
"#;

pub(super) fn run(run: &mut Run) -> Result<()> {
    let is_whole = match run.args.as_slice() {
        [] => false,
        [word] if word == "whole" => true,
        more => anyhow::bail!("cargo xtask ci user [whole], not {}", more.join(" ")),
    };
    ensure!(is_root()?, "only root can become another user");
    for program in ["unshare", "setpriv", "mount"] {
        need(program, &["util-linux", "mount"])?;
    }
    let programs = built(&run.root)?;
    let place = Place::new(&run.root, &programs)?;
    let is_tried = |program: &&Program| is_whole || !LONG.contains(&program.name.as_str());
    let tests = programs.iter().filter(|program| program.is_test && !is_left_out(&program.name));
    for program in tests.filter(is_tried) {
        run.case_if_any(&program.name, || {
            let Passed { tests, not_run } = place.run(program)?;
            not_run.iter().for_each(|line| println!("          {line}"));
            Ok(tests > 0) // none: all of its tests are a suite's
        });
    }
    Ok(())
}

/// A program that cargo built.
struct Program {
    /// Its package's folder, and its own name.
    name: String,
    path: PathBuf,
    manifest_dir: PathBuf,
    is_test: bool,
}

/// Builds what `cargo test --workspace` builds, and the binaries that tests start.
fn built(root: &Path) -> Result<Vec<Program>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["test", "--workspace", "--no-run", "--message-format=json"]);
    let said = output(&mut command)?;
    let artifacts = said.lines().filter(|line| line.starts_with('{')).map(serde_json::from_str::<Value>);
    let mut programs = Vec::new();
    for artifact in artifacts {
        let artifact = artifact.context("cargo's messages")?;
        let (Some(path), Some(manifest)) = (artifact["executable"].as_str(), artifact["manifest_path"].as_str()) else {
            continue;
        };
        let manifest_dir = Path::new(manifest).parent().context("a manifest's folder")?.to_owned();
        let package = manifest_dir.strip_prefix(root).unwrap_or(&manifest_dir).display().to_string();
        if artifact["target"]["kind"][0] == "example" {
            continue; // none of the packages has one that its tests start
        }
        let is_test = artifact["profile"]["test"] == true;
        if !is_test || PACKAGES.contains(&package.as_str()) {
            let name = artifact["target"]["name"].as_str().unwrap_or_default();
            programs.push(Program { name: format!("{package}: {name}"), path: path.into(), manifest_dir, is_test });
        }
    }
    for name in ["clad", "clactl"] {
        let path = super::build(root, name)?;
        if !programs.iter().any(|program| program.path == path) {
            programs.push(Program { name: name.to_owned(), path, manifest_dir: root.to_owned(), is_test: false });
        }
    }
    ensure!(programs.iter().any(|program| program.is_test), "no test was built:\n{said}");
    Ok(programs)
}

/// The outcome of a program whose tests passed.
struct Passed {
    tests: usize,
    /// Lines that name what could not run.
    not_run: Vec<String>,
}

/// The folders of the user, and what is needed to show them.
struct Place {
    root: PathBuf,
    target: PathBuf,
    /// Shown in place of the build folder.
    build: TempDir,
    /// Holds the home, the folder for temporary files, and the place where the workspace is held. Its path is short,
    /// because sockets lie there.
    own: TempDir,
    /// The highest folder above the workspace, or itself, that others may not enter.
    closed: Option<PathBuf>,
}

impl Place {
    fn new(root: &Path, programs: &[Program]) -> Result<Self> {
        let target = target(root);
        let closed = closed(root)?;
        let outside = !target.starts_with(root) && self::closed(&target)?.is_some();
        ensure!(!outside, "other users may not enter the build folder {}", target.display());
        let build = tempfile::Builder::new().prefix("user-").tempdir_in(&target).context("a build folder")?;
        let own = tempfile::Builder::new().prefix("clad-user-").tempdir().context("a folder")?;
        fs::set_permissions(own.path(), Permissions::from_mode(0o755))?;
        fs::create_dir(own.path().join("stash"))?;
        let mut folders = vec![build.path().to_owned(), build.path().join("tmp"), own.path().join("home")];
        folders.extend([own.path().join("tmp"), build.path().join("debug"), build.path().join("debug/deps")]);
        for folder in folders {
            fs::create_dir_all(&folder)?;
            chown(&folder, Some(UID), Some(UID))?;
        }
        for program in programs {
            let inside = program.path.strip_prefix(&target).context("it was built elsewhere")?;
            let link = build.path().join(inside);
            fs::hard_link(&program.path, &link).with_context(|| format!("{}", link.display()))?;
        }
        Ok(Self { root: root.to_owned(), target, build, own, closed })
    }

    fn run(&self, program: &Program) -> Result<Passed> {
        let script = SCRIPT.replace("UID", &UID.to_string());
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        command.arg(&self.root).arg(&self.target).arg(self.build.path()).arg(self.own.path().join("stash"));
        command.arg(self.closed.as_deref().unwrap_or(Path::new(""))).arg(&program.path).arg("--show-output");
        command.env_clear().env("HOME", self.own.path().join("home")).env("TMPDIR", self.own.path().join("tmp"));
        command
            .env("RUST_TEST_THREADS", TEST_THREADS)
            .env("CARGO_MANIFEST_DIR", &program.manifest_dir)
            .env("CLAD_E2E_BIN", self.target.join("debug"));
        for name in ["PATH", "LANG", "CLAD_SEED", "PROPTEST_RNG_SEED"] {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        tally::note(&text);
        let left = self.clear()?;
        ensure!(output.status.success(), "{} ended with {}:\n{}", program.name, output.status, failures(&text));
        ensure!(left.is_empty(), "it leaves behind: {}", left.join(", "));
        let result = text.lines().find_map(|line| line.strip_prefix("test result: ok. ")).context("no result")?;
        let tests = result.split(' ').next().and_then(|number| number.parse().ok()).context("no number of tests")?;
        let not_run = text.lines().filter(|line| line.contains("NOT RUN")).map(str::to_owned).collect();
        Ok(Passed { tests, not_run })
    }

    /// Ends processes and removes files that a program has left behind, and names them.
    fn clear(&self) -> Result<Vec<String>> {
        let until = Instant::now() + END_TIMEOUT;
        while !processes()?.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut left = Vec::new();
        for (pid, words) in processes()? {
            left.push(format!("process {pid} ({words})"));
            let _ = Command::new("kill").args(["-KILL", &pid]).status();
        }
        for folder in [self.build.path().join("tmp"), self.own.path().join("tmp"), self.own.path().join("home")] {
            for entry in fs::read_dir(&folder)?.flatten() {
                left.push(entry.path().display().to_string());
                match entry.file_type()?.is_dir() {
                    true => fs::remove_dir_all(entry.path())?,
                    false => fs::remove_file(entry.path())?,
                }
            }
        }
        Ok(left)
    }
}

/// The user's processes, and the words of each.
fn processes() -> Result<Vec<(String, String)>> {
    let all = fs::read_dir("/proc")?.flatten().map(|entry| (entry.path(), entry.file_name()));
    let all = all.map(|(path, name)| (path, name.to_string_lossy().into_owned()));
    let theirs = all.filter(|(path, name)| {
        name.bytes().all(|byte| byte.is_ascii_digit()) && fs::metadata(path).is_ok_and(|found| found.uid() == UID)
    });
    let words = |path: &Path| fs::read(path.join("cmdline")).unwrap_or_default();
    Ok(theirs.map(|(path, pid)| (pid, String::from_utf8_lossy(&words(&path)).replace('\0', " "))).collect())
}

/// The highest folder on the way to this one, itself included, that others may not enter.
fn closed(path: &Path) -> Result<Option<PathBuf>> {
    let mut above: Vec<&Path> = path.ancestors().collect();
    above.reverse();
    for folder in above {
        if fs::metadata(folder)?.mode() & 0o001 == 0 {
            return Ok(Some(folder.to_owned()));
        }
    }
    Ok(None)
}

/// The part of a test program's output that says what failed.
fn failures(text: &str) -> &str {
    let at = text.find("\nfailures:\n").unwrap_or_else(|| text.len().saturating_sub(SHOWN_BYTES_MAX));
    let at = (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[at..]
}
