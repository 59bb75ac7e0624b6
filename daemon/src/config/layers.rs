//! The layers: files, environment and flags, each read into the same flat list of assignments.
//!
//! Invariants: a later entry of the list outweighs an earlier one; nothing is dropped on the way: what cannot become an
//! assignment becomes an error; no layer knows the types of keys.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::schema;
use super::source::Source;
use super::value::Raw;

/// A value given to a name, somewhere.
pub(super) struct Assignment {
    /// Dotted; not yet known to be a key.
    pub(super) name: String,
    /// Value that it was given.
    pub(super) value: Raw,
    /// Place where it was given.
    pub(super) source: Source,
}

/// Assignments that were read so far.
#[derive(Default)]
pub(super) struct Layers {
    /// Weakest first.
    pub(super) assignments: Vec<Assignment>,
    /// The files that were read, in that order.
    pub(super) files: Vec<PathBuf>,
    /// Errors of what could not be read.
    pub(super) errors: Vec<ConfigError>,
    /// Variables in our name that are no keys.
    pub(super) stray_variables: Vec<String>,
}

/// Variables in our name that belong to the tool and the SDK.
const KNOWN_VARIABLES: [&str; 2] = ["CLAD_SERVER", "CLAD_ADMIN"];

impl Layers {
    /// `clad.toml` and `clad.d/*.toml` below `base`, by name; either may be missing.
    pub(super) fn folder(&mut self, base: &Path) {
        self.file(&base.join("clad.toml"), Missing::IsFine);
        match drop_ins(&base.join("clad.d")) {
            Ok(paths) => paths.iter().for_each(|path| self.file(path, Missing::IsAnError)),
            Err(error) => self.errors.push(error),
        }
    }

    /// One file.
    pub(super) fn file(&mut self, path: &Path, missing: Missing) {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound && missing.is_fine(path) => return,
            Err(source) => {
                let path = path.to_owned();
                self.errors.push(ConfigError::Read { path, source });
                return;
            }
        };
        self.files.push(path.to_owned());
        let file = File { path, text: &text };
        match DeTable::parse(&text) {
            Ok(table) => self.table(&file, "", table.get_ref()),
            Err(error) => self.errors.push(ConfigError::Syntax {
                at: file.at(error.span().map_or(0, |span| span.start)),
                message: error.message().to_owned(),
            }),
        }
    }

    fn table(&mut self, file: &File<'_>, section: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let part: &str = key.get_ref();
            // A quoted part with a dot in it would otherwise pass for a section and a key.
            let part = if part.contains('.') { format!("{part:?}") } else { part.to_owned() };
            let name = if section.is_empty() { part } else { format!("{section}.{part}") };
            let source = file.at(key.span().start);
            match value.get_ref() {
                DeValue::Table(inner) if schema::find(&name).is_none() => {
                    if inner.is_empty() && !schema::is_section(&name) {
                        let value = Raw::Other("table");
                        self.assignments.push(Assignment { name, value, source });
                    } else {
                        self.table(file, &name, inner);
                    }
                }
                value => self.assignments.push(Assignment { name, value: raw(value), source }),
            }
        }
    }

    /// Every `CLAD_SECTION__KEY`; other names that start with `CLAD_` are noted as strays.
    pub(super) fn environment(&mut self, variables: &[(OsString, OsString)]) {
        let mut ours: Vec<(&str, &OsString)> = variables
            .iter()
            .filter_map(|(name, value)| Some((name.to_str()?, value)))
            .filter(|(name, _)| name.starts_with("CLAD_") && !KNOWN_VARIABLES.contains(name))
            .collect();
        // The environment has no order of its own; messages need one.
        ours.sort_unstable();
        for (name, value) in ours {
            let Some(key) = key_of_variable(name) else {
                self.stray_variables.push(name.to_owned());
                continue;
            };
            match value.to_str() {
                Some(text) => self.assignments.push(Assignment {
                    name: key,
                    value: Raw::Word(text.to_owned()),
                    source: Source::Variable(name.to_owned()),
                }),
                None => self.errors.push(ConfigError::NotText { name: name.to_owned() }),
            }
        }
    }

    /// Every `--set section.key=value`.
    pub(super) fn flags(&mut self, sets: &[String]) {
        for text in sets {
            match text.split_once('=') {
                Some((name, value)) if !name.trim().is_empty() => self.assignments.push(Assignment {
                    name: name.trim().to_owned(),
                    value: Raw::Word(value.to_owned()),
                    source: Source::Flag(text.clone()),
                }),
                _ => self.errors.push(ConfigError::Flag { text: text.clone() }),
            }
        }
    }
}

/// Meaning of a missing file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// Nothing was configured there.
    IsFine,
    /// The user named the file.
    IsAnError,
}

impl Missing {
    /// A link that leads nowhere is not missing: it was put there on purpose.
    fn is_fine(self, path: &Path) -> bool {
        self == Self::IsFine && fs::symlink_metadata(path).is_err()
    }
}

/// A file with its text, to turn positions into lines.
struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
    fn at(&self, position: usize) -> Source {
        let before = &self.text.as_bytes()[..position.min(self.text.len())];
        Source::File { path: self.path.to_owned(), line: 1 + before.iter().filter(|byte| **byte == b'\n').count() }
    }
}

/// The drop-in files in the order of their names. Hidden ones are editors' and package managers' own.
fn drop_ins(folder: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let failed = |source| ConfigError::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".toml") && !name.starts_with('.') {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// `CLAD_JOURNAL__GROUP_COMMIT__MAX_DELAY` is `journal.group_commit.max_delay`; a name without a double
/// underscore is no key.
fn key_of_variable(name: &str) -> Option<String> {
    let rest = name.strip_prefix("CLAD_")?;
    if !rest.contains("__") {
        return None;
    }
    // With lower case in it, it is an unknown key: two spellings of one key would leave it to chance
    // which of them counts.
    if rest.contains(|c: char| c.is_lowercase()) {
        return Some(name.to_owned());
    }
    Some(rest.replace("__", ".").to_lowercase())
}

fn raw(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Boolean(value) => Raw::Bool(*value),
        DeValue::Integer(number) => {
            let digits = number.as_str().replace('_', "");
            i64::from_str_radix(&digits, number.radix()).map_or(Raw::Other("integer beyond 64 bits"), Raw::Integer)
        }
        other => Raw::Other(other.type_str()),
    }
}
