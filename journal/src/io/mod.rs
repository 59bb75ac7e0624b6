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

mod buffer;
pub mod bulk;
pub mod device;
mod engine;
mod extents;
mod heap;
mod latch;
mod lease;
mod os;
pub mod probe;
pub(crate) mod time_sync;
pub mod uring;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use buffer::IoBuf;
pub use engine::{Engine, EngineReport, EngineWish, Fallback, FallbackReason, Grounds, OnFallback, choose};
pub use heap::release_free_memory;
pub use latch::{Latch, Latched, LatchedFile};
pub use os::{EngineOptions, OsStorage};

/// Mode in which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads only, around the page cache where the file system can.
    ReadDirect,
    /// Reads only, through the page cache: for sealed segments, which never change.
    ReadCached,
    /// Reads and writes, around the page cache where the file system can.
    WriteDirect,
    /// Reads and writes through the page cache.
    WriteCached,
}

/// Promise of a write when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The kernel has taken the bytes: they survive the death of the process.
    Written,
    /// The bytes of this call are on stable storage (`RWF_DSYNC`). Nothing is promised about any other bytes.
    Synced,
}

/// The kinds of lock on an open file (`flock`): they belong to the open file and end with its last reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Held by every descriptor that writes to a segment, and by readers of sealed segments.
    Shared,
    /// Taken by recovery before it reads a byte of an unsealed segment: then there is no writer any more, not even a
    /// dead process whose writes the kernel has not finished.
    Exclusive,
}

/// One name in the folder of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, relative to the folder.
    pub name: String,
    /// Bytes, as the file system reports them; 0 for anything but a plain file.
    pub len: u64,
    /// Plain file, folder, or anything else (sockets live in the same folder by default).
    pub kind: EntryKind,
}

/// Kind of an [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A plain file.
    File,
    /// A folder.
    Dir,
    /// A socket, a pipe, a link, a device.
    Other,
}

/// Result of [`Storage::take_over`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOver {
    /// It has the new name, and no other open file leads to it.
    Done,
    /// It still has its old name: its bytes might be seen to change.
    Refused(Witness),
}

/// Evidence that a change of a file's bytes might be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Witness {
    /// Another open file leads to it, of this process or another one.
    #[error("somebody has it open")]
    Open,
    /// It has another name.
    #[error("it has another link")]
    Linked,
    /// Some blocks are not written space of its own: shared with a copy or a snapshot, missing, or reserved only.
    #[error("its blocks are not all its own")]
    Shared,
    /// The file system does not report it.
    #[error("this file system cannot prove that nobody has it open")]
    Unproven,
}

/// The folder of one log on some disk. Names are relative, at most one folder deep (`quarantine/…`).
pub trait Storage: Send + Sync + 'static {
    /// Lists a folder (`""` is the log's own), in no particular order.
    fn list(&self, dir: &str) -> io::Result<Vec<Entry>>;
    /// Opens an existing file. Each call is an open file description of its own.
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>>;
    /// Creates a file that must not exist yet, mode 0600, and opens it.
    fn create(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>>;
    /// Makes a folder if it is missing, mode 0750.
    fn create_dir(&self, name: &str) -> io::Result<()>;
    /// Renames a file over whatever has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Renames a file whose bytes are about to be replaced, if no other reader can ever see them change. It has one
    /// link, every block of its length is written and not shared, and no other open file leads to it, before the rename
    /// and after. The caller made its mode private, so that it is not opened meanwhile, and has it open nowhere.
    ///
    /// The new name is durable after [`Storage::sync_dir`], as with [`Storage::rename`].
    ///
    /// # Errors
    /// The kernel's error; the file then has either name.
    fn take_over(&self, from: &str, to: &str) -> io::Result<TakeOver>;
    /// Makes the names in a folder durable.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    /// Gives a file its sealed mode (0640) or its private one (0600).
    fn set_sealed_mode(&self, name: &str, sealed: bool) -> io::Result<()>;
    /// Bytes that this user may still allocate in the file system, and its size.
    fn space(&self) -> io::Result<Space>;
    /// The block that a direct write must cover whole: never below the physical block, and never below 4096.
    fn block_size(&self) -> u32;
    /// Returns true if `*Direct` accesses really go around the page cache here.
    fn is_direct(&self) -> bool;
    /// Returns true if written zeroes make later overwrites cheaper (ext4, xfs); else they only double the work.
    fn zeroing_pays(&self) -> bool;
    /// The thread that has several operations in flight, where the engine has one.
    fn ring(&self) -> Option<&uring::Ring> {
        None
    }
    /// The engine that issues the writes, and its fallbacks.
    fn engine(&self) -> EngineReport {
        EngineReport { engine: Engine::Blocking, why: "the only one here".to_owned(), fallbacks: Vec::new() }
    }
}

/// Room in a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes free for this user.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
    /// Files that can still be made (inodes); `u64::MAX` where the file system has no bound for them.
    pub files: u64,
}

/// One open file description.
#[allow(clippy::len_without_is_empty)] // nobody asks a file of a log whether it is empty
pub trait File: Send + Sync {
    /// Writes all of `buf` at `pos` and gives the buffer back.
    ///
    /// An empty buffer is a no-op: nothing is written and nothing is synced.
    ///
    /// # Errors
    /// Any; after one, nothing is known about the bytes of this call.
    fn write_at(&self, buf: IoBuf, pos: u64, durability: Durability) -> (IoBuf, io::Result<()>);
    /// Reads up to `want` bytes at `pos` into `buf`, whose length becomes the bytes read (less only at the end of the
    /// file). After an error the buffer's content means nothing.
    fn read_at(&self, buf: IoBuf, pos: u64, want: usize) -> (IoBuf, io::Result<()>);
    /// The same behind the content of `buf`, which stays, also after an error. Around the page cache that content must
    /// be whole blocks.
    fn read_behind(&self, mut buf: IoBuf, pos: u64, want: usize) -> (IoBuf, io::Result<()>) {
        let (more, read) = self.read_at(IoBuf::with_capacity(want), pos, want);
        if read.is_ok() {
            buf.extend_from_slice(&more);
        }
        (buf, read)
    }
    /// Makes all completed writes of this file durable, with the size that they need (`fdatasync`).
    /// A size set by [`File::set_len`] or [`File::allocate`] alone needs [`File::sync_all`].
    fn sync_data(&self) -> io::Result<()>;
    /// The same with the file's size and blocks (`fsync`).
    fn sync_all(&self) -> io::Result<()>;
    /// Writes back the pages of exactly these bytes and waits for the device to have taken them
    /// (`sync_file_range(WAIT_BEFORE|WRITE|WAIT_AFTER)`), as far as this open file's writes and errors are concerned.
    /// No bytes is a no-op.
    ///
    /// **It makes durable only** bytes written over space for which [`File::overwrites_in_place`] holds, on a device
    /// without a volatile cache: no metadata is written and no cache is flushed. Behind a direct write it has nothing
    /// to do, because the device took those bytes. But a kernel may silently make a direct write through the page cache
    /// after all.
    ///
    /// # Errors
    /// As those of [`File::sync_data`], and as serious: pages may be clean now and not on the disk.
    fn sync_range(&self, pos: u64, len: u64) -> io::Result<()>;
    /// Returns true if a write within the first `len` bytes changes data blocks and nothing else. All of them are
    /// allocated, written before (not only reserved), shared with no other file, and not journaled by the file system.
    /// Writes back dirty pages first. Returns `false` also where the file system reports nothing.
    ///
    /// # Errors
    /// The kernel's error of that write-back.
    fn overwrites_in_place(&self, len: u64) -> io::Result<bool>;
    /// Bytes in the file.
    fn len(&self) -> io::Result<u64>;
    /// Cuts or extends the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves blocks for the first `len` bytes and sets the size.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Takes a lock without waiting; `false` when another lock is in the way. Do not call it on a description that
    /// holds the other kind of lock: a refused conversion may lose the held lock.
    fn try_lock(&self, lock: Lock) -> io::Result<bool>;
    /// Takes a lock and waits as long as necessary.
    fn lock(&self, lock: Lock) -> io::Result<()>;
    /// The kernel's descriptor, for an engine that hands operations to the kernel by itself.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// The latch on this file, where it has one: such an engine goes through it too.
    fn latch(&self) -> Option<&Latch> {
        None
    }
}

/// A folder on the file system that holds the build: the one for temporary files may be in memory.
#[cfg(test)]
pub(crate) fn real_folder() -> tempfile::TempDir {
    let tests = std::env::current_exe().expect("a test has a name");
    tempfile::tempdir_in(tests.parent().expect("in a folder")).expect("a folder")
}

/// Returns true if the device could not read one place, which means nothing for any other place.
pub(crate) fn is_bad_place(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}
