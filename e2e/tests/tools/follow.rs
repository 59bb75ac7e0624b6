//! Following and rotating under load: nothing missing, nothing twice.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use clad_e2e::raw::{hello_reader, payload};
use clad_e2e::tool::{Running, clactl, clactl_ends};
use clad_e2e::{Daemon, Raw, Setup, TEST_TIMEOUT};
use clad_proto::AckLevel;
use clad_proto::frame::Frame;
use nix::sys::signal::Signal;

use crate::numbers;

/// Rotations while records come in.
const ROTATIONS: u64 = 60;
/// Appends in flight.
const APPENDS_IN_FLIGHT_MAX: u64 = 128;

/// Appends numbers until enough rotations were made; how many.
fn load(daemon: &Daemon) -> (u64, u64) {
    let (sent, rotated) = (AtomicU64::new(0), AtomicBool::new(false));
    let sealed = thread::scope(|scope| {
        let writer = scope.spawn(|| write(daemon, &sent, &rotated));
        let mut sealed = 0;
        let mut before = 0;
        while sealed < ROTATIONS && !writer.is_finished() {
            // A rotation between any two would be none under load: something must have come in.
            if sent.load(Ordering::Relaxed) == before {
                thread::yield_now();
                continue;
            }
            before = sent.load(Ordering::Relaxed);
            sealed += u64::from(daemon.admin().rotate().expect("rotated").sealed_segment.is_some());
        }
        rotated.store(true, Ordering::Relaxed);
        writer.join().expect("the writer ends well");
        sealed
    });
    assert_eq!(sealed, ROTATIONS);
    (sent.into_inner(), sealed)
}

fn write(daemon: &Daemon, sent: &AtomicU64, rotated: &AtomicBool) {
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    assert!(u64::from(welcome.window) > APPENDS_IN_FLIGHT_MAX);
    let (mut next, mut acked) = (0, 0);
    while !rotated.load(Ordering::Relaxed) || acked < next {
        while next < acked + APPENDS_IN_FLIGHT_MAX && !rotated.load(Ordering::Relaxed) {
            raw.append_payload(next, AckLevel::Durable, false, &payload(&[format!("number {next}").as_bytes()]));
            next += 1;
        }
        match raw.frame() {
            Some(Frame::Accepted(_)) => {}
            Some(Frame::Watermark(watermark)) => acked = acked.max(watermark.offset),
            other => panic!("{other:?}"),
        }
        sent.store(acked, Ordering::Relaxed);
    }
}

fn daemon() -> Daemon {
    Setup::new()
        .set("journal.segment_bytes", "1MiB")
        .set("limits.max_append_bytes", "256KiB")
        .set("journal.max_record_bytes", "128KiB")
        .start()
}

#[test]
fn tail_follows_across_rotations() {
    let daemon = daemon();
    let server = daemon.address("unix");
    let mut tails = Vec::new();
    for arguments in [&["tail", "-f", "-n", "all", "-o", "cat"][..], &["query", "-f", "-o", "cat"]] {
        let mut command = clactl(&[arguments, &["--server", &server]].concat());
        tails.push(Running::start(command.stdin(Stdio::null())));
    }
    let (sent, _) = load(&daemon);
    for tail in &tails {
        assert!(tail.wait_lines(sent as usize, TEST_TIMEOUT), "{sent} were sent, fewer were shown\n{}", tail.said());
        tail.send(Signal::SIGINT);
        tail.wait_end(TEST_TIMEOUT).expect("it ends at the signal");
        assert!(tail.output() == numbers(0..sent), "a gap or a repeat");
    }
}

#[test]
fn rotating_under_full_load_loses_and_repeats_nothing() {
    let mut daemon = daemon();
    let (sent, sealed) = load(&daemon);
    let mut reader = Raw::unix(&daemon.socket());
    reader.greet(&hello_reader()).expect("WELCOME");
    let (got, end) = reader.read_from(0, AckLevel::Durable).expect("a read");
    assert_eq!(end.cursor.offset, sent);
    for (expected, got) in (0..sent).zip(&got) {
        assert_eq!((got.offset, got.sequence), (expected, expected));
        assert_eq!(got.body.as_deref(), Some(format!("number {expected}").as_bytes()));
    }
    assert_eq!(got.len() as u64, sent);
    let segments = daemon.admin().segments().expect("segments");
    assert!(segments.iter().filter(|segment| segment.sealed).count() as u64 >= sealed);
    let dense = segments.windows(2).all(|pair| pair[0].end_offset == pair[1].first_offset);
    assert!(dense, "{segments:?}");
    assert_eq!(daemon.term(), Some(0));
    let dir = daemon.dir().display().to_string();
    clactl_ends(0, &["verify", &dir], b"");
    let output = clactl_ends(0, &["query", "--dir", &dir, "-o", "cat"], b"");
    assert!(output.stdout == numbers(0..sent), "the files hold something else");
}

/// A follower lives through a restart of the daemon: it goes on at its cursor.
#[test]
fn tail_follows_across_a_crash() {
    let mut daemon = Setup::new().fixed_ports().start();
    let server = daemon.address("unix");
    crate::append_numbers(&daemon, 0..20);
    let mut command = clactl(&["tail", "-f", "-n", "5", "-o", "cat", "--server", &server]);
    let tail = Running::start(command.stdin(Stdio::null()));
    assert!(tail.wait_lines(5, TEST_TIMEOUT), "{}", tail.said());
    daemon.kill9();
    daemon.restart();
    crate::append_numbers(&daemon, 20..40);
    assert!(tail.wait_lines(25, TEST_TIMEOUT), "{}\n{}", tail.printed(), tail.said());
    assert_eq!(tail.printed().into_bytes(), numbers(15..40));
}
