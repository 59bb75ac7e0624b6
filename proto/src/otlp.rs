//! OTLP messages from and to records.
//!
//! Every field of every message of the vendored OTLP files has its place in a record or group, so a message that goes
//! in comes out equal: empty against absent, order, duplicates, doubles bit for bit. Messages are taken apart and put
//! together field by field with no rest (`..`): a field that a newer OTLP version adds does not compile until it has a
//! place. What has none are the fields of a record under tags that this version does not know: OTLP has no room for
//! them, so they stay in the log and are left out here.

mod encoded;
mod fields;

pub use encoded::Logs;
pub use fields::NotProtobuf;
pub(crate) use fields::{Content, Fields, Pieces};

use crate::{
    fault::EncodeError,
    group::{EntityRef, Group, Resource, Scope},
    grpc::opentelemetry::proto::{common::v1 as common, logs::v1 as logs, resource::v1 as resource},
    payload::{Payload, PayloadBuilder, PayloadView},
    record::Record,
    view::{GroupView, KvsRef, RecordView, ValueRef},
    write::{KvWriter, RecordHead, ValueWriter},
};
use bytes::Bytes;
use common::any_value::Value;

/// Why an OTLP message is not an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// An append has one resource and one scope.
    #[error("an append has exactly one ScopeLogs, not {0}")]
    ScopeCount(usize),
    /// An append has at least one record.
    #[error("an append of no records")]
    NoRecords,
    /// It is no message of this kind.
    #[error(transparent)]
    NotProtobuf(#[from] NotProtobuf),
    /// Resource or scope do not fit.
    #[error("resource or scope: {0}")]
    Group(EncodeError),
    /// A record does not fit.
    #[error("record {index}: {error}")]
    Record {
        /// Which one, counted from 0.
        index: u32,
        /// Why.
        error: EncodeError,
    },
}

impl From<OtlpError> for crate::ErrorInfo {
    fn from(error: OtlpError) -> Self {
        use crate::ErrorCode;
        let code = match &error {
            OtlpError::ScopeCount(_) | OtlpError::NoRecords | OtlpError::NotProtobuf(_) => ErrorCode::BadRecord,
            OtlpError::Group(reason) | OtlpError::Record { error: reason, .. } => match reason {
                EncodeError::RecordTooLarge { .. } => ErrorCode::RecordTooLarge,
                EncodeError::AppendFull { .. } | EncodeError::GroupTooLarge { .. } => ErrorCode::AppendTooLarge,
                EncodeError::TooDeep | EncodeError::FieldOrder(_) | EncodeError::NotProtobuf(_) => ErrorCode::BadRecord,
            },
        };
        let mut info = Self::new(code, error.to_string());
        if let OtlpError::Record { index, .. } = error {
            info.record_index = Some(index);
        }
        if let OtlpError::Group(reason) | OtlpError::Record { error: reason, .. } = error
            && let EncodeError::RecordTooLarge { max, .. }
            | EncodeError::GroupTooLarge { max, .. }
            | EncodeError::AppendFull { max, .. } = reason
        {
            info.limit = Some(max);
        }
        info
    }
}

/// Encodes a message that was decoded as an append: one resource, one scope, its records. [`Logs`] does the same of one
/// that was not.
///
/// # Errors
/// Says what does not fit, and which record.
pub fn encode(
    message: &logs::ResourceLogs,
    max_append_bytes: u32,
    max_record_bytes: u32,
) -> Result<Payload, OtlpError> {
    let [scope_logs] = message.scope_logs.as_slice() else {
        return Err(OtlpError::ScopeCount(message.scope_logs.len()));
    };
    if scope_logs.log_records.is_empty() {
        return Err(OtlpError::NoRecords);
    }
    let group = group_of(message, scope_logs);
    let mut builder =
        PayloadBuilder::with_limits(&group, max_append_bytes, max_record_bytes).map_err(OtlpError::Group)?;
    for (index, record) in (0..).zip(&scope_logs.log_records) {
        push(&mut builder, record).map_err(|error| OtlpError::Record { index, error })?;
    }
    Ok(builder.finish())
}

/// Adds one OTLP record to a payload.
///
/// # Errors
/// When it does not go in; then nothing has changed.
pub fn push(builder: &mut PayloadBuilder, record: &logs::LogRecord) -> Result<(), EncodeError> {
    let logs::LogRecord {
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
    let head = RecordHead {
        time_unix_nano: *time_unix_nano,
        observed_time_unix_nano: *observed_time_unix_nano,
        severity_number: *severity_number,
        flags: *flags,
    };
    let mut writer = builder.record_with(head, |writer| {
        if let Some(body) = body {
            put_value(writer, body);
        }
    });
    writer
        .severity_text(severity_text)
        .attributes(|writer| put_pairs(writer, attributes))
        .dropped_attributes_count(*dropped_attributes_count)
        .trace_id(trace_id)
        .span_id(span_id)
        .event_name(event_name);
    writer.commit()
}

fn put_value(writer: ValueWriter<'_, '_>, value: &common::AnyValue) {
    let common::AnyValue { value } = value;
    match value {
        None => writer.empty(),
        Some(Value::StringValue(text)) => writer.text(text),
        Some(Value::BytesValue(bytes)) => writer.bytes(bytes),
        Some(Value::BoolValue(value)) => writer.boolean(*value),
        Some(Value::IntValue(value)) => writer.int(*value),
        Some(Value::DoubleValue(value)) => writer.double(*value),
        Some(Value::StringValueStrindex(value)) => writer.string_index(*value),
        Some(Value::ArrayValue(common::ArrayValue { values })) => {
            writer.array(|array| values.iter().for_each(|value| put_value(array.item(), value)));
        }
        Some(Value::KvlistValue(common::KeyValueList { values })) => writer.kv_list(|list| put_pairs(list, values)),
    }
}

fn put_pairs(writer: &mut KvWriter<'_>, pairs: &[common::KeyValue]) {
    for common::KeyValue { key, value, key_strindex } in pairs {
        match value {
            Some(value) => put_value(writer.indexed_entry(key, *key_strindex), value),
            None => writer.absent(key, *key_strindex),
        }
    }
}

/// The group of one scope's records.
#[must_use]
pub fn group_of(message: &logs::ResourceLogs, scope_logs: &logs::ScopeLogs) -> Group {
    let logs::ResourceLogs { resource, scope_logs: _, schema_url: resource_schema_url } = message;
    let logs::ScopeLogs { scope, log_records: _, schema_url: scope_schema_url } = scope_logs;
    Group {
        resource: resource.as_ref().map(owned_resource),
        resource_schema_url: resource_schema_url.clone(),
        scope: scope.as_ref().map(owned_scope),
        scope_schema_url: scope_schema_url.clone(),
        unknown: Vec::new(),
    }
}

fn owned_resource(message: &resource::Resource) -> Resource {
    let resource::Resource { attributes, dropped_attributes_count, entity_refs } = message;
    Resource {
        attributes: owned_pairs(attributes),
        dropped_attributes_count: *dropped_attributes_count,
        entity_refs: entity_refs.iter().map(owned_entity).collect(),
    }
}

fn owned_entity(message: &common::EntityRef) -> EntityRef {
    let common::EntityRef { schema_url, r#type, id_keys, description_keys } = message;
    EntityRef {
        schema_url: schema_url.clone(),
        entity_type: r#type.clone(),
        id_keys: id_keys.clone(),
        description_keys: description_keys.clone(),
    }
}

fn owned_scope(message: &common::InstrumentationScope) -> Scope {
    let common::InstrumentationScope { name, version, attributes, dropped_attributes_count } = message;
    Scope {
        name: name.clone(),
        version: version.clone(),
        attributes: owned_pairs(attributes),
        dropped_attributes_count: *dropped_attributes_count,
    }
}

fn owned_pairs(pairs: &[common::KeyValue]) -> Vec<crate::KeyValue> {
    pairs
        .iter()
        .map(|common::KeyValue { key, value, key_strindex }| crate::KeyValue {
            key: key.clone(),
            value: value.as_ref().map(owned_value),
            key_index: *key_strindex,
        })
        .collect()
}

fn owned_value(message: &common::AnyValue) -> crate::AnyValue {
    use crate::AnyValue;
    match &message.value {
        None => AnyValue::Empty,
        Some(Value::StringValue(text)) => AnyValue::String(text.clone()),
        Some(Value::BytesValue(bytes)) => AnyValue::Bytes(bytes.to_vec()),
        Some(Value::BoolValue(value)) => AnyValue::Bool(*value),
        Some(Value::IntValue(value)) => AnyValue::Int(*value),
        Some(Value::DoubleValue(value)) => AnyValue::Double(*value),
        Some(Value::StringValueStrindex(value)) => AnyValue::StringIndex(*value),
        Some(Value::ArrayValue(array)) => AnyValue::Array(array.values.iter().map(owned_value).collect()),
        Some(Value::KvlistValue(list)) => AnyValue::KvList(owned_pairs(&list.values)),
    }
}

/// Owned groups and records of a message: one group for each scope, in order.
#[must_use]
pub fn from_otlp(message: &logs::ResourceLogs) -> Vec<(Group, Vec<Record>)> {
    let records = |scope_logs: &logs::ScopeLogs| scope_logs.log_records.iter().map(owned_record).collect();
    message.scope_logs.iter().map(|scope_logs| (group_of(message, scope_logs), records(scope_logs))).collect()
}

fn owned_record(message: &logs::LogRecord) -> Record {
    let logs::LogRecord {
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
    } = message;
    Record {
        time_unix_nano: *time_unix_nano,
        observed_time_unix_nano: *observed_time_unix_nano,
        severity_number: *severity_number,
        severity_text: severity_text.clone(),
        body: body.as_ref().map(owned_value),
        attributes: owned_pairs(attributes),
        dropped_attributes_count: *dropped_attributes_count,
        flags: *flags,
        trace_id: trace_id.to_vec(),
        span_id: span_id.to_vec(),
        event_name: event_name.clone(),
        unknown: Vec::new(),
    }
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
    wrap(&payload.group(), records.map(|record| message_of(&record)).collect())
}

fn wrap(group: &GroupView<'_>, log_records: Vec<logs::LogRecord>) -> logs::ResourceLogs {
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
