//! One write of a writer: part of a buffer on its way into the file, and the result of an attempt.

use std::io;

use crate::io::IoBuf;

/// Maximum retries of one write when the kernel asks for one.
pub(super) const MAX_RETRIES: u32 = 64;

/// A buffer of the pool, and its number there.
#[derive(Debug)]
pub(super) struct Buf {
    pub(super) index: usize,
    pub(super) mem: IoBuf,
}

/// Part of a buffer on its way into the file.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) buf: Buf,
    /// First byte of the buffer that is still to be written.
    pub(super) from: usize,
    /// One past the last.
    pub(super) to: usize,
    /// Position of `from` in the file.
    pub(super) pos: u64,
    pub(super) way: Way,
    /// Times that the kernel asked to try again.
    pub(super) retries: u32,
}

impl Write {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buf.mem[self.from..self.to]
    }
}

/// Result of an attempt.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) write: Write,
    /// Bytes written.
    pub(super) result: io::Result<usize>,
}

/// The way of a write: around or through the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Around the page cache.
    Direct,
    /// Through it.
    Regular,
}
