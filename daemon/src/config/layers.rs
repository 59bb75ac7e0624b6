//! The layers: defaults of an instance, files, environment and flags, each a source of the crate `config`.
//!
//! Invariants: each layer is checked before the merge, and everything that is wrong with it becomes an error; a layer
//! holds nothing but keys of the schema, below their sections, so no name in it passes for a path, and no value replaces
//! a section. A refused value stays in its layer: it must not leave the key to an earlier one. An array replaces the
//! earlier one whole.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use config::{Map, Value, ValueKind};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::nearest::nearest;
use super::origin::Origin;
use super::schema::{self, KEYS};
use super::types::Config;

/// One file, variable or flag: values with their origins. Names at the top are paths (`log.level` or `log`); those within
/// are not.
#[derive(Clone, Debug, Default)]
struct Layer(Map<String, Value>);

impl config::Source for Layer {
    fn clone_into_box(&self) -> Box<dyn config::Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, config::ConfigError> {
        Ok(self.0.clone())
    }
}

/// Layers that were read so far.
#[derive(Default)]
pub(super) struct Layers {
    /// Weakest first.
    layers: Vec<Layer>,
    /// The files that were read, in that order.
    pub(super) files: Vec<PathBuf>,
    /// Errors of what could not be read, or is not right.
    pub(super) errors: Vec<ConfigError>,
    /// Variables in our name that are no keys.
    pub(super) stray_variables: Vec<String>,
}

/// Variables in our name that belong to the tool and the SDK.
const KNOWN_VARIABLES: [&str; 2] = ["CLAD_SERVER", "CLAD_ADMIN"];

impl Layers {
    /// The merged values of all layers.
    pub(super) fn merge(&self) -> Result<Value, config::ConfigError> {
        Ok(config::Config::builder().add_source(self.layers.clone()).build()?.cache)
    }

    /// Keys that something turns off unless they are set.
    pub(super) fn turned_off(&mut self, keys: &[&str], by: &str) {
        keys.iter().for_each(|key| self.word(key, "", Origin::derived(by)));
    }

    /// `clad.toml` and `clad.d/*.toml` below `base`, by name; either may be missing.
    pub(super) fn folder(&mut self, base: &Path) {
        let main = base.join("clad.toml");
        // A link that leads nowhere is not missing: it was put there on purpose.
        if !fs::symlink_metadata(&main).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            self.file(&main);
        }
        match drop_ins(&base.join("clad.d")) {
            Ok(paths) => paths.iter().for_each(|path| self.file(path)),
            Err(error) => self.errors.push(error),
        }
    }

    /// One file, which must exist.
    pub(super) fn file(&mut self, path: &Path) {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(source) => {
                let path = path.to_owned();
                self.errors.push(ConfigError::Read { path, source });
                return;
            }
        };
        self.files.push(path.to_owned());
        let file = File { path, text: &text };
        match DeTable::parse(&text) {
            Ok(table) => {
                let values = self.table(&file, "", table.get_ref());
                self.layers.push(Layer(values));
            }
            Err(error) => {
                let at = file.at(error.span().map_or(0, |span| span.start));
                self.wrong(at, format!("not valid TOML: {}", error.message()));
            }
        }
    }

    /// Sections and keys of one table.
    fn table(&mut self, file: &File<'_>, section: &str, table: &DeTable<'_>) -> Map<String, Value> {
        let mut values = Map::new();
        for (key, value) in table {
            let part: &str = key.get_ref();
            // A quoted part with a dot in it would otherwise pass for a section and a key, and an empty one for none.
            let name = if part.is_empty() || part.contains('.') { format!("{part:?}") } else { part.to_owned() };
            let name = if section.is_empty() { name } else { format!("{section}.{name}") };
            let is_section = schema::is_section(&name);
            let value = match value.get_ref() {
                DeValue::Table(inner) if is_section || (!inner.is_empty() && schema::find(&name).is_none()) => {
                    let inner = self.table(file, &name, inner);
                    is_section.then(|| inner.into())
                }
                _ => self.checked(&name, file.kind(value), file.at(key.span().start)),
            };
            values.extend(value.map(|value| (part.to_owned(), value)));
        }
        values
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
            let at = Origin::variable(name);
            match (key_of_variable(name), value.to_str()) {
                (None, _) => self.stray_variables.push(name.to_owned()),
                (Some(key), Some(text)) => self.word(&key, text, at),
                (Some(_), None) => self.wrong(at, "its value is not valid UTF-8".to_owned()),
            }
        }
    }

    /// Every `--set section.key=value`.
    pub(super) fn flags(&mut self, sets: &[String]) {
        for text in sets {
            let at = Origin::flag(text);
            match text.split_once('=') {
                Some((name, value)) if !name.trim().is_empty() => self.word(name.trim(), value, at),
                _ => self.wrong(at, "expected section.key=value".to_owned()),
            }
        }
    }

    /// One variable or flag.
    fn word(&mut self, name: &str, text: &str, at: Origin) {
        let value = self.checked(name, text.into(), at);
        self.layers.extend(value.map(|value| Layer([(name.to_owned(), value)].into())));
    }

    /// The value of a name that is a key; whatever is wrong with either is noted.
    fn checked(&mut self, name: &str, kind: ValueKind, at: Origin) -> Option<Value> {
        let Some(key) = schema::find(name) else {
            let problem = unknown(name, &at);
            self.wrong(at, problem);
            return None;
        };
        let value = at.mark(kind);
        if let Err(problem) = key.put(&mut Config::default(), &value) {
            self.wrong(at, format!("`{name}`: {problem}"));
        }
        Some(value)
    }

    fn wrong(&mut self, at: Origin, problem: String) {
        self.errors.push(ConfigError::At { at, problem });
    }
}

/// Problem of a name that is no key.
fn unknown(name: &str, at: &Origin) -> String {
    // Of a section, one of its own keys.
    let within =
        |key: &str| !schema::is_section(name) || key.strip_prefix(name).is_some_and(|key| key.starts_with('.'));
    let names: Vec<&str> = KEYS.iter().map(|key| key.name).filter(|key| within(key)).collect();
    let nearest = nearest(name, &names);
    // The answer is in the terms of the question: a variable for a variable.
    let nearest = match schema::find(nearest) {
        Some(key) if at.kind() == "environment" => key.variable(),
        _ => nearest.to_owned(),
    };
    if schema::is_section(name) {
        format!("`{name}` is a section, not a key; nearest valid key: `{nearest}`")
    } else {
        format!("unknown key `{name}`; nearest valid key: `{nearest}`")
    }
}

/// A file with its text, to turn positions into lines.
struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
    fn at(&self, position: usize) -> Origin {
        let before = &self.text.as_bytes()[..position.min(self.text.len())];
        Origin::file(self.path, 1 + before.iter().filter(|byte| **byte == b'\n').count())
    }

    /// The value in the crate's terms; what it holds has lines of its own.
    fn kind(&self, value: &Spanned<DeValue<'_>>) -> ValueKind {
        let marked = |value: &Spanned<DeValue<'_>>| self.at(value.span().start).mark(self.kind(value));
        match value.get_ref() {
            DeValue::String(text) => text.as_ref().into(),
            DeValue::Boolean(value) => (*value).into(),
            DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => i64::try_from(number).map_or(number.into(), ValueKind::from),
                Err(_) => i128::MAX.into(),
            },
            DeValue::Float(number) => number.as_str().parse().unwrap_or(f64::NAN).into(),
            DeValue::Array(items) => items.iter().map(marked).collect::<Vec<Value>>().into(),
            DeValue::Table(table) => {
                table.iter().map(|(key, value)| (key.to_string(), marked(value))).collect::<Map<_, _>>().into()
            }
            DeValue::Datetime(_) => ValueKind::Nil,
        }
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

/// Names and arrays of operators, as later keys will have them: no key has either yet.
#[cfg(test)]
mod tests {
    use super::*;

    fn layer(text: &str, path: &str) -> Layer {
        let table = DeTable::parse(text).unwrap();
        let whole = Spanned::new(0..text.len(), DeValue::Table(table.into_inner()));
        match (File { path: Path::new(path), text }).kind(&whole) {
            ValueKind::Table(values) => Layer(values),
            other => panic!("{other:?}"),
        }
    }

    fn at<'a>(value: &'a Value, names: &[&str]) -> &'a Value {
        names.iter().fold(value, |value, name| match &value.kind {
            ValueKind::Table(table) => &table[*name],
            other => panic!("{name} in {other:?}"),
        })
    }

    #[test]
    fn names_within_a_section_are_no_paths_and_arrays_are_replaced_whole() {
        let first = layer(
            "[ingest.syslog.\"a.b-C[0]\"]\nlisten = \"x\"\nack = 1\n\
             [[access.rule]]\nwho = \"one\"\n[[access.rule]]\nwho = \"two\"\nmay = [\"read\",\n\"write\"]\n",
            "1",
        );
        let second = layer(
            "[ingest.syslog.\"a.b-C[0]\"]\nack = 2\n[ingest.syslog.a]\nack = 3\n[[access.rule]]\nwho = \"three\"\n",
            "2",
        );
        let layers = Layers { layers: vec![first.clone(), second], ..Layers::default() };
        let merged = layers.merge().unwrap();
        let (listen, ack) = (["ingest", "syslog", "a.b-C[0]", "listen"], ["ingest", "syslog", "a.b-C[0]", "ack"]);
        assert_eq!(*at(&merged, &listen), Origin::file(Path::new("1"), 2).mark("x"));
        assert_eq!(*at(&merged, &ack), Origin::file(Path::new("2"), 2).mark(2_i64));
        assert_eq!(*at(&merged, &["ingest", "syslog", "a", "ack"]), Origin::file(Path::new("2"), 4).mark(3_i64));
        let ValueKind::Array(rules) = &at(&merged, &["access", "rule"]).kind else { panic!("no array") };
        assert_eq!(rules.len(), 1, "{rules:?}");
        assert_eq!(*at(&rules[0], &["who"]), Origin::file(Path::new("2"), 6).mark("three"));

        let alone = Layers { layers: vec![first], ..Layers::default() }.merge().unwrap();
        let ValueKind::Array(rules) = &at(&alone, &["access", "rule"]).kind else { panic!("no array") };
        let ValueKind::Array(may) = &at(&rules[1], &["may"]).kind else { panic!("no array") };
        assert_eq!(may[1], Origin::file(Path::new("1"), 9).mark("write"));
    }
}
