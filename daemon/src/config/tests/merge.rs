//! Traps of a merge in layers: names that could pass for paths, tables against values, types that TOML has and the crate
//! has not, and the origin of each value.

use super::Fixture;

/// `clad config` of all layers over one section, of which each sets one key more.
#[test]
fn each_value_keeps_the_origin_of_the_layer_that_had_the_last_word() {
    let keys = ["tcp.listen", "tcp.allow_read", "grpc.listen", "grpc.allow_read", "shm.max_rings"];
    let values = ["127.0.0.1:1", "false", "127.0.0.1:2", "true", "5"];
    let named = |from: usize| (from..5).map(|n| (format!("ingest.{}", keys[n]), values[n]));
    // Each layer sets what those before it set, but for one key; each key on a line of its own.
    let file = |from: usize| {
        let quoted = |value: &str| if value.contains(':') { format!("{value:?}") } else { value.to_owned() };
        let lines = named(from).map(|(key, value)| format!("{key} = {}\n", quoted(value)));
        "\n".repeat(from) + &lines.collect::<String>()
    };
    let mut fixture = Fixture::new().file("clad.toml", &file(0)).file("clad.d/1.toml", &file(1));
    fixture = fixture.file("clad.d/2.toml", &file(2));
    for (key, value) in named(3) {
        fixture = fixture.env(&format!("CLAD_{}", key.to_uppercase().replace('.', "__")), value);
    }
    for (key, value) in named(4) {
        fixture = fixture.set(&format!("{key}=7")).set(&format!("{key}={value}"));
    }
    let loaded = fixture.loaded();
    let etc = fixture.path("").display().to_string();
    let origins = [
        format!("{etc}clad.toml:1"),
        format!("{etc}clad.d/1.toml:2"),
        format!("{etc}clad.d/2.toml:3"),
        "environment variable CLAD_INGEST__GRPC__ALLOW_READ".to_owned(),
        "flag --set ingest.shm.max_rings=5".to_owned(),
    ];
    let text = loaded.to_toml();
    for ((key, origin), value) in keys.iter().zip(&origins).zip(values) {
        let (section, key) = key.split_once('.').unwrap();
        let section = text.split_once(&format!("[ingest.{section}]\n")).unwrap().1;
        let line = section.lines().find(|line| line.starts_with(&format!("{key} ="))).unwrap();
        assert!(line.contains(value) && line.ends_with(&format!("  # {origin}")), "{line}");
    }
    let kinds: Vec<&str> = keys.iter().map(|key| loaded.provenance.of(&format!("ingest.{key}")).kind()).collect();
    assert_eq!(kinds, ["file", "file", "file", "environment", "flag"]);
    assert_eq!(loaded.provenance.of("ingest.shm.ring_bytes").kind(), "default");
}

/// An origin is a text; its layer is known whatever a file is called, or a flag sets.
#[test]
fn a_file_is_a_file_whatever_its_name() {
    let loaded = Fixture::new().set("access.read_group=file").loaded();
    assert_eq!(loaded.provenance.of("access.read_group").kind(), "flag");
    for name in ["flag --set log.level=warn", "environment variable CLAD_LOG__LEVEL", "default"] {
        let fixture = Fixture::new().file(name, "log.level = \"warn\"\n");
        let path = fixture.path(name);
        let loaded = fixture.config(&path).loaded();
        let origin = loaded.provenance.of("log.level");
        assert_eq!((origin.kind(), origin.to_string()), ("file", format!("{}:1", path.display())));
        assert_eq!(loaded.provenance.overrides(), Vec::<String>::new());
    }
}

/// The crate reads names at the top as paths, with dots and subscripts; and others compare names without case.
#[test]
fn a_name_is_taken_as_it_stands() {
    for (line, name, nearest) in [
        ("\"log.level\" = \"warn\"", "\"log.level\"", "log.level"),
        ("\"log.level\".x = \"warn\"", "\"log.level\".x", "log.level"),
        ("\"log[0]\".level = \"warn\"", "log[0].level", "log.level"),
        ("log.\"level[0]\" = \"warn\"", "log.level[0]", "log.level"),
        ("log.Level = \"warn\"", "log.Level", "log.level"),
        ("LOG.level = \"warn\"", "LOG.level", "log.level"),
        ("\"\".log.level = \"warn\"", "\"\".log.level", "log.level"),
        ("access.read-group = \"x\"", "access.read-group", "access.read_group"),
        ("ingest.\"tcp.listen\" = \"\"", "ingest.\"tcp.listen\"", "ingest.tcp.listen"),
        ("ingest.\"t c p\".listen = \"\"", "ingest.t c p.listen", "ingest.tcp.listen"),
    ] {
        let errors = Fixture::new().file("clad.toml", line).errors();
        assert_eq!(errors, [format!("ETC/clad.toml:1: unknown key `{name}`; nearest valid key: `{nearest}`")]);
    }
    for name in ["log.level[0]", "log.level[-1]", "log[0].level", "LOG.LEVEL", "log..level", ".log.level", "log-level"]
    {
        let errors = Fixture::new().set(&format!("{name}=warn")).errors();
        assert_eq!(errors, [format!("flag --set {name}=warn: unknown key `{name}`; nearest valid key: `log.level`")]);
    }
    let errors = Fixture::new().env("CLAD_LOG__LEVEL[0]", "warn").errors();
    let variable = "environment variable CLAD_LOG__LEVEL[0]: unknown key `log.level[0]`";
    assert_eq!(errors, [format!("{variable}; nearest valid key: `CLAD_LOG__LEVEL`")]);
}

/// A merge would replace the one by the other without a word; here the place is named, and nothing else is wrong.
#[test]
fn no_table_replaces_a_value_and_no_value_a_table() {
    // Were `ingest.grpc` replaced, its address would be the default, and that is the other listener's.
    let fixture = || {
        Fixture::new()
            .file("clad.toml", "[ingest]\ntcp.listen = \"127.0.0.1:7441\"\ngrpc.listen = \"127.0.0.1:7440\"\n")
    };
    let section = "is a section, not a key; nearest valid key: `ingest.grpc.tls`";
    assert_eq!(
        fixture().file("clad.d/1.toml", "ingest.grpc = false\n").errors(),
        [format!("ETC/clad.d/1.toml:1: `ingest.grpc` {section}")]
    );
    assert_eq!(fixture().set("ingest.grpc=").errors(), [format!("flag --set ingest.grpc=: `ingest.grpc` {section}")]);
    assert_eq!(
        fixture().env("CLAD_INGEST__GRPC", "").errors(),
        ["environment variable CLAD_INGEST__GRPC: `ingest.grpc` is a section, not a key; \
          nearest valid key: `CLAD_INGEST__GRPC__TLS`"]
    );
    let table =
        "expected an IP address and port such as \"127.0.0.1:7440\", or \"\" to turn it off, found a TOML table";
    for text in ["[ingest.tcp.listen]\nport = 1\n", "[ingest.tcp.listen]\n", "ingest.tcp.listen = { port = 1 }\n"] {
        assert_eq!(
            fixture().file("clad.d/1.toml", text).errors(),
            [format!("ETC/clad.d/1.toml:1: `ingest.tcp.listen`: {table}")]
        );
    }
    // A name that would be its path leaves the value, and what is wrong with it, as they are.
    let bound = Fixture::new().file("clad.toml", "ingest.tcp.listen = \"10.0.0.1:1\"\n");
    let errors = bound.file("clad.d/1.toml", "\"ingest.tcp.listen\".x = 1\n").errors();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[1].starts_with("ETC/clad.toml:1: `ingest.tcp.listen`: 10.0.0.1:1 is not a loopback"), "{errors:?}");
    // An empty section says nothing, and takes nothing away.
    let loaded = fixture().file("clad.d/1.toml", "[ingest.grpc]\n[ingest.tcp]\n").loaded();
    assert_eq!(loaded.config.ingest.grpc.listen, Some("127.0.0.1:7440".parse().unwrap()));
}

#[test]
fn a_value_that_a_later_layer_overrides_must_be_right_too() {
    let fixture = Fixture::new().file("clad.toml", "log.level = \"loud\"\n").env("CLAD_LOG__LEVEL", "quiet");
    let errors = fixture.set("log.level=warn").errors();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].starts_with("ETC/clad.toml:1: `log.level`: "), "{errors:?}");
    assert!(errors[1].starts_with("environment variable CLAD_LOG__LEVEL: `log.level`: "), "{errors:?}");
}

/// The crate has integers of 128 bits and no time, and would read a number as a text, or 1 as true.
#[test]
fn a_value_is_taken_as_what_it_is_or_refused() {
    let size = "`retention.max_bytes`: expected a size such as \"64MiB\" or a number of bytes, found";
    let group = "`access.read_group`: expected a text, found";
    for (line, text) in [
        ("retention.max_bytes = -9223372036854775808", format!("{size} -9223372036854775808")),
        ("retention.max_bytes = 9223372036854775808", format!("{size} a TOML integer beyond 64 bits")),
        ("retention.max_bytes = 0xffffffffffffffffffffffffffffffffff", format!("{size} a TOML integer beyond 64 bits")),
        ("retention.max_bytes = 1e30", format!("{size} a TOML float")),
        ("retention.max_bytes = nan", format!("{size} a TOML float")),
        ("retention.max_bytes = [1]", format!("{size} a TOML array")),
        ("access.read_group = 2026-11-24", format!("{group} a TOML datetime")),
        ("access.read_group = 5", format!("{group} 5")),
        ("ingest.shm.enabled = 1", "`ingest.shm.enabled`: expected true or false, found 1".to_owned()),
        (
            "ingest.shm.max_rings = \"5\"",
            "`ingest.shm.max_rings`: expected a number up to 4294967295, found \"5\"".to_owned(),
        ),
    ] {
        assert_eq!(Fixture::new().file("clad.toml", line).errors(), [format!("ETC/clad.toml:1: {text}")]);
    }
    let numbers =
        "retention.max_bytes = 9223372036854775807\njournal.reserve_free = 0x10_0000\nlimits.max_producers = 1_0\n";
    let loaded = Fixture::new().file("clad.toml", numbers).loaded();
    assert_eq!(loaded.config.retention.max_bytes, i64::MAX as u64);
    assert_eq!((loaded.config.journal.reserve_free, loaded.config.limits.max_producers), (1 << 20, 10));
    // A word has the type of its key: a group may be called by a number, or `true`.
    let loaded =
        Fixture::new().set("access.read_group=5").set("access.admin_group=true").set("limits.max_producers= 5 ");
    let config = loaded.loaded().config;
    assert_eq!((config.access.read_group.as_str(), config.access.admin_group.as_str()), ("5", "true"));
    assert_eq!(config.limits.max_producers, 5);
}
