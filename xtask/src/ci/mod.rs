//! Suites that need root or other programs, each in a file of its own.
//!
//! Invariants: a suite installs what it needs, leaves nothing behind, prints one line for each case,
//! and one closing line, `NAME: N passed, N failed`; it succeeds only where nothing failed and something
//! passed. What runs a failure again stands right above the closing line, for of a long output only the end may be kept. To add one: write its file, and add it to [`SUITES`] and to the list in `.ci/run`.

mod chaos;
mod cuts;
mod disk;
mod examples;
mod faults;
mod hostile;
mod kill;
mod models;
mod otlp;
mod owners;
mod prometheus;
pub(crate) mod proof;
mod relay;
mod rings;
mod sdk_c;
mod sdk_go;
mod sdk_python;
mod sdk_rust;
mod sim;
mod syslog;
mod systemd;
mod tally;
mod tls;
mod user;
#[cfg(test)]
mod whole_run;
mod wrong;

pub(crate) use relay::FEATURES as RELAY_FEATURES;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// A suite: its name, what it shows, and what runs it.
struct Suite {
    name: &'static str,
    about: &'static str,
    run: fn(&mut Run) -> Result<()>,
}

const SUITES: &[Suite] = &[
    Suite { name: "user", about: "the tests as an ordinary user: a newcomer is not root", run: user::run },
    Suite {
        name: "systemd",
        about: "the package on a booted Debian, through an operator's days and mistakes; the units are closed enough",
        run: systemd::run,
    },
    Suite {
        name: "kill",
        about: "what was acknowledged survives kill -9, 50 times, on every transport",
        run: kill::run,
    },
    Suite {
        name: "prometheus",
        about: "dashboards give data and each alert is raised by its fault, on a real Prometheus",
        run: prometheus::run,
    },
    Suite { name: "faults", about: "each wrong version of the code is caught, and by what", run: faults::run },
    Suite {
        name: "sim",
        about: "crashes of the real journal on a simulated disk, over fixed and fresh seeds",
        run: sim::run,
    },
    Suite { name: "models", about: "what threads share, in thousands of orders of their steps", run: models::run },
    Suite {
        name: "rings",
        about: "rings in shared memory: stop points, hostile clients, deeper models",
        run: rings::run,
    },
    Suite { name: "hostile", about: "masses of bad clients: memory bounded, everybody else served", run: hostile::run },
    Suite { name: "owners", about: "what one user takes or leaves behind costs nobody else", run: owners::run },
    Suite {
        name: "sdk-rust",
        about: "the Rust client: receipts under chaos over TCP, Unix socket and rings",
        run: sdk_rust::run,
    },
    Suite {
        name: "sdk-go",
        about: "the Go client: its tests with a real daemon, no race, no allocation, receipts under chaos",
        run: sdk_go::run,
    },
    Suite {
        name: "sdk-c",
        about: "the library for C: header, symbols, tests with a real daemon, valgrind, bad days, wrong versions",
        run: sdk_c::run,
    },
    Suite {
        name: "otlp",
        about: "exporters of Python, Go, Rust and JavaScript as they come: read back, and under kill -9; curl, grpcurl",
        run: otlp::run,
    },
    Suite {
        name: "tls",
        about: "TLS: the page as an operator follows it, openssl, curl and rsyslog, certificates that change under load",
        run: tls::run,
    },
    Suite {
        name: "syslog",
        about: "senders of syslog as they come: logger, the C library, Python, rsyslog, syslog-ng; RELP under kill -9",
        run: syslog::run,
    },
    Suite {
        name: "relay",
        about: "clad-relay from files and the journal, and systemd-journal-upload: once, over kills and rotations",
        run: relay::run,
    },
    Suite { name: "disk", about: "full, read-only and other disks, and clocks that jump", run: disk::run },
    Suite {
        name: "sdk-python",
        about: "a client made from PROTOCOL.md alone; the package: tests with a real daemon, servers, chaos, wrong versions",
        run: sdk_python::run,
    },
    Suite { name: "cuts", about: "power cuts under a real ext4, xfs and btrfs", run: cuts::run },
];

/// A suite under way.
struct Run {
    /// The workspace.
    root: PathBuf,
    /// What stood behind the name.
    args: Vec<String>,
    passed: usize,
    failed: usize,
    /// The lines of failures that say most.
    failure_lines: Vec<String>,
    /// How long a device that is slow to flush takes for it at least.
    flush_seconds: &'static str,
}

impl Run {
    /// One case. A failure is counted and the next case goes on.
    fn case(&mut self, name: &str, body: impl FnOnce() -> Result<()>) {
        self.case_if_any(name, || body().map(|()| true));
    }

    /// One case, which does not count where its body says false: there was nothing to do.
    fn case_if_any(&mut self, name: &str, body: impl FnOnce() -> Result<bool>) {
        if is_left_out(name) {
            return;
        }
        let (began, before) = (Instant::now(), children_seconds());
        let result = body();
        let (time, processors) = (began.elapsed().as_secs_f64(), children_seconds() - before);
        if matches!(result, Ok(false)) {
            return;
        }
        self.count(name, result.map(drop), &format!(" ({time:.1} s, {processors:.1} s of processors)"));
    }

    /// Cases that wait more than they work, all at once and beside others.
    fn cases_beside<'a>(
        &mut self,
        cases: impl IntoIterator<Item = (&'a str, impl FnOnce() -> Result<()> + Send)>,
        others: impl FnOnce(&mut Self),
    ) {
        let began = Instant::now();
        std::thread::scope(|scope| {
            let cases = cases.into_iter().filter(|(name, _)| !is_left_out(name));
            let running =
                cases.map(|(name, body)| (name, scope.spawn(move || (body(), began.elapsed().as_secs_f64()))));
            let running: Vec<_> = running.collect();
            others(self);
            for (name, case) in running {
                let (result, time) = case.join().unwrap_or_else(|_| (Err(anyhow::anyhow!("it panicked")), 0.0));
                self.count(name, result, &format!(" ({time:.1} s beside others)"));
            }
        });
    }

    fn count(&mut self, name: &str, result: Result<()>, times: &str) {
        match result {
            Ok(()) => {
                self.passed += 1;
                println!("  ok      {name}{times}");
            }
            Err(error) => {
                self.failed += 1;
                let text = format!("{error:#}");
                println!("  FAILED  {name}{times}: {text}");
                self.failure_lines.extend(failure_lines(&text).map(|line| format!("{name}: {line}")));
            }
        }
    }

    /// Refuses what stood behind the name, for a suite that takes nothing.
    fn no_args(&self) -> Result<()> {
        ensure!(self.args.is_empty(), "this suite takes nothing: {}", self.args.join(" "));
        Ok(())
    }
}

/// The processor time of children that have ended and were waited for, from `/proc/self/stat` (fields 16 and 17, in
/// hundredths of a second: `man 5 proc_pid_stat`); 0 where it cannot be read.
fn children_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(13).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Returns true for a case without the words of `CLAD_CI_CASES=WORDS`.
fn is_left_out(name: &str) -> bool {
    std::env::var("CLAD_CI_CASES").is_ok_and(|words| !name.contains(&words))
}

/// Prints the names.
pub(crate) fn list() {
    for suite in SUITES {
        println!("{:12} {}", suite.name, suite.about);
    }
}

/// Runs the suite that `words` name, with what follows the name.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode> {
    let (name, args) = words.split_first().context("which suite?")?;
    let Some(suite) = SUITES.iter().find(|suite| suite.name == name) else {
        let names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        bail!("there is no suite {name}; there are: {}", names.join(", "));
    };
    let mut run = Run {
        root: root.to_owned(),
        args: args.to_vec(),
        passed: 0,
        failed: 0,
        failure_lines: Vec::new(),
        flush_seconds: "0",
    };
    // What keeps the suite as a whole from going on is a failed case too, whichever were asked for.
    if let Err(error) = (suite.run)(&mut run) {
        run.count("the suite itself", Err(error), "");
    }
    run.failure_lines.iter().for_each(|line| println!("  FAILED  {line}"));
    println!("{name}: {} passed, {} failed", run.passed, run.failed);
    let good = run.failed == 0 && run.passed > 0;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Of a failure's text the lines with a seed, and what each panic said: ten at most, and no long ones.
fn failure_lines(text: &str) -> impl Iterator<Item = String> {
    let mut lines: Vec<String> = Vec::new();
    let mut panicked = false;
    for line in text.lines() {
        let is_relevant = panicked || (line.contains("SEED=") && !line.contains(" kept inputs"));
        panicked = line.contains("panicked at ");
        let line: String = line.trim().chars().take(400).collect();
        if is_relevant && lines.len() < 10 && !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.into_iter()
}

/// Runs a program to its end; what it printed is in the error where it failed, else the answer.
fn output(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let output = command.output().with_context(|| format!("cannot run {shown}"))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    tally::note(&text);
    ensure!(output.status.success(), "{shown} ended with {}:\n{text}", output.status);
    Ok(text)
}

/// Whether a program of that name is on the path.
fn has(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

/// Installs Debian packages where one of their programs is missing; only root can.
fn need(program: &str, packages: &[&str]) -> Result<()> {
    need_what(program, packages, || has(program))
}

/// Installs Debian packages where what they bring is missing; only root can.
fn need_what(what: &str, packages: &[&str], is_here: impl Fn() -> bool) -> Result<()> {
    if is_here() {
        return Ok(());
    }
    println!("  {what} is missing: installing {}", packages.join(" "));
    output(apt().args(["update", "--quiet"]))?;
    output(apt().args(["install", "--yes", "--quiet", "--no-install-recommends"]).args(packages))?;
    ensure!(is_here(), "{what} is still missing");
    Ok(())
}

/// Debian's installer. Two suites may need something at once, and not each lock of its own waits: the folder is locked.
fn apt() -> Command {
    let mut apt = Command::new("flock");
    apt.args(["/var/lib/apt", "apt-get"]).env("DEBIAN_FRONTEND", "noninteractive");
    apt
}

/// Unpacks Debian packages below the build folder, without installing them; nothing to do where these programs are there.
fn unpacked(root: &Path, name: &str, packages: &[&str], programs: &[&str]) -> Result<PathBuf> {
    let folder = target(root).join(name);
    let (downloads, tree) = (folder.join("packages"), folder.join("root"));
    if programs.iter().all(|program| tree.join(program).is_file()) {
        return Ok(tree);
    }
    std::fs::create_dir_all(&downloads).with_context(|| format!("no folder {}", downloads.display()))?;
    let apt = |words: &[&str]| output(apt().current_dir(&downloads).args(words)).map(drop);
    apt(&["update", "--quiet"])?;
    apt(&[&["download", "--quiet"], packages].concat())?;
    for package in std::fs::read_dir(&downloads)? {
        output(Command::new("dpkg").arg("-x").arg(package?.path()).arg(&tree))?;
    }
    Ok(tree)
}

/// Builds a binary of the workspace and answers its path.
fn build(root: &Path, name: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Of the whole workspace, so that crates have the features with which `cargo test --workspace` has built them.
    output(Command::new(cargo).current_dir(root).args(["build", "--quiet", "--workspace", "--bin", name]))?;
    let binary = target(root).join("debug").join(name);
    ensure!(binary.is_file(), "{} was not built", binary.display());
    Ok(binary)
}

/// Makes cargo leave programs of another kind in a folder of their own, so that nobody takes them for the plain ones. What
/// both have in common is built once.
fn set_apart<'a>(cargo: &'a mut Command, root: &Path, folder: &Path) -> &'a mut Command {
    cargo.env("CARGO_BUILD_BUILD_DIR", target(root)).env("CARGO_TARGET_DIR", folder)
}

/// Where cargo builds.
pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// A daemon for as long as `body` runs, in a folder of its own within another; its address is given.
fn with_daemon<T>(program: &Path, within: &Path, body: impl FnOnce(&str) -> Result<T>) -> Result<T> {
    let folder = tempfile::tempdir_in(within)?;
    let mut command = Command::new(program);
    command.arg("run").current_dir(folder.path()).env_remove("RUNTIME_DIRECTORY").env_remove("STATE_DIRECTORY");
    for set in ["ingest.tcp.listen=", "ingest.grpc.listen=", "metrics.listen=", "journal.segment_bytes=16MiB"] {
        command.args(["--set", set]);
    }
    command.args(["--set", "access.read_group=", "--set", "journal.power_loss_protected=true"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let socket = folder.path().join("clad-data/clad.sock");
    let listens = (0..3000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
    });
    let result =
        if listens { body(&format!("unix://{}", socket.display())) } else { Err(anyhow::anyhow!("no daemon")) };
    child.kill()?;
    child.wait()?;
    result
}

/// Makes a program of a command that runs where a daemon is the host's: its socket is `/run/clad/clad.sock` in a mount
/// namespace of the program's own, and nothing else names it.
fn with_hosts_daemon(address: &str, program: &Command) -> Command {
    const MOUNT: &str =
        r#"mount -t tmpfs none /run && mkdir /run/clad && ln -s "$1" /run/clad/clad.sock && shift && exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", MOUNT, "sh", address.trim_start_matches("unix://")]);
    command.arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env_remove("CLAD_SERVER");
    command
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{failure_lines, sdk_c, sdk_go, sdk_python};

    /// Without compiling anything: that a wrong version has lost its place is known in `cargo test`.
    #[test]
    fn every_wrong_version_of_a_client_fits_one_place() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for (file, right) in sdk_c::places().chain(sdk_go::places()).chain(sdk_python::places()) {
            let text = std::fs::read_to_string(root.join(&file)).expect(&file);
            assert_eq!(text.matches(right).count(), 1, "{file}: {right}");
        }
    }

    #[test]
    fn what_runs_a_failure_again_is_found_in_a_long_text() {
        let text = "simulation: CLAD_SEED=5 CLAD_SIM_RUNS=9\nok\nthread 'a' (1) panicked at b.rs:1:2:\n1 of 9 broke a rule:\n  \
                    CLAD_SEED=7 CLAD_SIM_RUNS=1: lost\nstack backtrace:\n  CLAD_SEED=7 CLAD_SIM_RUNS=1: lost\n";
        let shown: Vec<String> = failure_lines(text).collect();
        assert_eq!(
            shown,
            ["simulation: CLAD_SEED=5 CLAD_SIM_RUNS=9", "1 of 9 broke a rule:", "CLAD_SEED=7 CLAD_SIM_RUNS=1: lost"]
        );
        assert_eq!(failure_lines(&"SEED=1\n".repeat(50)).count(), 1);
        let many: String = (0..50).map(|n| format!("SEED={n}\n")).collect();
        assert_eq!(failure_lines(&many).count(), 10);
    }
}
