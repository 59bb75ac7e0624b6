//! The storage trait: all disk operations of the journal, and nothing else.
//!
//! Invariants, for every implementation (the operating system here, the simulated disk in `sim/`):
//! - **Positional and owned.** A write takes its buffer and returns it with the result. So an engine that hands the
//!   memory to the kernel (a ring) can hold it as long as the kernel does.
//! - **Several in flight.** Every method takes `&self`; calls on one file from several threads run at once. Nothing
//!   here orders them: the committer does. Where [`Storage::ring`] has one, operations begin there without a thread for
//!   each, on the same files, under the same rules.
//! - **Whole or failed.** A short write is continued until all is written; a write of zero bytes is an error
//!   (`WriteZero`), never a loop. After an error nothing is known about the bytes of that call.
//! - **A sync promises only the writes that were complete when it was called**, and returns an error once per open
//!   file. For several buffered writes at once, open the file once for each (see [`Storage::open`]).
//! - **A range sync is no sync**: its promise has conditions, which [`File::sync_range`] names.
//! - **Names are durable only after [`Storage::sync_dir`].**
//!
//! Only this folder touches the file system; `unsafe` in this crate is here alone. Files of the log are never
//! memory-mapped: a mapping turns a disk error into SIGBUS and lets the kernel write back any page.

pub(crate) mod body;
mod buffer;
pub mod bulk;
pub mod device;
mod engine;
mod extents;
mod file;
mod heap;
mod latch;
mod latched_file;
mod lease;
mod os;
pub mod probe;
mod storage;
pub(crate) mod time_sync;
pub mod uring;

use std::io;

pub use buffer::IoBuf;
pub use engine::{Engine, EngineReport, EngineWish, Fallback, FallbackReason};
pub use file::{Access, Durability, File, Lock};
pub(crate) use file::{read_once, read_thrice};
pub use heap::{release_free_memory, return_large_memory};
pub use latch::Latched;
pub use latched_file::LatchedFile;
pub use os::{EngineOptions, OsStorage};
pub use storage::{Entry, EntryKind, Space, Storage, TakeOver, Witness};

/// A folder on the file system that holds the build: the one for temporary files may be in memory.
#[cfg(test)]
pub(crate) fn real_folder() -> tempfile::TempDir {
    let tests = std::env::current_exe().expect("a test has a name");
    tempfile::tempdir_in(tests.parent().expect("in a folder")).expect("a folder")
}

/// Result of a call on a name that need not exist: nothing where it does not.
pub(crate) fn if_there<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        done => done.map(Some),
    }
}

/// Returns true if the device could not read one place, which means nothing for any other place.
pub(crate) fn is_bad_place(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// Returns true if the call was interrupted, or the kernel is short of memory for the moment.
pub(in crate::io) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy)
}
