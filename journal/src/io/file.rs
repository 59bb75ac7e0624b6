//! One open file of a log.

use std::io;
use std::os::fd::BorrowedFd;

use super::buffer::IoBuf;
use super::latch::Latch;

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

/// Reads so many bytes at `pos`; less only at the end of the file.
pub(crate) fn read_once(file: &dyn File, pos: u64, len: usize) -> io::Result<IoBuf> {
    let (buf, read) = file.read_at(IoBuf::with_capacity(len), pos, len);
    read.map(|()| buf)
}

/// As [`read_once`], in three attempts: some errors are transient.
pub(crate) fn read_thrice(file: &dyn File, pos: u64, len: usize) -> io::Result<IoBuf> {
    let read = || read_once(file, pos, len);
    read().or_else(|_| read()).or_else(|_| read())
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
