//! The record encoding: nothing is lost, there is one form, nothing panics, sizes are what is promised.

mod support;

use clad_proto::*;
use proptest::prelude::*;
use support::*;

fn build(group: &Group, records: &[Record]) -> Payload {
    let mut builder = PayloadBuilder::new(group).expect("the group fits");
    for record in records {
        builder.push(record).expect("the record fits");
    }
    builder.finish()
}

fn rebuild(view: &PayloadView<'_>) -> Payload {
    build(&view.group().to_owned(), &view.records().map(|record| record.to_owned()).collect::<Vec<_>>())
}

/// Whatever parses is in the one form: owning it and encoding it again gives the same bytes.
fn check_one_form(bytes: &[u8], count: u32) {
    let scanned = scan(bytes, count, limits::MAX_RECORD_BYTES);
    match PayloadView::parse(bytes, count) {
        Ok(view) => {
            assert!(scanned.is_ok());
            assert_eq!(view.records().count(), count as usize);
            assert_eq!(rebuild(&view).bytes, bytes);
        }
        Err(error) => assert_eq!(scanned, Err(error)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn nothing_is_lost(group in group(), records in proptest::collection::vec(record(), 1..5)) {
        let payload = build(&group, &records);
        let view = PayloadView::parse(&payload.bytes, payload.count).expect("what was built parses");
        prop_assert_eq!(view.group().to_owned(), group.clone());
        prop_assert_eq!(view.group().component(), group.component());
        let back: Vec<Record> = view.records().map(|record| record.to_owned()).collect();
        prop_assert_eq!(back, records);
        prop_assert_eq!(first_record(&payload.bytes), view.records().next());
        prop_assert_eq!(rebuild(&view), payload);
    }

    #[test]
    fn borrowed_values_write_as_owned_ones(value in value()) {
        let record = Record { body: Some(value.clone()), attributes: vec![KeyValue::new("v", value)], ..Record::default() };
        let payload = build(&Group::default(), &[record]);
        let view = PayloadView::parse(&payload.bytes, 1).expect("parses").records().next().expect("one");
        let mut builder = PayloadBuilder::new(&Group::default()).expect("fits");
        let mut writer = builder.record_with(RecordHead::default(), |writer| writer.view(view.body().expect("a body")));
        writer.attributes(|pairs| pairs.entry("v").view(view.attributes().get("v").expect("there")));
        writer.commit().expect("fits");
        prop_assert_eq!(builder.finish(), payload);
    }

    #[test]
    fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), count in 0u32..5) {
        check_one_form(&bytes, count);
        let _ = parse_group(&bytes);
        let _ = RecordView::parse(&bytes);
        let _ = first_record(&bytes);
    }

    #[test]
    fn bytes_that_look_right_never_panic(
        kind: u8,
        body in proptest::collection::vec(any::<u8>(), 0..60),
        fields in proptest::collection::vec((0u8..12, proptest::collection::vec(any::<u8>(), 0..20)), 0..4),
    ) {
        // Headers and lengths are right, so the checks behind them are reached.
        let mut tagged = Vec::new();
        for (tag, content) in fields {
            tagged.extend([tag, content.len() as u8]);
            tagged.extend(content);
        }
        let mut record = vec![0; 32];
        record.extend(&body);
        record.extend(&tagged);
        let len = record.len() as u32;
        record[..4].copy_from_slice(&len.to_le_bytes());
        record[5] = kind % 12;
        record[28..32].copy_from_slice(&(body.len() as u32).to_le_bytes());
        check_one_form(&[&[4, 0, 0, 0][..], &record].concat(), 1);
        let group = [&(tagged.len() as u32 + 4).to_le_bytes()[..], &tagged].concat();
        check_one_form(&[&group[..], &[32], &[0; 31]].concat(), 1);
    }

    #[test]
    fn flips_never_panic(group in group(), record in record(), at: prop::sample::Index, bit in 0u8..8) {
        let payload = build(&group, &[record]);
        let mut bytes = payload.bytes.to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        check_one_form(&bytes, 1);
    }
}

#[test]
fn every_flip_and_every_truncation_of_a_full_payload() {
    let payload = full_payload();
    for at in 0..payload.bytes.len() {
        assert!(PayloadView::parse(&payload.bytes[..at], payload.count).is_err(), "cut at {at}");
        for bit in 0..8 {
            let mut bytes = payload.bytes.to_vec();
            bytes[at] ^= 1 << bit;
            check_one_form(&bytes, payload.count);
        }
    }
}

#[test]
fn every_construct_of_a_record_comes_back() {
    let payload = full_payload();
    let view = PayloadView::parse(&payload.bytes, payload.count).expect("parses");
    assert_eq!(view.group().to_owned(), full_group());
    let records: Vec<Record> = view.records().map(|record| record.to_owned()).collect();
    assert_eq!(records[0], full_record());
    assert_eq!(records[1].body, None);
    assert_eq!(records[2].body, Some(AnyValue::Empty));
}

#[test]
fn absent_and_empty_are_two_things() {
    let groups = [
        Group::default(),
        Group { resource: Some(Resource::default()), ..Group::default() },
        Group { scope: Some(Scope::default()), ..Group::default() },
        Group { resource: Some(Resource::default()), scope: Some(Scope::default()), ..Group::default() },
    ];
    let payloads: Vec<Payload> = groups.iter().map(|group| build(group, &[Record::default()])).collect();
    for (group, payload) in groups.iter().zip(&payloads) {
        assert_eq!(&parse_group(&payload.bytes).expect("parses").to_owned(), group);
        assert_eq!(payloads.iter().filter(|other| *other == payload).count(), 1);
    }
}

#[test]
fn sizes_are_what_is_promised() {
    let group = PayloadBuilder::new(&Group::component_named("bench")).expect("fits").len();
    assert!(group <= 30, "a group of a component takes {group} bytes");
    let mut builder = PayloadBuilder::new(&Group::component_named("bench")).expect("fits");
    builder.push_body(1, 2, 9, Body::Text(&"x".repeat(200))).expect("fits");
    assert_eq!(builder.len() - group, 232);
    builder.push(&Record::text(1, 9, "x".repeat(200))).expect("fits");
    assert_eq!(builder.len() - group, 2 * 232, "the plain way and the fast way give the same size");
}

#[test]
fn the_fast_way_writes_the_same_bytes() {
    for severity in [0, 9, 255, 256, -1] {
        for body in [Body::Text("hello"), Body::Bytes(b"\xFF"), Body::Empty, Body::Absent] {
            let mut fast = PayloadBuilder::new(&Group::default()).expect("fits");
            fast.push_body(1, 2, severity, body).expect("fits");
            let owned = match body {
                Body::Text(text) => Some(AnyValue::from(text)),
                Body::Bytes(bytes) => Some(AnyValue::from(bytes)),
                Body::Empty => Some(AnyValue::Empty),
                _ => None,
            };
            let record = Record {
                time_unix_nano: 1,
                observed_time_unix_nano: 2,
                severity_number: severity,
                body: owned,
                ..Record::default()
            };
            assert_eq!(fast.finish(), build(&Group::default(), &[record]));
        }
    }
}

#[test]
fn a_record_that_does_not_go_in_changes_nothing() {
    let mut builder = PayloadBuilder::with_limits(&Group::default(), 4 + 100, 90).expect("fits");
    builder.push_body(0, 0, 0, Body::Text("12345")).expect("fits");
    let before = builder.as_bytes().to_vec();
    let long = "x".repeat(60);
    let too_large = Err(EncodeError::RecordTooLarge { len: 92, max: 90 });
    assert_eq!(builder.push_body(0, 0, 0, Body::Text(&long)), too_large);
    assert_eq!(builder.push(&Record::text(0, 0, &*long)), too_large);
    let full = Err(EncodeError::AppendFull { len: 4 + 37 + 82, records: 2, max: 104 });
    assert_eq!(builder.push_body(0, 0, 0, Body::Text(&long[..50])), full);
    assert_eq!(builder.push(&Record::text(0, 0, &long[..50])), full);
    drop(builder.record(RecordHead::default(), Body::Text("not committed")));
    let mut writer = builder.record(RecordHead::default(), Body::Absent);
    writer.event_name("x").severity_text("before it");
    assert_eq!(writer.commit(), Err(EncodeError::FieldOrder(2)));
    let mut writer = builder.record(RecordHead::default(), Body::Absent);
    writer.unknown(&UnknownField { tag: 7, data: vec![] });
    assert_eq!(writer.commit(), Err(EncodeError::FieldOrder(7)));
    assert_eq!(builder.as_bytes(), before);
    assert_eq!((builder.count(), builder.len()), (1, before.len()));
    assert_eq!(builder.finish().bytes, before);
    assert!(builder.is_empty());
    assert_eq!(builder.len(), 4, "the group is there again");
}

fn nested(depth: usize) -> AnyValue {
    (0..depth).fold(AnyValue::Int(1), |value, _| AnyValue::KvList(vec![KeyValue::new("k", value)]))
}

#[test]
fn nesting_is_bounded() {
    let deepest = Record { body: Some(nested(limits::MAX_NESTING_DEPTH)), ..Record::default() };
    let payload = build(&Group::default(), std::slice::from_ref(&deepest));
    let view = PayloadView::parse(&payload.bytes, 1).expect("parses");
    assert_eq!(view.records().next().map(|record| record.to_owned()), Some(deepest));

    let mut builder = PayloadBuilder::new(&Group::default()).expect("fits");
    let too_deep = nested(limits::MAX_NESTING_DEPTH + 1);
    let body = Record { body: Some(too_deep.clone()), ..Record::default() };
    let attribute = Record { attributes: vec![KeyValue::new("k", too_deep)], ..Record::default() };
    assert_eq!(builder.push(&body), Err(EncodeError::TooDeep));
    assert_eq!(builder.push(&attribute), Err(EncodeError::TooDeep));

    // The decoder counts as the encoder does, and stops long before a stack would.
    assert_eq!(RecordView::parse(&arrays(limits::MAX_NESTING_DEPTH)).map(|_| ()), Ok(()));
    assert_eq!(RecordView::parse(&arrays(limits::MAX_NESTING_DEPTH + 1)), Err(Fault::TooDeep));
    assert_eq!(RecordView::parse(&arrays(5_000)), Err(Fault::TooDeep));
}

fn record_bytes(kind: u8, body: &[u8], fields: &[u8]) -> Vec<u8> {
    let mut record = vec![0; 32];
    record[..4].copy_from_slice(&(32 + body.len() as u32 + fields.len() as u32).to_le_bytes());
    record[5] = kind;
    record[28..32].copy_from_slice(&(body.len() as u32).to_le_bytes());
    record.extend(body);
    record.extend(fields);
    record
}

/// A record whose body is this many arrays in each other, by hand.
fn arrays(depth: usize) -> Vec<u8> {
    let mut value = vec![];
    for _ in 1..depth {
        let (mut len, mut outer) = (value.len(), vec![8]);
        while len >= 0x80 {
            outer.push(len as u8 | 0x80);
            len >>= 7;
        }
        outer.push(len as u8);
        outer.extend(&value);
        value = outer;
    }
    record_bytes(8, &value, &[])
}

#[test]
fn forms_that_mean_what_a_shorter_one_means_are_refused() {
    let attributes = |pair: &[u8]| record_bytes(0, &[], &[&[3, pair.len() as u8], pair].concat());
    assert!(RecordView::parse(&attributes(&[1, b'k', 11, 2, 1])).is_ok(), "key index 1");
    assert_eq!(RecordView::parse(&attributes(&[1, b'k', 11, 0, 1])), Err(Fault::Number("a key")), "key index 0");
    assert_eq!(RecordView::parse(&attributes(&[1, b'k', 6, 0x80, 0])), Err(Fault::Number("a value")));
    assert_eq!(RecordView::parse(&record_bytes(0, &[], &[3, 0])), Err(Fault::DefaultField(3)), "no attributes");
    assert_eq!(RecordView::parse(&record_bytes(0, &[], &[4, 1, 0])), Err(Fault::DefaultField(4)), "none dropped");
    assert_eq!(RecordView::parse(&record_bytes(0, &[], &[1, 4, 9, 0, 0, 0])), Err(Fault::DefaultField(1)));
    assert_eq!(RecordView::parse(&record_bytes(0, &[], &[0, 1, 0])), Err(Fault::FieldOrder(0)), "no tag is 0");
    assert_eq!(RecordView::parse(&record_bytes(0, &[1], &[])), Err(Fault::LeftOver("the body")));
    assert_eq!(RecordView::parse(&record_bytes(4, &[1], &[])), Err(Fault::LeftOver("the body")));
    assert_eq!(RecordView::parse(&record_bytes(11, &[2], &[])), Err(Fault::UnknownKind(11)), "not a value");
}

#[test]
fn errors_name_the_record() {
    let mut builder = PayloadBuilder::new(&Group::default()).expect("fits");
    for _ in 0..3 {
        builder.push_body(5, 0, 0, Body::Text("abcd")).expect("fits");
    }
    let good = builder.finish();
    let third = 4 + 2 * 36;
    let with = |at: usize, byte: u8| {
        let mut bytes = good.bytes.to_vec();
        bytes[at] = byte;
        scan(&bytes, 3, 1000)
    };
    let record = |index, fault| Err(PayloadError::Record { index, fault });
    assert_eq!(with(third + 32, 0xFF), record(2, Fault::NotUtf8("the body")));
    assert_eq!(with(third + 6, 1), record(2, Fault::ReservedBits));
    assert_eq!(with(third + 5, 99), record(2, Fault::UnknownKind(99)));
    assert_eq!(with(third, 31), record(2, Fault::TooShort(31)));
    assert_eq!(with(third + 3, 1), record(2, Fault::TooLarge { len: 0x0100_0024, max: 1000 }));
    assert_eq!(with(third + 28, 5), record(2, Fault::Truncated("the body")));
    assert_eq!(scan(&good.bytes, 3, 35), record(0, Fault::TooLarge { len: 36, max: 35 }));
    assert_eq!(scan(&good.bytes, 4, 1000), record(3, Fault::Truncated("the header of a record")));
    assert_eq!(scan(&good.bytes, 2, 1000), Err(PayloadError::LeftOver { count: 2, bytes: 36 }));
    assert_eq!(scan(&good.bytes, 0, 1000), Err(PayloadError::Empty));
    assert!(matches!(scan(&good.bytes, u32::MAX, 1000), Err(PayloadError::TooManyRecords { .. })));
    let info = ErrorInfo::from(scan(&good.bytes, 3, 35).expect_err("too large"));
    assert_eq!((info.code, info.record_index, info.limit), (ErrorCode::RecordTooLarge, Some(0), Some(35)));
    assert!(!info.retryable && !info.maybe_written);
}

#[test]
fn times_fall_back() {
    let payload = |times: &[(u64, u64)]| {
        let mut builder = PayloadBuilder::new(&Group::default()).expect("fits");
        for &(time, observed) in times {
            builder.push_body(time, observed, 0, Body::Absent).expect("fits");
        }
        let payload = builder.finish();
        scan(&payload.bytes, payload.count, 1000).expect("good")
    };
    let range = |min, max| TimeRange { min, max };
    assert_eq!(payload(&[(5, 9), (3, 0)]).times_or(100), range(3, 5));
    assert_eq!(payload(&[(0, 9), (3, 0)]).times_or(100), range(3, 9));
    assert_eq!(payload(&[(0, 0), (3, 0)]), Scan { times: Some(range(3, 3)), untimed: 1 });
    assert_eq!(payload(&[(0, 0), (3, 0)]).times_or(100), range(3, 100));
    assert_eq!(payload(&[(0, 0)]), Scan { times: None, untimed: 1 });
    assert_eq!(payload(&[(0, 0)]).times_or(100), range(100, 100));
}
