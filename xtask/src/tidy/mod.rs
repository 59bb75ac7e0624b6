//! What the compiler does not check, as one pass over the repository.
//!
//! Invariants: a finding names the file, the line and the rule, and what to do; a rule looks at code,
//! not at comments or strings (`lex`), unless it says so. It runs as a test too, so nobody has to remember
//! it.

mod changelog;
mod code;
mod docs;
mod imports;
mod lex;
mod links;
mod locks;
mod ratchet;
mod rooms;
mod text;
mod walk;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;

use walk::{File, walk};

/// Something to mend.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: PathBuf,
    /// From 1; 0 for the file as a whole.
    line: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": {}", self.what)
    }
}

/// Everything that is wrong with these files.
fn findings(files: &[File]) -> Vec<Finding> {
    let mut findings = imports::check(files);
    findings.extend(links::check(files));
    findings.extend(locks::check(files));
    findings.extend(docs::check(files));
    findings.extend(rooms::check(files));
    findings.extend(ratchet::check(files));
    for file in files {
        findings.extend(text::check(file));
        findings.extend(code::check(file));
        findings.extend(changelog::check(file));
    }
    findings
}

/// `tidy`
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Write down the counts that got better (xtask/ratchets.toml)
    #[arg(long)]
    write: bool,
    /// Show what ties the circles between files
    #[arg(long)]
    circles: bool,
    /// Show how long the sentences of the documents are
    #[arg(long)]
    sentences: bool,
}

/// `cargo xtask tidy`
pub(crate) fn run(root: &Path, options: Options) -> Result<ExitCode> {
    let mut files = walk(root)?;
    if options.circles {
        ratchet::print_circles(&files)?;
    }
    if options.sentences {
        docs::print(&files);
    }
    if options.write {
        ratchet::write(root, &files)?;
        files = walk(root)?;
    }
    for (path, lines) in text::long(&files) {
        println!("long: {} has {lines} lines", path.display());
    }
    let findings = findings(&files);
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} files, {} findings", files.len(), findings.len());
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let files = walk(&crate::root()).unwrap();
        assert!(files.iter().any(|file| file.path == Path::new("xtask/src/main.rs")));
        let findings = findings(&files);
        let shown: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "\n{}", shown.join("\n"));
    }
}
