//! Folders that are gone when their test is over.
//!
//! Invariants: data lies on the disk that the build lies on, as `/tmp` may be in memory, where nothing is durable;
//! sockets lie in `/tmp`, as their paths are short by nature and that of a checkout need not be.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::binaries::profile_folder;

/// A folder for data and one for sockets.
#[derive(Debug)]
pub struct Scratch {
    data: TempDir,
    sockets: TempDir,
}

impl Scratch {
    /// New ones.
    ///
    /// # Panics
    /// When they cannot be made.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it makes folders: no value is a default")]
    pub fn new() -> Self {
        let parent = match std::env::var_os("CLAD_E2E_DIR") {
            Some(folder) => PathBuf::from(folder),
            None => profile_folder().parent().expect("the target folder").join("tmp"),
        };
        std::fs::create_dir_all(&parent).expect("a folder for data");
        let data = tempfile::Builder::new().prefix("e2e-").tempdir_in(&parent).expect("a folder for data");
        let sockets = tempfile::Builder::new().prefix("e2e-").tempdir().expect("a folder for sockets");
        Self { data, sockets }
    }

    /// Where data goes.
    #[must_use]
    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// Where sockets go.
    #[must_use]
    pub fn sockets(&self) -> &Path {
        self.sockets.path()
    }
}
