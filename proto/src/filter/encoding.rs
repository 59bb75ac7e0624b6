//! Filters to bytes and back.

use super::conditions::{Condition, Filter, FilterError};
use crate::{
    ids::ProducerId,
    limits::{MAX_FILTER_BYTES, MAX_FILTER_DEPTH},
    view::is_simple_value,
    wire::{Reader, put_delimited, put_field},
};
use bytes::{BufMut, Bytes, BytesMut};

const SEVERITY: u8 = 1;
const COMPONENT: u8 = 2;
const ATTRIBUTE: u8 = 3;
const CONTAINS: u8 = 4;
const EXPRESSION: u8 = 5;
const TRACE_ID: u8 = 6;
const PRODUCER: u8 = 7;
const ANY: u8 = 8;

const EQUAL: u8 = 1;
const BEGINS_WITH: u8 = 2;
const IGNORE_CASE: u8 = 1;

impl Filter {
    /// The filter as a READ has it.
    ///
    /// # Errors
    /// When it passes a limit of READ, which a filter of the client alone may. [`Matcher::new`](super::Matcher::new) has the other
    /// faults.
    pub fn to_bytes(&self) -> Result<Bytes, FilterError> {
        self.check()?;
        let mut buf = BytesMut::new();
        self.put(&mut buf);
        if buf.len() > MAX_FILTER_BYTES { Err(FilterError::TooLong(buf.len())) } else { Ok(buf.freeze()) }
    }

    fn put(&self, buf: &mut BytesMut) {
        let mut content = BytesMut::new();
        for condition in &self.conditions {
            content.clear();
            let kind = condition.put(&mut content);
            put_field(buf, kind, &content);
        }
    }

    /// Reads a filter.
    ///
    /// # Errors
    /// A limit that it passes, a kind of condition that is not known, or a fault of the encoding. That a regular
    /// expression compiles is seen by [`Matcher::new`](super::Matcher::new).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FilterError> {
        if bytes.len() > MAX_FILTER_BYTES {
            return Err(FilterError::TooLong(bytes.len()));
        }
        let filter = Self::take(bytes, 0)?;
        filter.check()?;
        Ok(filter)
    }

    fn take(bytes: &[u8], level: usize) -> Result<Self, FilterError> {
        if level > MAX_FILTER_DEPTH {
            return Err(FilterError::TooDeep);
        }
        let (mut reader, mut filter) = (Reader(bytes), Self::new());
        loop {
            let field = reader.field().map_err(|_| FilterError::Malformed("a condition does not end where it says"))?;
            let Some((kind, content)) = field else { return Ok(filter) };
            let condition = Condition::take(kind, content, level)?;
            if let Condition::Any(inner) = &condition {
                filter.depth = inner.iter().map(|inner| inner.depth + 1).max().unwrap_or(0).max(filter.depth);
            }
            filter.conditions.push(condition);
        }
    }
}

impl Condition {
    /// Writes the content; gives the kind.
    fn put(&self, buf: &mut BytesMut) -> u8 {
        match self {
            Self::Severity { least, most } => {
                buf.put_i32_le(*least);
                buf.put_i32_le(*most);
                SEVERITY
            }
            Self::Component { name, is_prefix } => {
                buf.put_u8(if *is_prefix { BEGINS_WITH } else { EQUAL });
                buf.put_slice(name.as_bytes());
                COMPONENT
            }
            Self::Attribute { key, value } => {
                put_delimited(buf, key.as_bytes());
                buf.put_slice(value);
                ATTRIBUTE
            }
            Self::Contains(text) => {
                buf.put_slice(text.as_bytes());
                CONTAINS
            }
            Self::Expression { pattern, ignores_case } => {
                buf.put_u8(if *ignores_case { IGNORE_CASE } else { 0 });
                buf.put_slice(pattern.as_bytes());
                EXPRESSION
            }
            Self::TraceId(id) => {
                buf.put_slice(id);
                TRACE_ID
            }
            Self::Producer(id) => {
                buf.put_slice(id.as_bytes());
                PRODUCER
            }
            Self::Any(filters) => {
                for filter in filters {
                    let mut inner = BytesMut::new();
                    filter.put(&mut inner);
                    put_delimited(buf, &inner);
                }
                ANY
            }
        }
    }

    fn take(kind: u8, content: &[u8], level: usize) -> Result<Self, FilterError> {
        let text = |bytes| match std::str::from_utf8(bytes) {
            Ok(text) => Ok(String::from(text)),
            Err(_) => Err(FilterError::Malformed("a text is not UTF-8")),
        };
        let first = || content.split_first().ok_or(FilterError::Malformed("a condition without content"));
        let mut reader = Reader(content);
        Ok(match kind {
            SEVERITY => match (reader.array(), reader.array(), reader.is_empty()) {
                (Some(least), Some(most), true) => {
                    Self::Severity { least: i32::from_le_bytes(least), most: i32::from_le_bytes(most) }
                }
                _ => return Err(FilterError::Malformed("a range of severities is 8 bytes")),
            },
            COMPONENT => match first()? {
                (&EQUAL, name) => Self::Component { name: text(name)?, is_prefix: false },
                (&BEGINS_WITH, name) => Self::Component { name: text(name)?, is_prefix: true },
                _ => return Err(FilterError::Malformed("an unknown comparison of components")),
            },
            ATTRIBUTE => match reader.text("a key") {
                Ok(key) if is_simple_value(reader.0) => {
                    Self::Attribute { key: key.to_owned(), value: reader.0.to_vec() }
                }
                _ => return Err(FilterError::Malformed("an attribute is a key and one simple value")),
            },
            CONTAINS if !content.is_empty() => Self::Contains(text(content)?),
            EXPRESSION => match first()? {
                (&flags @ (0 | IGNORE_CASE), pattern) => {
                    Self::Expression { pattern: text(pattern)?, ignores_case: flags == IGNORE_CASE }
                }
                _ => return Err(FilterError::Malformed("unknown flags of a regular expression")),
            },
            TRACE_ID if !content.is_empty() => Self::TraceId(content.to_vec()),
            PRODUCER => match content.try_into() {
                Ok(id) => Self::Producer(ProducerId::from_bytes(id)),
                Err(_) => return Err(FilterError::Malformed("a producer id is 16 bytes")),
            },
            ANY if !content.is_empty() => {
                let mut filters = Vec::new();
                while !reader.is_empty() {
                    let inner = reader.delimited("a filter");
                    let inner = inner.map_err(|_| FilterError::Malformed("a filter does not end where it says"))?;
                    filters.push(Filter::take(inner, level + 1)?);
                }
                Self::Any(filters)
            }
            CONTAINS | TRACE_ID | ANY => return Err(FilterError::Malformed("a condition without content")),
            other => return Err(FilterError::UnknownKind(other)),
        })
    }
}
