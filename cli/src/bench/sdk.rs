//! The load through the SDK, over any transport: producers, each with a thread of its own.
//!
//! Invariants: as in [`super::load`], the loop is closed and every append is followed to its answer. What is measured is
//! what a program has: the SDK's submit, with its encoding, and its ticket, on which the thread that logs waits itself.
//! Nobody logs by another way in silence: a run by rings ends where one has none.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail};
use clad_client::{AckLevel, Address, Batch, Body, LogInfo, Producer, Receipt, Severity, Ticket};
use hdrhistogram::Histogram;

use super::body::{Id, filling};
use super::connection::End;
use super::flight::NOT_ACKED;
use super::load::{Loaded, LogFacts};
use super::plan::Load;
use super::stats::new_histogram;
use crate::clock;
use crate::exit::error_text;

/// Bytes that an append takes of a producer's memory beside its bodies, at most, and a record in it.
const APPEND_OVERHEAD_BYTES: usize = 4096;
const RECORD_OVERHEAD_BYTES: usize = 64;

impl Load {
    /// As [`Load::run`], by producers of the SDK.
    pub(super) fn run_by_sdk(&self, report: impl FnMut(u64)) -> anyhow::Result<Loaded> {
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
        let ends: Vec<SdkProducer> = self.join(threads, &acked, report)?;
        for end in &ends {
            // What is read back afterwards must be readable: written.
            runtime.block_on(end.producer.flush(level.max(AckLevel::Written)))?;
        }
        Ok(self.sum(level, log, ends.into_iter().map(SdkProducer::end).collect()))
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

    fn end(self) -> End {
        let Self { number, start, last_ack, acked, latencies, offsets, trouble, .. } = self;
        let (producer, failed) = (self.producer.id(), offsets.len() as u64 - acked);
        End { number, producer, start, last_ack, acked, failed, latencies, offsets, trouble }
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
            self.acked(&ticket.wait(load.spin)?, since);
            let mut answered = 1;
            // Those that came with it. They are answered in their order.
            while let Some((ticket, since)) = out.front_mut()
                && let Some(outcome) = ticket.try_wait()
            {
                self.acked(&outcome?, *since);
                (_, answered) = (out.pop_front(), answered + 1);
            }
            acked.fetch_add(answered * u64::from(load.records), Relaxed);
        }
    }

    fn acked(&mut self, receipt: &Receipt, since: Instant) {
        let now = clock::now();
        let nanos = u64::try_from((now - since).as_nanos()).unwrap_or(u64::MAX);
        // It grows as it must; nothing is too long for it.
        let _ = self.latencies.record(nanos.max(1));
        if let (Some(place), Some(offset)) = (self.offsets.get_mut(self.acked as usize), receipt.first_offset) {
            *place = offset;
        }
        (self.acked, self.last_ack) = (self.acked + 1, Some(now));
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
