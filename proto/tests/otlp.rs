//! OTLP in, OTLP out, equal: for every field of every message that the vendored files have, found by walking their
//! descriptors, so that a field of a newer version that has no place here makes a test fail.
#![cfg(feature = "grpc")]

mod support;

use clad_proto::grpc::opentelemetry::proto::{common::v1 as common, logs::v1 as logs};
use clad_proto::{grpc, limits, otlp, *};
use proptest::prelude::*;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value};
use std::collections::BTreeSet;
use support::*;

const ROOT: &str = "opentelemetry.proto.logs.v1.ResourceLogs";

fn pool() -> DescriptorPool {
    DescriptorPool::decode(grpc::FILE_DESCRIPTOR_SET).expect("the descriptors decode")
}

fn through(message: &logs::ResourceLogs) -> logs::ResourceLogs {
    let payload = otlp::encode(message, limits::MAX_APPEND_BYTES, limits::MAX_RECORD_BYTES).expect("it encodes");
    let view = PayloadView::parse(&payload.bytes, payload.count).expect("what was encoded parses");
    otlp::to_otlp(&view)
}

/// Makes messages with all fields set and remembers which fields it has set.
struct Filler {
    seen: BTreeSet<String>,
    number: u64,
}

impl Filler {
    fn message(&mut self, descriptor: &MessageDescriptor, depth: usize, choice: usize) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        for field in descriptor.fields() {
            if field.containing_oneof().is_none() {
                self.set(&mut message, &field, depth);
            }
        }
        for oneof in descriptor.oneofs() {
            // Deep down a scalar is chosen, else the recursion of AnyValue has no end.
            let fields: Vec<_> = oneof.fields().filter(|f| depth > 0 || f.kind().as_message().is_none()).collect();
            self.set(&mut message, &fields[choice % fields.len()], depth.saturating_sub(1));
        }
        message
    }

    fn set(&mut self, message: &mut DynamicMessage, field: &FieldDescriptor, depth: usize) {
        self.seen.insert(field.full_name().to_owned());
        // As many elements as the element has choices, so that each is made at each place.
        let choices = field.kind().as_message().map_or(2, |m| {
            let m = m.get_field_by_name("value").and_then(|f| f.kind().as_message().cloned()).unwrap_or(m.clone());
            m.oneofs().map(|oneof| oneof.fields().count()).max().unwrap_or(1)
        });
        assert!(!field.is_map(), "OTLP has no maps; a new one needs a place");
        let value = if field.is_list() {
            let choices = if field.parent_message().full_name() == ROOT { 1 } else { choices };
            Value::List((0..choices).map(|choice| self.value(&field.kind(), depth, choice)).collect())
        } else {
            let choice = self.number as usize;
            self.value(&field.kind(), depth, choice)
        };
        message.set_field(field, value);
    }

    fn value(&mut self, kind: &Kind, depth: usize, choice: usize) -> Value {
        self.number += 1;
        let n = self.number;
        match kind {
            Kind::Message(descriptor) => {
                // `choice` picks the alternative of an AnyValue, also of the one inside a KeyValue.
                self.number = if descriptor.name() == "KeyValue" { choice as u64 } else { n };
                Value::Message(self.message(descriptor, depth, choice))
            }
            Kind::String => Value::String(format!("text {n}")),
            Kind::Bytes => Value::Bytes(vec![n as u8; (n % 20 + 1) as usize].into()),
            Kind::Bool => Value::Bool(true),
            Kind::Double => Value::F64(n as f64 + 0.5),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(-(n as i32)),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(-(n as i64)),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(u32::MAX - n as u32),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(u64::MAX - n),
            Kind::Enum(_) => Value::EnumNumber((n % 24) as i32 + 1),
            Kind::Float => panic!("OTLP logs have no float; a new kind needs a place"),
        }
    }
}

/// Every field of every message that can be reached from the root.
fn all_fields(root: &MessageDescriptor) -> BTreeSet<String> {
    let (mut open, mut messages, mut fields) = (vec![root.clone()], BTreeSet::new(), BTreeSet::new());
    while let Some(message) = open.pop() {
        if messages.insert(message.full_name().to_owned()) {
            for field in message.fields() {
                fields.insert(field.full_name().to_owned());
                open.extend(field.kind().as_message().cloned());
            }
        }
    }
    fields
}

#[test]
fn every_field_of_the_vendored_files_comes_back() {
    let pool = pool();
    let root = pool.get_message_by_name(ROOT).expect("the root message");
    let mut filler = Filler { seen: BTreeSet::new(), number: 0 };
    let mut full = filler.message(&root, 3, 0);
    // One ScopeLogs is one append.
    let scopes = full.get_field_by_name("scope_logs").expect("there").as_list().expect("a list")[..1].to_vec();
    full.set_field_by_name("scope_logs", Value::List(scopes));
    assert_eq!(filler.seen, all_fields(&root), "a field was never set by this test");

    let generated: logs::ResourceLogs = full.transcode_to().expect("generated code knows every field");
    let back = through(&generated);
    assert_eq!(back, generated);
    // Compared as descriptors have it, too: nothing hides in what generated code leaves out.
    let mut again = DynamicMessage::new(root);
    again.transcode_from(&back).expect("it is the same message");
    assert_eq!(again, full);
}

#[test]
fn every_field_alone_comes_back() {
    // A field that is set while all others hold their defaults is the case that presence gets wrong.
    let pool = pool();
    for (path, message) in [
        ("record", "opentelemetry.proto.logs.v1.LogRecord"),
        ("resource", "opentelemetry.proto.resource.v1.Resource"),
        ("scope", "opentelemetry.proto.common.v1.InstrumentationScope"),
        ("attribute", "opentelemetry.proto.common.v1.KeyValue"),
        ("entity", "opentelemetry.proto.common.v1.EntityRef"),
        ("body", "opentelemetry.proto.common.v1.AnyValue"),
    ] {
        let descriptor = pool.get_message_by_name(message).expect("there");
        for field in descriptor.fields() {
            let mut filler = Filler { seen: BTreeSet::new(), number: 0 };
            let mut alone = DynamicMessage::new(descriptor.clone());
            filler.set(&mut alone, &field, 1);
            let bytes = alone.encode_to_vec();
            let message = place(path, &bytes);
            assert_eq!(through(&message), message, "{}", field.full_name());
        }
    }
}

fn place(path: &str, bytes: &[u8]) -> logs::ResourceLogs {
    let mut record = logs::LogRecord::default();
    let mut message = logs::ResourceLogs { scope_logs: vec![logs::ScopeLogs::default()], ..Default::default() };
    match path {
        "record" => record = logs::LogRecord::decode(bytes).expect("decodes"),
        "resource" => message.resource = Some(Message::decode(bytes).expect("decodes")),
        "scope" => message.scope_logs[0].scope = Some(Message::decode(bytes).expect("decodes")),
        "attribute" => record.attributes = vec![common::KeyValue::decode(bytes).expect("decodes")],
        "body" => record.body = Some(common::AnyValue::decode(bytes).expect("decodes")),
        _ => {
            let entity_refs = vec![common::EntityRef::decode(bytes).expect("decodes")];
            message.resource =
                Some(grpc::opentelemetry::proto::resource::v1::Resource { entity_refs, ..Default::default() });
        }
    }
    message.scope_logs[0].log_records = vec![record];
    message
}

#[test]
fn absent_and_empty_stay_two_things() {
    let mut messages = Vec::new();
    for resource in [None, Some(Default::default())] {
        for scope in [None, Some(Default::default())] {
            for body in [None, Some(common::AnyValue { value: None })] {
                for value in [None, Some(common::AnyValue { value: None })] {
                    let pair = common::KeyValue { key: "k".into(), value, key_strindex: 0 };
                    let record = logs::LogRecord {
                        body: body.clone(),
                        attributes: vec![pair.clone(), pair],
                        ..Default::default()
                    };
                    let scope_logs =
                        logs::ScopeLogs { scope: scope.clone(), log_records: vec![record], ..Default::default() };
                    messages.push(logs::ResourceLogs {
                        resource: resource.clone(),
                        scope_logs: vec![scope_logs],
                        ..Default::default()
                    });
                }
            }
        }
    }
    for message in &messages {
        assert_eq!(&through(message), message);
    }
}

#[test]
fn doubles_keep_their_bits() {
    for bits in [0, 1 << 63, f64::NAN.to_bits(), 0x7FF0_0000_0000_0001, 0xFFF8_0000_0000_1234] {
        let value = common::any_value::Value::DoubleValue(f64::from_bits(bits));
        let message = place("body", &common::AnyValue { value: Some(value) }.encode_to_vec());
        let back = through(&message);
        let body = back.scope_logs[0].log_records[0].body.as_ref().expect("a body");
        let Some(common::any_value::Value::DoubleValue(double)) = body.value else { panic!("a double") };
        assert_eq!(double.to_bits(), bits);
    }
}

#[test]
fn what_is_not_one_append_is_refused() {
    let encode = |message: &logs::ResourceLogs| otlp::encode(message, 100_000, 1000);
    let mut message = logs::ResourceLogs::default();
    assert_eq!(encode(&message), Err(otlp::OtlpError::ScopeCount(0)));
    message.scope_logs.push(logs::ScopeLogs::default());
    assert_eq!(encode(&message), Err(otlp::OtlpError::NoRecords));
    let long = logs::LogRecord { severity_text: "x".repeat(1000), ..Default::default() };
    message.scope_logs[0].log_records = vec![logs::LogRecord::default(), long];
    let error = encode(&message).expect_err("too long");
    let info = ErrorInfo::from(error);
    assert_eq!((info.code, info.record_index, info.limit), (ErrorCode::RecordTooLarge, Some(1), Some(1000)));
}

#[test]
fn the_deepest_record_survives_protobuf() {
    // Protobuf decoders stop at 100 nested messages; the deepest record we take must pass inside a ReadResponse.
    let deep = (0..limits::MAX_NESTING_DEPTH)
        .fold(AnyValue::Int(1), |value, _| AnyValue::KvList(vec![KeyValue::new("k", value)]));
    let mut builder = PayloadBuilder::new(&Group::default()).expect("fits");
    builder.push(&Record { attributes: vec![KeyValue::new("k", deep)], ..Record::default() }).expect("fits");
    let payload = builder.finish();
    let resource_logs = Some(otlp::to_otlp(&PayloadView::parse(&payload.bytes, 1).expect("parses")));
    let records = grpc::v1::Records { resource_logs: resource_logs.clone(), ..Default::default() };
    let response = grpc::v1::ReadResponse { message: Some(grpc::v1::read_response::Message::Records(records)) };
    assert_eq!(grpc::v1::ReadResponse::decode(&*response.encode_to_vec()), Ok(response));
    let append = grpc::v1::Append { resource_logs, ..Default::default() };
    let request = grpc::v1::AppendRequest { message: Some(grpc::v1::append_request::Message::Append(append)) };
    assert_eq!(grpc::v1::AppendRequest::decode(&*request.encode_to_vec()), Ok(request));
}

#[test]
fn errors_pass_through_a_status() {
    for code in ErrorCode::all() {
        let error = ErrorInfo { code, ..full_error() };
        assert_eq!(grpc::from_status(&grpc::to_status(&error)), Some(error));
    }
    assert_eq!(grpc::from_status(&tonic::Status::internal("theirs")), None);
}

#[test]
fn our_services_are_in_the_descriptors() {
    let services: Vec<String> = pool().services().map(|service| service.full_name().to_owned()).collect();
    let logs = "opentelemetry.proto.collector.logs.v1.LogsService";
    assert_eq!(services, ["clad.v1.Ingest", "clad.v1.Log", "clad.v1.Admin", logs]);
}

proptest! {
    #[test]
    fn records_that_were_built_come_back_the_same(group in group(), records in proptest::collection::vec(record(), 1..4)) {
        let known = |record: &Record| Record { unknown: vec![], ..record.clone() };
        let group = Group { unknown: vec![], ..group };
        let mut builder = PayloadBuilder::new(&group).expect("fits");
        for record in &records {
            builder.push(&known(record)).expect("fits");
        }
        let payload = builder.finish();
        let message = otlp::to_otlp(&PayloadView::parse(&payload.bytes, payload.count).expect("parses"));
        let direct = otlp::encode(&message, limits::MAX_APPEND_BYTES, limits::MAX_RECORD_BYTES).expect("encodes");
        prop_assert_eq!(direct, payload);
    }
}
