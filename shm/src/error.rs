//! Failures, as values.

use std::io;
use std::os::fd::OwnedFd;

use crate::layout::VERSION;

/// A [`crate::Shape`] that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// The data area.
    #[error("a ring's data area of {0} bytes: it must be a power of two from 4 KiB to 1 GiB")]
    DataBytes(u32),
    /// The slots.
    #[error("a ring with {0} slots: they must be a power of two from 8 to 16777216")]
    Slots(u32),
}

/// The reason why a file is not taken as a ring or a completion page.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A system call failed: no memory, no descriptors, not allowed.
    #[error("{what}: {error}")]
    Os {
        /// The call tried.
        what: &'static str,
        /// The error of the kernel.
        error: io::Error,
    },
    /// The file may be shortened or written by others: its seals are not those that the daemon sets.
    #[error("the file is not sealed as a ring is")]
    Seals,
    /// The header is not that of a ring or completion page, or does not fit the file's size.
    #[error("the file is no ring of this version")]
    Foreign,
    /// Its header names another version of the layout. Do not believe that of a ring whose client may write there: its
    /// maker knows.
    #[error("the ring has version {0} of its layout, and this is version {VERSION}")]
    Version(u64),
    /// The ring's own header is damaged.
    #[error("{0}")]
    Corrupt(#[from] Corrupt),
}

impl OpenError {
    /// True if the file itself is at fault: no later try can do anything with it.
    #[must_use]
    pub const fn is_for_good(&self) -> bool {
        match self {
            Self::Os { .. } => false,
            Self::Seals | Self::Foreign | Self::Version(_) | Self::Corrupt(_) => true,
        }
    }

    pub(crate) fn os(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |error| Self::Os { what, error: error.into() }
    }
}

/// A ring that was not adopted: what was handed over, as it was. Unless the error [`OpenError::is_for_good`], what is
/// committed in it is there for a later try.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotAdopted {
    /// Why not.
    #[source]
    pub error: OpenError,
    /// The ring.
    pub ring: OwnedFd,
    /// Its doorbell.
    pub waker: OwnedFd,
}

/// Content of a ring that its client, going by the rules, cannot have written. That ring is cut off, and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// The head lies behind what is committed, or further ahead than the ring is large.
    #[error("the ring's head is out of range")]
    Head,
    /// A committed slot points outside of what may be reserved.
    #[error("append {0} starts outside of its ring's free space")]
    Place(u64),
    /// An entry's length is 0, above the limit, or past the end.
    #[error("append {0} has an impossible length")]
    Length(u64),
    /// The entry belongs to another append.
    #[error("append {0} has the number of another one")]
    Number(u64),
    /// The checksum is wrong.
    #[error("append {0} does not match its checksum")]
    Checksum(u64),
    /// After a restart: the place up to which space was given back cannot be determined.
    #[error("the ring's tail is damaged")]
    Tail,
}

/// Why a push did not happen. After each of these the append is certainly not in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// No space now. Wait ([`crate::Producer::wait_space`]), or drop and count.
    #[error("the ring is full")]
    Full,
    /// Never fits this ring: larger than its limit, or empty. Send it over the socket.
    #[error("a payload of {len} bytes: this ring takes 1 to {max}")]
    Size {
        /// Its length, bytes.
        len: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// The daemon has closed the ring; [`crate::Producer::cut_off`] may say why. Get a new one.
    #[error("the ring is closed")]
    Closed,
    /// This process is a fork of the one to which the ring was given.
    #[error("the ring belongs to the process that this one was forked from")]
    Forked,
    /// The drain gave the reserved space up, several times in a row, before it was filled. Try again, or send it over
    /// the socket.
    #[error("the space was given up before it was filled")]
    Abandoned,
    /// The head or tail of the ring are nonsense: something in this process wrote over them.
    #[error("the ring's own header is damaged")]
    Damaged,
}

/// Why a wait ended without what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The deadline has passed.
    #[error("the deadline has passed")]
    Deadline,
    /// The ring was closed.
    #[error("the ring is closed")]
    Closed,
    /// As [`PushError::Forked`].
    #[error("the ring belongs to the process that this one was forked from")]
    Forked,
    /// The kernel refused the wait.
    #[error("futex: {0}")]
    Os(rustix::io::Errno),
}
