//! A bare group commit: what any program that is made for the purpose can reach, with no format, no checksum, no offset,
//! no recovery and no reader.
//!
//! A thread that comes while nothing is written takes the open batch (its own bytes, mostly) and writes it itself, in one
//! direct write with its own sync. Meanwhile the others append to the other buffer. The end of a write wakes all threads
//! whose bytes were in it, and one of the others, which leads next.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use anyhow::{Context, Result};
use clad_journal::io::IoBuf;

use super::{Work, bare};
use crate::outcome::Outcome;
use crate::pattern::Pattern;
use crate::writers;

/// What a direct write covers whole.
const BLOCK: usize = 4096;

struct Group {
    file: File,
    /// Bytes of the file.
    len: u64,
    /// Bytes of the largest batch.
    most: u64,
    state: Mutex<State>,
    /// Who waits for an even batch, and who for an odd one.
    batch_done: [Condvar; 2],
}

struct State {
    /// The open batch; the other buffer is written or empty.
    open: IoBuf,
    idle_buffer: Option<IoBuf>,
    /// Number of the open batch.
    batch: u64,
    /// Batches below this one are durable.
    done: u64,
    writing: bool,
    /// Place of the open batch, as if the file had no end.
    at: u64,
    failed: bool,
}

impl Group {
    fn new(file: File, len: u64, bytes: usize) -> Self {
        let open = IoBuf::with_capacity(bytes);
        let idle_buffer = Some(IoBuf::with_capacity(bytes));
        let state = State { open, idle_buffer, batch: 0, done: 0, writing: false, at: 0, failed: false };
        Self { file, len, most: bytes as u64, state: Mutex::new(state), batch_done: Default::default() }
    }

    /// Where the next batch goes: none goes over the end of the file.
    fn behind(&self, at: u64) -> u64 {
        if at % self.len + self.most > self.len { at.next_multiple_of(self.len) } else { at }
    }

    /// Returns when the bytes are durable, with their place.
    fn commit(&self, bytes: &[u8]) -> io::Result<u64> {
        let mut state = self.state.lock().expect("nobody panics with it");
        let (mine, place) = (state.batch, state.at + state.open.len() as u64);
        state.open.extend_from_slice(bytes);
        loop {
            if state.failed {
                return Err(io::Error::other("a write of the group failed"));
            }
            if state.done > mine {
                return Ok(place);
            }
            if state.writing {
                state = self.batch_done[mine as usize % 2].wait(state).expect("nobody panics with it");
                continue;
            }
            let idle_buffer =
                state.idle_buffer.take().unwrap_or_else(|| unreachable!("one is open, and nothing is written"));
            let mut batch = std::mem::replace(&mut state.open, idle_buffer);
            batch.pad_to(BLOCK);
            let at = state.at;
            state.at = self.behind(at + batch.len() as u64);
            state.batch += 1;
            state.writing = true;
            drop(state);
            let written = bare::write_synced(&self.file, &batch, at % self.len);
            batch.clear();
            state = self.state.lock().expect("nobody panics with it");
            state.idle_buffer = Some(batch);
            state.writing = false;
            state.failed |= written.is_err();
            state.done = mine + 1;
            self.batch_done[mine as usize % 2].notify_all();
            let next = &self.batch_done[(mine as usize + 1) % 2];
            if state.failed { next.notify_all() } else { next.notify_one() }
        }
    }
}

pub(super) fn run(work: &Work, dir: &Path) -> Result<Outcome> {
    let most = (work.size * work.writers as usize).next_multiple_of(BLOCK);
    anyhow::ensure!(work.file >= most as u64, "a file of {} bytes holds no batch", work.file);
    let file = bare::zero_written(&dir.join("file"), work.file, true).context("prepare the file")?;
    let group = Arc::new(Group::new(file, work.file, most));
    let placed = Arc::new(Mutex::new(vec![Vec::new(); work.writers as usize]));
    let done = writers::run(work.writers, work.limit, |writer| {
        let (group, pattern, placed) = (group.clone(), Pattern::new(writer, work.size), placed.clone());
        let mut buf = vec![0; work.size];
        pattern.fill(&mut buf, 0);
        let mut own = Places { places: Vec::new(), writer, placed };
        Ok(move |op| {
            pattern.tag(&mut buf, op);
            own.places.push(group.commit(&buf)?);
            Ok(())
        })
    })?;
    let end = group.state.lock().expect("nobody panics with it").at;
    let back = File::open(dir.join("file"))?;
    let mut block = vec![0; work.size];
    let mut verified = 0;
    for (writer, places) in placed.lock().expect("nobody panics with it").iter().enumerate() {
        let pattern = Pattern::new(writer as u32, work.size);
        for (op, at) in places.iter().enumerate().filter(|(_, at)| **at + work.file >= end) {
            back.read_exact_at(&mut block, at % work.file)?;
            anyhow::ensure!(pattern.holds(&block, op as u64), "operation {op} of writer {writer} is not at {at}");
            verified += 1;
        }
    }
    Ok(work.outcome(&done, verified, Vec::new()))
}

/// Where a writer's operations went; handed over when it ends.
struct Places {
    places: Vec<u64>,
    writer: u32,
    placed: Arc<Mutex<Vec<Vec<u64>>>>,
}

impl Drop for Places {
    fn drop(&mut self) {
        if let Ok(mut placed) = self.placed.lock() {
            placed[self.writer as usize] = std::mem::take(&mut self.places);
        }
    }
}
