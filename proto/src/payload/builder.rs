//! Making a payload.
//!
//! The builder keeps the encoded group and puts it in front of every payload it makes. Its buffer is used again once
//! the payloads made from it are dropped. A record that does not go in leaves everything as it was.

use crate::{
    checksum::payload_checksum,
    fault::EncodeError,
    group::Group,
    limits::{
        DEFAULT_MAX_APPEND_BYTES, DEFAULT_MAX_RECORD_BYTES, MAX_APPEND_BYTES, MAX_APPEND_RECORDS, MAX_RECORD_BYTES,
        RECORD_HEADER_BYTES,
    },
    record::Record,
    value::kind,
    view::RecordView,
    write::{Body, RecordHead, RecordWriter, Sink, ValueWriter, put_group, record_header},
};
use bytes::{BufMut, Bytes};

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

/// Makes payloads of records that share a group.
#[derive(Debug)]
pub struct PayloadBuilder {
    sink: Sink,
    group: Bytes,
    group_sum: u32,
    count: u32,
    /// Everything below is group and whole records.
    whole: usize,
    max_append: u32,
    max_record: u32,
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
        Ok(Self { sink, group, group_sum, count: 0, whole: len, max_append, max_record })
    }

    pub(crate) fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    /// The longest that a record can be.
    #[inline]
    fn max_len(&self) -> usize {
        let room = (self.max_append as usize).saturating_sub(self.group.len());
        room.min(self.max_record as usize)
    }

    /// Says whether one more record of this length goes in; gives the length as the header holds it.
    #[inline]
    pub(crate) fn admit(&self, len: usize) -> Result<u32, EncodeError> {
        let max = self.max_len();
        let short = u32::try_from(len).unwrap_or(u32::MAX);
        if len > max || short == u32::MAX {
            return Err(EncodeError::RecordTooLarge { len: len as u64, max: max as u64 });
        }
        let with_it = self.whole + len;
        if with_it > self.max_append as usize || self.count >= MAX_APPEND_RECORDS {
            let records = self.count.saturating_add(1);
            let max = if with_it > self.max_append as usize { self.max_append } else { MAX_APPEND_RECORDS };
            return Err(EncodeError::AppendFull { len: with_it as u64, records, max: max.into() });
        }
        Ok(short)
    }

    /// Makes a record of the bytes written since the last one.
    #[inline]
    pub(crate) fn accept(&mut self) {
        self.whole = self.sink.buf.len();
        self.count += 1;
    }

    /// Forgets what was written since the last record.
    pub(crate) fn take_back(&mut self) {
        self.sink.buf.truncate(self.whole);
    }

    /// Starts a record; its fields are written through what this gives, and `commit` adds it.
    pub fn record(&mut self, head: RecordHead, body: Body<'_>) -> RecordWriter<'_> {
        RecordWriter::start(self, head, None, RecordWriter::body(body))
    }

    /// Starts a record whose body is written by a function; a function that writes nothing leaves it absent.
    pub fn record_with(&mut self, head: RecordHead, body: impl FnOnce(ValueWriter<'_, '_>)) -> RecordWriter<'_> {
        RecordWriter::start(self, head, None, body)
    }

    /// The same of a foreign record: as soon as it is too long it is abandoned, however long it is.
    #[cfg(feature = "grpc")]
    pub(crate) fn record_within(
        &mut self,
        head: RecordHead,
        body: impl FnOnce(ValueWriter<'_, '_>),
    ) -> RecordWriter<'_> {
        let max = self.max_len();
        RecordWriter::start(self, head, Some(max), body)
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
        let len = self.admit(RECORD_HEADER_BYTES + bytes.len())?;
        self.sink.buf.reserve(len as usize);
        // (`put_slice` is a call of its own: the header would be stored twice, and the second time wait for the first.)
        self.sink.buf.extend_from_slice(&record_header(&head, len, kind, bytes.len() as u32));
        self.sink.buf.extend_from_slice(bytes);
        self.accept();
        Ok(())
    }

    /// Adds a record that was read elsewhere, byte for byte.
    ///
    /// # Errors
    /// When it does not go in; then nothing has changed.
    pub fn push_view(&mut self, record: RecordView<'_>) -> Result<(), EncodeError> {
        self.admit(record.as_bytes().len())?;
        self.sink.buf.put_slice(record.as_bytes());
        self.accept();
        Ok(())
    }

    /// The number of records in the payload.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Length of the payload so far, the group included.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.whole
    }

    /// True when no record is in.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The common begin of every payload of this builder: so many bytes, with this checksum.
    #[must_use]
    pub const fn group_checksum(&self) -> (usize, u32) {
        (self.group.len(), self.group_sum)
    }

    /// The payload so far.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.sink.buf
    }

    /// Takes the payload; the builder starts the next one with the same group.
    #[must_use]
    pub fn finish(&mut self) -> Payload {
        let payload = Payload { bytes: self.sink.buf.split().freeze(), count: self.count };
        self.restart();
        payload
    }

    /// Forgets the records.
    pub fn clear(&mut self) {
        // The group stays where it is: what was just written is slow to read.
        self.sink.buf.truncate(self.group.len());
        self.whole = self.group.len();
        self.count = 0;
    }

    fn restart(&mut self) {
        self.sink.buf.extend_from_slice(&self.group);
        self.whole = self.group.len();
        self.count = 0;
    }
}
