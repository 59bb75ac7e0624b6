//! Records of C, and their encoding.

use std::ffi::{c_char, c_void};
use std::time::{SystemTime, UNIX_EPOCH};

use clad_client::{Batch, Body, KvWriter, RecordHead, ValueRef};

use crate::error::Failure;
use crate::pointers::{self, Grows};
use crate::status::clad_type::{self, *};

/// Bytes of the ids of OpenTelemetry.
pub(crate) const TRACE_ID_BYTES: usize = 16;
const SPAN_ID_BYTES: usize = 8;

/// An attribute: a key, and a value of a type. clad_string() and its neighbours make one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct clad_attribute {
    /// The key, UTF-8.
    pub key: *const c_char,
    /// Bytes of the key; CLAD_NUL: up to its NUL.
    pub key_len: usize,
    /// Of CLAD_TYPE_STRING and CLAD_TYPE_BYTES: the value.
    pub data: *const c_void,
    /// Bytes of it; CLAD_NUL: up to its NUL.
    pub data_len: usize,
    /// Of CLAD_TYPE_INT and CLAD_TYPE_BOOL: the value.
    pub integer: i64,
    /// Of CLAD_TYPE_DOUBLE: the value.
    pub real: f64,
    /// A clad_type.
    pub value_type: u32,
}

/// A record. Begin with CLAD_RECORD_INIT or clad_text(); what is 0 or NULL is left out. Nothing is kept of what the
/// pointers point to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct clad_record {
    /// sizeof(clad_record).
    pub size: usize,
    /// When it happened, Unix nanoseconds. 0: now.
    pub time_unix_nano: u64,
    /// The message: UTF-8, which may contain NUL. What is not UTF-8 is stored as bytes.
    pub body: *const c_void,
    /// Bytes of the message; CLAD_NUL (as CLAD_RECORD_INIT has it): up to its NUL.
    pub body_len: usize,
    /// The attributes.
    pub attributes: *const clad_attribute,
    /// The number of attributes.
    pub attributes_count: usize,
    /// The program's own word for the severity, UTF-8.
    pub severity_text: *const c_char,
    /// The name of the event, UTF-8.
    pub event_name: *const c_char,
    /// 16 bytes.
    pub trace_id: *const u8,
    /// 8 bytes.
    pub span_id: *const u8,
    /// A clad_severity.
    pub severity: i32,
    /// CLAD_TYPE_STRING, also as 0, or CLAD_TYPE_BYTES.
    pub body_type: u32,
}

// SAFETY: `size` is first; zeroes are NULL and 0.
unsafe impl Grows for clad_record {}

impl clad_record {
    /// Adds it to a batch, or leaves that as it was.
    pub(crate) fn encode(&self, batch: &mut Batch) -> Result<(), Failure> {
        let body = match pointers::bytes("record.body", self.body, self.body_len)? {
            None => Body::Absent,
            Some(bytes) => match self.body_type {
                x if x == CLAD_TYPE_BYTES as u32 => Body::Bytes(bytes),
                0 => text_body(bytes),
                x if x == CLAD_TYPE_STRING as u32 => text_body(bytes),
                other => return Err(Failure::argument(format!("record.body_type: a body has no type {other}"))),
            },
        };
        let severity_text = pointers::text("record.severity_text", self.severity_text)?.unwrap_or_default();
        let event_name = pointers::text("record.event_name", self.event_name)?.unwrap_or_default();
        let attributes = pointers::array("record.attributes", self.attributes, self.attributes_count)?;
        encode(batch, self.head(), body, severity_text, event_name, attributes, (self.trace_id, self.span_id))
    }

    fn head(&self) -> RecordHead {
        head(self.severity, self.time_unix_nano)
    }
}

/// Header of a record; a time of 0 is now.
pub(crate) fn head(severity: i32, time_unix_nano: u64) -> RecordHead {
    let mut head = RecordHead { time_unix_nano, severity_number: severity, ..RecordHead::default() };
    if time_unix_nano == 0 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        (head.time_unix_nano, head.observed_time_unix_nano) = (now, now);
    }
    head
}

/// Text, or what it is else.
pub(crate) fn text_body(bytes: &[u8]) -> Body<'_> {
    pointers::utf8(bytes).map_or(Body::Bytes(bytes), Body::Text)
}

/// Adds a record to a batch, or leaves that as it was.
pub(crate) fn encode(
    batch: &mut Batch,
    head: RecordHead,
    body: Body<'_>,
    severity_text: &str,
    event_name: &str,
    attributes: &[clad_attribute],
    ids: (*const u8, *const u8),
) -> Result<(), Failure> {
    let mut failure = None;
    let mut record = batch.builder().record(head, body);
    record.severity_text(severity_text);
    if !attributes.is_empty() {
        record.attributes(|pairs| failure = attributes.iter().find_map(|attribute| attribute.write(pairs).err()));
    }
    if !ids.0.is_null() {
        record.trace_id(pointers::array("record.trace_id", ids.0, TRACE_ID_BYTES)?);
    }
    if !ids.1.is_null() {
        record.span_id(pointers::array("record.span_id", ids.1, SPAN_ID_BYTES)?);
    }
    record.event_name(event_name);
    match failure {
        Some(failure) => Err(failure),
        None => Ok(record.commit()?),
    }
}

impl clad_attribute {
    /// An attribute that holds nothing.
    pub(crate) const fn of_type(value_type: clad_type) -> Self {
        let (key, data) = (std::ptr::null(), std::ptr::null());
        Self { key, key_len: 0, data, data_len: 0, integer: 0, real: 0.0, value_type: value_type as u32 }
    }

    /// The key, and the value.
    #[inline(always)]
    pub(crate) fn read(&self) -> Result<(&str, ValueRef<'_>), Failure> {
        let key = pointers::bytes("attribute.key", self.key.cast(), self.key_len)?;
        let key = pointers::utf8(key.ok_or_else(|| Failure::null("attribute.key"))?);
        let key = key.map_err(|error| Failure::argument(format!("attribute.key is not UTF-8: {error}")))?;
        let data = || -> Result<&[u8], Failure> {
            let data = pointers::bytes("attribute.data", self.data, self.data_len)?;
            data.ok_or_else(|| Failure::argument(format!("attribute {key}: data is NULL")))
        };
        let value = match self.value_type {
            x if x == CLAD_TYPE_STRING as u32 => {
                let data = data()?;
                pointers::utf8(data).map_or(ValueRef::Bytes(data), ValueRef::String)
            }
            x if x == CLAD_TYPE_BYTES as u32 => ValueRef::Bytes(data()?),
            x if x == CLAD_TYPE_INT as u32 => ValueRef::Int(self.integer),
            x if x == CLAD_TYPE_DOUBLE as u32 => ValueRef::Double(self.real),
            x if x == CLAD_TYPE_BOOL as u32 => ValueRef::Bool(self.integer != 0),
            other => return Err(Failure::argument(format!("attribute {key}: {other} is no type of a value"))),
        };
        Ok((key, value))
    }

    fn write(&self, pairs: &mut KvWriter<'_>) -> Result<(), Failure> {
        let (key, value) = self.read()?;
        let entry = pairs.entry(key);
        match value {
            ValueRef::String(text) => entry.text(text),
            ValueRef::Int(value) => entry.int(value),
            ValueRef::Double(value) => entry.double(value),
            other => entry.view(other),
        }
        Ok(())
    }
}
