//! From a clad to elsewhere.
//!
//! Invariants:
//! - A request is made of whole appends, each a message of its own: made again, it is made of the same.
//! - The cursor moves when the endpoint has answered. So a record comes at least once; with `clad.log.id`, `clad.epoch` and
//!   `clad.offset` in it, the far end can recognise copies.
//! - Nothing is skipped in silence: what the endpoint refuses for ever is counted, and its offsets are in the file of dead letters;
//!   a gap of the log is a record of its own.
//! - Memory does not grow with an outage: one request is under way, and the log keeps the rest.

pub(crate) mod clad;
#[cfg(feature = "kafka")]
pub(crate) mod kafka;
mod message;
pub(crate) mod nats;
pub(crate) mod objects;
mod otlp;
mod otlp_json;
mod source;
mod value;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use clad_client::{Chunk, Cursor, Event, Gap, GapReason};
use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::ExportLogsServiceRequest;
use clad_proto::grpc::opentelemetry::proto::common::v1::{AnyValue, KeyValue, any_value::Value};
use clad_proto::grpc::opentelemetry::proto::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use prost::Message;
use tokio::time::{Instant, sleep, timeout_at};

use crate::Stop;
use crate::config::{FromClad, ToOtlp};
use crate::metrics;
use otlp::{Answer, Otlp, TIMEOUT};
use source::Source;
pub(crate) use source::{begin, status};

/// Bytes of records at which a request goes. The specification recommends that receivers take 20 MiB.
const REQUEST_BYTES: usize = 1 << 20;
/// So much of the end of the file of dead letters is read for what is noted already.
const NOTED_BYTES: u64 = 64 << 10;
/// The longest time that a record waits for others.
const LINGER: Duration = Duration::from_millis(200);
/// Pauses between tries.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const LONGEST_CONNECTION_PAUSE: Duration = Duration::from_secs(10);

/// What ends a connection.
#[derive(Debug)]
enum Trouble {
    /// It can be tried again.
    Later(String),
    /// Only a person goes on.
    Stop(anyhow::Error),
}

impl From<anyhow::Error> for Trouble {
    fn from(error: anyhow::Error) -> Self {
        Self::Stop(error)
    }
}

/// One connection after the other, with pauses, until the relay is stopped or only a person goes on. A connection sets
/// its argument when it has brought something.
async fn again_and_again(
    stop: &mut Stop,
    mut connection: impl AsyncFnMut(&mut bool) -> Result<(), Trouble>,
) -> Result<()> {
    let (mut pause, mut said) = (FIRST_PAUSE, String::new());
    loop {
        let mut brought = false;
        match connection(&mut brought).await {
            Ok(()) => return Ok(()),
            Err(Trouble::Stop(error)) => return Err(error),
            Err(Trouble::Later(text)) => {
                metrics::retried("connection");
                if brought || text != said {
                    tracing::warn!("the server takes nothing now, and is asked again: {text}");
                }
                said = text;
            }
        }
        pause = if brought { FIRST_PAUSE } else { (pause * 2).min(LONGEST_CONNECTION_PAUSE) };
        tokio::select! {
            () = sleep(pause) => {}
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
    }
}

/// An append as a message, and its place.
struct Part {
    message: ResourceLogs,
    first: Cursor,
    count: u32,
}

/// Appends that go together.
#[derive(Default)]
struct Parts {
    parts: Vec<Part>,
    bytes: usize,
    /// The place behind them.
    end: Option<Cursor>,
    age: Option<u64>,
}

/// Brings records from a log to an OTLP endpoint, until the relay is stopped.
/// `dead_letters` is the file for what the endpoint refuses for ever.
pub(crate) async fn run(from: &FromClad, to: &ToOtlp, name: &str, dead_letters: &Path, mut stop: Stop) -> Result<()> {
    let endpoint = Otlp::new(to)?;
    let mut stopping = stop.clone();
    let mut source = tokio::select! {
        opened = Source::open(from, name, format!("to {}", to.endpoint)) => opened?,
        _ = stopping.wait_for(|stop| *stop) => return Ok(()),
    };
    // Less where a request was not answered in time, twice as much with each that is: a slow one would be sent again and again.
    let mut request_bytes = REQUEST_BYTES;
    loop {
        let parts = tokio::select! {
            parts = collect(&mut source, request_bytes) => parts?,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        if !parts.parts.is_empty() {
            tokio::select! {
                sent = bring(&endpoint, &parts.parts, dead_letters, &mut request_bytes) => sent?,
                // What is under way is sent again at the next start: the endpoint may have it twice then.
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        metrics::behind_since(parts.age);
        if let Some(end) = parts.end {
            source.done(end);
        }
        source.commit_in_time().await?;
    }
    source.commit().await
}

/// As many appends as make a request, or as come in time; none after a while, so that the cursor moves.
async fn collect(source: &mut Source, request_bytes: usize) -> Result<Parts> {
    let mut parts = Parts::default();
    let until = Instant::now() + LINGER;
    while parts.bytes < request_bytes {
        let Ok(next) = timeout_at(until, source.next()).await else { break };
        let (event, place) = next?;
        source.begin(&event, place).await?;
        let log_id = place.log_id.to_string();
        match event {
            Event::Records(chunk) => {
                parts.age = Some(chunk.append_time());
                let first = Cursor { epoch: chunk.epoch(), offset: chunk.first_offset(), ..place };
                parts.push(message_of(&chunk, &log_id), first, chunk.count());
            }
            Event::Gap(gap) => parts.push(gap_message(gap, &log_id), Cursor { offset: gap.from, ..place }, 1),
            Event::CaughtUp { .. } => parts.age = None,
            _ => {}
        }
        parts.end = Some(place);
    }
    Ok(parts)
}

impl Parts {
    fn push(&mut self, message: ResourceLogs, first: Cursor, count: u32) {
        self.bytes += message.encoded_len();
        self.parts.push(Part { message, first, count });
    }
}

fn pair(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// Adds to a record where it is in its log.
fn add_place(record: &mut LogRecord, log_id: &str, epoch: u32, offset: u64) {
    record.attributes.push(pair("clad.log.id", Value::StringValue(log_id.to_owned())));
    record.attributes.push(pair("clad.epoch", Value::IntValue(i64::from(epoch))));
    record.attributes.push(pair("clad.offset", Value::IntValue(i64::try_from(offset).unwrap_or(i64::MAX))));
}

fn message_of(chunk: &Chunk, log_id: &str) -> ResourceLogs {
    let records = chunk.records().map(|(offset, view)| {
        let mut record = clad_proto::otlp::message_of(&view);
        add_place(&mut record, log_id, chunk.epoch(), offset);
        record
    });
    with_records(chunk, records.collect())
}

/// Records with the resource and the scope of their append.
fn with_records(chunk: &Chunk, records: Vec<LogRecord>) -> ResourceLogs {
    match chunk.group() {
        Some(group) => clad_proto::otlp::message_with(&group, records),
        None => ResourceLogs {
            scope_logs: vec![ScopeLogs { log_records: records, ..ScopeLogs::default() }],
            ..ResourceLogs::default()
        },
    }
}

/// Offsets that the log does not have any more.
fn gap_message(gap: Gap, log_id: &str) -> ResourceLogs {
    let why = match gap.reason {
        GapReason::Retention => "retention has removed them",
        GapReason::Damage => "they are damaged",
    };
    let text =
        format!("the records of offsets {} to {} are not brought over: {why}", gap.from, gap.to.saturating_sub(1));
    let now = crate::log::now();
    let mut record = LogRecord {
        time_unix_nano: now,
        observed_time_unix_nano: now,
        severity_number: 17,
        body: Some(AnyValue { value: Some(Value::StringValue(text)) }),
        event_name: "clad.gap".to_owned(),
        ..LogRecord::default()
    };
    add_place(&mut record, log_id, 0, gap.from);
    record.attributes.push(pair("clad.gap.end", Value::IntValue(i64::try_from(gap.to).unwrap_or(i64::MAX))));
    metrics::lost(metrics::Lost::Source);
    ResourceLogs {
        scope_logs: vec![ScopeLogs { log_records: vec![record], ..ScopeLogs::default() }],
        ..ResourceLogs::default()
    }
}

/// Sends until the endpoint has taken or refused each.
async fn bring(endpoint: &Otlp, parts: &[Part], dead_letters: &Path, request_bytes: &mut usize) -> Result<()> {
    let mut waiting = vec![parts];
    while let Some(parts) = waiting.pop() {
        let logs = parts.iter().map(|part| part.message.clone()).collect();
        let request = ExportLogsServiceRequest { resource_logs: logs }.encode_to_vec();
        let records: u64 = parts.iter().map(|part| u64::from(part.count)).sum();
        match until_answered(endpoint, &request, parts.len() > 1).await {
            Answer::Taken => {
                *request_bytes = (*request_bytes * 2).min(REQUEST_BYTES);
                metrics::stored(records, request.len() as u64);
            }
            Answer::TakenInPart { rejected, text } => {
                metrics::stored(records.saturating_sub(rejected), request.len() as u64);
                bury(dead_letters, parts, rejected, &text)?;
            }
            // One append cannot be made smaller: a message is a whole one, or copies could not be recognised.
            Answer::TooLarge | Answer::Refused(_) | Answer::NotNow { .. } if parts.len() > 1 => {
                *request_bytes = request.len() / 2;
                let (before, behind) = parts.split_at(parts.len() / 2);
                waiting.extend([behind, before]);
            }
            Answer::TooLarge => bury(dead_letters, parts, records, "413: too large")?,
            Answer::Refused(text) => bury(dead_letters, parts, records, &text)?,
            Answer::NotNow { .. } => {}
        }
    }
    Ok(())
}

/// Sends until there is an answer for good, or, if it can be parted, it was not answered in time.
async fn until_answered(endpoint: &Otlp, request: &[u8], can_part: bool) -> Answer {
    let (mut pause, mut said) = (FIRST_PAUSE, false);
    loop {
        match endpoint.send(request).await {
            Answer::NotNow { reason, text, after } => {
                metrics::retried(reason);
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!("the endpoint takes nothing now, and is asked again: {text}");
                }
                if reason == TIMEOUT && can_part {
                    return Answer::NotNow { reason, text, after };
                }
                sleep(after.unwrap_or(pause).min(LONGEST_PAUSE)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            answer => {
                if said {
                    tracing::info!("the endpoint answers again");
                }
                return answer;
            }
        }
    }
}

/// Notes what the endpoint does not take: where it is in the log, which has it for as long as retention lets it.
fn bury(path: &Path, parts: &[Part], rejected: u64, text: &str) -> Result<()> {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Ok(()) };
    note_dead_letters(path, (first.first, last.first.offset + u64::from(last.count)), rejected, text)
}

/// Notes offsets of a log, from a place to below an offset, of which so many records are not taken. What stands at the end
/// of the file already is not noted again: it may be sent once more after a lost connection.
fn note_dead_letters(path: &Path, (first, to): (Cursor, u64), rejected: u64, text: &str) -> Result<()> {
    let from = first.offset;
    let mut line = serde_json::json!({
        "log": first.log_id.to_string(), "epoch": first.epoch, "from": from, "to": to, "rejected": rejected, "reason": text
    });
    let mut write = || {
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
        if is_noted(&mut file, &line)? {
            return Ok(false);
        }
        line["time"] = crate::log::now().into();
        file.write_all(format!("{line}\n").as_bytes())?;
        file.sync_all()?;
        io::Result::Ok(true)
    };
    if write().with_context(|| format!("{} cannot be written", path.display()))? {
        metrics::dead_letters(rejected);
        tracing::error!("{rejected} records of offsets {from} to {} are not taken: {text}", to.saturating_sub(1));
    }
    Ok(())
}

/// Looks for a line, but for its time, at the end of a file.
fn is_noted(file: &mut File, line: &serde_json::Value) -> io::Result<bool> {
    let bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(NOTED_BYTES)))?;
    let mut end = Vec::new();
    file.take(NOTED_BYTES).read_to_end(&mut end)?;
    const KEYS: [&str; 6] = ["log", "epoch", "from", "to", "rejected", "reason"];
    Ok(end.split(|byte| *byte == b'\n').any(|text| {
        let noted = serde_json::from_slice::<serde_json::Value>(text).ok();
        noted.is_some_and(|noted| KEYS.iter().all(|key| noted[key] == line[key]))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_is_noted_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("dead-letters");
        let one: clad_client::LogId = "0123456789abcdef0123456789abcdef".parse().expect("an id");
        let other = "1123456789abcdef0123456789abcdef".parse().expect("an id");
        let letters = [(one, 1, 1, "a"), (one, 1, 2, "a"), (one, 1, 1, "a"), (one, 1, 1, "b"), (one, 1, 2, "a")];
        // Another log, and this one after it was restored, have other records there.
        for (log_id, epoch, offset, text) in letters.into_iter().chain([(other, 1, 2, "a"), (one, 2, 2, "a")]) {
            note_dead_letters(&file, (Cursor { log_id, epoch, offset }, 3), 1, text).expect("written");
        }
        let lines = std::fs::read_to_string(&file).expect("there");
        let from = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["from"].as_u64();
        assert_eq!(lines.lines().filter_map(from).collect::<Vec<_>>(), [1, 2, 1, 2, 2]);
    }
}
