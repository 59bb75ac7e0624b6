//! `clactl run`: a program's lines become records, and its end is passed on.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use clad_e2e::tool::{OutputStream, Running, clactl};
use clad_e2e::{Daemon, Json, Scratch, Setup, TEST_TIMEOUT};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::ok_json;

/// `clactl run` with these words of its own, of a program that `sh` runs.
fn started(daemon: &Daemon, words: &[&str], script: &str) -> Running {
    let mut command = clactl(&["run", "--server", &daemon.address("unix")]);
    Running::start(command.args(words).args(["--", "sh", "-c", script]))
}

/// Runs it to its end: exit code, and what it wrote to stderr. It writes nothing to stdout.
fn ran(daemon: &Daemon, words: &[&str], script: &str) -> (Option<i32>, String) {
    let running = started(daemon, words, script);
    running.wait_end(TEST_TIMEOUT).expect("it ends");
    assert_eq!(running.printed(), "");
    (running.code(), running.said())
}

fn stream(record: &Json) -> &str {
    record["attributes"]["log.iostream"].as_str().expect("a stream")
}

/// Bodies of the records, in order, of one stream.
fn bodies<'a>(records: &'a [Json], of: &str) -> Vec<&'a str> {
    records.iter().filter(|record| stream(record) == of).map(|record| record["body"].as_str().expect("text")).collect()
}

#[test]
fn both_streams_are_records_and_the_exit_code_is_the_programs() {
    let daemon = Daemon::start();
    let script = "echo one; echo wrong >&2; echo; printf 'no newline'; exit 7";
    assert_eq!(ran(&daemon, &["--ack", "durable"], script), (Some(7), String::new()));
    let records = ok_json(&daemon, &["query"]);
    assert_eq!(bodies(&records, "stdout"), ["one", "", "no newline"]);
    assert_eq!(bodies(&records, "stderr"), ["wrong"]);
    for record in &records {
        let severity = if stream(record) == "stdout" { "INFO" } else { "ERROR" };
        assert_eq!((&record["component"], &record["severity"]), (&Json::from("sh"), &Json::from(severity)), "{record}");
    }
    let named = ["-t", "nightly", "--stdout-severity", "debug", "--stderr-severity", "warn"];
    assert_eq!(ran(&daemon, &named, "echo out; echo err >&2"), (Some(0), String::new()));
    let records = ok_json(&daemon, &["query", "--component", "nightly"]);
    let mut severities: Vec<_> = records.iter().map(|record| record["severity"].as_str().expect("a name")).collect();
    severities.sort_unstable();
    assert_eq!(severities, ["DEBUG", "WARN"]);
}

#[test]
fn many_lines_are_there_once_and_in_order_of_their_stream() {
    let daemon = Daemon::start();
    let script = "seq 1 20000; seq 20001 25000 >&2; head -c 3 /dev/zero; printf '\\377\\n'";
    assert_eq!(ran(&daemon, &[], script), (Some(0), String::new()));
    let records = ok_json(&daemon, &["query"]);
    assert_eq!(records.len(), 25_001);
    let numbers = |from: u32, to| (from..=to).map(|number| number.to_string()).collect::<Vec<_>>();
    let texts = records.iter().filter(|record| stream(record) == "stdout" && record["body"].is_string());
    assert!(texts.map(|record| record["body"].as_str().expect("text")).eq(numbers(1, 20_000)));
    assert_eq!(bodies(&records, "stderr"), numbers(20_001, 25_000));
    let bytes: Vec<_> = records.iter().filter(|record| !record["body"].is_string()).collect();
    assert_eq!(bytes.len(), 1, "what is no text is bytes: {bytes:?}");
}

#[test]
fn a_long_line_comes_in_pieces() {
    let daemon = Setup::new().set("journal.max_record_bytes", "4KiB").start();
    let script = "head -c 10000 /dev/zero | tr '\\0' x; echo; echo short";
    assert_eq!(ran(&daemon, &[], script), (Some(0), String::new()));
    let records = ok_json(&daemon, &["query"]);
    let continues = |record: &Json| record["attributes"]["clad.continues"] == true;
    assert_eq!(records.iter().map(continues).collect::<Vec<_>>(), [true, true, false, false]);
    let bodies = bodies(&records, "stdout");
    assert_eq!(bodies[..3].concat(), "x".repeat(10_000));
    assert_eq!(bodies[3], "short");
}

#[test]
fn signals_reach_the_program_and_its_last_words_are_logged() {
    let daemon = Daemon::start();
    for (signal, name) in
        [(Signal::SIGTERM, "TERM"), (Signal::SIGHUP, "HUP"), (Signal::SIGINT, "INT"), (Signal::SIGUSR1, "USR1")]
    {
        let script = format!(
            "trap 'echo last {name}; exit 3' {name}; echo ready >&2; for n in $(seq 3000); do sleep 0.02; done"
        );
        let running = started(&daemon, &[], &script);
        daemon.wait_until("ready", |_| bodies(&ok_json(&daemon, &["query"]), "stderr").len() == 1 + done(&daemon));
        kill(Pid::from_raw(running.pid().cast_signed()), signal).expect("it is there");
        running.wait_end(TEST_TIMEOUT).expect("it ends");
        assert_eq!((running.code(), running.said()), (Some(3), String::new()), "{name}");
        assert_eq!(bodies(&ok_json(&daemon, &["query"]), "stdout").last(), Some(&format!("last {name}").as_str()));
    }
    let (code, said) = ran(&daemon, &[], "kill -9 $$");
    assert_eq!((code, said), (Some(128 + 9), String::new()), "ended by a signal");
}

/// Number of programs that have ended: each has said its last word.
fn done(daemon: &Daemon) -> usize {
    bodies(&ok_json(daemon, &["query"]), "stdout").len()
}

#[test]
fn a_program_that_cannot_run_and_a_daemon_that_is_not_there() {
    let daemon = Daemon::start();
    let scratch = Scratch::new();
    let plain = scratch.data().join("plain");
    fs::write(&plain, "#!/bin/sh\n").expect("written");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).expect("set");
    let marker = scratch.data().join("started").display().to_string();
    let (server, nobody) = (daemon.address("unix"), format!("unix://{}/none.sock", scratch.data().display()));
    for (server, program, code) in [
        (&server, &["/no/such/program"][..], 127),
        (&server, &[plain.to_str().expect("a path")], 126),
        (&nobody, &["touch", &marker], 125),
    ] {
        let running = Running::start(clactl(&["run", "--server", server, "--"]).args(program));
        running.wait_end(TEST_TIMEOUT).expect("it ends");
        assert_eq!(running.code(), Some(code), "{program:?}: {}", running.said());
        assert!(running.said().starts_with("clactl: ") && running.said().contains(program[0]), "{}", running.said());
    }
    assert!(!fs::exists(&marker).expect("to be seen"), "it was not started");
}

/// The log loses its level `durable` under a program. The program ends by itself, and what is not logged stands on stderr.
#[test]
fn a_refusal_for_good_ends_the_logging_and_not_the_program() {
    let mut daemon = Daemon::start();
    let scratch = Scratch::new();
    let go = scratch.data().join("go");
    let script = format!(
        "echo before; for n in $(seq 3000); do [ -e {0} ] && break; sleep 0.02; done; seq 1 500; sleep 0.5; seq 501 600; echo end >&2",
        go.display()
    );
    let running = started(&daemon, &["--ack", "durable"], &script);
    daemon.wait_until("the first line", |_| !ok_json(&daemon, &["query"]).is_empty());
    daemon.kill9();
    daemon.restart_with("journal.durability", "fire_and_forget");
    fs::write(&go, "").expect("written");
    assert!(running.wait_for(OutputStream::Stderr, "end\n", TEST_TIMEOUT), "{}", running.said());
    running.wait_end(TEST_TIMEOUT).expect("it ends");
    let said = running.said();
    assert_eq!(running.code(), Some(125), "the program ended with 0, its lines are not as safe as asked for: {said}");
    assert!(said.contains("1 line of the program reached `durable`") && said.contains("level_unreachable"), "{said}");
    let shown: Vec<&str> = said.lines().skip(1).collect();
    let numbers: Vec<_> = (1..=600).map(|number| number.to_string()).collect();
    assert!(
        shown.iter().filter(|line| **line != "end").eq(&numbers),
        "each line that has not its level, in order: {said}"
    );
    let records = ok_json(&daemon, &["query"]);
    assert_eq!(bodies(&records, "stdout"), ["before"], "they were refused");
}

#[test]
fn a_daemon_that_restarts_costs_no_line() {
    let mut daemon = Daemon::start();
    let running = started(&daemon, &[], "for n in $(seq 1 60); do echo $n; sleep 0.02; done; exit 4");
    std::thread::sleep(Duration::from_millis(300));
    daemon.kill9();
    daemon.restart();
    running.wait_end(TEST_TIMEOUT).expect("it ends");
    assert_eq!((running.code(), running.said()), (Some(4), String::new()));
    let numbers: Vec<_> = (1..=60).map(|number| number.to_string()).collect();
    assert_eq!(bodies(&ok_json(&daemon, &["query"]), "stdout"), numbers, "each once, in order");
}
