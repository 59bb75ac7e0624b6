//! JSON against protobuf: every message both ways, each rule of the specification, and input that is made to hurt.

use clad_proto::grpc::FILE_DESCRIPTOR_SET;
use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::ExportLogsServiceRequest;
use clad_proto::grpc::opentelemetry::proto::{common::v1 as common, logs::v1 as logs, resource::v1 as resource};
use common::any_value::Value;
use proptest::prelude::*;
use prost::Message as _;
use prost_reflect::{Cardinality, DescriptorPool, Kind as ProtoKind, MessageDescriptor};
use serde_json::{Map, Value as Json, json};

use super::*;

fn decoded(json: &str) -> ExportLogsServiceRequest {
    let bytes = to_protobuf(json.as_bytes()).unwrap_or_else(|error| panic!("{error}: {json}"));
    assert!(bytes.len() <= longest(json.len()), "{} bytes of {}", bytes.len(), json.len());
    assert!(bytes.capacity() <= longest(json.len()), "it has grown");
    ExportLogsServiceRequest::decode(&*bytes).expect("protobuf")
}

fn error(json: impl AsRef<[u8]>) -> String {
    to_protobuf(json.as_ref()).expect_err("an error").to_string()
}

fn in_record(fields: &str) -> String {
    format!(r#"{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{{{fields}}}]}}]}}]}}"#)
}

fn record(fields: &str) -> logs::LogRecord {
    decoded(&in_record(fields)).resource_logs[0].scope_logs[0].log_records[0].clone()
}

fn body(value: &str) -> Option<Value> {
    record(&format!(r#""body":{value}"#)).body.expect("a body").value
}

/// The table has every field of every message of the vendored files, by name, number, kind and cardinality.
#[test]
fn every_field_of_the_vendored_files_has_its_place() {
    fn compare(fields: &'static [Field], message: &MessageDescriptor, seen: &mut Vec<String>) {
        if seen.contains(&message.full_name().to_owned()) {
            return;
        }
        seen.push(message.full_name().to_owned());
        assert_eq!(fields.len(), message.fields().len(), "{}", message.full_name());
        for field in message.fields() {
            let ours = fields
                .iter()
                .find(|ours| ours.name == field.json_name())
                .unwrap_or_else(|| panic!("{}", field.full_name()));
            assert_eq!(u32::from(ours.number), field.number(), "{}", field.full_name());
            assert_eq!(ours.is_list, field.cardinality() == Cardinality::Repeated, "{}", field.full_name());
            match (ours.kind, field.kind()) {
                (Kind::Text, ProtoKind::String)
                | (Kind::Base64 | Kind::Hex, ProtoKind::Bytes)
                | (Kind::Bool, ProtoKind::Bool)
                | (Kind::Int64, ProtoKind::Int64)
                | (Kind::Int32, ProtoKind::Int32 | ProtoKind::Enum(_))
                | (Kind::Uint32, ProtoKind::Uint32)
                | (Kind::Fixed64, ProtoKind::Fixed64)
                | (Kind::Fixed32, ProtoKind::Fixed32)
                | (Kind::Double, ProtoKind::Double) => {}
                (Kind::Message(inner), ProtoKind::Message(message)) => compare(inner, &message, seen),
                (_, kind) => panic!("{} is {kind:?}", field.full_name()),
            }
        }
    }
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("descriptors");
    let name = "opentelemetry.proto.collector.logs.v1.ExportLogsServiceRequest";
    let mut seen = Vec::new();
    compare(&REQUEST, &pool.get_message_by_name(name).expect("it is there"), &mut seen);
    assert_eq!(seen.len(), 11, "{seen:?}");
}

/// Choices of a writer, drawn one after the other.
struct Style(u64);

impl Style {
    fn draw(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    fn number(&mut self, number: impl Into<i128>) -> Json {
        let number: i128 = number.into();
        match self.draw(2) {
            0 => json!(number.to_string()),
            _ => i64::try_from(number).map_or_else(|_| json!(number as u64), |number| json!(number)),
        }
    }

    fn hex(&mut self, bytes: &[u8]) -> Json {
        let upper = self.draw(2) == 0;
        let digit = |byte: &u8| if upper { format!("{byte:02X}") } else { format!("{byte:02x}") };
        json!(bytes.iter().map(digit).collect::<String>())
    }

    fn base64(&mut self, bytes: &[u8]) -> Json {
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        let text = if self.draw(2) == 0 { text.replace('+', "-").replace('/', "_") } else { text };
        json!(if self.draw(2) == 0 { text.trim_end_matches('=').to_owned() } else { text })
    }

    /// An object of fields in any order, with some that nobody knows, and without those that are absent.
    fn object(&mut self, fields: Vec<(&str, Option<Json>)>) -> Json {
        let mut fields: Vec<_> = fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        if self.draw(4) == 0 {
            fields.push(("time_unix_nano", json!([{"deep": [1, -2.5, "x", null, true]}])));
        }
        for at in (1..fields.len()).rev() {
            fields.swap(at, self.draw(at as u64 + 1) as usize);
        }
        Json::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
    }

    fn double(&mut self, number: f64) -> Json {
        match number {
            n if n.is_nan() => json!("NaN"),
            n if n.is_infinite() => json!(if n > 0.0 { "Infinity" } else { "-Infinity" }),
            n if self.draw(2) == 0 => json!(serde_json::to_string(&n).expect("a number")),
            n => json!(n),
        }
    }

    fn value(&mut self, value: &common::AnyValue) -> Json {
        let (name, value) = match &value.value {
            None => return self.object(vec![]),
            Some(Value::StringValue(text)) => ("stringValue", json!(text)),
            Some(Value::BoolValue(value)) => ("boolValue", json!(value)),
            Some(Value::IntValue(value)) => ("intValue", self.number(*value)),
            Some(Value::DoubleValue(value)) => ("doubleValue", self.double(*value)),
            Some(Value::ArrayValue(array)) => {
                let values: Vec<_> = array.values.iter().map(|value| self.value(value)).collect();
                ("arrayValue", json!({ "values": values }))
            }
            Some(Value::KvlistValue(list)) => ("kvlistValue", json!({ "values": self.pairs(&list.values) })),
            Some(Value::BytesValue(bytes)) => ("bytesValue", self.base64(bytes)),
            Some(Value::StringValueStrindex(value)) => ("stringValueStrindex", self.number(*value)),
        };
        self.object(vec![(name, Some(value))])
    }

    fn pairs(&mut self, pairs: &[common::KeyValue]) -> Json {
        let one = |pair: &common::KeyValue| {
            let value = pair.value.as_ref().map(|value| self.value(value));
            let index = self.number(pair.key_strindex);
            self.object(vec![("key", Some(json!(pair.key))), ("value", value), ("keyStrindex", Some(index))])
        };
        Json::Array(pairs.iter().map(one).collect())
    }

    fn record(&mut self, record: &logs::LogRecord) -> Json {
        let fields = vec![
            ("timeUnixNano", Some(self.number(record.time_unix_nano))),
            ("observedTimeUnixNano", Some(self.number(record.observed_time_unix_nano))),
            ("severityNumber", Some(json!(record.severity_number))),
            ("severityText", Some(json!(record.severity_text))),
            ("body", record.body.as_ref().map(|body| self.value(body))),
            ("attributes", Some(self.pairs(&record.attributes))),
            ("droppedAttributesCount", Some(json!(record.dropped_attributes_count))),
            ("flags", Some(self.number(record.flags))),
            ("traceId", Some(self.hex(&record.trace_id))),
            ("spanId", Some(self.hex(&record.span_id))),
            ("eventName", Some(json!(record.event_name))),
        ];
        self.object(fields)
    }

    fn scope_logs(&mut self, of: &logs::ScopeLogs) -> Json {
        let scope = of.scope.as_ref().map(|scope| {
            let attributes = self.pairs(&scope.attributes);
            self.object(vec![
                ("name", Some(json!(scope.name))),
                ("version", Some(json!(scope.version))),
                ("attributes", Some(attributes)),
                ("droppedAttributesCount", Some(json!(scope.dropped_attributes_count))),
            ])
        });
        let records: Vec<_> = of.log_records.iter().map(|record| self.record(record)).collect();
        let url = Some(json!(of.schema_url));
        self.object(vec![("scope", scope), ("logRecords", Some(json!(records))), ("schemaUrl", url)])
    }

    fn resource_logs(&mut self, of: &logs::ResourceLogs) -> Json {
        let resource = of.resource.as_ref().map(|resource| {
            let entity = |entity: &common::EntityRef| {
                json!({"schemaUrl": entity.schema_url, "type": entity.r#type, "idKeys": entity.id_keys,
                    "descriptionKeys": entity.description_keys})
            };
            let entities: Vec<_> = resource.entity_refs.iter().map(entity).collect();
            let (attributes, dropped) = (self.pairs(&resource.attributes), resource.dropped_attributes_count);
            let dropped = self.number(dropped);
            self.object(vec![
                ("attributes", Some(attributes)),
                ("droppedAttributesCount", Some(dropped)),
                ("entityRefs", Some(json!(entities))),
            ])
        });
        let scopes: Vec<_> = of.scope_logs.iter().map(|scope| self.scope_logs(scope)).collect();
        let url = Some(json!(of.schema_url));
        self.object(vec![("resource", resource), ("scopeLogs", Some(json!(scopes))), ("schemaUrl", url)])
    }
}

fn any_value() -> impl Strategy<Value = common::AnyValue> {
    let leaf = prop_oneof![
        Just(None),
        any::<String>().prop_map(|text| Some(Value::StringValue(text))),
        any::<bool>().prop_map(|value| Some(Value::BoolValue(value))),
        any::<i64>().prop_map(|value| Some(Value::IntValue(value))),
        any::<f64>().prop_map(|value| Some(Value::DoubleValue(value))),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Some(Value::BytesValue(bytes.into()))),
        any::<i32>().prop_map(|value| Some(Value::StringValueStrindex(value))),
    ];
    let leaf = leaf.prop_map(|value| common::AnyValue { value });
    leaf.prop_recursive(5, 40, 5, |inner| {
        let pair = (any::<String>(), proptest::option::of(inner.clone()), any::<i32>());
        let pair = pair.prop_map(|(key, value, key_strindex)| common::KeyValue { key, value, key_strindex });
        prop_oneof![
            proptest::collection::vec(inner, 0..5)
                .prop_map(|values| Some(Value::ArrayValue(common::ArrayValue { values }))),
            proptest::collection::vec(pair, 0..5)
                .prop_map(|values| Some(Value::KvlistValue(common::KeyValueList { values }))),
        ]
        .prop_map(|value| common::AnyValue { value })
    })
}

fn pairs() -> impl Strategy<Value = Vec<common::KeyValue>> {
    let pair = (any::<String>(), proptest::option::of(any_value()), any::<i32>());
    let pair = pair.prop_map(|(key, value, key_strindex)| common::KeyValue { key, value, key_strindex });
    proptest::collection::vec(pair, 0..4)
}

fn log_record() -> impl Strategy<Value = logs::LogRecord> {
    let ids = (proptest::collection::vec(any::<u8>(), 0..17), proptest::collection::vec(any::<u8>(), 0..9));
    let numbers = (any::<u64>(), any::<u64>(), any::<i32>(), any::<u32>(), any::<u32>());
    (numbers, any::<String>(), any::<String>(), proptest::option::of(any_value()), pairs(), ids).prop_map(
        |((time, observed, severity_number, dropped, flags), text, name, body, attributes, (trace, span))| {
            logs::LogRecord {
                time_unix_nano: time,
                observed_time_unix_nano: observed,
                severity_number,
                severity_text: text,
                body,
                attributes,
                dropped_attributes_count: dropped,
                flags,
                trace_id: trace.into(),
                span_id: span.into(),
                event_name: name,
            }
        },
    )
}

fn resource_logs() -> impl Strategy<Value = logs::ResourceLogs> {
    let names = || proptest::collection::vec(any::<String>(), 0..3);
    let entity =
        (any::<String>(), any::<String>(), names(), names()).prop_map(|(schema_url, kind, id, description)| {
            common::EntityRef { schema_url, r#type: kind, id_keys: id, description_keys: description }
        });
    let resource = (pairs(), any::<u32>(), proptest::collection::vec(entity, 0..3)).prop_map(
        |(attributes, dropped_attributes_count, entity_refs)| resource::Resource {
            attributes,
            dropped_attributes_count,
            entity_refs,
        },
    );
    let scope = (any::<String>(), any::<String>(), pairs(), any::<u32>()).prop_map(
        |(name, version, attributes, dropped_attributes_count)| common::InstrumentationScope {
            name,
            version,
            attributes,
            dropped_attributes_count,
        },
    );
    let records = proptest::collection::vec(log_record(), 0..3);
    let scope_logs = (proptest::option::of(scope), records, any::<String>())
        .prop_map(|(scope, log_records, schema_url)| logs::ScopeLogs { scope, log_records, schema_url });
    let scopes = proptest::collection::vec(scope_logs, 0..3);
    (proptest::option::of(resource), scopes, any::<String>())
        .prop_map(|(resource, scope_logs, schema_url)| logs::ResourceLogs { resource, scope_logs, schema_url })
}

proptest! {
    #[test]
    fn every_message_comes_back(
        resource_logs in proptest::collection::vec(resource_logs(), 0..3), seed in 1..u64::MAX,
    ) {
        let mut style = Style(seed);
        let all: Vec<_> = resource_logs.iter().map(|of| style.resource_logs(of)).collect();
        let json = style.object(vec![("resourceLogs", Some(json!(all)))]).to_string();
        // Compared as bytes: a double that is no number is equal to itself there.
        let back = decoded(&json).encode_to_vec();
        prop_assert_eq!(back, ExportLogsServiceRequest { resource_logs }.encode_to_vec());
    }

    #[test]
    fn changed_text_is_a_message_or_an_error(
        resource_logs in proptest::collection::vec(resource_logs(), 1..2), seed in 1..u64::MAX,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut style = Style(seed);
        let all: Vec<_> = resource_logs.iter().map(|of| style.resource_logs(of)).collect();
        let mut json = json!({ "resourceLogs": all }).to_string().into_bytes();
        for (at, byte) in changes {
            let at = at.index(json.len());
            json[at] = byte;
        }
        if let Ok(bytes) = to_protobuf(&json) {
            prop_assert!(bytes.len() <= longest(json.len()));
            prop_assert!(ExportLogsServiceRequest::decode(&*bytes).is_ok());
        }
    }
}

#[test]
fn what_is_absent_is_not_what_is_empty() {
    assert_eq!(decoded("{}"), ExportLogsServiceRequest::default());
    assert_eq!(decoded(r#"{"resourceLogs":null}"#), ExportLogsServiceRequest::default());
    let one = &decoded(r#"{"resourceLogs":[{"resource":{},"scopeLogs":[{"scope":null}]}]}"#).resource_logs[0];
    assert!(one.resource.is_some() && one.scope_logs[0].scope.is_none());
    assert_eq!(record(r#""body":null"#).body, None);
    assert_eq!(record(r#""body":{}"#).body, Some(common::AnyValue { value: None }));
    let pairs = record(r#""attributes":[{"key":"a","value":null},{"key":"b","value":{}},{}]"#).attributes;
    assert!(pairs[0].value.is_none() && pairs[1].value.is_some() && pairs[2].key.is_empty());
    assert_eq!(body(r#"{"arrayValue":{}}"#), Some(Value::ArrayValue(common::ArrayValue::default())));
}

#[test]
fn numbers_come_in_each_form_and_keep_their_bits() {
    let of = |fields: &str| record(fields);
    assert_eq!(of(r#""timeUnixNano":"18446744073709551615""#).time_unix_nano, u64::MAX);
    assert_eq!(of(r#""timeUnixNano":18446744073709551615"#).time_unix_nano, u64::MAX);
    assert_eq!(of(r#""timeUnixNano":1.0e3"#).time_unix_nano, 1000);
    assert_eq!(of(r#""flags":"7","severityNumber":-1"#).flags, 7);
    assert_eq!(body(r#"{"intValue":"-9223372036854775808"}"#), Some(Value::IntValue(i64::MIN)));
    for (text, bits) in [
        ("-0.0", (-0.0_f64).to_bits()),
        ("5e-324", 1),
        ("1.7976931348623157e308", f64::MAX.to_bits()),
        ("0.1", 0.1_f64.to_bits()),
        ("3", 3.0_f64.to_bits()),
        ("\"-Infinity\"", f64::NEG_INFINITY.to_bits()),
        ("\"2.5\"", 2.5_f64.to_bits()),
    ] {
        let Some(Value::DoubleValue(number)) = body(&format!(r#"{{"doubleValue":{text}}}"#)) else { panic!("{text}") };
        assert_eq!(number.to_bits(), bits, "{text}");
    }
    for wrong in [
        r#""timeUnixNano":-1"#,
        r#""timeUnixNano":"-1""#,
        r#""timeUnixNano":18446744073709551616"#,
        r#""timeUnixNano":1.5"#,
        r#""timeUnixNano":1544712660301000001.0"#,
        r#""timeUnixNano":"1x""#,
        r#""timeUnixNano":true"#,
        r#""timeUnixNano":{"low":1,"high":0}"#,
        r#""flags":4294967296"#,
        r#""severityNumber":"SEVERITY_NUMBER_INFO""#,
        r#""severityNumber":2147483648"#,
        r#""droppedAttributesCount":-1"#,
        r#""body":{"intValue":9223372036854775808}"#,
        r#""body":{"doubleValue":"inf"}"#,
        r#""body":{"doubleValue":""}"#,
        r#""body":{"boolValue":"true"}"#,
        r#""body":{"boolValue":1}"#,
    ] {
        let error = error(in_record(wrong));
        assert!(error.contains('`') && error.contains("column"), "{wrong}: {error}");
    }
}

#[test]
fn bytes_are_hex_or_base64() {
    assert_eq!(&record(r#""traceId":"0aFf""#).trace_id[..], [0x0A, 0xFF]);
    assert!(record(r#""spanId":"""#).span_id.is_empty());
    for text in ["+/8=", "+/8", "-_8=", "-_8"] {
        assert_eq!(body(&format!(r#"{{"bytesValue":"{text}"}}"#)), Some(Value::BytesValue(vec![0xFB, 0xFF].into())));
    }
    for wrong in [r#""traceId":"abc""#, r#""traceId":"+1""#, r#""traceId":"0g""#, r#""body":{"bytesValue":"a*"}"#] {
        assert!(error(in_record(wrong)).contains('`'), "{wrong}");
    }
}

#[test]
fn text_is_any_that_json_can_say_and_nothing_else() {
    assert_eq!(body(r#"{"stringValue":"a\u0000b\ud83d\ude00"}"#), Some(Value::StringValue("a\0b😀".into())));
    for wrong in [r#"{"stringValue":"\ud800"}"#, r#"{"stringValue":"\udc00x"}"#, r#"{"stringValue":7}"#] {
        error(in_record(&format!(r#""body":{wrong}"#)));
    }
    error(in_record("\"severityText\":\"\u{1}\""));
    error([b"{\"a\":\"".as_slice(), b"\xFF\"}"].concat());
    for wrong in ["", " ", "[]", "null", "7", "{", "{}x", "{} {}", "\u{feff}{}", r#"{"resourceLogs":{}}"#] {
        error(wrong);
    }
    assert!(error(r#"{"resourceLogs":[null]}"#).contains("`resourceLogs`"));
    assert!(error(r#"{"resourceLogs":[[]]}"#).contains("`resourceLogs`: an object"));
}

/// Names in another form are unknown, and all that is in them.
#[test]
fn unknown_names_are_passed_over() {
    let with =
        record(r#""time_unix_nano":5,"TimeUnixNano":5,"x":{"y":[{"timeUnixNano":5},[],"",-1,1.5e300]},"flags":1"#);
    assert_eq!(with, logs::LogRecord { flags: 1, ..Default::default() });
    assert_eq!(record(r#""tim\u0065UnixNano":5"#).time_unix_nano, 5, "a name with an escape is that name");
}

#[test]
fn a_list_of_long_texts_fits_and_no_long_text_is_repeated() {
    let keys = vec!["x".repeat(16 << 10); 50];
    let json = json!({"resourceLogs": [{"resource": {"entityRefs": [{"idKeys": keys}]}}]}).to_string();
    assert_eq!(decoded(&json).resource_logs[0].resource.as_ref().expect("it").entity_refs[0].id_keys, keys);
    let error = error(in_record(&format!(r#""flags":"{}""#, "x".repeat(1 << 20))));
    assert!(error.len() < 200 && error.contains("`flags`"), "{error}");
}

/// As protobuf has it: lists are joined, messages are one, and of a number the last one counts.
#[test]
fn a_name_that_is_there_twice_is_as_in_protobuf() {
    let twice = record(r#""flags":1,"flags":2,"attributes":[{"key":"a"}],"attributes":[{"key":"b"}]"#);
    assert_eq!((twice.flags, twice.attributes.len()), (2, 2));
    assert_eq!(body(r#"{"stringValue":"a","intValue":1}"#), Some(Value::IntValue(1)));
}

fn nested(depth: usize) -> String {
    let open = r#"{"kvlistValue":{"values":[{"key":"","value":"#.repeat(depth);
    format!(r#"{open}{{"intValue":1}}{}"#, "}]}}".repeat(depth))
}

/// On the smallest stack of a thread here: a worker's.
#[test]
fn nesting_is_bounded_and_what_clad_stores_is_within() {
    let run = || {
        let mut value = body(&nested(clad_proto::limits::MAX_NESTING_DEPTH));
        let mut depth = 0;
        while let Some(Value::KvlistValue(mut list)) = value {
            value = list.values.remove(0).value.expect("a value").value;
            depth += 1;
        }
        assert_eq!((depth, value), (clad_proto::limits::MAX_NESTING_DEPTH, Some(Value::IntValue(1))));
        let deep = 1_000_000;
        for json in [
            in_record(&format!(r#""body":{}"#, nested(deep))),
            in_record(&format!(r#""x":{}1{}"#, "[".repeat(deep), "]".repeat(deep))),
            in_record(&format!(r#""x":{}1{}"#, r#"{"x":"#.repeat(deep), "}".repeat(deep))),
            "[".repeat(deep),
            r#"{"resourceLogs":"#.repeat(deep),
        ] {
            error(json);
        }
    };
    std::thread::Builder::new().stack_size(1 << 20).spawn(run).expect("a thread").join().expect("no overflow");
}

/// Text that is moved once for each level above it, again and again, is refused in time.
#[test]
fn bytes_that_are_moved_are_bounded() {
    let text = format!(r#"{{"stringValue":"{}"}}"#, "x".repeat(1 << 20));
    let deep = |depth: usize| format!("{}{text}{}", r#"{"arrayValue":{"values":["#.repeat(depth), "]}}".repeat(depth));
    assert!(body(&deep(10)).is_some());
    assert!(error(in_record(&format!(r#""body":{}"#, deep(40)))).contains("too long"));
}
