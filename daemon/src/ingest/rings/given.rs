//! A ring, or a new completion page of one, on its way to a client.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use clad_proto::frame::RingId;
use clad_shm::{Drain, Shape};

use crate::fdstore::Note;

/// Answer to a client, with the descriptors that go with it.
pub(crate) struct Given {
    pub(crate) id: RingId,
    pub(crate) known: bool,
    /// The fd store has it.
    pub(crate) stored: bool,
    pub(crate) shape: Shape,
    /// Completion page, ring and doorbell; page and doorbell of one that the client has already.
    pub(crate) fds: Vec<OwnedFd>,
}

impl Given {
    pub(super) fn new(note: Note, drain: &Drain) -> std::io::Result<Self> {
        let fds = drain.client_fds();
        let fds =
            [fds.completion_page, fds.ring, fds.waker].map(duplicate).into_iter().collect::<std::io::Result<_>>()?;
        Ok(Self { id: note.id, known: false, stored: false, shape: drain.shape(), fds })
    }

    /// The ring that the client has already.
    pub(super) fn again(note: Note, drain: &Drain) -> std::io::Result<Self> {
        let fds = drain.client_fds();
        let fds = [fds.completion_page, fds.waker].map(duplicate).into_iter().collect::<std::io::Result<_>>()?;
        Ok(Self { id: note.id, known: true, stored: false, shape: drain.shape(), fds })
    }
}

/// Duplicates a descriptor of the same file.
pub(super) fn duplicate(fd: BorrowedFd<'_>) -> std::io::Result<OwnedFd> {
    fd.as_fd().try_clone_to_owned()
}

/// Borrowed, to be sent.
pub(crate) fn borrowed(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}
