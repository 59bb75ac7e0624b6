//! What the tests share: arbitrary values, and one example of everything.
#![allow(dead_code, reason = "each test uses a part")]

use bytes::{Bytes, BytesMut};
use clad_proto::frame::*;
use clad_proto::*;
use proptest::{collection::vec, option, prelude::*};

pub(crate) fn value() -> impl Strategy<Value = AnyValue> {
    let leaf = prop_oneof![
        Just(AnyValue::Empty),
        ".{0,12}".prop_map(AnyValue::String),
        vec(any::<u8>(), 0..12).prop_map(AnyValue::Bytes),
        any::<bool>().prop_map(AnyValue::Bool),
        any::<i64>().prop_map(AnyValue::Int),
        any::<u64>().prop_map(|bits| AnyValue::Double(f64::from_bits(bits))),
        any::<i32>().prop_map(AnyValue::StringIndex),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(AnyValue::Array),
            vec(pair_of(inner), 0..6).prop_map(AnyValue::KvList),
        ]
    })
}

fn pair_of(value: impl Strategy<Value = AnyValue>) -> impl Strategy<Value = KeyValue> {
    ("[a-c]{0,3}|.{0,200}", option::of(value), prop_oneof![3 => Just(0), 1 => any::<i32>()])
        .prop_map(|(key, value, key_index)| KeyValue { key, value, key_index })
}

pub(crate) fn pairs() -> impl Strategy<Value = Vec<KeyValue>> {
    vec(pair_of(value()), 0..4)
}

fn unknown(from: u8) -> impl Strategy<Value = Vec<UnknownField>> {
    vec((from..=255, vec(any::<u8>(), 0..8)), 0..3).prop_map(|fields| {
        let mut fields: Vec<_> = fields.into_iter().map(|(tag, data)| UnknownField { tag, data }).collect();
        fields.sort_by_key(|field| field.tag);
        fields
    })
}

pub(crate) fn record() -> impl Strategy<Value = Record> {
    let times = (any::<u64>(), prop_oneof![Just(0), any::<u64>()], any::<u32>());
    let severity = (prop_oneof![0..=255i32, any::<i32>()], ".{0,8}");
    let ids = (vec(any::<u8>(), 0..18), vec(any::<u8>(), 0..10), ".{0,8}");
    let rest = (option::of(value()), pairs(), prop_oneof![Just(0), any::<u32>()], unknown(8));
    (times, severity, ids, rest).prop_map(|(times, severity, ids, rest)| Record {
        time_unix_nano: times.0,
        observed_time_unix_nano: times.1,
        flags: times.2,
        severity_number: severity.0,
        severity_text: severity.1,
        trace_id: ids.0,
        span_id: ids.1,
        event_name: ids.2,
        body: rest.0,
        attributes: rest.1,
        dropped_attributes_count: rest.2,
        unknown: rest.3,
    })
}

fn entity() -> impl Strategy<Value = EntityRef> {
    (".{0,5}", ".{0,5}", vec(".{0,5}", 0..3), vec(".{0,5}", 0..3)).prop_map(
        |(schema_url, entity_type, id_keys, description_keys)| EntityRef {
            schema_url,
            entity_type,
            id_keys,
            description_keys,
        },
    )
}

pub(crate) fn group() -> impl Strategy<Value = Group> {
    let count = || prop_oneof![Just(0), any::<u32>()];
    let resource = (pairs(), count(), vec(entity(), 0..3)).prop_map(|(attributes, dropped, entity_refs)| Resource {
        attributes,
        dropped_attributes_count: dropped,
        entity_refs,
    });
    let scope = (".{0,5}", ".{0,5}", pairs(), count()).prop_map(|(name, version, attributes, dropped)| Scope {
        name,
        version,
        attributes,
        dropped_attributes_count: dropped,
    });
    (option::of(resource), ".{0,5}", option::of(scope), ".{0,5}", unknown(10)).prop_map(
        |(resource, resource_schema_url, scope, scope_schema_url, unknown)| Group {
            resource,
            resource_schema_url,
            scope,
            scope_schema_url,
            unknown,
        },
    )
}

/// A value of every kind, each where it can be mistaken for another.
pub(crate) fn every_value() -> AnyValue {
    AnyValue::Array(vec![
        AnyValue::Empty,
        AnyValue::String(String::new()),
        AnyValue::String("text".into()),
        AnyValue::Bytes(vec![]),
        AnyValue::Bytes(vec![0xFF, 0]),
        AnyValue::Bool(false),
        AnyValue::Bool(true),
        AnyValue::Int(0),
        AnyValue::Int(i64::MIN),
        AnyValue::Double(-0.0),
        AnyValue::Double(1.5),
        AnyValue::Array(vec![]),
        AnyValue::KvList(vec![]),
        AnyValue::KvList(vec![
            KeyValue::new("k", 1i64),
            KeyValue::new("k", 2i64),
            KeyValue { key: "absent".into(), value: None, key_index: 0 },
            KeyValue { key: "empty".into(), value: Some(AnyValue::Empty), key_index: 0 },
            KeyValue { key: String::new(), value: Some(AnyValue::Bool(true)), key_index: -3 },
        ]),
        AnyValue::StringIndex(7),
    ])
}

pub(crate) fn full_group() -> Group {
    Group {
        resource: Some(Resource {
            attributes: vec![KeyValue::new("service.name", "bench"), KeyValue::new("service.name", 2i64)],
            dropped_attributes_count: 300,
            entity_refs: vec![EntityRef {
                schema_url: "s".into(),
                entity_type: "service".into(),
                id_keys: vec!["service.name".into()],
                description_keys: vec![String::new(), "d".into()],
            }],
        }),
        resource_schema_url: "https://example.test/resource".into(),
        scope: Some(Scope {
            name: "scope".into(),
            version: "1.2".into(),
            attributes: vec![KeyValue::new("a", true)],
            dropped_attributes_count: 1,
        }),
        scope_schema_url: "https://example.test/scope".into(),
        unknown: vec![UnknownField { tag: 10, data: vec![1, 2, 3] }],
    }
}

pub(crate) fn full_record() -> Record {
    Record {
        time_unix_nano: 1_700_000_000_000_000_001,
        observed_time_unix_nano: 1_700_000_000_000_000_002,
        severity_number: -9,
        severity_text: "odd".into(),
        body: Some(every_value()),
        attributes: vec![KeyValue::new("http.status", 200i64), KeyValue::new("all", every_value())],
        dropped_attributes_count: 4_000_000_000,
        flags: 0x8000_0001,
        trace_id: (1..=16).collect(),
        span_id: (1..=8).collect(),
        event_name: "event".into(),
        unknown: vec![UnknownField { tag: 200, data: vec![] }, UnknownField { tag: 200, data: vec![9] }],
    }
}

/// The records that PROTOCOL.md explains byte by byte.
pub(crate) fn plain_payload() -> Payload {
    let mut builder = PayloadBuilder::new(&Group::component_named("bench")).expect("fits");
    builder.push_body(1_700_000_000_000_000_000, 0, 9, Body::Text("hello")).expect("fits");
    builder.push_body(1_700_000_000_000_000_001, 0, 17, Body::Bytes(&[0xFF, 0x00])).expect("fits");
    builder.finish()
}

pub(crate) fn full_payload() -> Payload {
    let mut builder = PayloadBuilder::new(&full_group()).expect("fits");
    builder.push(&full_record()).expect("fits");
    builder.push(&Record::default()).expect("fits");
    builder.push(&Record { body: Some(AnyValue::Empty), ..Record::default() }).expect("fits");
    builder.finish()
}

pub(crate) const LOG: LogId = LogId::from_bytes([0xA1; 16]);
pub(crate) const OTHER_LOG: LogId = LogId::from_bytes([0xC3; 16]);
pub(crate) const PRODUCER: ProducerId = ProducerId::from_bytes([0xB2; 16]);

pub(crate) fn cursor() -> Cursor {
    Cursor { log_id: LOG, epoch: 3, offset: 1000 }
}

pub(crate) fn full_error() -> ErrorInfo {
    let error = ErrorInfo::new(ErrorCode::CursorAbandoned, "histories part at 1000")
        .limited_to(8_388_608)
        .parting_at(cursor())
        .retry_after_ms(250);
    ErrorInfo { expected_sequence: Some(7), record_index: Some(2), maybe_written: true, ..error }
}

pub(crate) fn welcome() -> Welcome {
    Welcome {
        version: 1,
        policy: DurabilityPolicy::GroupCommit,
        highest_ack: AckLevel::Durable,
        may_read: true,
        log_id: LOG,
        epoch: 3,
        epoch_first_offset: 900,
        producer_id: PRODUCER,
        producer_epoch: 1,
        secret: vec![0x5E; 32],
        last: Some(LastStored { sequence: 41, offset: 998, level: AckLevel::Written }),
        window: 1024,
        max_append_bytes: 8_388_608,
        max_record_bytes: 2_097_152,
        received: 1000,
        written: 999,
        durable: 990,
        earlier: vec![EpochStart { epoch: 1, first_offset: 0 }, EpochStart { epoch: 2, first_offset: 700 }],
        forwarding: Forwarding::No,
    }
}

/// One example of every frame, and a second where absence looks different. The names are those of the golden files.
pub(crate) fn frames() -> Vec<(&'static str, Frame)> {
    let hello = Hello {
        min_version: 1,
        max_version: 1,
        producer_id: ProducerId::ZERO,
        producer_epoch: 0,
        intent: Intent { append: true, read: false },
        name: "demo".into(),
        secret: vec![],
        forward: None,
    };
    let append = |payload: &Payload, gap| {
        let head = AppendHead {
            first_seq: 42,
            count: payload.count,
            level: AckLevel::Durable,
            gap,
            payload_crc: payload.checksum(),
        };
        Frame::Append(Append { head, payload: payload.bytes.clone() })
    };
    let (plain, full) = (plain_payload(), full_payload());
    let peer_meta = PeerMeta {
        transport: Some(Transport::Unix),
        pid: Some(4711),
        pid_start: Some(123_456),
        uid: Some(1000),
        gid: Some(1000),
        unknown: vec![(9, 1)],
        ..PeerMeta::default()
    };
    let records = Records {
        request_id: 7,
        head: RecordsHead {
            epoch: 3,
            count: 2,
            first_offset: 1000,
            append_time: 1_700_000_000_000_000_009,
            producer_id: PRODUCER,
            producer_epoch: 1,
            payload_crc: plain.checksum(),
            first_seq: 42,
            skip: 1,
            take: 1,
        },
        peer_meta: peer_meta.to_bytes().into(),
        payload: plain.bytes.clone(),
    };
    let read = Read {
        request_id: 7,
        from: ReadFrom::Cursor(cursor()),
        follow: true,
        limit: std::num::NonZeroU64::new(10),
        min_level: AckLevel::Written,
        since: Some(-1),
        until: Some(1_800_000_000_000_000_000),
        filter: None,
    };
    let filter = filter::Filter::new()
        .severity_at_least(Severity(13))
        .component("billing*")
        .attribute("user.id", 42)
        .trace_id([0xAB; 16])
        .producer(PRODUCER)
        .any(["timeout", "refused"].map(|text| filter::Filter::new().body_contains(text)))
        .body_matches("t[io]me", true);
    let watermark =
        Watermark { request_id: 0, epoch: 3, epoch_first_offset: 900, level: AckLevel::Durable, offset: 1002 };
    let refused = ErrorInfo { expected_sequence: Some(42), ..ErrorInfo::new(ErrorCode::SequenceGap, "expected 42") };
    let origin = Origin { log_id: OTHER_LOG, stream: StreamName::new("main").expect("a name") };
    let state = OriginState { epoch: 5, end: 77, first: 75, count: 2, payload_crc: plain.checksum(), offset: 998 };
    let mut forwarded = BytesMut::new();
    records.encode(&mut forwarded);
    let forward = Forward {
        head: ForwardHead { previous: 990, level: AckLevel::Durable, begins: true, skip: Some(SkipReason::Retention) },
        records: forwarded.freeze().split_off(limits::FRAME_HEADER_BYTES),
    };
    vec![
        ("hello", Frame::Hello(hello.clone())),
        (
            "hello_forward",
            Frame::Hello(Hello {
                max_version: 2,
                intent: Intent::default(),
                name: String::new(),
                forward: Some(origin),
                ..hello.clone()
            }),
        ),
        (
            "welcome_forward",
            Frame::Welcome(Welcome {
                version: 2,
                producer_id: ProducerId::ZERO,
                producer_epoch: 0,
                secret: vec![],
                last: None,
                earlier: vec![],
                forwarding: Forwarding::Known(state),
                ..welcome()
            }),
        ),
        (
            "welcome_forward_new",
            Frame::Welcome(Welcome {
                version: 2,
                producer_id: ProducerId::ZERO,
                producer_epoch: 0,
                secret: vec![],
                last: None,
                earlier: vec![],
                may_read: false,
                forwarding: Forwarding::Unknown,
                ..welcome()
            }),
        ),
        ("forward", Frame::Forward(forward)),
        (
            "hello_again",
            Frame::Hello(Hello {
                producer_id: PRODUCER,
                producer_epoch: 2,
                secret: vec![0x5E; 32],
                intent: Intent { append: true, read: true },
                name: String::new(),
                ..hello
            }),
        ),
        ("append", append(&plain, false)),
        ("append_full", append(&full, true)),
        ("flush", Frame::Flush(Flush { request_id: 5, level: AckLevel::Written })),
        ("ping", Frame::Ping(6)),
        ("read", Frame::Read(read.clone())),
        (
            "read_tail",
            Frame::Read(Read {
                from: ReadFrom::Tail(10),
                follow: false,
                limit: None,
                min_level: AckLevel::Durable,
                since: None,
                until: None,
                ..read.clone()
            }),
        ),
        (
            "read_filter",
            Frame::Read(Read { since: None, until: None, filter: Some(filter.to_bytes().expect("a filter")), ..read }),
        ),
        ("cancel_read", Frame::CancelRead(7)),
        ("bye", Frame::Bye),
        ("welcome", Frame::Welcome(welcome())),
        (
            "welcome_bare",
            Frame::Welcome(Welcome { secret: vec![], last: None, may_read: false, earlier: vec![], ..welcome() }),
        ),
        (
            "accepted",
            Frame::Accepted(Accepted { first_seq: 42, first_offset: 1000, count: 2, epoch: 3, duplicate: false }),
        ),
        (
            "accepted_again",
            Frame::Accepted(Accepted { first_seq: 42, first_offset: 1000, count: 2, epoch: 3, duplicate: true }),
        ),
        ("watermark", Frame::Watermark(watermark)),
        ("refused", Frame::Refused(Refused { first_seq: 44, count: 2, error: refused })),
        ("error", Frame::Error(ErrorFrame { request_id: 7, error: full_error() })),
        ("pong", Frame::Pong(6)),
        ("records", Frame::Records(records)),
        ("gap", Frame::Gap(Gap { request_id: 7, from: 10, to: 20, epoch: 3, reason: GapReason::Retention })),
        ("caught_up", Frame::CaughtUp(CaughtUp { request_id: 7, cursor: cursor() })),
        ("progress", Frame::Progress(Progress { request_id: 7, cursor: cursor() })),
        (
            "commit_cursor",
            Frame::CommitCursor(CommitCursor {
                request_id: 7,
                name: "to-kafka".to_owned(),
                place: Some(cursor()),
                hold: true,
                note: Bytes::from_static(b"topic 5"),
            }),
        ),
        (
            "remove_cursor",
            Frame::CommitCursor(CommitCursor {
                request_id: 7,
                name: "to-kafka".to_owned(),
                place: None,
                hold: false,
                note: Bytes::new(),
            }),
        ),
        ("get_cursor", Frame::GetCursor(GetCursor { request_id: 7, name: "to-kafka".to_owned() })),
        (
            "cursor",
            Frame::Cursor(CursorState {
                request_id: 7,
                named: Some(NamedCursor {
                    place: cursor(),
                    hold: true,
                    lost: true,
                    committed_ns: 0x0102_0304_0506_0708,
                    unread_from: 900,
                    note: Bytes::from_static(b"topic 5"),
                }),
            }),
        ),
        ("no_cursor", Frame::Cursor(CursorState { request_id: 7, named: None })),
        (
            "ring",
            Frame::Ring(RingWanted {
                request_id: 7,
                known: Some(RingId::from_bytes([0x5A; 16])),
                clock_ns: 0x0102_0304_0506_0708,
                bytes: 1 << 20,
            }),
        ),
        (
            "ring_given",
            Frame::RingGiven(RingGiven {
                request_id: 7,
                id: RingId::from_bytes([0x5A; 16]),
                known: false,
                stored: true,
                bytes: 1 << 20,
                max_payload_bytes: 1 << 18,
            }),
        ),
        ("read_end", Frame::ReadEnd(ReadEnd { request_id: 7, cursor: cursor(), reason: ReadEndReason::Limit })),
    ]
}
