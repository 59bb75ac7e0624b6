//! JSON as programs want it from us: one line, order kept, nothing lost that JSON can say.
//!
//! Written by hand because records are not what JSON maps are: their keys may repeat and keep their order. What could
//! end a line or drive a terminal is written as `\u….`; a string that is not UTF-8 cannot be said at all, so bytes
//! that are none are `{"base64": "…"}` inside values, and numbers that are none are the strings `NaN`, `Infinity`.

use std::fmt::Write;

use base64::{Engine, engine::general_purpose::STANDARD};
use clad_proto::{KvsRef, ValueRef};

use super::escape::is_harmless;

/// Writes one object, member after member.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    out: &'a mut String,
    empty: bool,
}

impl<'a> Object<'a> {
    /// Opens an object.
    pub(crate) fn open(out: &'a mut String) -> Self {
        out.push('{');
        Self { out, empty: true }
    }

    /// Writes a key; its value comes next.
    pub(crate) fn key(&mut self, key: &str) -> &mut String {
        if !self.empty {
            self.out.push(',');
        }
        self.empty = false;
        string(self.out, key);
        self.out.push(':');
        self.out
    }

    /// A member that is a string.
    pub(crate) fn string(&mut self, key: &str, value: &str) -> &mut Self {
        string(self.key(key), value);
        self
    }

    /// A member that is a number.
    pub(crate) fn number(&mut self, key: &str, value: impl Into<i128>) -> &mut Self {
        let _ = write!(self.key(key), "{}", value.into());
        self
    }

    /// Closes it.
    pub(crate) fn close(self) {
        self.out.push('}');
    }
}

/// Writes a string with its quotes.
pub(crate) fn string(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.find(|c| matches!(c, '"' | '\\') || !is_harmless(c)) {
        let (plain, from) = rest.split_at(at);
        out.push_str(plain);
        let mut chars = from.chars();
        match chars.next() {
            Some('"') => out.push_str("\\\""),
            Some('\\') => out.push_str("\\\\"),
            Some('\n') => out.push_str("\\n"),
            Some('\r') => out.push_str("\\r"),
            Some('\t') => out.push_str("\\t"),
            // Beyond the basic plane JSON has a pair.
            Some(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            None => {}
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
    out.push('"');
}

/// Writes bytes as the string of their Base64.
pub(crate) fn base64(out: &mut String, bytes: &[u8]) {
    out.push('"');
    STANDARD.encode_string(bytes, out);
    out.push('"');
}

/// Writes any value.
pub(crate) fn any(out: &mut String, value: ValueRef<'_>) {
    match value {
        ValueRef::Empty => out.push_str("null"),
        ValueRef::String(text) => string(out, text),
        ValueRef::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => string(out, text),
            Err(_) => {
                let mut object = Object::open(out);
                base64(object.key("base64"), bytes);
                object.close();
            }
        },
        ValueRef::Bool(truth) => out.push_str(if truth { "true" } else { "false" }),
        ValueRef::Int(number) => drop(write!(out, "{number}")),
        ValueRef::Double(number) => double(out, number),
        ValueRef::Array(values) => {
            out.push('[');
            for (at, item) in values.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                any(out, item);
            }
            out.push(']');
        }
        ValueRef::KvList(list) => pairs(out, list),
        ValueRef::StringIndex(index) => {
            let mut object = Object::open(out);
            object.number("string_index", index);
            object.close();
        }
    }
}

/// Writes pairs as an object, in their order; a key that repeats is written again.
pub(crate) fn pairs(out: &mut String, pairs: KvsRef<'_>) {
    let mut object = Object::open(out);
    for pair in pairs.iter() {
        let out = object.key(pair.key);
        match pair.value {
            Some(inner) => any(out, inner),
            None => out.push_str("null"),
        }
    }
    object.close();
}

fn double(out: &mut String, number: f64) {
    let _ = if number.is_finite() {
        write!(out, "{number:?}") // the shortest text that reads back as the same bits
    } else if number.is_nan() {
        write!(out, "\"NaN\"")
    } else {
        write!(out, "\"{}Infinity\"", if number < 0.0 { "-" } else { "" })
    };
}
