//! What an operator meets who calls `clactl` by hand: a pipe that closes early, a daemon that hangs, one of two daemons, a
//! call that is stopped half-way.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clad_e2e::tool::{OutputStream, Running, clactl, clactl_ends};
use clad_e2e::{Daemon, Raw, Scratch, Setup, TEST_TIMEOUT, is_root, json, not_run};
use clad_proto::AckLevel;
use nix::sys::signal::Signal;

use crate::{append_numbers, ok};

fn admin(daemon: &Daemon) -> String {
    format!("unix://{}", daemon.setup().admin_socket().display())
}

/// Waits for the end of a program that nobody listens to; its exit code, nothing where a signal ended it.
fn code(mut child: Child, what: &str) -> Option<i32> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code();
        }
        if began.elapsed() > TEST_TIMEOUT {
            child.kill().expect("killed");
            panic!("{what} runs on");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn nothing_minds_a_reader_that_goes_away() {
    let daemon = Daemon::start();
    append_numbers(&daemon, 0..500);
    let (server, admin) = (daemon.address("unix"), admin(&daemon));
    let dir = daemon.dir().display().to_string();
    for words in [
        &["query"][..],
        &["query", "-o", "json"],
        &["query", "-r"],
        &["query", "--dir", &dir],
        &["tail"],
        &["export"],
        &["export", "-o", "raw"],
        &["status"],
        &["status", "-o", "json"],
        &["top", "-n", "2", "--interval", "0.1"],
        &["segments"],
        &["rotate"],
        &["sync"],
        &["verify", &dir],
        &["completions", "bash"],
        &["--help"],
    ] {
        let to_daemon = !words.contains(&"--dir");
        let which = if to_daemon { vec!["--server", &server, "--admin", &admin] } else { vec![] };
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = clactl(&[&which[..], words].concat());
        let mut child = command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn().expect("it runs");
        drop(command);
        let stderr = child.stderr.take().expect("a pipe");
        let said: Vec<_> = BufReader::new(stderr).lines().map_while(Result::ok).collect();
        assert_eq!((code(child, words[0]), said), (Some(0), Vec::new()), "{words:?}");
    }
}

#[test]
fn a_follower_ends_when_nobody_reads_it() {
    let daemon = Daemon::start();
    append_numbers(&daemon, 0..3);
    let mut command = clactl(&["tail", "-f", "-n", "1", "-o", "cat", "--server", &daemon.address("unix")]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    reader.read_line(&mut line).expect("a line");
    assert_eq!(line, "number 2\n");
    assert!(child.try_wait().expect("a child").is_none(), "it follows");
    // No record comes that it could fail to write.
    drop(reader);
    assert_eq!(code(child, "tail -f"), Some(0));
}

#[test]
fn orders_go_to_the_daemon_that_was_named() {
    let [one, other] = [Daemon::start(), Daemon::start()];
    let log_id = |arguments: &[&str]| {
        let said = clactl_ends(0, &[arguments, &["status", "-o", "json"]].concat(), b"");
        json(&said.stdout)["log_id"].as_str().expect("a log id").to_owned()
    };
    let by_admin = [&one, &other].map(|daemon| log_id(&["--admin", &admin(daemon)]));
    assert_ne!(by_admin[0], by_admin[1]);
    assert_eq!([&one, &other].map(|daemon| log_id(&["--server", &daemon.address("unix")])), by_admin);
    // Over TCP nothing shows where its admin socket is: better none than the wrong one.
    let said = clactl_ends(2, &["status", "--server", &one.address("tcp")], b"");
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("give --admin"), "{said}");
    assert_eq!(log_id(&["--server", &one.address("tcp"), "--admin", &admin(&other)]), by_admin[1]);
}

#[test]
fn a_folder_that_holds_no_log_is_said_to_hold_none() {
    let scratch = Scratch::new();
    let dir = scratch.data().display().to_string();
    for foreign in [false, true] {
        if foreign {
            std::fs::write(scratch.data().join("a file of somebody's"), "x").expect("written");
        }
        for words in [&["verify", &dir][..], &["query", "--dir", &dir], &["export", "--dir", &dir]] {
            let said = clactl_ends(1, words, b"");
            let said = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(said.contains(&format!("{dir} holds no log")), "{words:?}: {said}");
        }
    }
}

#[test]
fn a_range_that_ends_before_it_begins_is_a_wrong_call() {
    let daemon = Daemon::start();
    let server = daemon.address("unix");
    for words in [
        &["query", "--since", "today", "--until", "yesterday"][..],
        &["tail", "--since", "-5min", "--until", "-1h"],
        &["export", "--since", "@10", "--until", "@9"],
        &["export", "--from", "5", "--to", "3"],
    ] {
        let said = clactl_ends(2, &[words, &["--server", &server]].concat(), b"");
        assert!(String::from_utf8_lossy(&said.stderr).contains("is after"), "{words:?}: {said:?}");
    }
}

#[test]
fn a_log_of_somebody_elses_says_whose_it_is() {
    if !is_root() {
        return not_run("a log of somebody else's", "only root can be somebody else");
    }
    let mut daemon = Daemon::start();
    append_numbers(&daemon, 0..1);
    assert_eq!(daemon.term(), Some(0));
    // The folders above it are open to all.
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("open");
    let dir = folder.path().join("log");
    std::fs::create_dir(&dir).expect("a folder");
    for entry in std::fs::read_dir(daemon.dir()).expect("the log").flatten() {
        std::fs::copy(entry.path(), dir.join(entry.file_name())).expect("copied");
    }
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o750)).expect("closed");
    let program = folder.path().join("clactl");
    std::fs::copy(clad_e2e::binary("clactl"), &program).expect("copied");
    let dir = dir.display().to_string();
    for words in [&["verify", &dir][..], &["query", "--dir", &dir]] {
        let mut command = Command::new(&program);
        let ended = command.args(words).uid(65534).gid(65534).output().expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(said.contains("Permission denied") && said.contains("are for uid 0, its group, and root"), "{said}");
    }
}

#[test]
fn a_daemon_that_hangs_is_said_to_hang() {
    let daemon = Daemon::start();
    let (server, admin) = (daemon.address("unix"), admin(&daemon));
    let mut append = clactl(&["append", "--server", &server]);
    let mut append_child = Feeding::start(&mut append);
    append_child.line("before");
    daemon.wait_until("the first line", |status| status.offsets.as_ref().is_some_and(|offsets| offsets.durable == 1));
    daemon.signal(Signal::SIGSTOP);
    append_child.line("while it hangs");
    let asked: Vec<_> = [&["status"][..], &["segments"], &["top", "-n", "1"], &["query"]]
        .map(|words| Running::start(&mut clactl(&[&["--server", &server, "--admin", &admin], words].concat())))
        .into();
    for one in &asked {
        one.wait_end(TEST_TIMEOUT).expect("it gives up");
        assert_eq!(one.code(), Some(1), "{}", one.said());
        assert!(one.said().contains("no answer"), "{}", one.said());
    }
    // The append waits on, and says for what.
    // (Of the first line it may not have heard, either.)
    assert!(append_child.wait_stderr("nothing was acknowledged for 5 s, and "));
    daemon.signal(Signal::SIGCONT);
    let (code, said) = append_child.end();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_stopped_append_reports_the_last_line() {
    let daemon = Daemon::start();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let before = daemon.status().offsets.expect("offsets").durable;
        let mut child = Feeding::start(&mut clactl(&["append", "--server", &daemon.address("unix")]));
        for line in ["one", "two", "three"] {
            child.line(line);
        }
        daemon.wait_until("three lines", |status| {
            status.offsets.as_ref().is_some_and(|offsets| offsets.durable == before + 3)
        });
        // The daemon has reported that the third is durable; nothing reports that it was read.
        thread::sleep(Duration::from_secs(1));
        child.running.send(signal);
        child.running.wait_end(TEST_TIMEOUT).expect("it ends");
        let said = child.running.said();
        assert_eq!(child.running.code(), Some(1), "{said}");
        assert!(said.contains("interrupted\nthe last line that reached `durable` is line 3"), "{said}");
    }
}

/// The daemon answers and takes nothing: a waiting tool shows the reason, and may be stopped all the same.
#[test]
fn an_append_that_the_daemon_does_not_take_says_why_and_can_be_stopped() {
    // No file system has so much to spare.
    let daemon = Setup::new().set("journal.reserve_free", "1024TiB").start();
    thread::scope(|scope| {
        let signals = [Signal::SIGTERM, Signal::SIGINT];
        for (transport, signal) in ["unix", "tcp", "grpc", "shm"].into_iter().zip(signals.into_iter().cycle()) {
            let daemon = &daemon;
            scope.spawn(move || {
                let server = daemon.address(transport);
                let mut child = Feeding::start(&mut clactl(&["append", "--server", &server]));
                child.line("a line");
                assert!(child.wait_stderr("nothing was acknowledged for 5 s, and 1 line wait: no_space: "));
                child.running.send(signal);
                child.running.wait_end(TEST_TIMEOUT).expect("it ends");
                let said = child.running.said();
                assert_eq!(child.running.code(), Some(1), "{said}");
                // What is posted in a ring may still be taken.
                let stored = if transport == "shm" { "which may be stored" } else { "certainly not stored" };
                let last = format!("interrupted, and no ack for 1 line, {stored}: no_space: ");
                assert!(said.contains(&last) && said.contains("\nno line reached `durable`"), "{transport}: {said}");
            });
        }
    });
}

/// A reason that becomes another one is shown while it waits, and not only at its end.
#[test]
fn an_append_says_when_it_waits_for_another_reason() {
    let mut daemon = Setup::new().set("journal.reserve_free", "1024TiB").start();
    let mut child = Feeding::start(&mut clactl(&["append", "--server", &daemon.address("unix")]));
    child.line("a line");
    assert!(child.wait_stderr("and 1 line wait: no_space: "));
    daemon.kill9();
    assert!(child.wait_stderr("and 1 line wait: cannot reach "), "{}", child.running.said());
    child.running.send(Signal::SIGTERM);
    child.running.wait_end(TEST_TIMEOUT).expect("it ends");
    let said = child.running.said();
    // A try that was under way when the daemon was killed has no answer, and may have been the one that stored it.
    let ends = ["certainly not stored", "which may be stored"]
        .map(|stored| said.contains(&format!("interrupted, and no ack for 1 line, {stored}: cannot reach ")));
    assert!(ends.contains(&true), "{said}");
}

/// No producer place: the line was never taken, and a tool that stops waiting says so.
#[test]
fn an_append_without_a_producer_slot_is_certainly_not_stored() {
    let daemon = Setup::new().set("limits.max_producers", "1").start();
    // Root has three places of one.
    for _ in 0..if is_root() { 3 } else { 1 } {
        Raw::producer(&daemon.socket()).0.append_acked(0, AckLevel::Durable, &[b"it has a place"]);
    }
    let mut child = Feeding::start(&mut clactl(&["append", "--server", &daemon.address("unix")]));
    child.line("a line");
    assert!(child.wait_stderr("too_many_producers"), "{}", child.running.said());
    child.running.send(Signal::SIGINT);
    child.running.wait_end(TEST_TIMEOUT).expect("it ends");
    let said = child.running.said();
    assert_eq!(child.running.code(), Some(1), "{said}");
    assert!(said.contains("no ack for 1 line, certainly not stored: too_many_producers"), "{said}");
}

/// Whatever waits inside of it (acks, room in its buffer or ring, a socket that nobody reads), a signal ends it: the daemon
/// stands still meanwhile, and answers nothing.
#[test]
fn an_append_ends_while_the_daemon_hangs() {
    let daemon = Daemon::start();
    let text = format!("{}\n", "x".repeat(100)).repeat(1000);
    thread::scope(|scope| {
        let mut appends = ["unix", "tcp", "grpc", "shm"].map(|transport| {
            let mut child = Feeding::start(&mut clactl(&["append", "--server", &daemon.address(transport)]));
            child.line("before");
            (transport, child)
        });
        let all = appends.len() as u64;
        daemon
            .wait_until("first lines", |status| status.offsets.as_ref().is_some_and(|offsets| offsets.durable == all));
        // They have heard of it as well, or say so below.
        thread::sleep(Duration::from_secs(2));
        daemon.signal(Signal::SIGSTOP);
        for (_, child) in &mut appends {
            let mut lines = child.lines.take().expect("open");
            let text = &text;
            // More than it takes without an answer: it stops reading.
            scope.spawn(move || while lines.write_all(text.as_bytes()).is_ok() {});
        }
        for (transport, child) in appends {
            assert!(
                child.wait_stderr("nothing was acknowledged for 5 s, and "),
                "{transport}: {}",
                child.running.said()
            );
            child.running.send(Signal::SIGTERM);
            child.running.wait_end(TEST_TIMEOUT).unwrap_or_else(|| panic!("{transport}: it goes on"));
            let said = child.running.said();
            assert_eq!(child.running.code(), Some(1), "{transport}: {said}");
            assert!(said.contains("interrupted, and no ack for "), "{transport}: {said}");
            assert!(said.contains("the last line that reached `durable` is line 1\n"), "{transport}: {said}");
        }
    });
    daemon.signal(Signal::SIGCONT);
}

/// A `clactl append` that is given its lines one by one.
struct Feeding {
    running: Running,
    lines: Option<std::io::PipeWriter>,
}

impl Feeding {
    fn start(command: &mut Command) -> Self {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let running = Running::start(command.stdin(reader));
        // The command keeps its end of the pipe for as long as it lives.
        command.stdin(Stdio::null());
        Self { running, lines: Some(writer) }
    }

    fn line(&mut self, line: &str) {
        writeln!(self.lines.as_mut().expect("open"), "{line}").expect("it reads");
    }

    fn wait_stderr(&self, text: &str) -> bool {
        self.running.wait_for(OutputStream::Stderr, text, TEST_TIMEOUT)
    }

    /// Closes its input and waits for its end.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.lines.take());
        self.running.wait_end(TEST_TIMEOUT).expect("it ends");
        (self.running.code(), self.running.said())
    }
}

/// What was taken when more was allowed is given out whole, by every way of reading.
#[test]
fn what_is_longer_than_an_append_may_be_by_now_is_read() {
    let mut daemon = Setup::new().set("journal.max_record_bytes", "1MiB").start();
    let long = vec![b'l'; 900_000];
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Durable, &[&long, &long]);
    raw.append_acked(2, AckLevel::Durable, &[b"behind it"]);
    drop(raw);
    assert_eq!(daemon.term(), Some(0));
    daemon.restart_with("limits.max_append_bytes", "1MiB");
    for arguments in [["query", "-o", "cat"].as_slice(), &["export", "-o", "cat"]] {
        let read = ok(&daemon, arguments);
        let lines: Vec<_> = read.split(|byte| *byte == b'\n').map(<[u8]>::len).collect();
        assert_eq!(lines, [long.len(), long.len(), 9, 0], "{arguments:?}");
    }
}
