//! The interface between the writer and the engine that issues its writes.
//!
//! Invariants: a write that was submitted comes back exactly once, with its buffer; nothing touches the buffer in
//! between. The engine makes one attempt each: the writer handles the rest of a short write.

use std::io;
use std::sync::Arc;

use super::ring::Ring;
use super::target::Target;
use super::threads::Threads;
use super::write::{Done, Write};

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
