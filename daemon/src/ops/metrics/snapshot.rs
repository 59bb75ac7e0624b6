//! Counters for the admin service: now, and a little earlier, so that one answer gives rates.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use clad_proto::grpc::v1;

use super::labels::Label;
use super::scrape::meters;
use super::table::{Family, Total};

/// Number of looks that are stored; with one a second, rates are those of the last ten seconds.
const SNAPSHOTS_MAX: usize = 10;

/// Counters at the last looks, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<VecDeque<v1::Counters>>);

impl Recent {
    /// Remembers the current counters, instead of the oldest.
    pub(crate) fn look(&self, started: Instant) {
        let now = counters(started);
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if looks.len() == SNAPSHOTS_MAX {
            looks.pop_front();
        }
        looks.push_back(now);
    }

    /// The oldest that is remembered.
    pub(crate) fn oldest(&self) -> Option<v1::Counters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).front().cloned()
    }
}

/// The current counters.
pub(crate) fn counters(started: Instant) -> v1::Counters {
    let uptime_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    let Some(m) = meters() else { return v1::Counters { uptime_us, ..v1::Counters::default() } };
    v1::Counters {
        uptime_us,
        appended_records: totals(&m.appended_records),
        appended_bytes: m.appended_bytes.get(),
        acked_records: totals(&m.acked_records),
        rejected_records: totals(&m.rejected_records),
        dropped_records: totals(&m.dropped_records),
        deduplicated_records: m.deduplicated_records.get(),
        corrupt_records: m.corrupt_records.get(),
        sync_failures: m.sync_failures.get(),
        segments_unprepared: m.unprepared.get(),
        rotations: totals(&m.rotations),
        retention_removed_segments: totals(&m.retained_away),
        io_fallbacks: totals(&m.io_fallbacks),
        append_duration_ns: m.append_duration.each().map(|(value, h)| (value.to_owned(), h.snapshot())).collect(),
        sync_duration_ns: Some(m.sync_duration.snapshot()),
        batch_records: Some(m.batch_records.snapshot()),
        batch_bytes: Some(m.batch_bytes.snapshot()),
    }
}

fn totals<L: Label>(family: &Family<L, Arc<Total>>) -> HashMap<String, u64> {
    family.each().map(|(value, total)| (value.to_owned(), total.get())).collect()
}
