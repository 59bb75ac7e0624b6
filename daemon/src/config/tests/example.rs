//! The example file and the manual's table are made from the schema and the rules, and checked against them here.
//!
//! After a change of the schema: `CLAD_UPDATE=1 cargo test -p clad -- --test-threads=1` writes both again.

use std::fs;
use std::path::PathBuf;

use super::super::rules::rules;
use super::super::schema::{Found, KEYS, find};
use super::{Config, Fixture, Loaded};

const HEAD: &str = "\
# clad.toml: every key with its default, commented out in full.
#
# Later layers outweigh earlier ones: the embedded defaults, /etc/clad/clad.toml, /etc/clad/clad.d/*.toml
# in the order of their names, the environment (CLAD_JOURNAL__SEGMENT_BYTES=64MiB), and the command line
# (clad --set journal.segment_bytes=64MiB). An unknown key is an error. `clad check` says whether all is
# right, `clad config` which value came from where.
#
# Sizes: 64MiB, 10MB, or a plain number of bytes. Durations: 10ms, 5s, 1h30m, 7d.
";

/// The defaults as they are under the shipped unit.
fn under_the_unit() -> Fixture {
    Fixture::new().env("STATE_DIRECTORY", "/var/lib/clad").env("RUNTIME_DIRECTORY", "/run/clad")
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A key of a section that the operator names is there as it would be in a section `NAME`.
fn key(name: &str) -> Found {
    find(name).expect("a key of the table")
}

fn is_named(name: &str) -> bool {
    name.contains(".NAME.")
}

fn default_of(name: &str, loaded: &Loaded) -> String {
    let mut config = loaded.config.clone();
    config.ingest.syslog.entry("NAME".to_owned()).or_default();
    key(name).get(&config).expect("a value").toml
}

/// Rules of the key, each as a sentence.
fn musts(name: &str) -> Vec<String> {
    let of_key = rules().into_iter().filter(|rule| rule.key == name);
    of_key.map(|rule| format!("Must be {}.", rule.must)).collect()
}

fn example(loaded: &Loaded) -> String {
    let mut text = HEAD.to_owned();
    let mut open = "";
    for key in KEYS {
        let (section, name) = key.split();
        // A section that stands there would be a listener.
        let mark = if is_named(key.name) { "# " } else { "" };
        if section != open {
            text.push_str(&format!("\n{mark}[{section}]\n"));
            open = section;
        }
        text.push_str(&format!("# {}\n", key.about));
        for must in musts(key.name) {
            text.push_str(&format!("# {}\n", must.replace('`', "")));
        }
        let mark = if is_named(key.name) { "#   " } else { "#" };
        text.push_str(&format!("{mark}{name} = {}\n", default_of(key.name, loaded)));
    }
    text
}

fn table(loaded: &Loaded) -> String {
    let mut text = "| key | default | HUP | what it is |\n|---|---|---|---|\n".to_owned();
    for key in KEYS {
        let live = if key.live { "yes" } else { "restart" };
        let default = default_of(key.name, loaded);
        let what = std::iter::once(key.about.to_owned()).chain(musts(key.name)).collect::<Vec<_>>().join(" ");
        let what = what.replace("CladRetentionPaused", "[CladRetentionPaused](OPERATIONS.md#cladretentionpaused)");
        text.push_str(&format!("| `{}` | `{default}` | {live} | {what} |\n", key.name));
    }
    text
}

/// Compares a file with what it should hold; writes it again when asked to.
fn check(path: &str, expected: &str) {
    let path = root().join(path);
    if std::env::var_os("CLAD_UPDATE").is_some() {
        fs::write(&path, expected).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "{} does not match the schema: CLAD_UPDATE=1 cargo test -p clad -- --test-threads=1",
        path.display()
    );
}

#[test]
fn the_example_file_names_every_key() {
    check("deploy/clad.toml", &example(&under_the_unit().loaded()));
}

#[test]
fn the_example_uncommented_is_the_defaults() {
    let text = fs::read_to_string(root().join("deploy/clad.toml")).unwrap();
    let mut keys = 0;
    let live: String = text
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if !key.is_empty() && !key.starts_with(' ') => {
                keys += 1;
                format!("{key}\n")
            }
            _ => format!("{line}\n"),
        })
        .collect();
    assert_eq!(keys, KEYS.iter().filter(|key| !is_named(key.name)).count());
    // As shipped it sets nothing; uncommented it changes nothing.
    let shipped = under_the_unit().file("clad.toml", &text).loaded();
    let uncommented = under_the_unit().file("clad.toml", &live).loaded();
    let bare = under_the_unit().loaded();
    assert_eq!((&shipped.config, &shipped.provenance), (&bare.config, &bare.provenance));
    assert_eq!(uncommented.config, shipped.config);
    assert_ne!(uncommented.config, Config::default(), "the unit's folders are in it");
}

#[test]
fn the_manual_lists_every_key() {
    const START: &str = "<!-- keys: made from the schema -->\n";
    const END: &str = "<!-- end of keys -->\n";
    let path = "docs/REFERENCE.md";
    let manual = fs::read_to_string(root().join(path)).unwrap();
    let (before, rest) = manual.split_once(START).expect("the start mark of the table");
    let (_, after) = rest.split_once(END).expect("the end mark of the table");
    let table = table(&under_the_unit().loaded());
    check(path, &format!("{before}{START}{table}{END}{after}"));
}
