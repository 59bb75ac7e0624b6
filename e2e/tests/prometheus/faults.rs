//! Faults that need no file system of their own, each made in earnest: its alerts fire, and end when it is over.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use clad_e2e::tool::clactl;
use clad_e2e::{Daemon, Raw, Setup, max_connections_for, web};
use clad_proto::{AckLevel, ErrorCode};
use nix::sys::signal::Signal;

use crate::certs::{Authority, replace};
use crate::load::commit_cursor;
use crate::server::Prometheus;

fn append(daemon: &Daemon, records: std::ops::Range<u64>) {
    let (mut raw, _) = Raw::producer(&daemon.socket());
    for sequence in 0..records.end - records.start {
        raw.append_acked(sequence, AckLevel::Durable, &[format!("number {}", records.start + sequence).as_bytes()]);
    }
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn a_daemon_that_is_killed() {
    let mut daemon = Setup::new().fixed_ports().start();
    let prometheus = Prometheus::over(&daemon);
    prometheus.is_silent(&["CladDown", "CladAbsent", "CladRestartLoop"]);
    daemon.kill9();
    prometheus.wait_firing(&["CladDown"]);
    daemon.restart();
    prometheus.wait_over(&["CladDown"]);
    for _ in 0..3 {
        // Each start must be seen; its time is given in whole seconds.
        let before = prometheus.value("process_start_time_seconds");
        thread::sleep(Duration::from_secs(1));
        daemon.kill9();
        daemon.restart();
        prometheus.wait("a scrape of the new one", || {
            let now = prometheus.value("process_start_time_seconds");
            now.is_some() && now != before
        });
    }
    prometheus.wait_firing(&["CladRestartLoop"]);
    prometheus.wait_over(&["CladRestartLoop"]);
    prometheus.scrape(None);
    prometheus.wait_firing(&["CladAbsent"]);
    prometheus.scrape(Some(&daemon));
    prometheus.wait_over(&["CladAbsent"]);
}

/// A reader stays away: its cursor is behind, then what it holds is more than it may be.
#[test]
#[ignore = "cargo xtask ci prometheus"]
fn a_cursor_that_stays_behind() {
    let setup = Setup::new().set("journal.segment_bytes", "1MiB").set("limits.max_append_bytes", "256KiB");
    let setup = setup.set("journal.max_record_bytes", "128KiB").set("retention.max_bytes", "3MiB");
    let daemon = setup.set("retention.max_held_bytes", "4MiB").start();
    append(&daemon, 0..10);
    let prometheus = Prometheus::over(&daemon);
    commit_cursor(&daemon, "to-b", 5);
    prometheus.is_silent(&["CladCursorBehind", "CladCursorLost"]);
    prometheus.wait_firing(&["CladCursorBehind"]);
    let (mut raw, _) = Raw::producer(&daemon.socket());
    (0..120).for_each(|sequence| _ = raw.append_acked(sequence, AckLevel::Written, &[&[b'x'; 100 << 10]]));
    prometheus.wait_firing(&["CladCursorLost"]);
    commit_cursor(&daemon, "to-b", daemon.status().offsets.expect("offsets").written);
    prometheus.wait_over(&["CladCursorBehind", "CladCursorLost"]);
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn a_user_who_wants_more_than_his_share() {
    const HIS: usize = 20;
    let daemon = Setup::new().set("limits.max_connections", &max_connections_for(HIS)).start();
    let prometheus = Prometheus::over(&daemon);
    prometheus.is_silent(&["CladShareExhausted"]);
    let his: Vec<_> = (0..HIS).map(|_| Raw::producer(&daemon.socket())).collect();
    prometheus.wait("CladShareExhausted firing", || {
        assert_eq!(Raw::unix(&daemon.socket()).end().code, ErrorCode::TooManyConnections);
        prometheus.fires("CladShareExhausted")
    });
    prometheus.wait_firing(&["CladShareExhausted"]);
    drop(his);
    prometheus.wait_over(&["CladShareExhausted"]);
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn a_configuration_that_is_refused() {
    let daemon = Daemon::start();
    let prometheus = Prometheus::over(&daemon);
    prometheus.is_silent(&["CladReloadFailed"]);
    fs::write(daemon.setup().config(), "[rotation]\nmax_agee = \"1h\"\n").expect("written");
    daemon.signal(Signal::SIGHUP);
    prometheus.wait_firing(&["CladReloadFailed"]);
    fs::write(daemon.setup().config(), "[rotation]\nmax_age = \"1h\"\n").expect("written");
    daemon.signal(Signal::SIGHUP);
    prometheus.wait_over(&["CladReloadFailed"]);
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn a_certificate_that_ends_or_is_refused() {
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new("the tests' authority"));
    let files = authority.server_for(10).put(folder.path(), "server");
    let (cert, key) = (files.cert.display().to_string(), files.key.display().to_string());
    let daemon = Setup::new().set("tls.cert", &cert).set("tls.key", &key).set("ingest.tcp.tls", "true").start();
    let prometheus = Prometheus::over(&daemon);
    prometheus.is_silent(&["CladCertificateRefused"]);
    prometheus.wait_firing(&["CladCertificateEnds"]);
    replace(&files.cert, "half of a certif", 0o644);
    prometheus.wait_firing(&["CladCertificateRefused"]);
    authority.server_for(100).put(folder.path(), "server");
    prometheus.wait_over(&["CladCertificateEnds", "CladCertificateRefused"]);
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn a_byte_that_is_flipped() {
    let mut daemon = Setup::new().fixed_ports().start();
    append(&daemon, 0..100);
    assert_eq!(daemon.term(), Some(0));
    let segment = daemon.dir().join(format!("{:020}.clog", 0));
    let bytes = fs::read(&segment).expect("the segment");
    let at = bytes.windows(9).position(|window| window == b"number 42").expect("the record");
    let file = OpenOptions::new().write(true).open(&segment).expect("the segment");
    file.write_all_at(&[bytes[at] ^ 0x10], at as u64).expect("written");
    daemon.restart();
    let prometheus = Prometheus::over(&daemon);
    prometheus.is_silent(&["CladCorruptRecords"]);
    let read = clactl(&["query", "-o", "cat", "--server", &daemon.address("unix")]).output().expect("it runs");
    assert_eq!(read.status.code(), Some(1), "{read:?}");
    prometheus.wait_firing(&["CladCorruptRecords"]);
    prometheus.wait_over(&["CladCorruptRecords"]);
}

/// A start finds that the disk has changed what was acknowledged: it is reported at once, also to a Prometheus that has seen nothing
/// of the daemon before, and for as long as it is so.
#[test]
#[ignore = "cargo xtask ci prometheus"]
fn records_that_a_start_finds_lost() {
    const ALERTS: [&str; 2] = ["CladRecordsLost", "CladCorruptRecords"];
    let mut daemon = Setup::new().fixed_ports().start();
    let prometheus = Prometheus::over(&daemon);
    append(&daemon, 0..100);
    prometheus.is_silent(&ALERTS);
    daemon.kill9();
    let segment = daemon.dir().join(format!("{:020}.clog", 0));
    let bytes = fs::read(&segment).expect("the segment");
    let at = bytes.windows(9).position(|window| window == b"number 42").expect("the record");
    let file = OpenOptions::new().write(true).open(&segment).expect("the segment");
    file.write_all_at(&[bytes[at] ^ 0x10], at as u64).expect("written");
    daemon.restart();
    prometheus.wait_firing(&ALERTS);
    assert_eq!(prometheus.value("clad_corrupt_records_total"), Some(1.0));
    // A start after a clean end finds nothing new: the loss is as it was.
    assert_eq!(daemon.term(), Some(0));
    daemon.restart();
    prometheus.wait_over(&["CladCorruptRecords"]);
    assert_eq!(prometheus.value("clad_corrupt_records_total"), Some(0.0));
    assert_eq!(prometheus.value("clad_lost_records"), Some(1.0));
    assert!(prometheus.fires("CladRecordsLost"));
    let healthz = || web::page(daemon.port("metrics"), "/healthz").1;
    assert!(healthz().starts_with("degraded: acknowledged records were lost"), "{}", healthz());
    // Until retention passes it.
    fs::write(daemon.setup().config(), "[retention]\nmin_free = \"8000TiB\"\n").expect("written");
    daemon.signal(Signal::SIGHUP);
    for more in [100..101, 101..102] {
        append(&daemon, more);
        daemon.admin().rotate().expect("rotated");
    }
    prometheus.wait_over(&["CladRecordsLost"]);
    prometheus.wait("health", || healthz() == "ok\n");
}

/// The kernel refuses every write of the daemon to a file, as it does when a file gets too large for its file system.
fn may_write(daemon: &Daemon, may: bool) {
    let limit = if may { "--fsize=unlimited" } else { "--fsize=0:unlimited" };
    let done = Command::new("prlimit").args(["--pid", &daemon.pid().to_string(), limit]).output().expect("prlimit");
    assert!(done.status.success(), "{done:?}");
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn writes_that_fail() {
    const ALERTS: [&str; 3] = ["CladWriteFailed", "CladJournalFailed", "CladNotReady"];
    // The kernel says it by a signal as well, which ends who does not ignore it.
    let daemon = Setup::new().under(&["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).start();
    append(&daemon, 0..10);
    let prometheus = Prometheus::over(&daemon);
    prometheus.is_silent(&ALERTS);
    may_write(&daemon, false);
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append(0, AckLevel::Durable, &[b"does not get there"]);
    prometheus.wait_firing(&ALERTS);
    assert!(daemon.status().failed);
    may_write(&daemon, true);
    prometheus.wait_over(&ALERTS);
    append(&daemon, 10..20);
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn rotations_that_nobody_can_prepare_for() {
    let daemon = Daemon::start();
    let prometheus = Prometheus::over(&daemon);
    let (mut raw, _) = Raw::producer(&daemon.socket());
    let mut sequence = 0;
    prometheus.wait("CladSegmentsUnprepared firing", || {
        for _ in 0..10 {
            raw.append_acked(sequence, AckLevel::Written, &[b"one each"]);
            sequence += 1;
            daemon.admin().rotate().expect("rotated");
        }
        prometheus.fires("CladSegmentsUnprepared")
    });
    prometheus.wait_over(&["CladSegmentsUnprepared"]);
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn memory_that_may_not_be_locked() {
    let setup = Setup::new().set("journal.io_engine", "uring").fixed_ports();
    let under = setup.dir().with_extension("under");
    // Not even root locks memory beyond its limit without the capability for it.
    fs::write(&under, "setpriv --bounding-set=-ipc_lock prlimit --memlock=0:").expect("written");
    let call = format!("exec $(cat {}) \"$0\" \"$@\"", under.display());
    let mut daemon = setup.under(&["sh", "-c", &call]).start();
    let prometheus = Prometheus::over(&daemon);
    prometheus.wait_firing(&["CladIoFallback"]);
    assert_eq!(prometheus.value("clad_io_fallbacks_total{reason=\"memlock\"}"), Some(1.0));
    assert_eq!(daemon.term(), Some(0));
    fs::write(&under, "").expect("written");
    daemon.restart();
    prometheus.wait_over(&["CladIoFallback"]);
    assert_eq!(daemon.status().io_engine, "uring");
}
