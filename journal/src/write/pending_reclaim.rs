//! Space of removed files that is not free yet.
//!
//! Invariant: removal for free space counts the space that is already on its way. A file's space comes back when the
//! last process that has it open closes it (a reader, a backup). With btrfs it comes back at its next commit (30 s),
//! with xfs after its worker has run. Without this every check finds too little, and files are removed without need.
//! Space not back after [`RECLAIM_WAIT_MAX`] is neither counted nor remembered any more.

use std::collections::VecDeque;
use std::time::Duration;

/// Twice the time after which btrfs commits.
const RECLAIM_WAIT_MAX: Duration = Duration::from_secs(60);

/// Removed bytes that are not free yet, as far as known.
#[derive(Debug, Default)]
pub(crate) struct PendingReclaim {
    /// Bytes and boot time, oldest first.
    awaited: VecDeque<(u64, u64)>,
    /// Free space at the last check, and the space used by the log itself by then.
    level: Option<u64>,
}

impl PendingReclaim {
    /// Notes a removed file. Entries that are too old are dropped here as well: without a rule for free space there is
    /// no check.
    pub(crate) fn removed(&mut self, bytes: u64, now_boot_ns: u64) {
        while self.awaited.pop_front_if(|(_, since)| is_over(*since, now_boot_ns)).is_some() {}
        self.awaited.push_back((bytes, now_boot_ns));
    }

    /// Returns the bytes still to come, minus those freed since the last check. `taken` counts the space that the log
    /// took for new files: otherwise space that was freed and taken again between two checks would not be seen.
    pub(crate) fn look(&mut self, free: u64, taken: u64, now_boot_ns: u64) -> u64 {
        let level = free.saturating_add(taken);
        let mut risen = level.saturating_sub(self.level.replace(level).unwrap_or(level));
        while let Some((bytes, since)) = self.awaited.front_mut() {
            let came = risen.min(*bytes);
            *bytes -= came;
            risen -= came;
            if *bytes > 0 && !is_over(*since, now_boot_ns) {
                break;
            }
            self.awaited.pop_front();
        }
        self.awaited.iter().map(|(bytes, _)| bytes).sum()
    }
}

fn is_over(since: u64, now_boot_ns: u64) -> bool {
    u128::from(now_boot_ns.saturating_sub(since)) >= RECLAIM_WAIT_MAX.as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn what_comes_back_is_not_awaited_any_more() {
        let mut pending_reclaim = PendingReclaim::default();
        assert_eq!(pending_reclaim.look(100, 0, 0), 0);
        pending_reclaim.removed(30, 0);
        pending_reclaim.removed(20, 0);
        assert_eq!(pending_reclaim.look(100, 0, SECOND), 50, "nothing came");
        assert_eq!(pending_reclaim.look(110, 0, 2 * SECOND), 40);
        assert_eq!(pending_reclaim.look(70, 0, 3 * SECOND), 40, "others took some");
        assert_eq!(pending_reclaim.look(95, 0, 4 * SECOND), 15, "the rest of the first, and a part of the second");
        assert_eq!(pending_reclaim.look(200, 0, 5 * SECOND), 0);
        pending_reclaim.removed(7, 5 * SECOND);
        assert_eq!(pending_reclaim.look(200, 0, 6 * SECOND), 7, "what came before it went is none of it");
    }

    /// Each segment that goes makes room for one that is made: nothing adds up.
    #[test]
    fn what_the_log_takes_hides_nothing() {
        let (mut pending_reclaim, mut taken) = (PendingReclaim::default(), 0);
        assert_eq!(pending_reclaim.look(100, taken, 0), 0);
        for second in 1..1000 {
            pending_reclaim.removed(10, second * SECOND);
            taken += 10;
            assert_eq!(pending_reclaim.look(100, taken, second * SECOND), 0);
        }
    }

    /// Files are removed by other rules, and there is no check of the free space.
    #[test]
    fn what_nobody_asks_for_does_not_add_up() {
        let mut pending_reclaim = PendingReclaim::default();
        for second in 0..1000 {
            pending_reclaim.removed(10, second * SECOND);
        }
        assert_eq!(pending_reclaim.awaited.len(), 60);
        assert_eq!(pending_reclaim.look(0, 0, 999 * SECOND), 600);
    }

    #[test]
    fn what_somebody_keeps_is_counted_on_for_a_minute() {
        let mut pending_reclaim = PendingReclaim::default();
        pending_reclaim.look(0, 0, 0);
        pending_reclaim.removed(10, SECOND);
        pending_reclaim.removed(20, 31 * SECOND);
        assert_eq!(pending_reclaim.look(0, 0, 60 * SECOND), 30);
        assert_eq!(pending_reclaim.look(0, 0, 61 * SECOND), 20);
        assert_eq!(pending_reclaim.look(0, 0, 91 * SECOND), 0);
    }
}
