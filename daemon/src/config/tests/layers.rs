//! Precedence of the layers, and that each says so.

use std::path::Path;
use std::time::Duration;

use super::super::{Durability, LogLevel};
use super::{Config, Fixture};

#[test]
fn no_file_at_all_is_fine() {
    let loaded = Fixture::new().loaded();
    assert_eq!(loaded.config, Config::default());
    assert_eq!(loaded.warnings, Vec::<String>::new());
    assert_eq!(loaded.provenance.of("log.level").to_string(), "default");
}

#[test]
fn each_layer_outweighs_the_one_before() {
    let mut fixture = Fixture::new().file("clad.toml", "[log]\nlevel = \"error\"\n");
    let seen = |fixture: &Fixture| {
        let loaded = fixture.loaded();
        (loaded.config.log.level, loaded.provenance.of("log.level").kind())
    };
    assert_eq!(seen(&fixture), (LogLevel::Error, "file"));
    fixture = fixture
        .file("clad.d/20-late.toml", "log.level = \"debug\"\n")
        .file("clad.d/10-early.toml", "log.level = \"warn\"\n");
    assert_eq!(seen(&fixture), (LogLevel::Debug, "file"));
    fixture = fixture.env("CLAD_LOG__LEVEL", "trace");
    assert_eq!(seen(&fixture), (LogLevel::Trace, "environment"));
    fixture = fixture.set("log.level=info").set("log.level=warn");
    assert_eq!(seen(&fixture), (LogLevel::Warn, "flag"));
}

#[test]
fn what_was_read_and_what_was_set_over_it_is_reported() {
    let fixture = Fixture::new()
        .file("clad.toml", "# nothing is set here\n")
        .file("clad.d/10.toml", "[log]\nlevel = \"debug\"\nformat = \"text\"\n")
        .env("CLAD_LOG__LEVEL", "trace")
        .env("CLAD_LIMITS__MAX_PRODUCERS", "7")
        .set("limits.max_producers=8");
    let loaded = fixture.loaded();
    assert_eq!(loaded.files, [fixture.path("clad.toml"), fixture.path("clad.d/10.toml")]);
    assert_eq!(loaded.provenance.overrides(), ["--set limits.max_producers", "CLAD_LOG__LEVEL"]);
    assert_eq!(Fixture::new().loaded().files, Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_named_file_replaces_file_and_folder() {
    let fixture = Fixture::new()
        .file("clad.toml", "[log]\nlevel = \"error\"\n")
        .file("clad.d/10.toml", "[log]\nformat = \"json\"\n")
        .file("own/mine.toml", "[journal]\ndurability = \"per_message\"\n");
    let path = fixture.path("own/mine.toml");
    let loaded = fixture.config(&path).loaded();
    assert_eq!(loaded.config.log, Config::default().log);
    assert_eq!(loaded.config.journal.durability, Durability::PerMessage);
    assert_eq!(loaded.provenance.of("journal.durability").to_string(), format!("{}:2", path.display()));
}

#[test]
fn only_visible_toml_files_of_the_folder_count() {
    let loaded = Fixture::new()
        .file("clad.d/readme.txt", "not toml")
        .file("clad.d/.10.toml.swp", "not toml")
        .file("clad.d/.hidden.toml", "not toml")
        .loaded();
    assert_eq!(loaded.config, Config::default());
}

#[test]
fn nested_variables_reach_nested_sections() {
    let loaded = Fixture::new()
        .env("CLAD_JOURNAL__GROUP_COMMIT__MAX_DELAY", "10ms")
        .env("CLAD_LIMITS__MAX_PRODUCERS", "7")
        .env("CLAD_INGEST__TCP__ALLOW_READ", "true")
        .loaded();
    let config = loaded.config;
    assert_eq!(config.journal.group_commit.max_delay, Duration::from_millis(10));
    assert_eq!(config.limits.max_producers, 7);
    assert!(config.ingest.tcp.allow_read);
    assert_eq!(
        loaded.provenance.of("limits.max_producers").to_string(),
        "environment variable CLAD_LIMITS__MAX_PRODUCERS"
    );
}

#[test]
fn strays_are_named_in_one_warning() {
    let loaded = Fixture::new()
        .env("CLAD_SERVER", "unix://x")
        .env("CLAD_ADMIN", "unix://y")
        .env("CLAD_LOG_LEVEL", "debug")
        .env("CLAD_DEBUG", "1")
        .env("CLADDING", "1")
        .loaded();
    assert_eq!(
        loaded.warnings,
        ["ignored: only CLAD_SECTION__KEY (two underscores) sets a key: CLAD_DEBUG, CLAD_LOG_LEVEL"]
    );
    assert_eq!(loaded.config, Config::default());
}

#[test]
fn the_data_folder_is_the_service_managers_unless_somebody_set_it() {
    let fixture = Fixture::new().env("STATE_DIRECTORY", "/var/lib/clad:/var/lib/other");
    let loaded = fixture.loaded();
    assert_eq!(loaded.config.journal.dir, Path::new("/var/lib/clad"));
    assert_eq!(loaded.provenance.of("journal.dir").to_string(), "default, from $STATE_DIRECTORY");
    // Without a runtime folder the sockets go beside the log.
    let socket = Path::new("/var/lib/clad/clad.sock");
    assert_eq!(loaded.config.ingest.unix.path.as_deref(), Some(socket));

    let loaded = fixture.set("journal.dir=/srv/log").loaded();
    assert_eq!(loaded.config.journal.dir, Path::new("/srv/log"));
    let socket = Path::new("/srv/log/admin.sock");
    assert_eq!(loaded.config.admin.path.as_deref(), Some(socket));
}

#[test]
fn sockets_are_in_the_runtime_folder_where_there_is_one() {
    let loaded = Fixture::new().env("RUNTIME_DIRECTORY", "/run/clad").set("admin.path=").loaded();
    let socket = Path::new("/run/clad/clad.sock");
    assert_eq!(loaded.config.ingest.unix.path.as_deref(), Some(socket));
    assert_eq!(loaded.config.admin.path, None, "an empty path is off");
    assert_eq!(loaded.config.journal.dir, Path::new("./clad-data"));
}

#[test]
fn an_empty_folder_variable_is_none() {
    let loaded = Fixture::new().env("STATE_DIRECTORY", "").env("RUNTIME_DIRECTORY", "").loaded();
    assert_eq!(loaded.config, Config::default());
}

#[test]
fn an_empty_address_is_off_and_port_zero_is_kept() {
    let config = Fixture::new()
        .set("ingest.tcp.listen=")
        .set("ingest.grpc.listen=127.0.0.1:0")
        .set("metrics.listen=127.0.0.1:0")
        .loaded()
        .config;
    assert_eq!(config.ingest.tcp.listen, None);
    assert_eq!(config.ingest.grpc.listen.unwrap().port(), 0);
}

#[test]
fn plaintext_beyond_the_loopback_needs_the_operators_word() {
    let config = Fixture::new()
        .file(
            "clad.toml",
            "[ingest.tcp]\nlisten = \"0.0.0.0:7440\"\nallow_plaintext = true\n\
             [ingest.grpc]\nlisten = \"[::1]:7441\"\n\
             [metrics]\nlisten = \"[::ffff:127.0.0.1]:9744\"\n",
        )
        .loaded()
        .config;
    assert_eq!(config.ingest.tcp.listen.unwrap().port(), 7440);
}

#[test]
fn a_small_segment_with_a_small_append_is_fine() {
    let config = Fixture::new()
        .file(
            "clad.toml",
            "[journal]\nsegment_bytes = \"64KiB\"\nmax_record_bytes = 4096\n[limits]\nmax_append_bytes = \"16KiB\"\n",
        )
        .loaded()
        .config;
    assert_eq!(config.journal.segment_bytes, 65_536);
    assert_eq!(config.journal.max_record_bytes, 4096);
}

#[test]
fn an_instance_has_a_file_and_folders_of_its_own_and_no_network() {
    let fixture = Fixture::new().file("clad.toml", "[limits]\nmax_producers = 5\n").instance("audit");
    let errors = fixture.errors();
    assert!(errors[0].starts_with("cannot read ETC/audit.toml"), "{errors:?}");

    let fixture = fixture.file("audit.toml", "[metrics]\nlisten = \"127.0.0.1:9745\"\n");
    let loaded = fixture.loaded();
    let config = &loaded.config;
    assert_eq!(config.limits.max_producers, 1024, "the host's file is none of its own");
    assert_eq!((config.ingest.tcp.listen, config.ingest.grpc.listen), (None, None));
    assert_eq!(config.metrics.listen, Some("127.0.0.1:9745".parse().unwrap()));
    assert_eq!(config.journal.dir, Path::new("/var/lib/clad-audit"));
    assert_eq!(config.ingest.unix.path.as_deref(), Some(Path::new("/run/clad-audit/clad.sock")));
    assert_eq!(loaded.provenance.of("ingest.tcp.listen").to_string(), "default, from --instance");
    // The service manager's variables come first.
    let loaded = fixture.env("STATE_DIRECTORY", "/srv/state").env("RUNTIME_DIRECTORY", "/srv/run").loaded();
    assert_eq!(loaded.config.journal.dir, Path::new("/srv/state"));
    assert_eq!(loaded.config.admin.path.as_deref(), Some(Path::new("/srv/run/admin.sock")));
}
