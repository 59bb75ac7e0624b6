//! The Go client: its format, its tests with the race detector, and its receipts under chaos.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::examples::{self, with_example};
use super::{Run, build, chaos, has, need, output, target};

/// Deaths while the agent has the race detector.
const KILLS_WITH_RACES: u64 = 20;
/// The oldest Go that has what the client uses, as in its `go.mod`.
const GO_MINOR_MIN: u32 = 22;

pub(super) fn run(run: &mut Run) -> Result<()> {
    let kills = chaos::kills(run)?;
    if tool("go") == Path::new("go") {
        need("go", &["golang-go"])?;
    }
    need("cc", &["gcc", "libc6-dev"])?; // the race detector is in C
    need("mkfs.ext4", &["e2fsprogs"])?;
    need("curl", &["curl"])?;
    let root = run.root.clone();
    let version = output(go(&root, "go").arg("version"))?;
    ensure!(minor(&version) >= Some(GO_MINOR_MIN), "go 1.{GO_MINOR_MIN} or newer is needed, not {}", version.trim());
    let daemon = build(&root, "clad")?;
    // A folder for temporary files may be in memory, where `durable` is not offered.
    let folder = target(&root).join("tmp").join("sdk-go");
    std::fs::create_dir_all(&folder)?;
    let test = |words: &[&str]| {
        let mut command = go(&root, "go");
        command.args(["test", "-count=1"]).args(words).env("CLAD_BIN", &daemon).env("CLAD_TEST_DIR", &folder);
        command
    };

    run.case("gofmt has nothing to change", || {
        let said = output(go(&root, "gofmt").args(["-l", "."]))?;
        ensure!(said.is_empty(), "not as gofmt writes them:\n{said}");
        Ok(())
    });
    run.case("go vet", || output(go(&root, "go").args(["vet", "./..."])).map(drop));
    run.case("no package but its own and the standard library's, and no C", || {
        let said = output(go(&root, "go").args(["list", "-deps", "-f", OTHERS, "./..."]).env("CGO_ENABLED", "0"))?;
        ensure!(said.trim().is_empty(), "others:\n{said}");
        Ok(())
    });
    run.case("every test, with the race detector and a real daemon", || {
        let said = output(&mut test(&["-race", "-v", "./..."]))?;
        let skipped: Vec<&str> = said.lines().filter(|line| line.contains("--- SKIP")).collect();
        ensure!(skipped.len() == 1 && said.contains(WITHOUT_RACES), "skipped: {skipped:?}");
        Ok(())
    });
    run.case("a logging call allocates nothing", || {
        let said = output(&mut test(&["-v", "-run", "TestACallAllocatesNothing", "."]))?;
        ensure!(said.contains("--- PASS: TestACallAllocatesNothing"), "it did not run:\n{said}");
        Ok(())
    });
    run.case(&examples::name(examples::GO_SERVICE), || service(&root));
    for fault in FAULTS {
        run.case(&format!("a wrong version is caught: {}", fault.wrong), || is_caught(&root, &daemon, &folder, fault));
    }
    let agent = folder.join("agent");
    // A race ends the agent at once, so that a kill does not hide it.
    let with_races = format!("env GORACE=halt_on_error=1 {}", agent.display());
    for (name, flag, command, kills) in [
        ("Go", "-race=false", agent.display().to_string(), kills),
        ("Go with the race detector", "-race", with_races, KILLS_WITH_RACES),
    ] {
        output(go(&root, "go").args(["build", flag, "-o"]).arg(&agent).arg("./internal/agent"))?;
        chaos::chaos(run, name, &command, kills);
    }
    Ok(())
}

fn service(root: &Path) -> Result<()> {
    with_example(root, examples::GO_SERVICE, |example| {
        example.take_free_port(8081)?;
        let set = go(root, "go");
        example.shell.envs(set.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Some(folder) = tool("go").parent().filter(|folder| folder.is_absolute()) {
            example.find_programs_in(folder);
        }
        let said = example.run()?;
        let record = example.record("order taken")?;
        let answer = format!("order {}, durable", record["offset"]);
        ensure!(said.lines().any(|line| line == answer), "it does not answer `{answer}`");
        ensure!(record["attributes"]["item"] == "tea", "{record}");
        let request = example.record("request")?;
        ensure!(request["attributes"]["path"] == "/order", "{request}");
        Ok(())
    })
}

/// Packages that are neither the client's nor Go's own.
const OTHERS: &str = r#"{{if not .Standard}}{{if ne (printf "%.4s" .ImportPath) "clad"}}{{.ImportPath}}{{end}}{{end}}"#;
/// The one test that needs to be without the race detector, which allocates.
const WITHOUT_RACES: &str = "--- SKIP: TestACallAllocatesNothing";

/// A wrong version of the client: one place of the text is changed, and a test must fail.
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
    FAULTS.iter().map(|fault| (format!("client-sdk/go/{}", fault.file), fault.from))
}

const FAULTS: &[Fault] = &[
    Fault {
        wrong: "ACCEPTED is taken for `written`",
        file: "session.go",
        from: "return level <= Received ||",
        to: "return level <= Written ||",
        caught_by: "TestSeededHistories",
    },
    Fault {
        wrong: "places are believed over a reconnect into another epoch",
        file: "session_resume.go",
        from: "\tif same {",
        to: "\tif true {",
        caught_by: "TestSeededHistories",
    },
    Fault {
        wrong: "a watermark of the next epoch covers what lies above its first offset",
        file: "session_answers.go",
        from: "uint64(e.count) > cut {",
        to: "uint64(e.count) > cut+1000 {",
        caught_by: "TestSeededHistories",
    },
    Fault {
        wrong: "an append jumps over one without an outcome",
        file: "session.go",
        from: "if seq > l.expected && at > 0 {",
        to: "if false {",
        caught_by: "TestSeededHistories",
    },
    Fault {
        wrong: "after a refusal more is sent before everything is answered",
        file: "session_answers.go",
        from: "l.hold = true",
        to: "l.hold = false",
        caught_by: "TestAfterARefusalForNowNothingIsOvertaken",
    },
    Fault {
        wrong: "what was sent is said to be not written",
        file: "session.go",
        from: "err = err.with(e.maybeWritten())",
        to: "_ = err.with(e.maybeWritten())",
        caught_by: "TestAFencedProducerIsFinal",
    },
    Fault {
        wrong: "drops of the oldest are not counted",
        file: "producer.go",
        from: "case err.Reason == ReasonDropped:\n",
        to: "case err.Reason == ReasonDropped:\n\t\tbreak\n",
        caught_by: "TestDropsAndStoredAddUpToLogged",
    },
    Fault {
        wrong: "a severe record takes the room that is free for those who wait",
        file: "producer.go",
        from: "if len(p.waiters) == 0 { //",
        to: "if true { //",
        caught_by: "TestDropBelowLeavesTheTurnOfThoseThatWait",
    },
    Fault {
        wrong: "a reader comes back to the append that it has",
        file: "reader.go",
        from: "uint64(f.Skip) + uint64(f.Take)\n",
        to: "uint64(f.Skip)\n",
        caught_by: "TestAReaderComesBackToItsCursor",
    },
    Fault {
        wrong: "the checksum of a payload is not compared",
        file: "reader.go",
        from: "if wire.CRC(f.Payload) != f.PayloadCRC {",
        to: "if false {",
        caught_by: "TestDamageIsSeenBeforeUse",
    },
    Fault {
        wrong: "a level is lowered to what the log offers",
        file: "session.go",
        from: "e.sentLevel = e.level\n",
        to: "e.sentLevel = min(e.level, l.highest)\n",
        caught_by: "TestConversations",
    },
    Fault {
        wrong: "the daemon's certificate is not checked",
        file: "tls.go",
        from: "RootCAs: roots,",
        to: "InsecureSkipVerify: true,",
        caught_by: "TestWhoIsNotTrustedHearsWhy",
    },
    Fault {
        wrong: "a session goes on though its files have changed",
        file: "tls.go",
        from: "h.read.equal(files)",
        to: "true",
        caught_by: "TestAReconnectResumesItsSession",
    },
    Fault {
        wrong: "the end of a session is waited for",
        file: "tls.go",
        from: "return c.NetConn().Close()",
        to: "return c.Conn.Close()",
        caught_by: "TestTheEndOfASessionIsNotWaitedFor",
    },
];

/// Runs the tests of a wrong version: the right one passes, so the failure is the fault's.
fn is_caught(root: &Path, daemon: &Path, data: &Path, fault: &Fault) -> Result<()> {
    let folder = target(root).join("tmp").join("sdk-go-fault");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    output(Command::new("cp").arg("-r").arg(root.join("client-sdk/go")).arg(&folder))?;
    let wrong = folder.join("go");
    let path = wrong.join(fault.file);
    let text = std::fs::read_to_string(&path)?;
    ensure!(text.matches(fault.from).count() == 1, "its place is not there once: {}", fault.from);
    std::fs::write(&path, text.replace(fault.from, fault.to))?;
    let mut command = go(root, "go");
    command.current_dir(&wrong).args(["test", "-count=1", "-timeout", "60s", "-run", fault.caught_by, "."]);
    command.env("CLAD_BIN", daemon).env("CLAD_TEST_DIR", data);
    // From the seeds that were seen to catch it.
    let ended = command.env("CLAD_VECTORS", root.join("vectors")).env_remove("CLAD_SEED").output()?;
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    // A test whose helper panics names itself in the trace alone.
    let caught = !ended.status.success() && said.contains(fault.caught_by) && !said.contains("[build failed]");
    ensure!(caught, "it is not caught:\n{said}{}", String::from_utf8_lossy(&ended.stderr));
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// A program of Go's: on the PATH, or where Go's own instructions install it.
pub(super) fn tool(program: &str) -> PathBuf {
    let installed = Path::new("/usr/local/go/bin").join(program);
    if has(program) || !installed.is_file() { program.into() } else { installed }
}

/// A program of Go, in the client's folder. It downloads nothing and leaves nothing outside of the build folder.
pub(super) fn go(root: &Path, program: &str) -> Command {
    let mut command = Command::new(tool(program));
    command.current_dir(root.join("client-sdk/go"));
    command.env("GOCACHE", target(root).join("go-cache")).env("GOPATH", target(root).join("go-path"));
    command.env("GOTOOLCHAIN", "local").env("GOPROXY", "off").env("GOFLAGS", "").env("GOWORK", "off");
    command
}

/// A call of Go in a module that may download; `go.sum` says what. Its files can be removed with the build folder.
pub(super) fn downloading(root: &Path, module: &Path) -> Result<Command> {
    if tool("go") == Path::new("go") {
        need("go", &["golang-go"])?;
    }
    let mut go = go(root, "go");
    // An older Go fetches the one that a module asks for.
    for name in ["GOTOOLCHAIN", "GOPROXY"] {
        go.env_remove(name);
        go.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    go.current_dir(module).env("GOFLAGS", "-modcacherw").env("CGO_ENABLED", "0");
    Ok(go)
}

/// `go version go1.22.3 linux/amd64` is 22.
fn minor(version: &str) -> Option<u32> {
    let (_, rest) = version.split_once("go1.")?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::minor;

    #[test]
    fn versions_of_go_are_read() {
        assert_eq!(minor("go version go1.26.8 linux/amd64"), Some(26));
        assert_eq!(minor("go version go1.22rc1 linux/amd64"), Some(22));
        assert_eq!(minor("go version devel"), None);
    }
}
