//! Origin of a value.
//!
//! Invariant: an origin is one text, because a text is what `config` keeps beside a value; its first word names the
//! layer.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use config::Value;

/// The layer, and the place in it, that had the last word on a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(String);

/// First word of what stands in a file; it is not shown.
const FILE: &str = "file ";
/// First words of what a variable set.
const VARIABLE: &str = "environment variable ";

impl Origin {
    /// A line of a file, counted from 1.
    pub(super) fn file(path: &Path, line: usize) -> Self {
        Self(format!("{FILE}{}:{line}", path.display()))
    }

    /// An environment variable.
    pub(super) fn variable(name: &str) -> Self {
        Self(format!("{VARIABLE}{name}"))
    }

    /// `--set`, with its text.
    pub(super) fn flag(text: &str) -> Self {
        Self(format!("flag --set {text}"))
    }

    /// A default that follows from something else: a variable of the service manager, a flag or another key.
    pub(super) fn derived(from: &str) -> Self {
        Self(format!("default, from {from}"))
    }

    /// The value with this origin.
    pub(super) fn mark(&self, value: impl Into<config::ValueKind>) -> Value {
        Value::new(Some(&self.0), value)
    }

    /// The kind of layer, for programs.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        ["file", "environment", "flag"].into_iter().find(|kind| self.0.starts_with(kind)).unwrap_or("default")
    }
}

/// The origin that the value was marked with.
impl From<&Value> for Origin {
    fn from(value: &Value) -> Self {
        Self(value.origin().unwrap_or_default().to_owned())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.strip_prefix(FILE).unwrap_or(&self.0))
    }
}

/// The origin of every key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance(BTreeMap<String, Origin>);

impl Provenance {
    /// Origin of the key's value.
    #[must_use]
    pub fn of(&self, key: &str) -> Origin {
        self.0.get(key).cloned().unwrap_or_else(|| Origin("default".to_owned()))
    }

    /// True unless the key has its embedded default.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Overrides that the environment and the command line set, over all files: `CLAD_LOG__LEVEL`, `--set log.level`;
    /// each once, in the order of the keys' names.
    #[must_use]
    pub fn overrides(&self) -> Vec<String> {
        let shown = |(key, origin): (&String, &Origin)| match origin.0.strip_prefix(VARIABLE) {
            Some(name) => Some(name.to_owned()),
            None => (origin.kind() == "flag").then(|| format!("--set {key}")),
        };
        self.0.iter().filter_map(shown).collect()
    }

    pub(super) fn record(&mut self, key: String, origin: Origin) {
        self.0.insert(key, origin);
    }
}
