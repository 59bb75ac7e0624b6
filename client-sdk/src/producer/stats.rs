//! What a producer counts.

use clad_proto::{LogId, ProducerId};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A snapshot of what a producer has counted since it was made. Records, unless the name says otherwise.
///
/// Each record that was handed over is counted in `submitted`, and once it has ended in one of `acked`, `failed` and `dropped`:
/// the three add up to the one when nothing waits.
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
    /// Fire-and-forget records that were let go without a word to anybody (no room, or no daemon for too long), and what was
    /// refused because the ring was full ([`drop_when_full`](crate::ProducerBuilder::drop_when_full)).
    pub dropped: u64,
    /// Connections made after the first.
    pub reconnects: u64,
    /// Bytes that are reserved or wait for their receipt now.
    pub buffered_bytes: u64,
    /// Appends that wait for their receipt now.
    pub pending_appends: u64,
}

/// What [`Producer::close`](crate::Producer::close) tells in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The producer.
    pub producer_id: ProducerId,
    /// The log that it last had a connection to.
    pub log_id: Option<LogId>,
    /// What was counted.
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
    pub(crate) dropped: Counter,
    pub(crate) connects: Counter,
    pub(crate) pending_appends: Counter,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// What was added and is not to count.
    pub(crate) fn take_back(&self, n: u64) {
        self.0.fetch_sub(n, Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Counters {
    pub(crate) fn snapshot(&self, buffered_bytes: u64) -> Stats {
        Stats {
            submitted: self.submitted.get(),
            sent: self.sent.get(),
            acked: self.acked.get(),
            resent: self.resent.get(),
            failed: self.failed.get(),
            dropped: self.dropped.get(),
            reconnects: self.connects.get().saturating_sub(1),
            buffered_bytes,
            pending_appends: self.pending_appends.get(),
        }
    }
}
