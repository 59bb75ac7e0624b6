//! Progress of the daemon, for the service manager's watchdog.
//!
//! Invariants: the service manager is notified only while all runtime workers, all ingest threads, the drain of the
//! rings and the journal's threads make progress. One that is blocked for ever makes its connections, and all waiters
//! behind it, wait for ever. Threads that wait for the disk do not count as hung, however long it takes; nor do idle or
//! busy ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clad_journal::Journal;
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::time::Interval;

use crate::ingest::Reactor;
use crate::ingest::rings::Rings;

/// Decides if the service manager is notified of progress.
pub(crate) struct Watchdog {
    interval: Interval,
    /// Raised by a task on the runtime's workers, which serve the clients; the one that asks runs beside them.
    turns: Arc<AtomicU64>,
    seen: u64,
    workers: Workers,
    ingest: Ingest,
}

impl Watchdog {
    /// Watchdog that is asked once in this period. Within a runtime.
    pub(crate) fn new(period: Duration, reactor: Reactor) -> Self {
        let turns = Arc::new(AtomicU64::new(1));
        let worker = turns.clone();
        // Often enough that a whole period without a turn is no chance.
        let mut tick = tokio::time::interval(period / 4);
        tokio::spawn(async move {
            loop {
                tick.tick().await;
                worker.fetch_add(1, Ordering::Relaxed);
            }
        });
        let (workers, ingest) = (Workers::new(&Handle::current()), Ingest { reactor, seen: Vec::new() });
        Self { interval: tokio::time::interval(period), turns, seen: 0, workers, ingest }
    }

    /// Waits until it is to be asked again. Cancel safe.
    pub(crate) async fn due(&mut self) {
        self.interval.tick().await;
    }

    /// Returns true if all made progress since the last call; logs what did not.
    pub(crate) fn gets_on(&mut self, journal: &Journal, rings: &Rings) -> bool {
        let turns = self.turns.load(Ordering::Relaxed);
        if turns == self.seen {
            tracing::error!("no sign of life to the watchdog: the runtime's workers make no progress");
            return false;
        }
        self.seen = turns;
        if let Some(worker) = self.workers.blocked() {
            tracing::error!(
                worker,
                "no sign of life to the watchdog: a worker of the runtime is blocked, the others make progress"
            );
            return false;
        }
        if let Some(thread) = self.ingest.blocked() {
            tracing::error!(
                thread,
                "no sign of life to the watchdog: an ingest thread is blocked, the others make progress"
            );
            return false;
        }
        let silent = rings.silent_for();
        if silent > self.interval.period() {
            tracing::error!(?silent, "no sign of life to the watchdog: the drain of the rings makes no progress");
            return false;
        }
        if let Err(stalled) = journal.heartbeat() {
            tracing::error!("no sign of life to the watchdog: {stalled}");
            return false;
        }
        true
    }
}

/// Progress of each ingest thread at the last look.
struct Ingest {
    reactor: Reactor,
    seen: Vec<u64>,
}

impl Ingest {
    /// A thread that has been in one and the same task since the last look. A thread that is at the disk is in none.
    fn blocked(&mut self) -> Option<usize> {
        let turns: Vec<u64> = self.reactor.turns().collect();
        let seen = std::mem::replace(&mut self.seen, turns);
        self.seen.iter().zip(seen).position(|(now, seen)| *now == seen && !now.is_multiple_of(2))
    }
}

/// Progress of each worker of a runtime at the last look.
struct Workers {
    metrics: RuntimeMetrics,
    seen: Vec<Option<Seen>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// Number of times that it went to sleep and woke up; odd while it sleeps.
    turns: u64,
    /// Updated whenever it looks around, which it does between tasks however many there are.
    busy: Duration,
}

impl Workers {
    fn new(runtime: &Handle) -> Self {
        let metrics = runtime.metrics();
        let seen = vec![None; metrics.num_workers()];
        Self { metrics, seen }
    }

    /// A worker that has been in one and the same task since the last look.
    fn blocked(&mut self) -> Option<usize> {
        let mut blocked = None;
        for (at, seen) in self.seen.iter_mut().enumerate() {
            let turns = self.metrics.worker_park_unpark_count(at);
            let now = Seen { turns, busy: self.metrics.worker_total_busy_duration(at) };
            let awake = turns.is_multiple_of(2);
            if awake && *seen == Some(now) {
                blocked = blocked.or(Some(at));
            }
            *seen = Some(now);
        }
        blocked
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::sleep;

    use super::*;

    const LOOK_INTERVAL: Duration = Duration::from_millis(100);
    const LOOKS_MAX: usize = 100;

    #[test]
    fn a_blocked_worker_is_seen_beside_one_that_gets_on_and_neither_rest_nor_work_is_taken_for_it() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut workers = Workers::new(runtime.handle());
        let mut looks = |blocked: bool| {
            let mut look = || {
                sleep(LOOK_INTERVAL);
                workers.blocked().is_some()
            };
            // The first is at what was before.
            look();
            // A worker that the machine gives no processor for so long looks blocked too, for a look or two.
            let mut in_a_row = 0;
            (0..LOOKS_MAX).any(|_| {
                in_a_row = if look() == blocked { in_a_row + 1 } else { 0 };
                in_a_row == 3
            })
        };
        assert!(looks(false), "idle ones");
        let busy: Vec<_> = (0..4)
            .map(|_| {
                runtime.spawn(async {
                    loop {
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        assert!(looks(false), "ones that never rest");
        let (release, blocked) = mpsc::sync_channel::<()>(1);
        let hangs = runtime.spawn(async move { blocked.recv() });
        assert!(looks(true), "a blocked one beside a busy one");
        busy.iter().for_each(tokio::task::JoinHandle::abort);
        assert!(looks(true), "a blocked one beside an idle one");
        drop(release);
        runtime.block_on(hangs).unwrap().unwrap_err();
        assert!(looks(false), "it gets on again");
    }
}
