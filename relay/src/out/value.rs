//! Values of OpenTelemetry as text: a string is itself, anything else is JSON.
//!
//! Invariants: what is written depends on the value alone. Numbers that JSON does not have are strings, and bytes are base64, as
//! in OTLP's JSON.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clad_proto::{KvsRef, RecordView, ValueRef};

/// Writes the body of a record: bytes and strings as they are, anything else as JSON, nothing where it has none.
pub(super) fn body(out: &mut Vec<u8>, record: &RecordView<'_>) {
    match (record.body_bytes(), record.body()) {
        (Some(content), _) => out.extend_from_slice(content),
        (None, Some(value)) => text(out, value),
        (None, None) => {}
    }
}

/// Writes a value: a string as it is, anything else as JSON.
pub(super) fn text(out: &mut Vec<u8>, value: ValueRef<'_>) {
    match value {
        ValueRef::String(text) => out.extend_from_slice(text.as_bytes()),
        ValueRef::Bytes(bytes) => out.extend_from_slice(STANDARD.encode(bytes).as_bytes()),
        ValueRef::Double(number) if !number.is_finite() => out.extend_from_slice(no_number(number).as_bytes()),
        value => json(out, value),
    }
}

fn json(out: &mut Vec<u8>, value: ValueRef<'_>) {
    match value {
        ValueRef::Empty => out.extend_from_slice(b"null"),
        ValueRef::String(text) => string(out, text),
        ValueRef::Bytes(bytes) => string(out, &STANDARD.encode(bytes)),
        ValueRef::Bool(truth) => out.extend_from_slice(if truth { b"true" } else { b"false" }),
        // Into memory: nothing can fail.
        ValueRef::Int(number) => drop(write!(out, "{number}")),
        ValueRef::Double(number) if number.is_finite() => drop(serde_json::to_writer(out, &number)),
        ValueRef::Double(number) => string(out, no_number(number)),
        ValueRef::Array(values) => {
            out.push(b'[');
            for (at, item) in values.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                json(out, item);
            }
            out.push(b']');
        }
        ValueRef::KvList(list) => pairs(out, list),
        ValueRef::StringIndex(index) => drop(write!(out, "{{\"string_index\":{index}}}")),
    }
}

fn pairs(out: &mut Vec<u8>, pairs: KvsRef<'_>) {
    out.push(b'{');
    for (at, pair) in pairs.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        string(out, pair.key);
        out.push(b':');
        json(out, pair.value.unwrap_or(ValueRef::Empty));
    }
    out.push(b'}');
}

fn string(out: &mut Vec<u8>, text: &str) {
    let _ = serde_json::to_writer(out, text);
}

pub(super) const fn no_number(number: f64) -> &'static str {
    if number.is_nan() {
        "NaN"
    } else if number > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    }
}

#[cfg(test)]
mod tests {
    use clad_client::{Group, Record};
    use clad_proto::{AnyValue, KeyValue, PayloadBuilder, PayloadView};

    use super::*;

    #[test]
    fn each_kind_has_its_text() {
        let pair = |key: &str, value| KeyValue { key: key.to_owned(), value, ..KeyValue::default() };
        let list = AnyValue::KvList(vec![pair("a", Some(AnyValue::Int(-1))), pair("b\"", None)]);
        for (value, wanted) in [
            (AnyValue::String("a \"b\"".to_owned()), "a \"b\""),
            (AnyValue::Bytes(vec![0xff, 0]), "/wA="),
            (AnyValue::Bool(true), "true"),
            (AnyValue::Int(i64::MIN), "-9223372036854775808"),
            (AnyValue::Double(0.5), "0.5"),
            (AnyValue::Double(f64::NAN), "NaN"),
            (AnyValue::Double(f64::NEG_INFINITY), "-Infinity"),
            (AnyValue::Array(vec![AnyValue::Double(f64::INFINITY), AnyValue::Empty]), "[\"Infinity\",null]"),
            (list, "{\"a\":-1,\"b\\\"\":null}"),
        ] {
            let mut payload = PayloadBuilder::with_limits(&Group::default(), 1 << 20, 1 << 16).expect("a payload");
            let record = Record { attributes: vec![pair("k", Some(value.clone()))], ..Record::text(1, 9, "") };
            payload.push(&record).expect("it fits");
            let bytes = payload.finish();
            let view = PayloadView::parse(&bytes.bytes, 1).expect("right");
            let record = view.records().next().expect("a record");
            let mut out = Vec::new();
            text(&mut out, record.attributes().get("k").expect("there"));
            assert_eq!(String::from_utf8(out).expect("text"), wanted, "{value:?}");
        }
    }
}
