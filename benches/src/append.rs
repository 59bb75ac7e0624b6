//! Space × method for one writer: what it costs to make 4 KiB durable at the end of what was written so far.
//!
//! Invariants: each round gives each cell a new file whose space is made, and synced with its size, outside of what is
//! timed; cells take turns, so that a slow moment of the disk is not one cell's; what was written is read back. A method
//! that does not survive a power cut on this space and disk is marked, by the same rules as the policy `sync_file_range`.

use std::sync::Arc;

use anyhow::{Context, Result};
use clad_journal::io::{Access, Durability, File, IoBuf, OsStorage, Storage};
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;
use crate::pattern::Pattern;
use crate::place::Place;
use crate::results::Results;
use crate::stats::Latency;
use crate::writers::{self, Limit};

/// Bytes of each operation.
const BLOCK: usize = 4096;
const NAME: &str = "file";

/// What is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Space {
    /// Behind the end of the file.
    Append,
    /// A size without blocks.
    Ftruncate,
    /// Blocks that are reserved and not written.
    Fallocate,
    /// Blocks that hold zeroes.
    ZeroWritten,
}

/// How it is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// A write, `fdatasync`.
    Fdatasync,
    /// `RWF_DSYNC`.
    Dsync,
    /// `RWF_DSYNC` around the page cache.
    DirectDsync,
    /// A write, `sync_file_range` that waits.
    SyncFileRange,
}

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// On what.
    pub space: Space,
    /// How.
    pub method: Method,
}

impl Space {
    const ALL: [Self; 4] = [Self::Append, Self::Ftruncate, Self::Fallocate, Self::ZeroWritten];

    /// For tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Ftruncate => "ftruncate",
            Self::Fallocate => "fallocate",
            Self::ZeroWritten => "zero-written",
        }
    }
}

impl Method {
    const ALL: [Self; 4] = [Self::Fdatasync, Self::Dsync, Self::DirectDsync, Self::SyncFileRange];

    /// For tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fdatasync => "fdatasync",
            Self::Dsync => "RWF_DSYNC",
            Self::DirectDsync => "O_DIRECT + RWF_DSYNC",
            Self::SyncFileRange => "sync_file_range",
        }
    }
}

impl Cell {
    /// Every space with every method.
    pub fn all() -> impl Iterator<Item = Self> {
        Space::ALL.into_iter().flat_map(|space| Method::ALL.into_iter().map(move |method| Self { space, method }))
    }

    /// Whether what it calls done survives a power cut here. `sync_file_range` writes no metadata and flushes no cache: it
    /// is safe on written space alone, on a disk without a volatile cache.
    #[must_use]
    pub fn is_safe(self, range_sync_is_safe: bool) -> bool {
        self.method != Method::SyncFileRange || self.space == Space::ZeroWritten && range_sync_is_safe
    }

    /// One run.
    ///
    /// # Errors
    /// It cannot be set up, or what is read back is not what was written.
    fn run(self, place: &Place, plan: &Plan) -> Result<Outcome> {
        let storage = OsStorage::open(place.path(), place.substrate().block_size, true)?;
        let made =
            self.prepare(&storage, plan.file).with_context(|| format!("prepare a file by {}", self.space.name()));
        let done = made.and_then(|file| self.measure(file, plan));
        storage.remove(NAME).context("remove the file")?;
        done
    }

    /// Makes the space, durably, with its size.
    fn prepare(self, storage: &OsStorage, len: u64) -> Result<Arc<dyn File>> {
        let file = storage.create(NAME, Access::WriteCached)?;
        match self.space {
            Space::Append => {}
            Space::Ftruncate => file.set_len(len)?,
            Space::Fallocate => file.allocate(len)?,
            Space::ZeroWritten => crate::durable::fill_with_zeroes(file.as_ref(), len)?,
        }
        file.sync_all()?;
        storage.sync_dir("")?;
        drop(file);
        let access = if self.method == Method::DirectDsync { Access::WriteDirect } else { Access::WriteCached };
        Ok(storage.open(NAME, access)?)
    }

    fn measure(self, file: Arc<dyn File>, plan: &Plan) -> Result<Outcome> {
        let limit = Limit { ops: plan.limit.ops.min(plan.file / BLOCK as u64), ..plan.limit };
        let pattern = Pattern::new(0, BLOCK);
        let done = writers::run(1, limit, |_| {
            let (file, pattern) = (file.clone(), pattern.clone());
            let mut buf = Some(IoBuf::zeroed(BLOCK));
            buf.iter_mut().for_each(|buf| pattern.fill(buf, 0));
            Ok(move |op| {
                let mut own = buf.take().unwrap_or_else(|| unreachable!("it is given back below"));
                pattern.tag(&mut own, op);
                let (back, result) = self.operation(file.as_ref(), own, op * BLOCK as u64);
                buf = Some(back);
                result
            })
        })?;
        let mut verified = 0;
        let mut buf = IoBuf::with_capacity(BLOCK);
        for op in 0..done.ops() {
            let (back, read) = file.read_at(buf, op * BLOCK as u64, BLOCK);
            read?;
            anyhow::ensure!(pattern.holds(&back, op), "operation {op} is not where it was written");
            (buf, verified) = (back, verified + 1);
        }
        Ok(Outcome {
            work: "append".to_owned(),
            by: format!("{}, {}", self.space.name(), self.method.name()),
            writers: 1,
            size: BLOCK,
            ops: done.ops(),
            failed: done.failed,
            verified,
            seconds: done.elapsed.as_secs_f64(),
            latency_us: Latency::of(&done.latencies),
            notes: done.errors,
        })
    }

    fn operation(self, file: &dyn File, buf: IoBuf, at: u64) -> (IoBuf, std::io::Result<()>) {
        let len = buf.len() as u64;
        match self.method {
            Method::Dsync | Method::DirectDsync => file.write_at(buf, at, Durability::Synced),
            Method::Fdatasync => {
                let (buf, written) = file.write_at(buf, at, Durability::Written);
                (buf, written.and_then(|()| file.sync_data()))
            }
            Method::SyncFileRange => {
                let (buf, written) = file.write_at(buf, at, Durability::Written);
                (buf, written.and_then(|()| file.sync_range(at, len)))
            }
        }
    }
}

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How often each cell has its turn.
    pub rounds: u32,
    /// Of each run.
    pub limit: Limit,
    /// Bytes of prepared space; a run that has used it up is over.
    pub file: u64,
}

impl Plan {
    /// Every cell in turn, so many rounds.
    ///
    /// # Errors
    /// A cell cannot be run, or something in it failed.
    pub fn run(&self, place: &Place) -> Result<Results> {
        let mut results = Results::new("append", place, self.rounds, self.limit);
        let cells: Vec<Cell> = Cell::all().collect();
        let mut outcomes = vec![Vec::new(); cells.len()];
        for _ in 0..self.rounds {
            for (cell, outcomes) in cells.iter().zip(&mut outcomes) {
                outcomes.push(cell.run(place, self)?.checked()?);
            }
        }
        let safe = place.ground().range_sync_is_safe;
        for (cell, outcomes) in cells.iter().zip(outcomes) {
            let names = [("space", cell.space.name()), ("method", cell.method.name())];
            results.add(&names, &outcomes).safe = cell.is_safe(safe);
        }
        Ok(results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_disk_may_lose_is_marked() {
        let safe = |space, method, disk| Cell { space, method }.is_safe(disk);
        assert_eq!(Cell::all().count(), 16);
        for space in Space::ALL {
            assert!(safe(space, Method::Fdatasync, false) && safe(space, Method::Dsync, false));
            assert!(!safe(space, Method::SyncFileRange, false), "the cache of the disk is volatile");
        }
        assert!(safe(Space::ZeroWritten, Method::SyncFileRange, true));
        assert!(!safe(Space::Fallocate, Method::SyncFileRange, true), "metadata would be missing");
    }
}
