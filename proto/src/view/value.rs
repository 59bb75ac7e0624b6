//! Values in place. [`crate::value`] describes the layout.

use crate::{
    fault::Fault,
    limits::MAX_NESTING_DEPTH,
    value::{AnyValue, KeyValue, kind},
    wire::Reader,
};

const VALUE: &str = "a value";
const KEY: &str = "a key";

/// A borrowed value. Doubles compare as numbers here; [`AnyValue`] compares their bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValueRef<'a> {
    /// There, but holding nothing.
    Empty,
    /// Text.
    String(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
    /// A truth value.
    Bool(bool),
    /// A signed number.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// Values in order.
    Array(ArrayRef<'a>),
    /// Pairs in order.
    KvList(KvsRef<'a>),
    /// A place in a string table.
    StringIndex(i32),
}

/// The values of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArrayRef<'a>(&'a [u8]);

/// The pairs of a key-value list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvsRef<'a>(pub(super) &'a [u8]);

/// A borrowed pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeyValueRef<'a> {
    /// The key.
    pub key: &'a str,
    /// The value, if there is one.
    pub value: Option<ValueRef<'a>>,
    /// A place in a string table; 0 is none.
    pub key_index: i32,
}

/// Iterates over an [`ArrayRef`].
#[derive(Debug, Clone)]
pub struct ArrayIter<'a>(Reader<'a>);

/// Iterates over a [`KvsRef`].
#[derive(Debug, Clone)]
pub struct KvIter<'a>(Reader<'a>);

impl<'a> ValueRef<'a> {
    /// The value of a kind whose content is all of these bytes: how a body lies. What is inside lists is not checked.
    pub(super) fn of_body(kind: u8, content: &'a [u8]) -> Result<Self, Fault> {
        match kind {
            kind::STRING | kind::BYTES | kind::ARRAY | kind::KV_LIST => Self::of_content(kind, content),
            _ => {
                let mut reader = Reader(content);
                let value = Self::of_kind(kind, &mut reader)?;
                if reader.is_empty() { Ok(value) } else { Err(Fault::LeftOver("the body")) }
            }
        }
    }

    /// The next value of a list, without looking inside it.
    fn read(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let kind = reader.u8().ok_or(Fault::Truncated(VALUE))?;
        Self::of_kind(kind, reader)
    }

    fn of_kind(kind: u8, reader: &mut Reader<'a>) -> Result<Self, Fault> {
        Ok(match kind {
            kind::STRING | kind::BYTES | kind::ARRAY | kind::KV_LIST => {
                return Self::of_content(kind, reader.delimited(VALUE)?);
            }
            kind::EMPTY => Self::Empty,
            kind::FALSE => Self::Bool(false),
            kind::TRUE => Self::Bool(true),
            kind::INT => Self::Int(reader.signed(VALUE)?),
            kind::DOUBLE => Self::Double(f64::from_bits(reader.u64().ok_or(Fault::Truncated(VALUE))?)),
            kind::STRING_INDEX => Self::StringIndex(signed32(reader)?),
            other => return Err(Fault::UnknownKind(other)),
        })
    }

    fn of_content(kind: u8, content: &'a [u8]) -> Result<Self, Fault> {
        Ok(match kind {
            kind::STRING => Self::String(std::str::from_utf8(content).map_err(|_| Fault::NotUtf8("a string"))?),
            kind::BYTES => Self::Bytes(content),
            kind::ARRAY => Self::Array(ArrayRef(content)),
            kind::KV_LIST => Self::KvList(KvsRef(content)),
            other => return Err(Fault::UnknownKind(other)),
        })
    }

    /// Checks everything inside. `depth` is how many lists this value lies in; it bounds the recursion.
    pub(super) fn check(self, depth: usize) -> Result<(), Fault> {
        match self {
            Self::Array(_) | Self::KvList(_) if depth >= MAX_NESTING_DEPTH => Err(Fault::TooDeep),
            Self::Array(array) => {
                let mut reader = Reader(array.0);
                while !reader.is_empty() {
                    ValueRef::read(&mut reader)?.check(depth + 1)?;
                }
                Ok(())
            }
            Self::KvList(pairs) => pairs.check(depth + 1),
            _ => Ok(()),
        }
    }

    /// A copy that owns what it holds.
    #[must_use]
    pub fn to_owned(self) -> AnyValue {
        match self {
            Self::Empty => AnyValue::Empty,
            Self::String(text) => AnyValue::String(text.to_owned()),
            Self::Bytes(bytes) => AnyValue::Bytes(bytes.to_vec()),
            Self::Bool(value) => AnyValue::Bool(value),
            Self::Int(value) => AnyValue::Int(value),
            Self::Double(value) => AnyValue::Double(value),
            Self::StringIndex(value) => AnyValue::StringIndex(value),
            Self::Array(array) => AnyValue::Array(array.iter().map(ValueRef::to_owned).collect()),
            Self::KvList(pairs) => AnyValue::KvList(pairs.to_owned()),
        }
    }
}

impl<'a> KvsRef<'a> {
    /// Checks every pair. `depth` is how many lists a value of a pair lies in.
    pub(super) fn check(self, depth: usize) -> Result<(), Fault> {
        let mut reader = Reader(self.0);
        while !reader.is_empty() {
            if let Some(value) = KeyValueRef::read(&mut reader)?.value {
                value.check(depth)?;
            }
        }
        Ok(())
    }

    /// The pairs in order.
    #[must_use]
    pub fn iter(self) -> KvIter<'a> {
        KvIter(Reader(self.0))
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The value of the first pair of this key.
    #[must_use]
    pub fn get(self, key: &str) -> Option<ValueRef<'a>> {
        self.iter().find(|pair| pair.key == key).and_then(|pair| pair.value)
    }

    /// True if a pair of this key has this value, given as it is encoded. The key's string index does not count.
    pub(crate) fn has(self, key: &str, value: &[u8]) -> bool {
        let mut reader = Reader(self.0);
        while !reader.is_empty() {
            let Ok(here) = reader.text(KEY) else { return false };
            if reader.0.first() == Some(&kind::KEY_INDEX) && (reader.u8().is_none() || signed32(&mut reader).is_err()) {
                return false;
            }
            let from = reader.0;
            let read = match from.first() {
                Some(&kind::ABSENT) => reader.u8().is_some(),
                _ => ValueRef::read(&mut reader).is_ok(),
            };
            if !read {
                return false;
            }
            if here == key && from.get(..from.len() - reader.0.len()) == Some(value) {
                return true;
            }
        }
        false
    }

    /// Copies that own what they hold.
    #[must_use]
    pub fn to_owned(self) -> Vec<KeyValue> {
        self.iter().map(KeyValueRef::to_owned).collect()
    }
}

impl<'a> ArrayRef<'a> {
    /// The values in order.
    #[must_use]
    pub fn iter(self) -> ArrayIter<'a> {
        ArrayIter(Reader(self.0))
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> KeyValueRef<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, Fault> {
        let key = reader.text(KEY)?;
        let mut kind = reader.u8().ok_or(Fault::Truncated(VALUE))?;
        let mut key_index = 0;
        if kind == kind::KEY_INDEX {
            key_index = signed32(reader)?;
            if key_index == 0 {
                return Err(Fault::Number(KEY)); // 0 is said by leaving it out
            }
            kind = reader.u8().ok_or(Fault::Truncated(VALUE))?;
        }
        let value = if kind == kind::ABSENT { None } else { Some(ValueRef::of_kind(kind, reader)?) };
        Ok(Self { key, value, key_index })
    }

    /// A copy that owns what it holds.
    #[must_use]
    pub fn to_owned(self) -> KeyValue {
        KeyValue { key: self.key.to_owned(), value: self.value.map(ValueRef::to_owned), key_index: self.key_index }
    }
}

/// True if these bytes are one value that is no list, in its one encoding.
pub(crate) fn is_simple_value(bytes: &[u8]) -> bool {
    let mut reader = Reader(bytes);
    let value = ValueRef::read(&mut reader);
    matches!(value, Ok(value) if !matches!(value, ValueRef::Array(_) | ValueRef::KvList(_))) && reader.is_empty()
}

fn signed32(reader: &mut Reader<'_>) -> Result<i32, Fault> {
    i32::try_from(reader.signed(VALUE)?).map_err(|_| Fault::Number(VALUE))
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = ValueRef<'a>;

    fn next(&mut self) -> Option<ValueRef<'a>> {
        ValueRef::read(&mut self.0).ok()
    }
}

impl<'a> Iterator for KvIter<'a> {
    type Item = KeyValueRef<'a>;

    fn next(&mut self) -> Option<KeyValueRef<'a>> {
        KeyValueRef::read(&mut self.0).ok()
    }
}
