//! A ring, as others see it: submit, wake, wait.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "models")]
use super::model;
use super::operation::Operation;
#[cfg(feature = "models")]
use super::state::SyncStyle;
use super::state::{INBOX, Setup, Shared, Source, Started, State};
use super::thread;
#[cfg(feature = "models")]
use crate::io::engine::Fallbacks;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::thread::{self as threads, JoinHandle, ThreadId};
use crate::sync::{Bell, Condvar, Mutex, mpsc, unpoisoned};

/// A ring and its thread; both end when this is dropped, after what is in flight.
pub struct Ring {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    thread_id: ThreadId,
}

impl Ring {
    /// Starts the thread.
    ///
    /// # Errors
    /// The reason why no ring is available.
    pub(in crate::io) fn start(setup: Setup) -> io::Result<Self> {
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
        let its = shared.clone();
        let thread = threads::Builder::new().name("clad-ring".to_owned()).spawn(move || run(&its, &setup, &started))?;
        let started = start.recv().map_err(|_| io::Error::other("the ring's thread ended at once"))?;
        started?;
        let thread_id = thread.thread().id();
        Ok(Self { shared, thread: Some(thread), thread_id })
    }

    /// Makes a ring for a model, with no kernel behind it: it executes operations through [`crate::io::File`].
    ///
    /// # Errors
    /// None.
    #[cfg(feature = "models")]
    pub fn modelled() -> io::Result<Self> {
        let fallbacks = Arc::new(Fallbacks::new(Arc::new(|_| {})));
        Self::start_as(Setup { style: SyncStyle::PerWrite, fallbacks }, model::run)
    }

    /// Executes an operation; its `done` is called on the ring's thread. Waits while `INBOX` others wait, so it must
    /// not be called on that thread.
    pub fn submit(&self, operation: Operation) {
        let mut state = self.shared.state();
        while self.is_alive() && state.inbox.len() >= INBOX {
            state = unpoisoned(self.shared.idle.wait(state));
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
    pub(crate) fn wake(&self) {
        self.shared.bell.notify_one();
    }

    /// Waits until the source was released (it returned [`Next::Done`](super::Next::Done)) and nothing is in flight. Not to be called on
    /// the ring's own thread.
    pub fn wait_done(&self) {
        self.wake();
        let waited = self.shared.idle.wait_while(self.shared.state(), |state| self.is_at_work(state));
        drop(unpoisoned(waited));
    }

    /// As [`Self::wait_done`], for at most `timeout`; returns true if that state was reached.
    pub(crate) fn is_done_within(&self, timeout: Duration) -> bool {
        self.wake();
        let waited = self.shared.idle.wait_timeout_while(self.shared.state(), timeout, |state| self.is_at_work(state));
        !self.is_at_work(&unpoisoned(waited).0)
    }

    fn is_at_work(&self, state: &State) -> bool {
        self.is_alive() && (state.busy || state.source.is_some())
    }

    /// Returns true if the thread is there. It ends with the ring only, or by a bug.
    pub(crate) fn is_alive(&self) -> bool {
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
