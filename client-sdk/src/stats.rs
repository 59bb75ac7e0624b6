//! Counters of a producer.

use crate::drops::{DropCounts, Drops};
use crate::sync::{
    Mutex, MutexGuard,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};
use clad_proto::{LogId, ProducerId};
use std::sync::{Arc, PoisonError};

/// A snapshot of what a producer has counted since it was made. Records, unless the name says otherwise.
///
/// Each record that was handed over is counted in `submitted`. Once it has ended it is counted in one of `acked`,
/// `failed` and `dropped`: the three add up to the one when nothing waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Handed over, or dropped instead.
    pub submitted: u64,
    /// Sent for the first time.
    pub sent: u64,
    /// Reached their level. At level `none`: handed to the connection.
    pub acked: u64,
    /// Sent again.
    pub resent: u64,
    /// Ended with an error.
    pub failed: u64,
    /// Dropped for lack of room ([`Overload`](crate::Overload)), or fire-and-forget records that no daemon took in
    /// time. A record of the log reports them when there is room ([`DROPS_EVENT_NAME`](crate::DROPS_EVENT_NAME)).
    pub dropped: u64,
    /// The same, by reason.
    pub dropped_by: DropCounts,
    /// Records that report drops; they are counted in `submitted`, and all that follows from it, too.
    pub drop_reports: u64,
    /// Connections made after the first.
    pub reconnects: u64,
    /// Bytes that are reserved or wait for their receipt now.
    pub buffered_bytes: u64,
    /// Appends that wait for their receipt now.
    pub pending_appends: u64,
}

/// Final report of [`Producer::close`](crate::Producer::close).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The producer.
    pub producer_id: ProducerId,
    /// The log that it last had a connection to.
    pub log_id: Option<LogId>,
    /// The counters.
    pub stats: Stats,
}

/// The counters behind [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) submitted: Counter,
    pub(crate) sent: Counter,
    pub(crate) acked: Counter,
    pub(crate) resent: Counter,
    pub(crate) failed: Counter,
    pub(crate) drops: Drops,
    pub(crate) connects: Counter,
    pub(crate) pending_appends: Counter,
    /// Counters of the batches.
    tallies: Mutex<Vec<Arc<Tally>>>,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Release);
    }

    /// Subtracts what was added and is not to count.
    pub(crate) fn take_back(&self, n: u64) {
        self.0.fetch_sub(n, Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// Adds where no other thread does: an instruction that locks waits for every store before it.
    #[inline]
    fn add_unshared(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Release);
    }

    fn get(&self) -> u64 {
        self.0.load(Acquire)
    }
}

/// Counters of a batch: one thread at a time has it.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    submitted: Counter,
    sent: Counter,
    /// Sent and acked at once.
    posted: Counter,
}

/// Where a submit is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Book<'a> {
    /// Where all threads count.
    Common(&'a Counters),
    /// In a batch's own tally, which no other thread writes.
    Own(&'a Tally),
}

impl Book<'_> {
    /// Before it can be sent: no snapshot may show more sent than submitted.
    #[inline]
    pub(crate) fn submitted(self, n: u64) {
        match self {
            Self::Common(counters) => counters.submitted.add(n),
            Self::Own(tally) => tally.submitted.add_unshared(n),
        }
    }

    pub(crate) fn take_back(self, n: u64) {
        match self {
            Self::Common(counters) => counters.submitted.take_back(n),
            Self::Own(tally) => tally.submitted.add_unshared(n.wrapping_neg()),
        }
    }

    pub(crate) fn sent(self, n: u64) {
        match self {
            Self::Common(counters) => counters.sent.add(n),
            Self::Own(tally) => tally.sent.add_unshared(n),
        }
    }

    /// Sent, and as safe as was asked for with that.
    #[inline]
    pub(crate) fn posted(self, n: u64) {
        match self {
            Self::Common(counters) => {
                counters.sent.add(n);
                counters.acked.add(n);
            }
            Self::Own(tally) => tally.posted.add_unshared(n),
        }
    }
}

impl Counters {
    /// A tally whose counts are among these for as long as it is there, and stay when [`Counters::close`] takes it.
    pub(crate) fn open(&self) -> Arc<Tally> {
        let tally = Arc::<Tally>::default();
        self.tallies().push(tally.clone());
        tally
    }

    pub(crate) fn close(&self, tally: &Arc<Tally>) {
        // Under the lock, so that it is counted exactly once.
        let mut tallies = self.tallies();
        if let Some(at) = tallies.iter().position(|known| Arc::ptr_eq(known, tally)) {
            tallies.swap_remove(at);
            let posted = tally.posted.get();
            self.submitted.add(tally.submitted.get());
            self.sent.add(tally.sent.get() + posted);
            self.acked.add(posted);
        }
    }

    fn tallies(&self) -> MutexGuard<'_, Vec<Arc<Tally>>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `waits`: not in a child of `fork`, where another thread may have had the lock.
    pub(crate) fn snapshot(&self, buffered_bytes: u64, waits: bool) -> Stats {
        let tallies = if waits { Some(self.tallies()) } else { self.tallies.try_lock().ok() };
        let all = || tallies.iter().flat_map(|tallies| tallies.iter());
        // The last counted is read first: no snapshot shows more acked than sent, nor more sent than submitted.
        let posted: u64 = all().map(|tally| tally.posted.get()).sum();
        let acked = self.acked.get() + posted;
        let dropped_by = self.drops.counts();
        let sent = self.sent.get() + posted + all().map(|tally| tally.sent.get()).sum::<u64>();
        Stats {
            submitted: self.submitted.get() + all().map(|tally| tally.submitted.get()).sum::<u64>(),
            sent,
            acked,
            resent: self.resent.get(),
            failed: self.failed.get(),
            dropped: dropped_by.total(),
            dropped_by,
            drop_reports: self.drops.reports(),
            reconnects: self.connects.get().saturating_sub(1),
            buffered_bytes,
            pending_appends: self.pending_appends.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_batch_counts_is_counted_once_whether_it_is_there_or_not() {
        let counters = Counters::default();
        let (first, second) = (counters.open(), counters.open());
        for book in [Book::Own(&first), Book::Own(&second), Book::Common(&counters)] {
            book.submitted(7);
            book.take_back(2);
            book.sent(2);
            book.posted(3);
        }
        let all = Stats { submitted: 15, sent: 15, acked: 9, ..Stats::default() };
        assert_eq!(counters.snapshot(0, true), all);
        counters.close(&first);
        counters.close(&first);
        assert_eq!(counters.snapshot(0, true), all);
        let held = counters.tallies();
        assert_eq!(counters.snapshot(0, false).submitted, 10, "a child of fork does not wait");
        drop(held);
    }
}
