//! The ways to make a write durable that are tried, as a table.

/// The space that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Behind the end of the file.
    Append,
    /// A size set by `ftruncate`: no blocks yet.
    Truncated,
    /// Reserved by `fallocate`, never written.
    Fallocated,
    /// Written with zeroes and synced.
    Zeroed,
}

/// Way to issue a write and make it durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A write through the page cache, not synced at all: the cost of `written`.
    Written,
    /// A write, then `fdatasync`.
    Fdatasync,
    /// `pwritev2` with `RWF_DSYNC` through the page cache.
    Dsync,
    /// The same around the page cache.
    DirectDsync,
    /// A write, then `sync_file_range` that waits for it. Never flushes a disk's cache.
    SyncFileRange,
    /// [`Way::DirectDsync`] from so many threads at once.
    Threads(u32),
    /// [`Way::DirectDsync`] through io_uring, so many in flight.
    Ring(u32),
}

/// One way to make a write durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// The space that is written to.
    pub space: Space,
    /// The way to write.
    pub way: Way,
}

const fn method(space: Space, way: Way) -> Method {
    Method { space, way }
}

/// Everything that is tried, in the order in which it reads best.
pub const METHODS: [Method; 18] = [
    method(Space::Append, Way::Fdatasync),
    method(Space::Append, Way::Dsync),
    method(Space::Truncated, Way::Fdatasync),
    method(Space::Truncated, Way::Dsync),
    method(Space::Fallocated, Way::Fdatasync),
    method(Space::Fallocated, Way::Dsync),
    method(Space::Fallocated, Way::DirectDsync),
    method(Space::Zeroed, Way::Fdatasync),
    method(Space::Zeroed, Way::Dsync),
    method(Space::Zeroed, Way::DirectDsync),
    method(Space::Zeroed, Way::SyncFileRange),
    method(Space::Zeroed, Way::Threads(2)),
    method(Space::Zeroed, Way::Threads(4)),
    method(Space::Zeroed, Way::Threads(8)),
    method(Space::Zeroed, Way::Ring(2)),
    method(Space::Zeroed, Way::Ring(4)),
    method(Space::Zeroed, Way::Ring(8)),
    method(Space::Zeroed, Way::Written),
];

impl Space {
    /// For programs and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Truncated => "ftruncated",
            Self::Fallocated => "fallocated",
            Self::Zeroed => "zero-written",
        }
    }
}

impl Way {
    /// For programs and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Written => "write",
            Self::Fdatasync => "write + fdatasync",
            Self::Dsync => "RWF_DSYNC",
            Self::DirectDsync => "O_DIRECT + RWF_DSYNC",
            Self::SyncFileRange => "write + sync_file_range",
            Self::Threads(_) => "threads, O_DIRECT + RWF_DSYNC",
            Self::Ring(_) => "io_uring, O_DIRECT + RWF_DSYNC",
        }
    }

    /// Operations under way at once.
    pub const fn in_flight(self) -> u32 {
        match self {
            Self::Threads(n) | Self::Ring(n) => n,
            _ => 1,
        }
    }

    /// Returns true if a flush is sent to the disk: without one only a disk without a volatile cache keeps the write.
    pub const fn flushes(self) -> bool {
        !matches!(self, Self::Written | Self::SyncFileRange)
    }

    pub(super) const fn is_direct(self) -> bool {
        matches!(self, Self::DirectDsync | Self::Threads(_) | Self::Ring(_))
    }
}
