//! The watermarks: what is received, written and durable.
//!
//! What must hold: `received >= written >= durable`; each is an exclusive end and moves only on observed success;
//! none of them ever falls within one [`Watermarks::failures`]. Whoever waits compares the `failures` that its append was
//! given under: a greater number means that the journal failed in between, and that what was not released by then is
//! answered "maybe written", even where recovery kept it.

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
    /// How often the journal has failed since it was opened.
    pub failures: u32,
    /// In how many recoveries since it was opened something was lost: a failed disk could not give it back, and somebody
    /// may have been told that it is written.
    pub losses: u32,
    /// Whether it takes appends now, and why not.
    pub accepting: Accepting,
}

/// Whether appends are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accepting {
    /// Yes.
    #[default]
    Yes,
    /// A write or sync failed; it recovers by itself.
    Failed,
    /// No space for a further segment, or it cannot be opened, and an append was refused for it or one of everyday size would be:
    /// a small one may still go in. It resumes by itself.
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

/// What somebody waits for: whichever comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// That `written` is this, or above; `u64::MAX` is never.
    pub written: u64,
    /// That `durable` is this, or above; `u64::MAX` is never.
    pub durable: u64,
}

impl Wants {
    /// Whether the watermarks have it.
    pub fn met(&self, watermarks: &Watermarks) -> bool {
        watermarks.written >= self.written || watermarks.durable >= self.durable
    }
}

/// The journal is gone or was given up: its watermarks do not move any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal is closed")]
pub struct Closed;
