//! What threads share, in every order that a scheduler thinks of.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Run, output};

/// Orders of each model that every change passes; all that the tests have by themselves are 2,000.
const ORDERS: u32 = 400;

/// The test of the models: what one case builds for it, the next has.
const ORDERS_TEST: [&str; 9] =
    ["test", "--profile", "sim", "--package", "clad-models", "--features", "journal", "--test", "orders"];

/// `cargo xtask ci models 100000`: so many orders of each model.
pub(super) fn run(run: &mut Run) -> Result<()> {
    let orders = match run.args.as_slice() {
        [] => ORDERS,
        [orders] => orders.parse::<u32>().context("cargo xtask ci models [ORDERS]")?,
        more => anyhow::bail!("cargo xtask ci models [ORDERS], not {}", more.join(" ")),
    };
    let root = run.root.clone();
    let cargo = || {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&root);
        cargo
    };
    run.case("without debug assertions a build with the models' locks does not compile", || {
        for package in ["clad-journal", "clad-client"] {
            let mut command = cargo();
            command.arg("--config").arg(format!("profile.sim.package.{package}.debug-assertions=false"));
            let refused = command.args(ORDERS_TEST).args(["--quiet", "--no-run"]).output()?;
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            let is_refused = !refused.status.success() && said.contains("must not be in a release build");
            ensure!(is_refused, "{package} compiles: {said}");
        }
        Ok(())
    });
    run.case("every order keeps what must hold, and each wrong version is found", || {
        let mut command = cargo();
        command.args(ORDERS_TEST).args(["--", "--nocapture"]);
        command.env("CLAD_MODEL_ORDERS", orders.to_string());
        let said = output(&mut command)?;
        let results = || {
            said.lines().filter(|l| ["model", "caught ", "MISSED ", "FAILED "].iter().any(|start| l.starts_with(start)))
        };
        results().for_each(|line| println!("          {line}"));
        ensure!(results().any(|line| line.starts_with("models: ")), "the test said nothing:\n{said}");
        Ok(())
    });
    Ok(())
}
