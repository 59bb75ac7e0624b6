//! Writers that want each of their writes durable: one contender, one run, one [`Outcome`].
//!
//! Invariants: every contender is given the same: so many threads, each with one operation under way, the same
//! bytes ([`Pattern`]), space of the same length that was written with zeroes and synced before (but where its name says
//! append). What it wrote is read back from the file (or, of a journal, through its reader), and compared.
//!
//! | contender | one operation |
//! |---|---|
//! | `bare_dsync` | `pwritev2` with `RWF_DSYNC`, through the page cache |
//! | `bare_direct` | the same around it |
//! | `append_fdatasync` | an append to a file that grows, `fdatasync` |
//! | `strict` | `pwrite` and `fdatasync`, each writer on a file of its own: no sync pays for another writer's data |
//! | `bare_group_commit` | what comes while a write is under way goes into the next: a program of 100 lines, and nothing else |
//! | `write+sync` | the journal's storage: `LatchedFile::write_at`, then `sync`; all writers on one file |
//! | `write_at_sync` | the journal's storage: `LatchedFile::write_at_sync`, direct |
//! | `sync_file_range` | the journal's storage: a write through the page cache, and its range sync. **No flush** |
//! | `none` | the journal's storage: `LatchedFile::write_at` through the page cache, nothing synced |
//! | `group_commit` | the journal: an append under `group_commit`, until it is `durable` |
//! | `journal_range` | the journal: an append under `sync_file_range`, with `power_loss_protected = true` set by the bench |

mod bare;
mod group;
mod journal;
mod storage;

use std::path::Path;

use anyhow::Result;
use clad_journal::io::EngineWish;
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;
use crate::pattern::Pattern;
use crate::stats::Latency;
use crate::writers::{Done, Limit};

pub use bare::{fill_with_zeroes, zero_written};

/// Bytes of the file that is written over and over.
pub const FILE: u64 = 64 << 20;

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Contender {
    /// `RWF_DSYNC`.
    #[value(name = "bare_dsync")]
    BareDsync,
    /// `O_DIRECT` and `RWF_DSYNC`.
    #[value(name = "bare_direct")]
    BareDirect,
    /// Append and `fdatasync`.
    #[value(name = "append_fdatasync")]
    AppendFdatasync,
    /// A file of its own for each.
    #[value(name = "strict")]
    Strict,
    /// Group commit and nothing else.
    #[value(name = "bare_group_commit")]
    BareGroupCommit,
    /// The storage operations `write_at` and `sync`.
    #[value(name = "write+sync")]
    #[serde(rename = "write+sync")]
    WriteSync,
    /// The storage operation `write_at_sync`.
    #[value(name = "write_at_sync")]
    WriteAtSync,
    /// The storage operations `write_at` and `sync_range`.
    #[value(name = "sync_file_range")]
    SyncFileRange,
    /// The storage operation `write_at`.
    #[value(name = "none")]
    None,
    /// The journal.
    #[value(name = "group_commit")]
    GroupCommit,
    /// The journal without flushes.
    #[value(name = "journal_range")]
    JournalRange,
}

impl Contender {
    /// Its name, as on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BareDsync => "bare_dsync",
            Self::BareDirect => "bare_direct",
            Self::AppendFdatasync => "append_fdatasync",
            Self::Strict => "strict",
            Self::BareGroupCommit => "bare_group_commit",
            Self::WriteSync => "write+sync",
            Self::WriteAtSync => "write_at_sync",
            Self::SyncFileRange => "sync_file_range",
            Self::None => "none",
            Self::GroupCommit => "group_commit",
            Self::JournalRange => "journal_range",
        }
    }

    /// Whether a flush reaches the disk before an operation ends.
    #[must_use]
    pub fn flushes(self) -> bool {
        !matches!(self, Self::SyncFileRange | Self::JournalRange | Self::None)
    }

    /// Whether the engine is of the journal's making, so that there are two of them.
    #[must_use]
    pub fn has_engines(self) -> bool {
        matches!(
            self,
            Self::WriteSync
                | Self::WriteAtSync
                | Self::SyncFileRange
                | Self::None
                | Self::GroupCommit
                | Self::JournalRange
        )
    }
}

/// What issues the writes of the journal's storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Threads that block.
    #[default]
    Blocking,
    /// A ring.
    Uring,
}

impl Engine {
    /// Its name, as on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Uring => "uring",
        }
    }

    fn wish(self) -> EngineWish {
        match self {
            Self::Blocking => EngineWish::Blocking,
            Self::Uring => EngineWish::Uring,
        }
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Who.
    pub by: Contender,
    /// By what, where there is a choice.
    pub engine: Engine,
    /// How many at once.
    pub writers: u32,
    /// Bytes of each operation; whole blocks, but for contenders that need none.
    pub size: usize,
    /// For how long.
    pub limit: Limit,
    /// Bytes of the file that is written over and over, or of a segment: [`FILE`], less in tests.
    pub file: u64,
}

impl Work {
    /// Does it in a folder that nobody else uses.
    ///
    /// # Errors
    /// It cannot be set up; what fails later is counted in the outcome.
    pub fn run(&self, dir: &Path) -> Result<Outcome> {
        match self.by {
            Contender::BareDsync | Contender::BareDirect | Contender::AppendFdatasync | Contender::Strict => {
                bare::run(self, dir)
            }
            Contender::BareGroupCommit => group::run(self, dir),
            Contender::WriteSync | Contender::WriteAtSync | Contender::SyncFileRange | Contender::None => {
                storage::run(self, dir)
            }
            Contender::GroupCommit | Contender::JournalRange => journal::run(self, dir),
        }
    }

    fn outcome(&self, done: &Done, verified: u64, notes: Vec<String>) -> Outcome {
        let by = match self.by.has_engines() {
            true => format!("{} ({})", self.by.name(), self.engine.name()),
            false => self.by.name().to_owned(),
        };
        Outcome {
            work: "durable".to_owned(),
            by,
            writers: self.writers,
            size: self.size,
            ops: done.ops(),
            failed: done.failed,
            verified,
            seconds: done.elapsed.as_secs_f64(),
            latency_us: Latency::of(&done.latencies),
            notes: [done.errors.clone(), notes].concat(),
        }
    }
}

/// Which place of the file an operation goes to: each writer has places of its own, one beside the other.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    writers: u64,
    size: u64,
    each: u64,
}

impl Places {
    /// For so many writers of so many bytes, on a file of so many.
    #[must_use]
    pub fn new(file: u64, writers: u32, size: usize) -> Self {
        let (writers, size) = (u64::from(writers), size as u64);
        Self { writers, size, each: (file / size / writers).max(1) }
    }

    /// Bytes of the file.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.each * self.writers * self.size
    }

    /// Whether it is no file at all: never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where an operation of a writer goes.
    #[must_use]
    pub fn of(&self, writer: u32, op: u64) -> u64 {
        (op % self.each * self.writers + u64::from(writer)) * self.size
    }

    /// Reads the last operation of each place and answers how many are as they should be, or which is not.
    ///
    /// # Errors
    /// The first place that holds anything else.
    pub fn verify(&self, each: &[u64], mut read: impl FnMut(u64, &mut [u8]) -> std::io::Result<()>) -> Result<u64> {
        let mut found = 0;
        let mut block = vec![0; self.size as usize];
        for (writer, ops) in each.iter().enumerate() {
            let pattern = Pattern::new(writer as u32, block.len());
            for op in ops.saturating_sub(self.each)..*ops {
                let at = self.of(writer as u32, op);
                read(at, &mut block)?;
                anyhow::ensure!(
                    pattern.holds(&block, op),
                    "operation {op} of writer {writer} is not at {at}, where it was written"
                );
                found += 1;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_writers_share_a_place() {
        let places = Places::new(FILE, 8, 4096);
        let mut seen = std::collections::BTreeSet::new();
        for writer in 0..8 {
            for op in 0..places.each {
                let at = places.of(writer, op);
                assert!(at.is_multiple_of(4096) && at < places.len() && seen.insert(at), "{writer} {op}");
            }
            assert_eq!(places.of(writer, places.each), places.of(writer, 0), "round and round");
        }
        assert_eq!((places.len(), seen.len() as u64 * 4096), (FILE, FILE));
    }

    #[test]
    fn a_place_that_holds_something_else_is_found() {
        let places = Places::new(FILE, 2, 4096);
        let read = |lost: u64| {
            move |at: u64, block: &mut [u8]| {
                let (writer, op) = ((at / 4096 % 2) as u32, at / 8192);
                Pattern::new(writer, 4096).fill(block, if at == lost { op + 1 } else { op });
                Ok(())
            }
        };
        assert_eq!(places.verify(&[10, 7], read(u64::MAX)).expect("all as they should be"), 17);
        let error = places.verify(&[10, 7], read(8192 * 3 + 4096)).expect_err("one is not");
        assert!(error.to_string().contains("operation 3 of writer 1"), "{error}");
    }
}
