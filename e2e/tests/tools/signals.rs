//! Signals, reload, and going down.

use std::fs;
use std::path::Path;
use std::process::Command;

use clad_e2e::raw::payload;
use clad_e2e::tool::{Running, run};
use clad_e2e::{Daemon, Raw, Scratch, Setup, binary, max_connections_for};
use clad_proto::frame::{AppendHead, Frame, encode_append};
use clad_proto::{AckLevel, ErrorCode};
use nix::sys::signal::Signal;

use crate::{append_numbers, numbers, ok};

#[test]
fn usr1_syncs() {
    let daemon = Setup::new()
        .set("journal.durability", "fire_and_forget")
        .set("journal.fire_and_forget.sync_interval", "0")
        .start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Written, &[b"x"]);
    assert_eq!(daemon.status().offsets.expect("offsets").durable, 0);
    daemon.signal(Signal::SIGUSR1);
    daemon.wait_until("durable", |status| status.offsets.as_ref().is_some_and(|offsets| offsets.durable == 1));
}

#[test]
fn usr2_rotates() {
    let daemon = Daemon::start();
    append_numbers(&daemon, 0..3);
    daemon.signal(Signal::SIGUSR2);
    daemon.wait_said("segment sealed");
    append_numbers(&daemon, 3..6);
    let segments = daemon.admin().segments().expect("segments");
    assert_eq!(
        segments.iter().filter(|segment| segment.sealed).map(|sealed| sealed.end_offset).collect::<Vec<_>>(),
        [3]
    );
    assert_eq!(ok(&daemon, &["query", "-o", "cat"]), numbers(0..6));
}

#[test]
fn hup_reloads_all_or_nothing() {
    let daemon = Setup::new().unset("journal.segment_bytes").unset("limits.max_append_bytes").start();
    let config = daemon.setup().config().to_owned();
    // A key that needs a restart refuses the reload by name, and with it what could have been taken.
    fs::write(&config, "[journal]\nsegment_bytes = \"32MiB\"\n[log]\nlevel = \"debug\"\n").expect("written");
    daemon.signal(Signal::SIGHUP);
    daemon.wait_said("HUP: refused");
    assert!(daemon.said().contains("journal.segment_bytes"), "{}", daemon.said());
    assert!(!daemon.said().contains("HUP: changed"), "{}", daemon.said());
    // A mistake changes nothing, and is named.
    fs::write(&config, "[log]\nlevle = \"debug\"\n").expect("written");
    daemon.signal(Signal::SIGHUP);
    daemon.wait_said("log.levle");
    // What may change does, while records come in.
    append_numbers(&daemon, 0..5);
    daemon.wait_until("its end", |status| status.connections.get("unix").is_none_or(|&open| open == 0));
    let most = max_connections_for(20);
    fs::write(&config, format!("[log]\nlevel = \"debug\"\n[limits]\nmax_connections = {most}\n")).expect("written");
    daemon.signal(Signal::SIGHUP);
    daemon.wait_said("HUP: reloaded");
    let said = daemon.said();
    assert!(said.contains("log.level") && said.contains("limits.max_connections"), "{said}");
    let all: Vec<_> = (0..20).map(|_| Raw::producer(&daemon.socket())).collect();
    assert_eq!(Raw::unix(&daemon.socket()).end().code, ErrorCode::TooManyConnections);
    drop(all);
}

/// `clad reload` of a process, with this in its environment: its exit code and what it said.
fn reload(pid: u32, runtime: Option<&Path>) -> (Option<i32>, String) {
    let mut command = Command::new(binary("clad"));
    command.args(["reload", &pid.to_string()]).env_remove("RUNTIME_DIRECTORY");
    command.envs(runtime.map(|folder| ("RUNTIME_DIRECTORY", folder)));
    let output = run(&mut command, b"");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn clad_reload_reports_its_result_and_signals_nobody_else() {
    let runtime = Scratch::new();
    let folder = format!("RUNTIME_DIRECTORY={}", runtime.data().display());
    let mut daemon = Setup::new().under(&["env", &folder]).start();
    let config = daemon.setup().config().to_owned();
    let pid = daemon.pid();
    for (text, runtime, code, words) in [
        ("", Some(runtime.data()), 0, "reloaded: no key has changed"),
        ("[limits]\nmax_connections = 7\n", None, 0, "reloaded: 1 key changed: limits.max_connections"),
        ("[log]\nlevel = \"debug\"\n", Some(runtime.data()), 0, "2 keys changed: log.level, limits.max_connections"),
        (
            "[journal]\nio_engine = \"blocking\"\n",
            None,
            78,
            "the reload was refused: nothing was changed: a restart is \
         needed for journal.io_engine",
        ),
        ("[log]\nlevle = \"debug\"\n", None, 78, "log.levle"),
    ] {
        fs::write(&config, text).expect("written");
        let (ended, said) = reload(pid, runtime);
        assert!(ended == Some(code) && said.contains(words), "{text}: {ended:?} {said}");
    }
    // Another process, which HUP would end; and the daemon's own pid once that is nobody's.
    let other = Running::start(Command::new("sleep").arg("1000"));
    let (ended, said) = reload(other.pid(), Some(runtime.data()));
    assert!(ended == Some(1) && said.contains(&format!("left by process {pid}")), "{ended:?} {said}");
    assert!(other.is_running(), "it got a signal");
    assert_eq!(daemon.term(), Some(0));
    let (ended, said) = reload(pid, Some(runtime.data()));
    assert!(ended == Some(1) && said.contains("no such process"), "{ended:?} {said}");
}

#[test]
fn term_and_int_end_cleanly() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut daemon = Daemon::start();
        append_numbers(&daemon, 0..3);
        daemon.signal(signal);
        daemon.wait_said("clean end");
        // Asked twice is no harm: it is on its way.
        assert_eq!(daemon.wait_end(), Some(0), "{signal}");
        assert!(!daemon.socket().exists() && !daemon.setup().admin_socket().exists(), "sockets are left");
        daemon.restart();
        let recovery = daemon.status().recovery.expect("what happened");
        assert!(recovery.clean, "{recovery:?}");
        assert_eq!((daemon.status().epoch, daemon.status().offsets.expect("offsets").durable), (1, 3));
    }
}

/// Whatever keeps a start from going on once the log is open: nothing was appended, and the next one finds a clean end.
#[test]
fn a_start_that_fails_leaves_the_clean_end_that_it_found() {
    let mut daemon = Daemon::start();
    append_numbers(&daemon, 0..3);
    assert_eq!(daemon.term(), Some(0));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").to_string();
    let file = daemon.setup().config().display().to_string();
    for (key, value) in
        [("metrics.listen", &port), ("ingest.unix.path", &file), ("ingest.grpc.listen", &port), ("admin.path", &file)]
    {
        let ended = Setup::in_folder(daemon.dir()).set(key, value).run_to_end();
        assert_eq!(ended.code, Some(1), "{}", ended.said);
        assert!(
            ended.said.contains(&format!("({key})")) && ended.said.contains(&format!("set {key}")),
            "{}",
            ended.said
        );
        assert!(!ended.said.contains("unclean end"), "{}", ended.said);
    }
    daemon.restart();
    let recovery = daemon.status().recovery.expect("what happened");
    assert!(recovery.clean, "{recovery:?}");
    assert_eq!((daemon.status().epoch, daemon.status().offsets.expect("offsets").durable), (1, 3));
}

/// Going down under load: whatever was accepted is answered at its level before the end, and is there afterwards.
#[test]
fn a_drain_answers_what_was_taken() {
    let mut daemon = Daemon::start();
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    let good = payload(&[b"drained"]);
    let mut sender = raw.sender();
    // One thread sends without end, within nobody's window: what is refused is no matter here.
    let writer = std::thread::spawn(move || {
        for first_seq in 0.. {
            let head =
                AppendHead { first_seq, count: 1, level: AckLevel::Durable, gap: true, payload_crc: good.checksum() };
            let mut bytes = bytes::BytesMut::new();
            encode_append(&mut bytes, &head, &good.bytes);
            if std::io::Write::write_all(&mut sender, &bytes).is_err() {
                return;
            }
        }
    });
    let (mut accepted, mut durable, mut last) = (0, 0, None);
    let mut signalled = false;
    while let Some(frame) = raw.frame() {
        match &frame {
            Frame::Accepted(answer) => accepted = accepted.max(answer.first_offset + 1),
            Frame::Watermark(watermark) if watermark.level == AckLevel::Durable => durable = watermark.offset,
            _ => {}
        }
        if accepted > 1000 && !signalled {
            daemon.signal(Signal::SIGTERM);
            signalled = true;
        }
        last = Some(frame);
    }
    let Some(Frame::Error(last)) = last else { panic!("it ended without a word: {last:?}") };
    assert_eq!((last.error.code, last.error.retryable), (ErrorCode::ShuttingDown, true));
    assert_eq!(durable, accepted, "accepted and not answered");
    assert_eq!(daemon.wait_end(), Some(0));
    writer.join().expect("the writer ends");
    daemon.restart();
    let status = daemon.status();
    assert_eq!((status.epoch, status.offsets.expect("offsets").durable), (welcome.epoch, accepted));
}

/// A second TERM, or a client that hangs, does not keep it: it ends by its deadline, and says how.
#[test]
fn a_client_that_stays_does_not_hold_up_the_end() {
    let mut daemon = Setup::new().set("daemon.drain_timeout", "2s").start();
    let mut idle = Raw::unix(&daemon.socket());
    idle.greet(&clad_e2e::raw::hello()).expect("WELCOME");
    let nothing_said = Raw::unix(&daemon.socket());
    assert_eq!(daemon.term(), Some(0));
    drop((idle, nothing_said));
}
