//! The Rust client: a first record as the page says it, and its receipts over deaths of daemon, clients and connections.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Run, build, chaos, output, target, with_daemon};

/// The page that begins with it.
const PAGE: &str = "docs/EXAMPLES.md";
/// Lines of the program that do something.
const FIRST_RECORD_STATEMENTS_MAX: usize = 5;

pub(super) fn run(run: &mut Run) -> Result<()> {
    let kills = chaos::kills(run)?;
    let root = run.root.clone();
    run.case("a first durable record, as the page says it", || first_record(&root));
    // Built with the harness.
    let agent = target(&run.root).join("debug/clad-e2e-chaos-agent");
    chaos::chaos_with_rings(run, "Rust", &agent.display().to_string(), kills);
    Ok(())
}

/// In an empty folder, with nothing but what the page says.
fn first_record(root: &Path) -> Result<()> {
    let page = std::fs::read_to_string(root.join(PAGE))?;
    let block = |kind: &str| page.split(&format!("```{kind}\n")).nth(1)?.split("```").next();
    let (dependency, program) = block("toml").zip(block("rust")).with_context(|| format!("no program in {PAGE}"))?;
    let body = program.split("fn main()").nth(1).context("no main")?;
    ensure!(body.matches(';').count() <= FIRST_RECORD_STATEMENTS_MAX, "too many statements:\n{program}");
    let (target, data) = (target(root), target(root).join("tmp"));
    std::fs::create_dir_all(&data)?;
    let folder = tempfile::tempdir_in(&data)?;
    let dependency = dependency.replace("clad/client-sdk", &root.join("client-sdk").display().to_string());
    let package = "[package]\nname = \"first\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n";
    std::fs::write(folder.path().join("Cargo.toml"), format!("{package}{dependency}"))?;
    std::fs::copy(root.join("Cargo.lock"), folder.path().join("Cargo.lock"))?;
    std::fs::create_dir(folder.path().join("src"))?;
    std::fs::write(folder.path().join("src/main.rs"), program)?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    output(cargo.current_dir(folder.path()).args(["build", "--quiet"]).env("CARGO_TARGET_DIR", &target))?;
    let clactl = build(root, "clactl")?;
    with_daemon(&build(root, "clad")?, &data, |address| {
        let said = output(Command::new(target.join("debug/first")).env("CLAD_SERVER", address))?;
        ensure!(said.contains("first_offset: Some(0)") && said.contains("level: Durable"), "{said}");
        let stored = output(Command::new(clactl).args(["query", "--server", address, "-o", "cat"]))?;
        ensure!(stored.trim() == "paid", "the log has:\n{stored}");
        Ok(())
    })
}
