//! Writers of values. [`crate::value`] describes the layout.

use super::sink::Sink;
use crate::{
    fault::EncodeError,
    limits::MAX_NESTING_DEPTH,
    value::{AnyValue, KeyValue, kind},
    view::ValueRef,
    wire::{close_delimited, put_varint, zigzag},
};

/// Where a value goes, which decides what stands in front of its content.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place<'k> {
    /// Inside an array.
    Item,
    /// Inside a key-value list.
    Entry(&'k str, i32),
    /// The body of a record: the header says kind and length.
    Body,
}

/// Writes one value. Nothing is written before one of its methods is called.
#[derive(Debug)]
#[must_use = "a value is written by one of the methods"]
pub struct ValueWriter<'s, 'k> {
    pub(super) sink: &'s mut Sink,
    pub(super) place: Place<'k>,
    /// Number of lists that this value lies in.
    pub(super) depth: usize,
}

/// Writes the pairs of a key-value list.
#[derive(Debug)]
pub struct KvWriter<'s> {
    pub(super) sink: &'s mut Sink,
    pub(super) depth: usize,
}

/// Writes the values of an array.
#[derive(Debug)]
pub struct ArrayWriter<'s> {
    sink: &'s mut Sink,
    depth: usize,
}

impl ValueWriter<'_, '_> {
    #[inline]
    fn begin(&mut self, kind: u8) {
        match self.place {
            Place::Body => self.sink.body_kind = kind,
            Place::Item => self.sink.buf.extend_from_slice(&[kind]),
            Place::Entry(key, index) => {
                self.sink.put_delimited(key.as_bytes());
                if index != 0 {
                    self.sink.buf.extend_from_slice(&[kind::KEY_INDEX]);
                    put_varint(&mut self.sink.buf, zigzag(index.into()));
                }
                self.sink.buf.extend_from_slice(&[kind]);
            }
        }
    }

    #[inline]
    fn delimited(mut self, kind: u8, content: &[u8]) {
        self.begin(kind);
        match self.place {
            Place::Body => self.sink.put_slice(content),
            _ => self.sink.put_delimited(content),
        }
    }

    /// Writes a list, unless it would lie too deep.
    fn list(mut self, kind: u8, content: impl FnOnce(&mut Sink, usize)) {
        if self.depth >= MAX_NESTING_DEPTH {
            return self.sink.fail(EncodeError::TooDeep);
        }
        self.begin(kind);
        if matches!(self.place, Place::Body) {
            return content(self.sink, self.depth + 1);
        }
        let start = self.sink.buf.len();
        self.sink.buf.extend_from_slice(&[0]);
        content(self.sink, self.depth + 1);
        close_delimited(&mut self.sink.buf, start);
    }

    /// Writes nothing: the record is not to be taken.
    #[cfg(feature = "grpc")]
    pub(crate) fn fail(self, error: EncodeError) {
        self.sink.fail(error);
    }

    /// A value that is there and empty.
    pub fn empty(mut self) {
        self.begin(kind::EMPTY);
    }

    /// Text.
    #[inline]
    pub fn text(self, text: &str) {
        self.delimited(kind::STRING, text.as_bytes());
    }

    /// Bytes.
    pub fn bytes(self, bytes: &[u8]) {
        self.delimited(kind::BYTES, bytes);
    }

    /// A truth value.
    pub fn boolean(mut self, value: bool) {
        self.begin(if value { kind::TRUE } else { kind::FALSE });
    }

    /// A signed number.
    #[inline]
    pub fn int(mut self, value: i64) {
        self.begin(kind::INT);
        put_varint(&mut self.sink.buf, zigzag(value));
    }

    /// A floating-point number, bit for bit.
    #[inline]
    pub fn double(mut self, value: f64) {
        self.begin(kind::DOUBLE);
        self.sink.buf.extend_from_slice(&value.to_bits().to_le_bytes());
    }

    /// A place in a string table.
    pub fn string_index(mut self, value: i32) {
        self.begin(kind::STRING_INDEX);
        put_varint(&mut self.sink.buf, zigzag(value.into()));
    }

    /// An array.
    pub fn array(self, content: impl FnOnce(&mut ArrayWriter<'_>)) {
        self.list(kind::ARRAY, |sink, depth| content(&mut ArrayWriter { sink, depth }));
    }

    /// A key-value list.
    pub fn kv_list(self, content: impl FnOnce(&mut KvWriter<'_>)) {
        self.list(kind::KV_LIST, |sink, depth| content(&mut KvWriter { sink, depth }));
    }

    /// An owned value.
    pub fn any(self, value: &AnyValue) {
        match value {
            AnyValue::Empty => self.empty(),
            AnyValue::String(text) => self.text(text),
            AnyValue::Bytes(bytes) => self.bytes(bytes),
            AnyValue::Bool(value) => self.boolean(*value),
            AnyValue::Int(value) => self.int(*value),
            AnyValue::Double(value) => self.double(*value),
            AnyValue::StringIndex(value) => self.string_index(*value),
            AnyValue::Array(values) => self.array(|array| values.iter().for_each(|value| array.item().any(value))),
            AnyValue::KvList(pairs) => self.kv_list(|list| list.pairs(pairs)),
        }
    }

    /// A value read from elsewhere.
    pub fn view(self, value: ValueRef<'_>) {
        match value {
            ValueRef::Empty => self.empty(),
            ValueRef::String(text) => self.text(text),
            ValueRef::Bytes(bytes) => self.bytes(bytes),
            ValueRef::Bool(value) => self.boolean(value),
            ValueRef::Int(value) => self.int(value),
            ValueRef::Double(value) => self.double(value),
            ValueRef::StringIndex(value) => self.string_index(value),
            ValueRef::Array(values) => self.array(|array| values.iter().for_each(|value| array.item().view(value))),
            ValueRef::KvList(pairs) => self.kv_list(|list| {
                for pair in pairs.iter() {
                    match pair.value {
                        Some(value) => list.indexed_entry(pair.key, pair.key_index).view(value),
                        None => list.absent(pair.key, pair.key_index),
                    }
                }
            }),
        }
    }
}

impl KvWriter<'_> {
    /// Gives the fault, if there is one: then there is no need to continue.
    #[cfg(feature = "grpc")]
    pub(crate) fn check(&mut self) -> Result<(), EncodeError> {
        self.sink.check()
    }

    /// The record is not to be taken.
    #[cfg(feature = "grpc")]
    pub(crate) fn fail(&mut self, error: EncodeError) {
        self.sink.fail(error);
    }

    /// The next pair.
    #[inline]
    pub fn entry<'k>(&mut self, key: &'k str) -> ValueWriter<'_, 'k> {
        self.indexed_entry(key, 0)
    }

    /// The next pair, with a place in a string table beside its key; 0 is none.
    #[inline]
    pub fn indexed_entry<'k>(&mut self, key: &'k str, key_index: i32) -> ValueWriter<'_, 'k> {
        ValueWriter { sink: self.sink, place: Place::Entry(key, key_index), depth: self.depth }
    }

    /// A pair whose value is absent.
    pub fn absent(&mut self, key: &str, key_index: i32) {
        self.indexed_entry(key, key_index).begin(kind::ABSENT);
    }

    /// Owned pairs.
    pub fn pairs(&mut self, pairs: &[KeyValue]) {
        for pair in pairs {
            match &pair.value {
                Some(value) => self.indexed_entry(&pair.key, pair.key_index).any(value),
                None => self.absent(&pair.key, pair.key_index),
            }
        }
    }
}

impl ArrayWriter<'_> {
    /// Gives the fault, if there is one: then there is no need to continue.
    #[cfg(feature = "grpc")]
    pub(crate) fn check(&mut self) -> Result<(), EncodeError> {
        self.sink.check()
    }

    /// The record is not to be taken.
    #[cfg(feature = "grpc")]
    pub(crate) fn fail(&mut self, error: EncodeError) {
        self.sink.fail(error);
    }

    /// The next value.
    pub fn item(&mut self) -> ValueWriter<'_, 'static> {
        ValueWriter { sink: self.sink, place: Place::Item, depth: self.depth }
    }
}
