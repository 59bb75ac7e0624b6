//! The publication of the publication: `journal/src/run/waiters.rs` by itself, between those who move them and all who read.
//!
//! Two threads end jobs and a third looks for space; each changes the watermarks under the lock of a core and publishes them when it
//! has given it back, as the journal's threads do. One write fails and one recovery follows. Beside them are all kinds of
//! readers: producers that wait for their offsets, as sessions do; a subscriber, as the metrics; a task
//! that asks once a turn and sleeps until it is woken, as the drain of the rings; one who waits for the end.
//!
//! What must hold in every order:
//! - **No reader sees more than is so**: `received >= written >= durable`, each published value is one that the core has had, and
//!   a producer is released by nothing but what was done for the appends given under its count of failures.
//! - **Nothing older after something newer**: of watermarks, epochs, failures, and whether appends are taken; a version is one
//!   value. Between a failure and the recovery the watermarks stand still.
//! - **Who sleeps is woken**: by its mark, by the end, and by a failure whatever its mark: there is no recovery before all
//!   who wait have heard of it. Where one has not, all threads sleep at last, and the scheduler says so.
//! - **The last published value is the true one.**

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use clad_journal::{Accepting, Closed, Level, Wants, Watermarks};
use shuttle::future::block_on;
use shuttle::sync::{Condvar, Mutex, MutexGuard};
use shuttle::thread;

use crate::journal::follows;
use crate::waiters::{Watcher, WatermarkPublisher};

/// What each producer appends, by the level it waits for.
const PRODUCERS: [&[Level]; 2] = [&[Level::Durable, Level::Written], &[Level::Written, Level::Durable]];
/// Threads that carry out jobs.
const WORKERS: usize = 2;
/// The write that fails.
const FAILS: usize = 2;
const NEVER: u64 = u64::MAX;

/// What the lock of the journal's core guards, as far as it moves the watermarks.
#[derive(Default)]
struct Core {
    watermarks: Watermarks,
    busy: bool,
    short: bool,
    closing: bool,
    failed: bool,
    writes: usize,
    /// Appends that were given an offset and are not answered.
    waiting: usize,
    /// Nothing comes any more.
    stopped: bool,
    /// Each value that was taken for publication, by its version.
    had: HashMap<u64, Watermarks>,
    /// What was reached under each count of failures.
    reached: Vec<(u64, u64)>,
}

enum Job {
    Write(u64),
    Sync(u64),
    Recover,
}

impl Core {
    fn begin(&mut self) -> Option<Job> {
        let job = match &self.watermarks {
            _ if self.busy => return None,
            // The disk is bad for as long as anybody waits that does not know.
            _ if self.failed && self.waiting > 0 => return None,
            _ if self.failed => Job::Recover,
            watermarks if watermarks.written < watermarks.received => Job::Write(watermarks.received),
            watermarks if watermarks.durable < watermarks.written => Job::Sync(watermarks.written),
            _ => return None,
        };
        self.busy = true;
        Some(job)
    }

    fn complete(&mut self, job: &Job) -> Watermarks {
        self.busy = false;
        match job {
            Job::Write(upto) => {
                self.writes += 1;
                match self.writes == FAILS {
                    true => (self.failed, self.watermarks.failures) = (true, self.watermarks.failures + 1),
                    false => self.watermarks.written = *upto,
                }
            }
            Job::Sync(upto) => self.watermarks.durable = *upto,
            Job::Recover => {
                let end = self.watermarks.received;
                (self.failed, self.watermarks.epoch, self.watermarks.epoch_first) =
                    (false, self.watermarks.epoch + 1, end);
                (self.watermarks.written, self.watermarks.durable) = (end, end);
            }
        }
        self.published()
    }

    fn now(&self) -> Watermarks {
        // While a job is under way a little is taken though space is short, as in the journal.
        let accepting = match () {
            () if self.failed => Accepting::Failed,
            () if self.closing => Accepting::Closing,
            () if self.short && !self.busy => Accepting::NoSpace,
            () => Accepting::Yes,
        };
        Watermarks { accepting, ..self.watermarks }
    }

    /// The watermarks as they are to be published.
    fn published(&mut self) -> Watermarks {
        self.watermarks.version += 1;
        self.note()
    }

    fn note(&mut self) -> Watermarks {
        let watermarks = self.now();
        let same = *self.had.entry(watermarks.version).or_insert(watermarks);
        assert_eq!(same, watermarks, "two values under one version");
        self.reached.resize(watermarks.failures as usize + 1, (0, 0));
        self.reached[watermarks.failures as usize] = (watermarks.written, watermarks.durable);
        watermarks
    }
}

/// The part of the journal that publishes watermarks.
struct Log {
    core: Mutex<Core>,
    work: Condvar,
    publisher: WatermarkPublisher,
    /// Wrong: what is published has the version that is there.
    unversioned: bool,
}

impl Log {
    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("it is whole")
    }

    /// Carries out jobs until nothing comes any more.
    fn work(&self) {
        let mut core = self.core();
        loop {
            match core.begin() {
                Some(job) => {
                    drop(core);
                    let watermarks = self.core().complete(&job);
                    self.publisher.publish(watermarks);
                    self.work.notify_all();
                    core = self.core();
                }
                None if core.stopped && !core.busy => return,
                None => core = self.work.wait(core).expect("it is whole"),
            }
        }
    }

    /// Changes something that is no result of a job, and publishes it.
    fn publish(&self, change: impl FnOnce(&mut Core)) {
        change(&mut self.core());
        let mut core = self.core();
        let watermarks = if self.unversioned { core.note() } else { core.published() };
        drop(core);
        self.publisher.publish(watermarks);
        self.work.notify_all();
    }

    /// A reader has seen this.
    fn check(&self, watermarks: &Watermarks) {
        assert!(
            watermarks.received >= watermarks.written && watermarks.written >= watermarks.durable,
            "{watermarks:?}"
        );
        assert_eq!(self.core().had.get(&watermarks.version), Some(watermarks), "what never was");
    }
}

/// The journal's own way to publish.
pub fn right() {
    model(false);
}

/// One that does not count what it publishes.
pub fn wrong() {
    model(true);
}

fn model(unversioned: bool) {
    let core = Core { watermarks: Watermarks { epoch: 1, ..Watermarks::default() }, ..Core::default() };
    let publisher = WatermarkPublisher::new(core.watermarks);
    let log = Arc::new(Log { core: Mutex::new(core), work: Condvar::new(), publisher, unversioned });
    log.core().note();
    let run = |part: fn(&Log)| {
        let log = log.clone();
        thread::spawn(move || part(&log))
    };
    let sleeper = run(sleep);
    let subscriber = subscribe(&log);
    let lingerer = run(linger);
    let workers = [(); WORKERS].map(|()| run(Log::work));
    let space = run(|log| {
        log.publish(|core| core.short = true);
        log.publish(|core| core.short = false);
    });
    let producers = PRODUCERS.map(|levels| {
        let log = log.clone();
        thread::spawn(move || levels.iter().for_each(|level| append(&log, *level)))
    });
    producers.into_iter().for_each(|producer| producer.join().expect("a producer"));
    space.join().expect("who looks for space");
    log.core().stopped = true;
    log.work.notify_all();
    workers.into_iter().for_each(|worker| worker.join().expect("a worker"));
    let published = *log.publisher.subscribe().borrow();
    assert_eq!(published, log.core().now(), "the last published value is the true one");
    log.publish(|core| core.closing = true);
    log.publisher.end();
    lingerer.join().expect("who waits for the end");
    sleeper.join().expect("the sleeper");
    let mut late = log.publisher.watcher();
    late.now();
    let wants = Wants { written: NEVER, durable: NEVER };
    assert_eq!(block_on(late.reached(wants)), Err(Closed), "a waiter after the end is closed");
    drop(late);
    drop(Arc::into_inner(log).expect("nobody else has it"));
    subscriber.join().expect("the subscriber");
}

/// Appends one record and waits for its level, or gets its failure.
fn append(log: &Log, level: Level) {
    let mut watcher = log.publisher.watcher();
    let (end, failures) = loop {
        watcher.now();
        let mut core = log.core();
        if !core.failed {
            core.watermarks.received += 1;
            core.watermarks.version += 1;
            core.waiting += 1;
            break (core.watermarks.received, core.watermarks.failures);
        }
        drop(core);
        // The epoch that comes is another than the one that was looked at.
        block_on(watcher.reached(Wants { written: NEVER, durable: NEVER })).expect("it recovers");
    };
    log.work.notify_all();
    let wants = match level {
        Level::Written => Wants { written: end, durable: NEVER },
        _ => Wants { written: NEVER, durable: end },
    };
    let failed = loop {
        let watermarks = watcher.now();
        log.check(&watermarks);
        if watermarks.failures > failures || watermarks.of(level) >= end {
            break watermarks.failures > failures; // maybe written
        }
        block_on(watcher.reached(wants)).expect("it ends when all is done");
    };
    let mut core = log.core();
    core.waiting -= 1;
    let (written, durable) = core.reached[failures as usize];
    drop(core);
    log.work.notify_all();
    assert!(failed || end <= if level == Level::Written { written } else { durable }, "released and not so");
}

/// Waits for nothing but the end, and looks at what it is woken for.
fn linger(log: &Log) {
    let mut watcher = log.publisher.watcher();
    let mut before = watcher.now();
    while block_on(watcher.reached(Wants { written: NEVER, durable: NEVER })).is_ok() {
        before = follow(log, &mut watcher, &before);
    }
    follow(log, &mut watcher, &before);
}

fn follow(log: &Log, watcher: &mut Watcher, before: &Watermarks) -> Watermarks {
    let now = watcher.now();
    log.check(&now);
    follows(before, &now);
    now
}

fn subscribe(log: &Log) -> thread::JoinHandle<()> {
    let mut watermarks = log.publisher.subscribe();
    thread::spawn(move || {
        block_on(async move {
            let mut before = *watermarks.borrow_and_update();
            while watermarks.changed().await.is_ok() {
                let now = *watermarks.borrow_and_update();
                follows(&before, &now);
                before = now;
            }
            assert_eq!(before.accepting, Accepting::Closing, "the last that was published");
        });
    })
}

/// Waker of the drain's task.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock().expect("it is whole") = true;
        self.heard.notify_one();
    }
}

/// Asks for the next of each watermark, leaves the question there, and sleeps until it is woken, until the journal closes.
fn sleep(log: &Log) {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    let mut watcher = log.publisher.watcher();
    let mut before = watcher.now();
    while before.accepting != Accepting::Closing {
        let wants = Wants { written: before.written + 1, durable: before.durable + 1 };
        let asked = pin!(watcher.reached(wants)).poll(&mut Context::from_waker(&waker));
        if asked.is_pending() {
            let mut rung = bell.rung.lock().expect("it is whole");
            while !std::mem::take(&mut *rung) {
                rung = bell.heard.wait(rung).expect("it is whole");
            }
        }
        before = follow(log, &mut watcher, &before);
    }
}
