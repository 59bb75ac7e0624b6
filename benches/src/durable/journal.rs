//! The journal: an append by a thread that waits until it is `durable`.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, ensure};
use clad_journal::io::{Engine as InUse, EngineWish};
use clad_journal::{Append, Journal, JournalConfig, Level, Policy, Reader};

use super::{Contender, Engine, Work};
use crate::outcome::Outcome;
use crate::pattern::Pattern;
use crate::waiting::Waiting;
use crate::writers;

/// The owner that all appends are made under.
const OWNER: u64 = 1000;
/// The end of a run must not be waited for for ever.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// How the journal is opened.
fn config(work: &Work) -> JournalConfig {
    let Policy::GroupCommit { max_delay, max_bytes, in_flight } = Policy::GROUP_COMMIT else {
        unreachable!("the default is what it says")
    };
    let range = Policy::SyncFileRange { max_delay, max_bytes, in_flight };
    let JournalConfig { max_append_bytes, .. } = JournalConfig::default();
    let policy = if work.by == Contender::JournalRange { range } else { Policy::GROUP_COMMIT };
    let io_engine = if work.engine == Engine::Uring { EngineWish::Uring } else { EngineWish::Blocking };
    JournalConfig {
        policy,
        io_engine,
        segment_bytes: work.file,
        max_append_bytes: max_append_bytes.min((work.file / 4) as u32),
        reserve_free: 0,
        // The word of the bench: no power will be cut.
        power_loss_protected: work.by == Contender::JournalRange,
        ..JournalConfig::default()
    }
}

pub(super) fn run(work: &Work, dir: &Path) -> Result<Outcome> {
    let config = config(work);
    let journal = Journal::open_dir(dir, config, Arc::new(|_| {}))?;
    let in_use = journal.status().engine;
    ensure!(
        (in_use.engine == InUse::Uring) == (work.engine == Engine::Uring),
        "the engine {} is not to be had: {}",
        work.engine.name(),
        in_use.why
    );
    prepared(&journal)?;
    let offsets = Mutex::new(vec![Vec::new(); work.writers as usize]);
    let done = writers::run(work.writers, work.limit, |writer| {
        let mut writer = Writer::new(&journal, writer, work.size, &offsets)?;
        Ok(move |op| writer.append(op))
    })?;
    let offsets = std::mem::take(&mut *offsets.lock().expect("nobody panics with it"));
    let verified = verify(journal.reader(0, Level::Durable), &offsets, work.size)?;
    let inline = journal.status().inline_batches;
    ensure!(journal.close(CLOSE_TIMEOUT), "the journal did not come to a clean end");
    Ok(work.outcome(&done, verified, vec![format!("{inline} batches were written by the thread that took them")]))
}

/// The next segment is ready, so that nothing but what is measured goes on at first.
fn prepared(journal: &Journal) -> Result<()> {
    let mut polls_left = 60_000;
    while !journal.status().prepared {
        polls_left -= 1;
        ensure!(polls_left > 0, "no segment was prepared");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

struct Writer<'a> {
    waiting: Waiting<'a>,
    writer: u32,
    pattern: Pattern,
    buf: Vec<u8>,
    offsets: Vec<u64>,
    all: &'a Mutex<Vec<Vec<u64>>>,
}

impl<'a> Writer<'a> {
    fn new(journal: &'a Journal, writer: u32, size: usize, all: &'a Mutex<Vec<Vec<u64>>>) -> Result<Self> {
        let pattern = Pattern::new(writer, size);
        let mut buf = vec![0; size];
        pattern.fill(&mut buf, 0);
        Ok(Self { waiting: Waiting::on(journal)?, writer, pattern, buf, offsets: Vec::new(), all })
    }

    fn append(&mut self, op: u64) -> io::Result<()> {
        self.pattern.tag(&mut self.buf, op);
        let append = Append {
            producer: producer(self.writer),
            owner: OWNER,
            producer_epoch: 1,
            first_sequence: op,
            count: 1,
            gap: false,
            level: Level::Durable,
            min_time_ns: 1,
            max_time_ns: 1,
            peer_meta: &[],
            payload: &self.buf,
            payload_checksum: clad_journal::format::checksum::plain(&self.buf),
            permit: None,
        };
        let offset = self.waiting.append(append).map_err(io::Error::other)?.first_offset;
        self.offsets.push(offset);
        Ok(())
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if let Ok(mut all) = self.all.lock() {
            all[self.writer as usize] = std::mem::take(&mut self.offsets);
        }
    }
}

fn producer(writer: u32) -> [u8; 16] {
    u128::from(writer + 1).to_le_bytes()
}

/// Every acknowledged append is found at its offset, and nothing else is in the log.
fn verify(mut reader: Reader, offsets: &[Vec<u64>], size: usize) -> Result<u64> {
    let patterns: Vec<Pattern> = (0..offsets.len()).map(|writer| Pattern::new(writer as u32, size)).collect();
    let mut verified = 0;
    while let Some(batch) = reader.next_batch()? {
        for chunk in batch.chunks() {
            let (offset, chunk) = chunk?;
            let writer = u128::from_le_bytes(chunk.header.producer) as usize - 1;
            let op = chunk.header.first_sequence;
            let expected = offsets.get(writer).and_then(|its| its.get(op as usize));
            ensure!(expected == Some(&offset), "append {op} of writer {writer} is at {offset}, not at {expected:?}");
            ensure!(
                patterns[writer].holds(chunk.payload, op),
                "the bytes at {offset} are not those that were appended"
            );
            verified += 1;
        }
    }
    let acked: usize = offsets.iter().map(Vec::len).sum();
    ensure!(verified == acked as u64, "{verified} appends are in the log, {acked} were acknowledged");
    Ok(verified)
}
