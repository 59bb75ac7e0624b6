//! `.ci/run` with a cargo that compiles nothing: it begins each suite once, and passes only where each has passed.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::SUITES;

/// Notes for which suite it was called, and among whose mounts, and says more than a pipe holds.
const CARGO: &str = r#"#!/bin/sh
[ "$*" = "test --workspace" ] && [ "$BROKEN" = tests ] && exit 1
[ "$1" = xtask ] || exit 0
echo "$3 $(readlink /proc/self/ns/mnt)" >>"$CALLS"
seq -f "$3 %.0f" 20000
[ "$3" != "$BROKEN" ]
"#;
/// Fails for a suite, as on a full disk.
const MKDIR: &str = r#"#!/bin/sh
[ "${1##*/}" != "$NEVER_BEGUN" ] && exec /bin/mkdir "$@"
"#;

/// Runs it. Answers whether it passed, what it said, and the calls for suites.
fn run(variable: &str, suite: &str) -> (bool, String, Vec<String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    for (name, script) in [("cargo", CARGO), ("mkdir", MKDIR)] {
        fs::write(folder.path().join(name), script).unwrap();
        fs::set_permissions(folder.path().join(name), Permissions::from_mode(0o755)).unwrap();
    }
    let path = std::env::var_os("PATH").unwrap();
    let path = [folder.path().to_owned()].into_iter().chain(std::env::split_paths(&path));
    let mut bash = Command::new("bash");
    bash.arg(root.join(".ci/run")).env("PATH", std::env::join_paths(path).unwrap());
    bash.env("BROKEN", "").env("NEVER_BEGUN", "").env("CALLS", &calls).env(variable, suite);
    let ended = bash.output().unwrap();
    let calls = fs::read_to_string(calls).unwrap();
    let said = String::from_utf8(ended.stdout).unwrap();
    (ended.status.success(), said, calls.lines().map(str::to_owned).collect())
}

#[test]
fn each_suite_is_begun_once_and_shown_whole() {
    let (passed, said, mut calls) = run("BROKEN", "");
    assert!(passed && said.ends_with("\n==== passed\n"), "{said}");
    let mut names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
    names.sort_unstable();
    calls.sort_unstable();
    let (begun, mounts): (Vec<_>, Vec<_>) = calls.iter().map(|call| call.split_once(' ').unwrap()).unzip();
    assert_eq!(begun, names);
    // Who may have mounts of his own gives each suite some.
    let may_have = Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success());
    let here = fs::read_link("/proc/self/ns/mnt").unwrap();
    assert!(mounts.iter().all(|mounts| (here != Path::new(mounts)) == may_have), "{here:?}, {mounts:?}");
    for name in names {
        let (_, rest) = said.split_once(&format!("cargo xtask ci {name}\n")).expect("its first line");
        let mut lines = rest.lines();
        assert!((1..=20_000).all(|number| lines.next() == Some(&format!("{name} {number}"))), "{name} is mixed");
        assert!(lines.nth(1).unwrap().starts_with(&format!("==== {name}: passed in ")), "{name} has no end");
    }
}

#[test]
fn a_suite_that_fails_or_is_never_begun_fails_the_run_by_its_name() {
    for (variable, name, begun) in [
        ("BROKEN", "owners", SUITES.len()),
        ("NEVER_BEGUN", "owners", SUITES.len() - 1),
        ("BROKEN", "tests", SUITES.len()),
        ("NEVER_BEGUN", "tests", SUITES.len()),
    ] {
        let (passed, said, calls) = run(variable, name);
        assert!(!passed && said.ends_with(&format!("\n==== failed: {name}\n")), "{said}");
        assert_eq!(calls.len(), begun);
    }
}
