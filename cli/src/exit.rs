//! The end of a command: the exit code, and what is said on the way out.
//!
//! Invariants: 0 only when all that was asked for was done and nothing damaged was read; 2 for a call that could
//! never have worked; 1 for everything else. `run` passes the exit code of its program on. A reader of our output that goes away (`| head`) is no failure, and hides none.

use std::process::ExitCode;

/// The exit codes of `clactl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All that was asked for was done: 0.
    Done,
    /// It failed, or damage was found: 1. What there is to say has been said.
    Failed,
    /// The call was wrong: 2.
    Usage,
    /// The exit code of a program that was run, or the reason why it was not.
    Program(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Program(code) => code,
        })
    }
}

/// Why a command stopped before its end.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The call was wrong; the text says what would be right.
    #[error("{0}")]
    Usage(String),
    /// Nobody reads our output any more.
    #[error("the reader of the output has gone")]
    ReaderGone,
    /// It failed.
    #[error("{}", error_text(.0))]
    Failed(#[from] anyhow::Error),
}

impl Stop {
    /// The call was wrong.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// The exit code it ends in.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::ReaderGone => Exit::Done,
            Self::Failed(_) => Exit::Failed,
        }
    }
}

/// An error with its causes, each said once: some of ours already say their cause themselves.
pub(crate) fn error_text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Result of a command.
pub type Outcome = Result<Exit, Stop>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_said_once() {
        let inner = std::io::Error::other("disk on fire");
        let error = anyhow::Error::new(clad_journal::OpenError::Io { what: "read x".into(), source: inner });
        assert_eq!(error_text(&error.context("verify")), "verify: read x: disk on fire");
    }
}
