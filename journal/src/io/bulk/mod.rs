//! The batched file writer: bulk sequential files at the speed of the disk, behind [`std::io::Write`] and
//! [`std::io::Seek`].
//!
//! What must hold:
//! - **A small write costs a copy.** Bytes gather in owned, aligned buffers; a full one goes to the kernel while the
//!   caller fills the next. Memory is bounded: `buffers` times `buffer_bytes`, taken at the start, in huge pages where there
//!   are any: a device takes a request in so many pieces of memory at most, and small pages are one each.
//! - **No error is lost.** A write that failed is told by the next call that meets it, at the latest by
//!   [`BulkWriter::flush`](std::io::Write::flush) or [`BulkWriter::sync`], and from then on every call fails with the
//!   same [`Error`], which names the place in the file. A writer that is dropped hands over what it holds and says an
//!   error that nobody was told through `tracing`; who wants to know calls [`BulkWriter::finish`].
//! - **`flush` may come as often as one likes**: everything goes to the kernel, and writing goes on. **`sync` makes it durable**, with the length, and with the name of a file that
//!   it made.
//! - **Direct writes never share a block with another write in flight.** They cover whole blocks; what does not fill
//!   one (the end of a file at a flush, the first bytes behind an unaligned end) goes through the page cache while
//!   nothing is in flight. No byte that was written before is read or written again.
//! - **What is not offered is done without, and said** in [`Stats::fallbacks`]: no io_uring (threads write instead), no
//!   registered buffers (`RLIMIT_MEMLOCK`), no direct I/O (the page cache).
//! - **Over a file of a storage** ([`Options::over`]) each write is one call of the caller's own thread, over before the call
//!   that brought it returns: who prepares a segment at a pace has one write under way and none between, and a simulated
//!   disk sees each.
//!
//! The file is the writer's alone: nobody else may write to it meanwhile. Its space is not reserved ahead: that was tried
//! and gained nothing here, and a crash would leave zeroes behind what was written.
//!
//! ```text
//! write ─▶ buffer ─▶ engine (ring: io_uring | threads: pwrite | caller) ─▶ kernel
//!            ▲                        │
//!            └──────── free ◀─────────┘  completions, looked at when a buffer is needed
//! ```
//! The caller of [`std::io::Write`] brings no runtime, so the ring stands on the `io-uring` crate itself and is turned
//! by the caller's own calls.

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

/// What a [`BulkWriter`] did so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// What issues the writes; never [`Engine::Auto`].
    pub engine: Engine,
    /// Whether whole blocks go around the page cache.
    pub direct: bool,
    /// Whether the buffers are registered with the ring.
    pub registered: bool,
    /// What was asked for and is not offered here, a sentence each, in the order in which it was found.
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
    /// Those that nobody fills and the kernel does not hold.
    pub free_buffers: usize,
}

/// What failed.
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

/// Why a [`BulkWriter`] gave up. Kept: every later call fails with the same.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {source}", self.place())]
#[non_exhaustive]
pub struct Error {
    /// What failed.
    pub op: Op,
    /// The file.
    pub path: PathBuf,
    /// Where in the file: the first byte of a write that failed, else the length of the file. Of several writes that
    /// failed, the first in the file; everything below was taken by the kernel.
    pub position: u64,
    /// Bytes of the write, 0 for anything else.
    pub length: u64,
    /// What the kernel said.
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

    /// What the kernel said, for who tells errors apart.
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
