//! The load: connections that each keep so many appends in flight.
//!
//! What must hold: the loop is closed, the next append leaves when one was answered; every append that left is followed
//! to its answer, after the time is over too; all connections are greeted before the first append leaves. One thread for
//! a connection and one copy of a prepared payload for an append: the load generator shares two cores with what it
//! measures.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clad_client::Address;
use clad_proto::frame::{Accepted, Flush, Frame, FrameType, Intent, Welcome, encode_bye};
use clad_proto::{AckLevel, DurabilityPolicy, ErrorInfo, LogId, ProducerId};
use hdrhistogram::Histogram;

use super::body::{Id, Template};
use super::flight::Flight;
use super::stats::new_histogram;
use super::wire::Wire;
use crate::clock;
use crate::exit::told;
use crate::interrupt::Interrupt;

/// Stack of a connection's thread: there may be a thousand of them.
const STACK: usize = 256 * 1024;

/// What is asked of a daemon.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// Where it is.
    pub(super) address: Address,
    /// How many connections.
    pub(super) connections: u16,
    /// How many appends each keeps in flight.
    pub(super) in_flight: usize,
    /// Bytes of a body.
    pub(super) size: usize,
    /// Records in an append.
    pub(super) records: u32,
    /// The level that an answer waits for; nothing is the highest.
    pub(super) ack: Option<AckLevel>,
    /// How long appends leave.
    pub(super) duration: Duration,
    /// How long a thread with a ring looks for an answer before it sleeps.
    pub(super) spin: Duration,
    /// How long it rests before each append.
    pub(super) rest: Option<Duration>,
    /// Ends it early.
    pub(super) interrupt: Interrupt,
}

/// What came of it.
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
    /// The first refusal or broken connection.
    pub(super) trouble: Option<String>,
    /// Each connection's producer and the offsets of its appends.
    pub(super) flights: Vec<Flown>,
}

/// What the greeting said about the log.
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

struct Connection {
    wire: Wire,
    welcome: Welcome,
    number: u16,
}

impl Load {
    /// Makes all of it; `acked` counts records while it goes on, `tell` is called now and then.
    pub(super) fn run(&self, mut tell: impl FnMut(u64)) -> anyhow::Result<Loaded> {
        if matches!(self.address, Address::Shm(_)) {
            return self.run_by_rings(tell);
        }
        let append = Intent { append: true, read: false };
        let mut connections = Vec::new();
        for number in 0..self.connections {
            let (wire, welcome) = Wire::connect(&self.address, append)
                .with_context(|| format!("connection {} of {}", u32::from(number) + 1, self.connections))?;
            connections.push(Connection { wire, welcome, number });
        }
        let first = &connections.first().context("at least one connection is wanted")?.welcome;
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
        let barrier = Arc::new(Barrier::new(connections.len() + 1));
        let mut threads = Vec::new();
        for connection in connections {
            let (template, acked, barrier) = (template.clone(), acked.clone(), barrier.clone());
            let load = self.clone();
            let thread = thread::Builder::new().name("load".to_owned()).stack_size(STACK);
            threads.push(thread.spawn(move || {
                barrier.wait();
                connection.run(&load, level, &template, &acked)
            })?);
        }
        barrier.wait();
        while threads.iter().any(|thread| !thread.is_finished()) {
            thread::sleep(Duration::from_millis(100).min(self.duration / 4));
            tell(acked.load(Relaxed));
        }
        let ends =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a connection's thread panicked")));
        Ok(self.sum(level, log, ends.collect::<anyhow::Result<_>>()?))
    }

    /// The level that is waited for.
    pub(super) fn level(&self, highest: AckLevel, policy: DurabilityPolicy) -> anyhow::Result<AckLevel> {
        match self.ack {
            None => Ok(highest),
            Some(level) if level <= highest => Ok(level),
            Some(level) => bail!("this log cannot promise `{level}`: its highest ack is `{highest}` ({policy})"),
        }
    }

    fn sum(&self, level: AckLevel, log: LogFacts, ends: Vec<End>) -> Loaded {
        let mut latencies = new_histogram();
        let (mut acked, mut failed, mut trouble) = (0, 0, None);
        let start = ends.iter().map(|end| end.start).min();
        let last = ends.iter().filter_map(|end| end.flight.last_ack).max();
        let elapsed = start.zip(last).map_or(Duration::ZERO, |(start, last)| last - start);
        let mut flights = Vec::new();
        for end in ends {
            // Both grow as they must, so adding cannot fail.
            let _ = latencies.add(&end.flight.latencies);
            acked += end.flight.acked * u64::from(self.records);
            failed += end.flight.failed * u64::from(self.records);
            let refusal = end.flight.refusal.as_ref().map(ErrorInfo::to_string);
            trouble = trouble.or(end.broken.as_ref().map(told)).or(refusal);
            flights.push(Flown { producer: end.producer, offsets: end.flight.offsets });
        }
        Loaded { level, log, acked, failed, elapsed, latencies, trouble, flights }
    }
}

struct End {
    producer: ProducerId,
    start: Instant,
    flight: Flight,
    broken: Option<anyhow::Error>,
}

impl Connection {
    fn run(mut self, load: &Load, level: AckLevel, template: &Template, acked: &AtomicU64) -> End {
        let mut flight = Flight::new(level, load.records);
        let start = clock::now();
        let broken = self.go(load, level, template, acked, &mut flight).err();
        flight.end();
        End { producer: self.welcome.producer_id, start, flight, broken }
    }

    fn go(
        &mut self,
        load: &Load,
        level: AckLevel,
        template: &Template,
        acked: &AtomicU64,
        flight: &mut Flight,
    ) -> anyhow::Result<()> {
        let deadline = clock::now() + load.duration;
        let mut now = clock::now();
        loop {
            if now < deadline && !load.interrupt.came() {
                let time = clock::unix_nanos();
                let room = load.in_flight.saturating_sub(flight.in_flight());
                if room > 0 {
                    let first = Id { connection: self.number, record: flight.leave(room, now) };
                    template.stamp(&mut self.wire.out, first, room, level, time);
                }
            } else if flight.in_flight() == 0 {
                return self.end(level);
            }
            self.wire.exchange()?;
            now = clock::now();
            let before = flight.acked;
            while let Some(raw) = self.wire.next()? {
                match raw.header.kind {
                    // Most of what comes.
                    FrameType::Accepted => flight.accepted(&Accepted::parse(&raw)?, now)?,
                    _ => flight.answer(&raw.decode()?, now)?,
                }
            }
            acked.fetch_add((flight.acked - before) * u64::from(load.records), Relaxed);
            // The next appends leave now, not when the answers came.
            now = clock::now();
        }
    }

    /// What is read back afterwards must be readable: written.
    fn end(&mut self, level: AckLevel) -> anyhow::Result<()> {
        if level < AckLevel::Written {
            self.wire.queue(|out| Flush { request_id: 1, level: AckLevel::Written }.encode(out));
            let mut flushed = false;
            while !flushed {
                self.wire.exchange()?;
                while let Some(raw) = self.wire.next()? {
                    flushed |= match raw.decode()? {
                        Frame::Watermark(mark) => mark.request_id == 1,
                        Frame::Error(error) => return Err(error.error.into()),
                        _ => false,
                    };
                }
            }
        }
        // The daemon need not remember this producer any more; it closes when it has heard.
        self.wire.queue(encode_bye);
        while self.wire.exchange().is_ok() {
            while self.wire.next()?.is_some() {}
        }
        Ok(())
    }
}
