//! Making a payload.
//!
//! The builder keeps the encoded group and puts it in front of every payload it makes. Its buffer is used again once
//! the payloads made from it are dropped. A record that does not go in leaves everything as it was.

use crate::{
    checksum::payload_checksum,
    fault::EncodeError,
    group::Group,
    limits::{
        DEFAULT_MAX_APPEND_BYTES, DEFAULT_MAX_RECORD_BYTES, MAX_APPEND_BYTES, MAX_RECORD_BYTES, RECORD_HEADER_BYTES,
    },
    record::Record,
    value::kind,
    view::{RecordView, split_record},
    write::{Body, OpenPayload, RecordHead, RecordWriter, Sink, ValueWriter, put_group, record_header},
};
use bytes::Bytes;

/// A finished payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// Group and records.
    pub bytes: Bytes,
    /// The number of records.
    pub count: u32,
}

impl Payload {
    /// The checksum that goes with it.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        payload_checksum(&self.bytes)
    }
}

/// The highest severity number of the records in a payload that was made here; 0 where none has one. A number beyond
/// one byte counts as 0.
#[must_use]
pub fn max_severity(payload: &[u8], count: u32) -> i32 {
    let word = |at: usize| payload.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes);
    let (mut at, mut max) = (word(0).map_or(0, |group| group as usize), 0);
    for _ in 0..count {
        let Some((len, severity)) = word(at).zip(payload.get(at + 4)) else { break };
        max = max.max(i32::from(*severity));
        at += len as usize;
    }
    max
}

/// The first record of a payload that was made here, found by the lengths alone.
#[must_use]
pub fn first_record(payload: &[u8]) -> Option<RecordView<'_>> {
    let group = u32::from_le_bytes(*payload.first_chunk()?) as usize;
    split_record(payload.get(group..)?, MAX_RECORD_BYTES).ok().map(|(record, _)| record)
}

/// Makes payloads of records that share a group.
#[derive(Debug)]
pub struct PayloadBuilder {
    open: OpenPayload,
    group: Bytes,
    group_sum: u32,
}

impl PayloadBuilder {
    /// A builder with the default limits.
    ///
    /// # Errors
    /// When the group does not fit.
    pub fn new(group: &Group) -> Result<Self, EncodeError> {
        Self::with_limits(group, DEFAULT_MAX_APPEND_BYTES, DEFAULT_MAX_RECORD_BYTES)
    }

    /// A builder with the limits that a daemon's WELCOME states.
    ///
    /// # Errors
    /// When the group does not fit.
    pub fn with_limits(group: &Group, max_append_bytes: u32, max_record_bytes: u32) -> Result<Self, EncodeError> {
        Self::with_group(max_append_bytes, max_record_bytes, |sink| put_group(sink, group))
    }

    /// A builder whose group is written by a function.
    pub(crate) fn with_group(
        max_append_bytes: u32,
        max_record_bytes: u32,
        group: impl FnOnce(&mut Sink) -> Result<(), EncodeError>,
    ) -> Result<Self, EncodeError> {
        let mut sink = Sink::default();
        group(&mut sink)?;
        let max_append = max_append_bytes.min(MAX_APPEND_BYTES);
        let len = sink.buf.len();
        if len > max_append as usize {
            return Err(EncodeError::GroupTooLarge { len: len as u64, max: max_append.into() });
        }
        let group = Bytes::copy_from_slice(&sink.buf);
        let group_sum = payload_checksum(&group);
        let max_record = max_record_bytes.min(MAX_RECORD_BYTES);
        let open = OpenPayload { sink, group_len: len, count: 0, whole: len, max_append, max_record };
        Ok(Self { open, group, group_sum })
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.open.sink.buf.capacity()
    }

    /// Starts a record; its fields are written through what this gives, and `commit` adds it.
    pub fn record(&mut self, head: RecordHead, body: Body<'_>) -> RecordWriter<'_> {
        RecordWriter::start(&mut self.open, head, None, RecordWriter::body(body))
    }

    /// Starts a record whose body is written by a function; a function that writes nothing leaves it absent.
    pub fn record_with(&mut self, head: RecordHead, body: impl FnOnce(ValueWriter<'_, '_>)) -> RecordWriter<'_> {
        RecordWriter::start(&mut self.open, head, None, body)
    }

    /// The same of a foreign record: as soon as it is too long it is abandoned, however long it is.
    #[cfg(feature = "grpc")]
    pub(crate) fn record_within(
        &mut self,
        head: RecordHead,
        body: impl FnOnce(ValueWriter<'_, '_>),
    ) -> RecordWriter<'_> {
        let max = self.open.max_len();
        RecordWriter::start(&mut self.open, head, Some(max), body)
    }

    /// Adds a record.
    ///
    /// # Errors
    /// When it does not go in; then nothing has changed.
    pub fn push(&mut self, record: &Record) -> Result<(), EncodeError> {
        let head = RecordHead {
            time_unix_nano: record.time_unix_nano,
            observed_time_unix_nano: record.observed_time_unix_nano,
            severity_number: record.severity_number,
            flags: record.flags,
        };
        let body = record.body.as_ref().map_or(Body::Absent, Body::Value);
        let mut writer = self.record(head, body);
        writer
            .severity_text(&record.severity_text)
            .attributes(|attributes| attributes.pairs(&record.attributes))
            .dropped_attributes_count(record.dropped_attributes_count)
            .trace_id(&record.trace_id)
            .span_id(&record.span_id)
            .event_name(&record.event_name);
        for field in &record.unknown {
            writer.unknown(field);
        }
        writer.commit()
    }

    /// Adds a record that is a body with times and a severity: the fast way for plain lines.
    ///
    /// # Errors
    /// When it does not go in; then nothing has changed.
    #[inline]
    pub fn push_body(&mut self, time: u64, observed: u64, severity: i32, body: Body<'_>) -> Result<(), EncodeError> {
        let head =
            RecordHead { time_unix_nano: time, observed_time_unix_nano: observed, severity_number: severity, flags: 0 };
        let (kind, bytes) = match body {
            Body::Text(text) => (kind::STRING, text.as_bytes()),
            Body::Bytes(bytes) => (kind::BYTES, bytes),
            other => return self.record(head, other).commit(),
        };
        if u8::try_from(severity).is_err() {
            return self.record(head, body).commit();
        }
        let len = self.open.admit(RECORD_HEADER_BYTES + bytes.len())?;
        self.open.sink.buf.reserve(len as usize);
        self.open.sink.buf.extend_from_slice(&record_header(&head, len, kind, bytes.len() as u32));
        self.open.sink.buf.extend_from_slice(bytes);
        self.open.accept();
        Ok(())
    }

    /// Adds a record that was read elsewhere, byte for byte.
    ///
    /// # Errors
    /// When it does not go in; then nothing has changed.
    pub fn push_view(&mut self, record: RecordView<'_>) -> Result<(), EncodeError> {
        self.open.admit(record.as_bytes().len())?;
        self.open.sink.buf.extend_from_slice(record.as_bytes());
        self.open.accept();
        Ok(())
    }

    /// Makes sure of memory for `len` bytes more; where there is none, takes `piece` bytes at once, so that the payloads to
    /// come share one allocation.
    pub fn reserve(&mut self, len: usize, piece: usize) {
        let buf = &mut self.open.sink.buf;
        if buf.capacity() - buf.len() < len {
            buf.reserve(piece.max(len));
        }
    }

    /// The number of records in the payload.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.open.count
    }

    /// Length of the payload so far, the group included.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.open.whole
    }

    /// True when no record is in.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.open.count == 0
    }

    /// The common begin of every payload of this builder: so many bytes, with this checksum.
    #[must_use]
    pub const fn group_checksum(&self) -> (usize, u32) {
        (self.group.len(), self.group_sum)
    }

    /// The payload so far.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.open.sink.buf
    }

    /// Takes the payload; the builder starts the next one with the same group.
    #[must_use]
    pub fn finish(&mut self) -> Payload {
        let payload = Payload { bytes: self.open.sink.buf.split().freeze(), count: self.open.count };
        self.restart();
        payload
    }

    /// Forgets the records.
    pub fn clear(&mut self) {
        // The group stays where it is: what was just written is slow to read.
        self.open.sink.buf.truncate(self.group.len());
        self.open.whole = self.group.len();
        self.open.count = 0;
    }

    fn restart(&mut self) {
        self.open.sink.buf.extend_from_slice(&self.group);
        self.open.whole = self.group.len();
        self.open.count = 0;
    }
}
