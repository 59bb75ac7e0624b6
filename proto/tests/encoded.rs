//! OTLP messages as they lie on the wire, encoded without being decoded: the payload of the message that prost decodes,
//! however an encoder may have laid them out, and nothing but an error where they are none.
#![cfg(feature = "grpc")]

mod support;

use clad_proto::grpc::opentelemetry::proto::{common::v1 as common, logs::v1 as logs};
use clad_proto::grpc::{Asked, v1};
use clad_proto::otlp::{Logs, OtlpError};
use clad_proto::{grpc, limits, otlp, *};
use common::any_value::Value;
use proptest::prelude::*;
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};
use prost_reflect::{DescriptorPool, Kind, MessageDescriptor};
use support::*;

const MAX_APPEND: u32 = limits::MAX_APPEND_BYTES;
const MAX_RECORD: u32 = limits::MAX_RECORD_BYTES;

fn descriptor(name: &str) -> MessageDescriptor {
    let pool = DescriptorPool::decode(grpc::FILE_DESCRIPTOR_SET).expect("the descriptors decode");
    pool.get_message_by_name(name).expect("it is there")
}

fn random(state: &mut u64, n: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) % n
}

/// One field as it lies there, and the number under which its order among others counts: that of the field, or of its oneof.
struct Laid {
    class: u32,
    bytes: Vec<u8>,
}

fn delimited(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut bytes);
    encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

fn join(fields: &[Laid]) -> Vec<u8> {
    fields.iter().flat_map(|field| field.bytes.clone()).collect()
}

/// The same message as an odd encoder may lay it out: fields in another order, messages that are there once in pieces,
/// values that are overwritten, fields that nobody knows.
fn odd(message: &MessageDescriptor, mut bytes: &[u8], state: &mut u64) -> Vec<Laid> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let whole = bytes;
        let (number, wire_type) = decode_key(&mut bytes).expect("a key");
        let field = message.get_field(number).expect("a field of ours");
        let class = field.containing_oneof().map_or(number, |_| 100_000);
        let content = match wire_type {
            WireType::Varint => decode_varint(&mut bytes).map(|_| &[][..]).expect("a varint"),
            WireType::ThirtyTwoBit => bytes.split_off(..4).expect("four bytes"),
            WireType::SixtyFourBit => bytes.split_off(..8).expect("eight bytes"),
            _ => {
                let len = decode_varint(&mut bytes).expect("a length") as usize;
                bytes.split_off(..len).expect("its bytes")
            }
        };
        let mut lay = |bytes: Vec<u8>| fields.push(Laid { class, bytes });
        let as_it_was = whole[..whole.len() - bytes.len()].to_vec();
        match field.kind() {
            Kind::Message(inner) => {
                let inner = odd(&inner, content, state);
                let at = random(state, inner.len() as u64 + 1) as usize;
                if class == 100_000 && random(state, 4) == 0 {
                    lay(delimited(7, b"overwritten bytes"));
                }
                if !field.is_list() && random(state, 3) == 0 {
                    lay(delimited(number, &join(&inner[..at])));
                    lay(delimited(number, &join(&inner[at..])));
                } else {
                    lay(delimited(number, &join(&inner)));
                }
            }
            Kind::String if !field.is_list() && random(state, 3) == 0 => {
                lay(delimited(number, b"overwritten"));
                lay(as_it_was);
            }
            _ if class == 100_000 && random(state, 3) == 0 => {
                // An array that began, and is none in the end.
                lay(delimited(5, &delimited(1, &[])));
                lay(as_it_was);
            }
            _ => lay(as_it_was),
        }
    }
    for unknown in [&[0xC8, 0x3E, 0xFF, 0x01][..], &[0xD2, 0x3E, 2, 8, 1], &[0xDB, 0x3E, 0x0A, 1, 1, 0xDC, 0x3E]] {
        if random(state, 4) == 0 {
            fields.push(Laid { class: 0, bytes: unknown.to_vec() });
        }
    }
    for _ in 0..2 * fields.len() {
        let at = random(state, fields.len() as u64) as usize;
        if fields.get(at + 1).is_some_and(|next| next.class != fields[at].class) {
            fields.swap(at, at + 1);
        }
    }
    fields
}

/// Encodes it, as it lies there and as prost lays the same message out: the same payload, which gives the message back.
fn agree(bytes: &[u8]) -> Result<Payload, OtlpError> {
    let decoded = logs::ResourceLogs::decode(bytes).expect("it is one");
    let encoded = Logs::new(bytes).encode(MAX_APPEND, MAX_RECORD);
    assert_eq!(encoded, otlp::encode(&decoded, MAX_APPEND, MAX_RECORD));
    if let Ok(payload) = &encoded {
        // Compared as bytes: a double that is no number is equal to itself there.
        assert_eq!(back(payload).encode_to_vec(), decoded.encode_to_vec());
    }
    let records: usize = decoded.scope_logs.iter().map(|scope| scope.log_records.len()).sum();
    assert_eq!(Logs::new(bytes).count() as usize, records);
    encoded
}

fn back(payload: &Payload) -> logs::ResourceLogs {
    otlp::to_otlp(&PayloadView::parse(&payload.bytes, payload.count).expect("parses"))
}

fn message_of(group: &Group, records: &[Record]) -> logs::ResourceLogs {
    let mut builder = PayloadBuilder::new(group).expect("fits");
    for record in records {
        builder.push(record).expect("fits");
    }
    back(&builder.finish())
}

proptest! {
    #[test]
    fn however_it_is_laid_out(
        group in group(), records in proptest::collection::vec(record(), 1..4), seed in 1..u64::MAX,
    ) {
        let message = message_of(&group, &records);
        let plain = message.encode_to_vec();
        let payload = agree(&plain).expect("it is an append");
        let mut state = seed;
        let root = descriptor("opentelemetry.proto.logs.v1.ResourceLogs");
        let odd = join(&odd(&root, &plain, &mut state));
        let decoded = logs::ResourceLogs::decode(&*odd).expect("it is one");
        prop_assert_eq!(decoded.encode_to_vec(), plain, "it is the same message");
        prop_assert_eq!(agree(&odd), Ok(payload));
    }

    /// Bytes that were changed: what prost takes is the same here, unless it comes in too many pieces.
    #[test]
    fn whatever_it_is(
        group in group(), records in proptest::collection::vec(record(), 1..3),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut in any::<bool>(),
    ) {
        let mut bytes = message_of(&group, &records).encode_to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if cut {
                bytes.truncate(at + 1);
            }
        }
        let encoded = Logs::new(&bytes).encode(MAX_APPEND, MAX_RECORD);
        if let Ok(decoded) = logs::ResourceLogs::decode(&*bytes) {
            let direct = otlp::encode(&decoded, MAX_APPEND, MAX_RECORD);
            if encoded != direct {
                let error = encoded.expect_err("another payload").to_string();
                prop_assert!(error.contains("pieces"), "{} is not {:?}", error, direct);
            } else if let Ok(payload) = encoded {
                prop_assert_eq!(back(&payload).encode_to_vec(), decoded.encode_to_vec());
            }
        } else if let Ok(payload) = encoded {
            // Something that is overwritten in the end was not looked into.
            PayloadView::parse(&payload.bytes, payload.count).expect("it is an append all the same");
        }
        let _ = Asked::parse(&bytes);
    }
}

/// Each kind of a value that a list can have many of.
fn values() -> Vec<Option<Value>> {
    vec![
        None,
        Some(Value::StringValue(String::new())),
        Some(Value::StringValue("a".into())),
        Some(Value::BytesValue(vec![1].into())),
        Some(Value::BoolValue(true)),
        Some(Value::IntValue(-1)),
        Some(Value::IntValue(i64::MIN)),
        Some(Value::IntValue(1)),
        Some(Value::DoubleValue(0.5)),
        Some(Value::StringValueStrindex(-1)),
        Some(Value::ArrayValue(common::ArrayValue { values: vec![common::AnyValue::default(); 20] })),
        Some(Value::KvlistValue(common::KeyValueList::default())),
        Some(Value::KvlistValue(common::KeyValueList {
            values: vec![common::KeyValue { key_strindex: -1, ..Default::default() }; 20],
        })),
    ]
}

/// What a limit on the length of messages rests on: whatever fits into an append fits into a message of so many bytes.
#[test]
fn a_message_is_at_most_so_much_longer_than_its_payload() {
    let mut most = 0.0_f64;
    for value in values() {
        let mut nested = value;
        for _ in 0..4 {
            let item = common::AnyValue { value: nested.clone() };
            let pair = common::KeyValue { key: String::new(), value: Some(item.clone()), key_strindex: -1 };
            let array = Value::ArrayValue(common::ArrayValue { values: vec![item; 1000] });
            let record = logs::LogRecord {
                body: Some(common::AnyValue { value: Some(array) }),
                attributes: vec![pair; 30],
                severity_number: -1,
                dropped_attributes_count: u32::MAX,
                ..Default::default()
            };
            let scope_logs = vec![logs::ScopeLogs { log_records: vec![record; 3], ..Default::default() }];
            let bytes = logs::ResourceLogs { scope_logs, ..Default::default() }.encode_to_vec();
            let payload = agree(&bytes).expect("it is an append");
            most = most.max(bytes.len() as f64 / payload.bytes.len() as f64);
            assert!(bytes.len() <= Logs::PER_PAYLOAD_BYTE * payload.bytes.len(), "{most}");
            nested = Some(Value::ArrayValue(common::ArrayValue { values: vec![common::AnyValue { value: nested }] }));
        }
    }
    assert!(most > 6.0, "it tries the dear ones: {most}");
}

#[test]
fn a_million_values_are_encoded() {
    let array =
        common::ArrayValue { values: vec![common::AnyValue { value: Some(Value::BoolValue(true)) }; 1_000_000] };
    let body = Some(common::AnyValue { value: Some(Value::ArrayValue(array)) });
    let scope_logs = vec![logs::ScopeLogs {
        log_records: vec![logs::LogRecord { body, ..Default::default() }],
        ..Default::default()
    }];
    let bytes = logs::ResourceLogs { scope_logs, ..Default::default() }.encode_to_vec();
    assert_eq!(agree(&bytes).expect("it is an append").bytes.len(), 4 + 32 + 1_000_000);
    let error = ErrorInfo::from(Logs::new(&bytes).encode(MAX_APPEND, 500_000).expect_err("too long"));
    assert_eq!((error.code, error.record_index, error.limit), (ErrorCode::RecordTooLarge, Some(0), Some(500_000)));
}

#[test]
fn what_is_no_append_is_refused_and_says_why() {
    let refused = |bytes: &[u8]| ErrorInfo::from(Logs::new(bytes).encode(1000, 500).expect_err("no append"));
    let in_record = |record: &[u8]| delimited(2, &delimited(2, record));
    for (bytes, what) in [
        (
            in_record(&[0x08, 1]),
            "record 0: not protobuf, or not by its .proto file: a number of 64 bits of another type",
        ),
        (in_record(&[0x1A, 1, 0xFF]), "record 0: not protobuf, or not by its .proto file: text that is not UTF-8"),
        (in_record(&[0x2A, 9]), "record 0: not protobuf, or not by its .proto file: a length that is beyond the end"),
        (
            in_record(&[0x2A, 2, 0x2A, 7]),
            "record 0: not protobuf, or not by its .proto file: a length that is beyond the end",
        ),
        (
            in_record(&[0x32, 2, 0x0D, 1]),
            "record 0: not protobuf, or not by its .proto file: a number that is cut short",
        ),
        (in_record(&[0x0C]), "record 0: not protobuf, or not by its .proto file: a group"),
        (
            in_record(&[0x2A, 0].repeat(5)),
            "record 0: not protobuf, or not by its .proto file: one message in more than 4 pieces",
        ),
        (vec![0x80], "not protobuf, or not by its .proto file: the key of a field"),
        (vec![], "an append has exactly one ScopeLogs, not 0"),
        (delimited(2, &[]), "an append of no records"),
    ] {
        let error = refused(&bytes);
        assert_eq!((error.code, error.text.as_str()), (ErrorCode::BadRecord, what));
    }
    // Resource and scope: of any number of parts, none of which is kept.
    let pairs = delimited(1, &[0x0A, 0].repeat(1_000_000));
    let message = [pairs, in_record(&[])].concat();
    let error = ErrorInfo::from(Logs::new(&message).encode(MAX_APPEND, MAX_RECORD).expect_err("too long"));
    assert_eq!((error.code, error.limit), (ErrorCode::AppendTooLarge, Some(limits::MAX_GROUP_BYTES.into())));
    let records = delimited(2, &[0x12, 0].repeat(1000));
    let error = ErrorInfo::from(Logs::new(&records).encode(1000, 500).expect_err("too many"));
    assert_eq!((error.code, error.record_index, error.limit), (ErrorCode::AppendTooLarge, Some(31), Some(1000)));
}

#[test]
fn requests_are_read_as_prost_reads_them() {
    use v1::append_request::Message as Request;
    let scope_logs = vec![logs::ScopeLogs { log_records: vec![logs::LogRecord::default(); 2], ..Default::default() }];
    let resource_logs = Some(logs::ResourceLogs { scope_logs, schema_url: "s".into(), ..Default::default() });
    let append = v1::Append { first_seq: u64::MAX - 2, level: 5, gap: true, resource_logs: resource_logs.clone() };
    let flush = v1::Flush { id: 7, level: 4 };
    let hello = v1::Hello { min_version: 1, producer_id: vec![1; 16].into(), name: "n".into(), ..Default::default() };
    let encode = |message: Request| v1::AppendRequest { message: Some(message) }.encode_to_vec();
    let append = encode(Request::Append(append));
    // What came last counts, and goes on with what is of its kind.
    for bytes in [append.clone(), [encode(Request::Flush(flush)), append.clone()].concat()] {
        let Ok(Some(Asked::Append(asked))) = Asked::parse(&bytes) else { panic!("an append") };
        assert_eq!((asked.first_seq, asked.level, asked.gap), (u64::MAX - 2, Some(AckLevel::Durable), true));
        let payload = asked.logs.encode(1000, 1000).expect("it fits");
        assert_eq!(payload, otlp::encode(resource_logs.as_ref().expect("there"), 1000, 1000).expect("it fits"));
    }
    let parts = [
        encode(Request::Append(v1::Append { first_seq: 9, ..Default::default() })),
        encode(Request::Append(v1::Append { gap: true, level: 1, resource_logs, ..Default::default() })),
    ];
    let both = parts.concat();
    let Ok(Some(Asked::Append(asked))) = Asked::parse(&both) else { panic!("an append") };
    assert_eq!((asked.first_seq, asked.level, asked.gap, asked.logs.count()), (9, Some(AckLevel::None), true, 2));
    assert!(matches!(Asked::parse(&encode(Request::Hello(hello.clone()))), Ok(Some(Asked::Hello(h))) if h == hello));
    let after = [append, encode(Request::Flush(flush))].concat();
    assert!(matches!(Asked::parse(&after), Ok(Some(Asked::Flush(f))) if f == flush));
    assert!(matches!(Asked::parse(&encode(Request::Bye(v1::Bye {}))), Ok(Some(Asked::Bye(_)))));
    assert!(matches!(Asked::parse(&[]), Ok(None)));
    assert!(Asked::parse(&[0x12, 1, 0x10]).is_err());
    let unknown = encode(Request::Append(v1::Append { level: 77, ..Default::default() }));
    assert!(matches!(Asked::parse(&unknown), Ok(Some(Asked::Append(asked))) if asked.level.is_none()));
}
