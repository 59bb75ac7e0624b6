//! The chaos agent of the Rust client: a program that logs and can be killed (`e2e/tests/chaos/` has its protocol).
//!
//! `CLAD_AGENT_FAULT=NAME` makes it a wrong agent, which the harness must catch.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clad_client::{
    AckLevel, AppendError, Call, Event, Overload, Producer, ProducerBuilder, Reader, Record, SendError, Severity, Stats,
};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

type Failure = Box<dyn std::error::Error>;

/// An unknown mode.
const EXIT_UNKNOWN: u8 = 2;
const CONNECT_RETRY_DELAY: Duration = Duration::from_millis(5);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
/// Bytes that may wait in a producer that drops.
const BUFFERED_BYTES_MAX: usize = 16 << 10;
const THREADS: u64 = 2;
/// The number, or offset, around which a wrong agent is wrong.
const FAULT_NUMBER: u64 = 100;

fn main() -> Result<ExitCode, Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, id, component, epoch, mode] = words.as_slice() else {
        return Err("chaos_agent ADDRESS PRODUCER_ID COMPONENT EPOCH MODE".into());
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let fault = std::env::var("CLAD_AGENT_FAULT").unwrap_or_default();
    let address: clad_client::Address = address.parse()?;
    let builder = Producer::builder(address.clone()).component(component.as_str()).secret("chaos");
    let builder = builder.backoff(BACKOFF.0, BACKOFF.1);
    let stdin = Stdin::default();
    let [written, durable] = [AckLevel::Written, AckLevel::Durable];
    // The levels in turn, and the records of an append, so that some are grouped.
    let (overload, levels, grouped) = match mode.as_str() {
        "keeps" => {
            runtime.block_on(keep(builder.producer(id.parse()?, epoch.parse()?), &stdin, &fault))?;
            return Ok(if fault == "fails at its end" { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        "follows" => {
            runtime.block_on(follow(address, &stdin, &fault))?;
            return Ok(ExitCode::SUCCESS);
        }
        "drops-newest" => (Overload::DropNewest, vec![written, durable], 1),
        "drops-oldest" => (Overload::DropOldest, vec![written, durable], 5),
        "drops-below" => {
            let wait = Duration::from_millis(50);
            (Overload::DropBelow { severity: Severity::WARN, wait }, vec![written, durable], 20)
        }
        "mixed" => {
            let wait = Duration::from_millis(20);
            (Overload::Wait(wait), vec![AckLevel::None, AckLevel::Received, written, durable], 3)
        }
        _ => return Ok(ExitCode::from(EXIT_UNKNOWN)),
    };
    let builder = builder.overload(overload).max_buffered_bytes(BUFFERED_BYTES_MAX).max_append_records(grouped);
    drop_some(&runtime, builder, &levels, &stdin, &fault)?;
    Ok(ExitCode::SUCCESS)
}

/// The end of stdin.
#[derive(Clone, Default)]
struct Stdin(Arc<AtomicBool>);

impl Stdin {
    fn watch(&self) {
        let ended = self.0.clone();
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            ended.store(true, Ordering::Relaxed);
        });
    }

    fn has_ended(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// One line, which leaves at once.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("somebody listens");
}

/// Appends numbers, each once over all starts of this agent, until stdin ends.
async fn keep(builder: ProducerBuilder, stdin: &Stdin, fault: &str) -> Result<(), Failure> {
    let producer = loop {
        match builder.clone().resume(AckLevel::Written).await {
            Ok(producer) => break producer,
            Err(_) => tokio::time::sleep(CONNECT_RETRY_DELAY).await,
        }
    };
    stdin.watch();
    let stored = producer.last_stored().map_or(0, |last| last.sequence + 1);
    let mut tickets = JoinSet::new();
    let mut number = if fault == "begins again" { 0 } else { stored };
    while !stdin.has_ended() {
        let level = if number.is_multiple_of(2) { AckLevel::Written } else { AckLevel::Durable };
        let body = match (fault, number) {
            ("swaps two", FAULT_NUMBER) => FAULT_NUMBER + 1,
            ("swaps two", n) if n == FAULT_NUMBER + 1 => FAULT_NUMBER,
            ("writes one twice", n) if n > FAULT_NUMBER => n - 1,
            _ => number,
        };
        let record = Record::text(1, Severity::INFO.0, body.to_string());
        let asked = if fault == "asks for too little" { AckLevel::Received } else { level };
        let ticket = producer.reserve(64).await?.at(asked).submit(&record)?;
        let wrong_offset = fault == "says a wrong offset" && number == FAULT_NUMBER;
        tickets.spawn(async move {
            match ticket.await {
                Ok(receipt) => say_receipt(&number.to_string(), receipt.first_offset, wrong_offset),
                Err(error) => say(&format!("error {error}")),
            }
        });
        while tickets.try_join_next().is_some() {}
        number += 1;
        if number.is_multiple_of(8) {
            tokio::time::sleep(CONNECT_RETRY_DELAY).await;
        }
    }
    while tickets.join_next().await.is_some() {}
    if fault == "has a receipt that was never given" {
        say(&format!("receipt {number} {number}"));
    }
    producer.close().await?;
    Ok(())
}

fn say_receipt(which: &str, offset: Option<u64>, wrong: bool) {
    match offset {
        Some(offset) => say(&format!("receipt {which} {}", offset + u64::from(wrong))),
        None => say(&format!("receipt {which} -")),
    }
}

/// Logs from two threads without ever waiting long, until stdin ends.
fn drop_some(
    runtime: &Runtime,
    builder: ProducerBuilder,
    levels: &[AckLevel],
    stdin: &Stdin,
    fault: &str,
) -> Result<(), Failure> {
    let producer = runtime.block_on(async { builder.start() })?;
    stdin.watch();
    let (asked, answered) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    let refused = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (producer, asked, answered, refused) = (&producer, &asked, &answered, &refused);
            scope.spawn(move || {
                let mut number = 0_usize;
                while !stdin.has_ended() {
                    let severity = if number.is_multiple_of(2) { Severity::INFO } else { Severity::WARN };
                    let body = format!("{thread} {number}");
                    let record = Record::text(1, severity.0, body.clone());
                    let level = levels[number % levels.len()];
                    let which = format!("{thread}:{number}");
                    match producer.offer(&record, &Call::new().at(level)) {
                        Ok(ticket) => {
                            asked.fetch_add(1, Ordering::Relaxed);
                            let (answered, refused, fault) = (answered.clone(), refused.clone(), fault.to_owned());
                            runtime.spawn(async move {
                                let outcome = ticket.await;
                                if matches!(&outcome, Err(error) if !matches!(error, AppendError::Dropped { .. })) {
                                    refused.fetch_add(1, Ordering::Relaxed);
                                }
                                say_outcome(&which, level, outcome.map(|receipt| receipt.first_offset), &fault);
                                answered.fetch_add(1, Ordering::Release);
                            });
                        }
                        Err(SendError::Submit(_) | SendError::Reserve(_)) if fault == "says nothing of drops" => {}
                        Err(SendError::Append(error)) => say(&format!("error {which} {error}")),
                        Err(_) => say(&format!("never {which}")),
                    }
                    number += 1;
                    if number.is_multiple_of(64) {
                        std::thread::sleep(Duration::from_millis(40));
                    }
                }
            });
        }
    });
    let asked = asked.into_inner();
    runtime.block_on(async {
        let flushed = producer.flush(AckLevel::Written).await;
        while answered.load(Ordering::Acquire) < asked {
            tokio::time::sleep(CONNECT_RETRY_DELAY).await;
        }
        let closed = producer.clone().close().await.map(drop);
        for error in [flushed, closed].into_iter().filter_map(Result::err) {
            // Records of a lower level may be lost with a daemon, which the flush reports.
            if !(matches!(error, AppendError::Lost) && levels.contains(&AckLevel::Received)) {
                say(&format!("error {error}"));
            }
        }
    });
    // Only now, when the last report of drops has its outcome too. A report that failed is among the refused records.
    let Stats { submitted, acked, dropped, failed, drop_reports, .. } = producer.stats();
    let refused = refused.load(Ordering::Relaxed);
    let logged = submitted - drop_reports - failed.saturating_sub(refused);
    let wrong = u64::from(fault == "counts a drop too few");
    say(&format!("stats {logged} {} {} {refused}", acked - drop_reports, dropped - wrong));
    Ok(())
}

fn say_outcome(which: &str, level: AckLevel, outcome: Result<Option<u64>, AppendError>, fault: &str) {
    match outcome {
        Ok(Some(_)) if level < AckLevel::Written => say(&format!("sent {which}")),
        Ok(None) if level == AckLevel::None => say(&format!("sent {which}")),
        Ok(_) if fault == "denies what is stored" && which.ends_with(":2") => say(&format!("never {which}")),
        Ok(offset) => say_receipt(which, offset, false),
        Err(error) if !error.maybe_written() => say(&format!("never {which}")),
        Err(error) => say(&format!("error {which} {error}")),
    }
}

/// Reads what is durable, over every death, until stdin ends.
async fn follow(address: clad_client::Address, stdin: &Stdin, fault: &str) -> Result<(), Failure> {
    let builder = Reader::builder(address).level(AckLevel::Durable).follow(true).backoff(BACKOFF.0, BACKOFF.1);
    let mut reader = loop {
        match builder.clone().open().await {
            Ok(reader) => break reader,
            Err(_) => tokio::time::sleep(CONNECT_RETRY_DELAY).await,
        }
    };
    stdin.watch();
    while !stdin.has_ended() {
        // `next` loses nothing where it is dropped.
        let Ok(event) = tokio::time::timeout(CONNECT_RETRY_DELAY, reader.next()).await else { continue };
        match event? {
            Some(Event::Records(chunk))
                if fault == "skips one" && (chunk.first_offset()..chunk.end_offset()).contains(&FAULT_NUMBER) => {}
            Some(Event::Records(chunk)) => say(&format!("records {} {}", chunk.first_offset(), chunk.count())),
            Some(Event::CaughtUp { .. }) => {}
            other => say(&format!("error {other:?}")),
        }
    }
    Ok(())
}
