//! A message of NATS or Kafka: records with their place in the log, or word of offsets that are not brought over.
//!
//! Invariants: the headers of a message give the place behind it. So the last message of a stream says where its relay
//! goes on, and which append stands there. Messages of an append follow one another and leave no record out.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use clad_client::{Chunk, Cursor, Event, GapReason, LogId};
use clad_proto::RecordView;
use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::ExportLogsServiceRequest;
use clad_proto::grpc::opentelemetry::proto::logs::v1::LogRecord;
use prost::Message as _;

use super::source::Append;
use super::{add_place, message_of, note_dead_letters, otlp_json, value, with_records};
use crate::config::MessageFormat;
use crate::metrics;

/// Log, epoch and first offset.
const ID: &str = "Clad-Id";
/// The offset behind the message.
const END: &str = "Clad-End";
/// The append that it is of: first offset, number of records, CRC of the payload.
const APPEND: &str = "Clad-Append";
/// Why there is no record of these offsets.
const GAP: &str = "Clad-Gap";
/// The most bytes of the headers, those of the chain among them.
const HEADERS_BYTES_MAX: usize = 512;

/// A message before it has its place in the stream.
#[derive(Debug)]
pub(in crate::out) struct Message {
    pub(in crate::out) place: Place,
    pub(in crate::out) payload: Bytes,
    pub(in crate::out) records: u32,
    /// When the daemon took its append, Unix nanoseconds; nothing where there is none.
    #[cfg_attr(not(feature = "kafka"), expect(dead_code, reason = "a server of NATS has a time of its own"))]
    pub(in crate::out) time: Option<u64>,
    #[cfg_attr(not(feature = "kafka"), expect(dead_code, reason = "a stream of NATS has no partitions"))]
    pub(in crate::out) component: Option<Arc<str>>,
}

/// What a message says of where it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::out) struct Place {
    pub(in crate::out) log_id: LogId,
    pub(in crate::out) epoch: u32,
    pub(in crate::out) first: u64,
    pub(in crate::out) end: u64,
    pub(in crate::out) append: Option<Append>,
    pub(in crate::out) gap: Option<String>,
}

impl Place {
    /// The place behind it.
    pub(in crate::out) fn behind(&self) -> Cursor {
        Cursor { log_id: self.log_id, epoch: self.epoch, offset: self.end }
    }

    /// Names and values of its headers.
    pub(in crate::out) fn headers(&self) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
        let append = self.append.map(|Append { first, count, payload_crc, .. }| {
            (APPEND, format!("{first} {count} {payload_crc:08x}").into())
        });
        self.place_headers().chain(append)
    }

    /// Those without the append, for a destination that keeps it elsewhere.
    pub(in crate::out) fn place_headers(&self) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
        let id = (ID, format!("{}:{}:{}", self.log_id, self.epoch, self.first).into());
        let gap = self.gap.as_deref().map(|reason| (GAP, reason.into()));
        [id, (END, self.end.to_string().into())].into_iter().chain(gap)
    }

    /// Reads it, by what gives a header's value; nothing where the message is no relay's.
    pub(in crate::out) fn of<'a>(text: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let mut id = text(ID)?.split(':');
        let log_id = id.next()?.parse().ok()?;
        let (epoch, first) = (id.next()?.parse().ok()?, id.next()?.parse().ok()?);
        let append = match text(APPEND) {
            None => None,
            Some(text) => {
                let mut words = text.split(' ');
                let (first, count) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                Some(Append { epoch, first, count, payload_crc: u32::from_str_radix(words.next()?, 16).ok()? })
            }
        };
        Some(Self { log_id, epoch, first, end: text(END)?.parse().ok()?, append, gap: text(GAP).map(str::to_owned) })
    }
}

impl Message {
    /// Notes in the file of dead letters what the destination does not take.
    pub(in crate::out) fn note_if_dead(&self, dead_letters: &Path) -> Result<()> {
        let Place { log_id, epoch, first, end, append, gap } = &self.place;
        if let (Some(_), Some(reason)) = (append, gap) {
            let from = Cursor { log_id: *log_id, epoch: *epoch, offset: *first };
            note_dead_letters(dead_letters, (from, *end), end - first, reason)?;
        }
        Ok(())
    }
}

/// The messages of an event, none of more than `max_bytes` with its headers. `behind` is the place behind the event.
pub(in crate::out) fn of_event(
    event: &Event,
    behind: Cursor,
    format: MessageFormat,
    max_bytes: usize,
) -> Result<Vec<Message>> {
    match event {
        Event::Records(chunk) => {
            metrics::behind_since(Some(chunk.append_time()));
            messages(chunk, Cursor { offset: chunk.end_offset(), ..behind }, format, max_bytes)
        }
        Event::Gap(gap) => {
            let reason = match gap.reason {
                GapReason::Retention => "retention has removed them",
                GapReason::Damage => "they are damaged",
            };
            tracing::error!("offsets {} to {} of the log cannot be read: {reason}", gap.from, gap.to - 1);
            metrics::lost(metrics::Lost::Source);
            Ok(vec![self::gap(gap.from, Cursor { offset: gap.to, ..behind }, reason.to_owned())])
        }
        Event::CaughtUp { .. } => {
            metrics::behind_since(None);
            Ok(Vec::new())
        }
        _ => Ok(Vec::new()),
    }
}

/// Word of offsets that are not brought over.
fn gap(first: u64, behind: Cursor, reason: String) -> Message {
    let Cursor { log_id, epoch, offset: end } = behind;
    let place = Place { log_id, epoch, first, end, append: None, gap: Some(reason) };
    Message { place, payload: Bytes::new(), records: 0, time: None, component: None }
}

/// The messages of a chunk, none of more than `max_bytes` with its headers. `behind` is the place behind the chunk.
fn messages(chunk: &Chunk, behind: Cursor, format: MessageFormat, max_bytes: usize) -> Result<Vec<Message>> {
    let raw = chunk.raw().context("the log gives no whole appends")?;
    let head = raw.head();
    let append =
        Append { epoch: head.epoch, first: head.first_offset, count: head.count, payload_crc: head.payload_crc };
    let place =
        |first, end| Place { log_id: behind.log_id, epoch: head.epoch, first, end, append: Some(append), gap: None };
    let max_bytes = max_bytes.saturating_sub(HEADERS_BYTES_MAX);
    let component: Option<Arc<str>> = chunk.component().map(Arc::from);
    let message = |place, payload: Vec<u8>, records| Message {
        place,
        payload: payload.into(),
        records,
        time: Some(chunk.append_time()),
        component: component.clone(),
    };
    let too_large = |first, end, bytes: usize| {
        let reason = format!("too large: {bytes} bytes, and the server takes {max_bytes}");
        message(Place { gap: Some(reason), ..place(first, end) }, Vec::new(), 0)
    };
    let mut messages = Vec::new();
    match format {
        MessageFormat::Otlp => {
            let log_id = behind.log_id.to_string();
            let whole = ExportLogsServiceRequest { resource_logs: vec![message_of(chunk, &log_id)] };
            if whole.encoded_len() <= max_bytes {
                let place = place(chunk.first_offset(), behind.offset);
                return Ok(vec![message(place, whole.encode_to_vec(), chunk.count())]);
            }
            // Larger than the server takes: by records, as many as go together.
            let records: Vec<(u64, LogRecord)> = chunk
                .records()
                .map(|(offset, view)| {
                    let mut record = clad_proto::otlp::message_of(&view);
                    add_place(&mut record, &log_id, chunk.epoch(), offset);
                    (offset, record)
                })
                .collect();
            let request = |part: &[(u64, LogRecord)]| ExportLogsServiceRequest {
                resource_logs: vec![with_records(chunk, part.iter().map(|(_, record)| record.clone()).collect())],
            };
            let mut waiting = vec![records.as_slice()];
            let mut first = chunk.first_offset();
            while let Some(part) = waiting.pop() {
                let end = waiting.last().and_then(|next| next.first()).map_or(behind.offset, |(offset, _)| *offset);
                let request = request(part);
                let bytes = request.encoded_len();
                if bytes > max_bytes && part.len() > 1 {
                    let (before, after) = part.split_at(part.len() / 2);
                    waiting.extend([after, before]);
                    continue;
                }
                messages.push(if bytes > max_bytes {
                    too_large(first, end, bytes)
                } else {
                    let records = u32::try_from(part.len()).unwrap_or(u32::MAX);
                    message(place(first, end), request.encode_to_vec(), records)
                });
                first = end;
            }
        }
        MessageFormat::OtlpJson | MessageFormat::Body => {
            let log_id = behind.log_id.to_string();
            let payload = |offset, view: &RecordView<'_>| {
                if matches!(format, MessageFormat::Body) {
                    let mut body = Vec::new();
                    value::body(&mut body, view);
                    return body;
                }
                let mut record = clad_proto::otlp::message_of(view);
                add_place(&mut record, &log_id, chunk.epoch(), offset);
                otlp_json::request(&with_records(chunk, vec![record]))
            };
            let mut records = chunk.records().peekable();
            let mut first = chunk.first_offset();
            while let Some((offset, view)) = records.next() {
                let end = records.peek().map_or(behind.offset, |(offset, _)| *offset);
                let payload = payload(offset, &view);
                messages.push(if payload.len() > max_bytes {
                    too_large(first, end, payload.len())
                } else {
                    message(place(first, end), payload, 1)
                });
                first = end;
            }
        }
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let log_id: LogId = "0123456789abcdef0123456789abcdef".parse().expect("an id");
        let append = Append { epoch: 3, first: 5, count: 7, payload_crc: 0xdead };
        let whole = Place { log_id, epoch: 3, first: 5, end: 12, append: Some(append), gap: None };
        let gap = Place { append: None, gap: Some("retention has removed them".to_owned()), ..whole.clone() };
        for place in [whole, gap] {
            let headers: HashMap<_, _> = place.headers().collect();
            assert_eq!(Place::of(|name| headers.get(name).map(|value| &**value)), Some(place));
        }
        assert_eq!(Place::of(|_| None), None);
        assert_eq!(Place::of(|_| Some("a:b:c")), None);
    }
}
