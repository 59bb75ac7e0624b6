//! The writes of a [`super::BulkWriter`] from a few threads, where there is no ring; or from the caller's own thread.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use super::target::Target;
use super::write::{Done, Write};

use crate::sync::unpoisoned;

/// The most threads: more gain nothing where each write is a megabyte.
const MAX_THREADS: usize = 4;

type Job = (Write, Arc<Target>);

/// Threads that write. Both queues have a place for every buffer, so that a submit never waits.
pub(super) struct Threads {
    jobs: Option<SyncSender<Job>>,
    done: Receiver<Done>,
    completions: SyncSender<Done>,
    workers: Vec<JoinHandle<()>>,
    in_flight: usize,
}

impl Threads {
    /// Starts as many threads as are useful; also returns why there are none.
    pub(super) fn new(buffers: usize) -> (Self, Option<String>) {
        let (jobs, queue) = sync_channel::<Job>(buffers);
        let (completions, done) = sync_channel(buffers);
        let queue = Arc::new(Mutex::new(queue));
        let mut workers = Vec::new();
        let mut why = None;
        for _ in 0..MAX_THREADS.min(buffers) {
            let (queue, completions) = (queue.clone(), completions.clone());
            let thread = thread::Builder::new().name("clad-bulk".to_owned());
            match thread.spawn(move || work(&queue, &completions)) {
                Ok(worker) => workers.push(worker),
                Err(e) => {
                    why = workers.is_empty().then(|| format!("no thread can be started ({e}): the caller writes"));
                    break;
                }
            }
        }
        let jobs = (!workers.is_empty()).then_some(jobs);
        (Self { jobs, done, completions, workers, in_flight: 0 }, why)
    }

    /// No thread: the caller that submits a write makes it.
    pub(super) fn none(buffers: usize) -> Self {
        let (completions, done) = sync_channel(buffers);
        Self { jobs: None, done, completions, workers: Vec::new(), in_flight: 0 }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn submit(&mut self, target: &Arc<Target>, write: Write) {
        self.in_flight += 1;
        let left = match &self.jobs {
            Some(jobs) => jobs.send((write, target.clone())).err().map(|back| back.0.0),
            None => Some(write),
        };
        if let Some(write) = left {
            let _ = self.completions.send(target.attempt(write));
        }
    }

    pub(super) fn wait(&mut self) -> io::Result<Done> {
        let done = self.done.recv().map_err(|_| io::Error::other("the threads that write have ended"))?;
        self.in_flight -= 1;
        Ok(done)
    }
}

fn work(queue: &Mutex<Receiver<Job>>, completions: &SyncSender<Done>) {
    loop {
        let job = unpoisoned(queue.lock()).recv();
        let Ok((write, target)) = job else { return };
        let done = target.attempt(write);
        drop(target);
        if completions.send(done).is_err() {
            return;
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.jobs = None;
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}
