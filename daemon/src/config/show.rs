//! The effective configuration, as `clad config` prints it.
//!
//! Invariants: the TOML is a valid configuration that loads to the same values; every key is in it, with where its
//! value came from.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::load::Loaded;
use super::rules::rules;
use super::schema::keys_of;
use crate::text::printable;

impl Loaded {
    /// TOML, each value with a comment that says where it came from.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let lines: Vec<(String, String, String)> = keys_of(&[&self.config])
            .iter()
            .filter_map(|key| {
                let whole = key.name();
                let (section, name) = whole.rsplit_once('.')?;
                let line = format!("{name} = {}", key.get(&self.config)?.toml);
                Some((section.to_owned(), line, self.provenance.of(&whole).to_string()))
            })
            .collect();
        let width = lines.iter().map(|(_, line, _)| line.chars().count()).max().unwrap_or(0);

        let mut text = String::new();
        let mut open = String::new();
        for (section, line, source) in lines {
            if section != open {
                let gap = if open.is_empty() { "" } else { "\n" };
                let _ = writeln!(text, "{gap}[{section}]");
                open = section;
            }
            // A path may hold a line break; a comment must not.
            let source = printable(&source);
            let _ = writeln!(text, "{line:width$}  # {source}");
        }
        text
    }

    /// JSON: sections are objects, each key an object with its value, where it came from, whether a
    /// reload may change it, what it is, and what it must be.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let rules = rules();
        let mut root = Map::new();
        for found in keys_of(&[&self.config]) {
            let (key, name) = (found.key, found.name());
            let Some(shown) = found.get(&self.config) else { continue };
            let mut entry: Map<String, Value> =
                shown.json.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            let source = self.provenance.of(&name);
            entry.insert("layer".to_owned(), json!(source.kind()));
            entry.insert("source".to_owned(), json!(source.to_string()));
            entry.insert("reloadable".to_owned(), json!(key.live));
            entry.insert("about".to_owned(), json!(key.about));
            let must: Vec<&str> =
                rules.iter().filter(|rule| rule.key == key.name).map(|rule| rule.must.as_str()).collect();
            entry.insert("must_be".to_owned(), json!(must));
            insert(&mut root, &name, Value::Object(entry));
        }
        Value::Object(root)
    }
}

/// Puts a value at a dotted name.
fn insert(object: &mut Map<String, Value>, name: &str, value: Value) {
    match name.split_once('.') {
        None => {
            object.insert(name.to_owned(), value);
        }
        Some((section, rest)) => {
            let inner = object.entry(section).or_insert_with(|| json!({}));
            if let Value::Object(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}
