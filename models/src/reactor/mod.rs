//! The ingest threads' queue: who leads, who rests, and who wakes whom (`daemon/src/ingest/reactor/queue.rs`, compiled here by
//! itself), over a modelled poll.
//!
//! Two threads or three serve four clients, each of whom waits for his answer before he goes on. The first asks by a socket, and is
//! answered after a write that the thread which ran his task makes itself, with nothing else to do; that lasts until somebody
//! else was answered, as long as anybody else has something to ask. The second asks by a socket, and is answered by a task
//! that his makes ready. The third makes a task ready from outside.
//!
//! What must hold in every order: everybody is answered, so a thread at the disk holds up nobody; then the threads end.
//! Wrong versions of the queue are among those of `cargo xtask ci faults`; those of the doorbell stand here.

mod poll;
#[path = "../../../daemon/src/ingest/reactor/queue.rs"]
mod queue;

use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::sync::{Condvar, Mutex, MutexGuard};
use shuttle::thread;

use self::poll::{BELL, Backoff, Events};
use self::queue::{At, Queue};

/// With three of them two may rest beside a leader.
const THREADS: [usize; 2] = [2, 3];
/// What each client asks for, one after the other.
const QUESTIONS: usize = 2;

/// Whose task it is, and what he has asked since.
#[derive(Clone, Copy)]
enum Task {
    /// His socket has something.
    Socket(Client),
    /// He is to be answered.
    Answer(Client),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Client {
    /// By a socket, after a write.
    Writes = 1,
    /// By a socket.
    Asks = 2,
    /// From outside.
    Outside = 3,
    /// By a ring.
    Commits = 4,
}

const CLIENTS: [Client; 4] = [Client::Writes, Client::Asks, Client::Outside, Client::Commits];

/// The daemon's own.
pub fn right() {
    run(Ring::default());
}

/// A drain that says that it sleeps, and does not look once more.
pub fn sleeps_over_a_record() {
    run(Ring { looks_again: false, ..Ring::default() });
}

/// A client that looks whether the drain sleeps before it has committed.
pub fn rings_too_early() {
    run(Ring { commits_first: false, ..Ring::default() });
}

/// A drain that was rung for and leaves its word as it was: the client takes that back late.
pub fn trusts_its_old_word() {
    run(Ring { renews: false, ..Ring::default() });
}

/// Ring of a client: what `shm/src/wake.rs` says of it, and `daemon/src/ingest/rings/task.rs`.
struct Ring {
    committed: AtomicUsize,
    /// Odd: the drain sleeps.
    sleep: AtomicUsize,
    /// One turn of the task at a time.
    task: Mutex<()>,
    looks_again: bool,
    commits_first: bool,
    renews: bool,
}

impl Default for Ring {
    fn default() -> Self {
        let (committed, sleep) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { committed, sleep, task: Mutex::new(()), looks_again: true, commits_first: true, renews: true }
    }
}

impl Ring {
    /// True if its doorbell is to be rung.
    fn commit(&self) -> Option<usize> {
        let word = || Some(self.sleep.load(Ordering::SeqCst)).filter(|word| word % 2 == 1);
        if self.commits_first {
            self.committed.fetch_add(1, Ordering::SeqCst);
            return word();
        }
        let word = word();
        self.committed.fetch_add(1, Ordering::SeqCst);
        word
    }

    /// Takes what lies there; true if the task is to run once more.
    fn turn(&self) -> (usize, bool) {
        let _one = self.task.lock().expect("whole");
        let taken = self.committed.swap(0, Ordering::SeqCst);
        let word = self.sleep.load(Ordering::SeqCst);
        if self.renews || word % 2 == 0 {
            self.sleep.store(word + 1 + word % 2, Ordering::SeqCst);
        }
        (taken, self.looks_again && self.committed.load(Ordering::SeqCst) > 0)
    }
}

/// Each client's questions and answers, in their order.
#[derive(Default)]
struct State {
    unread: [usize; 5],
    answered: [usize; 5],
    /// Questions that wait for a write, and whether one is deferred or in flight.
    pending: usize,
    deferred: bool,
}

struct World {
    queue: Queue<Task>,
    ring: Ring,
    state: Mutex<State>,
    answer: Condvar,
}

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("whole")
    }

    /// As the daemon's threads do.
    fn work(&self) {
        let (mut events, mut deferred) = (Events::new(), false);
        loop {
            let task = self.queue.ready().tasks.pop_front();
            match (task, deferred) {
                (Some(task), _) => {
                    deferred |= self.run(task);
                    if thread_rng().gen_bool(0.25) {
                        self.queue.glance(&mut events, |events| self.report(events));
                    }
                }
                (None, true) => deferred = self.write(),
                (None, false) => {
                    if !self.queue.rest(&mut Backoff, &mut events, |events| self.report(events)) {
                        return;
                    }
                }
            }
        }
    }

    fn report(&self, events: &Events) {
        for event in events.iter().filter(|event| **event != BELL) {
            let client = CLIENTS.into_iter().find(|client| *client as u64 == *event);
            self.queue.push(Task::Socket(client.expect("a socket")), At::Between);
        }
    }

    /// True if this thread has a deferred write now.
    fn run(&self, task: Task) -> bool {
        match task {
            Task::Socket(Client::Commits) => {
                let (taken, again) = self.ring.turn();
                if again {
                    self.queue.push(task, At::Task);
                }
                if taken > 0 {
                    self.answer(Client::Commits, taken);
                }
            }
            Task::Socket(client) => {
                let mut state = self.state();
                let asked = std::mem::take(&mut state.unread[client as usize]);
                if client == Client::Writes {
                    state.pending += asked;
                    return asked > 0 && !std::mem::replace(&mut state.deferred, true);
                }
                drop(state);
                (0..asked).for_each(|_| self.queue.push(Task::Answer(client), At::Task));
            }
            Task::Answer(client) => self.answer(client, 1),
        }
        false
    }

    fn answer(&self, client: Client, questions: usize) {
        self.state().answered[client as usize] += questions;
        self.answer.notify_all();
    }

    /// Lasts until one of the others was answered, if anybody else has something to ask; true if the next is deferred.
    fn write(&self) -> bool {
        let others = |state: &State| state.answered[Client::Asks as usize] + state.answered[Client::Outside as usize];
        let mut state = self.state();
        let (taken, before) = (std::mem::take(&mut state.pending), others(&state));
        while others(&state) == before && before < 2 * QUESTIONS {
            state = self.answer.wait(state).expect("whole");
        }
        state.deferred = state.pending > 0;
        let deferred = state.deferred;
        drop(state);
        self.answer(Client::Writes, taken);
        deferred
    }

    fn ask(&self, client: Client) {
        for question in 0..QUESTIONS {
            if client == Client::Outside {
                self.queue.push(Task::Answer(client), At::Elsewhere);
            } else if client == Client::Commits {
                if let Some(word) = self.ring.commit() {
                    self.queue.sockets.happened(client as u64);
                    let sleep = &self.ring.sleep;
                    let _ = sleep.compare_exchange(word, word + 1, Ordering::SeqCst, Ordering::SeqCst);
                }
            } else {
                self.state().unread[client as usize] += 1;
                self.queue.sockets.happened(client as u64);
            }
            let mut state = self.state();
            while state.answered[client as usize] == question {
                state = self.answer.wait(state).expect("whole");
            }
        }
    }
}

fn run(ring: Ring) {
    let world = Arc::new(World {
        queue: Queue::new().expect("it asks nobody"),
        ring,
        state: Mutex::default(),
        answer: Condvar::new(),
    });
    // The task runs once from itself, as it is spawned.
    world.queue.push(Task::Socket(Client::Commits), At::Elsewhere);
    let spawn = |body: fn(&World, Client), client| {
        let world = world.clone();
        thread::spawn(move || body(&world, client))
    };
    let threads = THREADS[thread_rng().gen_range(0..THREADS.len())];
    let threads: Vec<_> = (0..threads).map(|_| spawn(|world, _| world.work(), Client::Writes)).collect();
    let clients = CLIENTS.map(|client| spawn(World::ask, client));
    clients.into_iter().for_each(|client| client.join().expect("a client"));
    world.queue.stop();
    threads.into_iter().for_each(|thread| thread.join().expect("a thread"));
    let state = world.state();
    assert_eq!(state.answered[1..], [QUESTIONS; 4], "each question has one answer");
}
