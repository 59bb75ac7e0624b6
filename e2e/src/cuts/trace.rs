//! What happened, in one order: requests to the device, its answers, and the answers to the workload.
//!
//! A trace can be written to a folder and read back, so that what failed can be looked at again: `trace.jsonl` has one
//! event in a line, `base.json` the pages that were there before; the bytes of both are in `data`.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::pages::PAGE;
use super::{CutResult, Pages};

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The device took a write: from now on it may be on the disk.
    Write {
        /// Where.
        offset: u64,
        /// What.
        data: Bytes,
    },
    /// It answered the write that stands at this place of the list.
    Done(usize),
    /// The device took a flush.
    Flush,
    /// It answered the flush that stands at this place of the list.
    Flushed(usize),
    /// The workload did something or got an answer.
    Word(Word),
}

/// An act of the workload, or an answer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// A daemon is ready.
    Ready {
        /// The log, in hexadecimal digits.
        log_id: String,
        /// Its epoch.
        epoch: u32,
        /// The first offset that it gives in that epoch.
        first: u64,
        /// Whether it may remove segments.
        retention: bool,
    },
    /// A client is about to send its records below this one.
    Sending {
        /// Which client.
        client: u64,
        /// One past the last.
        below: u64,
    },
    /// An append has reached a level.
    Ack(Ack),
    /// All offsets below are durable, says the daemon.
    Durable {
        /// One past the last.
        below: u64,
    },
    /// A daemon is asked to end.
    Ending,
    /// A daemon has ended.
    Ended {
        /// After everything was drained, synced and sealed.
        clean: bool,
    },
    /// A block was acknowledged (the table of methods).
    Block(u64),
    /// Words for who reads the trace.
    Note(String),
}

/// An append that has reached a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// Whose it is.
    pub client: u64,
    /// Its first record, counted by the client.
    pub first: u64,
    /// How many records it has.
    pub count: u32,
    /// The offset of the first.
    pub offset: u64,
    /// The epoch of the answer.
    pub epoch: u32,
    /// The level, as its number on the wire.
    pub level: u8,
}

/// A list of events over a disk as it was before.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// What was on the disk before.
    pub base: Pages,
    /// What happened.
    pub events: Vec<Event>,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// Offset on the disk, place in `data`, length.
    Write(u64, u64, usize),
    Done(usize),
    Flush,
    Flushed(usize),
    Word(Word),
}

impl Trace {
    /// The words before an event.
    pub fn words(&self, before: usize) -> impl Iterator<Item = &Word> {
        self.events[..before].iter().filter_map(|event| match event {
            Event::Word(word) => Some(word),
            _ => None,
        })
    }

    /// Writes it to a folder.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, folder: &Path) -> CutResult {
        self.try_save(folder).map_err(|e| format!("{}: {e}", folder.display()))
    }

    fn try_save(&self, folder: &Path) -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        let mut data = std::io::BufWriter::new(fs::File::create(folder.join("data"))?);
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            let place = at;
            at += bytes.len() as u64;
            data.write_all(bytes).map(|()| place)
        };
        let mut base = Vec::new();
        for (number, page) in self.base.all() {
            base.push((number, put(&page)?));
        }
        let mut lines = Vec::new();
        for event in &self.events {
            let line = match event {
                Event::Write { offset, data } => Line::Write(*offset, put(data)?, data.len()),
                Event::Done(at) => Line::Done(*at),
                Event::Flush => Line::Flush,
                Event::Flushed(at) => Line::Flushed(*at),
                Event::Word(word) => Line::Word(word.clone()),
            };
            serde_json::to_writer(&mut lines, &line)?;
            lines.push(b'\n');
        }
        data.flush()?;
        fs::write(folder.join("base.json"), serde_json::to_vec(&base)?)?;
        fs::write(folder.join("trace.jsonl"), lines)
    }

    /// Reads it from a folder.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn load(folder: &Path) -> CutResult<Self> {
        let read =
            |name: &str| fs::read(folder.join(name)).map_err(|e| format!("{}: {e}", folder.join(name).display()));
        let data = Bytes::from(read("data")?);
        let slice = |at: u64, length: usize| {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let end = at.checked_add(length).filter(|end| *end <= data.len()).ok_or("a place outside of the data")?;
            Ok::<_, String>(data.slice(at..end))
        };
        let mut trace = Self::default();
        let base: Vec<(u64, u64)> = serde_json::from_slice(&read("base.json")?).map_err(|e| e.to_string())?;
        for (number, at) in base {
            trace.base.put(number, slice(at, PAGE)?);
        }
        for line in read("trace.jsonl")?.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            trace.events.push(match serde_json::from_slice(line).map_err(|e| e.to_string())? {
                Line::Write(offset, at, length) => Event::Write { offset, data: slice(at, length)? },
                Line::Done(at) => Event::Done(at),
                Line::Flush => Event::Flush,
                Line::Flushed(at) => Event::Flushed(at),
                Line::Word(word) => Event::Word(word),
            });
        }
        Ok(trace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_from_a_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut base = Pages::default();
        base.put(7, Bytes::from(vec![3; PAGE]));
        let word = Word::Ack(Ack { client: 1, first: 2, count: 3, offset: 4, epoch: 5, level: 4 });
        let write = Event::Write { offset: 512, data: Bytes::from(vec![9; 1024]) };
        let events = vec![write, Event::Done(0), Event::Flush, Event::Flushed(2), Event::Word(word)];
        let trace = Trace { base, events };
        trace.save(folder.path()).expect("written");
        let read = Trace::load(folder.path()).expect("read");
        assert_eq!(format!("{:?}", read.events), format!("{:?}", trace.events));
        assert_eq!(read.base.all(), trace.base.all());
    }
}
