//! The interface between the writer and the engine that issues its writes.
//!
//! Invariants: a write that was submitted comes back exactly once, with its buffer; nothing touches the buffer in
//! between. The engine makes one attempt each: the writer handles the rest of a short write.

use std::io;
use std::sync::Arc;

use super::ring::Ring;
use super::target::{Target, Way};
use super::threads::Threads;
use crate::io::IoBuf;

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

/// The two ways to have several writes in flight.
pub(super) enum Issuer {
    Ring(Box<Ring>),
    Threads(Threads),
}

impl Issuer {
    /// Submits a write.
    pub(super) fn submit(&mut self, target: &Arc<Target>, write: Write) {
        match self {
            Self::Ring(ring) => ring.submit(target, write),
            Self::Threads(threads) => threads.submit(target, write),
        }
    }

    /// Waits for one attempt to be over.
    ///
    /// # Errors
    /// When nothing can come back any more: the state of the writes in flight is unknown.
    pub(super) fn wait(&mut self) -> io::Result<Done> {
        match self {
            Self::Ring(ring) => ring.wait(),
            Self::Threads(threads) => threads.wait(),
        }
    }

    /// Writes that were submitted and did not come back yet.
    pub(super) fn in_flight(&self) -> usize {
        match self {
            Self::Ring(ring) => ring.in_flight(),
            Self::Threads(threads) => threads.in_flight(),
        }
    }
}
