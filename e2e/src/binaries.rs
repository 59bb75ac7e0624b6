//! The binaries under test: built once for each test process, in the profile that the tests have.
//!
//! `cargo test` builds the libraries that tests link, and no binary of another package; so the tests ask cargo. That may take
//! minutes, where something was changed, or another cargo has the folder: cargo says so itself, past the test runner. With
//! `CLAD_E2E_BIN=FOLDER` the binaries in that folder are tested instead (an installed package, say).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The path of `clad` or `clactl`.
///
/// # Panics
/// When it cannot be built.
pub fn binary(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| match std::env::var_os("CLAD_E2E_BIN") {
        Some(folder) => folder.into(),
        None => build(),
    });
    let path = folder.join(name);
    assert!(path.is_file(), "{} is not there", path.display());
    path
}

/// The folder of the profile, `target/debug` say: tests lie in its `deps`.
pub(crate) fn profile_folder() -> PathBuf {
    let exe = std::env::current_exe().expect("the path of the test itself");
    let deps = exe.parent().expect("its folder");
    let folder = if deps.ends_with("deps") { deps.parent().expect("the folder of the profile") } else { deps };
    folder.to_owned()
}

fn build() -> PathBuf {
    let folder = profile_folder();
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let target = folder.parent().expect("the target folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut command = cargo(std::env::vars_os());
    // Of the whole workspace, so that crates have the features with which `cargo test --workspace` has built them.
    command.current_dir(root).args(["build", "--workspace", "--bin", "clad", "--bin", "clactl", "--profile", profile]);
    command.arg("--target-dir").arg(target);
    let ended = command.stdin(Stdio::null()).status().expect("cargo runs");
    assert!(ended.success(), "{command:?}: {ended}");
    folder
}

/// Cargo, without the variables that a cargo has set for this test: build scripts look at some, and with others set `ring`,
/// and all that stands on it, would be built again.
fn cargo(variables: impl Iterator<Item = (OsString, OsString)>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in variables {
        let is_of_a_package =
            |name: &str| ["CARGO_PKG_", "CARGO_MANIFEST_", "OUT_DIR"].iter().any(|start| name.starts_with(start));
        if name.to_str().is_some_and(is_of_a_package) {
            command.env_remove(name);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::cargo;

    #[test]
    fn what_cargo_says_of_this_package_is_not_passed_on() {
        let variables = [("CARGO_PKG_NAME".into(), "clad-e2e".into()), ("CARGO_TARGET_DIR".into(), "elsewhere".into())];
        let command = cargo(variables.into_iter());
        assert_eq!(command.get_envs().collect::<Vec<_>>(), [("CARGO_PKG_NAME".as_ref(), None)]);
    }
}
