//! Options of a writer.

use std::io;

/// The most buffers.
const MAX_BUFFERS: usize = 256;
/// The largest buffer.
const MAX_BUFFER_BYTES: usize = 64 << 20;

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

/// Options of a [`BulkWriter`](super::BulkWriter). The defaults were measured no slower than any other setting that was tried: 3 buffers
/// of 2 MiB, in huge pages where there are any, direct, on a ring.
#[derive(Clone, Debug)]
#[must_use = "create, open or append makes the writer"]
pub struct Options {
    pub(super) buffers: usize,
    pub(super) buffer_bytes: usize,
    pub(super) direct: bool,
    pub(super) engine: Engine,
    pub(super) mode: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { buffers: 3, buffer_bytes: 2 << 20, direct: true, engine: Engine::Auto, mode: 0o600 }
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

    /// Number of buffers, 1 to 256: one is filled while the others are on their way.
    pub fn buffers(self, buffers: usize) -> Self {
        Self { buffers, ..self }
    }

    /// Bytes in a buffer, 1 to 64 MiB; rounded up to whole blocks.
    pub fn buffer_bytes(self, buffer_bytes: usize) -> Self {
        Self { buffer_bytes, ..self }
    }

    /// Sends whole blocks around the page cache, where the file system can.
    pub fn direct(self, direct: bool) -> Self {
        Self { direct, ..self }
    }

    /// Sets the engine that issues the writes.
    pub fn engine(self, engine: Engine) -> Self {
        Self { engine, ..self }
    }

    /// Permissions of a file that is made, before the umask. Default: 0600.
    pub fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
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
