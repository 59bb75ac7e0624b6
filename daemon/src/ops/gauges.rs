//! Gauges that are not counted but looked up: set at each request, so that a gauge is never older than the answer.

use clad_journal::Journal;

use crate::ingest::rings::Rings;
use crate::ops::health::Health;
use crate::ops::metrics::{self, Broken, Watermark};

/// Brings the gauges up to date. Asks the file system for its space.
pub(crate) fn look(journal: &Journal, rings: &Rings, health: &Health, reserve_free: u64) {
    let s = journal.status();
    metrics::offset(Watermark::Received, s.watermarks.received);
    metrics::offset(Watermark::Written, s.watermarks.written);
    metrics::offset(Watermark::Durable, s.watermarks.durable);
    metrics::inflight_bytes(s.in_flight_bytes as u64);
    metrics::resend_window(s.resend_entries as u64, s.resend_evicted_early);
    metrics::origins(s.origins.len() as u64);
    metrics::oldest_undurable(s.oldest_undurable.unwrap_or_default());
    metrics::horizon(s.lowest_offset, s.oldest_segment_ns);
    metrics::segments(s.segments as u64, s.bytes, s.prepared);
    metrics::disk(s.space.free, s.space.total, reserve_free);
    let lost = journal.losses();
    let broken = [
        (Broken::Missing, lost.missing),
        (Broken::Unreadable, lost.unreadable),
        (Broken::MissingFooter, lost.missing_footer),
    ];
    metrics::lost(lost.records, broken);
    let (count, bytes) = rings.totals();
    metrics::rings(count as u64, bytes as u64, rings.stalled() as u64);
    // Where there is no store, none has failed.
    let (unstored, has_store) = rings.unstored();
    metrics::rings_unprotected(if has_store { unstored as u64 } else { 0 });
    metrics::ready(health.state().not_ready.is_none());
}
