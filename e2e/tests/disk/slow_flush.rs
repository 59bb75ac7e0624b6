//! A device that does not flush for a long time, under a real file system and both engines.
//!
//! The device is a recording disk (`clad_e2e::cuts`) that answers no flush until it is released. Its loop device takes one
//! flush or write after the other, so that here the writes behind a flush wait too: what needs the device gets no answer,
//! and everything that does not need it goes on. With `CLAD_FLUSH_SECONDS` the flush takes that long at least.

use std::path::Path;
use std::time::{Duration, Instant};

use clad_e2e::admin::Admin;
use clad_e2e::cuts::disk::Filesystem;
use clad_e2e::cuts::inside::{disk_name, inside};
use clad_e2e::cuts::{Cache, Device, Disk};
use clad_e2e::manager::Manager;
use clad_e2e::raw::payload;
use clad_e2e::tool::clactl_ends;
use clad_e2e::web::page;
use clad_e2e::{Raw, Setup, TEST_TIMEOUT};
use clad_proto::AckLevel::{Durable, Received, Written};
use clad_proto::ErrorCode;
use clad_proto::frame::Frame;
use nix::sys::signal::Signal;

use crate::stored;

const BUDGET_BYTES: usize = 1 << 20;
const BODY_BYTES: usize = 60 << 10;
/// What the watchdog expects to hear in.
const WATCHDOG: Duration = Duration::from_millis(500);

#[test]
#[ignore = "cargo xtask ci disk"]
fn is_waited_for() {
    let Some(folder) = inside("slow_flush::is_waited_for") else { return };
    let name = disk_name(&folder, "slow");
    let point = folder.join("device");
    std::fs::create_dir_all(&point).expect("a folder");
    let device = Device::serve(&point, &[(name.clone(), Filesystem::Ext4.disk_bytes())]).expect("FUSE");
    let recorder = device.recorder(&name);
    let mut disk = Disk::attach(Filesystem::Ext4, recorder, &point.join(&name), &folder).expect("a loop device");
    disk.set_cache(Cache::Volatile).expect("a cache");
    for engine in ["blocking", "uring"] {
        disk.make().expect("a file system");
        disk.mount().expect("mounted");
        waits(&disk, engine);
        disk.unmount().expect("unmounted");
    }
    drop(disk);
    drop(device);
}

fn log(dir: &Path, engine: &str) -> Setup {
    Setup::in_folder(dir)
        .set("journal.io_engine", engine)
        .set("journal.segment_bytes", "2MiB")
        .set("limits.max_inflight_bytes", &BUDGET_BYTES.to_string())
        .set("limits.max_connection_inflight_bytes", &BUDGET_BYTES.to_string())
        .set("limits.max_append_bytes", "128KiB")
        .set("journal.max_record_bytes", "128KiB")
}

/// Takes `received` appends until one is refused: how many were taken.
fn fill(raw: &mut Raw, first: u64) -> u64 {
    let body = payload(&[&[b'f'; BODY_BYTES]]);
    for taken in 0..2 * (BUDGET_BYTES / BODY_BYTES) as u64 {
        raw.append_payload(first + taken, Received, false, &body);
        match raw.answer() {
            Frame::Accepted(_) => {}
            Frame::Refused(refused) => {
                let error = refused.error;
                let refusal = (error.code, error.retryable, error.maybe_written);
                assert_eq!(refusal, (ErrorCode::Busy, true, false), "{error:?}");
                return taken;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("more than twice the budget was taken");
}

fn waits(disk: &Disk, engine: &str) {
    let setup = log(&disk.point().join("log"), engine);
    let manager = Manager::new();
    let process = manager.start(setup.command().env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string()));
    manager.recv_until("READY=1");
    let admin = Admin::at(&setup.admin_socket());
    let status = admin.status().expect("a status");
    assert_eq!(status.io_engine, engine, "{}", process.said());
    let pages = status.listeners["metrics"].parse().expect("an address");
    let (mut raw, welcome) = Raw::producer(&setup.socket());
    raw.append_acked(0, Durable, &[b"before"]);

    let recorder = disk.recorder();
    let (held, began) = (recorder.hold_flushes(), Instant::now());
    raw.append(1, Durable, &[b"needs the flush"]);
    let waiting = raw.accepted_now();
    wait(|| recorder.held() > 0, "the device is asked to flush");
    // What needs no device is answered, while the flush is held.
    for sequence in 2..=101 {
        raw.append_acked(sequence, Received, &[b"received"]);
    }
    raw.append(102, Written, &[b"written"]);
    raw.accepted_now();
    let taken = fill(&mut raw, 103);
    assert!(taken * (BODY_BYTES as u64) < BUDGET_BYTES as u64 && taken > 10, "{taken} were taken");
    let barks = manager.barks_until(|since| {
        let (code, health) = page(pages, "/healthz");
        assert_eq!(code, 200, "{health}");
        since >= 4 * WATCHDOG && health.starts_with("degraded: ") && health.contains("waiting for the disk")
    });
    assert!(barks >= 4, "the watchdog was notified {barks} times");
    let seconds = std::env::var("CLAD_FLUSH_SECONDS").map_or(0, |text| text.parse().expect("seconds"));
    let long = Duration::from_secs(seconds).saturating_sub(began.elapsed());
    let barks = manager.barks_within(long);
    assert!(
        barks as u32 + 1 >= long.as_millis() as u32 / WATCHDOG.as_millis() as u32,
        "notified {barks} times in {long:?}"
    );
    let offsets = admin.status().expect("a status").offsets.expect("offsets");
    assert_eq!((offsets.durable, offsets.received), (1, 103 + taken), "nothing is durable that was not flushed");

    drop(held);
    raw.wait_watermark(Durable, waiting.epoch, waiting.first_offset);
    raw.append_acked(103 + taken, Durable, &[b"sent again"]);
    // A refusal is shown for a minute more.
    wait(|| !page(pages, "/healthz").1.contains("waiting for the disk"), "it is well again");

    // Once more, and the daemon dies while the device flushes: what was durable before is there.
    let held = recorder.hold_flushes();
    raw.append(104 + taken, Durable, &[b"never answered"]);
    raw.accepted_now();
    wait(|| recorder.held() > 0, "the device is asked to flush");
    process.send(Signal::SIGKILL);
    drop(held);
    process.wait_end(TEST_TIMEOUT).expect("it is gone once the device has answered");
    let mut daemon = setup.start();
    let found = stored(&daemon);
    assert!(found.len() as u64 >= 104 + taken, "{} of {}", found.len(), 104 + taken);
    assert_eq!((found[0].as_str(), found[102].as_str()), ("before", "written"));
    let (again, welcome_again) = Raw::resume(&daemon.socket(), welcome.producer_id);
    assert_eq!(welcome_again.last.map(|last| last.sequence + 1), Some(found.len() as u64));
    drop(again);
    assert_eq!(daemon.term(), Some(0));
    clactl_ends(0, &["verify", &daemon.dir().display().to_string()], b"");
}

fn wait(mut holds: impl FnMut() -> bool, what: &str) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TEST_TIMEOUT, "it never came: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
