//! Several operations in flight from one thread: an io_uring, driven by tokio-uring.
//!
//! Invariants:
//! - **One thread, and nothing else on it.** tokio-uring hands operations to the kernel only when its thread parks;
//!   beside a task that keeps the thread busy a write would wait for seconds. So nothing on it blocks, and it sleeps
//!   whenever there is nothing to begin. An operation that ended, [`Ring::wake`], or the time that its [`Source`] named
//!   wakes it. It never polls in a loop; [`Ring::wakes`] counts.
//! - **The kernel owns the memory and file of an operation.** Buffer and file belong to the operation until its
//!   completion was seen, even if its caller is gone.
//! - **The same promises as a blocking call**: a short write continues, zero bytes is an error, an empty write syncs
//!   nothing, and a failure goes through the file's latch. [`Operation`]'s `done` is called exactly once, also when the
//!   thread is gone.
//! - **Bounded**: [`MAX_IN_FLIGHT`] operations in flight, [`INBOX`] that wait, and [`REGISTERED_BYTES`] of buffers
//!   registered with the kernel. A larger write gets memory of its own, retained for the next unless it is huge.
//!
//! A synced direct write uses `RWF_DSYNC`, each by itself. Through the page cache the kernel makes one such write per
//! file at a time, so there a plain write is made, and an `fdatasync` after it is complete. The same holds where the
//! flag is refused. (The sync is not linked: the kernel does not always take both of a pair at once.)

#[cfg(feature = "models")]
mod model;
mod operation;
mod pool;
mod probe;
#[cfg(test)]
mod tests;
mod thread;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::engine::Fallbacks;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::thread::{self as threads, JoinHandle, ThreadId};
use crate::sync::{Bell, Condvar, Mutex, MutexGuard, mpsc};

pub use operation::{Operation, Ticket};
pub(super) use probe::{Refused, available};

/// Operations that a ring has in flight; others wait in its inbox, or are not requested.
pub const MAX_IN_FLIGHT: usize = 32;
/// Operations that wait for one of those places.
pub const INBOX: usize = 256;
/// Entries of the submission queue: each operation has one in it at a time, so none ever waits for a place.
const ENTRIES: u32 = 4 * MAX_IN_FLIGHT as u32;
/// Bytes of all registered buffers: half of the default `RLIMIT_MEMLOCK`.
pub const REGISTERED_BYTES: usize = 4 << 20;

/// Source of work for a ring's thread. It is called on that thread, so it must not block.
pub trait Source: Send + Sync {
    /// Returns the work to begin now.
    fn next(&self) -> Next;
}

/// Answer of a [`Source`].
pub enum Next {
    /// Begin this operation, and ask again.
    Begin(Operation),
    /// Nothing until [`Ring::wake`], the end of an operation, or this time (in whole milliseconds, rounded up).
    Wait(Option<Duration>),
    /// Nothing ever; do not ask again.
    Done,
}

/// Way to sync a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncStyle {
    /// `RWF_DSYNC` on the write.
    PerWrite,
    /// An `fdatasync`, which is queued when the write is complete.
    Behind,
}

/// Settings of a ring.
pub(super) struct Setup {
    /// Writes expected in flight at once: so many buffers are registered.
    pub(super) in_flight: usize,
    /// Bytes of a usual write, at most.
    pub(super) write_bytes: usize,
    /// Way to sync writes.
    pub(super) style: SyncStyle,
    /// Receives each fallback.
    pub(super) fallbacks: Arc<Fallbacks>,
}

/// Receives the result of the thread's start once: true if buffers are registered.
type Started = mpsc::SyncSender<io::Result<bool>>;

struct State {
    inbox: VecDeque<Operation>,
    source: Option<Arc<dyn Source>>,
    /// True if anything is in flight, or the thread is about to ask its source.
    busy: bool,
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    /// The source is gone, nothing is in flight any more, or the inbox has room.
    idle: Condvar,
    bell: Bell,
    alive: AtomicBool,
    wakes: AtomicU64,
    begun: AtomicU64,
    /// Entries that were queued for the kernel: an operation is one or more, one after the other.
    queued: AtomicU64,
    most: AtomicUsize,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends all waits for the thread, however the thread ends.
struct End(Arc<Shared>);

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

/// A ring and its thread; both end when this is dropped, after what is in flight.
pub struct Ring {
    shared: Arc<Shared>,
    style: SyncStyle,
    registered: bool,
    thread: Option<JoinHandle<()>>,
    thread_id: ThreadId,
}

impl Ring {
    /// Starts the thread.
    ///
    /// # Errors
    /// The reason why no ring is available.
    pub(super) fn start(setup: Setup) -> io::Result<Self> {
        Self::start_as(setup, thread::run)
    }

    fn start_as(setup: Setup, run: fn(&Arc<Shared>, &Setup, &Started)) -> io::Result<Self> {
        let state = State { inbox: VecDeque::new(), source: None, busy: false, stop: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            idle: Condvar::new(),
            bell: Bell::new(),
            alive: AtomicBool::new(true),
            wakes: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            most: AtomicUsize::new(0),
        });
        let (started, start) = mpsc::sync_channel(1);
        let (its, style) = (shared.clone(), setup.style);
        let thread = threads::Builder::new().name("clad-ring".to_owned()).spawn(move || run(&its, &setup, &started))?;
        let started = start.recv().map_err(|_| io::Error::other("the ring's thread ended at once"))?;
        let registered = started?;
        let thread_id = thread.thread().id();
        Ok(Self { shared, style, registered, thread: Some(thread), thread_id })
    }

    /// Makes a ring for a model, with no kernel behind it: it executes operations through [`super::File`].
    ///
    /// # Errors
    /// None.
    #[cfg(feature = "models")]
    pub fn modelled() -> io::Result<Self> {
        let fallbacks = Arc::new(Fallbacks::new(Arc::new(|_| {})));
        Self::start_as(Setup { in_flight: 2, write_bytes: 1 << 20, style: SyncStyle::PerWrite, fallbacks }, model::run)
    }

    /// Executes an operation; its `done` is called on the ring's thread. Waits while [`INBOX`] others wait, so it must
    /// not be called on that thread.
    pub fn submit(&self, operation: Operation) {
        let mut state = self.shared.state();
        while self.is_alive() && state.inbox.len() >= INBOX {
            state = self.shared.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if self.is_alive() {
            state.inbox.push_back(operation);
            state.busy = true;
            drop(state);
            self.shared.bell.notify_one();
        }
    }

    /// Sets the source of work. There is one at a time.
    pub fn attach(&self, source: Arc<dyn Source>) {
        self.shared.state().source = Some(source);
        self.wake();
    }

    /// Makes the thread ask its source again.
    pub fn wake(&self) {
        self.shared.bell.notify_one();
    }

    /// Waits until the source was released (it returned [`Next::Done`]) and nothing is in flight. Not to be called on
    /// the ring's own thread.
    pub fn wait_done(&self) {
        self.wake();
        let waited = self.shared.idle.wait_while(self.shared.state(), |state| self.is_at_work(state));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// As [`Self::wait_done`], for at most `timeout`; returns true if that state was reached.
    pub fn is_done_within(&self, timeout: Duration) -> bool {
        self.wake();
        let waited = self.shared.idle.wait_timeout_while(self.shared.state(), timeout, |state| self.is_at_work(state));
        !self.is_at_work(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    fn is_at_work(&self, state: &State) -> bool {
        self.is_alive() && (state.busy || state.source.is_some())
    }

    /// Returns true if the thread is there. It ends with the ring only, or by a bug.
    pub fn is_alive(&self) -> bool {
        self.shared.alive.load(Ordering::Acquire)
    }

    /// Times that the thread looked for work.
    pub fn wakes(&self) -> u64 {
        self.shared.wakes.load(Ordering::Relaxed)
    }

    /// Operations so far.
    pub fn begun(&self) -> u64 {
        self.shared.begun.load(Ordering::Relaxed)
    }

    /// The most operations that were in flight at once.
    pub fn most_in_flight(&self) -> usize {
        self.shared.most.load(Ordering::Relaxed)
    }

    /// Way to sync writes.
    pub fn style(&self) -> SyncStyle {
        self.style
    }

    /// Returns true if its buffers are registered with the kernel.
    pub fn is_registered(&self) -> bool {
        self.registered
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.wake();
        // The last reference may end on the ring's own thread, which then ends by itself.
        if threads::current().id() != self.thread_id
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}
