//! The ingest threads' queue: who leads, who rests, and who wakes whom (`daemon/src/ingest/reactor/queue.rs`, compiled here by
//! itself), over a modelled poll.
//!
//! Two threads or three serve three clients, each of whom waits for his answer before he goes on. The first asks by a socket, and is
//! answered after a write that the thread which ran his task makes itself, with nothing else to do; that lasts until somebody
//! else was answered, as long as anybody else has something to ask. The second asks by a socket, and is answered by a task
//! that his makes ready. The third makes a task ready from outside.
//!
//! What must hold in every order: everybody is answered, so a thread at the disk holds up nobody; then the threads end.
//! `build.rs` makes the wrong versions, which must be found.

mod poll;
#[path = "../../../daemon/src/ingest/reactor/queue.rs"]
mod queue;

use std::collections::VecDeque;
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Condvar, Mutex, MutexGuard};
use shuttle::thread;

use self::poll::{BELL, Backoff, Events, Poll};

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
}

const CLIENTS: [Client; 3] = [Client::Writes, Client::Asks, Client::Outside];

/// What a thread does that makes something ready.
#[derive(Clone, Copy)]
enum At {
    Elsewhere,
    Task,
    Between,
}

/// The queue, or a wrong version of it.
trait Threads: Sized + Send + Sync + 'static {
    fn new() -> Self;
    fn sockets(&self) -> &Poll;
    fn push(&self, task: Task, at: At);
    fn pop(&self) -> Option<Task>;
    fn rest(&self, events: &mut Events, report: impl FnOnce(&Events)) -> bool;
    fn glance(&self, events: &mut Events, report: impl FnOnce(&Events));
    fn stop(&self);
}

macro_rules! threads {
    ($module:ident) => {
        impl Threads for $module::Queue<Task> {
            fn new() -> Self {
                Self::new().expect("it asks nobody")
            }
            fn sockets(&self) -> &Poll {
                &self.sockets
            }
            fn push(&self, task: Task, at: At) {
                let at = match at {
                    At::Elsewhere => $module::At::Elsewhere,
                    At::Task => $module::At::Task,
                    At::Between => $module::At::Between,
                };
                self.push(task, at);
            }
            fn pop(&self) -> Option<Task> {
                let tasks: &mut VecDeque<Task> = &mut self.ready().tasks;
                tasks.pop_front()
            }
            fn rest(&self, events: &mut Events, report: impl FnOnce(&Events)) -> bool {
                self.rest(&mut Backoff, events, report)
            }
            fn glance(&self, events: &mut Events, report: impl FnOnce(&Events)) {
                self.glance(events, report);
            }
            fn stop(&self) {
                self.stop();
            }
        }
    };
}

threads!(queue);

macro_rules! wrong {
    ($module:ident { $($text:tt)* }) => {
        mod $module {
            $($text)*
        }
        threads!($module);
    };
}

include!(concat!(env!("OUT_DIR"), "/wrong_queues.rs"));

/// The daemon's own.
pub fn right() {
    model::<queue::Queue<Task>>();
}

/// Each client's questions and answers, in their order.
#[derive(Default)]
struct State {
    unread: [usize; 4],
    answered: [usize; 4],
    /// Questions that wait for a write, and whether one is deferred or in flight.
    pending: usize,
    deferred: bool,
}

struct World<Q> {
    queue: Q,
    state: Mutex<State>,
    answer: Condvar,
}

impl<Q: Threads> World<Q> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("whole")
    }

    /// As the daemon's threads do.
    fn work(&self) {
        let (mut events, mut deferred) = (Events::new(), false);
        loop {
            match (self.queue.pop(), deferred) {
                (Some(task), _) => {
                    deferred |= self.run(task);
                    if thread_rng().gen_bool(0.25) {
                        self.queue.glance(&mut events, |events| self.report(events));
                    }
                }
                (None, true) => deferred = self.write(),
                (None, false) => {
                    if !self.queue.rest(&mut events, |events| self.report(events)) {
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
            } else {
                self.state().unread[client as usize] += 1;
                self.queue.sockets().happened(client as u64);
            }
            let mut state = self.state();
            while state.answered[client as usize] == question {
                state = self.answer.wait(state).expect("whole");
            }
        }
    }
}

fn model<Q: Threads>() {
    let world = Arc::new(World { queue: Q::new(), state: Mutex::default(), answer: Condvar::new() });
    let spawn = |body: fn(&World<Q>, Client), client| {
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
    assert_eq!(state.answered[1..], [QUESTIONS; 3], "each question has one answer");
}
