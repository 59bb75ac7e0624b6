//! Project tasks of clad: `cargo xtask tidy`, `cargo xtask package deb|c`, `cargo xtask ci NAME`,
//! `cargo xtask proof quick`.
#![expect(clippy::print_stdout, reason = "a tool that talks to the person who runs it")]

mod c_library;
mod ci;
mod mixin;
mod package;
mod tidy;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Project tasks of clad.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
enum Task {
    /// Check what the compiler does not: imports between crates, where system calls may stand, sizes
    Tidy(tidy::Options),
    /// Build a package: `deb`, or the library for C into a folder: `c FOLDER`
    Package {
        /// Kind of package, and for `c` the folder
        kind: Vec<String>,
    },
    /// Run a suite that needs root or other programs; without a name, list them
    Ci(Ci),
    /// Run everything that tries to break the promise, and sum up what was tried: `quick` or `slow`
    Proof {
        /// `quick`: minutes, as any user; `slow`: hours, as root
        which: String,
    },
}

/// `ci`
#[derive(clap::Args)]
struct Ci {
    #[command(subcommand)]
    suite: Option<Suite>,
}

/// A suite, by its name.
#[derive(Subcommand)]
enum Suite {
    /// Name of the suite, and what it takes
    #[command(external_subcommand)]
    Named(Vec<String>),
}

fn main() -> ExitCode {
    // Run by cargo, it begins again without what cargo has said of this package, which every cargo of a suite would get.
    let mut again = Command::new(std::env::current_exe().unwrap_or_default());
    if remove_package_variables(&mut again, std::env::vars_os()) {
        eprintln!("xtask: {}", again.args(std::env::args_os().skip(1)).exec());
        return ExitCode::from(2);
    }
    execute(Task::parse()).unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::from(2)
    })
}

/// Removes the variables that cargo sets for what it runs, and returns true if there were some. Build scripts look at them:
/// with others set, `ring` and all that stands on it would be built again.
fn remove_package_variables(command: &mut Command, variables: impl Iterator<Item = (OsString, OsString)>) -> bool {
    let is_of_a_package = |name: &OsString| {
        ["CARGO_PKG_", "CARGO_MANIFEST_", "OUT_DIR"].iter().any(|start| name.as_bytes().starts_with(start.as_bytes()))
    };
    for (name, _) in variables.filter(|(name, _)| is_of_a_package(name)) {
        command.env_remove(name);
    }
    command.get_envs().next().is_some()
}

fn execute(task: Task) -> Result<ExitCode> {
    match task {
        Task::Tidy(options) => tidy::run(&root(), options),
        Task::Package { kind } => {
            println!("{}", package::run(&root(), &kind)?.display());
            Ok(ExitCode::SUCCESS)
        }
        Task::Proof { which } => ci::proof::run(&root(), &which),
        Task::Ci(Ci { suite: None }) => {
            ci::list();
            Ok(ExitCode::SUCCESS)
        }
        Task::Ci(Ci { suite: Some(Suite::Named(words)) }) => ci::run(&root(), &words),
    }
}

/// The workspace.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cargo_says_of_this_package_is_not_passed_on() {
        let mut command = Command::new("cargo");
        assert!(!remove_package_variables(&mut command, [("CARGO_TARGET_DIR".into(), "elsewhere".into())].into_iter()));
        assert!(remove_package_variables(&mut command, [("CARGO_PKG_NAME".into(), "xtask".into())].into_iter()));
        assert!(command.get_envs().any(|(name, value)| name == "CARGO_PKG_NAME" && value.is_none()));
    }
}
