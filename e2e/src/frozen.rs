//! A file system that is frozen, as a snapshot or a backup does it: every write to it waits.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Thaws it when dropped.
#[derive(Debug)]
pub struct Frozen(PathBuf);

impl Frozen {
    /// Freezes what is mounted there, as root.
    ///
    /// # Panics
    /// When it cannot be frozen.
    #[must_use]
    pub fn new(mount_point: &Path) -> Self {
        fsfreeze("--freeze", mount_point);
        Self(mount_point.to_owned())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        fsfreeze("--unfreeze", &self.0);
    }
}

fn fsfreeze(flag: &str, mount_point: &Path) {
    let done = Command::new("fsfreeze").arg(flag).arg(mount_point).output().expect("fsfreeze runs");
    assert!(done.status.success(), "{done:?}");
}
