//! Faults of a disk. Each wants a small file system made for it, mounted where `CLAD_E2E_DIR` says.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clad_e2e::{Daemon, PATIENCE, Raw, Setup, web};
use clad_proto::AckLevel;
use clad_proto::frame::Frame;

use crate::server::{Prometheus, given};

fn mount_point() -> PathBuf {
    given("CLAD_E2E_DIR")
}

fn small() -> Setup {
    let setup = Setup::new().set("journal.segment_bytes", "1MiB").set("limits.max_append_bytes", "256KiB");
    setup.set("journal.max_record_bytes", "128KiB")
}

/// A file system that is frozen, as a snapshot or a backup does it: every write to it waits. Thawed when dropped.
struct Frozen;

impl Frozen {
    fn new() -> Self {
        fsfreeze("--freeze");
        Self
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        fsfreeze("--unfreeze");
    }
}

fn fsfreeze(flag: &str) {
    let done = Command::new("fsfreeze").arg(flag).arg(mount_point()).output().expect("fsfreeze runs");
    assert!(done.status.success(), "{done:?}");
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn a_disk_that_hangs_and_one_that_is_slow() {
    let daemon = small().start();
    let prometheus = Prometheus::over(&daemon);
    prometheus.is_silent(&["CladDurableLag"]);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut raw, _) = Raw::producer(&daemon.socket());
            for sequence in 0.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                raw.append_acked(sequence, AckLevel::Durable, &[b"now and then"]);
                thread::sleep(Duration::from_millis(50));
            }
        });
        // However this ends, the other thread must end too, or the scope never does.
        let _over = Over(&over);
        {
            let _frozen = Frozen::new();
            prometheus.wait_firing(&["CladDurableLag"]);
        }
        prometheus.wait_over(&["CladDurableLag"]);
        let mut slow = 0;
        prometheus.wait("CladSyncSlow firing", || {
            let frozen = Frozen::new();
            thread::sleep(Duration::from_millis(1200));
            drop(frozen);
            slow += 1;
            prometheus.fires("CladSyncSlow")
        });
        assert!(slow > 1, "it must be slow for a while, not once");
        prometheus.wait_over(&["CladSyncSlow"]);
    });
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One append by somebody new; whether it was taken.
fn knock(daemon: &Daemon, level: AckLevel) -> bool {
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append(0, level, &[&[b'x'; 60_000]]);
    if level == AckLevel::None {
        raw.ping(); // nothing is answered; what comes behind it is
        return true;
    }
    match raw.answer() {
        Frame::Accepted(_) => true,
        Frame::Refused(_) => false,
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn a_disk_that_gets_full() {
    const ALERTS: [&str; 5] =
        ["CladNoSpace", "CladNotReady", "CladDiskLow", "CladRecordsRejected", "CladRecordsDropped"];
    let daemon = small().start();
    let prometheus = Prometheus::over(&daemon);
    prometheus.is_silent(&ALERTS);
    prometheus.is_silent(&["CladDiskFullSoon"]);
    // Somebody else fills the disk bit by bit.
    let path = mount_point().join("ballast");
    let mut ballast = File::create(&path).expect("made");
    let more = |ballast: &mut File| ballast.write_all(&[0xBB; 256 << 10]).and_then(|()| ballast.sync_all());
    prometheus.wait("CladDiskFullSoon firing", || {
        more(&mut ballast).expect("it fires before the disk is full");
        thread::sleep(Duration::from_millis(100));
        prometheus.fires("CladDiskFullSoon")
    });
    while more(&mut ballast).is_ok() {}
    let began = std::time::Instant::now();
    for name in ALERTS {
        while !prometheus.fires(name) {
            knock(&daemon, AckLevel::Durable);
            knock(&daemon, AckLevel::None);
            thread::sleep(Duration::from_millis(100));
            assert!(began.elapsed() < PATIENCE, "{name} never fired");
        }
    }
    prometheus.wait_firing(&ALERTS);
    // Each try to go on is none to be told of: a state that flickers would end the alert.
    for _ in 0..200 {
        let metrics = web::metrics(daemon.port("metrics"));
        assert_eq!((metrics["clad_ready"], daemon.status().ready), (0.0, false));
    }
    fs::remove_file(path).expect("removed");
    drop(ballast);
    prometheus.wait_over(&ALERTS);
    prometheus.wait_over(&["CladDiskFullSoon"]);
    assert!(knock(&daemon, AckLevel::Durable), "there is room again");
}
