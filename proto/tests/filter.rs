//! Filters: what matches, how they are encoded, and what is refused.
#![cfg(feature = "regex")]

use bytes::BytesMut;
use clad_proto::filter::{Filter, FilterError, Matcher};
use clad_proto::frame::*;
use clad_proto::limits::*;
use clad_proto::*;
use proptest::prelude::*;

const PRODUCER: ProducerId = ProducerId::from_bytes([3; 16]);
/// Memory of an expression, as a client gives it.
const PLENTY: usize = 10 << 20;

fn matches(filter: &Filter, component: Option<&str>, record: &Record) -> bool {
    let group = component.map_or_else(Group::default, Group::component_named);
    let mut builder = PayloadBuilder::new(&group).expect("a group");
    builder.push(record).expect("a record");
    let payload = builder.finish();
    let view = PayloadView::parse(&payload.bytes, 1).expect("it was built");
    let of = |filter: &Filter| {
        let matcher = Matcher::new(filter, PLENTY).expect("a filter");
        matcher.records(PRODUCER, &view).collect::<Vec<_>>()
    };
    let here = of(filter);
    assert_eq!(here, of(&Filter::from_bytes(&filter.to_bytes().expect("short")).expect("its bytes")), "as the daemon");
    here[0]
}

fn with(change: impl FnOnce(&mut Record)) -> Record {
    let mut record = Record::text(1, 9, "the body");
    change(&mut record);
    record
}

#[test]
fn severities() {
    let least = Filter::new().severity_at_least(Severity(9));
    let range = Filter::new().severity_within(Severity(-5), Severity(12));
    for (number, at_least, within) in [
        (-3, false, false),
        (0, false, false),
        (8, false, true),
        (9, true, true),
        (12, true, true),
        (13, true, false),
        (300, true, false),
    ] {
        let record = with(|r| r.severity_number = number);
        assert_eq!((matches(&least, None, &record), matches(&range, None, &record)), (at_least, within), "{number}");
    }
    assert!(!matches(&Filter::new().severity_within(Severity(9), Severity(5)), None, &with(|_| {})));
}

#[test]
fn components() {
    let record = with(|_| {});
    for (wanted, is, yes) in [
        ("billing", Some("billing"), true),
        ("billing", Some("billing2"), false),
        ("billing*", Some("billing"), true),
        ("billing*", Some("billing-api"), true),
        ("billing*", Some("bill"), false),
        ("*", Some(""), true),
        ("*", None, false),
        ("", Some(""), true),
        ("", None, false),
    ] {
        assert_eq!(matches(&Filter::new().component(wanted), is, &record), yes, "{wanted} {is:?}");
    }
    assert!(matches(&Filter::new().component_named("a*"), Some("a*"), &record));
    assert!(!matches(&Filter::new().component_named("a*"), Some("ab"), &record));
}

#[test]
fn attributes_are_equal_in_kind_and_every_bit() {
    let values: Vec<AnyValue> = vec![
        AnyValue::Empty,
        "1".into(),
        AnyValue::Bytes(b"1".to_vec()),
        true.into(),
        false.into(),
        1.into(),
        (-1).into(),
        1.0.into(),
        0.0.into(),
        (-0.0).into(),
        f64::NAN.into(),
        AnyValue::StringIndex(1),
    ];
    for (a, one) in values.iter().enumerate() {
        for (b, other) in values.iter().enumerate() {
            let pair = KeyValue { key: "k".into(), value: Some(one.clone()), key_index: 7 };
            let record = with(|r| r.attributes = vec![KeyValue::new("j", other.clone()), pair]);
            assert_eq!(
                matches(&Filter::new().attribute("k", other.clone()), None, &record),
                a == b,
                "{one:?} {other:?}"
            );
        }
    }
    let twice = with(|r| {
        r.attributes =
            vec![KeyValue::new("k", 1), KeyValue { value: None, ..KeyValue::new("k", 0) }, KeyValue::new("k", 2)]
    });
    assert!(matches(&Filter::new().attribute("k", 2).attribute("k", 1), None, &twice));
    assert!(!matches(&Filter::new().attribute("k", 3), None, &twice));
    let list = Filter::new().attribute("k", AnyValue::Array(Vec::new())).component("x");
    assert_eq!(
        (list.to_bytes().unwrap_err(), Matcher::new(&list, PLENTY).unwrap_err()),
        (FilterError::List, FilterError::List)
    );
}

#[test]
fn bodies() {
    let body = |value| with(|r| r.body = value);
    let bytes = |bytes: &[u8]| body(Some(AnyValue::Bytes(bytes.to_vec())));
    let list = body(Some(AnyValue::Array(vec!["needle".into()])));
    let text = Filter::new().body_contains("needle");
    let pattern = Filter::new().body_matches("n..dle$", true);
    for (record, contains, finds) in [
        (body(Some("a needle".into())), true, true),
        (body(Some("a NEEDLE".into())), false, true),
        (body(Some("needles".into())), true, false),
        (bytes(b"\xff\xc3needle\xff"), true, false),
        (bytes(b"nee\xffdle"), false, false),
        (list, true, true), // the reader's to look at
        (body(Some(7.into())), true, true),
        (body(None), false, false),
    ] {
        let got = (matches(&text, None, &record), matches(&pattern, None, &record));
        assert_eq!(got, (contains, finds), "{:?}", record.body);
    }
    let error = |filter: Filter, most| Matcher::new(&filter, most).map(drop).unwrap_err();
    assert!(matches!(error(Filter::new().body_matches("(", false), PLENTY), FilterError::Expression(_)));
    let large = Filter::new().body_matches(r"\w{50}", false);
    assert!(matches!(error(large.clone(), MAX_FILTER_EXPRESSION_BYTES), FilterError::Expression(_)));
    assert!(Matcher::new(&large, PLENTY).is_ok());
    for usual in [r"time(d )?out after \d+ ms", "(?i)fail(ed|ure)|refused", r"^\S+ \[error\]", r"user=[a-z0-9_-]+\b"] {
        let fits = Matcher::new(&Filter::new().body_matches(usual, true), MAX_FILTER_EXPRESSION_BYTES);
        assert!(fits.is_ok(), "{usual}: {fits:?}");
    }
    let two = Filter::new().body_matches("a", false).any([Filter::new().body_matches("b", false)]);
    assert_eq!(two.to_bytes(), Err(FilterError::TooManyExpressions));
    for empty in [Filter::new().body_contains(""), Filter::new().trace_id([]), Filter::new().any([])] {
        assert!(matches!(Matcher::new(&empty, PLENTY), Err(FilterError::Malformed(_))));
        assert!(matches!(Filter::from_bytes(&empty.to_bytes().expect("short")), Err(FilterError::Malformed(_))));
    }
}

#[test]
fn ids_and_alternatives() {
    let record = with(|r| r.trace_id = vec![5; 16]);
    assert!(matches(&Filter::new().trace_id([5; 16]).producer(PRODUCER), Some("a"), &record));
    assert!(!matches(&Filter::new().trace_id([5; 15]), None, &record));
    assert!(!matches(&Filter::new().producer(ProducerId::from_bytes([4; 16])), None, &record));
    let either = |severity| {
        let loud = Filter::new().severity_at_least(Severity(severity)).component("a");
        Filter::new().trace_id([5; 16]).any([loud, Filter::new().component("b")])
    };
    assert!(matches(&either(9), Some("a"), &record) && matches(&either(17), Some("b"), &record));
    assert!(!matches(&either(17), Some("a"), &record) && !matches(&either(9), Some("c"), &record));
    assert!(!matches(&either(9).component("a").component("b"), Some("a"), &record), "conflicting: none");
    assert!(matches(&Filter::new(), None, &record), "no condition: every one");
}

#[test]
fn limits() {
    let mut nested = Filter::new();
    for depth in 0..10_000 {
        nested = Filter::new().any([nested]);
        let fits = depth < MAX_FILTER_DEPTH;
        if depth < 2 * MAX_FILTER_DEPTH {
            assert_eq!(nested.to_bytes().is_ok(), fits, "{depth}");
        }
    }
    assert_eq!(nested.to_bytes(), Err(FilterError::TooDeep));
    // The same from a peer, who keeps to no builder.
    let mut bytes = vec![];
    for depth in 1..600 {
        let (mut inner, mut outer) = (BytesMut::new(), vec![8]);
        inner.extend(leb(bytes.len()));
        inner.extend(&bytes);
        outer.extend(leb(inner.len()));
        outer.extend(&inner);
        bytes = outer;
        let expected = if depth <= MAX_FILTER_DEPTH { Ok(()) } else { Err(FilterError::TooDeep) };
        assert_eq!(Filter::from_bytes(&bytes).map(drop), expected, "{depth}");
    }
    let many = |count| (0..count).fold(Filter::new(), |filter, _| filter.component("a"));
    assert!(many(MAX_FILTER_CONDITIONS).to_bytes().is_ok());
    assert_eq!(many(MAX_FILTER_CONDITIONS + 1).to_bytes(), Err(FilterError::TooManyConditions));
    let raw: Vec<u8> = (0..=MAX_FILTER_CONDITIONS).flat_map(|_| [2, 1, 1]).collect();
    assert_eq!(Filter::from_bytes(&raw), Err(FilterError::TooManyConditions));
    let long = |len| Filter::new().body_contains("x".repeat(len));
    assert!(long(MAX_FILTER_BYTES - 3).to_bytes().is_ok());
    assert_eq!(long(MAX_FILTER_BYTES - 2).to_bytes(), Err(FilterError::TooLong(MAX_FILTER_BYTES + 1)));
    assert!(Matcher::new(&long(MAX_FILTER_BYTES), PLENTY).is_ok(), "a client alone may");
    assert_eq!(Filter::from_bytes(&vec![0; 1 << 20]), Err(FilterError::TooLong(1 << 20)));
    assert_eq!(Filter::from_bytes(&[99, 0]), Err(FilterError::UnknownKind(99)));
}

fn leb(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Time is linear in the length of a body: an expression of which others make an hour ends.
#[test]
fn no_expression_and_no_text_takes_long() {
    let body = with(|r| r.body = Some("a".repeat(1 << 20).into()));
    for pattern in ["(a*)*b", "(a|aa)+$b", "a*a*a*a*a*a*b", "(?:a?){60}b"] {
        assert!(!matches(&Filter::new().body_matches(pattern, false), None, &body), "{pattern}");
    }
    assert!(!matches(&Filter::new().body_contains(format!("{}b", "a".repeat(3000))), None, &body));
}

fn filters() -> impl Strategy<Value = Filter> {
    let one = prop_oneof![
        any::<(i32, i32)>().prop_map(|(a, b)| Filter::new().severity_within(Severity(a), Severity(b))),
        "[a-z*]{0,6}".prop_map(|name| Filter::new().component(&name)),
        ("[a-z]{0,3}", any::<i64>()).prop_map(|(key, value)| Filter::new().attribute(key, value)),
        ("[a-z]{0,3}", any::<f64>()).prop_map(|(key, value)| Filter::new().attribute(key, value)),
        ("[a-z]{0,3}", "\\PC{0,5}").prop_map(|(key, value)| Filter::new().attribute(key, value.as_str())),
        "\\PC{1,5}".prop_map(|text| Filter::new().body_contains(text)),
        proptest::collection::vec(any::<u8>(), 1..20).prop_map(|id| Filter::new().trace_id(id)),
        any::<[u8; 16]>().prop_map(|id| Filter::new().producer(ProducerId::from_bytes(id))),
    ];
    one.prop_recursive(3, 20, 4, |inner| {
        (inner.clone(), proptest::collection::vec(inner, 1..4)).prop_map(|(filter, others)| filter.any(others))
    })
}

proptest! {
    #[test]
    fn there_and_back(filter in filters()) {
        let bytes = filter.to_bytes().expect("within the limits");
        let back = Filter::from_bytes(&bytes).expect("its bytes");
        prop_assert_eq!(back.to_bytes().expect("within the limits"), &bytes);
        prop_assert_eq!(back, filter);
    }

    /// Any bytes are a filter or an error; damaged ones of a filter likewise.
    #[test]
    fn any_bytes(filter in filters(), at: prop::sample::Index, to: u8, other in proptest::collection::vec(any::<u8>(), 0..60)) {
        let mut bytes = filter.to_bytes().expect("within the limits").to_vec();
        let at = at.index(bytes.len());
        bytes[at] = to;
        for bytes in [bytes, other] {
            if let Ok(filter) = Filter::from_bytes(&bytes) {
                let again = filter.to_bytes().expect("within the limits");
                prop_assert_eq!(Filter::from_bytes(&again), Ok(filter));
            }
        }
    }
}

/// A READ without a filter has the bytes that it always had: no tag stands there.
#[test]
fn who_does_not_ask_sends_what_was_always_sent() {
    let read = Read {
        request_id: 7,
        from: ReadFrom::Offset(0),
        follow: false,
        limit: None,
        min_level: AckLevel::Written,
        since: None,
        until: None,
        filter: None,
    };
    let mut bytes = BytesMut::new();
    read.encode(&mut bytes);
    assert_eq!(bytes.len(), 16 + 56 + 4);
}
