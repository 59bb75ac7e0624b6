//! The journal's storage operations, by a blocking call or through its ring.

use std::fs::File as StdFile;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clad_journal::io::uring::{Operation, Ticket};
use clad_journal::io::{Access, Durability, EngineOptions, File, IoBuf, LatchedFile, OsStorage, Storage, device};

use super::{Contender, Engine, Places, Work, bare};
use crate::outcome::Outcome;
use crate::pattern::Pattern;
use crate::writers;

/// Name of the file.
const NAME: &str = "file";

pub(super) fn run(work: &Work, dir: &Path) -> Result<Outcome> {
    let places = Places::new(work.file, work.writers, work.size);
    drop(bare::zero_written(&dir.join(NAME), places.len(), false).context("prepare the file")?);
    let options =
        EngineOptions { wish: work.engine.wish(), in_flight: work.writers as usize, on_fallback: Arc::new(|_| {}) };
    let storage = Arc::new(OsStorage::open_with(dir, device::discover(dir).block_size, true, &options)?);
    ensure!(
        storage.ring().is_some() == (work.engine == Engine::Uring),
        "the engine {} is not to be had: {}",
        work.engine.name(),
        storage.engine().why
    );
    let access = if work.by == Contender::WriteAtSync { Access::WriteDirect } else { Access::WriteCached };
    let open = || -> Result<Arc<LatchedFile>> { Ok(Arc::new(LatchedFile::new(storage.open(NAME, access)?))) };
    // A range sync reports an error once to each open file: each writer has its own, as in the journal.
    let one = open()?;
    let done = writers::run(work.writers, work.limit, |writer| {
        let file = if work.by == Contender::SyncFileRange { open()? } else { one.clone() };
        let pattern = Arc::new(Pattern::new(writer, work.size));
        let mut buf = Some(bare::filled(&pattern, work.size));
        let (storage, by) = (storage.clone(), work.by);
        Ok(move |op| {
            let at = places.of(writer, op);
            if storage.ring().is_some() {
                return ringed(&storage, &file, &pattern, by, op, at);
            }
            let mut own = buf.take().unwrap_or_else(|| unreachable!("it is given back below"));
            pattern.tag(&mut own, op);
            let (back, result) = blocking(&file, by, own, at);
            buf = Some(back);
            result
        })
    })?;
    let fallbacks = storage.engine().fallbacks.into_iter().map(|fallback| fallback.text).collect();
    let back = StdFile::open(dir.join(NAME))?;
    let verified = places.verify(&done.each, |at, block| back.read_exact_at(block, at))?;
    Ok(work.outcome(&done, verified, fallbacks))
}

fn blocking(file: &LatchedFile, by: Contender, buf: IoBuf, at: u64) -> (IoBuf, std::io::Result<()>) {
    let len = buf.len() as u64;
    match by {
        Contender::WriteAtSync => file.write_at_sync(buf, at),
        Contender::WriteSync => {
            let (buf, written) = file.write_at(buf, at);
            (buf, written.and_then(|()| file.sync()))
        }
        Contender::SyncFileRange => {
            let (buf, written) = file.write_at(buf, at);
            (buf, written.and_then(|()| file.sync_range(at, len)))
        }
        _ => file.write_at(buf, at),
    }
}

/// The same through the ring: the thread waits for the result from the ring's thread.
fn ringed(
    storage: &OsStorage,
    file: &Arc<LatchedFile>,
    pattern: &Arc<Pattern>,
    by: Contender,
    op: u64,
    at: u64,
) -> std::io::Result<()> {
    let ring = storage.ring().unwrap_or_else(|| unreachable!("asked for, and there"));
    let (pattern, len) = (pattern.clone(), pattern.len());
    let fill = move |mut buf: IoBuf| {
        buf.set_len(len);
        pattern.fill(&mut buf, op);
        buf
    };
    let ticket = Ticket::default();
    let file: Arc<dyn File> = file.clone();
    let operation = match by {
        Contender::WriteAtSync => Operation::write(file.clone(), at, Durability::Synced, len, fill, ticket.done()),
        Contender::SyncFileRange => Operation::write_and_sync_range(file.clone(), at, len, fill, ticket.done()),
        _ => Operation::write(file.clone(), at, Durability::Written, len, fill, ticket.done()),
    };
    ring.submit(operation);
    ticket.wait()?;
    if by == Contender::WriteSync {
        let ticket = Ticket::default();
        ring.submit(Operation::sync_data(file, ticket.done()));
        ticket.wait()?;
    }
    Ok(())
}
