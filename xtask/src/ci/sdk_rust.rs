//! The Rust client: its examples as the page has them, and its receipts over deaths of daemon, clients and connections.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::examples::{self, with_example};
use super::{Run, build, chaos, need, output, target, with_daemon, with_hosts_daemon};

/// Lines of the program that do something.
const FIRST_RECORD_STATEMENTS_MAX: usize = 5;

pub(super) fn run(run: &mut Run) -> Result<()> {
    let kills = chaos::kills(run)?;
    need("curl", &["curl"])?;
    let root = run.root.clone();
    for (heading, case) in [
        (examples::FIRST_RECORD, first_record as fn(&Path) -> Result<()>),
        (examples::RUST_SERVICE, service),
        (examples::AUDIT, audit),
        (examples::TAILER, tailer),
    ] {
        run.case(&examples::name(heading), || case(&root));
    }
    run.case("one line of set-up finds the host's daemon", || hosts_daemon(&root));
    // Built with the harness.
    let agent = target(&run.root).join("debug/clad-e2e-chaos-agent");
    chaos::chaos_with_rings(run, "Rust", &agent.display().to_string(), kills);
    Ok(())
}

/// In an empty folder, with nothing but what the page says.
fn first_record(root: &Path) -> Result<()> {
    let block = |kind| examples::block(root, examples::FIRST_RECORD, kind);
    let (dependency, program) = (block("toml")?, block("rust")?);
    let body = program.split("fn main()").nth(1).context("no main")?;
    ensure!(body.matches(';').count() <= FIRST_RECORD_STATEMENTS_MAX, "too many statements:\n{program}");
    let (target, data) = (target(root), target(root).join("tmp"));
    std::fs::create_dir_all(&data)?;
    let folder = tempfile::tempdir_in(&data)?;
    let dependency = dependency.replace("clad/client-sdk", &root.join("client-sdk").display().to_string());
    let package = "[package]\nname = \"first\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n";
    // As the workspace has it, so that what was built for it is used.
    let manifest = std::fs::read_to_string(root.join("Cargo.toml"))?;
    let profile = manifest.find("[profile.dev]\n").map(|at| &manifest[at..]).context("no profile")?;
    std::fs::write(folder.path().join("Cargo.toml"), format!("{package}{dependency}\n{profile}"))?;
    std::fs::copy(root.join("Cargo.lock"), folder.path().join("Cargo.lock"))?;
    std::fs::create_dir(folder.path().join("src"))?;
    std::fs::write(folder.path().join("src/main.rs"), program)?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.env("CARGO_TARGET_DIR", &target);
    output(cargo.current_dir(folder.path()).args(["build", "--quiet"]))?;
    let clactl = build(root, "clactl")?;
    with_daemon(&build(root, "clad")?, &data, |address| {
        let said = output(Command::new(target.join("debug/first")).env("CLAD_SERVER", address))?;
        ensure!(said.contains("first_offset: Some(0)") && said.contains("level: Durable"), "{said}");
        let stored = output(Command::new(clactl).args(["query", "--server", address, "-o", "cat"]))?;
        ensure!(stored.trim() == "paid", "the log has:\n{stored}");
        Ok(())
    })
}

/// The program of the layer's tests that logs and returns.
fn hosts_daemon(root: &Path) -> Result<()> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["test", "--no-run", "--workspace", "--test", "program"]);
    let said = output(&mut cargo)?;
    let line = said.lines().find(|line| line.contains("Executable tests/program.rs ")).context("no test was built")?;
    let path = line.rsplit_once('(').and_then(|(_, path)| path.strip_suffix(')')).context("no path of the test")?;
    let data = target(root).join("tmp");
    with_daemon(&build(root, "clad")?, &data, |address| {
        let mut program = Command::new(root.join(path));
        program.args(["--exact", "program"]).env("CLAD_TRACING_PROGRAM", "returns").env_remove("RUST_LOG");
        output(&mut with_hosts_daemon(address, &program))?;
        let query = ["query", "--server", address, "-o", "cat"];
        let stored = output(Command::new(build(root, "clactl")?).args(query))?;
        ensure!(stored.lines().any(|line| line == "from tracing"), "the log has:\n{stored}");
        Ok(())
    })
}

fn service(root: &Path) -> Result<()> {
    with_example(root, examples::RUST_SERVICE, |example| {
        example.take_free_port(8080)?;
        let said = example.run()?;
        ensure!(said.lines().any(|line| line == "hello"), "it does not answer");
        let record = example.record("answered")?;
        let attributes = &record["attributes"];
        let (status, path) = (&attributes["status"], &attributes["spans"][0]["path"]);
        ensure!(*status == 200 && *path == "/hello", "{record}");
        Ok(())
    })
}

fn audit(root: &Path) -> Result<()> {
    with_example(root, examples::AUDIT, |example| {
        let done = example.move_here("done.txt")?;
        example.run()?;
        example.record("paid 7")?;
        ensure!(std::fs::read_to_string(&done)? == "paid 7\n", "it is not done once");
        example.shell.env("CLAD_SERVER", "unix:///nowhere");
        let said = example.run()?;
        ensure!(said.contains("not done: paid 7: "), "nothing says that it is not done");
        ensure!(std::fs::read_to_string(&done)? == "paid 7\n", "it is done without a record");
        Ok(())
    })
}

fn tailer(root: &Path) -> Result<()> {
    with_example(root, examples::TAILER, |example| {
        let cursor = example.move_here("cursor.txt")?;
        example.append("first")?;
        example.start()?;
        example.says("0 first")?;
        examples::until(examples::SOON, "its place is stored", || Ok(cursor.exists().then_some(())))?;
        example.end()?;
        example.append("second")?;
        example.start()?;
        let said = example.says("1 second")?;
        ensure!(!said.contains("first"), "it began again");
        Ok(())
    })
}
