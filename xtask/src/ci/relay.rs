//! `clad-relay` from files and from systemd's journal, and `systemd-journal-upload` as it comes, each against a clad: read
//! back, and over kills of every part. And every kind of sender at once, these among them, over 200 kills of each.
//!
//! Invariants: the relay is a workspace of its own, built and judged here; systemd's programs are unpacked below the build
//! folder, and not installed. moto, DuckDB, pyarrow and DataFusion are installed there too: they play object storage, and read it. A server of NATS and
//! its client in Go are built there; Kafka's server comes as jars, with a client in Go. The cases are the tests in `e2e/tests/relay`, `e2e/tests/journald` and `e2e/tests/senders`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::disk::{built_tests, call, closing_words};
use super::{Run, need, need_what, output, sdk_go, sdk_python, target, unpacked};

const KILLS_DEFAULT: u64 = 30;
/// Kills of each destination, of the relay and of the daemon, at least.
const DESTINATION_KILLS: u64 = 200;
/// Kills of each kind of sender, at least. They take a minute: all kinds send to one daemon.
const SENDERS_KILLS: u64 = 200;
/// Entries of the journal for each kill.
const ENTRIES_PER_KILL: u64 = 500;
/// Packages have it, and the tests want it. With it alone all is built once.
pub(crate) const FEATURES: &str = "--features=kafka";
/// What brings `systemd-journal-upload` and `systemd-journal-remote`, and libraries that a plain Debian does not have.
const PACKAGES: [&str; 5] =
    ["systemd-journal-remote", "libmicrohttpd12", "libcurl4", "libcurl3-gnutls", "libsystemd-shared"];

/// What copies the jars that a project needs.
const MAVEN_COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";

/// The test of speeds, and the records for it: by hand, and as a case.
const SPEED: &str = "speed::of_each_destination";
const SPEED_RECORDS: &str = "2000000";
const SPEED_RECORDS_AS_CASE: &str = "6400";
/// The test of what a query of an archive reads, by hand.
const QUERY: &str = "query::of_a_service_and_a_time_reads_few_of_the_bytes";
const QUERY_OBJECTS: &str = "100";
/// The test of an outage, and how long it is: by hand, and as a case.
const OUTAGE: &str = "outage::of_every_destination_is_waited_out_in_flat_memory";
const OUTAGE_SECONDS: &str = "3600";
const OUTAGE_SECONDS_AS_CASE: &str = "5";

/// From a clad to each destination over kills: they wait more than they work, and run beside the others.
const DESTINATIONS: [(&str, &str); 6] = [
    ("to an OTLP endpoint over kills", "out::every_record_comes_to_an_endpoint_over_kills_and_lost_answers"),
    ("to another clad over kills", "forward::every_append_comes_to_the_far_log_once_over_kills_of_all"),
    ("to a folder over kills", "objects::every_record_is_in_a_folder_once_over_kills"),
    (
        "to a bucket over kills and lost answers",
        "objects::every_record_is_in_a_bucket_once_over_kills_and_lost_answers",
    ),
    ("to NATS over kills", "nats::every_record_is_in_a_stream_once_over_kills_and_lost_answers"),
    ("to Kafka over kills", "kafka::every_record_is_in_a_topic_once_over_kills_and_lost_answers"),
];

const CASES: [(&str, &str, &str); 60] = [
    ("relay", "lines become records", "files::lines_are_records_with_the_bytes_that_they_have"),
    ("relay", "records of several lines", "files::a_record_of_several_lines_is_one"),
    ("relay", "files from now on", "files::a_relay_that_begins_now_leaves_what_is_old_and_nothing_behind_it"),
    ("relay", "a file that is gone or truncated", "files::a_file_that_is_gone_or_was_truncated_is_said_in_the_log"),
    ("relay", "a file written again", "files::a_file_that_was_written_again_to_the_same_length_is_read_again"),
    (
        "relay",
        "a log that knows nothing of it",
        "files::a_relay_that_the_log_has_nothing_of_stops_until_a_person_says_so",
    ),
    ("relay", "one process, and wrong files", "files::one_process_runs_a_relay_and_a_wrong_file_is_refused_in_words"),
    ("relay", "a name of another source", "files::a_name_that_has_stored_one_source_is_refused_for_the_other"),
    (
        "relay",
        "within TLS, by the name of its certificate",
        "tls::lines_come_within_tls_once_over_kills_and_a_renewed_certificate",
    ),
    (
        "relay",
        "a damaged segment under the cursor",
        "damage::of_a_segment_is_said_at_each_destination_and_the_rest_comes",
    ),
    ("relay", "a far log that is another one", "forward::a_far_log_that_is_another_stops_it_until_a_person_says_so"),
    ("relay", "a log that was restored", "forward::a_log_that_was_restored_stops_it_with_the_numbers_of_both"),
    ("relay", "what is gone or too large", "forward::what_is_gone_or_too_large_is_left_out_and_the_rest_comes"),
    ("relay", "a far log that does not flush", "forward::what_the_far_log_has_only_received_is_held_here"),
    ("relay", "a circle", "forward::a_circle_is_refused"),
    ("relay", "a far log within TLS", "forward::a_far_log_within_tls_takes_what_a_rule_lets_the_relay_forward"),
    ("relay", "an endpoint that refuses", "out::what_an_endpoint_does_not_take_is_split_kept_or_noted"),
    ("relay", "an endpoint that is slow", "out::an_endpoint_that_is_slow_gets_smaller_requests"),
    ("relay", "an endpoint that is away", "out::an_outage_is_held_and_without_a_hold_the_gap_is_said"),
    ("relay", "a log that was cut back", "out::a_log_that_was_cut_back_stops_it_with_both_places"),
    (
        "relay",
        "a raw archive over kills, and back",
        "backup::a_raw_archive_has_each_append_once_over_kills_is_read_in_place_and_brought_back",
    ),
    ("relay", "two relays at one prefix", "objects::two_relays_at_one_prefix_make_one_chain"),
    ("relay", "an object that is not ours", "objects::an_object_that_is_not_ours_stops_it_with_both_numbers"),
    (
        "relay",
        "an archive of a log that was restored",
        "objects::an_archive_of_a_log_that_was_restored_stops_it_until_a_person_begins_a_history",
    ),
    ("relay", "an archive that retention overtook", "objects::what_retention_took_is_an_object_without_a_row"),
    ("relay", "a bucket that is away", "objects::a_bucket_that_is_away_is_waited_for_and_nothing_is_missing"),
    ("relay", "a bucket within TLS", "links::a_bucket_within_tls_is_one_whose_certificate_is_right"),
    (
        "relay",
        "a bucket over a slow link",
        "links::over_a_slow_link_objects_are_smaller_and_nothing_is_missing_or_there_twice",
    ),
    ("relay", "a full folder", "links::a_full_folder_is_waited_for"),
    ("relay", "an archive that has expired", "objects::an_archive_that_has_expired_stops_it_until_a_person_goes_on"),
    ("relay", "two relays at one stream", "nats::two_relays_at_one_stream_make_one_chain"),
    ("relay", "a stream that was purged", "nats::a_stream_goes_on_though_its_messages_were_removed"),
    (
        "relay",
        "a stream that is another one, or was restored",
        "nats::a_stream_that_is_another_or_has_less_stops_it_until_a_person_goes_on",
    ),
    ("relay", "somebody else in the stream", "nats::somebody_else_in_the_stream_stops_it"),
    ("relay", "a stream of a log that was restored", "nats::a_stream_of_a_log_that_was_restored_stops_it"),
    (
        "relay",
        "messages of OTLP, too large, or gone",
        "nats::a_message_is_an_append_and_what_is_too_large_or_gone_is_said",
    ),
    ("relay", "messages of OTLP's JSON", "json::a_message_of_json_is_a_record_that_a_clad_takes"),
    (
        "relay",
        "a full stream, and a server of NATS that forbids",
        "nats::a_full_stream_and_a_server_that_forbids_are_waited_for",
    ),
    ("relay", "NATS within TLS, and who the relay is", "nats_identity::a_relay_says_who_it_is_within_tls_in_each_way"),
    ("relay", "a server of NATS that is away", "nats::an_outage_of_the_server_is_waited_out"),
    (
        "relay",
        "a topic that is another one, or was restored",
        "kafka::a_topic_that_is_another_or_has_less_stops_it_until_a_person_goes_on",
    ),
    (
        "relay",
        "a commit of Kafka that nobody hears of",
        "kafka_commits::a_commit_that_nobody_hears_of_is_asked_for_and_each_message_is_there_once",
    ),
    ("relay", "two processes at one topic", "kafka::a_second_process_of_a_relay_ends_the_first"),
    (
        "relay",
        "Kafka within TLS, appends, and what is too large",
        "kafka::a_message_is_an_append_within_tls_and_what_is_too_large_is_said",
    ),
    (
        "relay",
        "Kafka at least once, by both kinds of SCRAM, over kills",
        "kafka::without_transactions_nothing_is_missing_and_what_comes_again_is_whole",
    ),
    ("relay", "Kafka that forbids and throttles", "kafka::what_a_server_forbids_or_throttles_is_waited_for"),
    ("relay", "partitions of Kafka, and an outage", "kafka::components_have_partitions_and_an_outage_is_waited_out"),
    (
        "relay",
        "ten hosts to one topic and one bucket, with the files of deploy/fleet",
        "fleet::ten_hosts_come_to_one_topic_and_one_bucket_and_each_is_found_whole",
    ),
    ("relay", "an outage in flat memory", "files::an_outage_is_waited_out_with_flat_memory"),
    ("relay", "every destination, counted", SPEED),
    ("relay", "every destination away at once", OUTAGE),
    ("relay", "rotation by renames", "rotation::every_line_comes_once_and_in_order_over_renames_and_kills"),
    (
        "relay",
        "logrotate with copytruncate",
        "rotation::every_line_comes_once_and_in_order_over_logrotate_with_copytruncate",
    ),
    (
        "relay",
        "logrotate, copies in the pattern",
        "rotation::every_line_comes_once_though_the_pattern_finds_the_copies",
    ),
    ("relay", "logrotate with renames", "rotation::every_line_comes_once_and_in_order_over_logrotate_with_renames"),
    (
        "relay",
        "the journal over kills",
        "journal::every_entry_comes_once_and_in_order_over_kills_of_relay_daemon_and_journalctl",
    ),
    (
        "relay",
        "the journal from now on",
        "journal::a_relay_that_begins_now_takes_what_comes_and_leaves_out_what_it_must",
    ),
    ("relay", "a journal that lost the place", "journal::a_journal_that_lost_the_place_is_said_in_the_log"),
    ("journald", "systemd-journal-upload twice", "stock::a_journal_comes_over_whole_and_once_though_it_is_sent_twice"),
    ("journald", "systemd-journal-upload over kills", "stock::nothing_is_lost_or_there_twice_over_kills_of_either"),
];

pub(super) fn run(run: &mut Run) -> Result<()> {
    let kills = match run.args.as_slice() {
        [] => KILLS_DEFAULT,
        [word] if word == "logs" => return real_logs(run),
        [word] if word == "speed" => return speed(run),
        [word] if word == "others" => return others(run),
        [word] if word == "outage" => return outage(run),
        [kills] => kills.parse().context("cargo xtask ci relay [KILLS | logs | speed | others | outage]")?,
        more => bail!("cargo xtask ci relay [KILLS | logs | speed | others | outage], not {}", more.join(" ")),
    };
    need("logrotate", &["logrotate"])?;
    need("journalctl", &["systemd"])?;
    let root = run.root.clone();
    let relay = built(&root)?;
    for (case, words) in [
        ("its format", &["fmt", "--check"][..]),
        ("clippy", &["clippy", "--locked", "--quiet", "--all-targets", FEATURES, "--", "-D", "warnings"]),
        ("clippy without Kafka", &["clippy", "--locked", "--quiet", "--all-targets", "--", "-D", "warnings"]),
        ("its own tests", &["test", "--locked", "--quiet", FEATURES]),
    ] {
        run.case(case, || cargo(&root, words));
    }
    let programs = unpacked(&run.root, "journald", &PACKAGES, &["lib/systemd/systemd-journal-upload"])?;
    let (relays, uploads) = (built_tests(&run.root, "relay")?, built_tests(&run.root, "journald")?);
    let senders = built_tests(&run.root, "senders")?;
    let servers = servers(&run.root)?;
    let passes = |mut command: Command, kills: u64| {
        command.env("CLAD_RELAY", &relay).env("CLAD_RELAY_KILLS", kills.to_string()).envs(servers.clone());
        command.env("CLAD_RELAY_SPEED_RECORDS", SPEED_RECORDS_AS_CASE);
        command.env("CLAD_RELAY_OUTAGE_SECONDS", OUTAGE_SECONDS_AS_CASE);
        command.env("CLAD_RELAY_ENTRIES", (kills * ENTRIES_PER_KILL).to_string());
        command.env("CLAD_JOURNALD_PROGRAMS", &programs).env("CLAD_JOURNALD_KILLS", kills.to_string());
        command.env("CLAD_SENDERS_KILLS", kills.max(SENDERS_KILLS).to_string());
        shows(&mut command)
    };
    let passes = &passes;
    let destinations = DESTINATIONS.map(|(case, test)| {
        let tests = &relays;
        (case, move || passes(call(tests, test, None), kills.max(DESTINATION_KILLS)))
    });
    run.cases_beside(destinations, |run| {
        for (tests, case, test) in CASES {
            let tests = if tests == "relay" { &relays } else { &uploads };
            run.case(case, || passes(call(tests, test, None), kills));
        }
    });
    run.case("every kind of sender over kills", || {
        let mut command = Command::new(&senders);
        command.args(["--exact", "what_every_sender_was_answered_is_kept"]).env("RUST_BACKTRACE", "0");
        passes(command, kills)
    });
    Ok(())
}

/// A Python with moto, DuckDB, pyarrow and DataFusion, at the versions of `e2e/objects`.
fn python(root: &Path) -> Result<PathBuf> {
    need("python3", &["python3"])?;
    need_what("venv of Python", &["python3-venv", "python3-pip"], || sdk_python::says("import ensurepip, venv"))?;
    let environment = target(root).join("objects");
    output(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let program = environment.join("bin/python");
    let mut pip = Command::new(&program);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
    output(pip.arg(root.join("e2e/objects/requirements.txt")))?;
    Ok(program)
}

/// A server of NATS and a client of another make, at the versions of `e2e/nats`.
fn nats(root: &Path) -> Result<(PathBuf, PathBuf)> {
    let (sources, built) = (root.join("e2e/nats"), target(root).join("nats"));
    output(sdk_go::downloading(root, &sources)?.args(["vet", "."]))?;
    let build = |name: &str, package: &str| {
        let program = built.join(name);
        output(sdk_go::downloading(root, &sources)?.args(["build", "-o"]).arg(&program).arg(package))?;
        anyhow::Ok(program)
    };
    Ok((build("nats-server", "github.com/nats-io/nats-server/v2")?, build("client", ".")?))
}

/// A server of Kafka, from its jars, and a client of another make, at the versions of `e2e/kafka`.
fn kafka(root: &Path) -> Result<(PathBuf, PathBuf)> {
    need("java", &["default-jre-headless"])?;
    need("mvn", &["maven"])?;
    let (sources, built) = (root.join("e2e/kafka"), target(root).join("kafka"));
    let (jars, client) = (built.join("jars"), built.join("client"));
    let mut mvn = Command::new("mvn");
    mvn.args(["--quiet", "--batch-mode", "--file"]).arg(sources.join("pom.xml"));
    mvn.args([MAVEN_COPY, "-DincludeScope=runtime"]).arg(format!("-DoutputDirectory={}", jars.display()));
    output(&mut mvn)?;
    output(sdk_go::downloading(root, &sources)?.args(["vet", "."]))?;
    output(sdk_go::downloading(root, &sources)?.args(["build", "-o"]).arg(&client).arg("."))?;
    Ok((jars, client))
}

/// The relay's figures, by hand: release builds, and so many records to each destination.
fn speed(run: &mut Run) -> Result<()> {
    let root = run.root.clone();
    let release = target(&root).join("release");
    output(super::sim::cargo(&root).args(["build", "--release", "--quiet", "--bin", "clad", "--bin", "clactl"]))?;
    built(&root)?;
    cargo(&root, &["build", "--locked", "--quiet", "--release", FEATURES])?;
    let (servers, tests) = (servers(&root)?, built_tests(&root, "relay")?);
    run.case("the speed to each destination", || {
        let mut command = call(&tests, SPEED, None);
        command.env("CLAD_RELAY", relay_target(&root).join("release/clad-relay")).env("CLAD_E2E_BIN", &release);
        command.envs(servers.clone());
        command.env("CLAD_RELAY_SPEED_JSON", root.join("docs/benchmarks/relay.json"));
        if std::env::var_os("CLAD_RELAY_SPEED_RECORDS").is_none() {
            command.env("CLAD_RELAY_SPEED_RECORDS", SPEED_RECORDS);
        }
        shows(&mut command)
    });
    run.case("what a query reads", || {
        let mut command = call(&tests, QUERY, None);
        command.env("CLAD_RELAY", relay_target(&root).join("release/clad-relay")).env("CLAD_E2E_BIN", &release);
        shows(command.env("CLAD_RELAY_QUERY_OBJECTS", QUERY_OBJECTS).envs(servers.clone()))
    });
    Ok(())
}

/// All destinations away for an hour, by hand.
fn outage(run: &mut Run) -> Result<()> {
    let root = run.root.clone();
    let (relay, servers, tests) = (built(&root)?, servers(&root)?, built_tests(&root, "relay")?);
    run.case("an outage of an hour", || {
        let mut command = call(&tests, OUTAGE, None);
        shows(command.env("CLAD_RELAY", &relay).env("CLAD_RELAY_OUTAGE_SECONDS", OUTAGE_SECONDS).envs(servers))
    });
    Ok(())
}

/// Variables that name the servers and clients of other makes.
fn servers(root: &Path) -> Result<[(&'static str, PathBuf); 5]> {
    let (python, (nats_server, nats_client), (jars, kafka_client)) = (python(root)?, nats(root)?, kafka(root)?);
    Ok([
        ("CLAD_OBJECTS_PYTHON", python),
        ("CLAD_NATS_SERVER", nats_server),
        ("CLAD_NATS_CLIENT", nats_client),
        ("CLAD_KAFKA_JARS", jars),
        ("CLAD_KAFKA_CLIENT", kafka_client),
    ])
}

/// Servers that take minutes of the processors to build: versitygw, and OpenTelemetry's collector.
fn others(run: &mut Run) -> Result<()> {
    let root = run.root.clone();
    let (relay, python, tests) = (built(&root)?, python(&root)?, built_tests(&root, "relay")?);
    let build = |sources: &str, package: &str| {
        let program = target(&root).join(sources.replace('/', "-"));
        let mut go = sdk_go::downloading(&root, &root.join("e2e").join(sources))?;
        output(go.args(["build", "-o"]).arg(&program).arg(package))?;
        anyhow::Ok(program)
    };
    for (case, test, program, sources, package) in [
        (
            "to a bucket of versitygw's, which is killed",
            "gateway::every_record_is_in_a_bucket_of_files_once_though_its_server_is_killed",
            "CLAD_GATEWAY",
            "gateway",
            "github.com/versity/versitygw/cmd/versitygw",
        ),
        (
            "to OpenTelemetry's collector",
            "collector::every_record_is_in_the_file_of_a_collector_over_deaths_and_lost_answers",
            "CLAD_OTLP_COLLECTOR",
            "otlp/collector",
            ".",
        ),
    ] {
        run.case(case, || {
            let mut command = call(&tests, test, None);
            command.env(program, build(sources, package)?).env("CLAD_RELAY", &relay);
            command.env("CLAD_OBJECTS_PYTHON", &python).env("CLAD_RELAY_KILLS", DESTINATION_KILLS.to_string());
            shows(&mut command)
        });
    }
    Ok(())
}

/// Logs of real programs, by every way in.
fn real_logs(run: &mut Run) -> Result<()> {
    let (relay, tests) = (built(&run.root)?, built_tests(&run.root, "senders")?);
    run.case("real logs come back byte for byte", || {
        let mut command = call(&tests, "real_logs::real_logs_come_back_byte_for_byte", None);
        shows(command.env("CLAD_RELAY", &relay))
    });
    Ok(())
}

/// Runs one test, and shows its own lines of how it went.
fn shows(command: &mut Command) -> Result<()> {
    let said = output(command.arg("--nocapture"))?;
    ensure!(closing_words(&said), "the test did not run:\n{said}");
    let figures = |line: &'_ str| line.find("kills: ").or_else(|| line.find("speed: "));
    for line in said.lines().filter_map(|line| figures(line).map(|at| &line[at..])) {
        println!("          {line}");
    }
    Ok(())
}

/// The program, built.
pub(super) fn built(root: &Path) -> Result<PathBuf> {
    need_what("the headers of OpenSSL", &["libssl-dev", "pkg-config"], || {
        let found = Command::new("pkg-config").args(["--exists", "openssl"]).status();
        found.is_ok_and(|status| status.success())
    })?;
    cargo(root, &["build", "--locked", "--quiet", FEATURES])?;
    Ok(relay_target(root).join("debug/clad-relay"))
}

/// Where its programs are: beside the workspace's own, which have other dependencies. What both have in common is built once.
fn relay_target(root: &Path) -> PathBuf {
    target(root).join("relay")
}

fn cargo(root: &Path, words: &[&str]) -> Result<()> {
    let mut cargo = super::sim::cargo(&root.join("relay"));
    if !words.contains(&"--release") {
        cargo.env("CFLAGS", "-O1"); // librdkafka, in half of the time
    }
    output(super::set_apart(&mut cargo, root, &relay_target(root)).args(words)).map(drop)
}
