//! `systemd-journal-upload`, as Debian has it: `cargo xtask ci relay` calls these, and nobody else does.
//!
//! `CLAD_JOURNALD_PROGRAMS` is the folder with its packages, unpacked; `CLAD_JOURNALD_KILLS` sets the kills.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clad_e2e::{Daemon, Rng, Scratch, Setup, TEST_TIMEOUT, seed};

use super::{counts, entry, left_behind};

fn program(name: &str) -> Command {
    let root = std::env::var("CLAD_JOURNALD_PROGRAMS").expect("call `cargo xtask ci relay`");
    let root = Path::new(&root);
    let mut command = Command::new(root.join("lib/systemd").join(name));
    let libraries = ["usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/systemd", "lib/x86_64-linux-gnu"];
    let libraries = libraries.map(|folder| root.join(folder).display().to_string());
    command.env("LD_LIBRARY_PATH", libraries.join(":"));
    command
}

fn ends(mut command: Command) {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A journal with so many entries.
fn journal(scratch: &Scratch, entries: u64) -> PathBuf {
    let (source, journal) = (scratch.data().join("source"), scratch.data().join("all.journal"));
    std::fs::write(&source, (0..entries).flat_map(entry).collect::<Vec<u8>>()).expect("written");
    let mut command = program("systemd-journal-remote");
    command.arg("-o").arg(&journal).arg(&source);
    ends(command);
    journal
}

fn uploader(daemon: &Daemon, journal: &Path, state: &Path) -> Command {
    let mut command = program("systemd-journal-upload");
    command.arg(format!("--url=http://{}", daemon.port("grpc"))).arg(format!("--save-state={}", state.display()));
    command.arg("--follow=no").arg("--file").arg(journal).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
#[ignore = "needs Debian's systemd-journal-remote: `cargo xtask ci relay`"]
fn a_journal_comes_over_whole_and_once_though_it_is_sent_twice() {
    let scratch = Scratch::new();
    let journal = journal(&scratch, 3000);
    let mut daemon = Setup::new().set("journal.segment_bytes", "64MiB").start();
    for state in ["first", "second"] {
        ends(uploader(&daemon, &journal, &scratch.data().join(state)));
    }
    assert_eq!(daemon.metric("clad_journal_uploads_total{code=\"ok\"}"), 2.0);
    assert_eq!(daemon.metric("clad_deduplicated_records_total"), 3000.0);
    daemon.kill9();
    let stored = clad_e2e::readback::files(daemon.dir());
    assert_eq!(counts(&stored), (0..3000).map(|number| (number, 1)).collect());
    assert!(stored.iter().zip(0..).all(|(record, number)| record.body == super::message(number)), "in order");
}

/// Under a manager it is started again until it ends well.
#[test]
#[ignore = "needs Debian's systemd-journal-remote: `cargo xtask ci relay`"]
#[expect(clippy::print_stdout, reason = "the figures of the case")]
fn nothing_is_lost_or_there_twice_over_kills_of_either() {
    let kills: u32 = std::env::var("CLAD_JOURNALD_KILLS").expect("a number").parse().expect("a number");
    let mut rng = Rng::new(seed());
    let scratch = Scratch::new();
    let entries = 20_000;
    let journal = journal(&scratch, entries);
    let state = scratch.data().join("state");
    // The resend window is by the length of a segment.
    let mut daemon = Setup::new().set("journal.segment_bytes", "64MiB").fixed_ports().start();
    let mut whole = 0;
    for kill in 0..kills {
        let mut client = uploader(&daemon, &journal, &state).spawn().expect("it starts");
        let stored = daemon.status().offsets.expect("offsets").durable;
        let more = rng.number() % 2000;
        // Not by a time: by how far it came.
        let until = std::time::Instant::now() + TEST_TIMEOUT;
        while client.try_wait().expect("a child").is_none()
            && daemon.status().offsets.expect("offsets").received < stored.min(entries) + more
        {
            assert!(std::time::Instant::now() < until, "nothing moves: {}", daemon.said());
            std::thread::sleep(Duration::from_millis(1));
        }
        if kill % 2 == 0 {
            daemon.kill9();
            wait(&mut client);
            daemon.restart();
        } else {
            let _ = client.kill();
            wait(&mut client);
        }
        if std::fs::metadata(&state).is_ok() {
            whole += 1;
            std::fs::remove_file(&state).expect("removed");
        }
    }
    ends(uploader(&daemon, &journal, &state));
    let twice = daemon.metric("clad_deduplicated_records_total");
    let counts = left_behind(&mut daemon);
    println!(
        "kills: {kills} of daemon and client, {whole} uploads were whole before, {twice} entries sent again to the last daemon"
    );
    assert_eq!(counts, (0..entries).map(|number| (number, 1)).collect());
}

fn wait(client: &mut Child) {
    let until = std::time::Instant::now() + TEST_TIMEOUT;
    while client.try_wait().expect("a child").is_none() {
        assert!(std::time::Instant::now() < until, "the client does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}
