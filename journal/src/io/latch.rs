//! The latch on a file after a failed write or sync.
//!
//! Invariant: once a failure was noted, every check refuses, and names that first failure.

use std::fmt;
use std::io;
use std::sync::OnceLock;

/// The refusal of a latched file: it names the first failure.
///
/// It comes as the inner error of an [`io::Error`]; [`Latched::of`] finds it there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latched {
    /// The failure that was reported when it happened.
    pub first: String,
}

impl Latched {
    /// The refusal in an error, if it is one: there was no system call then.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl fmt::Display for Latched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an earlier write or sync of this file failed ({}): open it again", self.first)
    }
}

impl std::error::Error for Latched {}

/// Remembers the first failure of one open file.
#[derive(Debug, Default)]
pub struct Latch(OnceLock<Latched>);

impl Latch {
    /// Refuses when something has failed before.
    ///
    /// # Errors
    /// [`Latched`], as the inner error.
    pub fn check(&self) -> io::Result<()> {
        match self.0.get() {
            None => Ok(()),
            Some(latched) => Err(io::Error::other(latched.clone())),
        }
    }

    /// Notes the result of an operation.
    pub fn note(&self, done: io::Result<()>) -> io::Result<()> {
        if let Err(e) = &done {
            self.0.get_or_init(|| Latched { first: e.to_string() });
        }
        done
    }
}
