//! How a writer is made.

use std::io;
use std::path::Path;

use super::writer::BulkWriter;

/// The most buffers.
pub const MAX_BUFFERS: usize = 256;
/// The largest buffer.
pub const MAX_BUFFER_BYTES: usize = 64 << 20;

/// What issues the writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// The ring where it is permitted, else threads.
    #[default]
    Auto,
    /// io_uring; a writer that is asked for it by name fails where it is not permitted.
    Ring,
    /// A few threads with `pwrite`; where none can be started, the caller's own.
    Threads,
}

/// How a [`BulkWriter`] is made. The defaults are what was measured no slower than anything else that was tried: 3 buffers
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

/// What to do about a file that is there, or is not.
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

    /// How many buffers, 1 to [`MAX_BUFFERS`]: one is filled while the others are on their way.
    pub fn buffers(self, buffers: usize) -> Self {
        Self { buffers, ..self }
    }

    /// Bytes in a buffer, 1 to [`MAX_BUFFER_BYTES`]; rounded up to whole blocks.
    pub fn buffer_bytes(self, buffer_bytes: usize) -> Self {
        Self { buffer_bytes, ..self }
    }

    /// Whether whole blocks go around the page cache, where the file system can.
    pub fn direct(self, direct: bool) -> Self {
        Self { direct, ..self }
    }

    /// Whether the buffers are registered with the ring, where `RLIMIT_MEMLOCK` lets them.
    pub fn registered(self, registered: bool) -> Self {
        Self { registered, ..self }
    }

    /// What issues the writes.
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
    /// What the kernel says; `InvalidInput` for options out of range; `Unsupported` where [`Engine::Ring`] is asked for
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
