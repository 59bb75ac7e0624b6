//! The failure of a writer.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The operation that failed.
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

/// The reason why a [`BulkWriter`](super::BulkWriter) failed. It is stored: every later call fails with the same.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {source}", self.place())]
#[non_exhaustive]
pub struct Error {
    /// The operation that failed.
    pub op: Op,
    /// The file.
    pub path: PathBuf,
    /// Place in the file: the first byte of a write that failed, else the length of the file. Of several writes that
    /// failed, the first in the file; the kernel took everything below.
    pub position: u64,
    /// Bytes of the write, 0 for anything else.
    pub length: u64,
    /// The kernel's error.
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

    /// Kind of the kernel's error.
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
