//! The batched file writer: bulk sequential files at the speed of the disk, behind [`std::io::Write`] and
//! [`std::io::Seek`].
//!
//! Invariants:
//! - **A small write costs a copy.** Bytes collect in owned, aligned buffers; a full one goes to the kernel while the
//!   caller fills the next. Memory is bounded: `buffers` times `buffer_bytes`, taken at the start, in huge pages where
//!   there are any. A device takes a bounded number of memory pieces in a request, and each small page is one.
//! - **No error is lost.** The next call that meets a failed write returns its error, at the latest
//!   [`BulkWriter::flush`](std::io::Write::flush) or [`BulkWriter::sync`]. From then on every call fails with the same
//!   [`Error`], which names the place in the file. A writer that is dropped submits what it holds, and logs an error
//!   that no call returned (through `tracing`); [`BulkWriter::finish`] returns it.
//! - **`flush` may be called at any rate**: everything goes to the kernel, and writing continues. **`sync` makes it
//!   durable**, with the length, and with the name of a file that the writer made.
//! - **Direct writes never share a block with another write in flight.** They cover whole blocks. A part of a block
//!   (the end of a file at a flush, the first bytes behind an unaligned end) goes through the page cache while nothing
//!   is in flight. No byte that was written before is read or written again.
//! - **A feature that is not offered is replaced, and reported** in [`Stats::fallbacks`]: no io_uring (threads write
//!   instead), no registered buffers (`RLIMIT_MEMLOCK`), no direct I/O (the page cache).
//! - **Over a file of a storage** ([`Options::over`]) each write is one call of the caller's own thread, over before
//!   the call that brought it returns. A paced preparation of a segment then has one write under way and none between
//!   calls, and a simulated disk sees each.
//!
//! The writer has the file alone: nothing else may write to it meanwhile. The writer does not reserve space ahead:
//! measurements showed no gain, and a crash would leave zeroes behind the written bytes.
//!
//! ```text
//! write ─▶ buffer ─▶ engine (ring: io_uring | threads: pwrite | caller) ─▶ kernel
//!            ▲                        │
//!            └──────── free ◀─────────┘  completions, looked at when a buffer is needed
//! ```
//! The caller of [`std::io::Write`] brings no runtime. So the ring uses the `io-uring` crate directly, and the caller's
//! own calls drive it.

mod engine;
mod options;
mod ring;
mod target;
mod threads;
mod writer;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub use options::{Engine, MAX_BUFFER_BYTES, MAX_BUFFERS, Options};
pub use writer::BulkWriter;

/// Counters and state of a [`BulkWriter`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The engine that issues the writes; never [`Engine::Auto`].
    pub engine: Engine,
    /// True if whole blocks go around the page cache.
    pub direct: bool,
    /// True if the buffers are registered with the ring.
    pub registered: bool,
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
    /// Times that a caller waited because no buffer was free: the disk is slower than the caller.
    pub waits: u64,
    /// Syncs that reached the kernel (`fdatasync`, `fsync`, or `fsync` of the folder).
    pub syncs: u64,
    /// Buffers in all.
    pub buffers: usize,
    /// Buffers that are not being filled and that the kernel does not hold.
    pub free_buffers: usize,
}

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A write.
    Write,
    /// A sync of the file.
    Sync,
    /// A sync of the folder that holds its name.
    SyncFolder,
    /// Setting the length.
    SetLen,
}

/// The reason why a [`BulkWriter`] failed. It is stored: every later call fails with the same.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {source}", self.place())]
#[non_exhaustive]
pub struct Error {
    /// The operation that failed.
    pub op: Op,
    /// The file.
    pub path: PathBuf,
    /// Place in the file: the first byte of a write that failed, else the length of the file. Of several writes that
    /// failed, the first in the file; the kernel took everything below.
    pub position: u64,
    /// Bytes of the write, 0 for anything else.
    pub length: u64,
    /// The kernel's error.
    pub source: Arc<io::Error>,
}

impl Error {
    fn place(&self) -> String {
        let path = self.path.display();
        match self.op {
            Op::Write => format!("a write of {} bytes at byte {} of {path}", self.length, self.position),
            Op::Sync => format!("the sync of {path} up to byte {}", self.position),
            Op::SyncFolder => format!("the sync of the folder that holds {path}"),
            Op::SetLen => format!("setting the length of {path} to {}", self.position),
        }
    }

    /// Kind of the kernel's error, to tell errors apart.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

impl From<Error> for io::Error {
    /// An error of the same kind; the typed one is inside (`get_ref`, `downcast`).
    fn from(error: Error) -> Self {
        Self::new(error.source.kind(), error)
    }
}
