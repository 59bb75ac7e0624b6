//! Origin of a value.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// The layer, and the place in it, that had the last word on a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Embedded in the program.
    Default,
    /// Follows from something else: a variable of the service manager, or another key.
    Derived(&'static str),
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// `--set`, with its text.
    Flag(String),
}

impl Source {
    /// The kind of layer, for programs.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Default | Self::Derived(_) => "default",
            Self::File { .. } => "file",
            Self::Variable(_) => "environment",
            Self::Flag(_) => "flag",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Derived(from) => write!(f, "default, from {from}"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Flag(text) => write!(f, "flag --set {text}"),
        }
    }
}

/// The source of every key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance(BTreeMap<&'static str, Source>);

impl Provenance {
    /// Origin of the key's value; a key that nobody set has its default.
    #[must_use]
    pub fn of(&self, key: &str) -> &Source {
        self.0.get(key).unwrap_or(&Source::Default)
    }

    /// Overrides that the environment and the command line set, over all files: `CLAD_LOG__LEVEL`, `--set log.level`;
    /// each once, in the order of the keys' names.
    #[must_use]
    pub fn overrides(&self) -> Vec<String> {
        let shown = |(key, source): (&&'static str, &Source)| match source {
            Source::Variable(name) => Some(name.clone()),
            Source::Flag(_) => Some(format!("--set {key}")),
            Source::Default | Source::Derived(_) | Source::File { .. } => None,
        };
        self.0.iter().filter_map(shown).collect()
    }

    pub(super) fn is_set(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    pub(super) fn record(&mut self, key: &'static str, source: Source) {
        self.0.insert(key, source);
    }
}
