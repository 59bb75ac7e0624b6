//! Events of a reader, as C gets them.
//!
//! Invariants: what an event points to lies in one memory of the reader, which the next chunk takes again. Each text and
//! each run of bytes has a NUL behind it, which its length does not count.

use std::collections::VecDeque;
use std::ffi::c_char;

use clad_client::{Chunk, Cursor, Gap, GapReason, LogId, ValueRef};

use crate::pointers::Grows;
use crate::record::clad_attribute;
use crate::status::clad_type::*;

/// Kind of an event.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum clad_event_kind {
    /// A record.
    CLAD_EVENT_RECORD = 1,
    /// The offsets from offset to end_offset cannot be read; the reader goes on behind them.
    CLAD_EVENT_GAP = 2,
    /// A reader that follows has given all there is so far. Comes again each time it has.
    CLAD_EVENT_CAUGHT_UP = 3,
}

/// Why offsets cannot be read.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum clad_gap {
    /// Removed by the operator's rule.
    CLAD_GAP_RETENTION = 1,
    /// Damaged on the disk.
    CLAD_GAP_DAMAGE = 2,
}

/// An event of a reader. Every text ends with a NUL, which its length does not count; it may contain others.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct clad_event {
    /// sizeof(clad_event).
    pub size: usize,
    /// Of a record: its offset. Of a gap: the first that is missing.
    pub offset: u64,
    /// The offset behind it.
    pub end_offset: u64,
    /// When it happened, else when it was seen, else when the daemon took it; Unix nanoseconds.
    pub time_unix_nano: u64,
    /// When the daemon took it.
    pub append_time_unix_nano: u64,
    /// The body, without a key; of the type 0 where there is none.
    pub body: clad_attribute,
    /// The attributes.
    pub attributes: *const clad_attribute,
    /// The number of attributes.
    pub attributes_count: usize,
    /// The component (service.name).
    pub component: *const c_char,
    /// The source's word for the severity.
    pub severity_text: *const c_char,
    /// The name of the event.
    pub event_name: *const c_char,
    /// The severity.
    pub severity: i32,
    /// A clad_event_kind.
    pub kind: u32,
    /// Of a gap: a clad_gap.
    pub gap: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: `size` is first; zeroes are NULL and 0.
unsafe impl Grows for clad_event {}

impl clad_event {
    const fn new(kind: clad_event_kind, offset: u64, end_offset: u64) -> Self {
        let mut body = clad_attribute::of_type(CLAD_TYPE_EMPTY);
        body.value_type = 0;
        Self {
            size: size_of::<Self>(),
            offset,
            end_offset,
            time_unix_nano: 0,
            append_time_unix_nano: 0,
            body,
            attributes: std::ptr::null(),
            attributes_count: 0,
            component: c"".as_ptr(),
            severity_text: c"".as_ptr(),
            event_name: c"".as_ptr(),
            severity: 0,
            kind: kind as u32,
            gap: 0,
            reserved: 0,
        }
    }
}

/// Events that were read and not given yet.
#[derive(Default)]
pub(crate) struct Given {
    waiting: VecDeque<(clad_event, Option<Cursor>)>,
    texts: Vec<u8>,
    attributes: Vec<clad_attribute>,
}

impl Given {
    /// The next event that waits, and the place behind it where that is not the reader's own.
    pub(crate) fn next(&mut self) -> Option<(clad_event, Option<Cursor>)> {
        self.waiting.pop_front()
    }

    pub(crate) fn caught_up(&mut self, cursor: Cursor) {
        let event = clad_event::new(clad_event_kind::CLAD_EVENT_CAUGHT_UP, cursor.offset, cursor.offset);
        self.waiting.push_back((event, Some(cursor)));
    }

    pub(crate) fn gap(&mut self, gap: Gap) {
        let mut event = clad_event::new(clad_event_kind::CLAD_EVENT_GAP, gap.from, gap.to);
        event.gap = match gap.reason {
            GapReason::Retention => clad_gap::CLAD_GAP_RETENTION as u32,
            GapReason::Damage => clad_gap::CLAD_GAP_DAMAGE as u32,
        };
        self.waiting.push_back((event, None));
    }

    /// The records of a chunk. Everything before was given.
    pub(crate) fn records(&mut self, chunk: &Chunk, log_id: Option<LogId>) {
        self.texts.clear();
        self.attributes.clear();
        let component = self.text(chunk.component().unwrap_or_default().as_bytes());
        for (offset, record) in chunk.records() {
            let mut event = clad_event::new(clad_event_kind::CLAD_EVENT_RECORD, offset, offset + 1);
            event.severity = record.severity_number();
            event.time_unix_nano = chunk.time(&record);
            event.append_time_unix_nano = chunk.append_time();
            event.component = component;
            event.severity_text = self.text(record.severity_text().as_bytes());
            event.event_name = self.text(record.event_name().as_bytes());
            if let Some(value) = record.body() {
                event.body = self.value(value);
            }
            event.attributes = std::ptr::without_provenance(self.attributes.len());
            for pair in record.attributes().iter() {
                let empty = clad_attribute::of_type(CLAD_TYPE_EMPTY);
                let mut attribute = pair.value.map_or(empty, |value| self.value(value));
                (attribute.key, attribute.key_len) = (self.text(pair.key.as_bytes()), pair.key.len());
                self.attributes.push(attribute);
                event.attributes_count += 1;
            }
            let is_last = event.end_offset >= chunk.end_offset();
            let cursor = log_id.filter(|_| !is_last);
            let cursor = cursor.map(|log_id| Cursor { log_id, epoch: chunk.epoch(), offset: event.end_offset });
            self.waiting.push_back((event, cursor));
        }
        self.place();
    }

    /// Makes pointers of places, now that nothing is added any more.
    fn place(&mut self) {
        let texts = self.texts.as_ptr();
        let text = |place: *const c_char| texts.wrapping_add(place.addr()).cast::<c_char>();
        let value = |attribute: &mut clad_attribute| {
            if [CLAD_TYPE_STRING as u32, CLAD_TYPE_BYTES as u32].contains(&attribute.value_type) {
                attribute.data = text(attribute.data.cast()).cast();
            }
        };
        for attribute in &mut self.attributes {
            attribute.key = text(attribute.key);
            value(attribute);
        }
        for (event, _) in &mut self.waiting {
            for place in [&mut event.component, &mut event.severity_text, &mut event.event_name] {
                *place = text(*place);
            }
            value(&mut event.body);
            event.attributes = self.attributes.as_ptr().wrapping_add(event.attributes.addr());
        }
    }

    /// Keeps a text; its place stands for a pointer until [`Self::place`].
    fn text(&mut self, text: &[u8]) -> *const c_char {
        let start = self.texts.len();
        self.texts.extend_from_slice(text);
        self.texts.push(0);
        std::ptr::without_provenance(start)
    }

    fn value(&mut self, value: ValueRef<'_>) -> clad_attribute {
        let of_type = clad_attribute::of_type;
        let mut data = |value_type, bytes: &[u8]| clad_attribute {
            data: self.text(bytes).cast(),
            data_len: bytes.len(),
            ..of_type(value_type)
        };
        match value {
            ValueRef::String(text) => data(CLAD_TYPE_STRING, text.as_bytes()),
            ValueRef::Bytes(bytes) => data(CLAD_TYPE_BYTES, bytes),
            ValueRef::Int(integer) => clad_attribute { integer, ..of_type(CLAD_TYPE_INT) },
            ValueRef::Double(real) => clad_attribute { real, ..of_type(CLAD_TYPE_DOUBLE) },
            ValueRef::Bool(boolean) => clad_attribute { integer: boolean.into(), ..of_type(CLAD_TYPE_BOOL) },
            ValueRef::Empty => of_type(CLAD_TYPE_EMPTY),
            ValueRef::Array(_) | ValueRef::KvList(_) | ValueRef::StringIndex(_) => of_type(CLAD_TYPE_OTHER),
        }
    }
}
