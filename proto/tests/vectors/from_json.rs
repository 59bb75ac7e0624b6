//! From the JSON of `vectors/` to the values of clad-proto. A key that is absent is 0, false or empty; one that is not
//! known fails the test.

use bytes::{BufMut, Bytes, BytesMut};
use clad_proto::frame::*;
use clad_proto::*;
use serde_json::{Map, Value};

/// Bytes of hex digits.
pub(crate) fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "{text}");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits")).collect()
}

/// Hex digits of bytes.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An object whose keys are taken one by one.
pub(crate) struct Object(Map<String, Value>);

impl Object {
    pub(crate) fn new(value: &Value) -> Self {
        Self(value.as_object().unwrap_or_else(|| panic!("no object: {value}")).clone())
    }

    pub(crate) fn take(&mut self, key: &str) -> Option<Value> {
        self.0.shift_remove(key).filter(|value| !value.is_null())
    }

    pub(crate) fn number(&mut self, key: &str) -> u64 {
        self.take(key).map_or(0, |value| value.as_u64().unwrap_or_else(|| panic!("{key} is {value}")))
    }

    fn number_or(&mut self, key: &str, other: u64) -> u64 {
        self.some_number(key).unwrap_or(other)
    }

    fn some_number(&mut self, key: &str) -> Option<u64> {
        self.take(key).map(|value| value.as_u64().unwrap_or_else(|| panic!("{key} is {value}")))
    }

    fn small<T: TryFrom<u64>>(&mut self, key: &str) -> T {
        let number = self.number(key);
        T::try_from(number).unwrap_or_else(|_| panic!("{key} is {number}"))
    }

    fn small_or<T: TryFrom<u64>>(&mut self, key: &str, other: u64) -> T {
        let number = self.number_or(key, other);
        T::try_from(number).unwrap_or_else(|_| panic!("{key} is {number}"))
    }

    fn signed(&mut self, key: &str) -> Option<i64> {
        self.take(key).map(|value| value.as_i64().unwrap_or_else(|| panic!("{key} is {value}")))
    }

    pub(crate) fn text(&mut self, key: &str) -> String {
        self.take(key)
            .map_or_else(String::new, |value| value.as_str().unwrap_or_else(|| panic!("{key} is {value}")).to_owned())
    }

    fn bytes(&mut self, key: &str) -> Vec<u8> {
        unhex(&self.text(key))
    }

    fn id(&mut self, key: &str, other: u8) -> [u8; 16] {
        match self.bytes(key) {
            bytes if bytes.is_empty() => [other; 16],
            bytes => bytes.try_into().expect("16 bytes"),
        }
    }

    pub(crate) fn list<T>(&mut self, key: &str, make: impl FnMut(&Value) -> T) -> Vec<T> {
        self.take(key).map_or_else(Vec::new, |value| {
            value.as_array().unwrap_or_else(|| panic!("{key} is {value}")).iter().map(make).collect()
        })
    }

    fn level(&mut self, key: &str) -> AckLevel {
        AckLevel::from_code(self.small(key)).expect("a level")
    }

    pub(crate) fn end(self) {
        assert!(self.0.is_empty(), "unknown keys: {:?}", self.0);
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

fn value(json: &Value) -> AnyValue {
    let object = json.as_object().filter(|object| object.len() == 1).expect("an object of one key, the kind");
    let (kind, content) = object.iter().next().expect("one");
    match kind.as_str() {
        "empty" => AnyValue::Empty,
        "string" => AnyValue::String(text_of(content)),
        "bytes" => AnyValue::Bytes(unhex(&text_of(content))),
        "bool" => AnyValue::Bool(content.as_bool().expect("true or false")),
        "int" => AnyValue::Int(content.as_i64().expect("64 bits")),
        "double" => AnyValue::Double(f64::from_bits(u64::from_str_radix(&text_of(content), 16).expect("64 bits"))),
        "array" => AnyValue::Array(content.as_array().expect("a list").iter().map(value).collect()),
        "pairs" => AnyValue::KvList(content.as_array().expect("a list").iter().map(pair).collect()),
        "string_index" => AnyValue::StringIndex(content.as_i64().expect("a number").try_into().expect("32 bits")),
        other => panic!("kind {other}"),
    }
}

fn pair(json: &Value) -> KeyValue {
    let mut object = Object::new(json);
    let pair = KeyValue {
        key: object.text("key"),
        value: object.take("value").as_ref().map(value),
        key_index: object.signed("key_index").unwrap_or(0).try_into().expect("32 bits"),
    };
    object.end();
    pair
}

fn unknown(json: &Value) -> UnknownField {
    let mut object = Object::new(json);
    let field = UnknownField { tag: object.small("tag"), data: object.bytes("content") };
    object.end();
    field
}

fn entity(json: &Value) -> EntityRef {
    let mut object = Object::new(json);
    let entity = EntityRef {
        schema_url: object.text("schema_url"),
        entity_type: object.text("type"),
        id_keys: object.list("id_keys", text_of),
        description_keys: object.list("description_keys", text_of),
    };
    object.end();
    entity
}

fn group(json: &Value) -> Group {
    let mut object = Object::new(json);
    let resource = object.take("resource").map(|json| {
        let mut object = Object::new(&json);
        let resource = Resource {
            attributes: object.list("attributes", pair),
            dropped_attributes_count: object.small("dropped"),
            entity_refs: object.list("entities", entity),
        };
        object.end();
        resource
    });
    let scope = object.take("scope").map(|json| {
        let mut object = Object::new(&json);
        let scope = Scope {
            name: object.text("name"),
            version: object.text("version"),
            attributes: object.list("attributes", pair),
            dropped_attributes_count: object.small("dropped"),
        };
        object.end();
        scope
    });
    let group = Group {
        resource,
        resource_schema_url: object.text("resource_schema_url"),
        scope,
        scope_schema_url: object.text("scope_schema_url"),
        unknown: object.list("unknown", unknown),
    };
    object.end();
    group
}

fn record(json: &Value) -> Record {
    let mut object = Object::new(json);
    let record = Record {
        time_unix_nano: object.number("time"),
        observed_time_unix_nano: object.number("observed_time"),
        severity_number: object.signed("severity").unwrap_or(0).try_into().expect("32 bits"),
        severity_text: object.text("severity_text"),
        body: object.take("body").as_ref().map(value),
        attributes: object.list("attributes", pair),
        dropped_attributes_count: object.small("dropped"),
        flags: object.small("flags"),
        trace_id: object.bytes("trace_id"),
        span_id: object.bytes("span_id"),
        event_name: object.text("event_name"),
        unknown: object.list("unknown", unknown),
    };
    object.end();
    record
}

/// A payload of `group` and `records`, with both as they are read back.
pub(crate) fn payload(object: &mut Object) -> (Payload, Group, Vec<Record>) {
    let group = object.take("group").as_ref().map_or_else(Group::default, group);
    let records = object.list("records", record);
    let mut builder = PayloadBuilder::new(&group).expect("fits");
    records.iter().for_each(|record| builder.push(record).expect("fits"));
    (builder.finish(), group, records)
}

/// The payload of conversations: each word is a record of the component `test`; `word!17` has another severity than 9.
pub(crate) fn text_payload(text: &str) -> Payload {
    let mut builder = PayloadBuilder::new(&Group::component_named("test")).expect("fits");
    for word in text.split(' ') {
        let (word, severity) = word.split_once('!').unwrap_or((word, "9"));
        builder.push(&Record::text(1, severity.parse().expect("a severity"), word)).expect("fits");
    }
    builder.finish()
}

fn cursor(json: &Value) -> Cursor {
    let mut object = Object::new(json);
    let cursor = Cursor {
        log_id: LogId::from_bytes(object.id("log_id", 7)),
        epoch: object.small_or("epoch", 1),
        offset: object.number("offset"),
    };
    object.end();
    cursor
}

fn error(object: &mut Object) -> ErrorInfo {
    let mut object = Object::new(&object.take("error").expect("an error"));
    let flags = object.number("flags");
    let error = ErrorInfo {
        code: ErrorCode::from_number(object.small("code")),
        retryable: flags & 1 != 0,
        maybe_written: flags & 2 != 0,
        text: object.text("text"),
        expected_sequence: object.some_number("expected_sequence"),
        record_index: object.some_number("record_index").map(|index| index.try_into().expect("32 bits")),
        limit: object.some_number("limit"),
        cursor: object.take("cursor").as_ref().map(cursor),
        retry_after_ms: object.some_number("retry_after_ms").map(|wait| wait.try_into().expect("32 bits")),
    };
    object.end();
    error
}

fn welcome(object: &mut Object) -> Welcome {
    let last = |json: &Value| {
        let mut object = Object::new(json);
        let last = LastStored {
            sequence: object.number("sequence"),
            offset: object.number("offset"),
            level: object.level("level"),
        };
        object.end();
        last
    };
    let start = |json: &Value| {
        let mut object = Object::new(json);
        let start = EpochStart { epoch: object.small("epoch"), first_offset: object.number("first_offset") };
        object.end();
        start
    };
    Welcome {
        version: object.small_or("version", 1),
        policy: DurabilityPolicy::from_code(object.small_or("policy", 2)).expect("a policy"),
        highest_ack: AckLevel::from_code(object.small_or("highest_ack", 4)).expect("a level"),
        may_read: object.number_or("flags", 1) == 1,
        log_id: LogId::from_bytes(object.id("log_id", 7)),
        epoch: object.small_or("epoch", 1),
        window: object.small_or("window", 64),
        epoch_first_offset: object.number("epoch_first_offset"),
        producer_id: ProducerId::from_bytes(object.id("producer_id", 0)),
        producer_epoch: object.small("producer_epoch"),
        max_append_bytes: object.small_or("max_append_bytes", 8 << 20),
        max_record_bytes: object.small_or("max_record_bytes", 2 << 20),
        received: object.number("received"),
        written: object.number("written"),
        durable: object.number("durable"),
        secret: object.bytes("secret"),
        last: object.take("last").as_ref().map(last),
        earlier: object.list("earlier", start),
        forwarding: Forwarding::No,
    }
}

fn append(object: &mut Object, payload: &Payload) -> Append {
    let head = AppendHead {
        first_seq: object.number("first_seq"),
        count: object.small_or("count", 1),
        level: object.level("level"),
        gap: object.number("flags") == 1,
        payload_crc: object.small_or("payload_crc", payload.checksum().into()),
    };
    Append { head, payload: payload.bytes.clone() }
}

fn records(object: &mut Object, request_id: u32, payload: &Payload) -> Records {
    let mut meta = BytesMut::new();
    for (tag, number) in object.list("peer_meta", |json| {
        let mut object = Object::new(json);
        (object.small::<u8>("tag"), object.number("number"))
    }) {
        meta.put_u8(tag);
        let mut rest = number;
        while rest >= 0x80 {
            meta.put_u8((rest & 0x7F) as u8 | 0x80);
            rest >>= 7;
        }
        meta.put_u8(rest as u8);
    }
    Records {
        request_id,
        head: RecordsHead {
            epoch: object.small_or("epoch", 1),
            count: object.small_or("count", payload.count.into()),
            first_offset: object.number("first_offset"),
            append_time: object.number("append_time"),
            producer_id: ProducerId::from_bytes(object.id("producer_id", 0xB2)),
            producer_epoch: object.small("producer_epoch"),
            payload_crc: object.small_or("payload_crc", payload.checksum().into()),
            first_seq: object.number("first_seq"),
            skip: object.small("skip"),
            take: object.small_or("take", payload.count.into()),
        },
        peer_meta: meta.freeze(),
        payload: payload.bytes.clone(),
    }
}

fn read(object: &mut Object, request_id: u32) -> Read {
    let (start, flags) = (object.number("start"), object.number("flags"));
    let min_level = object.level("level");
    let limit = std::num::NonZeroU64::new(object.number("limit"));
    let log_id = LogId::from_bytes(object.id("log_id", 0));
    let (epoch, offset) = (object.small("epoch"), object.number("offset"));
    let (since, until) = (object.signed("since"), object.signed("until"));
    let filter = object.take("filter").map(|filter| unhex(filter.as_str().expect("hex digits")).into());
    assert_eq!(flags & 6, u64::from(since.is_some()) * 2 + u64::from(until.is_some()) * 4);
    let from = match start {
        1 => ReadFrom::Offset(offset),
        2 => ReadFrom::Cursor(Cursor { log_id, epoch, offset }),
        3 => ReadFrom::Tail(offset),
        other => panic!("start {other}"),
    };
    Read { request_id, from, follow: flags & 1 != 0, limit, min_level, since, until, filter }
}

/// The frame of a type and its fields; `payload` gives the payload that `fields.payload` names.
pub(crate) fn frame(kind: &str, fields: &Value, payload: impl Fn(&str) -> Payload) -> Frame {
    let mut object = Object::new(fields);
    let id: u32 = object.small("request_id");
    let payload = |object: &mut Object| payload(&object.text("payload"));
    let ring_id = |object: &mut Object| RingId::from_bytes(object.id("ring_id", 0));
    let frame = match kind {
        "HELLO" => {
            let intent = object.number("intent");
            Frame::Hello(Hello {
                min_version: object.small_or("min_version", 1),
                max_version: object.small_or("max_version", 1),
                producer_id: ProducerId::from_bytes(object.id("producer_id", 0)),
                producer_epoch: object.small("producer_epoch"),
                intent: Intent { append: intent & 1 != 0, read: intent & 2 != 0 },
                name: object.text("name"),
                secret: object.bytes("secret"),
                forward: None,
            })
        }
        "APPEND" => {
            let payload = payload(&mut object);
            Frame::Append(append(&mut object, &payload))
        }
        "FLUSH" => Frame::Flush(Flush { request_id: id, level: object.level("level") }),
        "PING" => Frame::Ping(id),
        "READ" => Frame::Read(read(&mut object, id)),
        "CANCEL_READ" => Frame::CancelRead(id),
        "BYE" => Frame::Bye,
        "RING" => {
            let known = Some(ring_id(&mut object)).filter(|id| *id != RingId::from_bytes([0; 16]));
            Frame::Ring(RingWanted { request_id: id, known, clock_ns: 0, bytes: object.small("bytes") })
        }
        "WELCOME" => Frame::Welcome(welcome(&mut object)),
        "ACCEPTED" => Frame::Accepted(Accepted {
            first_seq: object.number("first_seq"),
            first_offset: object.number("first_offset"),
            count: object.small_or("count", 1),
            epoch: object.small_or("epoch", 1),
            duplicate: object.number("flags") == 1,
        }),
        "WATERMARK" => Frame::Watermark(Watermark {
            request_id: id,
            offset: object.number("offset"),
            epoch_first_offset: object.number("epoch_first_offset"),
            epoch: object.small_or("epoch", 1),
            level: object.level("level"),
        }),
        "REFUSED" => Frame::Refused(Refused {
            first_seq: object.number("first_seq"),
            count: object.small_or("count", 1),
            error: error(&mut object),
        }),
        "ERROR" => Frame::Error(ErrorFrame { request_id: id, error: error(&mut object) }),
        "PONG" => Frame::Pong(id),
        "RECORDS" => {
            let payload = payload(&mut object);
            Frame::Records(records(&mut object, id, &payload))
        }
        "GAP" => Frame::Gap(Gap {
            request_id: id,
            from: object.number("from"),
            to: object.number("to"),
            epoch: object.small_or("epoch", 1),
            reason: if object.number("reason") == 1 { GapReason::Retention } else { GapReason::Damage },
        }),
        "CAUGHT_UP" => {
            Frame::CaughtUp(CaughtUp { request_id: id, cursor: cursor(&object.take("cursor").expect("a cursor")) })
        }
        "PROGRESS" => {
            Frame::Progress(Progress { request_id: id, cursor: cursor(&object.take("cursor").expect("a cursor")) })
        }
        "COMMIT_CURSOR" => {
            let flags = object.number("flags");
            let place = object.take("cursor").map(|place| cursor(&place));
            assert_eq!(place.is_none(), flags & 2 != 0);
            let (name, note) = (object.text("name"), object.bytes("note").into());
            Frame::CommitCursor(CommitCursor { request_id: id, name, place, hold: flags & 1 != 0, note })
        }
        "GET_CURSOR" => Frame::GetCursor(GetCursor { request_id: id, name: object.text("name") }),
        "CURSOR" => {
            let flags = object.number("flags");
            let named = object.take("cursor").map(|place| NamedCursor {
                place: cursor(&place),
                hold: flags & 2 != 0,
                lost: flags & 4 != 0,
                committed_ns: object.number("committed"),
                unread_from: object.number("unread_from"),
                note: object.bytes("note").into(),
            });
            assert_eq!(named.is_some(), flags & 1 != 0);
            Frame::Cursor(CursorState { request_id: id, named })
        }
        "READ_END" => Frame::ReadEnd(ReadEnd {
            request_id: id,
            cursor: cursor(&object.take("cursor").expect("a cursor")),
            reason: match object.number("reason") {
                1 => ReadEndReason::End,
                2 => ReadEndReason::Limit,
                _ => ReadEndReason::Cancelled,
            },
        }),
        "RING_GIVEN" => {
            let id_of_ring = ring_id(&mut object);
            let flags = object.number("flags");
            Frame::RingGiven(RingGiven {
                request_id: id,
                id: id_of_ring,
                known: flags & 1 != 0,
                stored: flags & 2 != 0,
                bytes: object.small("bytes"),
                max_payload_bytes: object.small("max_payload_bytes"),
            })
        }
        other => panic!("no frame is called {other}"),
    };
    object.end();
    frame
}

/// The bytes of a frame.
pub(crate) fn encode(frame: &Frame) -> Bytes {
    let mut buf = BytesMut::new();
    frame.encode(&mut buf);
    buf.freeze()
}
