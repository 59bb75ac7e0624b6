//! OTLP as JSON, by its rules (<https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>).
//!
//! Invariants: fields that are zero or empty are left out, as protobuf does. Numbers of 64 bits are strings, ids are hex, other
//! bytes base64. Messages are taken apart with no rest (`..`): a field that a newer OTLP adds does not compile without a place.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clad_proto::grpc::opentelemetry::proto::common::v1::any_value::Value;
use clad_proto::grpc::opentelemetry::proto::common::v1::{
    AnyValue, ArrayValue, EntityRef, InstrumentationScope, KeyValue, KeyValueList,
};
use clad_proto::grpc::opentelemetry::proto::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use clad_proto::grpc::opentelemetry::proto::resource::v1::Resource;
use serde_json::Value as Json;

/// An `ExportLogsServiceRequest` with these logs.
pub(super) fn request(logs: &ResourceLogs) -> Vec<u8> {
    object([("resourceLogs", Some(Json::Array(vec![resource_logs(logs)])))]).to_string().into_bytes()
}

fn object<const N: usize>(fields: [(&str, Option<Json>); N]) -> Json {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn text(text: &str) -> Option<Json> {
    (!text.is_empty()).then(|| text.into())
}

fn number(number: u32) -> Option<Json> {
    (number != 0).then(|| number.into())
}

fn wide(number: u64) -> Option<Json> {
    (number != 0).then(|| number.to_string().into())
}

fn list<T>(items: &[T], one: impl Fn(&T) -> Json) -> Option<Json> {
    (!items.is_empty()).then(|| items.iter().map(one).collect())
}

fn hex(bytes: &[u8]) -> Option<Json> {
    (!bytes.is_empty()).then(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into())
}

fn resource_logs(logs: &ResourceLogs) -> Json {
    let ResourceLogs { resource: of, scope_logs: scopes, schema_url } = logs;
    object([
        ("resource", of.as_ref().map(resource)),
        ("scopeLogs", list(scopes, scope_logs)),
        ("schemaUrl", text(schema_url)),
    ])
}

fn resource(resource: &Resource) -> Json {
    let Resource { attributes, dropped_attributes_count, entity_refs } = resource;
    object([
        ("attributes", list(attributes, pair)),
        ("droppedAttributesCount", number(*dropped_attributes_count)),
        ("entityRefs", list(entity_refs, entity)),
    ])
}

fn entity(entity: &EntityRef) -> Json {
    let EntityRef { schema_url, r#type, id_keys, description_keys } = entity;
    let key = |key: &String| Json::from(key.as_str());
    object([
        ("schemaUrl", text(schema_url)),
        ("type", text(r#type)),
        ("idKeys", list(id_keys, key)),
        ("descriptionKeys", list(description_keys, key)),
    ])
}

fn scope_logs(logs: &ScopeLogs) -> Json {
    let ScopeLogs { scope: of, log_records, schema_url } = logs;
    object([
        ("scope", of.as_ref().map(scope)),
        ("logRecords", list(log_records, record)),
        ("schemaUrl", text(schema_url)),
    ])
}

fn scope(scope: &InstrumentationScope) -> Json {
    let InstrumentationScope { name, version, attributes, dropped_attributes_count } = scope;
    object([
        ("name", text(name)),
        ("version", text(version)),
        ("attributes", list(attributes, pair)),
        ("droppedAttributesCount", number(*dropped_attributes_count)),
    ])
}

fn record(record: &LogRecord) -> Json {
    let LogRecord {
        time_unix_nano,
        observed_time_unix_nano,
        severity_number,
        severity_text,
        body,
        attributes,
        dropped_attributes_count,
        flags,
        trace_id,
        span_id,
        event_name,
    } = record;
    object([
        ("timeUnixNano", wide(*time_unix_nano)),
        ("observedTimeUnixNano", wide(*observed_time_unix_nano)),
        ("severityNumber", (*severity_number != 0).then(|| (*severity_number).into())),
        ("severityText", text(severity_text)),
        ("body", body.as_ref().map(value)),
        ("attributes", list(attributes, pair)),
        ("droppedAttributesCount", number(*dropped_attributes_count)),
        ("flags", number(*flags)),
        ("traceId", hex(trace_id)),
        ("spanId", hex(span_id)),
        ("eventName", text(event_name)),
    ])
}

fn pair(pair: &KeyValue) -> Json {
    let KeyValue { key, value: of, key_strindex } = pair;
    object([
        ("key", text(key)),
        ("value", of.as_ref().map(value)),
        ("keyStrindex", (*key_strindex != 0).then(|| (*key_strindex).into())),
    ])
}

fn value(value: &AnyValue) -> Json {
    let (name, of) = match &value.value {
        None => return object([]),
        Some(Value::StringValue(text)) => ("stringValue", text.as_str().into()),
        Some(Value::BoolValue(truth)) => ("boolValue", (*truth).into()),
        Some(Value::IntValue(number)) => ("intValue", number.to_string().into()),
        Some(Value::DoubleValue(number)) => ("doubleValue", double(*number)),
        Some(Value::BytesValue(bytes)) => ("bytesValue", STANDARD.encode(bytes).into()),
        Some(Value::StringValueStrindex(index)) => ("stringValueStrindex", (*index).into()),
        Some(Value::ArrayValue(ArrayValue { values })) => {
            ("arrayValue", object([("values", list(values, self::value))]))
        }
        Some(Value::KvlistValue(KeyValueList { values })) => ("kvlistValue", object([("values", list(values, pair))])),
    };
    object([(name, Some(of))])
}

/// JSON has no numbers but finite ones.
fn double(number: f64) -> Json {
    match number.is_finite() {
        true => number.into(),
        false => super::value::no_number(number).into(),
    }
}
