//! Settings of a journal by its embedder.

use std::time::Duration;

use crate::io::EngineWish;

/// Method by which the journal reaches `durable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Each append is its own write with its own sync; the next waits for it.
    PerMessage,
    /// Appends that arrive while a write is in flight share the next one.
    GroupCommit {
        /// The longest wait of the open batch for more appends while a write is in flight and another could start.
        max_delay: Duration,
        /// Bytes at which a batch is closed.
        max_bytes: u32,
        /// Writes in flight at most.
        in_flight: usize,
    },
    /// Batches as under [`Policy::GroupCommit`], written over written space, and then a range sync of them, which
    /// flushes no disk: durable where no device has a volatile cache (see
    /// [`crate::io::device::Substrate::range_sync`]).
    SyncFileRange {
        /// The longest wait of the open batch for more appends while a write is in flight and another could start.
        max_delay: Duration,
        /// Bytes at which a batch is closed.
        max_bytes: u32,
        /// Writes in flight at most.
        in_flight: usize,
    },
    /// Written at once; synced at this interval, or (zero) by the kernel when it likes.
    FireAndForget {
        /// Time between syncs.
        sync_interval: Duration,
    },
}

impl Policy {
    /// The default: [`Policy::GroupCommit`] with 5 ms, 1 MiB and two in flight.
    pub const GROUP_COMMIT: Self =
        Self::GroupCommit { max_delay: Duration::from_millis(5), max_bytes: 1 << 20, in_flight: 2 };

    /// The name that operators know.
    pub fn name(&self) -> &'static str {
        match self {
            Self::PerMessage => "per_message",
            Self::GroupCommit { .. } => "group_commit",
            Self::SyncFileRange { .. } => "sync_file_range",
            Self::FireAndForget { .. } => "fire_and_forget",
        }
    }

    pub(crate) fn syncs(&self) -> bool {
        !matches!(self, Self::FireAndForget { .. })
    }

    /// Bytes of a usual batch, at most: a single append may be larger.
    pub(crate) fn batch_bytes(&self) -> usize {
        match self {
            Self::GroupCommit { max_bytes, .. } | Self::SyncFileRange { max_bytes, .. } => *max_bytes as usize,
            _ => 1 << 20,
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.grouping().map_or(1, |(_, in_flight)| in_flight.max(1))
    }

    /// The longest wait for more appends, and the most writes in flight, where batches wait behind a write in flight.
    pub(crate) fn grouping(&self) -> Option<(Duration, usize)> {
        match self {
            Self::GroupCommit { max_delay, in_flight, .. } | Self::SyncFileRange { max_delay, in_flight, .. } => {
                Some((*max_delay, *in_flight))
            }
            _ => None,
        }
    }

    /// True if it matters that writes into a segment change data blocks alone.
    pub(crate) fn needs_in_place(&self) -> bool {
        matches!(self, Self::SyncFileRange { .. })
    }

    /// True if segments are written through the page cache, even where the file system can do without.
    pub(crate) fn is_cached(&self) -> bool {
        matches!(self, Self::FireAndForget { .. })
    }
}

/// Rules for the removal of sealed segments. All zero: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Remove the oldest while the log holds more than this.
    pub max_bytes: u64,
    /// Remove a segment when its youngest record was appended longer ago than this.
    pub max_age: Duration,
    /// Remove the oldest while the file system has less than this free.
    pub min_free: u64,
    /// Most payload bytes of one owner in the stored log; 0: no bound. It removes nothing: appends above it are
    /// refused.
    pub per_owner_bytes: u64,
    /// Never go below this many bytes, whatever the other rules say.
    pub keep_bytes: u64,
    /// Most bytes that the rules would remove, and that stay because a cursor that holds has not read them. 0: as many as
    /// `max_bytes`, else half of the free space at the start. A full disk removes them all the same.
    pub max_held_bytes: u64,
}

impl Retention {
    /// True if a rule removes segments.
    pub fn removes(&self) -> bool {
        self.max_bytes > 0 || !self.max_age.is_zero() || self.min_free > 0
    }

    /// Most bytes that stay for cursors, where half of the free space at the start was so many.
    pub(crate) fn held_at_most(&self, half_free: u64) -> u64 {
        [self.max_held_bytes, self.max_bytes].into_iter().find(|bytes| *bytes > 0).unwrap_or(half_free)
    }
}

/// Settings of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalConfig {
    /// Method to reach `durable`.
    pub policy: Policy,
    /// Engine that issues the writes.
    pub io_engine: EngineWish,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Most payload bytes of one append; must fit a segment with [`SEGMENT_OVERHEAD_BYTES`] to spare.
    pub max_append_bytes: u32,
    /// Declaration by the operator that every disk below preserves accepted data through a power cut.
    pub power_loss_protected: bool,
    /// True if a segment that retention removes may become the next one, where zeroes would be written for that.
    pub recycle: bool,
    /// Preparing never takes the file system below this.
    pub reserve_free: u64,
    /// Seal the active segment when its first record is this old (boot time); zero: never.
    pub rotate_after: Duration,
    /// Rules of removal.
    pub retention: Retention,
    /// Producers that are remembered.
    pub max_producers: usize,
    /// Appends that a producer may have unacknowledged, and that are remembered of it.
    pub window: usize,
    /// A silent producer is not forgotten before this.
    pub keep_producer: Duration,
    /// Appends that are remembered by a resend key, at most: fewer where segments are small (FORMAT.md, section 6). 0: none.
    pub resend_entries: usize,
    /// Time for which such an append is remembered, as long as appends are taken. Zero: none is.
    pub resend_keep: Duration,
    /// Origins that are taken: streams of other logs that are forwarded here. Fewer where segments are small (FORMAT.md,
    /// section 6).
    pub max_origins: usize,
    /// Bytes of the newest batches that stay in memory for readers.
    pub recent_bytes: usize,
}

/// Room that a segment must have beyond its largest append: header, batch header, and a small footer.
pub const SEGMENT_OVERHEAD_BYTES: u64 = 32 * 1024;
/// The smallest segment.
pub const SEGMENT_BYTES_MIN: u64 = 64 * 1024;

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            policy: Policy::GROUP_COMMIT,
            io_engine: EngineWish::Auto,
            segment_bytes: 64 << 20,
            max_append_bytes: 4 << 20,
            power_loss_protected: false,
            recycle: true,
            reserve_free: 64 << 20,
            rotate_after: Duration::ZERO,
            retention: Retention::default(),
            max_producers: 1024,
            window: 256,
            keep_producer: Duration::from_secs(600),
            resend_entries: 0,
            resend_keep: Duration::ZERO,
            max_origins: 64,
            recent_bytes: 2 << 20,
        }
    }
}

impl JournalConfig {
    /// Describes the errors in the settings.
    ///
    /// # Errors
    /// The sentence to show.
    pub fn check(&self) -> Result<(), String> {
        if self.segment_bytes < SEGMENT_BYTES_MIN || !self.segment_bytes.is_multiple_of(4096) {
            return Err(format!(
                "segment_bytes is {}: at least {SEGMENT_BYTES_MIN}, a multiple of 4096",
                self.segment_bytes
            ));
        }
        let need = u64::from(self.max_append_bytes) + SEGMENT_OVERHEAD_BYTES;
        if need > self.segment_bytes {
            return Err(format!(
                "segment_bytes is {}, an append of max_append_bytes ({}) needs {need} with header and footer",
                self.segment_bytes, self.max_append_bytes
            ));
        }
        Ok(())
    }
}
