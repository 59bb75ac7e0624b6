//! Writing one record. [`crate::record`] describes the layout.

use super::{
    open::OpenPayload,
    sink::{Limit, Sink},
    value::{KvWriter, Place, ValueWriter},
};
use crate::{
    fault::EncodeError,
    limits::RECORD_HEADER_BYTES,
    record::{UnknownField, tag},
    value::{AnyValue, kind},
    wire::{close_delimited, varint_bytes},
};

/// Fixed header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordHead {
    /// When it happened, Unix nanoseconds; 0 is unknown.
    pub time_unix_nano: u64,
    /// When it was seen, Unix nanoseconds; 0 is unknown.
    pub observed_time_unix_nano: u64,
    /// Severity; 0 to 255 cost nothing.
    pub severity_number: i32,
    /// Flags.
    pub flags: u32,
}

/// A borrowed body.
#[derive(Debug, Clone, Copy, Default)]
pub enum Body<'a> {
    /// There is none.
    #[default]
    Absent,
    /// There is one, and it is empty.
    Empty,
    /// Text.
    Text(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
    /// Any value.
    Value(&'a AnyValue),
}

impl<'a> From<&'a str> for Body<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a [u8]> for Body<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl Body<'_> {
    pub(super) fn write(self, writer: ValueWriter<'_, '_>) {
        match self {
            Self::Absent => {}
            Self::Empty => writer.empty(),
            Self::Text(text) => writer.text(text),
            Self::Bytes(bytes) => writer.bytes(bytes),
            Self::Value(value) => writer.any(value),
        }
    }
}

/// Lays out the 32 bytes in front of a record.
// By words, and inlined: fields that are stored one by one and read as one wait for the stores, longer than all the
// rest takes.
#[inline(always)]
pub(crate) fn header(head: &RecordHead, len: u32, body_kind: u8, body_len: u32) -> [u8; RECORD_HEADER_BYTES] {
    let severity = u8::try_from(head.severity_number).unwrap_or(0);
    let words = [
        u64::from(len) | u64::from(severity) << 32 | u64::from(body_kind) << 40,
        head.time_unix_nano,
        head.observed_time_unix_nano,
        u64::from(head.flags) | u64::from(body_len) << 32,
    ];
    let mut bytes = [0; RECORD_HEADER_BYTES];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Writes the fields of one record after its body, in the order of the methods below; [`commit`](Self::commit) adds the
/// record to the payload. Dropped without it, the payload is as before.
#[derive(Debug)]
#[must_use = "a record that is not committed is taken back"]
pub struct RecordWriter<'b> {
    payload: &'b mut OpenPayload,
    head: RecordHead,
    start: usize,
    body_len: usize,
    last_tag: u8,
}

impl<'b> RecordWriter<'b> {
    /// Of something that is not trusted to end, `max` is the most that it may take.
    pub(crate) fn start(
        payload: &'b mut OpenPayload,
        head: RecordHead,
        max: Option<usize>,
        body: impl FnOnce(ValueWriter<'_, '_>),
    ) -> Self {
        let sink = &mut payload.sink;
        sink.fault = None;
        sink.body_kind = kind::ABSENT;
        let start = sink.buf.len();
        let too_large = |len, max| EncodeError::RecordTooLarge { len, max };
        sink.limit = max.map(|max| Limit { start, max, too_large });
        sink.buf.extend_from_slice(&[0; RECORD_HEADER_BYTES]);
        body(ValueWriter { sink, place: Place::Body, depth: 0 });
        let body_len = sink.buf.len() - start - RECORD_HEADER_BYTES;
        let mut writer = Self { payload, head, start, body_len, last_tag: 0 };
        if u8::try_from(head.severity_number).is_err() {
            writer.field(tag::SEVERITY_NUMBER, &head.severity_number.to_le_bytes());
        }
        writer
    }

    pub(crate) fn body(body: Body<'_>) -> impl FnOnce(ValueWriter<'_, '_>) + '_ {
        move |writer| body.write(writer)
    }

    /// Opens a field; false when it must not come here.
    fn open(&mut self, tag: u8) -> Option<&mut Sink> {
        let in_order = if tag < tag::UNKNOWN { tag > self.last_tag } else { tag >= self.last_tag };
        let sink = &mut self.payload.sink;
        if !in_order {
            sink.fail(EncodeError::FieldOrder(tag));
            return None;
        }
        self.last_tag = tag;
        Some(sink)
    }

    fn field(&mut self, tag: u8, content: &[u8]) -> &mut Self {
        if !content.is_empty()
            && let Some(sink) = self.open(tag)
        {
            sink.put_field(tag, content);
        }
        self
    }

    /// The source's word for the severity.
    pub fn severity_text(&mut self, text: &str) -> &mut Self {
        self.field(tag::SEVERITY_TEXT, text.as_bytes())
    }

    /// Attributes.
    pub fn attributes(&mut self, content: impl FnOnce(&mut KvWriter<'_>)) -> &mut Self {
        if let Some(sink) = self.open(tag::ATTRIBUTES) {
            let start = sink.buf.len();
            sink.buf.extend_from_slice(&[tag::ATTRIBUTES, 0]);
            content(&mut KvWriter { sink, depth: 0 });
            if sink.buf.len() == start + 2 {
                sink.buf.truncate(start); // no attributes, no field
            } else {
                close_delimited(&mut sink.buf, start + 1);
            }
        }
        self
    }

    /// Number of attributes that were dropped.
    pub fn dropped_attributes_count(&mut self, count: u32) -> &mut Self {
        let (bytes, len) = varint_bytes(count.into());
        self.field(tag::DROPPED_ATTRIBUTES, if count == 0 { &[] } else { bytes.get(..len).unwrap_or_default() })
    }

    /// Trace id.
    pub fn trace_id(&mut self, id: &[u8]) -> &mut Self {
        self.field(tag::TRACE_ID, id)
    }

    /// Span id.
    pub fn span_id(&mut self, id: &[u8]) -> &mut Self {
        self.field(tag::SPAN_ID, id)
    }

    /// Event name.
    pub fn event_name(&mut self, name: &str) -> &mut Self {
        self.field(tag::EVENT_NAME, name.as_bytes())
    }

    /// A field of a newer version, as it came.
    pub fn unknown(&mut self, field: &UnknownField) -> &mut Self {
        if field.tag < tag::UNKNOWN {
            self.payload.sink.fail(EncodeError::FieldOrder(field.tag));
        } else if let Some(sink) = self.open(field.tag) {
            sink.put_field(field.tag, &field.data);
        }
        self
    }

    /// Adds the record to the payload.
    ///
    /// # Errors
    /// When something that was written does not fit or is out of order; then the payload is as before.
    pub fn commit(self) -> Result<(), EncodeError> {
        let start = self.start;
        let sink = &mut self.payload.sink;
        if let Some(fault) = sink.fault.take() {
            return Err(fault);
        }
        let len = sink.buf.len() - start;
        let (body_len, body_kind) = (self.body_len as u32, sink.body_kind);
        // The check also makes sure that both lengths fit into 32 bits.
        let whole = self.payload.admit(len)?;
        let header = header(&self.head, whole, body_kind, body_len);
        if let Some(place) = self.payload.sink.buf.get_mut(start..start + RECORD_HEADER_BYTES) {
            place.copy_from_slice(&header);
        }
        self.payload.accept();
        Ok(())
    }
}

impl Drop for RecordWriter<'_> {
    fn drop(&mut self) {
        self.payload.take_back();
    }
}
