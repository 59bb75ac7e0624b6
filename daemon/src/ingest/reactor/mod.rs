//! The ingest threads: they serve the connections of the framed protocol and drain the rings, and make the deferred
//! writes of both.
//!
//! An append that goes alone is dearer by its hand-overs than by its write: from the thread that reads the socket to
//! one that may block, and back. So these threads may block: they are no workers of the runtime that serves everything
//! else. One of them, the leader, waits for the sockets. As soon as it has a task it stops leading. From then on the
//! sockets wake a resting thread, which leads then. A thread without a task that finds no leader leads.
//!
//! Invariants:
//! - **A thread goes to the disk only with nothing else to do**: every ready task was run. Tasks that become ready
//!   meanwhile are another thread's, which is woken for them if it rests. At most one thread is at the disk at a time,
//!   as no write is deferred while another is under way; there are at least two threads.
//! - **A deferred write is soon made, or handed over**: at the end of a round, and after [`DEFERRED_WRITE_TASKS_MAX`]
//!   tasks or [`DEFERRED_WRITE_DELAY_MAX`] at the latest, and the task that runs then.
//! - **No thread polls for long ([`Backoff`]), and no wake-up is lost**: a thread rests only when, under the lock of
//!   the queue, nothing is ready. Code that makes a task ready wakes a sleeping thread, unless one is awake that will
//!   look.
//! - **Tasks that are always ready do not keep any socket from being looked at**: without a leader, a thread that runs
//!   tasks looks at the sockets each [`TASK_TURN_MAX`] at the latest.
//! - A task that panics ends alone; an endless one gives way after [`turn::TASK_OPERATIONS_MAX`] operations, or
//!   [`TASK_TURN_MAX`].
//! - A panic anywhere else ends the process ([`crate::defect`]).
//! - **No task is run once the runtime goes** ([`Reactor::end`]): timers, and the tasks that connections spawn, are the
//!   runtime's, and a timer that is polled then panics.

mod bells;
mod poll;
mod queue;
mod socket;
mod sources;
#[cfg(test)]
mod tests;
mod tls_socket;
mod turn;

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_task::Runnable;
use clad_journal::{DeferredWrite, WriteBuffer};
use tokio::runtime::Handle;

pub(crate) use self::bells::{Bell, Bells, Timer};
use self::poll::{BELL, Backoff, Events};
use self::queue::{At, Queue, Ready};
use self::socket::Source;
pub(crate) use self::socket::{GiveFds, Socket, TakeFds};
use self::sources::Sources;
pub(crate) use self::tls_socket::TlsSocket;
use self::turn::TASK_TURN_MAX;
use crate::defect::ends_clad;

/// Tasks that are run at most while a write is deferred,
const DEFERRED_WRITE_TASKS_MAX: u32 = 64;
/// and the time that they may take: twice what the appends of a full round of small ones do.
const DEFERRED_WRITE_DELAY_MAX: Duration = Duration::from_millis(2);
/// Events that are taken at once: any beyond go to another thread that rests.
const EVENTS_PER_POLL_MAX: usize = 32;
/// Name of such a thread in the report of a panic.
const THREAD_DESCRIPTION: &str = "an ingest thread";

/// Handle of the threads. Clones share them; with the last clone they end.
#[derive(Clone)]
pub(crate) struct Reactor(Arc<Owner>);

struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.queue.stop();
    }
}

struct Shared {
    queue: Queue<Runnable>,
    sources: Arc<Sources>,
    /// For each thread: number of times it began or ended a task.
    turns: Vec<AtomicU64>,
    /// No further task is run.
    ended: AtomicBool,
    /// Threads that are not gone.
    threads: Mutex<usize>,
    gone: Condvar,
}

/// One of the threads, until it is gone.
struct Present(Arc<Shared>);

impl Present {
    fn new(shared: &Arc<Shared>) -> Self {
        *shared.threads() += 1;
        Self(shared.clone())
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        *self.0.threads() -= 1;
        self.0.gone.notify_all();
    }
}

thread_local! {
    static AT: Cell<At> = const { Cell::new(At::Elsewhere) };
    static DEFERRED_WRITE: Cell<Option<DeferredWrite>> = const { Cell::new(None) };
}

/// Leaves a deferred write to this thread, if it is an ingest thread in a task; else other threads make it.
pub(crate) fn defer_write(deferred_write: DeferredWrite) {
    if AT.get() == At::Task {
        DEFERRED_WRITE.set(Some(match DEFERRED_WRITE.take() {
            Some(earlier) => earlier.join(deferred_write),
            None => deferred_write,
        }));
    }
}

/// Age of a deferred write.
#[derive(Debug, Default)]
struct DeferralLimit {
    since: Option<Instant>,
    tasks: u32,
}

impl DeferralLimit {
    /// Returns true if one more task may be run before the write, if one is deferred.
    fn may_run_task(&mut self, deferred_write: bool, now: Instant) -> bool {
        if !deferred_write {
            *self = Self::default();
            return true;
        }
        let since = *self.since.get_or_insert(now);
        self.tasks += 1;
        self.tasks <= DEFERRED_WRITE_TASKS_MAX && now.duration_since(since) < DEFERRED_WRITE_DELAY_MAX
    }
}

impl Reactor {
    /// Starts so many threads, at least two. Their tasks have this runtime at hand.
    pub(crate) fn start(threads: usize, runtime: &Handle) -> io::Result<Self> {
        let threads = threads.max(2);
        let queue = Queue::new()?;
        let shared = Arc::new(Shared {
            sources: Sources::new(&queue.sockets.epoll),
            queue,
            turns: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            ended: AtomicBool::new(false),
            threads: Mutex::default(),
            gone: Condvar::new(),
        });
        let reactor = Self(Arc::new(Owner(shared.clone())));
        for at in 0..threads {
            let (present, runtime) = (Present::new(&shared), runtime.clone());
            let named = std::thread::Builder::new().name(format!("clad-ingest-{at}"));
            named.spawn(move || {
                let _runtime = runtime.enter();
                AT.set(At::Between);
                ends_clad(THREAD_DESCRIPTION, || present.0.work(at));
            })?;
        }
        Ok(reactor)
    }

    /// Takes over a connected stream. Both halves are to be used by one task of this reactor.
    pub(crate) fn adopt(&self, stream: impl Into<OwnedFd>) -> io::Result<(Socket, Socket)> {
        Source::adopt(&self.0.0.sources, stream.into())
    }

    /// Watches descriptors that wake a task.
    pub(crate) fn bells(&self) -> Bells {
        Bells::new(&self.0.0.sources)
    }

    /// Runs a task to its end.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let shared = self.0.0.clone();
        let (runnable, task) = async_task::spawn(task, move |runnable| shared.queue.push(runnable, AT.get()));
        task.detach();
        runnable.schedule();
    }

    /// Runs no further task, and waits until the threads are gone, but at most `longest`: a thread may be at a disk
    /// that hangs, and runs no task when it comes back. Returns true if they are gone. To be called before the runtime
    /// goes.
    pub(crate) fn end(&self, longest: Duration) -> bool {
        let shared = &self.0.0;
        shared.ended.store(true, Ordering::SeqCst);
        shared.queue.stop();
        let threads = shared.gone.wait_timeout_while(shared.threads(), longest, |threads| *threads > 0);
        *threads.unwrap_or_else(PoisonError::into_inner).0 == 0
    }

    /// Number of times each thread began or ended a task: the same odd number twice means that it is still in one task.
    pub(crate) fn turns(&self) -> impl Iterator<Item = u64> {
        self.0.0.turns.iter().map(|turns| turns.load(Ordering::Relaxed))
    }
}

impl Shared {
    fn ready(&self) -> MutexGuard<'_, Ready<Runnable>> {
        self.queue.ready()
    }

    fn work(&self, at: usize) {
        let (mut write_buffer, mut deferral) = (WriteBuffer::default(), DeferralLimit::default());
        let (mut backoff, mut events) = (Backoff::new(), Vec::with_capacity(EVENTS_PER_POLL_MAX));
        let mut looked = Instant::now();
        loop {
            let task = if self.ended.load(Ordering::SeqCst) { None } else { self.ready().tasks.pop_front() };
            let deferred_write = DEFERRED_WRITE.take();
            match (task, deferred_write) {
                (Some(task), deferred_write) => {
                    let now = Instant::now();
                    // When dropped, it is handed over.
                    DEFERRED_WRITE
                        .set(deferral.may_run_task(deferred_write.is_some(), now).then_some(deferred_write).flatten());
                    self.run(task, at, now);
                    if now.duration_since(looked) >= TASK_TURN_MAX {
                        looked = now;
                        self.glance(&mut events);
                    }
                }
                (None, Some(deferred_write)) => {
                    deferral = DeferralLimit::default();
                    DEFERRED_WRITE.set(deferred_write.write(&mut write_buffer));
                }
                (None, None) => {
                    if !self.rest(&mut backoff, &mut events) {
                        return;
                    }
                    looked = Instant::now();
                }
            }
        }
    }

    fn run(&self, task: Runnable, at: usize, now: Instant) {
        let count = || self.turns.get(at).map(|turns| turns.fetch_add(1, Ordering::Relaxed));
        AT.set(At::Task);
        turn::begin(now);
        count();
        if catch_unwind(AssertUnwindSafe(|| task.run())).is_err() {
            tracing::error!("a connection ended by a defect of clad; the others continue");
        }
        count();
        AT.set(At::Between);
    }

    fn rest(&self, backoff: &mut Backoff, events: &mut Events) -> bool {
        self.queue.rest(backoff, events, |events| self.dispatch(events))
    }

    fn glance(&self, events: &mut Events) {
        self.queue.glance(events, |events| self.dispatch(events));
    }

    fn dispatch(&self, events: &Events) {
        for event in events.iter().filter(|event| event.data.u64() != BELL) {
            let source = self.sources.find(event.data.u64());
            if let Some(source) = source {
                source.happened(event.flags);
            }
        }
    }

    fn threads(&self) -> MutexGuard<'_, usize> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
