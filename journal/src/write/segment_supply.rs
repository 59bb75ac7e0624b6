//! The segments behind the active one: prepared, being opened, or with room on the disk.
//!
//! Invariant: a segment that is counted here exists, or the disk had room for it when it was last looked at, and it was
//! not claimed since. Room on the disk proves nothing while a segment cannot be created or opened.

use crate::clock::Moment;
use crate::error::AppendError;
use crate::format::segment::SegmentHeader;

/// First pause before a segment is opened again after an error, doubled to the last.
const OPEN_RETRY_NS_MIN: u64 = 1_000_000_000;
const OPEN_RETRY_NS_MAX: u64 = 60_000_000_000;
/// Pause before the next check for space for a further segment.
const SPACE_RETRY_NS: u64 = 200_000_000;

/// Result of a check of the free space.
pub(crate) struct SpaceNews {
    /// Acceptance of appends has changed: now refused instead of taken, or the reverse.
    pub(crate) changed: bool,
    /// The operator was not notified yet.
    pub(crate) report: bool,
}

/// The segments that appends may still go into.
pub(crate) struct SegmentSupply {
    prepared: Option<SegmentHeader>,
    /// The running job has the segment that it opens: prepared, or claimed from [`Self::free_segments`].
    pub(super) coming: bool,
    /// Number of further segments that the disk has room for beside the prepared one, as last seen, without those
    /// claimed since.
    free_segments: u64,
    /// Value last published: no segment is prepared, and there is no room for one.
    pub(super) space_low: bool,
    /// Value last reported to the operator. A rotation that finds no room detects it first, but does not report it.
    space_reported: bool,
    /// An append was refused because no segment is available behind the active one, and none was opened since.
    pub(super) refused: bool,
    open_retry_ns: u64,
    /// Reason why the next segment could not be opened, except lack of room; and the pause before the next attempt.
    unopened: Option<String>,
    open_pause_ns: u64,
}

impl Default for SegmentSupply {
    fn default() -> Self {
        Self {
            prepared: None,
            coming: false,
            free_segments: 0,
            space_low: false,
            space_reported: false,
            refused: false,
            open_retry_ns: 0,
            unopened: None,
            open_pause_ns: OPEN_RETRY_NS_MIN,
        }
    }
}

impl SegmentSupply {
    /// Number of segments available behind the active one.
    pub(super) fn available(&self) -> u64 {
        let prepared = u64::from(self.prepared.is_some()) + u64::from(self.coming);
        // Room on the disk proves nothing where a segment cannot be created or opened.
        prepared + if self.unopened.is_some() { 0 } else { self.free_segments }
    }

    /// Segments that the disk has room for beside the prepared one, as last seen.
    pub(crate) fn free_segments(&self) -> u64 {
        self.free_segments
    }

    pub(crate) fn is_prepared(&self) -> bool {
        self.prepared.is_some()
    }

    /// Notes that an append was refused for want of a segment; `true` if that is news.
    pub(super) fn note_refused(&mut self) -> bool {
        !std::mem::replace(&mut self.refused, true)
    }

    /// Takes the next segment for a job: the prepared one, or one that is still to be made.
    pub(super) fn claim(&mut self) -> Option<SegmentHeader> {
        let prepared = self.prepared.take();
        self.coming = prepared.is_some();
        if !self.coming && self.unopened.is_none() && self.free_segments > 0 {
            (self.coming, self.free_segments) = (true, self.free_segments - 1);
        }
        prepared
    }

    /// Takes the prepared segment for a recovery, which opens it or makes its own.
    pub(super) fn take_prepared(&mut self) -> Option<SegmentHeader> {
        self.prepared.take()
    }

    /// Takes a segment back from a job that failed, or one that an earlier run had prepared.
    pub(crate) fn put_back(&mut self, prepared: Option<SegmentHeader>) {
        self.prepared = prepared;
    }

    /// Reason of a refusal for want of a segment.
    pub(super) fn refusal(&self) -> AppendError {
        match &self.unopened {
            Some(reason) => AppendError::NoSegment { reason: reason.clone() },
            None => AppendError::NoSpace,
        }
    }

    /// Reason why the next segment cannot be opened, except lack of room.
    pub(crate) fn unopened(&self) -> Option<String> {
        self.unopened.clone()
    }

    /// Time before which no segment is opened (boot time).
    pub(super) fn retry_at_ns(&self) -> u64 {
        self.open_retry_ns
    }

    /// Notes that a segment was opened.
    pub(super) fn opened(&mut self) {
        (self.unopened, self.coming, self.refused) = (None, false, false);
        self.open_pause_ns = OPEN_RETRY_NS_MIN;
    }

    /// Notes that there was no room for one.
    pub(super) fn found_no_room(&mut self, now: Moment) {
        (self.unopened, self.coming) = (None, false);
        self.open_retry_ns = now.boot_ns + SPACE_RETRY_NS;
        (self.space_low, self.free_segments) = (true, 0);
    }

    /// Notes that one could not be opened: room on the disk proves nothing then.
    pub(super) fn not_opened(&mut self, reason: String, now: Moment) {
        (self.unopened, self.coming) = (Some(reason), false);
        self.open_retry_ns = now.boot_ns + self.open_pause_ns;
        self.open_pause_ns = (self.open_pause_ns * 2).min(OPEN_RETRY_NS_MAX);
    }

    /// Notes that no segment can be created now: room on the disk counts again after one was created.
    pub(super) fn cannot_make(&mut self, reason: String) {
        self.unopened = Some(reason);
    }

    /// Takes a segment that was made ready.
    pub(super) fn made(&mut self, prepared: SegmentHeader) {
        self.prepared = Some(prepared);
        self.unopened = None;
        self.free_segments = self.free_segments.saturating_sub(1);
    }

    /// Notes that a recovery has claimed segments: the next look reports the rest.
    pub(super) fn recovered(&mut self) {
        (self.free_segments, self.prepared) = (0, None);
    }

    /// Sets what the start saw. The first look decides on the report to the operator.
    pub(super) fn begin_with(&mut self, free_segments: u64) {
        self.free_segments = free_segments;
    }

    /// Sets the number of further segments that have room, as just seen.
    pub(super) fn look(&mut self, free_segments: u64) -> SpaceNews {
        let low = free_segments == 0 && self.prepared.is_none();
        // An append may also wait for the last segment that is not prepared.
        let changed = self.space_low != low || (self.free_segments == 0) != (free_segments == 0);
        let report = self.space_reported != low;
        (self.free_segments, self.space_low, self.space_reported) = (free_segments, low, low);
        if changed {
            self.open_retry_ns = 0;
        }
        SpaceNews { changed, report }
    }
}
