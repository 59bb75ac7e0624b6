//! okaywal: an entry of one chunk, committed.

use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};
use clad_benches::Outcome;
use clad_benches::cli::OneDurable;
use clad_benches::pattern::Pattern;
use clad_benches::stats::Latency;
use clad_benches::writers;
use okaywal::{Configuration, LogPosition, LogVoid};

/// How many of its last entries of each writer are read back: older ones may lie in a file that was used again.
const LAST: usize = 1000;

pub fn run(name: &str, file: Option<u32>, one: &OneDurable, dir: &Path) -> Result<Outcome> {
    let mut config = Configuration::default_for(dir.join("log"));
    if let Some(bytes) = file {
        // The same share of a file as by default.
        config = config.preallocate_bytes(bytes).checkpoint_after_bytes(u64::from(bytes) / 4 * 3);
    }
    let log = config.open(LogVoid)?;
    let all: Arc<Mutex<Vec<Vec<LogPosition>>>> = Arc::new(Mutex::new(vec![Vec::new(); one.writers as usize]));
    let done = writers::run(one.writers, one.limit(), |writer| {
        let (log, all, pattern) = (log.clone(), all.clone(), Pattern::new(writer, one.size));
        let mut bytes = vec![0; one.size];
        pattern.fill(&mut bytes, 0);
        let mut places = Places { writer, all, places: Vec::new() };
        Ok(move |op| {
            pattern.tag(&mut bytes, op);
            let mut entry = log.begin_entry()?;
            let record = entry.write_chunk(&bytes)?;
            entry.commit()?;
            places.places.push(record.position);
            Ok::<(), io::Error>(())
        })
    })?;
    let mut verified = 0;
    let mut bytes = vec![0; one.size];
    for (writer, places) in all.lock().expect("nobody panics with it").iter().enumerate() {
        let pattern = Pattern::new(writer as u32, one.size);
        for (op, position) in places.iter().enumerate().rev().take(LAST) {
            // A file that was used again has another name: its entries are gone, as they should be.
            let Ok(mut reader) = log.read_at(*position) else { continue };
            reader.read_exact(&mut bytes)?;
            ensure!(pattern.holds(&bytes, op as u64), "entry {op} of writer {writer} is not what was committed");
            verified += 1;
        }
    }
    log.shutdown()?;
    Ok(Outcome {
        work: "durable".to_owned(),
        by: name.to_owned(),
        writers: one.writers,
        size: one.size,
        ops: done.ops(),
        failed: done.failed,
        verified,
        seconds: done.elapsed.as_secs_f64(),
        latency_us: Latency::of(&done.latencies),
        notes: done.errors,
    })
}

/// A writer's entries; handed over when it ends.
struct Places {
    writer: u32,
    places: Vec<LogPosition>,
    all: Arc<Mutex<Vec<Vec<LogPosition>>>>,
}

impl Drop for Places {
    fn drop(&mut self) {
        if let Ok(mut all) = self.all.lock() {
            all[self.writer as usize] = std::mem::take(&mut self.places);
        }
    }
}
