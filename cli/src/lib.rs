//! Operator tool of clad: append, run, query, tail, status, segments, rotate, sync, verify, repair, export, import,
//! probe, bench, top, completions.
//!
//! Invariants: stdout carries the result and nothing else, and only `output` prints; what a program reads
//! (`-o json`) has its units in its names; the exit code is 0 for done, 1 for failed or damaged, 2 for a wrong call; that of
//! `run` is its program's.
//!
//! | module | what it is |
//! |---|---|
//! | `cli` | the command line |
//! | `locate`, `reach` | which daemon, and what to do when it is not there |
//! | `append` | lines to records to acks |
//! | `run` | the lines of a program, likewise |
//! | `read` | `query` and `tail`, from a daemon or from files |
//! | `format`, `output` | how things look; where they are printed |
//! | `admin` | orders over the admin socket |
//! | `verify`, `repair` | the check of a folder, and what brings a damaged one back |
//! | `export` | records off the host, in several goes if need be |
//! | `import` | the log in a folder, to a daemon |
//! | `bench` | the load generator |
//! | `probe` | what a disk can do, and what to set |
//! | `completions` | scripts for shells |

mod admin;
mod append;
mod bench;
mod cli;
mod clock;
mod completions;
mod context;
mod exit;
mod export;
mod format;
mod import;
mod interrupt;
mod locate;
mod output;
mod probe;
mod reach;
mod read;
mod repair;
mod run;
mod verify;

pub use cli::{command, main};
pub use exit::{Exit, Outcome, Stop};
