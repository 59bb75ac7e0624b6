//! The client in plain Python, made from PROTOCOL.md alone: the vectors, every conversation, and a real daemon. Then the
//! package over the Rust client: its wheel, its tests, its wrong versions.
//!
//! pip installs the tools, by the names and versions of `client-sdk/python/tests/`, into an environment in the build
//! folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::examples::{self, with_example};
use super::{Run, build, chaos, is_left_out, need, need_what, output, target};

/// A case, its class of tests, and the beginning of the line that sums it up, where there is one.
const CASES: [(&str, &str, &str); 4] = [
    ("payloads are those of the vectors", "Payloads", ""),
    ("frames are those of the vectors", "Frames", ""),
    ("every conversation is played to its end", "Conversations", "conversations: "),
    ("a real daemon: each kind of value, kills, a resumed producer", "Daemon", "daemon: "),
];
/// The package, below the root.
const PACKAGE: &str = "client-sdk/python";
/// The case that installs the package.
const WHEEL: &str = "a wheel for every Python from 3.10 on";
/// The case of its tests.
const TESTS: &str = "every test, with a real daemon, gunicorn, uWSGI and the stubs";
/// The client's name in its chaos.
const CHAOS: &str = "Python";
/// A wheel of this name goes with every Python from 3.10 on.
const ABI: &str = "-cp310-abi3-";

pub(super) fn run(run: &mut Run) -> Result<()> {
    let kills = chaos::kills(run)?;
    need("python3", &["python3"])?;
    let daemon = build(&run.root, "clad")?;
    run_by_hand(run, &daemon)?;
    // pip and what an environment is made of; the headers and the compiler that uWSGI is built with.
    need_what("venv of Python", &["python3-venv", "python3-pip"], || says("import ensurepip, venv"))?;
    need_what("Python.h", &["python3-dev"], || says(HAS_HEADERS))?;
    need("cc", &["gcc", "libc6-dev"])?;
    need("mkfs.ext4", &["e2fsprogs"])?;
    need("curl", &["curl"])?;
    need("openssl", &["openssl"])?;
    let python = Python::new(&run.root, daemon)?;
    run.case("the extension is formatted and has no lints", || python.check_extension());
    run.case(WHEEL, || python.install());
    if is_left_out(WHEEL) && !(is_left_out(TESTS) && is_left_out(&chaos::case(CHAOS))) {
        python.install()?; // these are to run what is built here, and not what an earlier run has left
    }
    run.case(TESTS, || {
        let said = output(&mut python.tests(&python.package(), ""))?;
        let sum = said.lines().last().unwrap_or_default();
        ensure!(sum.contains(" passed") && !sum.contains("skipped"), "tests were skipped:\n{said}");
        println!("          {}", sum.trim_matches(['=', ' ']));
        Ok(())
    });
    run.case(&examples::name(examples::PYTHON_SERVICE), || service(&python.root));
    let agent = format!("{} {}", python.program("python").display(), python.package().join("tests/agent.py").display());
    chaos::chaos_with_rings(run, CHAOS, &agent, kills);
    for fault in FAULTS {
        run.case(&format!("a wrong version is caught: {}", fault.wrong), || python.is_caught(fault));
    }
    Ok(())
}

/// The client in plain Python, which needs nothing but Python.
fn run_by_hand(run: &mut Run, daemon: &Path) -> Result<()> {
    let folder = target(&run.root).join("tmp");
    std::fs::create_dir_all(&folder).with_context(|| format!("no folder {}", folder.display()))?;
    for (name, class, sum) in CASES {
        let mut python = Command::new("python3");
        python.args(["-B", "e2e/python/test_by_hand.py", "--verbose", class]).current_dir(&run.root);
        python.env("CLAD_BIN", daemon).env("CLAD_E2E_DIR", &folder);
        run.case(name, || {
            let said = output(&mut python)?;
            ensure!(!said.contains("skipped"), "tests were skipped:\n{said}");
            if !sum.is_empty() {
                let line = said.lines().find(|line| line.starts_with(sum)).context("no word of how it went")?;
                println!("          {line}");
            }
            Ok(())
        });
    }
    Ok(())
}

/// Succeeds in a Python that has its headers.
const HAS_HEADERS: &str = "import os, sys, sysconfig; \
                           sys.exit(not os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))";

/// Whether Python runs a line to a good end.
pub(super) fn says(line: &str) -> bool {
    Command::new("python3").args(["-c", line]).output().is_ok_and(|ended| ended.status.success())
}

/// The environment that the package is installed into.
struct Python {
    root: PathBuf,
    daemon: PathBuf,
    environment: PathBuf,
}

impl Python {
    fn new(root: &Path, daemon: PathBuf) -> Result<Self> {
        let environment = target(root).join("python");
        output(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
        let python = Self { root: root.to_owned(), daemon, environment };
        let tests = python.package().join("tests");
        output(python.pip().arg("--requirement").arg(tests.join("requirements.txt")))?;
        Ok(python)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.environment.join("bin").join(name)
    }

    fn pip(&self) -> Command {
        let mut pip = Command::new(self.program("python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        pip
    }

    fn check_extension(&self) -> Result<()> {
        let cargo = |words: &[&str]| {
            let mut cargo = Command::new("cargo");
            cargo.args(words).current_dir(self.package()).env("CARGO_TARGET_DIR", target(&self.root));
            cargo.env("PYO3_PYTHON", self.program("python"));
            output(&mut cargo).map(drop)
        };
        cargo(&["fmt", "--check"])?;
        cargo(&["clippy", "--locked", "--all-targets", "--", "-D", "warnings"])
    }

    fn package(&self) -> PathBuf {
        self.root.join(PACKAGE)
    }

    /// Builds the wheel and installs it.
    fn install(&self) -> Result<()> {
        let wheels = target(&self.root).join("tmp").join("wheels");
        if wheels.exists() {
            std::fs::remove_dir_all(&wheels)?;
        }
        let mut maturin = Command::new(self.program("maturin"));
        maturin.args(["build", "--locked", "--profile", "dev", "--compatibility", "linux", "--interpreter"]);
        maturin.arg(self.program("python")).arg("--out").arg(&wheels).current_dir(self.package());
        output(maturin.env("CARGO_TARGET_DIR", target(&self.root)))?;
        let wheel = std::fs::read_dir(&wheels)?.next().context("no wheel")??.path();
        ensure!(wheel.to_string_lossy().contains(ABI), "{} is for one Python", wheel.display());
        output(self.pip().args(["--force-reinstall", "--no-deps"]).arg(wheel)).map(drop)
    }

    /// The tests of a package, or those of a name.
    fn tests(&self, package: &Path, name: &str) -> Command {
        let folder = target(&self.root).join("tmp");
        let mut pytest = Command::new(self.program("python"));
        pytest.args(["-B", "-m", "pytest", "-q", "-x", "-rs"]).current_dir(package);
        if !name.is_empty() {
            pytest.args(["-k", name]);
        }
        pytest.env("CLAD_BIN", &self.daemon).env("CLAD_TEST_DIR", folder);
        pytest
    }

    /// Runs the test of a wrong version: the right one passes, so the failure is the fault's.
    fn is_caught(&self, fault: &Fault) -> Result<()> {
        let folder = target(&self.root).join("tmp").join("sdk-python-fault");
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(&folder)?;
        output(Command::new("cp").arg("-r").arg(self.package()).arg(&folder))?;
        let package = folder.join("python");
        let path = package.join(fault.file);
        let text = std::fs::read_to_string(&path)?;
        ensure!(text.matches(fault.from).count() == 1, "its place is not there once: {}", fault.from);
        std::fs::write(&path, text.replace(fault.from, fault.to))?;
        let mut pytest = self.tests(&package, fault.caught_by);
        if fault.file.ends_with(".rs") {
            let manifest = package.join("Cargo.toml");
            let text = std::fs::read_to_string(&manifest)?;
            let client = self.root.join("client-sdk").display().to_string();
            let proto = self.root.join("proto").display().to_string();
            let text = text.replace("path = \"..\"", &format!("path = \"{client}\""));
            std::fs::write(&manifest, text.replace("path = \"../../proto\"", &format!("path = \"{proto}\"")))?;
            let mut cargo = Command::new("cargo");
            cargo.args(["build", "--locked"]).current_dir(&package).env("CARGO_TARGET_DIR", target(&self.root));
            output(cargo.env("PYO3_PYTHON", self.program("python")))?;
            std::fs::copy(target(&self.root).join("debug/lib_clad.so"), package.join("lib/clad/_clad.abi3.so"))?;
        } else {
            let installed = output(Command::new(self.program("python")).args(["-c", EXTENSION]).current_dir(&folder))?;
            std::fs::copy(installed.trim(), package.join("lib/clad/_clad.abi3.so"))?;
        }
        // Its own package is found before the installed one.
        let ended = pytest.env("PYTHONPATH", package.join("lib")).output()?;
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        // pytest's code 1: tests ran, and some failed.
        let caught = ended.status.code() == Some(1) && said.contains(&format!("def {}", fault.caught_by));
        ensure!(caught, "it is not caught:\n{said}{}", String::from_utf8_lossy(&ended.stderr));
        std::fs::remove_dir_all(&folder)?;
        Ok(())
    }
}

fn service(root: &Path) -> Result<()> {
    with_example(root, examples::PYTHON_SERVICE, |example| {
        let environment = example.move_here("/tmp/clad-python")?;
        example.take_free_port(8000)?;
        // gunicorn leaves a socket in the user's folder, where it is killed.
        example.shell.env("XDG_RUNTIME_DIR", environment.parent().context("it has a folder")?);
        // What `install` has built is used again.
        example.shell.env("MATURIN_PEP517_ARGS", "--locked --profile dev");
        let said = example.run()?;
        let answer = said.lines().find_map(|line| Some(line[line.find("{\"order\"")?..].to_owned()));
        let answer: Value = serde_json::from_str(&answer.context("no order is answered")?)?;
        let record = example.record("order taken")?;
        ensure!(answer["safe"] == "durable" && answer["order"] == record["offset"], "{answer}, but {record}");
        ensure!(record["attributes"]["item"] == "tea", "{record}");
        let request = example.record("request")?;
        ensure!(request["attributes"]["url.path"] == "/order", "{request}");
        Ok(())
    })
}

/// Prints the path of the extension module.
const EXTENSION: &str = "import clad._clad; print(clad._clad.__file__)";

/// A wrong version of the package: one place of the text is changed, and a test must fail.
struct Fault {
    wrong: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    caught_by: &'static str,
}

/// The files of the wrong versions, from the root, and what each changes there.
#[cfg(test)]
pub(super) fn places() -> impl Iterator<Item = (String, &'static str)> {
    FAULTS.iter().map(|fault| (format!("{PACKAGE}/{}", fault.file), fault.from))
}

const FAULTS: &[Fault] = &[
    Fault {
        wrong: "a fork in C goes on with its parent's producer",
        file: "lib/clad/_handler.py",
        from: "            except ForkedError:\n                self._core.call(lambda native: native.log(record.__dict__, body, more))\n",
        to: "            except ForkedError:\n                pass\n",
        caught_by: "test_a_fork_in_c_runs_no_hook",
    },
    Fault {
        wrong: "threads of a child begin a producer each",
        file: "lib/clad/_core.py",
        from: "self._successors.setdefault(before.serial, self._begin(False))",
        to: "self._begin(False)",
        caught_by: "test_threads_of_a_child_use_one_producer",
    },
    Fault {
        wrong: "a process of multiprocessing ends without its last words",
        file: "lib/clad/_core.py",
        from: "        flush_all(True)\n",
        to: "        flush_all(False)\n",
        caught_by: "test_multiprocessing",
    },
    Fault {
        wrong: "the handler's lock is held while a call waits",
        file: "lib/clad/_handler.py",
        from: "        self.lock = None\n",
        to: "        super().createLock()\n",
        caught_by: "test_no_lock_is_held_while_a_thread_waits",
    },
    Fault {
        wrong: "the end waits three times for a daemon that hangs, and says so each time",
        file: "lib/clad/_handler.py",
        from: "            if not self._has_waited:\n",
        to: "            if True:\n",
        caught_by: "test_the_end_is_bounded_where_the_daemon_hangs",
    },
    Fault {
        wrong: "a record is lost with a text that cannot be made",
        file: "lib/clad/_handler.py",
        from: "                self.handleError(record)\n                body, more",
        to: "                return self.handleError(record)\n                body, more",
        caught_by: "test_a_text_that_cannot_be_made",
    },
    Fault {
        wrong: "a cursor is behind the whole append",
        file: "src/reader.rs",
        from: "offset: offset + 1 };",
        to: "offset: chunk.end_offset() };",
        caught_by: "test_a_cursor_goes_on_within_an_append",
    },
    Fault {
        wrong: "a wait holds Python's lock",
        file: "src/pending.rs",
        from: "py.detach(|| self.wait_for(left.min(SIGNAL_INTERVAL_MAX)))",
        to: "self.wait_for(left.min(SIGNAL_INTERVAL_MAX))",
        caught_by: "test_a_wait_lets_other_threads_run",
    },
    Fault {
        wrong: "what is logged while a record is made has hardly an end",
        file: "src/producer.rs",
        from: "(others < NESTED_RECORDS_MAX)",
        to: "(others < 50)",
        caught_by: "test_what_logs_while_it_is_logged",
    },
];
