//! The load: connections that each keep so many appends in flight.
//!
//! Invariants: the loop is closed, the next append leaves when one was answered; every append that left is followed
//! to its answer, after the time is over too; all connections are greeted before the first append leaves. No more threads
//! than processors, unless asked for, and one copy of a prepared payload for an append: the load generator shares the
//! processors with what it measures.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clad_client::Address;
use clad_proto::frame::Intent;
use clad_proto::{AckLevel, DurabilityPolicy, LogId, ProducerId};
use hdrhistogram::Histogram;

use super::body::Template;
use super::connection::{Connection, End};
use super::flight::Flight;
use super::plan::Load;
use super::stats::new_histogram;
use super::together;
use super::wire::Wire;

/// Stack of a connection's thread: there may be a thousand of them.
const STACK_BYTES: usize = 256 * 1024;

/// Result of the load.
#[derive(Debug)]
pub(super) struct Loaded {
    /// The level that was waited for.
    pub(super) level: AckLevel,
    /// The log.
    pub(super) log: LogFacts,
    /// Records that were acked.
    pub(super) acked: u64,
    /// Records that were not.
    pub(super) failed: u64,
    /// From the first append to the last ack.
    pub(super) elapsed: Duration,
    /// Of every acked append, nanoseconds.
    pub(super) latencies: Histogram<u64>,
    /// Processor time of the daemon, where it is one of our own, and of the load.
    pub(super) cpu: Cpu,
    /// The first refusal or broken connection.
    pub(super) trouble: Option<String>,
    /// Each connection's producer and the offsets of its appends.
    pub(super) flights: Vec<Flown>,
}

/// Processor time that a slice of load took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cpu {
    pub(super) daemon: Option<Duration>,
    pub(super) load: Option<Duration>,
}

impl Cpu {
    /// Difference from an earlier count. Threads that ended in between took theirs along, so never below zero.
    pub(super) fn since(self, before: Self) -> Self {
        let since = |now: Option<Duration>, before: Option<Duration>| Some(now?.saturating_sub(before?));
        Self { daemon: since(self.daemon, before.daemon), load: since(self.load, before.load) }
    }
}

/// Facts about the log, from the greeting.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogFacts {
    pub(super) log_id: LogId,
    pub(super) policy: DurabilityPolicy,
    pub(super) may_read: bool,
}

/// Where the appends of one connection are.
#[derive(Debug)]
pub(super) struct Flown {
    /// Its producer.
    pub(super) producer: ProducerId,
    /// Offset of the first record of each append.
    pub(super) offsets: Vec<u64>,
}

impl Load {
    /// Makes all of it; `acked` counts records while it goes on, `report` is called now and then.
    pub(super) fn run(&self, report: impl FnMut(u64)) -> anyhow::Result<Loaded> {
        if self.sdk
            || matches!(self.address, Address::Shm(_) | Address::Grpc(_) | Address::TcpTls(_) | Address::Grpcs(_))
        {
            return self.run_by_sdk(report);
        }
        let append = Intent { append: true, read: false };
        let mut connections = Vec::new();
        for number in 0..self.connections {
            let (wire, welcome) = Wire::connect(&self.address, append)
                .with_context(|| format!("connection {} of {}", u32::from(number) + 1, self.connections))?;
            connections.push((wire, welcome, number));
        }
        let first = connections.first().context("at least one connection is wanted")?.1.clone();
        let level = self.level(first.highest_ack, first.policy)?;
        if self.in_flight > first.window as usize {
            bail!(
                "--in-flight {}: this daemon takes {} unanswered appends on a connection",
                self.in_flight,
                first.window
            );
        }
        let template = Template::new(self.size, self.records, first.max_append_bytes, first.max_record_bytes);
        let template = Arc::new(template.context("--size, --records-per-append")?);
        let log = LogFacts { log_id: first.log_id, policy: first.policy, may_read: first.may_read };

        let acked = Arc::new(AtomicU64::new(0));
        let threads = self.threads.clamp(1, connections.len());
        let barrier = Arc::new(Barrier::new(threads + 1));
        let mut shares: Vec<Vec<Connection>> = (0..threads).map(|_| Vec::new()).collect();
        for (at, (wire, welcome, number)) in connections.into_iter().enumerate() {
            let (template, acked) = (template.clone(), acked.clone());
            let (load, flight) = (self.clone(), Flight::new(level, self.records));
            let producer = welcome.producer_id;
            let connection = Connection { wire, producer, number, flight, load, level, template, acked };
            if let Some(share) = shares.get_mut(at % threads) {
                share.push(connection);
            }
        }
        let mut running = Vec::new();
        for share in shares {
            let barrier = barrier.clone();
            let thread = thread::Builder::new().name("load".to_owned()).stack_size(STACK_BYTES);
            running.push(thread.spawn(move || {
                barrier.wait();
                together::run(share)
            })?);
        }
        barrier.wait();
        let ends = self.join(running, &acked, report)?.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let mut ends: Vec<End> = ends.into_iter().flatten().collect();
        // What is read back is distinguished by the numbers of the connections.
        ends.sort_by_key(|end| end.number);
        Ok(self.sum(level, log, ends))
    }

    /// The level that is waited for.
    pub(super) fn level(&self, highest: AckLevel, policy: DurabilityPolicy) -> anyhow::Result<AckLevel> {
        match self.ack {
            None => Ok(highest),
            Some(level) if level <= highest => Ok(level),
            Some(level) => bail!("this log cannot promise `{level}`: its highest ack is `{highest}` ({policy})"),
        }
    }

    /// Waits for the threads; `report` hears meanwhile how many records were acked.
    pub(super) fn join<T>(
        &self,
        threads: Vec<JoinHandle<T>>,
        acked: &AtomicU64,
        mut report: impl FnMut(u64),
    ) -> anyhow::Result<Vec<T>> {
        while threads.iter().any(|thread| !thread.is_finished()) {
            thread::sleep(Duration::from_millis(100).min(self.duration / 4));
            report(acked.load(Relaxed));
        }
        threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread of the load panicked"))).collect()
    }

    /// Adds up what became of all connections.
    pub(super) fn sum(&self, level: AckLevel, log: LogFacts, ends: Vec<End>) -> Loaded {
        let mut latencies = new_histogram();
        let (mut acked, mut failed, mut trouble) = (0, 0, None);
        let start = ends.iter().map(|end| end.start).min();
        let last = ends.iter().filter_map(|end| end.last_ack).max();
        let elapsed = start.zip(last).map_or(Duration::ZERO, |(start, last)| last - start);
        let mut flights = Vec::new();
        for end in ends {
            // Both grow as they must, so adding cannot fail.
            let _ = latencies.add(&end.latencies);
            acked += end.acked * u64::from(self.records);
            failed += end.failed * u64::from(self.records);
            trouble = trouble.or(end.trouble);
            flights.push(Flown { producer: end.producer, offsets: end.offsets });
        }
        Loaded { level, log, acked, failed, elapsed, latencies, cpu: Cpu::default(), trouble, flights }
    }
}
