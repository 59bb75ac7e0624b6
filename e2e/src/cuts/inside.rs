//! Namespaces of their own for what mounts, and what is left behind when it dies.
//!
//! Invariants: nothing that is mounted or set here is seen outside, where other tests run; whatever way the inner
//! process ends, its loop devices are let go. The inner process is the first of its process namespace, so that all its
//! children die with it; `unshare`, which started it, outlives it and is the last to hold the mounts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Scratch;

/// Set inside: the folder to work in.
const INSIDE: &str = "CLAD_CUTS_INSIDE";
/// The start of the name of each disk.
pub(super) const TAG: &str = "clad-cuts-";

/// The folder to work in, inside of the namespaces. Outside, the test of this name is run inside, and there is no folder.
///
/// # Panics
/// When there are no namespaces to be had, and when the test fails inside.
#[must_use]
pub fn inside(test: &str) -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(INSIDE) {
        return Some(folder.into());
    }
    assert!(crate::is_root(), "only root can mount");
    let scratch = Scratch::new();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    command.arg(std::env::current_exe().expect("the path of the test itself"));
    command.args(["--ignored", "--exact", test, "--nocapture", "--test-threads=1"]);
    let status = command.env(INSIDE, scratch.data()).status();
    let left = detach_loop_devices(scratch.data());
    let status = status.unwrap_or_else(|e| panic!("unshare: {e}"));
    assert!(status.success(), "{test} failed inside of its namespaces ({status}); loop devices let go: {left:?}");
    None
}

/// The name of a disk that lives in a folder: different from those of all other tests on the machine.
#[must_use]
pub fn disk_name(folder: &Path, disk: &str) -> String {
    let own = folder.file_name().unwrap_or_default().to_string_lossy();
    format!("{TAG}{own}-{disk}")
}

/// Detaches the loop devices whose files were disks of this folder.
fn detach_loop_devices(folder: &Path) -> Vec<String> {
    let prefix = disk_name(folder, "");
    let mut gone = Vec::new();
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if !file.contains(&prefix) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        let _ = fs::write(entry.path().join("queue/write_cache"), super::Cache::Volatile.queue_name());
        let _ = Command::new("losetup").arg("--detach").arg(format!("/dev/{name}")).status();
        gone.push(name);
    }
    gone
}
