//! Faults of a disk. Each wants a small file system made for it, mounted where `CLAD_E2E_DIR` says; the one that gives
//! errors makes its own, on a device that it can break.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clad_e2e::cuts::{Device, Recorder};
use clad_e2e::tool::clactl;
use clad_e2e::{Daemon, Frozen, Raw, Scratch, Setup, TEST_TIMEOUT, web};
use clad_proto::AckLevel;
use clad_proto::frame::Frame;

use crate::server::{Prometheus, given};

fn mount_point() -> PathBuf {
    given("CLAD_E2E_DIR")
}

/// A log that needs little room.
const SMALL: [(&str, &str); 3] =
    [("journal.segment_bytes", "1MiB"), ("limits.max_append_bytes", "256KiB"), ("journal.max_record_bytes", "128KiB")];

fn small() -> Setup {
    SMALL.into_iter().fold(Setup::new(), |setup, (key, value)| setup.set(key, value))
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
            let _frozen = Frozen::new(&mount_point());
            prometheus.wait_firing(&["CladDurableLag"]);
        }
        prometheus.wait_over(&["CladDurableLag"]);
        let mut slow = 0;
        prometheus.wait("CladSyncSlow firing", || {
            let frozen = Frozen::new(&mount_point());
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
    let began = Instant::now();
    for name in ALERTS {
        while !prometheus.fires(name) {
            knock(&daemon, AckLevel::Durable);
            knock(&daemon, AckLevel::None);
            thread::sleep(Duration::from_millis(100));
            assert!(began.elapsed() < TEST_TIMEOUT, "{name} never fired");
        }
    }
    prometheus.wait_firing(&ALERTS);
    // A try to recover is not shown as one: a state that flickers would end the alert.
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

/// A disk of its own below the folder of this test, on a device that can be broken.
struct Breakable {
    recorder: Recorder,
    point: PathBuf,
    attached: String,
    mounted: bool,
    _device: Device,
    _folder: Scratch,
}

impl Breakable {
    fn new() -> Self {
        let folder = Scratch::new();
        let [served, point] = ["device", "mount"].map(|name| folder.data().join(name));
        for path in [&served, &point] {
            fs::create_dir(path).expect("a folder");
        }
        let device = Device::serve(&served, &[("disk".to_owned(), 64 << 20)]).expect("FUSE");
        let file = served.join("disk").display().to_string();
        let attached = does(&["losetup", "--find", "--show", "--direct-io=on", &file]).trim().to_owned();
        let recorder = device.recorder("disk");
        let mut disk = Self { recorder, point, attached, mounted: false, _device: device, _folder: folder };
        // With a journal of its own ext4 would give itself up at the first failed commit, and need a mount to go on.
        does(&["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "nodiscard", &disk.attached]);
        does(&["mount", "-o", "errors=continue", &disk.attached, &disk.point.display().to_string()]);
        disk.mounted = true;
        disk
    }
}

impl Drop for Breakable {
    fn drop(&mut self) {
        self.recorder.fail(false);
        let point = self.point.display().to_string();
        if self.mounted {
            // Somebody's last write may be on its way.
            until_gone(&point, || ends_well(&["umount", &point]));
        }
        let _ = ends_well(&["losetup", "--detach", &self.attached]);
        // It is gone when its last user is; until then it holds the file that is served.
        let file = format!("/sys/block/{}/loop/backing_file", self.attached.trim_start_matches("/dev/"));
        until_gone(&self.attached, || !Path::new(&file).exists());
    }
}

/// Tries until it is gone; no reason to fail, but one to speak.
fn until_gone(what: &str, mut gone: impl FnMut() -> bool) {
    let began = Instant::now();
    while !gone() {
        if began.elapsed() > TEST_TIMEOUT {
            return eprintln!("left behind: {what}");
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn ends_well(words: &[&str]) -> bool {
    Command::new(words[0]).args(&words[1..]).output().is_ok_and(|ended| ended.status.success())
}

fn does(words: &[&str]) -> String {
    let done = Command::new(words[0]).args(&words[1..]).output().expect(words[0]);
    assert!(done.status.success(), "{words:?}: {done:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
#[ignore = "cargo xtask ci prometheus"]
fn a_device_that_gives_errors() {
    const ALERTS: [&str; 3] = ["CladWriteFailed", "CladJournalFailed", "CladNotReady"];
    let disk = Breakable::new();
    let setup = Setup::in_folder(&disk.point.join("log"));
    // What lies below FUSE is taken for durable on the operator's word only.
    let setup = setup.set("journal.power_loss_protected", "true");
    let daemon = SMALL.into_iter().fold(setup, |setup, (key, value)| setup.set(key, value)).start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    for sequence in 0..10 {
        raw.append_acked(sequence, AckLevel::Durable, &[b"before"]);
    }
    let prometheus = Prometheus::over(&daemon);
    prometheus.is_silent(&ALERTS);
    disk.recorder.fail(true);
    raw.append(10, AckLevel::Durable, &[b"meets a broken disk"]);
    prometheus.wait_firing(&ALERTS);
    let status = daemon.status();
    assert!(status.failed && status.failure.contains("Input/output error"), "{status:?}");
    let words = clactl(&["status", "--admin", &format!("unix://{}", daemon.setup().admin_socket().display())])
        .output()
        .expect("it runs");
    let words = String::from_utf8_lossy(&words.stdout).into_owned();
    assert!(words.contains("FAILED") && words.contains("The journal has failed"), "{words}");
    disk.recorder.fail(false);
    prometheus.wait_over(&ALERTS);
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Durable, &[b"after"]);
    let said = clactl(&["query", "-o", "cat", "--server", &daemon.address("unix")]).output().expect("it runs");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.starts_with(&"before\n".repeat(10)) && said.ends_with("after\n"), "{said}");
}
