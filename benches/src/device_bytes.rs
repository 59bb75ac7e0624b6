//! Bytes that reach the device for each durable record of a lone writer: its blocks, the file system's own, and the zeroes
//! that are written ahead.
//!
//! Invariants: the device is the bench's own (a loop device), so that nobody else's writes are counted; the count is the
//! kernel's (`/proc/diskstats`); it starts when a log is in its stride (a segment is active, the next one prepared) and ends
//! after so many whole segments, in the same state, so that each segment's preparation is in it once.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clad_journal::{Append, Journal, JournalConfig, Level};

use crate::clock;
use crate::outcome::Outcome;
use crate::pattern::Pattern;
use crate::place::Place;
use crate::results::{Aim, Results};
use crate::stats::Spread;
use crate::waiting::Waiting;
use crate::writers::Limit;

/// At most so many bytes for each record of 128 bytes: its block of 4096, written again for each, and what comes with it.
const DEVICE_BYTES_MAX: f64 = 4800.0;
/// Bytes of a segment.
const SEGMENT: u64 = 4 << 20;
/// A sector of `/proc/diskstats`, whatever the device's own are.
const SECTOR: u64 = 512;
/// Looks, a millisecond apart, for a prepared segment.
const WAIT_POLLS_MAX: u32 = 60_000;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How often.
    pub rounds: u32,
    /// Bytes of a record.
    pub size: usize,
    /// Segments that are filled.
    pub segments: u64,
}

impl Plan {
    /// Runs it.
    ///
    /// # Errors
    /// The folder has no device of its own, or something failed.
    pub fn run(&self, place: &Place) -> Result<Results> {
        ensure!(!place.substrate().below.is_empty(), "others write to this device: give --on ext4 or --on xfs");
        let mut results = Results::new("device_bytes", place, self.rounds, Limit::ops(1));
        let (mut runs, mut bytes) = (Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            let (run, its) = self.once(place)?;
            bytes.push(its as f64 / run.ops as f64);
            runs.push(run.checked()?);
        }
        let cell = [("record", format!("{} B", self.size)), ("segment", format!("{} MiB", SEGMENT >> 20))];
        let cell: Vec<(&str, &str)> = cell.iter().map(|(name, is)| (*name, is.as_str())).collect();
        let cost = Spread::of(bytes);
        results.add(&cell, &runs).beside.insert("device bytes a record".to_owned(), cost);
        results.aims.push(Aim {
            work: format!("bytes that reach the device for a durable record of {} B", self.size),
            of: "group_commit, 1 writer".to_owned(),
            beside: vec![format!("{DEVICE_BYTES_MAX} bytes, to these")],
            missing: Vec::new(),
            at_least: 1.0,
            ratio: Spread {
                median: DEVICE_BYTES_MAX / cost.median,
                min: DEVICE_BYTES_MAX / cost.max,
                max: DEVICE_BYTES_MAX / cost.min,
            },
        });
        Ok(results)
    }

    fn once(&self, place: &Place) -> Result<(Outcome, u64)> {
        let dir = tempfile::tempdir_in(place.path())?;
        let config = JournalConfig {
            segment_bytes: SEGMENT,
            max_append_bytes: 64 << 10,
            reserve_free: 0,
            ..JournalConfig::default()
        };
        let journal = Journal::open_dir(dir.path(), config, Arc::new(|_| {}))?;
        let (pattern, mut payload) = (Pattern::new(0, self.size), vec![0; self.size]);
        let mut waiting = Waiting::on(&journal)?;
        let mut sequence = 0;
        // Appends until that segment is the active one and the next is prepared.
        let mut fill_to = |segment: u64| -> Result<u64> {
            while journal.active_segment().is_none_or(|active| active < segment) {
                pattern.fill(&mut payload, sequence);
                waiting.append(append(sequence, &payload))?;
                sequence += 1;
            }
            for _ in 0..WAIT_POLLS_MAX {
                if journal.status().prepared {
                    return Ok(sequence);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            anyhow::bail!("no segment was prepared")
        };
        let first = fill_to(1)?;
        let (before, begun) = (written(place)?, clock::now());
        let records = fill_to(1 + self.segments)? - first;
        let (took, bytes) = (clock::now() - begun, written(place)? - before);
        let durable = journal.watermarks().durable;
        ensure!(journal.close(Duration::from_secs(60)), "the journal did not come to a clean end");
        let outcome = Outcome {
            work: "device_bytes".to_owned(),
            by: "group_commit".to_owned(),
            writers: 1,
            size: self.size,
            ops: records,
            verified: durable - first,
            seconds: took.as_secs_f64(),
            ..Outcome::default()
        };
        Ok((outcome, bytes))
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

/// Bytes that were written to the device since it is there.
fn written(place: &Place) -> Result<u64> {
    let device = place.substrate().devices.first().context("the folder stands on no device")?;
    let stats = std::fs::read_to_string("/proc/diskstats")?;
    sectors(&stats, device.number).map(|sectors| sectors * SECTOR).context("the kernel does not count this device")
}

/// The seventh figure behind the name: sectors written.
fn sectors(stats: &str, (major, minor): (u32, u32)) -> Option<u64> {
    let (major, minor) = (major.to_string(), minor.to_string());
    let mut lines = stats.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|fields| fields.first() == Some(&&*major) && fields.get(1) == Some(&&*minor))?;
    line.get(9)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sectors_of_one_device() {
        let stats = "   7       0 loop0 1 2 3 4 5 6 700 8 9 10 11\n   7       1 loop1 1 2 3 4 5 6 42 8 9 10 11\n";
        assert_eq!((sectors(stats, (7, 1)), sectors(stats, (7, 2))), (Some(42), None));
    }
}
