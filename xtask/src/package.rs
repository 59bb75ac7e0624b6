//! `cargo xtask package deb`: the Debian package, laid out by hand and closed by `dpkg-deb`.
//!
//! Invariants: what the manual says is installed is what is installed ([`FILES`]); an operator's files are conffiles;
//! installing starts nothing (the operator chooses a policy first), upgrading restarts what runs, removing stops it, and
//! nothing ever removes a log.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::c_library;

/// Where each file of the repository goes.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("deploy/clad.service", "usr/lib/systemd/system/clad.service"),
    ("deploy/clad.socket", "usr/lib/systemd/system/clad.socket"),
    ("deploy/clad@.service", "usr/lib/systemd/system/clad@.service"),
    ("deploy/clad@.socket", "usr/lib/systemd/system/clad@.socket"),
    ("deploy/clad-syslog.socket", "usr/lib/systemd/system/clad-syslog.socket"),
    ("deploy/clad-devlog.socket", "usr/lib/systemd/system/clad-devlog.socket"),
    ("deploy/sysusers.d/clad.conf", "usr/lib/sysusers.d/clad.conf"),
    ("deploy/clad.toml", "etc/clad/clad.toml"),
    ("deploy/mixin/dashboards/clad-disk.json", "usr/share/clad/mixin/dashboards/clad-disk.json"),
    ("deploy/mixin/dashboards/clad-throughput.json", "usr/share/clad/mixin/dashboards/clad-throughput.json"),
    ("deploy/mixin/rules/clad-alerts.yaml", "usr/share/clad/mixin/rules/clad-alerts.yaml"),
    ("deploy/mixin/rules/clad-recording.yaml", "usr/share/clad/mixin/rules/clad-recording.yaml"),
    ("docs/OPERATIONS.md", "usr/share/doc/clad/OPERATIONS.md"),
    ("docs/REFERENCE.md", "usr/share/doc/clad/REFERENCE.md"),
    ("docs/DURABILITY.md", "usr/share/doc/clad/DURABILITY.md"),
    ("docs/SENDERS.md", "usr/share/doc/clad/SENDERS.md"),
    ("CHANGELOG.md", "usr/share/doc/clad/CHANGELOG.md"),
    ("LICENSE-MIT", "usr/share/doc/clad/LICENSE-MIT"),
    ("LICENSE-APACHE", "usr/share/doc/clad/LICENSE-APACHE"),
];
/// The manual pages, by their sections.
const MAN: &str = "deploy/man";
/// Where shells look for what they complete.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/clactl"),
    ("zsh", "usr/share/zsh/vendor-completions/_clactl"),
    ("fish", "usr/share/fish/vendor_completions.d/clactl.fish"),
];
/// The programs, built.
pub(crate) const PROGRAMS: [&str; 2] = ["clad", "clactl"];
/// Files that dpkg leaves to the operator.
const CONFFILES: &str = "/etc/clad/clad.toml\n";

const POSTINST: &str = r#"#!/bin/sh
set -e
if [ "$1" = configure ]; then
    systemd-sysusers clad.conf
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        # An upgrade: what runs is replaced. clad.socket holds the sockets meanwhile.
        if [ -n "$2" ]; then
            systemctl try-restart clad.service 'clad@*.service'
        fi
    fi
fi
"#;
const PRERM: &str = r#"#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl stop clad.socket clad-syslog.socket clad-devlog.socket 'clad@*.socket' clad.service 'clad@*.service'
    systemctl disable --quiet clad.service clad.socket clad-syslog.socket clad-devlog.socket
fi
"#;
const POSTRM: &str = r#"#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
# The logs in /var/lib/clad and /var/lib/clad-* stay, and so does the user that owns them.
"#;

/// Lays the files out below `stage`, as the package installs them.
pub(crate) fn lay_out(root: &Path, programs: &[PathBuf], stage: &Path) -> Result<()> {
    for (from, to) in FILES {
        copy(&root.join(from), &stage.join(to), 0o644)?;
    }
    for page in fs::read_dir(root.join(MAN)).context("the manual pages")? {
        let page = page?.path();
        let name = page.file_name().context("a page has a name")?;
        let section = page.extension().and_then(|end| end.to_str()).context("a page has a section")?;
        copy(&page, &stage.join(format!("usr/share/man/man{section}")).join(name), 0o644)?;
    }
    for program in programs {
        let name = program.file_name().context("a program has a name")?;
        copy(program, &stage.join("usr/bin").join(name), 0o755)?;
        if name == "clactl" {
            complete(program, stage)?;
        }
    }
    Ok(())
}

/// What shells complete, as the program itself says it.
fn complete(clactl: &Path, stage: &Path) -> Result<()> {
    for (shell, to) in COMPLETIONS {
        let to = stage.join(to);
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        fs::write(&to, said(Command::new(clactl).args(["completions", shell]))?)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o644))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let folder = to.parent().context("a file has a folder")?;
    fs::create_dir_all(folder)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Makes the package of these programs in `out` and answers its path; `more` goes behind the version, and `compression` is
/// as `dpkg-deb` has it.
pub(crate) fn deb(root: &Path, programs: &[PathBuf], out: &Path, more: &str, compression: &str) -> Result<PathBuf> {
    let stage = tempfile::tempdir().context("no temporary folder")?;
    let tree = stage.path().join("tree");
    lay_out(root, programs, &tree)?;
    let meta = tree.join("DEBIAN");
    fs::create_dir_all(&meta)?;
    let architecture = said(Command::new("dpkg").arg("--print-architecture"))?;
    let version = format!("{}{more}", env!("CARGO_PKG_VERSION"));
    fs::write(meta.join("control"), control(&version, architecture.trim(), &tree, programs)?)?;
    fs::write(meta.join("conffiles"), CONFFILES)?;
    for (name, text) in [("postinst", POSTINST), ("prerm", PRERM), ("postrm", POSTRM)] {
        fs::write(meta.join(name), text)?;
        fs::set_permissions(meta.join(name), fs::Permissions::from_mode(0o755))?;
    }
    for folder in [&tree, &meta] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    fs::create_dir_all(out)?;
    let package = out.join(format!("clad_{version}_{}.deb", architecture.trim()));
    said(Command::new("dpkg-deb").args(["--root-owner-group", compression, "--build"]).arg(&tree).arg(&package))?;
    Ok(package)
}

fn control(version: &str, architecture: &str, tree: &Path, programs: &[PathBuf]) -> Result<String> {
    let kibibytes = size(tree)?.div_ceil(1024);
    let mut glibc = (0, 0);
    for program in programs {
        glibc = glibc.max(needed_glibc(&fs::read(program)?));
    }
    Ok(format!(
        "Package: clad\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: The clad developers <clad@invalid>\n\
         Section: admin\nPriority: optional\nInstalled-Size: {kibibytes}\n\
         Depends: libc6 (>= {}.{}), libgcc-s1, systemd (>= 247)\n\
         Description: Central Logging Authority of a host\n \
         One daemon that every program on the host hands its log records to, and that\n \
         answers each of them with exactly how safe its record now is.\n",
        glibc.0, glibc.1
    ))
}

/// The newest version of the C library whose symbols a program asks for.
fn needed_glibc(program: &[u8]) -> (u32, u32) {
    let mark = b"GLIBC_2.";
    let minor = program.windows(mark.len() + 2).filter(|w| w.starts_with(mark)).filter_map(|w| {
        let digits = &w[mark.len()..];
        let len = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
        std::str::from_utf8(&digits[..len]).ok()?.parse().ok()
    });
    (2, minor.max().unwrap_or(0))
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { size(&entry.path())? } else { meta.len() };
    }
    Ok(bytes)
}

/// The command: builds for release and leaves the package in `target/package/`, or the library for C in a folder.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<PathBuf> {
    if let [kind, folder] = words
        && kind == "c"
    {
        let prefix = std::path::absolute(folder)?;
        let built = c_library::build(root, &crate::ci::target(root), "shipped")?;
        c_library::install(root, &built, &prefix)?;
        return Ok(prefix);
    }
    ensure!(words == ["deb"], "cargo xtask package deb, or cargo xtask package c FOLDER");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(root).args(["build", "--locked", "--release", "--package", "clad", "--package", "clactl"]);
    ensure!(build.status()?.success(), "the programs were not built");
    let target = crate::ci::target(root);
    let programs = PROGRAMS.map(|name| target.join("release").join(name));
    deb(root, &programs, &target.join("package"), "", "-Zxz")
}

fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "{command:?}:\n{text}");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_the_newest_that_is_named() {
        assert_eq!(needed_glibc(b"..GLIBC_2.2.5..GLIBC_2.34\0GLIBC_2.4\0\0"), (2, 34));
        assert_eq!(needed_glibc(b"static"), (2, 0));
    }

    #[test]
    fn every_unit_rule_and_dashboard_of_the_repository_is_packaged() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for entry in fs::read_dir(root.join("deploy")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let unit = name.ends_with(".service") || name.ends_with(".socket");
            let from = format!("deploy/{name}");
            assert!(!unit || FILES.iter().any(|(file, _)| *file == from), "{from} is in no package");
        }
        for folder in ["deploy/mixin/rules", "deploy/mixin/dashboards"] {
            for entry in fs::read_dir(root.join(folder)).unwrap() {
                let from = format!("{folder}/{}", entry.unwrap().file_name().into_string().unwrap());
                assert!(FILES.iter().any(|(file, _)| *file == from), "{from} is in no package");
            }
        }
    }
}
