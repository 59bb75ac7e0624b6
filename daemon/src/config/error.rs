//! Errors of a configuration.
//!
//! Invariant: every error names where it stands, the key and what would be right. All of them are reported at once,
//! because fixing them one start at a time is no way to treat a person at night.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;

use super::origin::Origin;

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
    /// The layers could not be merged.
    #[error(transparent)]
    Merge(#[from] config::ConfigError),
    /// Something that stands somewhere is wrong.
    #[error("{at}: {problem}")]
    At {
        /// Place where it stands.
        at: Origin,
        /// The key, what is wrong with it or its value, and what would be right.
        problem: String,
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
