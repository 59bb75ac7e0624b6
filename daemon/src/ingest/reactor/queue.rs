//! The queue of the ingest threads: leader, resting threads, and wake-ups. `mod.rs` states the invariants; state that
//! these threads share is in here, and `models/src/reactor` tries it in every order.

use std::collections::VecDeque;
use std::io;
use std::sync::PoisonError;
use std::time::Instant;

use super::poll::{Backoff, Events, Poll};
use crate::sync::{Mutex, MutexGuard};

/// Ready tasks that one thread makes of its own events before it asks for help.
const TASKS_WITHOUT_HELP_MAX: usize = 8;

/// State of a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// It is no ingest thread.
    Elsewhere,
    /// It runs a task.
    Task,
    /// It looks for tasks, or is at the disk and will look then.
    Between,
}

/// Leader: the thread that waits for the sockets.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Leader {
    /// None: the sockets wake a resting thread.
    #[default]
    None,
    /// A thread that is awake, and looks at the queue before it sleeps.
    Looks,
    /// A thread that sleeps.
    Sleeps,
}

/// State that the threads share, under one lock.
pub(super) struct Ready<T> {
    pub(super) tasks: VecDeque<T>,
    leader: Leader,
    /// Threads that wait for a call for help.
    resting: usize,
    /// One of them was woken, and has not looked yet.
    rung: bool,
    stop: bool,
}

/// The ready tasks, and the threads that wait for them.
pub(super) struct Queue<T> {
    /// Poll of the leader: the sockets.
    pub(super) sockets: Poll,
    /// Poll of the others: calls for help, and the sockets while no thread leads.
    help: Poll,
    ready: Mutex<Ready<T>>,
}

impl<T> Queue<T> {
    pub(super) fn new() -> io::Result<Self> {
        let (sockets, help) = (Poll::new()?, Poll::new()?);
        help.adopt(&sockets)?;
        let ready = Ready { tasks: VecDeque::new(), leader: Leader::None, resting: 0, rung: false, stop: false };
        Ok(Self { sockets, help, ready: Mutex::new(ready) })
    }

    pub(super) fn ready(&self) -> MutexGuard<'_, Ready<T>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Each thread ends when it has nothing to do.
    pub(super) fn stop(&self) {
        self.ready().stop = true;
        self.sockets.ring();
        self.help.ring();
    }

    /// Makes a task ready; `at` is the state of the calling thread.
    pub(super) fn push(&self, task: T, at: At) {
        let mut ready = self.ready();
        ready.tasks.push_back(task);
        let helps = ready.resting > 0 && !ready.rung;
        match (at, ready.leader) {
            // It will look itself, before it goes to the disk too.
            (At::Between, _) if ready.tasks.len() <= TASKS_WITHOUT_HELP_MAX || !helps => {}
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

    /// Waits until a task is ready; `false` at the end. `dispatch` makes ready the tasks that the events are about.
    pub(super) fn rest(&self, backoff: &mut Backoff, events: &mut Events, dispatch: impl FnOnce(&Events)) -> bool {
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
            self.help.watch(&self.sockets, false);
            ready.leader = Leader::Looks;
            drop(ready);
            self.lead(backoff, events, dispatch);
            return true;
        }
        ready.resting += 1;
        drop(ready);
        self.help.wait(events);
        let mut ready = self.ready();
        ready.resting -= 1;
        ready.rung = false;
        true
    }

    /// Waits for the sockets, and makes the tasks of their events ready. From then on the sockets wake a resting
    /// thread, until a thread leads again.
    fn lead(&self, backoff: &mut Backoff, events: &mut Events, dispatch: impl FnOnce(&Events)) {
        let began = Instant::now();
        let mut found = false;
        events.clear(); // earlier events are not reported again
        while !found && backoff.should_spin(began.elapsed()) {
            self.sockets.look(events);
            found = !events.is_empty() || !self.ready().tasks.is_empty();
        }
        if !found && self.sleeps() {
            self.sockets.wait(events);
            self.ready().leader = Leader::Looks;
        }
        backoff.waited(began.elapsed());
        dispatch(events);
        self.lead_no_more();
    }

    /// Makes ready the tasks of events that the sockets have by now, unless there is a leader, which does.
    pub(super) fn glance(&self, events: &mut Events, dispatch: impl FnOnce(&Events)) {
        let mut ready = self.ready();
        if ready.leader != Leader::None {
            return;
        }
        ready.leader = Leader::Looks; // so that no other thread begins to sleep over a bell that is taken here
        drop(ready);
        self.sockets.look(events);
        dispatch(events);
        self.lead_no_more();
    }

    /// Under the lock, so that the sockets wake a resting thread exactly when the lock says that no thread leads.
    fn lead_no_more(&self) {
        let mut ready = self.ready();
        self.help.watch(&self.sockets, true);
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
}
