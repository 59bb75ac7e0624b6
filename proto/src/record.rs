//! The owned record.
//!
//! # Encoding
//! A header of 32 bytes, the body, then what else there is:
//!
//! | at | size | what |
//! |---|---|---|
//! | 0 | 4 | length of the whole record |
//! | 4 | 1 | severity number; 0 when it does not fit (then field 1 has it) |
//! | 5 | 1 | body kind: the kind of the body's value, 0 when there is no body |
//! | 6 | 2 | reserved, 0 |
//! | 8 | 8 | time, Unix nanoseconds, 0 unknown |
//! | 16 | 8 | observed time, likewise |
//! | 24 | 4 | flags |
//! | 28 | 4 | length of the body |
//! | 32 | … | the content of the body's value; the header says kind and length, so neither is repeated here |
//! | … | … | tagged fields, ascending, each left out when it holds its default |
//!
//! A record that is nothing but a string costs 32 bytes more than the string.

use crate::value::{AnyValue, KeyValue};

/// Tags of a record's fields. Tags from [`UNKNOWN`](tag::UNKNOWN) on are not known to this version and are preserved.
pub(crate) mod tag {
    pub(crate) const SEVERITY_NUMBER: u8 = 1;
    pub(crate) const SEVERITY_TEXT: u8 = 2;
    pub(crate) const ATTRIBUTES: u8 = 3;
    pub(crate) const DROPPED_ATTRIBUTES: u8 = 4;
    pub(crate) const TRACE_ID: u8 = 5;
    pub(crate) const SPAN_ID: u8 = 6;
    pub(crate) const EVENT_NAME: u8 = 7;
    /// First tag that this version does not know.
    pub(crate) const UNKNOWN: u8 = 8;
}

/// One log record of the OpenTelemetry Logs Data Model, without the resource and scope that its [`Group`] holds.
///
/// [`Group`]: crate::Group
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// When it happened, Unix nanoseconds; 0 is unknown.
    pub time_unix_nano: u64,
    /// When it was seen, Unix nanoseconds; 0 is unknown.
    pub observed_time_unix_nano: u64,
    /// Severity; any value is preserved. See [`Severity`](crate::Severity) for names.
    pub severity_number: i32,
    /// The source's own word for the severity.
    pub severity_text: String,
    /// The message; absent is not the same as [`AnyValue::Empty`].
    pub body: Option<AnyValue>,
    /// Attributes in their order, with duplicates.
    pub attributes: Vec<KeyValue>,
    /// Number of attributes that were dropped before this.
    pub dropped_attributes_count: u32,
    /// Flags; the low 8 bits are the W3C trace flags.
    pub flags: u32,
    /// Trace id: 16 bytes, empty when there is none; any length is preserved.
    pub trace_id: Vec<u8>,
    /// Span id: 8 bytes, empty when there is none; any length is preserved.
    pub span_id: Vec<u8>,
    /// Event name.
    pub event_name: String,
    /// Fields under tags that this version does not know, as they came, tags ascending.
    pub unknown: Vec<UnknownField>,
}

/// A field that a newer version wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownField {
    /// Its tag.
    pub tag: u8,
    /// Its content.
    pub data: Vec<u8>,
}

impl Record {
    /// A record that is a time, a severity number and a text.
    pub fn text(time_unix_nano: u64, severity_number: i32, body: impl Into<String>) -> Self {
        Self { time_unix_nano, severity_number, body: Some(AnyValue::String(body.into())), ..Self::default() }
    }
}
