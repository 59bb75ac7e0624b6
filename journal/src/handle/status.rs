//! Status of a journal: its numbers, its segments, and the progress of its threads.

use std::time::Duration;

use super::Journal;
use crate::format::origin::OriginEntry;
use crate::io::EngineReport;
use crate::read::listing::{SegmentSummary, summary};
use crate::sync::atomic::Ordering;
use crate::sync::{has_ended, unpoisoned};
use crate::write::watermarks::Watermarks;

/// Reason why a journal makes no progress by itself any more, for a watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stalled {
    /// A thread has ended though the journal is open.
    #[error("a thread of the journal has ended")]
    Ended,
    /// No writing thread answered since the last request, and not all of them wait for the disk.
    #[error("the journal's writing threads do not get on, and it is not the disk that they wait for")]
    Silent,
}

/// A journal's numbers at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// The log's id.
    pub log_id: [u8; 16],
    /// The watermarks.
    pub watermarks: Watermarks,
    /// Offsets below this were removed by retention.
    pub lowest_offset: u64,
    /// Segments in the folder, the prepared one included.
    pub segments: usize,
    /// Total bytes of these segments.
    pub bytes: u64,
    /// True if the next segment is ready.
    pub prepared: bool,
    /// Greatest append time in the oldest sealed segment, real: everything appended later is still stored. `None`
    /// before one is sealed, or shortly after a start or a removal, while its footer was not read yet.
    pub oldest_segment_ns: Option<i64>,
    /// Reason why the journal does not take appends, if it failed.
    pub failure: Option<String>,
    /// Reason why no further segment can be opened, except lack of room.
    pub unopened: Option<String>,
    /// Bytes that wait for the disk.
    pub in_flight_bytes: usize,
    /// Age of the oldest record that is not durable.
    pub oldest_undurable: Option<Duration>,
    /// Age of the oldest write or sync at the disk that is not done. (Data that waits for the next sync of
    /// `fire_and_forget` is not included: the disk has no request for it.)
    pub disk_busy: Option<Duration>,
    /// Producers that are remembered.
    pub producers: usize,
    /// Streams of other logs.
    pub origins: Vec<OriginEntry>,
    /// Appends that are remembered by a resend key.
    pub resend_entries: usize,
    /// Of these, how many were forgotten before their time since the start, for want of a place.
    pub resend_evicted_early: u64,
    /// Owners that have most bytes in the stored log, as far as it was counted ([`crate::write::owner_bytes`]), and how many.
    pub owners: Vec<(u64, u64)>,
    /// Room in the file system.
    pub space: crate::io::Space,
    /// The engine that issues the writes, its reason, and the missing features.
    pub engine: EngineReport,
    /// Batches that the accepting thread wrote itself, because nothing was in flight.
    pub inline_batches: u64,
    /// Segments since the start that were written over one that retention removed.
    pub recycled: u64,
}

/// Owners that a status shows.
const STATUS_OWNERS_MAX: usize = 16;

impl Journal {
    /// Requests a heartbeat from the writing threads, and reports if the previous request was answered. Call it every
    /// few seconds: between two calls a thread that can run has run.
    ///
    /// A slow disk is no stall: threads inside a call to it answer when it is over.
    ///
    /// # Errors
    /// [`Stalled`]: a restart may help, waiting does not.
    pub fn heartbeat(&self) -> Result<(), Stalled> {
        if self.shared.is_closing() {
            return Ok(()); // threads end, and the drain has a deadline of its own
        }
        let threads = unpoisoned(self.threads.lock());
        if threads.iter().any(has_ended) {
            return Err(Stalled::Ended);
        }
        let writers = threads.len().saturating_sub(1); // one prepares
        drop(threads);
        let mut core = self.shared.core();
        let answered = core.given == core.asked;
        if answered {
            core.asked += 1;
        }
        drop(core);
        self.shared.work.notify_one();
        let all_at_disk = writers > 0 && self.shared.at_disk.load(Ordering::Relaxed) >= writers;
        if answered || all_at_disk { Ok(()) } else { Err(Stalled::Silent) }
    }

    /// Current numbers.
    pub fn status(&self) -> Status {
        let shared = &self.shared;
        let meta = shared.env().meta.get();
        let (sealed, sealed_bytes) = shared.catalog().totals();
        let oldest_segment_ns = shared.catalog().first().and_then(|s| s.known_summary()).map(|s| s.max_append_ns);
        let capacity = shared.env().config.segment_bytes;
        let now = shared.env().clock.boot_ns();
        // Calls to the file system may hang (a network, FUSE): no thread waits for them with the core locked.
        let (space, engine) = (shared.storage().space().unwrap_or_default(), shared.storage().engine());
        let core = shared.core();
        let c = &core.committer;
        let since = |then| Duration::from_nanos(now.saturating_sub(then));
        Status {
            log_id: meta.log_id,
            watermarks: c.watermarks(),
            lowest_offset: meta.lowest_offset,
            segments: sealed + c.segments.held(),
            bytes: sealed_bytes + c.segments.held() as u64 * capacity,
            prepared: c.segments.supply.is_prepared(),
            oldest_segment_ns,
            failure: c.lifecycle.failure(),
            unopened: c.segments.supply.unopened(),
            in_flight_bytes: c.writer.in_flight_bytes(),
            oldest_undurable: c.oldest_undurable_boot_ns().map(since),
            disk_busy: c.writer.disk_busy_since_boot_ns().map(since),
            producers: c.sequencer.producers_len(),
            origins: c.sequencer.origins().all(),
            resend_entries: c.sequencer.resends().len(),
            resend_evicted_early: c.sequencer.resends().evicted_early(),
            owners: c.quota.held.largest(STATUS_OWNERS_MAX),
            space,
            engine,
            inline_batches: shared.executor.inline_batches(),
            recycled: shared.recycled.load(Ordering::Relaxed),
        }
    }

    /// The number of the active segment, if there is one at this moment.
    pub fn active_segment(&self) -> Option<u64> {
        self.shared.active_extent().map(|(number, ..)| number)
    }

    /// All segments with records, oldest first. Reads the footers that were not needed before.
    pub fn segments(&self) -> Vec<SegmentSummary> {
        let storage = self.shared.storage();
        let mut all: Vec<_> = self.shared.catalog().all().iter().map(|s| summary(s, storage.as_ref())).collect();
        let core = self.shared.core();
        if let Some((number, first_offset, pos)) = core.committer.segments.active_extent() {
            let end_offset = core.committer.watermarks().written.max(first_offset);
            let active = SegmentSummary {
                number,
                first_offset,
                end_offset,
                bytes: pos,
                sealed: false,
                times_ns: None,
                damaged: false,
            };
            all.push(active);
        }
        all
    }
}
