//! A file that may be written durably, one call at a time: `write_at`, `write_at_sync`, `sync`, and a latch.
//!
//! Invariants:
//! - **[`LatchedFile::write_at_sync`] promises the bytes of that call alone.** It promises nothing about bytes of other
//!   calls before. An empty write is a no-op: it writes nothing and syncs nothing.
//! - **A failure latches.** After a failed write or sync, the kernel may have marked the pages clean, and a later sync
//!   would return success for lost bytes. So this file refuses every further write and sync with [`Latched`](super::Latched), without a
//!   system call, until it is opened again. The latch is here, in one place, and not at each call.
//! - It is the same under every engine: an operation that is handed to a ring goes through the same latch.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::buffer::IoBuf;
use super::file::{Durability, File, Lock};
use super::latch::Latch;

/// One open file description with a latch.
pub struct LatchedFile {
    inner: Arc<dyn File>,
    latch: Latch,
}

impl LatchedFile {
    /// Puts a latch on a file that was just opened.
    pub fn new(inner: Arc<dyn File>) -> Self {
        Self { inner, latch: Latch::default() }
    }

    /// Writes all of `buf` at `pos`; the kernel has it when this returns, the disk may not. Gives the buffer back.
    ///
    /// # Errors
    /// The kernel's error, which latches; or [`Latched`](super::Latched).
    pub fn write_at(&self, buf: IoBuf, pos: u64) -> (IoBuf, io::Result<()>) {
        File::write_at(self, buf, pos, Durability::Written)
    }

    /// Writes all of `buf` at `pos`; **the bytes of this call** are on stable storage when it returns, and no others
    /// are promised. An empty buffer is a no-op that syncs nothing. Blocks; the calling thread makes the write.
    ///
    /// One `pwritev2` with `RWF_DSYNC`; where the file system refuses that flag, a write and an `fdatasync`, under the
    /// same promise.
    ///
    /// # Errors
    /// The kernel's error, which latches; or [`Latched`](super::Latched).
    pub fn write_at_sync(&self, buf: IoBuf, pos: u64) -> (IoBuf, io::Result<()>) {
        File::write_at(self, buf, pos, Durability::Synced)
    }

    /// Makes every write durable that had completed when this was called (`fdatasync`).
    ///
    /// # Errors
    /// The kernel's error, which latches; or [`Latched`](super::Latched).
    pub fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

impl File for LatchedFile {
    fn write_at(&self, buf: IoBuf, pos: u64, durability: Durability) -> (IoBuf, io::Result<()>) {
        if let Err(e) = self.latch.check() {
            return (buf, Err(e));
        }
        let (buf, done) = self.inner.write_at(buf, pos, durability);
        (buf, self.latch.note(done))
    }

    fn read_at(&self, buf: IoBuf, pos: u64, want: usize) -> (IoBuf, io::Result<()>) {
        self.inner.read_at(buf, pos, want)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.latch.check()?;
        self.latch.note(self.inner.sync_data())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.latch.check()?;
        self.latch.note(self.inner.sync_all())
    }

    fn sync_range(&self, pos: u64, len: u64) -> io::Result<()> {
        self.latch.check()?;
        self.latch.note(self.inner.sync_range(pos, len))
    }

    fn overwrites_in_place(&self, len: u64) -> io::Result<bool> {
        self.inner.overwrites_in_place(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.inner.allocate(len)
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        self.inner.try_lock(lock)
    }

    fn lock(&self, lock: Lock) -> io::Result<()> {
        self.inner.lock(lock)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn latch(&self) -> Option<&Latch> {
        Some(&self.latch)
    }
}
