//! One large file, handed over in small chunks: one contender, one run, one [`Outcome`].
//!
//! Invariants: every contender makes a new file of the same bytes; the time is from making it until it is durable (a
//! final sync of the file and of its name in every contender's time); then it is read back and compared, chunk by chunk.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clad_journal::bulk::{BulkWriter, Engine, Options, Stats};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::outcome::Outcome;
use crate::pattern::Pattern;
use crate::stats::Latency;

/// Chunks are pieces of so many bytes that nothing can guess, at a place that differs from chunk to chunk.
const SOURCE: usize = 1 << 20;
/// How far the places of two chunks that follow each other are apart: no divisor of [`SOURCE`].
const STEP: usize = 4099;
/// The largest chunk.
pub const MAX_CHUNK: usize = 64 << 10;

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Contender {
    /// The journal's file writer as it is made by default: direct, on a ring where there is one.
    #[value(name = "clad_direct")]
    CladDirect,
    /// The same with threads.
    #[value(name = "clad_threads")]
    CladThreads,
    /// The same through the page cache.
    #[value(name = "clad_buffered")]
    CladBuffered,
    /// `std::io::BufWriter` as it is made by default: 8 KiB.
    #[value(name = "bufwriter_8k")]
    Bufwriter8k,
    /// `std::io::BufWriter` of 2 MiB.
    #[value(name = "bufwriter_2m")]
    Bufwriter2m,
}

impl Contender {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::CladDirect, Self::CladThreads, Self::CladBuffered, Self::Bufwriter8k, Self::Bufwriter2m];

    /// Its name, as on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CladDirect => "clad_direct",
            Self::CladThreads => "clad_threads",
            Self::CladBuffered => "clad_buffered",
            Self::Bufwriter8k => "bufwriter_8k",
            Self::Bufwriter2m => "bufwriter_2m",
        }
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Bytes of each chunk, at most [`MAX_CHUNK`].
    pub chunk: usize,
    /// Bytes of the file, rounded up to whole chunks.
    pub total: u64,
    /// Buffers of the journal's file writer, and their bytes: its defaults, but to look for better ones.
    pub buffers: Option<(usize, usize)>,
}

/// The chunks of a file.
#[derive(Clone, Debug)]
pub struct Chunks {
    source: Vec<u8>,
    chunk: usize,
    number: u64,
}

impl Chunks {
    /// Those of one file.
    #[must_use]
    pub fn new(work: &Work) -> Self {
        let mut source = vec![0; SOURCE + MAX_CHUNK];
        Pattern::new(0, source.len()).fill(&mut source, 0);
        Self { source, chunk: work.chunk.clamp(1, MAX_CHUNK), number: work.total.div_ceil(work.chunk.max(1) as u64) }
    }

    /// How many.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, number: u64) -> &[u8] {
        let at = (number as usize).wrapping_mul(STEP) % SOURCE;
        &self.source[at..at + self.chunk]
    }

    /// Writes all of them.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_to(&self, mut writer: impl Write) -> io::Result<()> {
        (0..self.number).try_for_each(|number| writer.write_all(self.get(number)))
    }

    /// Reads a file that should hold them and nothing else, and answers how many it holds.
    ///
    /// # Errors
    /// The first chunk that is not as it should be, or a length that is not.
    pub fn verify(&self, path: &Path) -> Result<u64> {
        let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
        let mut chunk = vec![0; self.chunk];
        for number in 0..self.number {
            file.read_exact(&mut chunk).with_context(|| format!("chunk {number} of {}", path.display()))?;
            ensure!(chunk == self.get(number), "chunk {number} is not what was written");
        }
        ensure!(file.read(&mut chunk)? == 0, "{} is longer than what was written", path.display());
        Ok(self.number)
    }
}

impl Work {
    /// Does it in a folder that nobody else uses.
    ///
    /// # Errors
    /// A write or the sync failed, or what is in the file is not what was written.
    pub fn run(&self, by: Contender, dir: &Path) -> Result<Outcome> {
        let options = match by {
            Contender::CladDirect => Options::new(),
            Contender::CladThreads => Options::new().engine(Engine::Threads),
            Contender::CladBuffered => Options::new().direct(false),
            Contender::Bufwriter8k => return self.buffered(by, 8 << 10, dir),
            Contender::Bufwriter2m => return self.buffered(by, 2 << 20, dir),
        };
        let options = match self.buffers {
            Some((buffers, bytes)) => options.buffers(buffers).buffer_bytes(bytes),
            None => options,
        };
        let mut stats = Stats::default();
        let mut outcome = self.timed(by.name(), &dir.join("file"), |path, chunks| {
            let mut file: BulkWriter = options.create_new(path)?;
            chunks.write_to(&mut file)?;
            stats = file.finish()?;
            Ok(())
        })?;
        outcome.notes = stats.fallbacks;
        Ok(outcome)
    }

    fn buffered(&self, by: Contender, capacity: usize, dir: &Path) -> Result<Outcome> {
        self.timed(by.name(), &dir.join("file"), |path, chunks| {
            let mut file = BufWriter::with_capacity(capacity, File::create_new(path)?);
            chunks.write_to(&mut file)?;
            file.into_inner()?.sync_all()?;
            sync_name(path)
        })
    }

    /// Times a writer from nothing to a durable file, and looks at the file.
    ///
    /// # Errors
    /// The writer's, and what [`Chunks::verify`] finds.
    pub fn timed(&self, by: &str, path: &Path, write: impl FnOnce(&Path, &Chunks) -> Result<()>) -> Result<Outcome> {
        let chunks = Chunks::new(self);
        let begun = clock::now();
        write(path, &chunks)?;
        let took: Duration = clock::now() - begun;
        let verified = chunks.verify(path)?;
        std::fs::remove_file(path)?;
        Ok(Outcome {
            work: "bulk".to_owned(),
            by: by.to_owned(),
            writers: 1,
            size: self.chunk,
            ops: chunks.number(),
            failed: 0,
            verified,
            seconds: took.as_secs_f64(),
            latency_us: Latency::default(),
            notes: Vec::new(),
        })
    }
}

/// Makes the name of a new file durable, as the journal's file writer does.
///
/// # Errors
/// What the kernel says.
pub fn sync_name(path: &Path) -> Result<()> {
    Ok(File::open(path.parent().context("a file lies in a folder")?)?.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_is_lost_moved_or_added_is_found() {
        let folder = crate::test_folder();
        let path = folder.path().join("file");
        let work = Work { chunk: 800, total: 100 * 800, buffers: None };
        let chunks = Chunks::new(&work);
        let good: Vec<u8> = (0..100).flat_map(|number| chunks.get(number).to_vec()).collect();
        let holds = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("it can be written");
            chunks.verify(&path).is_ok()
        };
        assert!(holds(&good));
        assert!(!holds(&good[..good.len() - 1]) && !holds(&[&good[..], &[0]].concat()));
        let (one, two) = (&good[..800], &good[800..1600]);
        assert!(!holds(&[two, one, &good[1600..]].concat()), "chunks in each other's place");
    }
}
