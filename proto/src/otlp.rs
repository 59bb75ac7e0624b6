//! OTLP messages from and to records.
//!
//! Every field of every message of the vendored OTLP files has its place in a record or group, so a message that goes
//! in comes out equal: empty against absent, order, duplicates, doubles bit for bit. Messages are put together field by
//! field with no rest (`..`): a field that a newer OTLP version adds does not compile until it has a place, and a test
//! walks the vendored files. What has none are the fields of a record under tags that this version does not know: OTLP
//! has no room for them, so they stay in the log and are left out here.

mod encoded;
mod error;
mod fields;
mod request;

pub use encoded::Logs;
pub use error::OtlpError;
pub use fields::NotProtobuf;
pub(crate) use fields::{Content, Fields, Pieces};
pub use request::{ExportLimits, ExportPart, ExportParts, ExportRequest, SPLIT_BYTES};

use crate::{
    grpc::generated::opentelemetry::proto::{common::v1 as common, logs::v1 as logs, resource::v1 as resource},
    payload::{Payload, PayloadView},
    view::{GroupView, KvsRef, RecordView, ValueRef},
};
use bytes::Bytes;
use common::any_value::Value;
use prost::Message;

/// Encodes a message that was decoded as an append: one resource, one scope, its records. It is encoded again first: one
/// way leads from a message to a payload, [`Logs::encode`].
///
/// # Errors
/// As [`Logs::encode`].
pub fn encode(
    message: &logs::ResourceLogs,
    max_append_bytes: u32,
    max_record_bytes: u32,
) -> Result<Payload, OtlpError> {
    Logs::new(&message.encode_to_vec()).encode(max_append_bytes, max_record_bytes)
}

/// The message of a whole payload.
#[must_use]
pub fn to_otlp(payload: &PayloadView<'_>) -> logs::ResourceLogs {
    to_otlp_slice(payload, 0, payload.count())
}

/// The message of `take` records of a payload after the first `skip`.
#[must_use]
pub fn to_otlp_slice(payload: &PayloadView<'_>, skip: u32, take: u32) -> logs::ResourceLogs {
    let records = payload.records().skip(skip as usize).take(take as usize);
    message_with(&payload.group(), records.map(|record| message_of(&record)).collect())
}

/// A message of these records with a payload's resource and scope.
#[must_use]
pub fn message_with(group: &GroupView<'_>, log_records: Vec<logs::LogRecord>) -> logs::ResourceLogs {
    let scope_logs = logs::ScopeLogs {
        scope: group.scope().map(|scope| common::InstrumentationScope {
            name: scope.name().to_owned(),
            version: scope.version().to_owned(),
            attributes: pairs_of(scope.attributes()),
            dropped_attributes_count: scope.dropped_attributes_count(),
        }),
        log_records,
        schema_url: group.scope_schema_url().to_owned(),
    };
    logs::ResourceLogs {
        resource: group.resource().map(|resource| resource::Resource {
            attributes: pairs_of(resource.attributes()),
            dropped_attributes_count: resource.dropped_attributes_count(),
            entity_refs: resource
                .entity_refs()
                .map(|entity| common::EntityRef {
                    schema_url: entity.schema_url.to_owned(),
                    r#type: entity.entity_type.to_owned(),
                    id_keys: entity.id_keys().map(str::to_owned).collect(),
                    description_keys: entity.description_keys().map(str::to_owned).collect(),
                })
                .collect(),
        }),
        scope_logs: vec![scope_logs],
        schema_url: group.resource_schema_url().to_owned(),
    }
}

/// The message of one record.
#[must_use]
pub fn message_of(record: &RecordView<'_>) -> logs::LogRecord {
    logs::LogRecord {
        time_unix_nano: record.time_unix_nano(),
        observed_time_unix_nano: record.observed_time_unix_nano(),
        severity_number: record.severity_number(),
        severity_text: record.severity_text().to_owned(),
        body: record.body().map(value_of),
        attributes: pairs_of(record.attributes()),
        dropped_attributes_count: record.dropped_attributes_count(),
        flags: record.flags(),
        trace_id: Bytes::copy_from_slice(record.trace_id()),
        span_id: Bytes::copy_from_slice(record.span_id()),
        event_name: record.event_name().to_owned(),
    }
}

fn value_of(value: ValueRef<'_>) -> common::AnyValue {
    let value = match value {
        ValueRef::Empty => None,
        ValueRef::String(text) => Some(Value::StringValue(text.to_owned())),
        ValueRef::Bytes(bytes) => Some(Value::BytesValue(Bytes::copy_from_slice(bytes))),
        ValueRef::Bool(value) => Some(Value::BoolValue(value)),
        ValueRef::Int(value) => Some(Value::IntValue(value)),
        ValueRef::Double(value) => Some(Value::DoubleValue(value)),
        ValueRef::StringIndex(value) => Some(Value::StringValueStrindex(value)),
        ValueRef::Array(array) => {
            Some(Value::ArrayValue(common::ArrayValue { values: array.iter().map(value_of).collect() }))
        }
        ValueRef::KvList(pairs) => Some(Value::KvlistValue(common::KeyValueList { values: pairs_of(pairs) })),
    };
    common::AnyValue { value }
}

fn pairs_of(pairs: KvsRef<'_>) -> Vec<common::KeyValue> {
    pairs
        .iter()
        .map(|pair| common::KeyValue {
            key: pair.key.to_owned(),
            value: pair.value.map(value_of),
            key_strindex: pair.key_index,
        })
        .collect()
}
