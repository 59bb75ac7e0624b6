//! From systemd's journal, as `systemd-journal-remote` writes it and `journalctl` reads it.

use std::path::Path;
use std::process::Command;

use clad_e2e::{Rng, seed};

use super::{Relay, daemon, left_behind, number, pid, wait_for};

const FROM: &str = "[from.journal]\ndirectory = \"FOLDER\"\n";

/// An entry in the export format.
fn entry(number: u64, unit: &str) -> String {
    let time = 1_700_000_000_000_000 + number;
    format!(
        "__REALTIME_TIMESTAMP={time}\n__MONOTONIC_TIMESTAMP={number}\n_BOOT_ID=000102030405060708090a0b0c0d0e0f\n\
         PRIORITY=6\nSYSLOG_IDENTIFIER=app{}\n_PID={number}\n_SYSTEMD_UNIT={unit}\nMESSAGE=entry {number}\n\n",
        number / 7 % 3
    )
}

/// Adds entries to the journal in a folder.
fn write(relay: &Relay, numbers: std::ops::Range<u64>, unit: &str) {
    let source = relay.scratch.data().join("source");
    std::fs::write(&source, numbers.map(|number| entry(number, unit)).collect::<String>()).expect("written");
    let root = std::env::var("CLAD_JOURNALD_PROGRAMS").expect("call `cargo xtask ci relay`");
    let root = Path::new(&root);
    let mut command = Command::new(root.join("lib/systemd/systemd-journal-remote"));
    command.env("LD_LIBRARY_PATH", root.join("usr/lib/x86_64-linux-gnu"));
    command.arg("-o").arg(relay.path("all.journal")).arg(&source);
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// journalctl of a relay.
fn journalctl_of(relay: &Relay) -> Option<i32> {
    let relay = pid(relay.child.as_ref()?).as_raw();
    let children = std::fs::read_to_string(format!("/proc/{relay}/task/{relay}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

#[test]
#[ignore = "needs clad-relay and systemd-journal-remote: `cargo xtask ci relay`"]
fn every_entry_comes_once_and_in_order_over_kills_of_relay_daemon_and_journalctl() {
    let (kills, entries) = (number("CLAD_RELAY_KILLS"), number("CLAD_RELAY_ENTRIES"));
    let mut rng = Rng::new(seed());
    let mut daemon = daemon();
    let mut relay = Relay::new(&daemon, &format!("{FROM}start = \"beginning\""));
    write(&relay, 0..entries / 2, "app.service");
    for kill in 0..kills {
        let stored = daemon.status().offsets.expect("offsets").durable;
        let more = rng.number() % (entries / kills).max(1);
        daemon.wait_until("some entries", |status| {
            relay.keep();
            status.offsets.is_some_and(|offsets| offsets.durable >= (stored + more).min(entries / 2))
        });
        match kill % 3 {
            0 => relay.kill9(),
            1 => {
                daemon.kill9();
                daemon.restart();
            }
            _ => {
                if let Some(child) = journalctl_of(&relay) {
                    let _ =
                        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), nix::sys::signal::Signal::SIGKILL);
                }
            }
        }
        if kill == kills / 2 {
            write(&relay, entries / 2..entries, "app.service");
        }
    }
    let bodies = wait_for(&daemon, &mut relay, usize::try_from(entries).expect("few"));
    report(kills, bodies.len());
    for (number, body) in bodies.iter().enumerate() {
        assert_eq!(*body, format!("entry {number}"));
    }
    assert_eq!(bodies.len() as u64, entries, "nothing twice");
    assert!(relay.term());
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
fn report(kills: u64, entries: usize) {
    println!("kills: {kills} of relay, daemon and journalctl, {entries} entries");
}

#[test]
#[ignore = "needs clad-relay and systemd-journal-remote: `cargo xtask ci relay`"]
fn a_relay_that_begins_now_takes_what_comes_and_leaves_out_what_it_must() {
    let mut daemon = daemon();
    let mut relay = Relay::new(&daemon, &format!("{FROM}exclude = [\"_SYSTEMD_UNIT=noise.service\"]"));
    write(&relay, 0..10, "app.service");
    relay.start();
    daemon.wait_until("its place", |status| status.offsets.is_some_and(|offsets| offsets.durable >= 2));
    relay.kill9();
    write(&relay, 10..12, "app.service");
    write(&relay, 12..20, "noise.service");
    write(&relay, 20..30, "clad.service");
    write(&relay, 30..40, "clad-relay@test.service");
    write(&relay, 40..42, "clad-client.service");
    let bodies = wait_for(&daemon, &mut relay, 4);
    assert_eq!(bodies, ["entry 10", "entry 11", "entry 40", "entry 41"]);
    left_behind(&mut daemon);
}

#[test]
#[ignore = "needs clad-relay and systemd-journal-remote: `cargo xtask ci relay`"]
fn a_journal_that_lost_the_place_is_said_in_the_log() {
    let mut daemon = daemon();
    let mut relay = Relay::new(&daemon, &format!("{FROM}start = \"beginning\""));
    write(&relay, 0..10, "app.service");
    wait_for(&daemon, &mut relay, 10);
    relay.kill9();
    std::fs::remove_file(relay.path("all.journal")).expect("removed");
    write(&relay, 20..30, "app.service");
    let bodies = wait_for(&daemon, &mut relay, 20);
    assert_eq!(bodies[10..], (20..30).map(|number| format!("entry {number}")).collect::<Vec<_>>());
    let all = left_behind(&mut daemon);
    let lost = all.iter().filter(|body| body.contains("the journal has not kept the entry behind which")).count();
    assert_eq!(lost, 1, "{all:#?}");
}
