//! Every error by its text: where it stands, the key, what would be right.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::Fixture;

/// The errors of one file's text.
fn of_file(text: &str) -> Vec<String> {
    Fixture::new().file("clad.toml", text).errors()
}

/// The errors of one flag.
fn of_set(text: &str) -> Vec<String> {
    Fixture::new().set(text).errors()
}

#[test]
fn an_unknown_key_names_the_nearest_in_each_layer() {
    assert_eq!(
        of_file("[journal]\ndir = \"x\"\nsegmet_bytes = 1\n"),
        ["ETC/clad.toml:3: unknown key `journal.segmet_bytes`; nearest valid key: `journal.segment_bytes`"]
    );
    assert_eq!(
        Fixture::new().env("CLAD_JOURNAL__DURABILTY", "x").errors(),
        ["environment variable CLAD_JOURNAL__DURABILTY: unknown key `journal.durabilty`; \
          nearest valid key: `CLAD_JOURNAL__DURABILITY`"]
    );
    assert_eq!(
        of_set("log.levle=info"),
        ["flag --set log.levle=info: unknown key `log.levle`; nearest valid key: `log.level`"]
    );
}

#[test]
fn an_unknown_section_is_found_by_its_keys_or_by_its_name() {
    assert_eq!(
        of_file("[jurnal]\ndir = \"x\"\n"),
        ["ETC/clad.toml:2: unknown key `jurnal.dir`; nearest valid key: `journal.dir`"]
    );
    assert_eq!(
        of_file("[jurnal.dirr]\n"),
        ["ETC/clad.toml:1: unknown key `jurnal.dirr`; nearest valid key: `journal.dir`"]
    );
}

#[test]
fn a_variable_in_lower_case_is_no_key() {
    assert_eq!(
        Fixture::new().env("CLAD_log__level", "info").errors(),
        ["environment variable CLAD_log__level: unknown key `CLAD_log__level`; \
          nearest valid key: `CLAD_LOG__LEVEL`"]
    );
}

#[test]
fn a_dot_inside_quotes_makes_no_section() {
    assert_eq!(
        of_file("\"log.level\" = \"info\"\n"),
        ["ETC/clad.toml:1: unknown key `\"log.level\"`; nearest valid key: `log.level`"]
    );
}

/// Each names the rule, the line, and what would be right.
#[test]
fn a_rule_that_is_none_is_refused_whole() {
    let good = "who = \"uid:*\"\nmay = [\"append\"]\n";
    let refused = |rule: &str| {
        let text = format!("[[access.rule]]\n{good}[[access.rule]]\n{rule}");
        let errors = of_file(&text);
        let [error] = errors.as_slice() else { panic!("{rule}: {errors:?}") };
        let (at, problem) = error.split_once("`access.rule`: ").unwrap_or_else(|| panic!("{error}"));
        assert_eq!(at, "ETC/clad.toml:1: ", "{rule}");
        problem.to_owned()
    };
    for (rule, problem) in [
        ("may = []\n", "`who` must be set"),
        ("who = \"*\"\n", "`may` must be set"),
        ("who = []\nmay = []\n", "`who`: expected at least one"),
        ("who = \"user:x\"\nmay = []\n", "`who`: expected \"*\", uid:NUMBER-OR-NAME"),
        ("who = [\"*\", 5]\nmay = []\n", "`who`: expected a text, or an array of texts"),
        (
            "who = \"*\"\nmay = [\"apend\"]\n",
            "`may`: expected one of append, read, hold, admin, forward, found \"apend\"; nearest: \"append\"",
        ),
        (
            "who = \"*\"\nmay = \"write\"\n",
            "`may`: expected one of append, read, hold, admin, forward, found \"write\"",
        ),
        ("who = \"*\"\nmay = \"forward\"\nlogs = \"main\"\n", "`logs`: expected the id of a log, 32 hex digits"),
        ("who = \"*\"\nmay = \"append\"\nlogs = []\n", "`logs` is for forwarding, and `may` has no \"forward\""),
        ("who = \"*\"\nmay = []\nmax_levle = \"written\"\n", "unknown key `max_levle`; nearest valid key: `max_level`"),
        ("who = \"*\"\nmay = \"append\"\nmax_level = \"high\"\n", "`max_level`: expected one of highest, none"),
        ("who = \"*\"\nmay = \"append\"\nmax_bytes_per_second = \"fast\"\n", "`max_bytes_per_second`: expected a size"),
        ("who = \"*\"\nmay = \"append\"\ncomponent = \"\"\n", "`component`: expected a name"),
        ("who = \"*\"\nmay = \"append\"\nowner = \"\"\n", "`owner`: expected a name of 1 to 128 bytes"),
        (
            "who = \"*\"\nmay = \"read\"\ncomponent = \"a*\"\n",
            "`component` is for appends, and `may` has no \"append\"",
        ),
    ] {
        let shown = refused(rule);
        assert!(shown.starts_with(&format!("rule 2 (ETC/clad.toml:4): {problem}")), "{rule}: {shown}");
    }
    assert!(of_set("access.rule=uid:*")[0].contains("`access.rule`: expected [[access.rule]] in a file"));
    let many = format!("[[access.rule]]\n{good}").repeat(1001);
    assert!(of_file(&many)[0].contains("1001 rules; 1000 is the limit"), "{:?}", of_file(&many));
}

#[test]
fn a_section_is_no_key_and_a_key_no_section() {
    assert_eq!(
        of_set("ingest.tcp=on"),
        ["flag --set ingest.tcp=on: `ingest.tcp` is a section, not a key; nearest valid key: `ingest.tcp.tls`"]
    );
    assert_eq!(
        of_file("[log.level]\nclad = \"debug\"\n"),
        ["ETC/clad.toml:1: `log.level`: expected one of error, warn, info, debug, trace, found a TOML table; \
          nearest: \"error\""]
    );
}

#[test]
fn values_of_the_wrong_kind() {
    for (set, text) in [
        (
            "journal.segment_bytes=64M",
            "`journal.segment_bytes`: expected a size such as \"64MiB\" or a number of bytes, found \"64M\"",
        ),
        (
            "daemon.drain_timeout=10",
            "`daemon.drain_timeout`: expected a duration with its unit, such as \"10ms\" or \"1h30m\", found \"10\"",
        ),
        ("ingest.tcp.allow_read=yes", "`ingest.tcp.allow_read`: expected true or false, found \"yes\""),
        ("limits.max_connections=many", "`limits.max_connections`: expected a number up to 4294967295, found \"many\""),
        (
            "metrics.listen=localhost:9744",
            "`metrics.listen`: expected an IP address and port such as \"127.0.0.1:7440\", or \"\" to turn it off, found \"localhost:9744\"",
        ),
        ("journal.dir=", "`journal.dir`: expected a path, found \"\""),
        (
            "log.level=inof",
            "`log.level`: expected one of error, warn, info, debug, trace, found \"inof\"; nearest: \"info\"",
        ),
        (
            "log.format=jsn",
            "`log.format`: expected one of auto, text, json, journald, found \"jsn\"; nearest: \"json\"",
        ),
    ] {
        assert_eq!(of_set(set), [format!("flag --set {set}: {text}")]);
    }
    assert_eq!(
        of_file("[journal]\nsegment_bytes = true\ndir = 5\n[daemon]\ndrain_timeout = 10\n[metrics]\nlisten = []\n"),
        [
            "ETC/clad.toml:5: `daemon.drain_timeout`: expected a duration with its unit, such as \"10ms\" or \"1h30m\", found 10",
            "ETC/clad.toml:3: `journal.dir`: expected a path, found 5",
            "ETC/clad.toml:2: `journal.segment_bytes`: expected a size such as \"64MiB\" or a number of bytes, found true",
            "ETC/clad.toml:7: `metrics.listen`: expected an IP address and port such as \"127.0.0.1:7440\", or \"\" to turn it off, found a TOML array",
        ]
    );
    assert_eq!(
        of_file("[ingest.tcp]\nallow_read = \"true\"\n"),
        ["ETC/clad.toml:2: `ingest.tcp.allow_read`: expected true or false, found \"true\""]
    );
    assert_eq!(
        of_file("[journal]\nsegment_bytes = -1\n"),
        ["ETC/clad.toml:2: `journal.segment_bytes`: expected a size such as \"64MiB\" or a number of bytes, found -1"]
    );
}

#[test]
fn a_policy_that_is_none() {
    assert_eq!(
        of_set("journal.durability=sync_range"),
        ["flag --set journal.durability=sync_range: `journal.durability`: expected one of group_commit, per_message, \
          sync_file_range, fire_and_forget, found \"sync_range\"; nearest: \"sync_file_range\""]
    );
    assert_eq!(
        of_set("journal.power_loss_protected=perhaps"),
        ["flag --set journal.power_loss_protected=perhaps: `journal.power_loss_protected`: expected true or false, \
          found \"perhaps\""]
    );
    assert_eq!(
        of_set("journal.io_engine=rings"),
        ["flag --set journal.io_engine=rings: `journal.io_engine`: expected one of auto, uring, blocking, found \
          \"rings\"; nearest: \"uring\""]
    );
}

#[test]
fn values_that_cannot_work_alone() {
    for (set, text) in [
        (
            "journal.segment_bytes=100KiB",
            "`journal.segment_bytes`: 100KiB is not a multiple of 64KiB from 64KiB to 1GiB",
        ),
        ("journal.segment_bytes=2GiB", "`journal.segment_bytes`: 2GiB is not a multiple of 64KiB from 64KiB to 1GiB"),
        ("journal.max_record_bytes=10", "`journal.max_record_bytes`: 10 is too small; the least is 1KiB"),
        ("journal.group_commit.max_bytes=0", "`journal.group_commit.max_bytes`: 0 is too small; the least is 1KiB"),
        ("journal.group_commit.in_flight=0", "`journal.group_commit.in_flight`: 0 is not from 1 to 16"),
        ("journal.group_commit.in_flight=17", "`journal.group_commit.in_flight`: 17 is not from 1 to 16"),
        ("journal.group_commit.max_delay=5s", "`journal.group_commit.max_delay`: 5s is more than 1s"),
        ("limits.max_connections=0", "`limits.max_connections`: 0 would let nobody in; the least is 1"),
        ("limits.max_producers=0", "`limits.max_producers`: 0 would let nobody in; the least is 1"),
        ("limits.handshake_timeout=0", "`limits.handshake_timeout`: it must be more than 0"),
        ("daemon.drain_timeout=0", "`daemon.drain_timeout`: it must be more than 0"),
        (
            "ingest.tcp.listen=0.0.0.0:7440",
            "`ingest.tcp.listen`: 0.0.0.0:7440 is not a loopback address, and it does not speak TLS: use `ingest.tcp.tls = true`, with certificate and key in [tls], or set `ingest.tcp.allow_plaintext = true` to send everything in the clear",
        ),
        (
            "ingest.grpc.listen=[::]:1",
            "`ingest.grpc.listen`: [::]:1 is not a loopback address, and it does not speak TLS: use `ingest.grpc.tls = true`, with certificate and key in [tls], or set `ingest.grpc.allow_plaintext = true` to send everything in the clear",
        ),
        (
            "metrics.listen=10.0.0.1:1",
            "`metrics.listen`: 10.0.0.1:1 is not a loopback address, and metrics have no TLS; set `metrics.allow_plaintext = true` to send them in the clear",
        ),
    ] {
        assert_eq!(of_set(set), [format!("flag --set {set}: {text}")]);
    }
}

#[test]
fn values_that_cannot_work_together() {
    for (set, text) in [
        (
            "limits.max_append_bytes=1MiB",
            "`limits.max_append_bytes`: 1MiB is less than `journal.max_record_bytes` = 2MiB; raise the one or lower the other",
        ),
        // The line that was written is named, though the rule belongs to another key.
        (
            "journal.max_record_bytes=8MiB",
            "`limits.max_append_bytes`: 4MiB is less than `journal.max_record_bytes` = 8MiB; raise the one or lower the other",
        ),
        (
            "limits.max_inflight_bytes=1MiB",
            "`limits.max_inflight_bytes`: 1MiB is less than `limits.max_connection_inflight_bytes` = 4MiB; raise the one or lower the other",
        ),
        (
            "limits.max_connection_inflight_bytes=1MiB",
            "`limits.max_connection_inflight_bytes`: 1MiB is less than `limits.max_append_bytes` = 4MiB; raise the one or lower the other",
        ),
        (
            "journal.segment_bytes=4MiB",
            "`journal.segment_bytes`: 4MiB does not hold one append of `limits.max_append_bytes` = 4MiB with 32KiB for header and footer; raise the one or lower the other",
        ),
        (
            "journal.segment_bytes=64KiB",
            "`journal.segment_bytes`: 64KiB does not hold one append of `limits.max_append_bytes` = 4MiB with 32KiB for header and footer; raise the one or lower the other to 32KiB, and with it `journal.max_record_bytes` = 2MiB",
        ),
        (
            "retention.max_bytes=64MiB",
            "`retention.max_bytes`: 64MiB is too little: the least is 3 × `journal.segment_bytes` = 192MiB; 0 is off",
        ),
        (
            "retention.min_free=100MiB",
            "`retention.min_free`: 100MiB has no effect: with less than `journal.reserve_free` + `journal.segment_bytes` = 128MiB free no further segment is begun, so set at least that; 0 is off",
        ),
        ("ingest.grpc.listen=127.0.0.1:7440", "`ingest.grpc.listen`: 127.0.0.1:7440 is also `ingest.tcp.listen`"),
        ("ingest.shm.ring_bytes=100000", "`ingest.shm.ring_bytes`: 100000 is not a power of two from 64KiB to 256MiB"),
        (
            "ingest.shm.max_rings=0",
            "`ingest.shm.max_rings`: 0 is not from 1 to 1024; `ingest.shm.enabled = false` turns rings off",
        ),
        ("admin.path=./clad-data/clad.sock", "`admin.path`: it is also `ingest.unix.path`"),
    ] {
        assert_eq!(of_set(set), [format!("flag --set {set}: {text}")]);
    }
    assert_eq!(
        Fixture::new().set("retention.max_bytes=1GiB").set("retention.keep_bytes=2GiB").errors(),
        ["flag --set retention.keep_bytes=2GiB: `retention.keep_bytes`: 2GiB is more than \
          `retention.max_bytes` = 1GiB; both cannot hold"]
    );
    assert_eq!(
        of_set("retention.per_owner_bytes=1GiB"),
        [
            "flag --set retention.per_owner_bytes=1GiB: `retention.per_owner_bytes`: no rule would ever remove records of that user: set \
          `retention.max_bytes`, `retention.max_age` or `retention.min_free` as well; 0 is off"
        ]
    );
    assert_eq!(
        Fixture::new().set("retention.max_age=7d").set("retention.per_owner_bytes=64MiB").errors(),
        [
            "flag --set retention.per_owner_bytes=64MiB: `retention.per_owner_bytes`: 64MiB is too little: the least is 3 × \
          `journal.segment_bytes` = 192MiB; 0 is off"
        ]
    );
    assert_eq!(
        Fixture::new().set("retention.max_bytes=1GiB").set("retention.per_owner_bytes=2GiB").errors(),
        [
            "flag --set retention.per_owner_bytes=2GiB: `retention.per_owner_bytes`: 2GiB is more than `retention.max_bytes` = 1GiB: one \
          user could remove everybody's history; set it below that"
        ]
    );
    let long = format!("journal.dir=/{}", "x".repeat(100));
    assert_eq!(
        of_set(&long),
        [
            format!(
                "flag --set {long}: `ingest.unix.path`: a socket's path holds at most 107 bytes, this one has 111; set a shorter one"
            ),
            format!(
                "flag --set {long}: `admin.path`: a socket's path holds at most 107 bytes, this one has 112; set a shorter one"
            ),
        ]
    );
}

#[test]
fn all_errors_are_reported_at_once_and_none_for_show() {
    let fixture = Fixture::new()
        // Refused, so that the rules that read it have nothing to say.
        .file("clad.toml", "[limits]\nmax_append_bytes = \"a lot\"\n")
        .file("clad.d/10.toml", "[jornal]\ndir = 1\n")
        .env("CLAD_LOG__LEVEL", "loud")
        .set("nonsense")
        .set("daemon.drain_timeout=0");
    let errors = fixture.errors();
    assert_eq!(errors.len(), 5, "{errors:#?}");
    let text = fixture.load().unwrap_err().to_string();
    assert!(text.starts_with("bad configuration, 5 errors:\n  "), "{text}");
    assert_eq!(text.lines().count(), 6);
}

#[test]
fn files_that_cannot_be_read() {
    let fixture = Fixture::new();
    let missing = fixture.path("none.toml");
    assert_eq!(
        fixture.config(&missing).errors(),
        [
            "cannot read ETC/none.toml: No such file or directory (os error 2); make it (an empty file is enough), or name one that is there"
        ]
    );
    let fixture = Fixture::new().file("clad.d/a.toml/keep", "");
    assert_eq!(fixture.errors(), ["cannot read ETC/clad.d/a.toml: Is a directory (os error 21); it must be a file"]);
    let fixture = Fixture::new();
    std::os::unix::fs::symlink("nowhere", fixture.path("clad.toml")).unwrap();
    assert_eq!(
        fixture.errors(),
        [
            "cannot read ETC/clad.toml: No such file or directory (os error 2); make it (an empty file is enough), or name one that is there"
        ]
    );
}

#[test]
fn a_file_that_is_not_toml_names_the_line() {
    let errors = of_file("[log]\nlevel = info\n");
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with("ETC/clad.toml:2: not valid TOML: "), "{errors:?}");
}

#[test]
fn flags_and_variables_that_are_no_assignment() {
    assert_eq!(of_set("log.level"), ["flag --set log.level: expected section.key=value"]);
    assert_eq!(of_set("=x"), ["flag --set =x: expected section.key=value"]);
    let mut fixture = Fixture::new();
    let value = OsString::from_vec(vec![0xff]);
    fixture.args.env.push(("CLAD_LOG__LEVEL".into(), value));
    assert_eq!(fixture.errors(), ["environment variable CLAD_LOG__LEVEL: its value is not valid UTF-8"]);
}

/// More than the protocol takes, or than anything can be counted with.
#[test]
fn a_size_without_sense_is_refused() {
    for (key, most, shown) in [
        ("limits.max_inflight_bytes", 1_u64 << 40, "1TiB"),
        ("limits.max_append_bytes", 256 << 20, "256MiB"),
        ("journal.max_record_bytes", 64 << 20, "64MiB"),
    ] {
        for bytes in [most + 1, i64::MAX as u64] {
            let errors = of_set(&format!("{key}={bytes}"));
            let is_reported = |error: &String| error.contains(key) && error.ends_with(&format!("is more than {shown}"));
            assert!(errors.iter().any(is_reported), "{errors:?}");
        }
        let rule = super::super::rules::rules().into_iter().find(|rule| rule.must == format!("at most {shown}"));
        assert_eq!(rule.map(|rule| rule.key), Some(key));
    }
}

#[test]
fn a_listener_of_syslog_says_what_is_wrong_with_it() {
    let file = "[ingest.tcp]\nlisten = \"127.0.0.1:514\"\n\
                [ingest.syslog.a]\nlisten = \"tcp://127.0.0.1:514\"\n\
                [ingest.syslog.b]\nlisten = \"udp://0.0.0.0:514\"\nmax_message = 3\n\
                [ingest.syslog.c]\ntime_zone = \"Mars\"\n\
                [ingest.syslog.d]\nlisten = \"unix-dgram:///s\"\nmax_message = \"2MiB\"\n\
                [ingest.syslog.e]\nlisten = \"unix-stream:///s\"\n\
                [ingest.syslog.f]\n";
    assert_eq!(
        Fixture::new().file("clad.toml", file).errors(),
        [
            "ETC/clad.toml:4: `ingest.syslog.a.listen`: 127.0.0.1:514 is also `ingest.tcp.listen`",
            "ETC/clad.toml:6: `ingest.syslog.b.listen`: 0.0.0.0:514 is not a loopback address, and it does not speak TLS: \
             use tls:// or set `ingest.syslog.b.allow_plaintext = true` to send everything in the clear",
            "ETC/clad.toml:7: `ingest.syslog.b.max_message`: 3 is too small; the least is 1KiB",
            "default: `ingest.syslog.c.listen`: it must be set, such as \"udp://127.0.0.1:514\"",
            "ETC/clad.toml:9: `ingest.syslog.c.time_zone`: \"Mars\" is no time zone: local, UTC, an offset such as \
             +02:00, or a name such as Europe/Berlin",
            "ETC/clad.toml:12: `ingest.syslog.d.max_message`: 2MiB is more than half of `journal.max_record_bytes`, \
             1MiB; lower the one or raise the other",
            "ETC/clad.toml:14: `ingest.syslog.e.listen`: unix-stream:///s is also `ingest.syslog.d.listen`",
            "default: `ingest.syslog.f.listen`: it must be set, such as \"udp://127.0.0.1:514\"",
        ]
    );
    let wrong =
        Fixture::new().set("ingest.syslog.a.listen=dtls://127.0.0.1:6514").set("ingest.syslog.a.lissten=x").errors();
    assert!(wrong[0].contains("`ingest.syslog.a.listen`: expected an address such as"), "{wrong:?}");
    assert!(wrong[1].ends_with("nearest valid key: `ingest.syslog.NAME.listen`"), "{wrong:?}");
    assert_eq!(wrong.len(), 2, "{wrong:?}");
}
