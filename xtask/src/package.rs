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
    ("deploy/mixin/dashboards/clad-relay.json", "usr/share/clad/mixin/dashboards/clad-relay.json"),
    ("deploy/mixin/dashboards/clad-throughput.json", "usr/share/clad/mixin/dashboards/clad-throughput.json"),
    ("deploy/mixin/rules/clad-alerts.yaml", "usr/share/clad/mixin/rules/clad-alerts.yaml"),
    ("deploy/mixin/rules/clad-relay-alerts.yaml", "usr/share/clad/mixin/rules/clad-relay-alerts.yaml"),
    ("deploy/mixin/rules/clad-recording.yaml", "usr/share/clad/mixin/rules/clad-recording.yaml"),
    ("docs/OPERATIONS.md", "usr/share/doc/clad/OPERATIONS.md"),
    ("docs/REFERENCE.md", "usr/share/doc/clad/REFERENCE.md"),
    ("docs/DURABILITY.md", "usr/share/doc/clad/DURABILITY.md"),
    ("docs/SENDERS.md", "usr/share/doc/clad/SENDERS.md"),
    ("CHANGELOG.md", "usr/share/doc/clad/CHANGELOG.md"),
    ("LICENSE-MIT", "usr/share/doc/clad/LICENSE-MIT"),
    ("LICENSE-APACHE", "usr/share/doc/clad/LICENSE-APACHE"),
];
/// Those of the relay's package.
const RELAY_FILES: &[(&str, &str)] = &[
    ("deploy/clad-relay@.service", "usr/lib/systemd/system/clad-relay@.service"),
    ("deploy/sysusers.d/clad-relay.conf", "usr/lib/sysusers.d/clad-relay.conf"),
    ("deploy/fleet/archive.toml", "usr/share/clad-relay/fleet/archive.toml"),
    ("deploy/fleet/clad-relay@archive.service.d.conf", "usr/share/clad-relay/fleet/clad-relay@archive.service.d.conf"),
    ("deploy/fleet/clad-relay@kafka.service.d.conf", "usr/share/clad-relay/fleet/clad-relay@kafka.service.d.conf"),
    ("deploy/fleet/kafka.toml", "usr/share/clad-relay/fleet/kafka.toml"),
    ("deploy/fleet/logs.sql", "usr/share/clad-relay/fleet/logs.sql"),
    ("docs/ARCHIVE.md", "usr/share/doc/clad-relay/ARCHIVE.md"),
    ("docs/FLEET.md", "usr/share/doc/clad-relay/FLEET.md"),
    ("docs/FORWARDING.md", "usr/share/doc/clad-relay/FORWARDING.md"),
    ("docs/SENDERS.md", "usr/share/doc/clad-relay/SENDERS.md"),
    ("LICENSE-MIT", "usr/share/doc/clad-relay/LICENSE-MIT"),
    ("LICENSE-APACHE", "usr/share/doc/clad-relay/LICENSE-APACHE"),
];
/// The manual pages, by their sections.
const MAN: &str = "deploy/man";
const RELAY_MAN: &str = "relay/man";
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

const RELAY_POSTINST: &str = r#"#!/bin/sh
set -e
if [ "$1" = configure ]; then
    systemd-sysusers clad-relay.conf
    install -d -m 0755 /etc/clad/relay.d
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        if [ -n "$2" ]; then
            systemctl try-restart 'clad-relay@*.service'
        fi
    fi
fi
"#;
const RELAY_PRERM: &str = r#"#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl stop 'clad-relay@*.service'
fi
"#;
const RELAY_POSTRM: &str = r#"#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
# /var/lib/clad-relay stays: a relay that is installed again goes on where it was.
"#;

/// A package, but for its files.
struct Package {
    name: &'static str,
    depends: &'static str,
    description: &'static str,
    conffiles: &'static str,
    scripts: [(&'static str, &'static str); 3],
}

const CLAD: Package = Package {
    name: "clad",
    depends: "systemd (>= 247)",
    description: "Central Logging Authority of a host\n \
                  One daemon that every program on the host hands its log records to, and that\n \
                  answers each of them with exactly how safe its record now is.",
    conffiles: CONFFILES,
    scripts: [("postinst", POSTINST), ("prerm", PRERM), ("postrm", POSTRM)],
};
const RELAY: Package = Package {
    name: "clad-relay",
    depends: "systemd (>= 247), libssl3", // what librdkafka speaks TLS by
    description: "Relays of clad: systemd's journal and files\n \
                  Brings to clad what is logged elsewhere on the host, each record once,\n \
                  and from a clad to another clad, OTLP, Kafka, NATS or object storage.",
    conffiles: "",
    scripts: [("postinst", RELAY_POSTINST), ("prerm", RELAY_PRERM), ("postrm", RELAY_POSTRM)],
};

/// Lays the files out below `stage`, as the package installs them.
pub(crate) fn lay_out(root: &Path, programs: &[PathBuf], stage: &Path) -> Result<()> {
    for (from, to) in FILES {
        copy(&root.join(from), &stage.join(to), 0o644)?;
    }
    lay_out_pages(&root.join(MAN), stage)?;
    for program in programs {
        let name = program.file_name().context("a program has a name")?;
        copy(program, &stage.join("usr/bin").join(name), 0o755)?;
        if name == "clactl" {
            complete(program, stage)?;
        }
    }
    Ok(())
}

/// Lays out the manual pages of a folder.
fn lay_out_pages(pages: &Path, stage: &Path) -> Result<()> {
    for page in fs::read_dir(pages).context("the manual pages")? {
        let page = page?.path();
        let name = page.file_name().context("a page has a name")?;
        let section = page.extension().and_then(|end| end.to_str()).context("a page has a section")?;
        copy(&page, &stage.join(format!("usr/share/man/man{section}")).join(name), 0o644)?;
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
    close(&CLAD, programs, &tree, out, more, compression)
}

/// Makes the package of the relay.
pub(crate) fn relay_deb(root: &Path, program: &Path, out: &Path, compression: &str) -> Result<PathBuf> {
    let stage = tempfile::tempdir().context("no temporary folder")?;
    let tree = stage.path().join("tree");
    lay_out_relay(root, program, &tree)?;
    close(&RELAY, &[program.to_owned()], &tree, out, "", compression)
}

fn lay_out_relay(root: &Path, program: &Path, stage: &Path) -> Result<()> {
    for (from, to) in RELAY_FILES {
        copy(&root.join(from), &stage.join(to), 0o644)?;
    }
    lay_out_pages(&root.join(RELAY_MAN), stage)?;
    copy(program, &stage.join("usr/bin/clad-relay"), 0o755)
}

/// Makes a package of what is laid out.
fn close(
    package: &Package,
    programs: &[PathBuf],
    tree: &Path,
    out: &Path,
    more: &str,
    compression: &str,
) -> Result<PathBuf> {
    let meta = tree.join("DEBIAN");
    fs::create_dir_all(&meta)?;
    let architecture = said(Command::new("dpkg").arg("--print-architecture"))?;
    let version = format!("{}{more}", env!("CARGO_PKG_VERSION"));
    fs::write(meta.join("control"), control(package, &version, architecture.trim(), tree, programs)?)?;
    fs::write(meta.join("conffiles"), package.conffiles)?;
    for (name, text) in package.scripts {
        fs::write(meta.join(name), text)?;
        fs::set_permissions(meta.join(name), fs::Permissions::from_mode(0o755))?;
    }
    for folder in [tree, &meta] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    fs::create_dir_all(out)?;
    let deb = out.join(format!("{}_{version}_{}.deb", package.name, architecture.trim()));
    said(Command::new("dpkg-deb").args(["--root-owner-group", compression, "--build"]).arg(tree).arg(&deb))?;
    Ok(deb)
}

fn control(package: &Package, version: &str, architecture: &str, tree: &Path, programs: &[PathBuf]) -> Result<String> {
    let kibibytes = size(tree)?.div_ceil(1024);
    let mut glibc = (0, 0);
    for program in programs {
        glibc = glibc.max(needed_glibc(&fs::read(program)?));
    }
    Ok(format!(
        "Package: {}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: The clad developers <clad@invalid>\n\
         Section: admin\nPriority: optional\nInstalled-Size: {kibibytes}\n\
         Depends: libc6 (>= {}.{}), libgcc-s1, {}\nDescription: {}\n",
        package.name, glibc.0, glibc.1, package.depends, package.description
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
        let built = c_library::build(root, &crate::ci::target(root), &crate::ci::target(root), "shipped")?;
        c_library::install(root, &built, &prefix)?;
        return Ok(prefix);
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    if words == ["relay"] {
        let target = crate::ci::target(root).join("relay");
        let mut build = Command::new(cargo);
        let build = build.current_dir(root.join("relay")).env("CARGO_TARGET_DIR", &target);
        build.args(["build", "--locked", "--release", crate::ci::RELAY_FEATURES]);
        ensure!(build.status()?.success(), "the relay was not built");
        return relay_deb(root, &target.join("release/clad-relay"), &crate::ci::target(root).join("package"), "-Zxz");
    }
    ensure!(words == ["deb"], "cargo xtask package deb, cargo xtask package relay, or cargo xtask package c FOLDER");
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
    fn the_package_of_the_relay_has_its_manual_pages() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let stage = tempfile::tempdir().unwrap();
        lay_out_relay(root, &root.join("relay/Cargo.toml"), stage.path()).unwrap();
        for command in ["", "-run", "-check", "-status", "-begin", "-verify"] {
            let page = format!("usr/share/man/man8/clad-relay{command}.8");
            assert!(stage.path().join(&page).is_file(), "{page} is not installed");
        }
    }

    #[test]
    fn every_unit_rule_and_dashboard_of_the_repository_is_packaged() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for entry in fs::read_dir(root.join("deploy")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let unit = name.ends_with(".service") || name.ends_with(".socket");
            let from = format!("deploy/{name}");
            let is_packaged = FILES.iter().chain(RELAY_FILES).any(|(file, _)| *file == from);
            assert!(!unit || is_packaged, "{from} is in no package");
        }
        for folder in ["deploy/mixin/rules", "deploy/mixin/dashboards", "deploy/fleet"] {
            for entry in fs::read_dir(root.join(folder)).unwrap() {
                let from = format!("{folder}/{}", entry.unwrap().file_name().into_string().unwrap());
                let is_packaged = FILES.iter().chain(RELAY_FILES).any(|(file, _)| *file == from);
                assert!(is_packaged, "{from} is in no package");
            }
        }
    }
}
