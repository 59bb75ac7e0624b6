//! Owned values: what a body or an attribute can hold.
//!
//! The same as the `AnyValue` of OTLP, nothing lost: a value that is there but empty is not a value that is absent
//! (`Option<AnyValue>`). Order and duplicate keys are preserved, and the two fields that point into a string table are
//! preserved as numbers. Equality is of what was sent: doubles are equal when their bits are.
//!
//! # Encoding
//! A value is `u8 kind`, then by kind:
//!
//! | kind | value | content |
//! |---|---|---|
//! | 0 | absent (only as the value of a key) | nothing |
//! | 1 | empty | nothing |
//! | 2 | string | length, UTF-8 |
//! | 3 | bytes | length, bytes |
//! | 4, 5 | false, true | nothing |
//! | 6 | int | zigzag LEB128 |
//! | 7 | double | 8 bytes, the IEEE 754 bits |
//! | 8 | array | length in bytes, values |
//! | 9 | key-value list | length in bytes, pairs |
//! | 10 | string index | zigzag LEB128 of 32 bits |
//! | 11 | not a value: a key index | zigzag LEB128 of 32 bits, not 0; the value of the same pair follows |
//!
//! A pair is `length, UTF-8 key`, then a value.

/// Kinds of values: the byte in front of a nested value, and the body kind of a record.
pub(crate) mod kind {
    pub(crate) const ABSENT: u8 = 0;
    pub(crate) const EMPTY: u8 = 1;
    pub(crate) const STRING: u8 = 2;
    pub(crate) const BYTES: u8 = 3;
    pub(crate) const FALSE: u8 = 4;
    pub(crate) const TRUE: u8 = 5;
    pub(crate) const INT: u8 = 6;
    pub(crate) const DOUBLE: u8 = 7;
    pub(crate) const ARRAY: u8 = 8;
    pub(crate) const KV_LIST: u8 = 9;
    pub(crate) const STRING_INDEX: u8 = 10;
    pub(crate) const KEY_INDEX: u8 = 11;
}

/// A value of any type.
#[derive(Debug, Clone, Default)]
pub enum AnyValue {
    /// There, but holding nothing.
    #[default]
    Empty,
    /// Text.
    String(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A truth value.
    Bool(bool),
    /// A signed number.
    Int(i64),
    /// A floating-point number; its bits are preserved.
    Double(f64),
    /// Values in order.
    Array(Vec<AnyValue>),
    /// Pairs in order; keys may repeat.
    KvList(Vec<KeyValue>),
    /// A place in a string table that OTLP uses for profiles; preserved as it came.
    StringIndex(i32),
}

/// A key and its value, if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyValue {
    /// The key.
    pub key: String,
    /// The value; absent is not the same as [`AnyValue::Empty`].
    pub value: Option<AnyValue>,
    /// A place in a string table that OTLP uses for profiles; 0 is none.
    pub key_index: i32,
}

impl KeyValue {
    /// A pair.
    pub fn new(key: impl Into<String>, value: impl Into<AnyValue>) -> Self {
        Self { key: key.into(), value: Some(value.into()), key_index: 0 }
    }
}

impl PartialEq for AnyValue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Empty, Self::Empty) => true,
            (Self::String(a), Self::String(b)) => a == b,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Double(a), Self::Double(b)) => a.to_bits() == b.to_bits(),
            (Self::Array(a), Self::Array(b)) => a == b,
            (Self::KvList(a), Self::KvList(b)) => a == b,
            (Self::StringIndex(a), Self::StringIndex(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for AnyValue {}

macro_rules! from {
    ($($of:ty => $kind:ident),+) => {$(
        impl From<$of> for AnyValue {
            fn from(value: $of) -> Self {
                Self::$kind(value.into())
            }
        }
    )+};
}

from!(
    &str => String, String => String, Vec<u8> => Bytes, &[u8] => Bytes, bool => Bool, i32 => Int, i64 => Int, f64 => Double,
    Vec<Self> => Array, Vec<KeyValue> => KvList
);
