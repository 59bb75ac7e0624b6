//! A ring in the store.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::note::Note;

/// Descriptors that make up a ring: the ring itself, and its doorbell. (Each daemon makes a new completion page.)
pub(crate) const RING_FDS: usize = 2;

/// A ring that was stored.
#[derive(Debug)]
pub(crate) struct StoredRing {
    pub(crate) note: Note,
    /// [`RING_FDS`] of them.
    pub(crate) fds: Vec<OwnedFd>,
}

impl StoredRing {
    pub(super) fn parts(&self) -> Vec<BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd).collect()
    }
}
