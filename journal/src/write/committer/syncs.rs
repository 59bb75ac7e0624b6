//! Syncs beside the writes: the running one, and written data that waits for the next.

use crate::clock::Moment;

/// Under `fire_and_forget` a sync beside the writes begins at so many unsynced bytes, whatever the interval.
const EARLY_SYNC_BYTES: u64 = 16 << 20;

/// Written data that waits for a separate sync: batches, if the policy does not sync writes; a commit marker, under
/// any policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unsynced {
    /// Boot time at which the oldest batch of it was taken.
    pub(super) since_boot_ns: Option<u64>,
    /// First offset in the block in which it begins: a write repeats that block, so that offset is affected too.
    pub(super) from: u64,
}

/// The syncs.
#[derive(Default)]
pub(super) struct Syncs {
    pub(super) running: bool,
    /// Boot time at which the last sync began.
    pub(super) last_ns: u64,
    /// A caller waits until everything below this is durable.
    target: u64,
    /// Written since the last sync began, under `fire_and_forget`.
    pub(super) unsynced_bytes: u64,
    pub(super) unsynced: Option<Unsynced>,
    /// Data that was unsynced when the running sync began.
    syncing: Option<Unsynced>,
}

impl Syncs {
    pub(super) fn new(now_ns: u64) -> Self {
        Self { last_ns: now_ns, ..Self::default() }
    }

    pub(super) fn begin(&mut self, now: Moment) {
        (self.running, self.last_ns, self.unsynced_bytes) = (true, now.boot_ns, 0);
        self.syncing = self.unsynced.take();
    }

    pub(super) fn end(&mut self, upto: u64) {
        assert!(self.running, "a sync up to {upto} ends that was not begun: it would be acked as durable");
        (self.running, self.syncing) = (false, None);
    }

    /// Requests a sync of everything below an offset.
    pub(super) fn want(&mut self, upto: u64) {
        self.target = self.target.max(upto);
    }

    /// True before the interval is over: a caller asked, or the unsynced bytes would stall the sealing of the segment.
    pub(super) fn is_early(&self, durable: u64) -> bool {
        self.target > durable || self.unsynced_bytes >= EARLY_SYNC_BYTES
    }

    /// Notes a completed write that was not synced and is not in the list: the first start stays. A commit marker has
    /// no time: no caller waits for it, and it needs no sync of its own.
    pub(super) fn note(&mut self, from: u64, since_boot_ns: Option<u64>) {
        let unsynced = self.unsynced.get_or_insert(Unsynced { since_boot_ns, from });
        unsynced.since_boot_ns = unsynced.since_boot_ns.or(since_boot_ns);
    }

    /// Notes that nothing waits for a sync any more: all of it is sealed.
    pub(super) fn clear(&mut self) {
        (self.unsynced, self.syncing) = (None, None);
    }

    /// Data that is not synced, oldest first.
    pub(super) fn all_unsynced(&self) -> impl Iterator<Item = &Unsynced> {
        self.syncing.iter().chain(&self.unsynced)
    }
}
