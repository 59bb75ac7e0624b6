//! The counters of a producer.

use clad_client::{DropReason, Stats};

use crate::pointers::Grows;

/// The counters of a producer since it was made; records, unless the name says otherwise.
///
/// Each record that was handed over or dropped is counted in `submitted`. Once it has ended it is counted in one of
/// `acked`, `failed` and `dropped`: when nothing waits, the three add up to the one.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct clad_stats {
    /// sizeof(clad_stats).
    pub size: usize,
    /// Handed over, or dropped instead.
    pub submitted: u64,
    /// Sent for the first time.
    pub sent: u64,
    /// Reached their level.
    pub acked: u64,
    /// Sent again.
    pub resent: u64,
    /// Ended with an error.
    pub failed: u64,
    /// Dropped, for whatever reason.
    pub dropped: u64,
    /// Of these: there was no room.
    pub dropped_no_room: u64,
    /// There was no room until the deadline.
    pub dropped_deadline: u64,
    /// They made room for newer ones.
    pub dropped_oldest: u64,
    /// They were below the severity that is kept.
    pub dropped_severity: u64,
    /// They had the level none, and no daemon took them in time.
    pub dropped_undelivered: u64,
    /// They were longer than the log takes.
    pub dropped_too_large: u64,
    /// The producer had ended.
    pub dropped_ended: u64,
    /// Records that report drops; they are counted in `submitted`, too.
    pub drop_reports: u64,
    /// Connections made after the first.
    pub reconnects: u64,
    /// Bytes that wait for their receipts now.
    pub buffered_bytes: u64,
    /// Appends that wait for their receipts now.
    pub pending_appends: u64,
}

// SAFETY: `size` is first; all are numbers.
unsafe impl Grows for clad_stats {}

impl From<&Stats> for clad_stats {
    fn from(stats: &Stats) -> Self {
        let dropped = |reason| stats.dropped_by.of(reason);
        Self {
            size: size_of::<Self>(),
            submitted: stats.submitted,
            sent: stats.sent,
            acked: stats.acked,
            resent: stats.resent,
            failed: stats.failed,
            dropped: stats.dropped,
            dropped_no_room: dropped(DropReason::NoRoom) + dropped(DropReason::RingFull),
            dropped_deadline: dropped(DropReason::Deadline),
            dropped_oldest: dropped(DropReason::Oldest),
            dropped_severity: dropped(DropReason::Severity),
            dropped_undelivered: dropped(DropReason::Undelivered),
            dropped_too_large: dropped(DropReason::TooLarge),
            dropped_ended: dropped(DropReason::Ended),
            drop_reports: stats.drop_reports,
            reconnects: stats.reconnects,
            buffered_bytes: stats.buffered_bytes,
            pending_appends: stats.pending_appends,
        }
    }
}
