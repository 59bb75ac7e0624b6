//! OTLP as it lies in a message, into the encoding of a payload, with nothing built in between.
//!
//! Invariants:
//! - The output is that of the message as prost decodes it: fields in any order, of a number or text the last one, of a
//!   `oneof` the last one, of a message that may be there once all of its pieces as one.
//! - Memory is taken for the payload alone. Decoded, a message is up to a hundred times as large: an empty value is two
//!   bytes of it, and a struct in memory.
//! - A group or record is not encoded any further than its limit: a longer one is abandoned there, not at its end.
//! - A message is not trusted in anything: it is encoded, or an error says why not.

use super::error::OtlpError;
use super::fields::{Content, Field, Fields, NotProtobuf, Pieces, each};
use crate::{
    fault::EncodeError,
    group::tag,
    payload::{Payload, PayloadBuilder},
    wire::{close_delimited, put_varint},
    write::{ArrayWriter, KvWriter, RecordHead, Sink, ValueWriter, put_count, put_group_with, put_pairs, put_text},
};
use bytes::BufMut;

const NANOS_PER_MILLI: u64 = 1_000_000;

/// An encoded `ResourceLogs`.
///
/// Its length is at most [`Logs::PER_PAYLOAD_BYTE`] times that of the payload that is made of it, and a few bytes for
/// each record, if it has no unknown fields and none twice.
#[derive(Debug, Clone, Copy, Default)]
pub struct Logs<'a>(pub(crate) Pieces<'a>);

impl<'a> Logs<'a> {
    /// The most bytes that protobuf takes for one of a payload. The dearest are negative numbers in lists: 13 bytes of
    /// protobuf, 2 of ours.
    pub const PER_PAYLOAD_BYTE: usize = 7;

    /// A message.
    #[must_use]
    pub const fn new(message: &'a [u8]) -> Self {
        Self(Pieces::one(message))
    }

    /// The number of records, as far as that can be read.
    #[must_use]
    pub fn count(&self) -> u32 {
        let lists = |fields: Fields<'a>| fields.map_while(Result::ok).filter(|(number, _)| *number == 2);
        let scopes = self.0.pieces().flat_map(|piece| lists(Fields(piece)));
        let records = scopes.filter_map(|(_, scope)| scope.bytes().ok()).flat_map(|scope| lists(Fields(scope)));
        u32::try_from(records.count()).unwrap_or(u32::MAX)
    }

    /// Encodes it as an append: one resource, one scope, its records.
    ///
    /// # Errors
    /// Says what does not fit, and which record.
    pub fn encode(&self, max_append_bytes: u32, max_record_bytes: u32) -> Result<Payload, OtlpError> {
        let top = self.top()?;
        let scope_logs = ScopeLogs::read(top.scope_logs)?;
        if scope_logs.records == 0 {
            return Err(OtlpError::NoRecords);
        }
        let group = |sink: &mut Sink| put_group_with(sink, |sink| put_group(sink, &top, &scope_logs));
        let mut builder =
            PayloadBuilder::with_group(max_append_bytes, max_record_bytes, group).map_err(OtlpError::Group)?;
        let mut index = 0;
        for field in Fields(top.scope_logs) {
            if let (2, record) = field? {
                put_record(&mut builder, record).map_err(|error| OtlpError::Record { index, error })?;
                index += 1;
            }
        }
        Ok(builder.finish())
    }

    fn top(&self) -> Result<Top<'a>, OtlpError> {
        let (mut resource, mut schema_url, mut scope_logs, mut scopes) = (None, "", [].as_slice(), 0);
        for field in self.0.fields() {
            match field? {
                (1, content) => Pieces::add(&mut resource, content)?,
                (2, content) => (scope_logs, scopes) = (content.bytes()?, scopes + 1),
                (3, content) => schema_url = content.text()?,
                _ => {}
            }
        }
        match scopes {
            1 => Ok(Top { resource, schema_url, scope_logs }),
            _ => Err(OtlpError::ScopeCount(scopes)),
        }
    }
}

/// The fields of `ResourceLogs`.
pub(super) struct Top<'a> {
    pub(super) resource: Option<Pieces<'a>>,
    pub(super) schema_url: &'a str,
    pub(super) scope_logs: &'a [u8],
}

/// The fields of `ScopeLogs`.
pub(super) struct ScopeLogs<'a> {
    scope: Option<Pieces<'a>>,
    records: usize,
    schema_url: &'a str,
}

impl<'a> ScopeLogs<'a> {
    pub(super) fn read(message: &'a [u8]) -> Result<Self, NotProtobuf> {
        let mut it = Self { scope: None, records: 0, schema_url: "" };
        for field in Fields(message) {
            match field? {
                (1, content) => Pieces::add(&mut it.scope, content)?,
                (2, _) => it.records += 1,
                (3, content) => it.schema_url = content.text()?,
                _ => {}
            }
        }
        Ok(it)
    }
}

pub(super) fn put_group(sink: &mut Sink, top: &Top<'_>, scope_logs: &ScopeLogs<'_>) -> Result<(), EncodeError> {
    if let Some(resource) = top.resource {
        let mut dropped = 0;
        each(resource.fields(), 2, |content| {
            dropped = content.varint()? as u32;
            Ok(())
        })?;
        put_pairs(sink, tag::RESOURCE, |pairs| put_all(pairs, resource.fields(), 1));
        put_count(&mut sink.buf, tag::RESOURCE_DROPPED, dropped);
        each(resource.fields(), 3, |content| put_entity(sink, content.bytes()?))?;
    }
    put_text(sink, tag::RESOURCE_SCHEMA_URL, top.schema_url);
    if let Some(scope) = scope_logs.scope {
        let (mut name, mut version, mut attributes, mut dropped) = ("", "", false, 0);
        for field in scope.fields() {
            match field? {
                (1, content) => name = content.text()?,
                (2, content) => version = content.text()?,
                (3, _) => attributes = true,
                (4, content) => dropped = content.varint()? as u32,
                _ => {}
            }
        }
        sink.put_field(tag::SCOPE, name.as_bytes());
        put_text(sink, tag::SCOPE_VERSION, version);
        if attributes {
            put_pairs(sink, tag::SCOPE_ATTRIBUTES, |pairs| put_all(pairs, scope.fields(), 3));
        }
        put_count(&mut sink.buf, tag::SCOPE_DROPPED, dropped);
    }
    put_text(sink, tag::SCOPE_SCHEMA_URL, scope_logs.schema_url);
    Ok(())
}

fn put_entity(sink: &mut Sink, message: &[u8]) -> Result<(), EncodeError> {
    sink.check()?;
    let (mut schema_url, mut entity_type, mut keys) = ("", "", [0, 0]);
    for field in Fields(message) {
        match field? {
            (1, content) => schema_url = content.text()?,
            (2, content) => entity_type = content.text()?,
            (3, _) => keys[0] += 1,
            (4, _) => keys[1] += 1,
            _ => {}
        }
    }
    sink.buf.put_u8(tag::ENTITY_REF);
    let start = sink.buf.len();
    sink.buf.put_u8(0);
    sink.put_delimited(schema_url.as_bytes());
    sink.put_delimited(entity_type.as_bytes());
    for (number, count) in [3, 4].into_iter().zip(keys) {
        put_varint(&mut sink.buf, count);
        each(Fields(message), number, |key| {
            sink.put_delimited(key.text()?.as_bytes());
            sink.check()
        })?;
    }
    close_delimited(&mut sink.buf, start);
    Ok(())
}

/// Adds a `LogRecord`; where it does not go in, nothing has changed. True if a time of it is no whole millisecond.
pub(super) fn put_record(builder: &mut PayloadBuilder, message: Content<'_>) -> Result<bool, EncodeError> {
    let message = message.bytes()?;
    let mut head = RecordHead::default();
    let (mut severity_text, mut event_name, mut dropped) = ("", "", 0);
    let (mut trace_id, mut span_id) = ([].as_slice(), [].as_slice());
    let (mut body, mut attributes) = (None, false);
    for field in Fields(message) {
        match field? {
            (1, content) => head.time_unix_nano = content.fixed64()?,
            (2, content) => head.severity_number = content.varint()? as i32,
            (3, content) => severity_text = content.text()?,
            (5, content) => Pieces::add(&mut body, content)?,
            (6, _) => attributes = true,
            (7, content) => dropped = content.varint()? as u32,
            (8, content) => head.flags = content.fixed32()?,
            (9, content) => trace_id = content.bytes()?,
            (10, content) => span_id = content.bytes()?,
            (11, content) => head.observed_time_unix_nano = content.fixed64()?,
            (12, content) => event_name = content.text()?,
            _ => {}
        }
    }
    let is_fine = |time: u64| !time.is_multiple_of(NANOS_PER_MILLI);
    let has_fine_time = is_fine(head.time_unix_nano) || is_fine(head.observed_time_unix_nano);
    let mut writer = builder.record_within(head, |writer| {
        if let Some(body) = body {
            put_value(writer, body.fields());
        }
    });
    writer.severity_text(severity_text);
    if attributes {
        writer.attributes(|pairs| put_all(pairs, Fields(message), 6));
    }
    writer.dropped_attributes_count(dropped).trace_id(trace_id).span_id(span_id).event_name(event_name);
    writer.commit().map(|()| has_fine_time)
}

/// Writes each `KeyValue` of a list.
fn put_all<'a>(pairs: &mut KvWriter<'_>, fields: impl Iterator<Item = Field<'a>>, number: u32) {
    if let Err(error) = each(fields, number, |pair| put_pair(pairs, pair.bytes()?)) {
        pairs.fail(error);
    }
}

fn put_pair(pairs: &mut KvWriter<'_>, message: &[u8]) -> Result<(), EncodeError> {
    pairs.check()?;
    let (mut key, mut value, mut key_index) = ("", None, 0);
    for field in Fields(message) {
        match field? {
            (1, content) => key = content.text()?,
            (2, content) => Pieces::add(&mut value, content)?,
            (3, content) => key_index = content.varint()? as i32,
            _ => {}
        }
    }
    match value {
        Some(value) => put_value(pairs.indexed_entry(key, key_index), value.fields()),
        None => pairs.absent(key, key_index),
    }
    Ok(())
}

/// Content of an `AnyValue`.
enum Value<'a> {
    Empty,
    Text(&'a str),
    Bool(bool),
    Int(i64),
    Double(f64),
    Array(Pieces<'a>),
    List(Pieces<'a>),
    Bytes(&'a [u8]),
    StringIndex(i32),
}

impl<'a> Value<'a> {
    fn read(fields: impl Iterator<Item = Field<'a>>) -> Result<Self, NotProtobuf> {
        let mut value = Self::Empty;
        for field in fields {
            match (field?, &mut value) {
                ((1, content), _) => value = Self::Text(content.text()?),
                ((2, content), _) => value = Self::Bool(content.varint()? != 0),
                ((3, content), _) => value = Self::Int(content.varint()? as i64),
                ((4, content), _) => value = Self::Double(f64::from_bits(content.fixed64()?)),
                // One that follows another of its kind continues it; after anything else it is a new one.
                ((5, content), Self::Array(pieces)) | ((6, content), Self::List(pieces)) => {
                    pieces.push(content.bytes()?)?;
                }
                ((5, content), _) => value = Self::Array(Pieces::one(content.bytes()?)),
                ((6, content), _) => value = Self::List(Pieces::one(content.bytes()?)),
                ((7, content), _) => value = Self::Bytes(content.bytes()?),
                ((8, content), _) => value = Self::StringIndex(content.varint()? as i32),
                _ => {}
            }
        }
        Ok(value)
    }
}

fn put_value<'a>(writer: ValueWriter<'_, '_>, fields: impl Iterator<Item = Field<'a>>) {
    match Value::read(fields) {
        Err(error) => writer.fail(error.into()),
        Ok(Value::Empty) => writer.empty(),
        Ok(Value::Text(text)) => writer.text(text),
        Ok(Value::Bool(value)) => writer.boolean(value),
        Ok(Value::Int(value)) => writer.int(value),
        Ok(Value::Double(value)) => writer.double(value),
        Ok(Value::Array(pieces)) => writer.array(|array| put_items(array, pieces)),
        Ok(Value::List(pieces)) => writer.kv_list(|list| put_all(list, pieces.fields(), 1)),
        Ok(Value::Bytes(bytes)) => writer.bytes(bytes),
        Ok(Value::StringIndex(value)) => writer.string_index(value),
    }
}

fn put_items(array: &mut ArrayWriter<'_>, pieces: Pieces<'_>) {
    let put = each(pieces.fields(), 1, |item| {
        array.check()?;
        put_value(array.item(), Fields(item.bytes()?));
        Ok(())
    });
    if let Err(error) = put {
        array.fail(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{group::Group, limits::MAX_GROUP_BYTES};
    use bytes::BytesMut;

    const MAX_RECORD: u32 = 100_000;
    const GROUP: usize = MAX_GROUP_BYTES as usize;
    const RECORD: usize = MAX_RECORD as usize;

    fn delimited(number: u8, content: &[u8]) -> Vec<u8> {
        let mut message = BytesMut::new();
        crate::wire::put_field(&mut message, number << 3 | 2, content);
        message.to_vec()
    }

    /// A list of empty elements, and one at its end that is not protobuf: a reader that comes so far gives another
    /// error.
    fn many(number: u8, limit: usize) -> Vec<u8> {
        [[number << 3 | 2, 0].repeat(3 * limit), delimited(number, &[0xFF])].concat()
    }

    /// Result of a group and a record that are far too long: the error, and how many bytes their buffer has come to.
    fn group(resource: &[u8], scope: &[u8]) -> (EncodeError, usize) {
        let message = [delimited(1, resource), delimited(2, &delimited(1, scope))].concat();
        let top = Logs::new(&message).top().expect("one scope");
        let scope_logs = ScopeLogs::read(top.scope_logs).expect("its fields");
        let mut sink = Sink::default();
        let error = put_group_with(&mut sink, |sink| put_group(sink, &top, &scope_logs)).expect_err("too long");
        (error, sink.buf.capacity())
    }

    fn record(message: &[u8]) -> (EncodeError, usize) {
        let mut builder = PayloadBuilder::with_limits(&Group::default(), 4 * MAX_RECORD, MAX_RECORD).expect("fits");
        let before = builder.as_bytes().to_vec();
        let error = put_record(&mut builder, Content::Bytes(message)).expect_err("too long");
        assert_eq!(builder.as_bytes(), before, "nothing has changed");
        (error, builder.capacity())
    }

    /// A buffer doubles as it grows, and one element may be written before the limit is looked at.
    const fn held(limit: usize) -> usize {
        2 * limit + 1024
    }

    #[test]
    fn what_is_too_long_is_given_up_at_its_limit() {
        let long = vec![b'x'; 3 * GROUP];
        for (resource, scope) in [
            (many(1, GROUP), vec![]),
            (many(3, GROUP), vec![]),
            (delimited(3, &many(3, GROUP)), vec![]),
            (delimited(3, &delimited(2, &long)), vec![]),
            (delimited(1, &delimited(1, &long)), vec![]),
            (vec![], many(3, GROUP)),
            (vec![], delimited(1, &long)),
            (vec![], delimited(2, &long)),
        ] {
            let (error, capacity) = group(&resource, &scope);
            let EncodeError::GroupTooLarge { len, max } = error else { panic!("{error}") };
            assert!(max == u64::from(MAX_GROUP_BYTES) && len > max, "{error}");
            assert!(capacity <= held(GROUP), "{capacity} bytes for a group of at most {GROUP}");
        }
        let array = |items: &[u8]| delimited(5, items);
        let nested = (0..20).fold(array(&many(1, RECORD)), |inner, _| array(&delimited(1, &inner)));
        for message in [
            many(6, RECORD),
            delimited(5, &array(&many(1, RECORD))),
            delimited(5, &nested),
            delimited(5, &delimited(6, &many(1, RECORD))),
            delimited(5, &delimited(1, &long)),
            delimited(5, &delimited(7, &long)),
            delimited(6, &delimited(1, &long)),
            delimited(3, &long),
            delimited(9, &long),
        ] {
            let (error, capacity) = record(&message);
            let EncodeError::RecordTooLarge { len, max } = error else { panic!("{error}") };
            assert!(max == u64::from(MAX_RECORD) && len > max, "{error}");
            assert!(capacity <= held(RECORD), "{capacity} bytes for a record of at most {RECORD}");
        }
    }

    /// The limit is that of what is whole: what fits to the byte goes in, and a byte more does not.
    #[test]
    fn what_fits_to_the_byte_goes_in() {
        let pairs = |count: usize| [6 << 3 | 2, 0].repeat(count);
        let (mut last, mut fits) = (0, 0);
        for max in 32..400 {
            let mut builder = PayloadBuilder::with_limits(&Group::default(), 4000, max).expect("fits");
            let most = (1..200).take_while(|&count| {
                builder.clear();
                put_record(&mut builder, Content::Bytes(&pairs(count))).is_ok()
            });
            let most = most.count();
            if most > last {
                (last, fits) = (most, fits + 1);
                put_record(&mut builder, Content::Bytes(&pairs(most))).expect("again");
                assert_eq!(builder.len(), 4 + max as usize, "as soon as there is room");
            }
        }
        assert!(fits > 100, "{fits}");
    }
}
