//! The ingest threads: they serve the connections of the framed protocol, and make the writes that these owe.
//!
//! An append that goes alone is dearer by its hand-overs than by its write: from the thread that reads the socket to one
//! that may block, and back. So these threads may block: they are no workers of the runtime that serves everything else.
//! One of them, the leader, waits for the sockets; as soon as it has something to do it leads no more, and from then on
//! the sockets wake one of those who rest, who leads then. Whoever has nothing left to do and finds no leader leads.
//!
//! What must hold:
//! - **A thread goes to the disk only with nothing else to do**: every task that is ready was run, and what becomes ready
//!   meanwhile is another thread's, which is woken for it if it rests. At most one of them is at the disk at a time, as
//!   nothing is owed while something is under way; there are at least two.
//! - **An owed write is soon made, or handed over**: at the end of a round, and after [`ROUND`] tasks or [`OWING`] at the
//!   latest, and the task that runs then.
//! - **Nobody polls for long ([`Pace`]), and no wake-up is lost**: a thread rests only when, under the lock of the queue,
//!   nothing is ready; who makes something ready wakes one who sleeps, unless one is awake who will look.
//! - **Tasks that are always ready keep nobody's socket from being looked at**: with no leader there, who runs tasks looks
//!   at the sockets each [`LOOK`] at the latest.
//! - A task that panics ends alone; one that never has enough gives way after [`OPERATIONS`] operations, or [`LOOK`].
//! - A panic anywhere else ends the process: what the thread held (the lead, a write that is owed, a job of the journal's)
//!   would never be done, and everybody would wait for it. Whoever starts the daemon again finds all that was acknowledged.
//!
//! Timers, and what connections spawn, are the runtime's.

mod poll;
mod socket;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use async_task::Runnable;
use clad_journal::{Hand, Owed};
use rustix::event::{Timespec, epoll};
use tokio::runtime::Handle;

use self::poll::{BELL, Pace, Poll};
pub(crate) use self::socket::Socket;
use self::socket::Source;

/// Tasks that are run at most while a write is owed,
const ROUND: u32 = 64;
/// and the time that they may take: twice what the appends of a full round of small ones do.
const OWING: Duration = Duration::from_millis(2);
/// Reads and writes of a task in one turn.
const OPERATIONS: u32 = 32;
/// For so long one task goes on at most before others have their turn, and a thread with tasks looks at no socket.
const LOOK: Duration = Duration::from_millis(1);
/// Events that are taken at once: what is above goes to another thread that rests.
const EVENTS: usize = 32;
/// Ready tasks that one thread makes of its own events before it asks for help.
const ALONE: usize = 8;
/// What is said where a thread cannot go on.
const LAST_WORDS: &[u8] =
    b"an ingest thread has met a defect of clad and cannot go on: clad ends (nothing acknowledged is lost)\n";
/// What the sockets together are called where helpers wait.
const SOCKETS: u64 = 1;
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The threads. Clones are the same ones; with the last they end.
#[derive(Clone)]
pub(crate) struct Crew(Arc<Owner>);

struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.ready().stop = true;
        self.0.sockets.ring();
        self.0.help.ring();
    }
}

struct Shared {
    /// What the leader waits on: the sockets.
    sockets: Poll,
    /// What the others wait on: to be called for help, and the sockets while nobody leads.
    help: Poll,
    ready: Mutex<Ready>,
    sources: Mutex<Sources>,
    /// Of each thread: how often it began or ended a task.
    turns: Vec<AtomicU64>,
}

/// Who waits for the sockets.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Leader {
    /// Nobody: who rests is woken by them.
    #[default]
    None,
    /// One who is awake, and looks at the queue before it sleeps.
    Looks,
    /// One who sleeps.
    Sleeps,
}

#[derive(Default)]
struct Ready {
    tasks: VecDeque<Runnable>,
    leader: Leader,
    /// Threads that wait for a call for help.
    resting: usize,
    /// One of them was woken, and has not looked yet.
    rung: bool,
    stop: bool,
}

#[derive(Default)]
struct Sources {
    last: u64,
    known: HashMap<u64, Weak<Source>>,
}

/// What a thread is doing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// It is none of ours.
    Elsewhere,
    /// It runs a task.
    Task,
    /// It looks for tasks, or is at the disk and will look then.
    Between,
}

thread_local! {
    static AT: Cell<At> = const { Cell::new(At::Elsewhere) };
    static OPERATIONS_LEFT: Cell<u32> = const { Cell::new(0) };
    static TURN_ENDS: Cell<Option<Instant>> = const { Cell::new(None) };
    static OWED: Cell<Option<Owed>> = const { Cell::new(None) };
}

/// Leaves a write that is owed to this thread, if it is one of the crew's in a task; or has it made by others.
pub(crate) fn owe(owed: Owed) {
    if AT.get() == At::Task {
        OWED.set(Some(match OWED.take() {
            Some(earlier) => earlier.join(owed),
            None => owed,
        }));
    }
}

/// How long a write has been owed.
#[derive(Debug, Default)]
struct Debt {
    since: Option<Instant>,
    tasks: u32,
}

impl Debt {
    /// Whether one more task may be run before the write, if one is owed.
    fn may_grow(&mut self, owed: bool, now: Instant) -> bool {
        if !owed {
            *self = Self::default();
            return true;
        }
        let since = *self.since.get_or_insert(now);
        self.tasks += 1;
        self.tasks <= ROUND && now.duration_since(since) < OWING
    }
}

/// Counts an operation of the task that runs; `false`: others are to have their turn.
fn operate() -> bool {
    let left = OPERATIONS_LEFT.get();
    OPERATIONS_LEFT.set(left.saturating_sub(1));
    // A turn's first operation is always allowed: it is what the task was woken for.
    left == OPERATIONS || (left > 0 && TURN_ENDS.get().is_none_or(|ends| Instant::now() < ends))
}

impl Crew {
    /// Starts so many threads, at least two. Their tasks have this runtime at hand.
    pub(crate) fn start(threads: usize, runtime: &Handle) -> io::Result<Self> {
        let threads = threads.max(2);
        let (sockets, help) = (Poll::new()?, Poll::new()?);
        let nobody_leads = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::add(&help.epoll, &sockets.epoll, epoll::EventData::new_u64(SOCKETS), nobody_leads)?;
        let shared = Arc::new(Shared {
            sockets,
            help,
            ready: Mutex::default(),
            sources: Mutex::default(),
            turns: (0..threads).map(|_| AtomicU64::new(0)).collect(),
        });
        let crew = Self(Arc::new(Owner(shared.clone())));
        for at in 0..threads {
            let (shared, runtime) = (shared.clone(), runtime.clone());
            let named = std::thread::Builder::new().name(format!("clad-ingest-{at}"));
            named.spawn(move || {
                let _runtime = runtime.enter();
                AT.set(At::Between);
                if catch_unwind(AssertUnwindSafe(|| shared.work(at))).is_err() {
                    // Not by the log, which another thread writes: this is the last that is said.
                    let _ = rustix::io::write(io::stderr(), LAST_WORDS);
                    #[expect(clippy::disallowed_methods, reason = "an error or a panic would end this thread alone")]
                    std::process::abort();
                }
            })?;
        }
        Ok(crew)
    }

    /// Takes over a connected stream. Both halves are to be used by one task of this crew.
    pub(crate) fn adopt(&self, stream: impl Into<OwnedFd>) -> io::Result<(Socket, Socket)> {
        Source::adopt(&self.0.0, stream.into())
    }

    /// Runs a task to its end.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let shared = self.0.0.clone();
        let (runnable, task) = async_task::spawn(task, move |runnable| shared.push(runnable));
        task.detach();
        runnable.schedule();
    }

    /// How often each thread began or ended a task: an odd number twice is one that is still in the same.
    pub(crate) fn turns(&self) -> impl Iterator<Item = u64> {
        self.0.0.turns.iter().map(|turns| turns.load(Ordering::Relaxed))
    }
}

impl Shared {
    fn ready(&self) -> MutexGuard<'_, Ready> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, task: Runnable) {
        let mut ready = self.ready();
        ready.tasks.push_back(task);
        let helps = ready.resting > 0 && !ready.rung;
        match (AT.get(), ready.leader) {
            // It will look itself, before it goes to the disk too.
            (At::Between, _) if ready.tasks.len() <= ALONE || !helps => {}
            (At::Elsewhere | At::Task, Leader::Looks) => {}
            (At::Elsewhere | At::Task, Leader::Sleeps) => {
                ready.leader = Leader::Looks;
                drop(ready);
                self.sockets.ring();
            }
            _ if helps => {
                ready.rung = true;
                drop(ready);
                self.help.ring();
            }
            _ => {} // all are awake
        }
    }

    fn work(&self, at: usize) {
        let (mut hand, mut debt) = (Hand::default(), Debt::default());
        let (mut pace, mut events) = (Pace::new(), Vec::with_capacity(EVENTS));
        let mut looked = Instant::now();
        loop {
            let task = self.ready().tasks.pop_front();
            let owed = OWED.take();
            match (task, owed) {
                (Some(task), owed) => {
                    let now = Instant::now();
                    // Dropped, it is handed over.
                    OWED.set(debt.may_grow(owed.is_some(), now).then_some(owed).flatten());
                    self.run(task, at, now);
                    if now.duration_since(looked) >= LOOK {
                        looked = now;
                        self.glance(&mut events);
                    }
                }
                (None, Some(owed)) => {
                    debt = Debt::default();
                    OWED.set(owed.write(&mut hand));
                }
                (None, None) => {
                    if !self.rest(&mut pace, &mut events) {
                        return;
                    }
                    looked = Instant::now();
                }
            }
        }
    }

    fn run(&self, task: Runnable, at: usize, now: Instant) {
        let turn = || self.turns.get(at).map(|turns| turns.fetch_add(1, Ordering::Relaxed));
        AT.set(At::Task);
        OPERATIONS_LEFT.set(OPERATIONS);
        TURN_ENDS.set(now.checked_add(LOOK));
        turn();
        if catch_unwind(AssertUnwindSafe(|| task.run())).is_err() {
            tracing::error!("a connection ended by a bug of clad's; the others go on");
        }
        turn();
        AT.set(At::Between);
    }

    /// Waits until something is ready; `false` at the end.
    fn rest(&self, pace: &mut Pace, events: &mut Vec<epoll::Event>) -> bool {
        let mut ready = self.ready();
        if ready.stop {
            drop(ready);
            self.help.ring(); // the next one
            return false;
        }
        if !ready.tasks.is_empty() {
            return true;
        }
        if ready.leader == Leader::None {
            self.watch_for_helpers(false);
            ready.leader = Leader::Looks;
            drop(ready);
            self.lead(pace, events);
            return true;
        }
        ready.resting += 1;
        drop(ready);
        self.help.wait(events, None);
        let mut ready = self.ready();
        ready.resting -= 1;
        ready.rung = false;
        true
    }

    /// Waits for the sockets, and makes what they bring ready. From then on who rests is woken by them, until somebody
    /// leads again.
    fn lead(&self, pace: &mut Pace, events: &mut Vec<epoll::Event>) {
        let began = Instant::now();
        let mut found = false;
        while !found && pace.looks(began.elapsed()) {
            self.sockets.wait(events, Some(&NOW));
            found = !events.is_empty() || !self.ready().tasks.is_empty();
        }
        if !found && self.sleeps() {
            self.sockets.wait(events, None);
            self.ready().leader = Leader::Looks;
        }
        pace.waited(began.elapsed());
        self.tell(events);
        self.lead_no_more();
    }

    /// Makes ready what the sockets have by now, unless there is a leader, who does.
    fn glance(&self, events: &mut Vec<epoll::Event>) {
        let mut ready = self.ready();
        if ready.leader != Leader::None {
            return;
        }
        ready.leader = Leader::Looks; // so that nobody else begins to sleep over a bell that is taken here
        drop(ready);
        self.sockets.wait(events, Some(&NOW));
        self.tell(events);
        self.lead_no_more();
    }

    fn tell(&self, events: &[epoll::Event]) {
        for event in events.iter().filter(|event| event.data.u64() != BELL) {
            let source = self.sources().known.get(&event.data.u64()).and_then(Weak::upgrade);
            if let Some(source) = source {
                source.happened(event.flags);
            }
        }
    }

    fn lead_no_more(&self) {
        let mut ready = self.ready();
        self.watch_for_helpers(true);
        ready.leader = Leader::None;
    }

    /// The leader sleeps from now on, unless something is ready.
    fn sleeps(&self) -> bool {
        let mut ready = self.ready();
        let sleeps = ready.tasks.is_empty() && !ready.stop;
        if sleeps {
            ready.leader = Leader::Sleeps;
        }
        sleeps
    }

    /// Whether who rests is woken by the sockets. Under the lock of the queue, so that it is always as the lock says.
    fn watch_for_helpers(&self, on: bool) {
        let events = if on { epoll::EventFlags::IN | epoll::EventFlags::ONESHOT } else { epoll::EventFlags::empty() };
        // It fails for descriptors that are not there, and this one is.
        let _ = epoll::modify(&self.help.epoll, &self.sockets.epoll, epoll::EventData::new_u64(SOCKETS), events);
    }

    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
