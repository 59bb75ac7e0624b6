//! Rotation under kills: every line once, in order.

use std::fs;
use std::path::Path;
use std::process::Command;

use clad_e2e::{Daemon, Rng, seed};

use super::{Relay, append, daemon, number, wait_for};

const FROM: &str = "[from.files]\nstart = \"beginning\"\npaths = ";
const ROTATIONS: u64 = 50;

/// Lines into `app.log`, which is rotated again and again, while relay and daemon are killed.
fn over_rotations(paths: &str, rotate: impl Fn(&Path)) {
    let kills = number("CLAD_RELAY_KILLS");
    let mut rng = Rng::new(seed());
    let mut daemon = daemon();
    let mut relay = Relay::new(&daemon, &format!("{FROM}{paths}"));
    let (log, mut written, mut killed) = (relay.path("app.log"), 0, 0);
    let write = |written: &mut u64, lines: u64| {
        let text = (*written..*written + lines).map(|line| format!("line {line}\n")).collect::<String>();
        *written += lines;
        append(&log, &text);
    };
    for rotation in 0..ROTATIONS {
        relay.keep();
        let lines = 50 + rng.number() % 500;
        write(&mut written, lines);
        // Some of it is read at the time.
        let part = 1 + rng.number() % lines;
        wait_for(&daemon, &mut relay, usize::try_from(written - lines + part).expect("few"));
        if rotation % 2 == 0 || rotation * kills / ROTATIONS > killed {
            killed += 1;
            if rng.number().is_multiple_of(2) {
                kill_daemon(&mut daemon)
            } else {
                relay.kill9()
            }
            // Nobody has read these when the file is rotated.
            write(&mut written, 1 + rng.number() % 300);
        }
        rotate(&log);
    }
    let bodies = wait_for(&daemon, &mut relay, usize::try_from(written).expect("few"));
    report(killed, bodies.len());
    let expected = (0..written).map(|line| format!("line {line}"));
    for (at, (got, want)) in bodies.iter().zip(expected).enumerate() {
        assert_eq!(*got, want, "record {at}");
    }
    assert_eq!(bodies.len() as u64, written, "nothing twice");
    assert!(relay.term());
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
fn report(killed: u64, lines: usize) {
    println!("kills: {killed} over {ROTATIONS} rotations, {lines} lines");
}

fn kill_daemon(daemon: &mut Daemon) {
    daemon.kill9();
    daemon.restart();
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn every_line_comes_once_and_in_order_over_renames_and_kills() {
    over_rotations("[\"FOLDER/*.log\"]", |log| {
        for old in (1..4).rev() {
            let name = |number: u64| log.with_extension(format!("log.{number}"));
            let _ = fs::rename(name(old), name(old + 1));
        }
        fs::rename(log, log.with_extension("log.1")).expect("renamed");
    });
}

/// logrotate itself. A program that writes between its copy and its truncation loses lines by that alone: here nobody does.
#[test]
#[ignore = "needs clad-relay and logrotate: `cargo xtask ci relay`"]
fn every_line_comes_once_and_in_order_over_logrotate_with_copytruncate() {
    over_rotations("[\"FOLDER/app.log\"]", |log| logrotate(log, "copytruncate"));
}

/// The pattern finds the copies too: they are no new files.
#[test]
#[ignore = "needs clad-relay and logrotate: `cargo xtask ci relay`"]
fn every_line_comes_once_though_the_pattern_finds_the_copies() {
    over_rotations("[\"FOLDER/app.log*\"]", |log| logrotate(log, "copytruncate"));
}

#[test]
#[ignore = "needs clad-relay and logrotate: `cargo xtask ci relay`"]
fn every_line_comes_once_and_in_order_over_logrotate_with_renames() {
    over_rotations("[\"FOLDER/app.log\"]", |log| logrotate(log, "nocreate"));
}

fn logrotate(log: &Path, how: &str) {
    let (config, state) = (log.with_extension("conf"), log.with_extension("state"));
    let text = format!("{} {{\n  su root root\n  rotate 5\n  nocompress\n  missingok\n  {how}\n}}\n", log.display());
    fs::write(&config, text).expect("written");
    let mut command = Command::new("logrotate");
    command.arg("--force").arg("--state").arg(&state).arg(&config);
    let output = command.output().expect("logrotate");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
