//! `clad config`: what it prints loads to the same values, and says where each came from.

use super::super::schema::KEYS;
use super::Fixture;

/// Names of all keys, with those of the one listener that [`busy`] names.
fn every_key() -> Vec<String> {
    KEYS.iter().map(|key| key.name.replace("NAME", "net")).collect()
}

fn busy() -> Fixture {
    Fixture::new()
        .file("clad.toml", "[journal]\ndir = \"/srv/a \\\"b\\\" \\n\"\n[ingest.grpc]\nlisten = \"\"\n[ingest.syslog.net]\nlisten = \"udp://127.0.0.1:514\"\n")
        .env("CLAD_RETENTION__MAX_AGE", "7d")
        .env("RUNTIME_DIRECTORY", "/run/clad")
        .set("limits.max_producers=9")
}

#[test]
fn the_toml_loads_to_the_same_values() {
    let first = busy().loaded();
    let text = first.to_toml();
    let second = Fixture::new().file("clad.toml", &text).loaded();
    assert_eq!(second.config, first.config, "{text}");
}

#[test]
fn the_toml_says_where_each_value_came_from() {
    let fixture = busy();
    let text = fixture.loaded().to_toml();
    let source = |start: &str| {
        let line = text.lines().find(|line| line.starts_with(start)).unwrap();
        line.rsplit_once("  # ").unwrap().1.to_owned()
    };
    let file = fixture.path("clad.toml");
    assert_eq!(source("dir ="), format!("{}:2", file.display()));
    assert_eq!(source("max_age = \"7d\""), "environment variable CLAD_RETENTION__MAX_AGE");
    assert_eq!(source("max_producers = 9"), "flag --set limits.max_producers=9");
    assert_eq!(source("segment_bytes = \"64MiB\""), "default");
    assert_eq!(source("path = \"/run/clad/clad.sock\""), "default, from $RUNTIME_DIRECTORY");
    let sourced = text.lines().filter(|line| line.contains("  # ")).count();
    assert_eq!(sourced, every_key().len());
}

#[test]
fn the_json_has_units_in_its_names() {
    let json = busy().loaded().to_json();
    assert_eq!(json["journal"]["segment_bytes"]["bytes"], 64 << 20);
    assert_eq!(json["journal"]["group_commit"]["max_delay"]["seconds"], 0.005);
    assert_eq!(json["limits"]["max_producers"]["value"], 9);
    assert_eq!(json["limits"]["max_producers"]["layer"], "flag");
    assert_eq!(json["ingest"]["grpc"]["listen"]["value"], "");
    assert_eq!(json["log"]["level"]["source"], "default");
    assert_eq!(json["retention"]["max_bytes"]["must_be"][0], "0, or at least 3 × `journal.segment_bytes`");
    for key in every_key() {
        let pointer = format!("/{}/source", key.replace('.', "/"));
        assert!(json.pointer(&pointer).is_some(), "{pointer}");
    }
}
