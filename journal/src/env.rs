//! Environment of every part of an open journal: the disk, the clock, `clad.meta`, the settings, and the observer of
//! events.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::config::JournalConfig;
use crate::io::{Fallback, Storage};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, unpoisoned};
use crate::write::clock_trust::Doubt;
use crate::write::metafile::MetaFile;

/// An event for an operator to count or read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A panic under the journal's lock: an invariant of its own does not hold. Nothing was released by it, and from now
    /// on every call of the journal panics. A process that cannot do without it ends here: the next start finds all that
    /// was acknowledged. Emitted in the thread that panics, under the lock: nothing of the journal may be called.
    StateBroken,
    /// A start reads this segment, which has no footer.
    Scanning {
        /// Its number.
        segment: u64,
    },
    /// A batch was written (and synced, where the policy does both at once).
    Batch {
        /// Records in it.
        records: u32,
        /// Bytes in the file.
        bytes: u64,
        /// Synced with the write.
        synced: bool,
        /// Made by the thread that took it, with nothing in flight beside it.
        inline: bool,
        /// Time of the write.
        took: Duration,
    },
    /// A slower way is used, because the faster one is not available here; once for each reason.
    Fallback(Fallback),
    /// A separate sync was done.
    Synced {
        /// Time that it took.
        took: Duration,
    },
    /// A segment was sealed.
    Sealed {
        /// Its number.
        segment: u64,
        /// Its first offset.
        first_offset: u64,
        /// One past its last.
        end_offset: u64,
        /// Why.
        trigger: Trigger,
    },
    /// A rotation found no prepared segment and took unwritten space.
    Unprepared {
        /// Its number.
        segment: u64,
    },
    /// A write or sync failed; nothing is released until the journal has recovered.
    Failed {
        /// Item and reason.
        reason: String,
    },
    /// It recovered and takes appends again.
    Recovered {
        /// The new epoch.
        epoch: u32,
        /// Offset from which records were written again.
        from: u64,
        /// One past the last of them.
        to: u64,
    },
    /// An attempt to recover failed; there will be another.
    RecoveryFailed {
        /// Item and reason.
        reason: String,
        /// Time until the next.
        retry_in: Duration,
    },
    /// No further segment could be opened, for another reason than space; it is tried again.
    SegmentFailed {
        /// Item and reason.
        reason: String,
    },
    /// There is no space for another segment (`true`), or there is again.
    NoSpace(bool),
    /// Retention removed a segment.
    Removed {
        /// Its number.
        segment: u64,
        /// Its first offset.
        first_offset: u64,
        /// One past its last.
        end_offset: u64,
        /// The rule.
        rule: Rule,
    },
    /// Retention removed records that a cursor holds and has not read: there was no room for them, or too many were held.
    CursorLost {
        /// Its name.
        name: String,
        /// The first offset that it has not read, and
        from: u64,
        /// one past the last that is gone.
        to: u64,
    },
    /// A dead process's writes to a segment have not ended: nothing is read of it until they have (or, `over`, now they
    /// have). There is no bound to it but the disk's.
    WaitsForWrites {
        /// Its number.
        segment: u64,
        /// The wait is over.
        over: bool,
    },
    /// The file of a segment that retention removed became the next one.
    Recycled {
        /// The number that it had.
        segment: u64,
        /// The number that it has now.
        as_segment: u64,
    },
    /// It could have, but for this; its file was removed.
    NotRecycled {
        /// Its number.
        segment: u64,
        /// Why.
        reason: String,
    },
    /// Retention by age rests, because the wall clock is not to be believed.
    RetentionPaused(Doubt),
    /// Retention by age resumes.
    RetentionResumed,
    /// Records that were acknowledged cannot be found any more.
    Lost {
        /// First offset.
        from: u64,
        /// One past the last.
        to: u64,
    },
}

/// Reason why a segment was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// It was full.
    Size,
    /// It was old.
    Age,
    /// An operator asked.
    Command,
    /// The journal closed.
    Close,
    /// The journal recovered from a failure: the lost offsets, and the rewritten ones.
    Recovery,
}

/// Reason why a segment was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The log held too many bytes.
    MaxBytes,
    /// It was old.
    MaxAge,
    /// The file system was short of space.
    MinFree,
}

/// Receives every [`Event`]; called from the journal's threads, so it must not block.
pub type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

/// The ground that the parts of one journal share.
#[derive(Clone)]
pub(crate) struct Env {
    /// The disk.
    pub storage: Arc<dyn Storage>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The settings.
    pub config: JournalConfig,
    /// Receiver of events.
    pub observer: Observer,
    /// Writes in flight that the next segment is opened for.
    pub(crate) in_flight: Arc<AtomicUsize>,
    /// `clad.meta`.
    pub(crate) meta: Arc<MetaFile>,
    /// Held by the thread that creates, renames or removes the file of the next segment: the background thread, or a
    /// faster rotation. Without it one would remove a file that the other had just put to use.
    pub(crate) making: Arc<Mutex<()>>,
    /// Bytes that were taken for new segments, counted up.
    pub(crate) taken: Arc<AtomicU64>,
}

impl Env {
    pub(crate) fn emit(&self, event: Event) {
        (self.observer)(&event);
    }
    pub(crate) fn making(&self) -> MutexGuard<'_, ()> {
        unpoisoned(self.making.lock())
    }
    pub(crate) fn took(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }
    pub(crate) fn now(&self) -> crate::clock::Moment {
        crate::clock::Moment { real_ns: self.clock.real_ns(), boot_ns: self.clock.boot_ns() }
    }
}
