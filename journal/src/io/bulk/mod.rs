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
//!   instead), no direct I/O (the page cache).
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
mod error;
mod options;
mod ring;
mod stats;
mod target;
mod threads;
mod write;
mod writer;

pub use error::{Error, Op};
pub use options::{Engine, Options};
pub use stats::Stats;
pub use writer::BulkWriter;
