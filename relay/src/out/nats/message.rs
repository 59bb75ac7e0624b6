//! A message: records with their place in the log, or word of offsets that are not brought over.
//!
//! Invariants: the headers of a message give the place behind it. So the last message of a stream says where its relay
//! goes on, and which append stands there. Messages of an append follow one another and leave no record out.

use anyhow::{Context, Result};
use async_nats::HeaderMap;
use bytes::Bytes;
use clad_client::{Chunk, Cursor, LogId};
use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::ExportLogsServiceRequest;
use clad_proto::grpc::opentelemetry::proto::logs::v1::LogRecord;
use prost::Message as _;

use crate::config::NatsFormat;
use crate::out::source::Append;
use crate::out::{add_place, message_of, value, with_records};

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
pub(super) struct Message {
    pub(super) place: Place,
    pub(super) payload: Bytes,
    pub(super) records: u32,
}

/// What a message says of where it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) log_id: LogId,
    pub(super) epoch: u32,
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) append: Option<Append>,
    pub(super) gap: Option<String>,
}

impl Place {
    /// The place behind it.
    pub(super) fn behind(&self) -> Cursor {
        Cursor { log_id: self.log_id, epoch: self.epoch, offset: self.end }
    }

    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ID, format!("{}:{}:{}", self.log_id, self.epoch, self.first));
        headers.insert(END, self.end.to_string());
        if let Some(Append { first, count, payload_crc, .. }) = self.append {
            headers.insert(APPEND, format!("{first} {count} {payload_crc:08x}"));
        }
        if let Some(reason) = &self.gap {
            headers.insert(GAP, reason.as_str());
        }
        headers
    }

    /// Reads it; nothing where the message is no relay's.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let text = |name: &str| headers.get(name).map(|value| value.as_str());
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

/// Word of offsets that are not brought over.
pub(super) fn gap(first: u64, behind: Cursor, reason: String) -> Message {
    let Cursor { log_id, epoch, offset: end } = behind;
    let place = Place { log_id, epoch, first, end, append: None, gap: Some(reason) };
    Message { place, payload: Bytes::new(), records: 0 }
}

/// The messages of a chunk, none of more than `max_bytes` with its headers. `behind` is the place behind the chunk.
pub(super) fn messages(chunk: &Chunk, behind: Cursor, format: NatsFormat, max_bytes: usize) -> Result<Vec<Message>> {
    let raw = chunk.raw().context("the log gives no whole appends")?;
    let head = raw.head();
    let append =
        Append { epoch: head.epoch, first: head.first_offset, count: head.count, payload_crc: head.payload_crc };
    let place =
        |first, end| Place { log_id: behind.log_id, epoch: head.epoch, first, end, append: Some(append), gap: None };
    let max_bytes = max_bytes.saturating_sub(HEADERS_BYTES_MAX);
    let too_large = |first, end, bytes: usize| Message {
        place: Place {
            gap: Some(format!("too large: {bytes} bytes, and the server takes {max_bytes}")),
            ..place(first, end)
        },
        payload: Bytes::new(),
        records: 0,
    };
    let mut messages = Vec::new();
    match format {
        NatsFormat::Otlp => {
            let log_id = behind.log_id.to_string();
            let whole = ExportLogsServiceRequest { resource_logs: vec![message_of(chunk, &log_id)] };
            if whole.encoded_len() <= max_bytes {
                let place = place(chunk.first_offset(), behind.offset);
                return Ok(vec![Message { place, payload: whole.encode_to_vec().into(), records: chunk.count() }]);
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
                    Message { place: place(first, end), payload: request.encode_to_vec().into(), records }
                });
                first = end;
            }
        }
        NatsFormat::Body => {
            let mut records = chunk.records().peekable();
            let mut first = chunk.first_offset();
            while let Some((_, view)) = records.next() {
                let end = records.peek().map_or(behind.offset, |(offset, _)| *offset);
                let mut body = Vec::new();
                value::body(&mut body, &view);
                messages.push(if body.len() > max_bytes {
                    too_large(first, end, body.len())
                } else {
                    Message { place: place(first, end), payload: body.into(), records: 1 }
                });
                first = end;
            }
        }
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let log_id: LogId = "0123456789abcdef0123456789abcdef".parse().expect("an id");
        let append = Append { epoch: 3, first: 5, count: 7, payload_crc: 0xdead };
        let whole = Place { log_id, epoch: 3, first: 5, end: 12, append: Some(append), gap: None };
        let gap = Place { append: None, gap: Some("retention has removed them".to_owned()), ..whole.clone() };
        for place in [whole, gap] {
            assert_eq!(Place::of(&place.headers()), Some(place));
        }
        assert_eq!(Place::of(&HeaderMap::new()), None);
        let mut foreign = HeaderMap::new();
        foreign.insert(ID, "a:b:c");
        assert_eq!(Place::of(&foreign), None);
    }
}
