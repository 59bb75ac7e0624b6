//! The Debian tree that is booted: made once by debootstrap, copied for each run.
//!
//! Invariants: the mirror is the one that this machine's apt uses, found out when it is needed; a tree that was not
//! finished is never taken for one; the tree is of this host's own release.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::super::{apt, need, output};

/// Beside what every Debian has: the service manager, and what the manual's commands use.
const PACKAGES: &str = "systemd,systemd-sysv,systemd-journal-remote,dbus,curl";

/// The tree, made where it is not there yet. The package's own part is not in it.
pub(super) fn debian(cache: &Path) -> Result<PathBuf> {
    let codename = codename()?;
    // Another list of packages is another tree.
    let name = format!("debian-{codename}-{}", PACKAGES.replace(',', "+"));
    let tree = cache.join(&name);
    if tree.is_dir() {
        return Ok(tree);
    }
    need("debootstrap", &["debootstrap"])?;
    let mirror = mirror(&codename)?;
    fs::create_dir_all(cache)?;
    let making = cache.join(format!("{name}.making"));
    if making.exists() {
        fs::remove_dir_all(&making).context("an unfinished tree")?;
    }
    println!("  making a Debian tree (once)");
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.arg("--variant=minbase").arg(format!("--include={PACKAGES}")).arg(&codename).arg(&making);
    output(debootstrap.arg(&mirror))?;
    // Packages and their lists are of no more use, and would be copied each time.
    for waste in ["var/cache/apt", "var/lib/apt/lists", "usr/share/locale", "usr/share/man"] {
        let _ = fs::remove_dir_all(making.join(waste));
    }
    // dpkg wants its folder.
    fs::create_dir_all(making.join("var/cache/apt/archives/partial"))?;
    fs::rename(&making, &tree)?;
    Ok(tree)
}

/// A copy to boot.
pub(super) fn copy(tree: &Path, to: &Path) -> Result<()> {
    output(Command::new("cp").args(["--archive", "--reflink=auto"]).arg(tree).arg(to)).map(drop)
}

fn codename() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.context("no VERSION_CODENAME in /etc/os-release")?.trim_matches('"').to_owned())
}

/// Where this machine's apt gets this release from.
fn mirror(codename: &str) -> Result<String> {
    let format = "$(LABEL)\t$(SUITE)\t$(CODENAME)\t$(REPO_URI)";
    let ask = || output(apt().args(["indextargets", "--format", format, "Created-By: Packages"]));
    let find = |said: &str| {
        said.lines().find_map(|line| {
            let mut parts = line.split('\t');
            let (label, suite, name, uri) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
            // Updates and security fixes have suites of their own, which hold no whole system.
            (label == "Debian" && name == codename && !suite.contains("updates")).then(|| uri.to_owned())
        })
    };
    if let Some(uri) = find(&ask()?) {
        return Ok(uri);
    }
    output(apt().args(["update", "--quiet"]))?;
    let uri = find(&ask()?);
    ensure!(uri.is_some(), "this machine's apt has no source of {codename}");
    uri.context("just looked at")
}
