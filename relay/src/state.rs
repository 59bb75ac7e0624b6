//! What a relay must know beside the log: that it has begun, in which log, and the epoch of its last start.
//!
//! Invariants: it has no place in the source, so it cannot differ from the log about that. An epoch is on the disk before it
//! is used. One process at a time has the state of a name.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// The folder.
pub(crate) struct State(PathBuf);

/// The state of one relay.
pub(crate) struct RelayState {
    path: PathBuf,
    known: Known,
    _lock: File,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    epoch: u32,
    /// The log that has records of this relay.
    log: Option<String>,
}

impl State {
    /// The folder; `file` is for the message.
    pub(crate) fn open(folder: &Path, file: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| {
            format!("no folder {}: `--state FOLDER` names another one for {}", folder.display(), file.display())
        })?;
        Ok(Self(folder.to_owned()))
    }

    /// A file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The state of a relay, which nobody else has now.
    pub(crate) fn of(&self, name: &str) -> Result<RelayState> {
        let path = self.0.join(format!("{name}.json"));
        let lock = lock_file(&self.0.join(format!("{name}.lock"))).context("no lock")?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("another process runs the relay {name}"))?;
        let known = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("{} is broken", path.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Known::default(),
            Err(error) => return Err(error).with_context(|| format!("{} cannot be read", path.display())),
        };
        Ok(RelayState { path, known, _lock: lock })
    }

    /// The relay has not begun.
    pub(crate) fn forget(&self, name: &str) -> Result<()> {
        let mut state = self.of(name)?;
        state.known.log = None;
        state.write()
    }
}

impl RelayState {
    /// The epoch of this start: higher than any before, also where the state is new.
    pub(crate) fn next_epoch(&mut self) -> Result<u32> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let next = self.known.epoch.checked_add(1).context("every epoch was used")?;
        self.known.epoch = next.max(u32::try_from(now).unwrap_or_default());
        self.write()?;
        Ok(self.known.epoch)
    }

    /// The log that has records of it.
    pub(crate) fn log(&self) -> Option<&str> {
        self.known.log.as_deref()
    }

    /// A log has records of it.
    pub(crate) fn has_begun(&mut self, log: &str) -> Result<()> {
        if self.known.log.as_deref() == Some(log) {
            return Ok(());
        }
        self.known.log = Some(log.to_owned());
        self.write()
    }

    /// Renamed, so that the file is never half of one; then its folder is synced.
    fn write(&self) -> Result<()> {
        let whole = self.path.with_extension("new");
        let write = || {
            let mut file = File::create(&whole)?;
            file.write_all(&serde_json::to_vec(&self.known)?)?;
            file.sync_all()?;
            fs::rename(&whole, &self.path)?;
            File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
        };
        write().with_context(|| format!("{} cannot be written", self.path.display()))
    }
}

/// A lock may be another user's: root lets a relay begin again.
fn lock_file(path: &Path) -> std::io::Result<File> {
    match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => File::create(path),
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_rise_over_starts_and_one_process_has_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = State::open(folder.path(), Path::new("f")).expect("a state");
        let mut one = state.of("a").expect("free");
        let first = one.next_epoch().expect("written");
        assert!(state.of("a").is_err(), "one at a time");
        one.has_begun("log").expect("written");
        drop(one);
        let mut again = state.of("a").expect("free");
        assert_eq!(again.log(), Some("log"));
        assert!(again.next_epoch().expect("written") > first);
        drop(again);
        state.forget("a").expect("written");
        assert_eq!(state.of("a").expect("free").log(), None);
        assert_eq!(state.of("b").expect("another").log(), None);
    }
}
