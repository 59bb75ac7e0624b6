//! Reads and writes of 4 KiB over a large file, in twelve ways, and each beside fio where it has the same.
//!
//! read, write, 80 % read and 20 % write × sequential, random × one after the other, many under way (a ring of depth 32; a
//! pool of 32 threads); through the page cache, and again around it.
//!
//! Invariants: each block says its number and how often it was written; what is read must be what was written last,
//! by its tag within the time and byte by byte after it; the file is synced between two runs, and its pages are dropped,
//! so that no run pays for another's.
//!
//! Each of those that are under way has blocks of its own (every 32nd), so that the last writer of a block is known.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use clad_journal::io::IoBuf;
use rustix::fs::OFlags;
use tokio_uring::buf::BoundedBuf;
use tokio_uring::buf::Slice;

use crate::clock;
use crate::fio;
use crate::outcome::Outcome;
use crate::pattern::Pattern;
use crate::place::Place;
use crate::results::{self, Results};
use crate::stats::{self, Latency};
use crate::writers::{self, Done, Limit};

/// Bytes of an operation.
pub const BLOCK: usize = 4096;
/// Operations under way at once, but for those that are one after the other.
pub const DEPTH: u32 = 32;
/// The file, in the folder of the run.
const NAME: &str = "cells";

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mix {
    Read,
    Write,
    /// Four of five are reads.
    Mixed,
}

/// By what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One thread, one after the other.
    Sync,
    /// One thread with a ring.
    Ring,
    /// Threads.
    Pool,
}

/// One way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    mix: Mix,
    random: bool,
    way: Way,
    direct: bool,
}

impl Cell {
    /// All of them: twelve through the page cache (a ring and a pool are two ways to have many under way) and twelve around it.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for direct in [false, true] {
            for mix in [Mix::Read, Mix::Write, Mix::Mixed] {
                for random in [false, true] {
                    all.extend([Way::Sync, Way::Ring, Way::Pool].map(|way| Self { mix, random, way, direct }));
                }
            }
        }
        all
    }

    fn depth(self) -> u32 {
        if self.way == Way::Sync { 1 } else { DEPTH }
    }

    fn mix_name(self) -> &'static str {
        match self.mix {
            Mix::Read => "read",
            Mix::Write => "write",
            Mix::Mixed => "80 % read",
        }
    }

    fn order_name(self) -> &'static str {
        if self.random { "random" } else { "sequential" }
    }

    fn way_name(self) -> &'static str {
        match self.way {
            Way::Sync => "sync",
            Way::Ring => "io_uring, depth 32",
            Way::Pool => "32 threads",
        }
    }

    fn cache_name(self) -> &'static str {
        if self.direct { "direct" } else { "buffered" }
    }

    /// The job of fio that does the same, where there is one.
    fn job(self, plan: &Plan) -> Option<fio::Job> {
        let engine = match self.way {
            Way::Sync => "sync",
            Way::Ring => "io_uring",
            Way::Pool => return None,
        };
        let rw = match (self.mix, self.random) {
            (Mix::Read, false) => "read",
            (Mix::Read, true) => "randread",
            (Mix::Write, false) => "write",
            (Mix::Write, true) => "randwrite",
            (Mix::Mixed, false) => "rw",
            (Mix::Mixed, true) => "randrw",
        };
        let (depth, block, seconds) = (self.depth(), BLOCK, plan.limit.time.as_secs_f64());
        let (direct, size) = (self.direct, plan.file);
        Some(fio::Job { rw, engine, depth, block, direct, dsync: false, new_file: false, size, seconds })
    }
}

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How often each has its turn.
    pub rounds: u32,
    /// Of each run.
    pub limit: Limit,
    /// Bytes of the file.
    pub file: u64,
    /// Whether fio stands beside, where it is installed.
    pub fio: bool,
}

impl Plan {
    /// Runs all cells.
    ///
    /// # Errors
    /// A run failed, or a block is not what was written last.
    pub fn run(&self, place: &Place) -> Result<Results> {
        let mut results = Results::new("cells", place, self.rounds, self.limit);
        let disk = Disk::make(&place.path().join(NAME), self.file).context("make the file")?;
        let fio_program = fio::program().filter(|_| self.fio);
        for cell in Cell::all() {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..self.rounds {
                ours.push(disk.run(cell, self.limit)?.checked()?);
                if let (Some(program), Some(job)) = (&fio_program, cell.job(self)) {
                    theirs.push(fio::run(program, &job, &place.path().join("fio"))?);
                }
            }
            let names = |by| {
                let way = ("way", cell.way_name());
                [("do", cell.mix_name()), ("order", cell.order_name()), way, ("cache", cell.cache_name()), ("by", by)]
            };
            let row = results.add(&names("clad-benches"), &ours);
            if !theirs.is_empty() {
                row.beside.insert("fio".to_owned(), results::ratio(&ours, &theirs));
                results.add(&names("fio"), &theirs);
            }
        }
        Ok(results)
    }
}

/// The file, and how often each of its blocks was written.
struct Disk {
    path: std::path::PathBuf,
    written: Arc<Vec<AtomicU32>>,
    pattern: Pattern,
}

/// What a block says: its number, and how often it was written.
fn tag(block: u64, times: u32) -> u64 {
    block << 32 | u64::from(times)
}

impl Disk {
    fn make(path: &Path, len: u64) -> Result<Self> {
        let blocks = len / BLOCK as u64 / u64::from(DEPTH) * u64::from(DEPTH);
        ensure!(blocks > 0, "a file of {len} bytes has no block for each of {DEPTH}");
        let (file, pattern) = (File::create_new(path)?, Pattern::new(0, BLOCK));
        let mut piece = vec![0; BLOCK * DEPTH as usize];
        for first in (0..blocks).step_by(DEPTH as usize) {
            for (number, block) in piece.chunks_mut(BLOCK).enumerate() {
                pattern.fill(block, tag(first + number as u64, 0));
            }
            file.write_all_at(&piece, first * BLOCK as u64)?;
        }
        file.sync_all()?;
        let written = Arc::new((0..blocks).map(|_| AtomicU32::new(0)).collect());
        Ok(Self { path: path.to_owned(), written, pattern })
    }

    fn open(&self, direct: bool) -> io::Result<File> {
        let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
        OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(&self.path)
    }

    /// Everything on the disk, and nothing in memory.
    fn settle(&self) -> io::Result<()> {
        let file = self.open(false)?;
        file.sync_all()?;
        Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
    }

    fn run(&self, cell: Cell, limit: Limit) -> Result<Outcome> {
        self.settle()?;
        let before: Vec<u32> = self.written.iter().map(|times| times.load(Ordering::Relaxed)).collect();
        let done = match cell.way {
            Way::Sync | Way::Pool => self.threads(cell, limit)?,
            Way::Ring => self.ring(cell, limit)?,
        };
        let verified = self.verify(&before, cell.mix)?;
        Ok(Outcome {
            work: "cells".to_owned(),
            by: "clad-benches".to_owned(),
            writers: cell.depth(),
            size: BLOCK,
            ops: done.ops(),
            failed: done.failed,
            verified: verified + if cell.mix == Mix::Write { 0 } else { 1 },
            seconds: done.elapsed.as_secs_f64(),
            latency_us: Latency::of(&done.latencies),
            notes: done.errors,
        })
    }

    fn slot(&self, cell: Cell, number: u32) -> Slot {
        let (written, pattern) = (self.written.clone(), self.pattern.clone());
        Slot { cell, number: u64::from(number), random: u64::from(number) + 1, written, pattern }
    }

    fn threads(&self, cell: Cell, limit: Limit) -> Result<Done> {
        let file = Arc::new(self.open(cell.direct)?);
        writers::run(cell.depth(), limit, |number| {
            let (file, mut slot) = (file.clone(), self.slot(cell, number));
            let mut buf = IoBuf::zeroed(BLOCK);
            Ok(move |op| {
                let next = slot.next(op);
                if next.write {
                    slot.pattern.fill(&mut buf, next.tag());
                    file.write_all_at(&buf, next.at())?;
                    slot.wrote(next);
                    Ok(())
                } else {
                    file.read_exact_at(&mut buf, next.at())?;
                    slot.check(next, &buf)
                }
            })
        })
    }

    fn ring(&self, cell: Cell, limit: Limit) -> Result<Done> {
        let file = self.open(cell.direct)?;
        tokio_uring::start(async {
            let file = Rc::new(tokio_uring::fs::File::from_std(file));
            let begun = clock::now();
            let slots: Vec<_> = (0..cell.depth())
                .map(|number| tokio_uring::spawn(one(file.clone(), self.slot(cell, number), limit)))
                .collect();
            let mut done = Done {
                each: Vec::new(),
                failed: 0,
                errors: Vec::new(),
                elapsed: std::time::Duration::ZERO,
                latencies: stats::histogram(),
            };
            for slot in slots {
                let (ops, error, latencies) = slot.await?;
                done.each.push(ops);
                done.failed += u64::from(error.is_some());
                done.errors.extend(error);
                done.latencies.add(&latencies)?;
            }
            done.elapsed = clock::now() - begun;
            Ok(done)
        })
    }

    /// Every block that this run wrote, byte by byte.
    fn verify(&self, before: &[u32], mix: Mix) -> Result<u64> {
        if mix == Mix::Read {
            return Ok(0);
        }
        let file = self.open(false)?;
        let mut block = vec![0; BLOCK];
        let mut verified = 0;
        for (number, (was, is)) in before.iter().zip(self.written.iter()).enumerate() {
            let is = is.load(Ordering::Relaxed);
            if *was != is {
                file.read_exact_at(&mut block, (number * BLOCK) as u64)?;
                ensure!(self.pattern.holds(&block, tag(number as u64, is)), "block {number} is not its {is}th version");
                verified += 1;
            }
        }
        Ok(verified)
    }
}

/// One of those that are under way at once, and the blocks that are its own.
struct Slot {
    cell: Cell,
    number: u64,
    random: u64,
    written: Arc<Vec<AtomicU32>>,
    pattern: Pattern,
}

/// What it does next.
#[derive(Clone, Copy)]
struct Next {
    block: u64,
    /// How often the block was written, this time included.
    times: u32,
    write: bool,
}

impl Next {
    fn at(self) -> u64 {
        self.block * BLOCK as u64
    }

    fn tag(self) -> u64 {
        tag(self.block, self.times)
    }
}

impl Slot {
    fn next(&mut self, op: u64) -> Next {
        let depth = u64::from(self.cell.depth());
        let own = self.written.len() as u64 / depth;
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (mixed, order) = (self.random >> 33, if self.cell.random { self.random >> 33 } else { op });
        let block = order % own * depth + self.number;
        let write = match self.cell.mix {
            Mix::Read => false,
            Mix::Write => true,
            Mix::Mixed => (mixed ^ op).is_multiple_of(5),
        };
        let times = self.written[block as usize].load(Ordering::Relaxed) + u32::from(write);
        Next { block, times, write }
    }

    fn wrote(&self, next: Next) {
        self.written[next.block as usize].store(next.times, Ordering::Relaxed);
    }

    fn check(&self, next: Next, block: &[u8]) -> io::Result<()> {
        match self.pattern.begins(block, next.tag()) {
            true => Ok(()),
            false => Err(io::Error::other(format!("block {} is not its version {}", next.block, next.times))),
        }
    }
}

type One = (u64, Option<String>, hdrhistogram::Histogram<u64>);

async fn one(file: Rc<tokio_uring::fs::File>, mut slot: Slot, limit: Limit) -> One {
    let (mut ops, mut latencies) = (0, stats::histogram());
    let begun = clock::now();
    let (mut before, mut buf) = (begun, Some(aligned()));
    while ops < limit.ops && (ops == 0 || before - begun < limit.time) {
        let next = slot.next(ops);
        let own = buf.take().unwrap_or_else(|| unreachable!("it is given back below"));
        let (result, back) = match next.write {
            true => write(&file, &slot, next, own).await,
            false => read(&file, &slot, next, own).await,
        };
        buf = Some(back);
        if let Err(e) = result {
            return (ops, Some(e.to_string()), latencies);
        }
        let now = clock::now();
        stats::record(&mut latencies, now - before);
        (before, ops) = (now, ops + 1);
    }
    (ops, None, latencies)
}

/// A block within memory of two, so that it can begin where a direct operation must.
fn aligned() -> Slice<Vec<u8>> {
    let memory = vec![0; 2 * BLOCK];
    let from = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
    memory.slice(from..from + BLOCK)
}

async fn write(
    file: &tokio_uring::fs::File,
    slot: &Slot,
    next: Next,
    mut buf: Slice<Vec<u8>>,
) -> (io::Result<()>, Slice<Vec<u8>>) {
    slot.pattern.fill(&mut buf, next.tag());
    let (result, back) = file.write_at(buf, next.at()).submit().await;
    let result = result.and_then(whole);
    if result.is_ok() {
        slot.wrote(next);
    }
    (result, back)
}

async fn read(
    file: &tokio_uring::fs::File,
    slot: &Slot,
    next: Next,
    buf: Slice<Vec<u8>>,
) -> (io::Result<()>, Slice<Vec<u8>>) {
    let (result, back) = file.read_at(buf, next.at()).await;
    let result = result.and_then(whole).and_then(|()| slot.check(next, &back));
    (result, back)
}

fn whole(bytes: usize) -> io::Result<()> {
    match bytes {
        BLOCK => Ok(()),
        part => Err(io::Error::other(format!("{part} bytes of {BLOCK}"))),
    }
}
