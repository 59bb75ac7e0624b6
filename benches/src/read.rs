//! Reading a segment through its checksums, and looking through one that a crash left, beside plain reads of the same file.
//!
//! Invariants: all read the same bytes of the same file; a reader of the log counts the records that it gets, and gets
//! every one that was appended; plain reads are in pieces of 1 MiB into memory that is used again.
//!
//! | row | what it is |
//! |---|---|
//! | `plain` | `pread` of a sealed segment, page cache warm |
//! | `checked` | the same file as a log: every checksum, every record |
//! | `plain_direct` | `pread` around the page cache of a full segment that has no footer |
//! | `scan` | what a start does with that segment, around the page cache as well |

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clad_journal::format::segment::SegmentHeader;
use clad_journal::format::segment_name;
use clad_journal::io::{Access, IoBuf, OsStorage, Storage, device};
use clad_journal::{Append, Journal, JournalConfig, Level, OfflineLog};

use crate::clock;
use crate::outcome::Outcome;
use crate::pattern::Pattern;
use crate::place::Place;
use crate::results::{Aim, Results, ratio};
use crate::writers::Limit;

/// Bytes of a plain read.
const PIECE: usize = 1 << 20;
/// Left free at the end of the segment that is to be full and not sealed: the largest append, and a footer.
const SEGMENT_HEADROOM_BYTES: u64 = 1 << 20;
/// The largest append: where there is no room for one, the journal goes on in the next segment.
const MAX_APPEND: u32 = 64 << 10;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How often.
    pub rounds: u32,
    /// Bytes of a segment.
    pub segment: u64,
    /// Bytes of a record.
    pub size: usize,
}

/// A log of one segment.
struct Log {
    dir: tempfile::TempDir,
    records: u64,
}

impl Plan {
    /// Runs it.
    ///
    /// # Errors
    /// A record is missing, or a read failed.
    pub fn run(&self, place: &Place) -> Result<Results> {
        let mut results = Results::new("read", place, self.rounds, Limit::ops(1));
        let sealed = self.log(place, true).context("make a sealed segment")?;
        let open = self.log(place, false).context("make a segment that a crash left")?;
        let mut runs: [Vec<Outcome>; 4] = Default::default();
        for _ in 0..self.rounds {
            runs[0].push(sealed.plain(Access::ReadCached, "plain")?.checked()?);
            runs[1].push(sealed.checked()?.checked()?);
            runs[2].push(open.plain(Access::ReadDirect, "plain_direct")?.checked()?);
            runs[3].push(open.scan()?.checked()?);
        }
        for runs in &runs {
            results.add(&[("read", &runs[0].by)], runs);
        }
        results.aims.push(aim("reading a sealed segment through its checksums, warm", &runs[1], &runs[0], 0.6));
        results.aims.push(aim("looking through a full segment that a crash left", &runs[3], &runs[2], 0.5));
        Ok(results)
    }

    fn log(&self, place: &Place, sealed: bool) -> Result<Log> {
        let dir = tempfile::tempdir_in(place.path())?;
        let config = JournalConfig {
            segment_bytes: self.segment,
            max_append_bytes: MAX_APPEND,
            reserve_free: 0,
            ..JournalConfig::default()
        };
        let journal = Journal::open_dir(dir.path(), config, Arc::new(|_| {}))?;
        let pattern = Pattern::new(0, self.size);
        let mut payload = vec![0; self.size];
        let full = self.segment - SEGMENT_HEADROOM_BYTES.min(self.segment / 4);
        let mut records = 0;
        loop {
            for _ in 0..256 {
                pattern.fill(&mut payload, records);
                append(records, &payload).submit(&journal)?;
                records += 1;
            }
            // One batch after the other, so that there is room for the last.
            while journal.watermarks().durable < records {
                ensure!(journal.status().failure.is_none(), "the journal failed: {:?}", journal.status().failure);
                std::thread::yield_now();
            }
            if journal.segments().last().is_none_or(|active| active.bytes >= full) {
                break;
            }
        }
        let log = match sealed {
            true => Log { dir, records },
            // As a crash leaves it: without its footer, which an end of any kind may still write.
            false => {
                let left = tempfile::tempdir_in(place.path())?;
                let (from, to) = (dir.path().join(segment_name(0)), left.path().join(segment_name(0)));
                std::fs::copy(from, &to)?;
                File::open(to)?.sync_all()?;
                Log { dir: left, records }
            }
        };
        ensure!(journal.close(std::time::Duration::from_secs(60)), "the journal did not come to a clean end");
        ensure!(log.header()?.number == 0, "the records do not lie in the first segment");
        Ok(log)
    }
}

fn aim(work: &str, of: &[Outcome], to: &[Outcome], at_least: f64) -> Aim {
    let name = |runs: &[Outcome]| runs.first().map_or(String::new(), |run| run.by.clone());
    Aim {
        work: work.to_owned(),
        of: name(of),
        beside: vec![name(to)],
        missing: Vec::new(),
        at_least,
        ratio: ratio(of, to),
    }
}

fn append(sequence: u64, payload: &[u8]) -> Append<'_> {
    Append {
        producer: [1; 16],
        owner: 1,
        producer_epoch: 1,
        first_sequence: sequence,
        count: 1,
        gap: false,
        level: Level::Durable,
        min_time_ns: 1,
        max_time_ns: 1,
        peer_meta: &[],
        payload,
        payload_checksum: clad_journal::format::checksum::plain(payload),
        permit: None,
    }
}

impl Log {
    fn file(&self) -> Result<File> {
        Ok(File::open(self.dir.path().join(segment_name(0)))?)
    }

    fn header(&self) -> Result<SegmentHeader> {
        let mut block = vec![0; 4096];
        self.file()?.read_exact_at(&mut block, 0)?;
        SegmentHeader::decode(&block).map_err(|e| anyhow::anyhow!("the segment's header: {e:?}"))
    }

    fn storage(&self) -> Result<OsStorage> {
        Ok(OsStorage::open(self.dir.path(), device::discover(self.dir.path()).block_size, true)?)
    }

    fn plain(&self, access: Access, by: &str) -> Result<Outcome> {
        let file = self.storage()?.open(&segment_name(0), access)?;
        let len = file.len()?;
        let mut buf = IoBuf::with_capacity(PIECE);
        let begun = clock::now();
        let mut at = 0;
        while at < len {
            let (back, read) = file.read_at(buf, at, PIECE);
            read?;
            ensure!(!back.is_empty(), "the file ends at {at}");
            (at, buf) = (at + back.len() as u64, back);
        }
        let took = clock::now() - begun;
        Ok(self.outcome(by, len, took.as_secs_f64(), self.records))
    }

    fn checked(&self) -> Result<Outcome> {
        let len = self.file()?.metadata()?.len();
        let log = OfflineLog::open(self.dir.path())?;
        let mut reader = log.read(0);
        let mut found = 0;
        let begun = clock::now();
        while let Some(batch) = reader.next_batch()? {
            found += u64::from(batch.count);
        }
        let took = clock::now() - begun;
        ensure!(found == self.records, "{found} records of {} were read", self.records);
        Ok(self.outcome("checked", len, took.as_secs_f64(), found))
    }

    fn scan(&self) -> Result<Outcome> {
        let (storage, header) = (self.storage()?, self.header()?);
        let begun = clock::now();
        let file = storage.open(&segment_name(0), Access::ReadDirect)?;
        let len = file.len()?;
        let found = clad_journal::recover::scan::scan(file, &header)?;
        let took = clock::now() - begun;
        let records: u64 = found.batches.iter().map(|batch| u64::from(batch.header.count)).sum();
        ensure!(records == self.records, "{records} records of {} were found", self.records);
        ensure!(found.garbage.is_empty() && found.footer.is_none(), "it is not what was written: {:?}", found.garbage);
        Ok(self.outcome("scan", len, took.as_secs_f64(), records))
    }

    /// One operation is the whole file.
    fn outcome(&self, by: &str, len: u64, seconds: f64, verified: u64) -> Outcome {
        Outcome {
            work: "read".to_owned(),
            by: by.to_owned(),
            writers: 1,
            size: len as usize,
            ops: 1,
            verified,
            seconds,
            ..Outcome::default()
        }
    }
}
