//! What a logging call costs its thread, with three fields and without waiting: clad's layer for `tracing` beside
//! `tracing-appender`'s non-blocking writer of a file, and what lies under the layer: the Rust client, and the C library.
//!
//! Invariants: every call is timed, by the same clock in all. All have room for all events; what was dropped all the
//! same is in the result, and all else is stored: the daemon has acknowledged it, or the file has a line of it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use clad_client::{AckLevel, Address, Body, Call, Producer, RecordHead, Severity, blocking};
use serde::Serialize;
use tracing::{Subscriber, info};
use tracing_subscriber::{layer::SubscriberExt, registry};

use crate::stats::{Latency, histogram, record};

/// Room for all events, as clad counts it.
const EVENT_BYTES: usize = 1024;
const FLUSH_TIMEOUT: Duration = Duration::from_secs(60);

/// One contender, once.
#[derive(Clone, Debug, Serialize)]
pub struct Turn {
    /// Its name.
    pub contender: &'static str,
    /// Calls.
    pub events: u64,
    /// Events that it dropped.
    pub dropped: u64,
    /// Of each call.
    pub latency_us: Latency,
}

/// What is run, and how often.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The daemon's address.
    pub server: Address,
    /// Folder for the file of `tracing-appender`.
    pub dir: PathBuf,
    /// Calls in a turn.
    pub events: u64,
    /// How often each takes its turn.
    pub rounds: u32,
    /// `client-sdk/c/benches/log_call.c`, built.
    pub c_program: Option<PathBuf>,
    /// Asked for with each record; nothing: the highest that the log offers.
    pub level: Option<AckLevel>,
}

impl Plan {
    /// All contenders in turn, so often.
    ///
    /// # Errors
    /// Something that was not dropped is not stored.
    pub fn run(&self) -> Result<Vec<Turn>> {
        let mut turns = Vec::new();
        for _ in 0..self.rounds {
            turns.push(self.layer()?);
            turns.push(appender(&self.dir, self.events)?);
            turns.push(self.client()?);
            if let Some(program) = &self.c_program {
                turns.push(self.c_library(program)?);
            }
        }
        Ok(turns)
    }

    fn producer(&self) -> Result<blocking::Producer> {
        let room = usize::try_from(self.events)?.saturating_mul(EVENT_BYTES);
        // As the layer's own set-up has it.
        let group = if matches!(self.server, Address::Shm(_)) { 1 } else { 128 };
        let builder = Producer::builder(self.server.clone()).component("bench").max_append_records(group);
        let builder = self.level.map_or(builder.clone(), |level| builder.level(level));
        blocking::Producer::connect(builder.max_buffered_bytes(room)).context("the daemon")
    }

    fn turn(&self, contender: &'static str, producer: blocking::Producer, latency_us: Latency) -> Result<Turn> {
        let events = self.events;
        // Also where a record asks for less: it is in the log.
        producer.flush(AckLevel::Written, FLUSH_TIMEOUT)?;
        let stats = producer.close(FLUSH_TIMEOUT)?.stats;
        let stored = stats.acked - stats.drop_reports;
        ensure!(stored + stats.dropped == events, "{events} events, {stored} stored, {} dropped", stats.dropped);
        Ok(Turn { contender, events, dropped: stats.dropped, latency_us })
    }

    /// Clad's layer for `tracing`.
    fn layer(&self) -> Result<Turn> {
        let producer = self.producer()?;
        let latency_us = timed(registry().with(clad_tracing::Layer::new(&producer)), self.events);
        self.turn("clad_tracing", producer, latency_us)
    }

    /// The client under it, as a program would call it by itself.
    fn client(&self) -> Result<Turn> {
        let producer = self.producer()?;
        let (mut batch, call, mut latencies) = (producer.batch(), Call::new(), histogram());
        for number in 0..self.events {
            let start = Instant::now();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
            let head = RecordHead {
                time_unix_nano: now,
                observed_time_unix_nano: now,
                severity_number: Severity::INFO.0,
                ..RecordHead::default()
            };
            let mut written = batch.builder().record(head, Body::Text("an event"));
            written.attributes(|pairs| {
                pairs.entry("number").int(number as i64);
                pairs.entry("name").text("three fields");
                pairs.entry("ratio").double(0.5);
            });
            written.commit()?;
            // What is dropped is counted.
            let _ = producer.post_batch(&mut batch, &call);
            record(&mut latencies, start.elapsed());
        }
        self.turn("clad_client", producer, Latency::of(&latencies))
    }

    /// The C library, in a program of its own that says how long each call took.
    fn c_library(&self, program: &Path) -> Result<Turn> {
        let mut command = Command::new(program);
        command.arg(self.server.to_string()).arg(self.events.to_string());
        // A `clad_level`.
        command.args(self.level.map(|level| (level.code() + 1).to_string()));
        let output = command.output()?;
        ensure!(output.status.success(), "{}: {}", program.display(), String::from_utf8_lossy(&output.stderr));
        let mut latencies = histogram();
        for line in output.stdout.lines() {
            record(&mut latencies, Duration::from_nanos(line?.parse().context("a number of nanoseconds")?));
        }
        ensure!(latencies.len() == self.events, "{} of {} calls", latencies.len(), self.events);
        Ok(Turn { contender: "c_library", events: self.events, dropped: 0, latency_us: Latency::of(&latencies) })
    }
}

/// The non-blocking file writer.
///
/// # Errors
/// As [`Plan::run`].
pub fn appender(dir: &Path, events: u64) -> Result<Turn> {
    let folder = tempfile::tempdir_in(dir)?;
    let path = folder.path().join("events.log");
    let builder = tracing_appender::non_blocking::NonBlockingBuilder::default();
    let lines = usize::try_from(events)?;
    let (writer, guard) = builder.buffered_lines_limit(lines).finish(File::create(&path)?);
    let errors = writer.error_counter();
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
    let latency_us = timed(registry().with(layer), events);
    drop(guard);
    let dropped = errors.dropped_lines() as u64;
    let stored = BufReader::new(File::open(&path)?).lines().count() as u64;
    ensure!(stored + dropped == events, "{events} events, {stored} lines, {dropped} dropped");
    Ok(Turn { contender: "tracing_appender", events, dropped, latency_us })
}

fn timed(subscriber: impl Subscriber + Send + Sync + 'static, events: u64) -> Latency {
    let mut latencies = histogram();
    tracing::subscriber::with_default(subscriber, || {
        for number in 0..events {
            let start = Instant::now();
            info!(number, name = "three fields", ratio = 0.5, "an event");
            record(&mut latencies, start.elapsed());
        }
    });
    Latency::of(&latencies)
}
