//! A device that breaks under a file system which then takes no writes any more, until it is mounted again: btrfs becomes
//! read-only, xfs shuts itself down. (ext4, when asked to, is in `mounts::becomes_read_only`.)

use std::fs;
use std::time::Instant;

use clad_e2e::cuts::disk::Filesystem;
use clad_e2e::cuts::inside::{disk_name, inside};
use clad_e2e::cuts::{Cache, Device, Disk, Recorder};
use clad_e2e::tool::clactl_ends;
use clad_e2e::web::page;
use clad_e2e::{Raw, Setup, TEST_TIMEOUT};
use clad_proto::AckLevel::Durable;

use crate::{append, in_small, records, stored};

#[test]
#[ignore = "cargo xtask ci disk"]
fn xfs_shuts_down() {
    breaks("breaks::xfs_shuts_down", Filesystem::Xfs);
}

#[test]
#[ignore = "cargo xtask ci disk"]
fn btrfs_becomes_read_only() {
    breaks("breaks::btrfs_becomes_read_only", Filesystem::Btrfs);
}

fn breaks(test: &str, filesystem: Filesystem) {
    let Some(folder) = inside(test) else { return };
    let name = disk_name(&folder, "breaks");
    let point = folder.join("device");
    fs::create_dir_all(&point).expect("a folder");
    let device = Device::serve(&point, &[(name.clone(), filesystem.disk_bytes())]).expect("FUSE");
    let recorder = device.recorder(&name);
    let mut disk = Disk::attach(filesystem, recorder.clone(), &point.join(&name), &folder).expect("a loop device");
    disk.set_cache(Cache::Volatile).expect("a cache");
    disk.make().expect("a file system");
    disk.mount().expect("mounted");
    stays_up_and_loses_nothing(&mut disk, &recorder);
    disk.unmount().expect("unmounted");
    drop(disk);
    drop(device);
}

fn stays_up_and_loses_nothing(disk: &mut Disk, recorder: &Recorder) {
    let setup = in_small(Setup::in_folder(&disk.point().join("log")));
    // What lies below FUSE is taken for durable on the operator's word only.
    let setup = setup.set("journal.power_loss_protected", "true").set("daemon.drain_timeout", "1s");
    let mut daemon = setup.start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    append(&mut raw, Durable, 0..10);
    recorder.fail(true);
    raw.append(10, Durable, &[b"record 10"]);
    daemon.wait_until("it has failed", |status| status.failed);
    // Until the file system has given up; the device is sound again then, and it takes no writes all the same.
    let another = disk.point().join("another");
    let began = Instant::now();
    while let Ok(file) = fs::File::create(&another) {
        let _ = file.sync_all();
        assert!(began.elapsed() < TEST_TIMEOUT, "the file system goes on");
    }
    recorder.fail(false);
    assert!(fs::File::create(&another).is_err(), "it goes on");

    // It tries to recover, again and again, and that fails; it stays, gives what was acknowledged, and refuses the rest.
    daemon.wait_said("recovery failed and will be tried again");
    let status = daemon.status();
    assert!(status.failed && !status.ready, "{status:?}");
    assert_eq!(status.offsets.map(|offsets| offsets.durable), Some(10), "{status:?}");
    let pages = daemon.port("metrics");
    assert_eq!((page(pages, "/readyz").0, page(pages, "/healthz").0), (503, 200), "it serves readers");
    assert_eq!(stored(&daemon), records(0..10));
    let (mut other, _) = Raw::producer(&daemon.socket());
    other.append(0, Durable, &[b"refused"]);
    let error = other.refused().error;
    assert!(error.retryable && !error.maybe_written, "{error}");

    assert_eq!(daemon.term(), Some(1), "an end that is not clean: {}", daemon.said());
    disk.unmount().expect("unmounted");
    disk.mount().expect("mounted again");
    daemon.restart();
    let found = stored(&daemon);
    assert!(found.len() >= 10 && found[..] == records(0..found.len() as u64)[..], "{found:?}");
    append(&mut Raw::producer(&daemon.socket()).0, Durable, 0..1);
    assert_eq!(daemon.term(), Some(0));
    clactl_ends(0, &["verify", &daemon.dir().display().to_string()], b"");
}
