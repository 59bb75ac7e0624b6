//! The watermarks: the received, written and durable ends.
//!
//! Invariant: `received >= written >= durable`; each is an exclusive end and moves only on observed success; none of
//! them ever falls within one [`Watermarks::failures`]. A waiter compares the `failures` under which its append was
//! accepted. A greater number means that the journal failed in between; anything unreleased by then is answered "maybe
//! written", even where recovery preserved it.

/// A level that an append can reach in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// It has an offset and is held in memory.
    Received,
    /// The kernel has completed the write.
    Written,
    /// It is on stable storage.
    Durable,
}

/// The watermarks at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Rises with every change: of two values, the greater is the later.
    pub version: u64,
    /// The epoch that appends are made in.
    pub epoch: u32,
    /// The first offset given in that epoch.
    pub epoch_first: u64,
    /// Offsets below this were given.
    pub received: u64,
    /// Offsets below this are written.
    pub written: u64,
    /// Offsets below this are durable.
    pub durable: u64,
    /// Number of failures of the journal since it was opened.
    pub failures: u32,
    /// Number of recoveries since it was opened that lost data: a failed disk could not return it, and a caller may
    /// have been notified that it is written.
    pub losses: u32,
    /// Acceptance of appends now, with the reason of a refusal.
    pub accepting: Accepting,
}

impl Watermarks {
    /// Gives the next offsets to an append, and returns the first of them.
    pub(crate) fn give(&mut self, count: u32) -> u64 {
        let first = self.received;
        let end = first.checked_add(count.into());
        self.received = end.expect("there is an offset for every record: one given twice would name two");
        self.version += 1;
        first
    }

    /// Moves `written` over batches whose write and all before it have completed.
    pub(crate) fn move_written(&mut self, end: u64) {
        assert!(
            self.written <= end,
            "`written` falls from {} to {end}: records that were acked would be lost",
            self.written
        );
        assert!(end <= self.received, "`written` passes {}: {end} was never given out", self.received);
        self.written = end;
    }

    /// Moves `durable` over batches that a sync covers.
    pub(crate) fn move_durable(&mut self, end: u64) {
        assert!(
            self.durable <= end,
            "`durable` falls from {} to {end}: records that were acked would be lost",
            self.durable
        );
        assert!(end <= self.written, "`durable` passes {}: what is not written would be acked as safe", self.written);
        self.durable = end;
    }

    /// Begins an epoch behind a recovery: everything below `end` is durable, or reported lost.
    pub(crate) fn begin_epoch(&mut self, epoch: u32, end: u64) {
        assert!(epoch >= self.epoch, "epoch {} falls to {epoch}: an offset would be given twice in one", self.epoch);
        (self.epoch, self.epoch_first) = (epoch, end);
        (self.received, self.written, self.durable) = (end, end, end);
    }
}

/// Acceptance of appends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accepting {
    /// Yes.
    #[default]
    Yes,
    /// A write or sync failed; it recovers by itself.
    Failed,
    /// No space for a further segment, or it cannot be opened, and an append was refused for it or one of everyday size
    /// would be: a small one may still go in. It resumes by itself.
    NoSpace,
    /// It is closing.
    Closing,
}

impl Watermarks {
    /// The watermark of a level.
    pub fn of(&self, level: Level) -> u64 {
        match level {
            Level::Received => self.received,
            Level::Written => self.written,
            Level::Durable => self.durable,
        }
    }
}

/// The condition of a wait: the first that comes true ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// That `written` is this, or above; `u64::MAX` is never.
    pub written: u64,
    /// That `durable` is this, or above; `u64::MAX` is never.
    pub durable: u64,
}

impl Wants {
    /// True if the watermarks have it.
    pub fn met(&self, watermarks: &Watermarks) -> bool {
        watermarks.written >= self.written || watermarks.durable >= self.durable
    }
}

/// The journal is gone or was abandoned: its watermarks do not move any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal is closed")]
pub struct Closed;
