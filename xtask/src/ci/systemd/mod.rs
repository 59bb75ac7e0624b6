//! The units. On a staged tree: they load without a word, and `systemd-analyze security` finds them closed enough. And
//! installed by the package on a Debian that is booted ([`booted`]).

mod booted;
mod long;
mod machine;
mod manual;
mod mistakes;
mod relay;
mod syslog;
mod tree;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Run, build, need, output};
use crate::package;

/// Most exposure that is bearable, in tenths: what the service manager calls 1.7. Of this, 0.2 are two questions to the kernel:
/// whether the clock is synchronised (no ProtectClock=), and whose a connection is (AF_NETLINK).
const THRESHOLD: u32 = 17;
/// Where the service manager keeps its own units.
const UNIT_FOLDERS: [&str; 2] = ["usr/lib/systemd/system", "lib/systemd/system"];
/// All of them, the instance's by a name.
const SHIPPED_UNITS: [&str; 6] = [
    "clad.service",
    "clad.socket",
    "clad-syslog.socket",
    "clad-devlog.socket",
    "clad@audit.service",
    "clad@audit.socket",
];
/// The keys in which the instance's unit may differ from the host's.
const OWN_KEYS: [&str; 6] = ["Description=", "ExecStart=", "StateDirectory=", "RuntimeDirectory=", "Wants=", "Also="];

pub(super) fn run(run: &mut Run) -> Result<()> {
    run.no_args()?;
    need("systemd-analyze", &["systemd"])?;
    let deploy = run.root.join("deploy");
    let stage = tempfile::tempdir().context("no temporary folder")?;
    let units = lay_out(&run.root, stage.path())?;

    for unit in SHIPPED_UNITS {
        run.case(&format!("{unit} loads without a word"), || verify(stage.path(), unit));
    }
    for unit in ["clad.service", "clad@.service"] {
        run.case(&format!("{unit} is closed enough"), || closed(&units.join(unit)));
    }
    run.case("a misspelt key would be seen", || {
        let unit = units.join("misspelt.service");
        let text = fs::read_to_string(deploy.join("clad.service"))?;
        fs::write(&unit, text.replace("RestrictRealtime=", "RestictRealtime="))?;
        ensure!(verify(stage.path(), "misspelt.service").is_err(), "it was not");
        Ok(())
    });
    run.case("the instance differs from the host's log where it must, and nowhere else", || same_rules(&deploy));
    run.case("the user can be made", || {
        output(Command::new("systemd-sysusers").arg("--dry-run").arg(root_flag(stage.path())).arg("clad.conf"))
            .map(drop)
    });
    run.case("the example is a configuration", || {
        let file = deploy.join("clad.toml");
        let binary = stage.path().join("usr/bin/clad");
        output(Command::new(binary).arg("config").arg("--config").arg(file)).map(drop)
    });
    drop(stage);
    booted::run(run)
}

/// Lays out what the package installs, and the host's own targets beside it.
fn lay_out(root: &Path, stage: &Path) -> Result<PathBuf> {
    let units = stage.join(UNIT_FOLDERS[0]);
    package::lay_out(root, &[build(root, "clad")?], stage)?;
    symlink("usr/bin", stage.join("bin"))?;
    let host = UNIT_FOLDERS
        .iter()
        .map(|folder| Path::new("/").join(folder))
        .find(|folder| folder.join("basic.target").exists())
        .context("the service manager's own units are not on this host")?;
    for entry in fs::read_dir(host)? {
        let entry = entry?;
        let target = entry.path().extension().is_some_and(|end| end == "target");
        if target && entry.path().is_file() {
            fs::copy(entry.path(), units.join(entry.file_name()))?;
        }
    }
    Ok(units)
}

fn root_flag(stage: &Path) -> String {
    format!("--root={}", stage.display())
}

/// An unknown key is only a warning to the service manager, and a rule that is not kept to us.
fn verify(stage: &Path, unit: &str) -> Result<()> {
    let said = output(Command::new("systemd-analyze").arg("verify").arg(root_flag(stage)).arg(unit))?;
    ensure!(said.trim().is_empty(), "{said}");
    Ok(())
}

fn closed(unit: &Path) -> Result<()> {
    let said = output(
        Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--no-pager"])
            .arg(format!("--threshold={THRESHOLD}"))
            .arg(unit),
    )?;
    // By number too: a version that does not know the threshold would pass anything.
    let exposure: f64 = said
        .lines()
        .find_map(|line| line.split_once("Overall exposure level for ")?.1.split(": ").nth(1)?.split(' ').next())
        .context("no exposure in its answer")?
        .parse()
        .context("the exposure is no number")?;
    println!("          exposure {exposure}");
    ensure!(exposure * 10.0 <= f64::from(THRESHOLD), "exposure {exposure}");
    Ok(())
}

fn same_rules(deploy: &Path) -> Result<()> {
    let rules = |unit: &str| -> Result<(Vec<String>, Vec<String>)> {
        let text = fs::read_to_string(deploy.join(unit))?;
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        Ok(lines.map(str::to_owned).partition(|line| OWN_KEYS.iter().any(|key| line.starts_with(key))))
    };
    let (own, shared) = rules("clad.service")?;
    let (instance_own, instance_shared) = rules("clad@.service")?;
    ensure!(shared == instance_shared, "their other lines differ");
    let same = own.iter().find(|line| instance_own.contains(line));
    ensure!(same.is_none(), "both have {same:?}");
    Ok(())
}
