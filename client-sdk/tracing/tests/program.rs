//! Programs as a whole: each test runs this file again, as a program that does one thing.

mod support;

use std::process::{Command, Output};

use clad_client::{AckLevel, ErrorCode};
use support::*;
use tracing::info;

const PROGRAM_VARIABLE: &str = "CLAD_TRACING_PROGRAM";

/// Not a test by itself.
#[test]
#[expect(clippy::disallowed_methods, reason = "one of the programs goes without its guard")]
fn program() {
    let Ok(program) = std::env::var(PROGRAM_VARIABLE) else { return };
    if program == "asks for too much" {
        return asks_for_too_much();
    }
    let guard = clad_tracing::init();
    info!(number = 7, "from tracing");
    tracing::debug!("below the filter");
    log_from_log();
    match program.as_str() {
        "returns" => drop(guard),
        "panics" => {
            let _span = tracing::info_span!("request", id = 7).entered();
            panic!("the end");
        }
        "panics in a thread" => {
            let thread = std::thread::Builder::new().name("worker".to_owned());
            let ended = thread.spawn(|| panic!("of a thread")).expect("a thread").join();
            assert!(ended.is_err());
            // It exits without its guard: the panic has sent what was before it.
            std::process::exit(0);
        }
        "logs inside" => {
            info!(logs = ?Logs, "outside");
            let _span = tracing::info_span!("span", logs = ?Logs).entered();
            info!("in a span");
            drop(guard);
        }
        "forks" => forks(guard),
        "forks while others log" => forks_while_others_log(guard),
        "twice" => {
            let second = clad_tracing::init();
            info!("still from tracing");
            drop((second, guard));
        }
        other => panic!("{other}"),
    }
}

/// The child has the one thread that forked, and so no end of a test: it exits.
#[expect(clippy::disallowed_methods, reason = "its guard is dropped before")]
fn forks(mut guard: clad_tracing::Guard) {
    guard.begin_again().expect("nothing to do in the process that began");
    guard.flush().expect("all of the parent is stored");
    nix::unistd::daemon(true, true).expect("forked");
    nix::unistd::alarm::set(60);
    info!("refused in the child");
    guard.begin_again().expect("a producer of the child's own");
    guard.begin_again().expect("nothing more to do");
    info!("of the child");
    log_from_log();
    let panicked = std::panic::catch_unwind(|| panic!("a child's"));
    assert!(panicked.is_err());
    guard.flush().expect("all of the child is stored");
    nix::unistd::daemon(true, true).expect("forked again");
    nix::unistd::alarm::set(60);
    guard.begin_again().expect("a producer of the grandchild's own");
    info!("of the grandchild");
    drop(guard);
    std::process::exit(0);
}

/// The other threads are in the middle of a call at the fork, and hold whatever they hold there.
#[expect(clippy::disallowed_methods, reason = "its guard is dropped before")]
fn forks_while_others_log(mut guard: clad_tracing::Guard) {
    let logged = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    for thread in 0..4 {
        let logged = logged.clone();
        std::thread::spawn(move || {
            for number in 0u64.. {
                let _span = tracing::info_span!("around", thread, number).entered();
                info!(number, "of a thread");
                log_from_log();
                logged.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        });
    }
    while logged.load(std::sync::atomic::Ordering::Relaxed) < 100 {
        std::thread::yield_now();
    }
    nix::unistd::daemon(true, true).expect("forked");
    nix::unistd::alarm::set(30); // a child that hangs has no last record
    info!("refused in the child");
    guard.begin_again().expect("a producer of the child's own");
    info!("of the child");
    log_from_log();
    guard.flush().expect("all of the child is stored");
    info!("the child's last");
    drop(guard);
    std::process::exit(0);
}

/// The log does not offer what this program asks for: no call fails, and each record is counted.
fn asks_for_too_much() {
    const RECORDS: u64 = 1000;
    let guard = clad_tracing::Setup::new().level(AckLevel::Durable).init();
    for number in 0..RECORDS {
        info!(number, "not as safe as was asked for");
    }
    let error = guard.flush().expect_err("it is not durable");
    assert_eq!(error.code(), Some(ErrorCode::LevelUnreachable));
    let stats = guard.producer().expect("a producer").stats();
    assert_eq!((stats.submitted, stats.failed, stats.pending_appends), (RECORDS, RECORDS, 0), "{stats:?}");
    // A drop is reported all the same, at a level that there is; once.
    info!(logs = ?Logs, "inside of it another");
    while guard.producer().expect("a producer").stats().drop_reports == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    drop(guard);
}

/// Logs while it is formatted.
struct Logs;

impl std::fmt::Debug for Logs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        info!("inside");
        f.write_str("done")
    }
}

#[cfg(feature = "log")]
fn log_from_log() {
    log::info!(number = 8; "from log");
}

#[cfg(not(feature = "log"))]
fn log_from_log() {}

fn run(program: &str, server: Option<&str>) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(std::env::current_exe().expect("this file"));
    command.args(["--exact", "program", "--nocapture"]).current_dir(folder.path());
    command.env(PROGRAM_VARIABLE, program).env_remove("RUST_LOG").env_remove("CLAD_SERVER");
    command.envs(server.map(|server| ("CLAD_SERVER", server)));
    command.output().expect("it runs")
}

fn bodies(daemon: &Daemon) -> Vec<String> {
    daemon.records().iter().map(|record| body(record).to_owned()).filter(|body| body != "from log").collect()
}

#[test]
fn one_line_sets_it_up() {
    let daemon = Daemon::new();
    let output = run("returns", Some(&daemon.address.to_string()));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(bodies(&daemon), ["from tracing"]);
    let records = daemon.records();
    assert_eq!(int(&records[0], "number"), 7);
    assert_eq!(records.len(), 1 + usize::from(cfg!(feature = "log")));
    assert!(!String::from_utf8_lossy(&output.stderr).contains("clad:"), "{output:?}");
}

#[test]
fn a_panic_gets_the_last_words_out() {
    let daemon = Daemon::new();
    assert!(!run("panics", Some(&daemon.address.to_string())).status.success());
    let all = bodies(&daemon);
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[1].contains("panicked: the end"), "{all:?}");
    let daemon = Daemon::new();
    assert!(run("panics in a thread", Some(&daemon.address.to_string())).status.success());
    let records = daemon.records();
    let panic = records.last().expect("a record");
    assert_eq!((body(panic), panic.event_name.as_str()), ("thread 'worker' panicked: of a thread", "panic"));
    assert_eq!((text(panic, "exception.message"), text(panic, "thread.name")), ("of a thread", "worker"));
    assert!(text(panic, "code.file.path").ends_with("program.rs") && panic.severity_number == 17);
    assert_eq!(bodies(&daemon)[0], "from tracing");
}

/// The subscriber of the program gets what is logged inside of it: nothing goes round in circles, and it is counted.
#[test]
fn what_is_logged_inside_is_dropped_and_reported() {
    let daemon = Daemon::new();
    let output = run("logs inside", Some(&daemon.address.to_string()));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(bodies(&daemon), ["from tracing", "outside", "in a span"]);
    let records = daemon.records();
    let outside = records.iter().find(|record| body(record) == "outside").expect("it is there");
    assert_eq!((text(outside, "logs"), daemon.reported_drops()), ("done", 2));
}

#[test]
fn a_child_of_fork_begins_again() {
    let daemon = Daemon::new();
    let output = run("forks", Some(&daemon.address.to_string()));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        bodies(&daemon),
        ["from tracing", "of the child", "thread 'program' panicked: a child's", "of the grandchild"],
        "{output:?}"
    );
    let from_log = daemon.records().iter().filter(|record| body(record) == "from log").count();
    assert_eq!(from_log, if cfg!(feature = "log") { 2 } else { 0 }, "of the parent and of the child");
    assert_eq!(daemon.producers(), 3, "each has its own");
}

#[test]
fn a_child_of_fork_does_not_hang_on_what_other_threads_held() {
    const FORKS: usize = 20;
    let daemon = Daemon::new();
    for _ in 0..FORKS {
        let output = run("forks while others log", Some(&daemon.address.to_string()));
        assert!(output.status.success(), "{output:?}");
    }
    let bodies = bodies(&daemon);
    for last in ["of the child", "the child's last"] {
        assert_eq!(bodies.iter().filter(|body| *body == last).count(), FORKS, "{last}");
    }
    assert!(!bodies.contains(&"refused in the child".to_owned()));
}

/// One word at the first record, one at the end; no panic, nothing is sent again, and nothing in the log but the report
/// of a drop.
#[test]
fn a_level_that_is_not_offered_is_said_once() {
    let daemon = Daemon::new();
    daemon.offer(AckLevel::Received);
    let output = run("asks for too much", Some(&daemon.address.to_string()));
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<_> = said.lines().filter(|line| line.starts_with("clad:")).collect();
    assert!(said[0].starts_with("clad: a record is not in the log") && said[0].contains("level"), "{said:?}");
    assert!(said[1].starts_with("clad: records may be missing from the log") && said.len() == 2, "{said:?}");
    assert_eq!((daemon.records().len(), daemon.reported_drops()), (0, 1));
}

#[test]
fn a_second_subscriber_is_refused_and_the_first_goes_on() {
    let daemon = Daemon::new();
    let output = run("twice", Some(&daemon.address.to_string()));
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("has another subscriber"));
    assert_eq!(bodies(&daemon), ["from tracing", "still from tracing"]);
}

#[test]
fn without_clad_it_warns_once_and_logs_to_stderr() {
    if std::path::Path::new("/run/clad/clad.sock").exists() {
        return; // this host has a daemon
    }
    for server in [None, Some("nonsense")] {
        let output = run("returns", server);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(text.matches("logging to stderr").count(), 1, "{text}");
        assert!(text.contains("from tracing") && text.contains("number=7"), "{text}");
        assert_eq!(text.contains("from log"), cfg!(feature = "log"), "{text}");
        assert!(!text.contains("below the filter"), "{text}");
    }
}
