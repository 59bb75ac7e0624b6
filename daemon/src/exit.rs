//! The exit codes, which scripts and service managers lean on.

use std::process::ExitCode;

/// Outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// It failed, or the folder is locked, foreign or read-only. Trying again may help.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The configuration is bad, or this disk cannot keep what the policy promises. Trying again does not
    /// help, so the unit does not restart on it.
    Config = 78,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
