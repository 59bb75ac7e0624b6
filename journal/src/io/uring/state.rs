//! The state that a ring shares with its thread, and its bounds.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::operation::Operation;
use crate::io::engine::Fallbacks;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Bell, Condvar, Mutex, MutexGuard, mpsc, unpoisoned};

/// Operations that a ring has in flight; others wait in its inbox, or are not requested.
pub const MAX_IN_FLIGHT: usize = 32;
/// Operations that wait for one of those places.
pub(super) const INBOX: usize = 256;
/// Entries of the submission queue: each operation has one in it at a time, so none ever waits for a place.
pub(super) const ENTRIES: u32 = 4 * MAX_IN_FLIGHT as u32;

/// Source of work for a ring's thread. It is called on that thread, so it must not block.
pub trait Source: Send + Sync {
    /// Returns the work to begin now.
    fn next(&self) -> Next;
}

/// Answer of a [`Source`].
pub enum Next {
    /// Begin this operation, and ask again.
    Begin(Operation),
    /// Nothing until [`Ring::wake`](super::Ring::wake), the end of an operation, or this time (in whole milliseconds, rounded up).
    Wait(Option<Duration>),
    /// Nothing ever; do not ask again.
    Done,
}

/// Way to sync a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncStyle {
    /// `RWF_DSYNC` on the write.
    PerWrite,
    /// An `fdatasync`, which is queued when the write is complete.
    Behind,
}

/// Settings of a ring.
pub(in crate::io) struct Setup {
    /// Way to sync writes.
    pub(in crate::io) style: SyncStyle,
    /// Receives each fallback.
    pub(in crate::io) fallbacks: Arc<Fallbacks>,
}

/// Receives the result of the thread's start once.
pub(super) type Started = mpsc::SyncSender<io::Result<()>>;

pub(super) struct State {
    pub(super) inbox: VecDeque<Operation>,
    pub(super) source: Option<Arc<dyn Source>>,
    /// True if anything is in flight, or the thread is about to ask its source.
    pub(super) busy: bool,
    pub(super) stop: bool,
}

pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// The source is gone, nothing is in flight any more, or the inbox has room.
    pub(super) idle: Condvar,
    pub(super) bell: Bell,
    pub(super) alive: AtomicBool,
    pub(super) wakes: AtomicU64,
    pub(super) begun: AtomicU64,
    /// Entries that were queued for the kernel: an operation is one or more, one after the other.
    pub(super) queued: AtomicU64,
    pub(super) most: AtomicUsize,
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }

    /// The operation to begin now, of the inbox first; or the time until which there is none.
    pub(super) fn next(&self) -> Result<Operation, Option<Duration>> {
        let mut state = self.state();
        if let Some(operation) = state.inbox.pop_front() {
            return Ok(operation);
        }
        let source = state.source.clone().ok_or(None)?;
        drop(state);
        match source.next() {
            Next::Begin(operation) => Ok(operation),
            Next::Wait(until) => Err(until),
            Next::Done => {
                self.state().source = None;
                Err(None)
            }
        }
    }

    /// Counts an operation that begins, the last of so many in flight.
    pub(super) fn begins(&self, in_flight: usize) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.most.fetch_max(in_flight, Ordering::Relaxed);
    }

    /// Ends a look for work: notifies who waits for that, and returns true if the thread is to stop.
    pub(super) fn looked(&self, in_flight: usize) -> bool {
        let mut state = self.state();
        state.busy = in_flight > 0 || !state.inbox.is_empty();
        let stop = state.stop && !state.busy;
        drop(state);
        self.idle.notify_all();
        stop
    }
}

/// Ends all waits for the thread, however the thread ends.
pub(super) struct End(pub(super) Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        let mut state = self.0.state();
        self.0.alive.store(false, Ordering::Release);
        let (inbox, source) = (std::mem::take(&mut state.inbox), state.source.take());
        state.busy = false;
        drop(state);
        drop((inbox, source)); // each operation reports its own end
        self.0.idle.notify_all();
    }
}
