//! Counters and state of a writer.

use super::options::Engine;

/// Counters and state of a [`BulkWriter`](super::BulkWriter).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The engine that issues the writes; never [`Engine::Auto`].
    pub engine: Engine,
    /// True if whole blocks go around the page cache.
    pub direct: bool,
    /// Features that were asked for and are not offered here, a sentence each, in the order in which they were found.
    pub fallbacks: Vec<String>,
    /// Bytes that callers handed in.
    pub bytes: u64,
    /// Writes around the page cache that were completed.
    pub direct_writes: u64,
    /// Bytes in them.
    pub direct_bytes: u64,
    /// Writes through the page cache that were completed.
    pub regular_writes: u64,
    /// Bytes in them.
    pub regular_bytes: u64,
    /// Writes that the kernel took only in part, and that were continued.
    pub short_writes: u64,
    /// Syncs that reached the kernel (`fdatasync`, `fsync`, or `fsync` of the folder).
    pub syncs: u64,
    /// Buffers that are not being filled and that the kernel does not hold.
    pub free_buffers: usize,
}
