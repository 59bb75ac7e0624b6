//! The load through the SDK, over gRPC or by rings of shared memory: producers, each with a thread of its own.
//!
//! Invariants: as in [`super::load`], the loop is closed and every append is followed to its answer. What is measured is
//! what a program has: the SDK's submit, with its encoding, and its ticket, on which the thread that logs waits itself.
//! Nobody logs by another way in silence: a run by rings ends where one has none.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clad_client::{AckLevel, Address, Batch, Body, LogInfo, Producer, Severity, Ticket};
use hdrhistogram::Histogram;

use super::body::{Id, filling};
use super::flight::NOT_ACKED;
use super::load::{Cpu, Flown, Loaded, LogFacts};
use super::plan::Load;
use super::stats::new_histogram;
use crate::clock;
use crate::exit::error_text;

/// Most memory of a producer for an append beside its bodies, and for a record in it.
const APPEND_OVERHEAD_BYTES: usize = 4096;
const RECORD_OVERHEAD_BYTES: usize = 64;

impl Load {
    /// As [`Load::run`], by producers of the SDK.
    pub(super) fn run_by_sdk(&self, mut report: impl FnMut(u64)) -> anyhow::Result<Loaded> {
        // By a ring the threads of the load do the work; over gRPC the runtime has the connections.
        let rings = matches!(self.address, Address::Shm(_));
        let workers = if rings { 1 } else { self.threads };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
        let mut connections = Vec::new();
        for number in 0..self.connections {
            let which = || format!("connection {} of {}", u32::from(number) + 1, self.connections);
            let producer = runtime.block_on(self.producer().connect()).with_context(which)?;
            if let Some(why) = producer.why_no_ring().filter(|_| rings) {
                bail!("{}: {why}", which());
            }
            connections.push(SdkProducer::new(number, producer, self));
        }
        let first =
            connections.first().and_then(|one| one.producer.log()).context("at least one connection is wanted")?;
        let level = self.level(first.highest_ack, first.policy)?;
        self.fits(&first)?;
        let log = LogFacts { log_id: first.log_id, policy: first.policy, may_read: first.may_read };

        let acked = Arc::new(AtomicU64::new(0));
        let barrier = Arc::new(Barrier::new(connections.len() + 1));
        let mut threads = Vec::new();
        for mut connection in connections {
            let (load, acked, barrier) = (self.clone(), acked.clone(), barrier.clone());
            threads.push(thread::Builder::new().name("load".to_owned()).spawn(move || {
                barrier.wait();
                connection.start = clock::now();
                connection.trouble = connection.run(&load, level, &acked).err().as_ref().map(error_text);
                connection
            })?);
        }
        barrier.wait();
        while threads.iter().any(|thread| !thread.is_finished()) {
            thread::sleep(Duration::from_millis(100).min(self.duration / 4));
            report(acked.load(Relaxed));
        }
        let ends = threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked")));
        let ends: Vec<SdkProducer> = ends.collect::<anyhow::Result<_>>()?;
        for end in &ends {
            // What is read back afterwards must be readable: written.
            runtime.block_on(end.producer.flush(level.max(AckLevel::Written)))?;
        }
        Ok(self.sum_of_sdk(level, log, ends))
    }

    fn producer(&self) -> clad_client::ProducerBuilder {
        let append = APPEND_OVERHEAD_BYTES + self.records as usize * (self.size + RECORD_OVERHEAD_BYTES);
        Producer::builder(self.address.clone())
            .component("clactl-bench")
            .max_buffered_bytes((self.in_flight + 1).saturating_mul(append))
    }

    fn fits(&self, log: &LogInfo) -> anyhow::Result<()> {
        let least = self.records as usize * (self.size + RECORD_OVERHEAD_BYTES / 2);
        if least > log.max_append_bytes as usize {
            bail!("--size, --records-per-append: appends of {} bytes are taken here", log.max_append_bytes);
        }
        Ok(())
    }

    fn sum_of_sdk(&self, level: AckLevel, log: LogFacts, ends: Vec<SdkProducer>) -> Loaded {
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
            failed += (end.offsets.len() as u64 - end.acked) * u64::from(self.records);
            trouble = trouble.or(end.trouble);
            flights.push(Flown { producer: end.producer.id(), offsets: end.offsets });
        }
        Loaded { level, log, acked, failed, elapsed, latencies, cpu: Cpu::default(), trouble, flights }
    }
}

/// One producer, and what became of its appends.
struct SdkProducer {
    number: u16,
    producer: Producer,
    batch: Batch,
    body: String,
    start: Instant,
    last_ack: Option<Instant>,
    offsets: Vec<u64>,
    acked: u64,
    latencies: Histogram<u64>,
    trouble: Option<String>,
}

impl SdkProducer {
    fn new(number: u16, producer: Producer, load: &Load) -> Self {
        Self {
            number,
            batch: producer.batch(),
            producer,
            body: filling(load.size),
            start: clock::now(),
            last_ack: None,
            offsets: Vec::with_capacity(1 << 16),
            acked: 0,
            latencies: new_histogram(),
            trouble: None,
        }
    }

    fn run(&mut self, load: &Load, level: AckLevel, acked: &AtomicU64) -> anyhow::Result<()> {
        let deadline = clock::now() + load.duration;
        let mut out: VecDeque<(Ticket, Instant)> = VecDeque::with_capacity(load.in_flight);
        loop {
            let mut now = clock::now();
            while out.len() < load.in_flight && now < deadline && !load.interrupt.came() {
                if let Some(rest) = load.rest {
                    thread::sleep(rest);
                    now = clock::now();
                }
                out.push_back((self.submit(load, level)?, now));
                now = clock::now();
            }
            let Some((ticket, since)) = out.pop_front() else { return Ok(()) };
            let receipt = ticket.wait(load.spin)?;
            let now = clock::now();
            let nanos = u64::try_from((now - since).as_nanos()).unwrap_or(u64::MAX);
            // It grows as it must; nothing is too long for it.
            let _ = self.latencies.record(nanos.max(1));
            // They are answered in their order.
            if let (Some(place), Some(offset)) = (self.offsets.get_mut(self.acked as usize), receipt.first_offset) {
                *place = offset;
            }
            (self.acked, self.last_ack) = (self.acked + 1, Some(now));
            acked.fetch_add(load.records.into(), Relaxed);
        }
    }

    fn submit(&mut self, load: &Load, level: AckLevel) -> anyhow::Result<Ticket> {
        let time = clock::unix_nanos();
        let first = self.offsets.len() as u64 * u64::from(load.records);
        for record in first..first + u64::from(load.records) {
            Id { connection: self.number, record }.write_to(&mut self.body);
            self.batch.push_body(time, 0, Severity::INFO.0, Body::Text(&self.body))?;
        }
        let ticket = self.producer.try_append_batch(&mut self.batch, Some(level))?;
        self.offsets.push(NOT_ACKED);
        Ok(ticket)
    }
}
