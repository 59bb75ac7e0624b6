//! The bare loop that a daemon is measured against: synced writes of the same bytes, one after the other.
//!
//! Invariants: the file is written full of zeroes and synced before the first measured write, so that a write
//! changes no metadata; each measured write is positional and carries its own sync (`RWF_DSYNC`); nothing else happens
//! in the loop.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use hdrhistogram::Histogram;
use rustix::io::{ReadWriteFlags, pwritev2};

use super::stats::new_histogram;
use crate::clock;
use crate::interrupt::Interrupt;

/// Length of the file: that of a segment.
const FILE_BYTES: u64 = 64 * 1024 * 1024;

/// The file, and where the next write goes.
#[derive(Debug)]
pub(super) struct Direct {
    file: File,
    at: u64,
    body: Vec<u8>,
}

/// Result of a slice of the loop.
#[derive(Debug)]
pub(super) struct Looped {
    /// Writes that were synced.
    pub(super) writes: u64,
    /// Time that they took.
    pub(super) elapsed: Duration,
    /// Of every one, nanoseconds.
    pub(super) latencies: Histogram<u64>,
}

impl Direct {
    /// Prepares a file in a folder.
    pub(super) fn prepare(folder: &Path, size: usize) -> anyhow::Result<Self> {
        let path = folder.join("baseline");
        let file = Self::zeroed(&path).with_context(|| format!("prepare {}", path.display()))?;
        Ok(Self { file, at: 0, body: vec![b'x'; size] })
    }

    fn zeroed(path: &Path) -> io::Result<File> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        // Nobody else needs its name, and then nobody needs to remove it.
        std::fs::remove_file(path)?;
        let zeroes = vec![0; 1 << 20];
        for _ in 0..FILE_BYTES / zeroes.len() as u64 {
            file.write_all(&zeroes)?;
        }
        file.sync_all()?;
        Ok(file)
    }

    /// Writes for so long.
    pub(super) fn slice(&mut self, duration: Duration, interrupt: &Interrupt) -> anyhow::Result<Looped> {
        let mut looped = Looped { writes: 0, elapsed: Duration::ZERO, latencies: new_histogram() };
        let start = clock::now();
        let mut before = start;
        while looped.elapsed < duration && !interrupt.came() {
            self.write().context("a synced write of the bare loop")?;
            let now = clock::now();
            let nanos = u64::try_from((now - before).as_nanos()).unwrap_or(u64::MAX);
            // It grows as it must; nothing is too long for it.
            let _ = looped.latencies.record(nanos.max(1));
            looped.writes += 1;
            looped.elapsed = now - start;
            before = now;
        }
        Ok(looped)
    }

    fn write(&mut self) -> io::Result<()> {
        if self.at + self.body.len() as u64 > FILE_BYTES {
            self.at = 0;
        }
        let written = pwritev2(&self.file, &[IoSlice::new(&self.body)], self.at, ReadWriteFlags::DSYNC)?;
        if written != self.body.len() {
            return Err(io::Error::new(io::ErrorKind::WriteZero, "a short write"));
        }
        self.at += written as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_slice_counts_every_write() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut direct = Direct::prepare(folder.path(), 128).expect("space for the file");
        let looped = direct.slice(Duration::from_millis(30), &Interrupt::default()).expect("it writes");
        assert!(looped.writes > 0 && looped.elapsed >= Duration::from_millis(30));
        assert_eq!((looped.latencies.len(), direct.at), (looped.writes, looped.writes * 128));
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing is left");
    }
}
