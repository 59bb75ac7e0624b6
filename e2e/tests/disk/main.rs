//! Bad days of a disk and of a clock. Each wants a file system made for it, mounted where `CLAD_E2E_DIR` says, so they
//! are called by `cargo xtask ci disk`, one by one, and by nobody else.

mod breaks;
mod clock;
mod dead_writes;
mod flushes;
mod full;
mod full_start;
mod hangs;
mod mounts;
mod ranges;
mod slow_flush;

use std::path::PathBuf;
use std::process::Command;

use clad_e2e::{Daemon, Raw, Setup};
use clad_proto::AckLevel;

/// Where the file system of this test is mounted.
fn mount_point() -> PathBuf {
    std::env::var_os("CLAD_E2E_DIR").expect("called by `cargo xtask ci disk`").into()
}

/// Mounts it again with these options.
fn remount(options: &str) {
    let output = Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(mount_point()).output();
    let output = output.expect("mount runs");
    assert!(output.status.success(), "{output:?}");
}

/// Small segments for a small disk.
fn small() -> Setup {
    in_small(Setup::new())
}

fn in_small(setup: Setup) -> Setup {
    let setup = setup.set("journal.segment_bytes", "1MiB").set("limits.max_append_bytes", "256KiB");
    setup.set("journal.max_record_bytes", "128KiB")
}

/// Appends numbered records, `written` or `durable` each.
fn append(raw: &mut Raw, level: AckLevel, sequences: std::ops::Range<u64>) {
    for sequence in sequences {
        raw.append_acked(sequence, level, &[format!("record {sequence}").as_bytes()]);
    }
}

/// What the daemon gives out, as text.
fn stored(daemon: &Daemon) -> Vec<String> {
    let mut reader = Raw::unix(&daemon.socket());
    reader.greet(&clad_e2e::raw::hello_reader()).expect("WELCOME");
    let (got, _) = reader.read_from(0, AckLevel::Written).expect("a read");
    for (offset, got) in (0..).zip(&got) {
        assert_eq!(got.offset, offset);
    }
    got.into_iter().map(|got| String::from_utf8(got.body.expect("a body")).expect("text")).collect()
}

/// What was appended.
fn records(sequences: std::ops::Range<u64>) -> Vec<String> {
    sequences.map(|sequence| format!("record {sequence}")).collect()
}
