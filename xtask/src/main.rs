//! Project tasks of clad: `cargo xtask tidy`, `cargo xtask package deb|c`, `cargo xtask ci NAME`,
//! `cargo xtask proof quick`.
#![expect(clippy::print_stdout, reason = "a tool that talks to the person who runs it")]

mod c_library;
mod ci;
mod mixin;
mod package;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

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
    execute(Task::parse()).unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::from(2)
    })
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
