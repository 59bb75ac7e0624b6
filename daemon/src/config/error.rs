//! Errors of a configuration.
//!
//! Invariant: every error names where it stands, the key and what would be right. All of them are reported at once,
//! because fixing them one start at a time is no way to treat a person at night.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;

use super::source::Source;
use super::value::BadValue;

/// One thing that is wrong.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file or folder could not be read.
    #[error("cannot read {}: {source}{}", path.display(), remedy(source))]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// Reason.
        source: std::io::Error,
    },
    /// A file is not TOML.
    #[error("{at}: not valid TOML: {message}")]
    Syntax {
        /// Place where the reader stopped.
        at: Source,
        /// Token or form that the reader expected.
        message: String,
    },
    /// There is no such key.
    #[error("{at}: unknown key `{key}`; nearest valid key: `{nearest}`")]
    UnknownKey {
        /// Place where it stands.
        at: Source,
        /// The key as it stands there.
        key: String,
        /// The most similar key; for a variable, the variable of that key.
        nearest: String,
    },
    /// There is no such key in this version.
    #[error("{at}: unknown key `{key}`: it is not in this version of clad; remove it")]
    Reserved {
        /// Place where it stands.
        at: Source,
        /// The key as it stands there.
        key: String,
    },
    /// A section was given a value.
    #[error("{at}: `{key}` is a section, not a key; nearest valid key: `{nearest}`")]
    IsSection {
        /// Place where it stands.
        at: Source,
        /// The section.
        key: String,
        /// The most similar key.
        nearest: String,
    },
    /// A value is of the wrong kind.
    #[error("{at}: `{key}`: {problem}")]
    Value {
        /// Place where it stands.
        at: Source,
        /// The key.
        key: &'static str,
        /// Problem of the value.
        problem: BadValue,
    },
    /// A value is readable but cannot work, alone or beside another.
    #[error("{at}: `{key}`: {reason}")]
    Impossible {
        /// Place of the value that was set.
        at: Source,
        /// The key.
        key: &'static str,
        /// Reason why it cannot work, and what could.
        reason: String,
    },
    /// A `--set` that is no assignment.
    #[error("flag --set {text}: expected section.key=value")]
    Flag {
        /// Text that was given.
        text: String,
    },
    /// A variable whose value is no text.
    #[error("environment variable {name}: its value is not valid UTF-8")]
    NotText {
        /// The variable.
        name: String,
    },
}

/// Remedy for a file that cannot be read, with `; ` before it; empty where there is nothing to say.
fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => "; make it (an empty file is enough), or name one that is there",
        ErrorKind::PermissionDenied => "; the user that clad runs as must be able to read it",
        ErrorKind::IsADirectory => "; it must be a file",
        ErrorKind::InvalidData => "; it must be text in UTF-8",
        _ => "",
    }
}

/// Everything that is wrong; never empty.
#[derive(Debug)]
pub struct ConfigErrors(pub(super) Vec<ConfigError>);

impl ConfigErrors {
    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.0.iter()
    }
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "bad configuration, {count} error{plural}:")?;
        for error in &self.0 {
            write!(f, "\n  {error}")?;
        }
        Ok(())
    }
}
