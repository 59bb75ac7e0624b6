//! Several operations in flight from one thread: an io_uring, driven by tokio-uring.
//!
//! What must hold:
//! - **One thread, and nothing else on it.** tokio-uring hands operations to the kernel only when its thread parks;
//!   beside anything that keeps the thread busy a write would wait for seconds. So nothing on it blocks, and it sleeps
//!   whenever there is nothing to begin: it is woken by an operation that ended, by [`Ring::wake`], or at the time that
//!   its [`Source`] named. It never polls in a loop; [`Ring::wakes`] counts.
//! - **The kernel owns what it was given.** Buffer and file belong to the operation until its completion was seen,
//!   whatever becomes of who asked for it.
//! - **The same promises as a blocking call**: a short write goes on, zero bytes is an error, an empty write syncs
//!   nothing, a failure goes through the file's latch, and [`Operation`]'s `done` is called exactly once, also when the
//!   thread is gone.
//! - **Bounded**: [`MAX_IN_FLIGHT`] operations in flight, [`INBOX`] that wait, buffers of [`REGISTERED_BYTES`] in all registered with the
//!   kernel; a larger write gets memory of its own, which is kept for the next as long as it is not huge.
//!
//! How a synced write is made: with `RWF_DSYNC`, each by itself, where writes are direct. Where they go through the page
//! cache the kernel makes one such write per file at a time, so there a write takes its place, and an `fdatasync` once that is
//! complete; likewise where the flag is refused. (Not a linked one: the kernel does not always take both of a pair at once.)

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

/// Operations that a ring has in flight; the others wait in its inbox, or are not asked for.
pub const MAX_IN_FLIGHT: usize = 32;
/// Operations that wait for a place among those.
pub const INBOX: usize = 256;
/// Entries of the submission queue: each operation has one in it at a time, so that none ever waits for a place.
const ENTRIES: u32 = 4 * MAX_IN_FLIGHT as u32;
/// Bytes of all registered buffers: half of the default `RLIMIT_MEMLOCK`.
pub const REGISTERED_BYTES: usize = 4 << 20;

/// Who has work for a ring's thread. Asked on that thread, so it must not block.
pub trait Source: Send + Sync {
    /// What to begin now.
    fn next(&self) -> Next;
}

/// What a [`Source`] answers.
pub enum Next {
    /// Begin this, and ask again.
    Begin(Operation),
    /// Nothing until [`Ring::wake`], the end of an operation, or so much later (in whole milliseconds, rounded up).
    Wait(Option<Duration>),
    /// Nothing ever; do not ask again.
    Done,
}

/// How a synced write is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncStyle {
    /// `RWF_DSYNC` on the write.
    PerWrite,
    /// An `fdatasync`, which is queued when the write is complete.
    Behind,
}

/// What a ring is made for.
pub(super) struct Setup {
    /// Writes in flight that are expected at once: so many buffers are registered.
    pub(super) in_flight: usize,
    /// Bytes of a usual write, at most.
    pub(super) write_bytes: usize,
    /// How synced writes are made.
    pub(super) style: SyncStyle,
    /// Told of what is not to be had.
    pub(super) fallbacks: Arc<Fallbacks>,
}

/// Told once how the start of the thread went: whether buffers are registered.
type Started = mpsc::SyncSender<io::Result<bool>>;

struct State {
    inbox: VecDeque<Operation>,
    source: Option<Arc<dyn Source>>,
    /// Anything is in flight, or the thread is about to ask its source.
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

/// However the thread ends, nobody waits for it any more.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        let mut state = self.0.state();
        self.0.alive.store(false, Ordering::Release);
        let (inbox, source) = (std::mem::take(&mut state.inbox), state.source.take());
        state.busy = false;
        drop(state);
        drop((inbox, source)); // each operation tells its own end
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
    /// Why there is no ring to be had.
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

    /// One for a model, with no kernel behind it: it does what it is asked for through [`super::File`].
    ///
    /// # Errors
    /// None.
    #[cfg(feature = "models")]
    pub fn modelled() -> io::Result<Self> {
        let fallbacks = Arc::new(Fallbacks::new(Arc::new(|_| {})));
        Self::start_as(Setup { in_flight: 2, write_bytes: 1 << 20, style: SyncStyle::PerWrite, fallbacks }, model::run)
    }

    /// Has an operation carried out; its `done` is called on the ring's thread. Waits while [`INBOX`] others wait; so it is
    /// not to be called on that thread.
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

    /// Sets who is asked for work. There is one at a time.
    pub fn attach(&self, source: Arc<dyn Source>) {
        self.shared.state().source = Some(source);
        self.wake();
    }

    /// Has the source asked again.
    pub fn wake(&self) {
        self.shared.bell.notify_one();
    }

    /// Waits until the source was let go (it said [`Next::Done`]) and nothing is in flight. Not to be called on the
    /// ring's own thread.
    pub fn wait_done(&self) {
        self.wake();
        let waited = self.shared.idle.wait_while(self.shared.state(), |state| self.is_at_work(state));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// As [`Self::wait_done`], for at most so long; whether it came to that.
    pub fn is_done_within(&self, timeout: Duration) -> bool {
        self.wake();
        let waited = self.shared.idle.wait_timeout_while(self.shared.state(), timeout, |state| self.is_at_work(state));
        !self.is_at_work(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    fn is_at_work(&self, state: &State) -> bool {
        self.is_alive() && (state.busy || state.source.is_some())
    }

    /// Whether the thread is there. It ends with the ring only, or by a bug.
    pub fn is_alive(&self) -> bool {
        self.shared.alive.load(Ordering::Acquire)
    }

    /// Times that the thread went to look for work.
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

    /// How synced writes are made.
    pub fn style(&self) -> SyncStyle {
        self.style
    }

    /// Whether its buffers are registered with the kernel.
    pub fn is_registered(&self) -> bool {
        self.registered
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.wake();
        // The last reference may go on the ring's own thread, which then ends by itself.
        if threads::current().id() != self.thread_id
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}
