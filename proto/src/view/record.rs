//! Records in place. [`crate::record`] describes the layout.

use super::{
    unknown::UnknownIter,
    value::{KvsRef, ValueRef},
};
use crate::{
    fault::Fault,
    limits::{MAX_RECORD_BYTES, RECORD_HEADER_BYTES},
    record::{Record, tag},
    value::kind,
    wire::Reader,
};

/// A record as it lies in a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordView<'a> {
    raw: &'a [u8],
    head: &'a [u8; RECORD_HEADER_BYTES],
    body: &'a [u8],
    fields: &'a [u8],
}

/// Takes one record off the front by its lengths alone; [`RecordView::check`] looks at the rest.
///
/// The limit is compared before the length is used for anything, so that an absurd length is named as what it is and
/// not as an early end.
#[inline]
pub(crate) fn split_record(bytes: &[u8], max: u32) -> Result<(RecordView<'_>, &[u8]), Fault> {
    const HEADER: &str = "the header of a record";
    let (head, _) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>().ok_or(Fault::Truncated(HEADER))?;
    let len = le32(head, 0);
    if len > max {
        return Err(Fault::TooLarge { len: len.into(), max: max.into() });
    }
    if (len as usize) < RECORD_HEADER_BYTES {
        return Err(Fault::TooShort(len));
    }
    if head[6] != 0 || head[7] != 0 {
        return Err(Fault::ReservedBits);
    }
    let (raw, rest) = bytes.split_at_checked(len as usize).ok_or(Fault::Truncated("a record"))?;
    let content = raw.get(RECORD_HEADER_BYTES..).unwrap_or_default();
    let (body, fields) = content.split_at_checked(le32(head, 28) as usize).ok_or(Fault::Truncated("the body"))?;
    Ok((RecordView { raw, head, body, fields }, rest))
}

#[inline]
fn le32(head: &[u8; RECORD_HEADER_BYTES], at: usize) -> u32 {
    head.get(at..).and_then(|from| from.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

#[inline]
fn le64(head: &[u8; RECORD_HEADER_BYTES], at: usize) -> u64 {
    head.get(at..).and_then(|from| from.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl<'a> RecordView<'a> {
    /// Checks that these bytes are one record and nothing else.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Fault> {
        let (record, rest) = split_record(bytes, MAX_RECORD_BYTES)?;
        record.check()?;
        if rest.is_empty() { Ok(record) } else { Err(Fault::LeftOver("the record")) }
    }

    /// Checks what the lengths do not say: body, fields, their order.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Fault> {
        match self.head[5] {
            kind::STRING => {
                std::str::from_utf8(self.body).map_err(|_| Fault::NotUtf8("the body"))?;
            }
            kind::BYTES => {}
            kind::ABSENT if self.body.is_empty() => {}
            kind::ABSENT => return Err(Fault::LeftOver("the body")),
            other => ValueRef::of_body(other, self.body)?.check(0)?,
        }
        if self.fields.is_empty() { Ok(()) } else { self.check_fields() }
    }

    fn check_fields(&self) -> Result<(), Fault> {
        let mut reader = Reader(self.fields);
        let mut last = 0;
        while let Some((tag, content)) = reader.field()? {
            if tag < last || (tag == last && tag < tag::UNKNOWN) {
                return Err(Fault::FieldOrder(tag)); // catches the tag 0 too
            }
            last = tag;
            if tag < tag::UNKNOWN {
                self.check_field(tag, content)?;
            }
        }
        Ok(())
    }

    fn check_field(&self, tag: u8, content: &[u8]) -> Result<(), Fault> {
        if content.is_empty() {
            return Err(Fault::DefaultField(tag));
        }
        match tag {
            tag::SEVERITY_NUMBER => {
                let bytes: [u8; 4] = content.try_into().map_err(|_| Fault::FieldLength(tag))?;
                let fits_the_header = u8::try_from(i32::from_le_bytes(bytes)).is_ok();
                if fits_the_header || self.head[4] != 0 { Err(Fault::DefaultField(tag)) } else { Ok(()) }
            }
            tag::SEVERITY_TEXT => text(content, "the severity text"),
            tag::EVENT_NAME => text(content, "the event name"),
            tag::ATTRIBUTES => KvsRef(content).check(0),
            tag::DROPPED_ATTRIBUTES => check_count(tag, content),
            _ => Ok(()),
        }
    }

    fn field(&self, wanted: u8) -> Option<&'a [u8]> {
        find(self.fields, wanted)
    }

    fn field_text(&self, tag: u8) -> &'a str {
        find_text(self.fields, tag)
    }

    /// The whole record as it lies.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.raw
    }

    /// When it happened, Unix nanoseconds; 0 is unknown.
    #[must_use]
    pub fn time_unix_nano(&self) -> u64 {
        le64(self.head, 8)
    }

    /// When it was seen, Unix nanoseconds; 0 is unknown.
    #[must_use]
    pub fn observed_time_unix_nano(&self) -> u64 {
        le64(self.head, 16)
    }

    /// The time to file it under: when it happened, else when it was seen.
    #[must_use]
    pub fn time(&self) -> Option<u64> {
        [self.time_unix_nano(), self.observed_time_unix_nano()].into_iter().find(|&time| time != 0)
    }

    /// Severity.
    #[must_use]
    pub fn severity_number(&self) -> i32 {
        match self.head[4] {
            // Only a number that did not fit is in a field, and then the header says 0.
            0 if !self.fields.is_empty() => self
                .field(tag::SEVERITY_NUMBER)
                .and_then(|content| content.try_into().ok())
                .map_or(0, i32::from_le_bytes),
            number => number.into(),
        }
    }

    /// Flags; the low 8 bits are the W3C trace flags.
    #[must_use]
    pub fn flags(&self) -> u32 {
        le32(self.head, 24)
    }

    /// The body, if there is one.
    #[must_use]
    pub fn body(&self) -> Option<ValueRef<'a>> {
        ValueRef::of_body(self.head[5], self.body).ok()
    }

    /// The content of a body that is a string or bytes: what a person reads, without looking at it again.
    #[must_use]
    pub const fn body_bytes(&self) -> Option<&'a [u8]> {
        match self.head[5] {
            kind::STRING | kind::BYTES => Some(self.body),
            _ => None,
        }
    }

    /// The source's word for the severity.
    #[must_use]
    pub fn severity_text(&self) -> &'a str {
        self.field_text(tag::SEVERITY_TEXT)
    }

    /// Attributes.
    #[must_use]
    pub fn attributes(&self) -> KvsRef<'a> {
        KvsRef(self.field(tag::ATTRIBUTES).unwrap_or_default())
    }

    /// Number of attributes that were dropped before this.
    #[must_use]
    pub fn dropped_attributes_count(&self) -> u32 {
        self.field(tag::DROPPED_ATTRIBUTES).map_or(0, count)
    }

    /// Trace id, empty when there is none.
    #[must_use]
    pub fn trace_id(&self) -> &'a [u8] {
        self.field(tag::TRACE_ID).unwrap_or_default()
    }

    /// Span id, empty when there is none.
    #[must_use]
    pub fn span_id(&self) -> &'a [u8] {
        self.field(tag::SPAN_ID).unwrap_or_default()
    }

    /// Event name.
    #[must_use]
    pub fn event_name(&self) -> &'a str {
        self.field_text(tag::EVENT_NAME)
    }

    /// Fields under tags that this version does not know.
    #[must_use]
    pub fn unknown(&self) -> UnknownIter<'a> {
        UnknownIter::new(self.fields, tag::UNKNOWN)
    }

    /// A copy that owns what it holds.
    #[must_use]
    pub fn to_owned(&self) -> Record {
        Record {
            time_unix_nano: self.time_unix_nano(),
            observed_time_unix_nano: self.observed_time_unix_nano(),
            severity_number: self.severity_number(),
            severity_text: self.severity_text().to_owned(),
            body: self.body().map(ValueRef::to_owned),
            attributes: self.attributes().to_owned(),
            dropped_attributes_count: self.dropped_attributes_count(),
            flags: self.flags(),
            trace_id: self.trace_id().to_vec(),
            span_id: self.span_id().to_vec(),
            event_name: self.event_name().to_owned(),
            unknown: self.unknown().collect(),
        }
    }
}

/// The content of the field of a tag.
pub(super) fn find(fields: &[u8], wanted: u8) -> Option<&[u8]> {
    let mut reader = Reader(fields);
    while let Ok(Some((tag, content))) = reader.field() {
        if tag >= wanted {
            return (tag == wanted).then_some(content);
        }
    }
    None
}

pub(super) fn find_text(fields: &[u8], tag: u8) -> &str {
    find(fields, tag).and_then(|content| std::str::from_utf8(content).ok()).unwrap_or_default()
}

pub(super) fn text(content: &[u8], part: &'static str) -> Result<(), Fault> {
    std::str::from_utf8(content).map(|_| ()).map_err(|_| Fault::NotUtf8(part))
}

pub(super) fn check_count(tag: u8, content: &[u8]) -> Result<(), Fault> {
    let mut reader = Reader(content);
    match reader.varint32("a count")? {
        0 => Err(Fault::DefaultField(tag)),
        _ if reader.is_empty() => Ok(()),
        _ => Err(Fault::FieldLength(tag)),
    }
}

pub(super) fn count(content: &[u8]) -> u32 {
    Reader(content).varint32("a count").unwrap_or(0)
}
