//! Gauges that are not counted but looked up: set at each request, so that a gauge is never older than the answer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clad_journal::{Journal, NamedCursor};

use crate::ingest::rings::Rings;
use crate::ops::health::Health;
use crate::ops::metrics::{self, Broken, CursorLag, Watermark};

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
    metrics::cursors(cursors(journal), journal.held_bytes());
    metrics::ready(health.state().not_ready.is_none());
}

/// Lag of each cursor. The age of the oldest record that it has not read takes a read of one batch.
fn cursors(journal: &Journal) -> Vec<CursorLag> {
    let written = journal.watermarks().written;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let lag = |cursor: &NamedCursor| {
        let from = journal.unread_from(cursor);
        let records = written.saturating_sub(from);
        let (bytes, since) = match records {
            0 => (0, None),
            _ => (journal.bytes_from(from), journal.oldest_append_time(from)),
        };
        let since = since.and_then(|ns| u64::try_from(ns).ok()).map(Duration::from_nanos);
        let age = since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        CursorLag { name: cursor.name.clone(), records, bytes, age }
    };
    journal.cursors().iter().map(lag).collect()
}
