//! Where an export goes: a file with its state beside it, or stdout.
//!
//! Invariants: the state says no more than what is durable in the file. So the file is synced first and the state
//! written then, under another name, synced and renamed; a stop in between leaves the earlier state, and what is after
//! it in the file is cut off at the next start.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clad_journal::bulk::{self, BulkWriter};
use clad_proto::payload_checksum;

use super::args::ExportArgs;
use super::state::{self, State};
use crate::exit::Stop;
use crate::output::Output;

/// So much of the end of the synced file is looked at before anything is cut off.
const TAIL_CHECK_BYTES: u64 = 4096;

/// Where an export goes.
pub(super) struct Sink<'a> {
    output: &'a mut Output,
    file: Option<Target>,
}

struct Target {
    path: PathBuf,
    writer: BulkWriter,
    sync_every: u64,
    synced: u64,
}

impl<'a> Sink<'a> {
    /// Opens it: a new file is durable, with a state that says so, before the first record is written.
    pub(super) fn open(args: &ExportArgs, state: &State, resumes: bool, output: &'a mut Output) -> Result<Self, Stop> {
        let Some(path) = args.path() else { return Ok(Self { output, file: None }) };
        let options = bulk::Options::new().mode(args.mode);
        let name = path.display().to_string();
        // Opened and locked before anything in it is touched: it may be the file of an export that runs.
        let opened = options.append(path).with_context(|| name.clone());
        let mut writer = opened?;
        if !writer.try_lock().with_context(|| name.clone())? {
            return Err(Stop::Failed(anyhow!("{name} is written by another export")));
        }
        // What was read before the lock was taken may be another's by now.
        if state::find(path, &args.request(), args.fresh)?.as_ref() != resumes.then_some(state) {
            return Err(Stop::Failed(anyhow!("{name} was written by another export meanwhile; start again")));
        }
        if resumes {
            let cut = writer.len().checked_sub(state.bytes);
            let cut = cut.filter(|_| tail_of(path, state.bytes).is_ok_and(|tail| tail == state.tail_crc32c));
            let Some(cut) = cut else {
                return Err(Stop::Failed(anyhow!(
                    "{name} is not the file that {} describes: it was changed; --fresh starts again",
                    state::beside(path).display()
                )));
            };
            if cut > 0 {
                output.note(&format!(
                    "{name}: {cut} bytes behind the last synced record are cut off and written again"
                ))?;
            }
        } else {
            state::remove(path)?;
        }
        if writer.len() != state.bytes {
            writer.truncate(state.bytes).map_err(anyhow::Error::new)?;
        }
        let mut sink = Self {
            output,
            file: Some(Target {
                path: path.to_owned(),
                writer,
                sync_every: args.sync_every.as_u64().max(1),
                synced: state.bytes,
            }),
        };
        if !resumes {
            sink.checkpoint(&mut state.clone())?;
        }
        Ok(sink)
    }

    pub(super) fn write(&mut self, out: &[u8]) -> Result<(), Stop> {
        match &mut self.file {
            Some(file) => Ok(file.writer.write_all(out).map_err(anyhow::Error::new)?),
            None => self.output.write(out),
        }
    }

    /// Says something that is no record.
    pub(super) fn note(&mut self, text: &str) -> Result<(), Stop> {
        self.output.note(text)
    }

    /// Notes that it will not end in 0.
    pub(super) const fn fail(&mut self) {
        self.output.fail();
    }

    /// Returns true if so much was written that it should be made durable.
    pub(super) fn is_due(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.writer.position() - file.synced >= file.sync_every)
    }

    /// Makes what was written durable, and notes how far that is.
    pub(super) fn checkpoint(&mut self, state: &mut State) -> Result<(), Stop> {
        match &mut self.file {
            None => self.output.flush(),
            Some(file) => {
                file.writer.sync().map_err(anyhow::Error::new)?;
                state.bytes = file.writer.position();
                state.tail_crc32c = tail_of(&file.path, state.bytes)?;
                state.write(&file.path)?;
                file.synced = state.bytes;
                Ok(())
            }
        }
    }

    /// The last word.
    pub(super) fn summary(&mut self, complete: bool, damaged: bool, done: &str) -> Result<(), Stop> {
        let how = match (complete, damaged) {
            (true, false) => "complete",
            (true, true) => "to the end, without what is damaged",
            (false, _) => "interrupted: the same call continues it",
        };
        match &self.file {
            Some(file) => {
                let text = format!("{}: {done} ({how})", file.path.display());
                self.output.line(&text)
            }
            None if complete => Ok(()),
            None => self.output.note("interrupted"),
        }
    }
}

/// The checksum of the last bytes before a place.
fn tail_of(path: &Path, end: u64) -> Result<u32, Stop> {
    let read = || {
        let mut file = File::open(path)?;
        let start = end.saturating_sub(TAIL_CHECK_BYTES);
        file.seek(SeekFrom::Start(start))?;
        let mut tail = vec![0; (end - start) as usize];
        file.read_exact(&mut tail)?;
        Ok::<_, std::io::Error>(payload_checksum(&tail))
    };
    Ok(read().with_context(|| path.display().to_string())?)
}
