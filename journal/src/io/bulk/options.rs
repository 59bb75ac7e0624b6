//! Options of a writer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::writer::BulkWriter;
use crate::io::File;

/// The most buffers.
pub const MAX_BUFFERS: usize = 256;
/// The largest buffer.
pub const MAX_BUFFER_BYTES: usize = 64 << 20;

/// Engine that issues the writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// The ring where it is permitted, else threads.
    #[default]
    Auto,
    /// io_uring; a writer with this engine fails where io_uring is not permitted.
    Ring,
    /// A few threads with `pwrite`; where none can be started, the caller's own.
    Threads,
    /// The caller's own thread, one write after the other: for a caller that paces its writes, where several under way
    /// gain nothing.
    Caller,
}

/// Options of a [`BulkWriter`]. The defaults were measured no slower than any other setting that was tried: 3 buffers
/// of 2 MiB, in huge pages where there are any, direct, on a ring.
#[derive(Clone, Debug)]
#[must_use = "create, open or append makes the writer"]
pub struct Options {
    pub(super) buffers: usize,
    pub(super) buffer_bytes: usize,
    pub(super) direct: bool,
    pub(super) registered: bool,
    pub(super) engine: Engine,
    pub(super) mode: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { buffers: 3, buffer_bytes: 2 << 20, direct: true, registered: true, engine: Engine::Auto, mode: 0o600 }
    }
}

/// Rule for a file that exists, or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    CreateNew,
    Create,
    Open,
    Append,
}

impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of buffers, 1 to [`MAX_BUFFERS`]: one is filled while the others are on their way.
    pub fn buffers(self, buffers: usize) -> Self {
        Self { buffers, ..self }
    }

    /// Bytes in a buffer, 1 to [`MAX_BUFFER_BYTES`]; rounded up to whole blocks.
    pub fn buffer_bytes(self, buffer_bytes: usize) -> Self {
        Self { buffer_bytes, ..self }
    }

    /// Sends whole blocks around the page cache, where the file system can.
    pub fn direct(self, direct: bool) -> Self {
        Self { direct, ..self }
    }

    /// Registers the buffers with the ring, where `RLIMIT_MEMLOCK` permits it.
    pub fn registered(self, registered: bool) -> Self {
        Self { registered, ..self }
    }

    /// Sets the engine that issues the writes.
    pub fn engine(self, engine: Engine) -> Self {
        Self { engine, ..self }
    }

    /// Permissions of a file that is made, before the umask. Default: 0600.
    pub fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    /// Makes a file that must not exist yet.
    ///
    /// # Errors
    /// The kernel's error; `InvalidInput` for options out of range; `Unsupported` where [`Engine::Ring`] is asked for
    /// and there is none.
    pub fn create_new(&self, path: impl AsRef<Path>) -> io::Result<BulkWriter> {
        BulkWriter::new(self, path.as_ref(), How::CreateNew)
    }

    /// Makes a file, or empties the one that is there.
    ///
    /// # Errors
    /// As [`Self::create_new`].
    pub fn create(&self, path: impl AsRef<Path>) -> io::Result<BulkWriter> {
        BulkWriter::new(self, path.as_ref(), How::Create)
    }

    /// Opens a file that is there, at its first byte, and keeps what it holds.
    ///
    /// # Errors
    /// As [`Self::create_new`].
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<BulkWriter> {
        BulkWriter::new(self, path.as_ref(), How::Open)
    }

    /// Opens a file at its end, wherever that is; makes it where it is missing.
    ///
    /// # Errors
    /// As [`Self::create_new`].
    pub fn append(&self, path: impl AsRef<Path>) -> io::Result<BulkWriter> {
        BulkWriter::new(self, path.as_ref(), How::Append)
    }

    /// Takes a file of a storage that is open already, from its first byte on; errors call it `name`. Its length may
    /// have been set before and is durable after the first [`BulkWriter::sync`].
    ///
    /// Each write is one [`File::write_at`] by the caller's own thread ([`Engine::Caller`]), whatever engine is asked
    /// for, with its promises on errors and locks. Buffers are whole blocks of `block` bytes. Where the file was opened
    /// around the page cache, the kernel refuses bytes between two flushes that are no whole blocks.
    ///
    /// # Errors
    /// When its length cannot be read; `InvalidInput` for options out of range, or a block that is no power of two.
    pub fn over(&self, file: Arc<dyn File>, name: impl Into<PathBuf>, block: u32) -> io::Result<BulkWriter> {
        BulkWriter::over(self, file, name.into(), block)
    }

    pub(super) fn check(&self) -> io::Result<()> {
        let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if !(1..=MAX_BUFFERS).contains(&self.buffers) {
            return wrong(format!("{} buffers: 1 to {MAX_BUFFERS} are possible", self.buffers));
        }
        if !(1..=MAX_BUFFER_BYTES).contains(&self.buffer_bytes) {
            return wrong(format!("a buffer of {} bytes: 1 to {MAX_BUFFER_BYTES} are possible", self.buffer_bytes));
        }
        Ok(())
    }
}
