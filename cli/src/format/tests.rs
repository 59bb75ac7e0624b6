//! Golden texts of one full record, one bare record, and bodies that are meant to do harm.

use std::collections::BTreeSet;

use clad_proto::frame::{PeerMeta, Transport};
use clad_proto::{AnyValue, Group, KeyValue, LogId, PayloadBuilder, PayloadView, ProducerId, Record, Scope};
use jiff::tz::TimeZone;

use super::{Entry, Format, Renderer};

const TIME: u64 = 1_767_261_600_123_456_789; // 2026-01-01 10:00:00.123456789 UTC

fn rendered(format: Format, colour: bool, group: &Group, record: &Record, peer_meta: &PeerMeta) -> String {
    let mut builder = PayloadBuilder::new(group).expect("a small group");
    builder.push(record).expect("a small record");
    let payload = builder.finish();
    let view = PayloadView::parse(&payload.bytes, payload.count).expect("what was built parses");
    let entry = Entry {
        log_id: LogId::from_bytes([0xAB; 16]),
        epoch: 3,
        offset: 41,
        append_time: TIME + 1_000_000_000,
        producer_id: ProducerId::from_bytes([0xCD; 16]),
        producer_epoch: 1,
        sequence: 7,
        place: 0,
        peer_meta,
        group: view.group(),
        record: view.records().next().expect("one record"),
    };
    let mut out = Vec::new();
    Renderer::new(format, TimeZone::UTC, colour).render(&entry, &mut out);
    String::from_utf8(out).expect("these bodies are UTF-8")
}

fn full() -> (Group, Record, PeerMeta) {
    let mut group = Group::component_named("web");
    group.scope = Some(Scope { name: "http".into(), version: "1.2".into(), ..Scope::default() });
    let record = Record {
        observed_time_unix_nano: TIME + 5,
        attributes: vec![
            KeyValue::new("path", "/a\u{1b}[2J"),
            KeyValue::new("path", 2i64),
            KeyValue::new("ratio", 0.5),
            KeyValue::new("raw", vec![0xFFu8, 0]),
            KeyValue { key: "none".into(), ..KeyValue::default() },
            KeyValue::new("list", vec![AnyValue::Bool(true), AnyValue::Empty, AnyValue::Double(f64::NAN)]),
        ],
        severity_text: "Warnung".into(),
        trace_id: vec![0x11; 16],
        span_id: vec![0x22; 8],
        flags: 1,
        event_name: "request".into(),
        dropped_attributes_count: 2,
        ..Record::text(TIME, 13, "slow \"reply\"\nsecond line")
    };
    let peer_meta = PeerMeta {
        transport: Some(Transport::Unix),
        pid: Some(4711),
        pid_start: Some(99),
        uid: Some(1000),
        gid: Some(100),
        ..PeerMeta::default()
    };
    (group, record, peer_meta)
}

fn bare(body: Option<AnyValue>) -> (Group, Record, PeerMeta) {
    (Group::default(), Record { body, ..Record::default() }, PeerMeta::default())
}

#[test]
fn short() {
    let (group, record, peer_meta) = full();
    let plain = rendered(Format::Short, false, &group, &record, &peer_meta);
    assert_eq!(plain, "Jan 01 10:00:00.123 web[4711]: WARN slow \"reply\"\\nsecond line\n");
    let painted = rendered(Format::Short, true, &group, &record, &peer_meta);
    assert_eq!(painted, "Jan 01 10:00:00.123 web[4711]: \x1b[1;33mWARN slow \"reply\"\\nsecond line\x1b[0m\n");
    let (group, record, peer_meta) = bare(None);
    let plain = rendered(Format::Short, true, &group, &record, &peer_meta);
    assert_eq!(plain, "Jan 01 10:00:01.123 -: - \n", "the append's time; nothing to paint");
}

#[test]
fn json() {
    let (group, record, peer_meta) = full();
    let golden = concat!(
        r#"{"offset":41,"epoch":3,"time":"2026-01-01T10:00:00.123456789Z","#,
        r#""observed_time":"2026-01-01T10:00:00.123456794Z","append_time":"2026-01-01T10:00:01.123456789Z","#,
        r#""severity":"WARN","severity_number":13,"severity_text":"Warnung","component":"web","#,
        r#""body":"slow \"reply\"\nsecond line","#,
        r#""attributes":{"path":"/a\u001b[2J","path":2,"ratio":0.5,"raw":{"base64":"/wA="},"none":null,"#,
        r#""list":[true,null,"NaN"]},"dropped_attributes_count":2,"#,
        r#""trace_id":"11111111111111111111111111111111","span_id":"2222222222222222","flags":1,"#,
        r#""event_name":"request","resource":{"service.name":"web"},"scope":{"name":"http","version":"1.2"},"#,
        r#""peer_meta":{"transport":"unix","uid":1000,"gid":100,"pid":4711,"pid_start_ticks":99},"#,
        r#""producer_id":"cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd","producer_epoch":1,"sequence":7,"#,
        r#""cursor":"abababababababababababababababab:3:42"}"#,
        "\n"
    );
    assert_eq!(rendered(Format::Json, true, &group, &record, &peer_meta), golden);
    serde_json::from_str::<serde_json::Value>(golden).expect("it is JSON");
}

/// Programs are written from the table in the manual: it names what we write, and nothing else.
#[test]
fn json_has_the_fields_that_the_manual_names() {
    let manual = include_str!("../../../docs/REFERENCE.md");
    let table = manual.split("<!-- record fields -->").nth(1).expect("the table");
    let table = table.split("<!-- end of record fields -->").next().expect("its end");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let named: BTreeSet<&str> = rows.flat_map(|row| row.split(", ")).map(|name| name.trim_matches('`')).collect();

    let (mut group, mut record, peer_meta) = full();
    if let Some(resource) = &mut group.resource {
        resource.dropped_attributes_count = 1;
    }
    group.resource_schema_url = "https://a.example".into();
    group.scope_schema_url = "https://b.example".into();
    let with_text = rendered(Format::Json, false, &group, &record, &peer_meta);
    record.body = Some(AnyValue::Bytes(vec![0xFF]));
    let with_bytes = rendered(Format::Json, false, &group, &record, &peer_meta);
    let objects = [with_text, with_bytes].map(|line| serde_json::from_str::<serde_json::Value>(&line).expect("JSON"));
    let written: BTreeSet<&str> =
        objects.iter().flat_map(|object| object.as_object().expect("an object").keys()).map(String::as_str).collect();
    assert_eq!(written, named);

    // Those that it says are always there, in the barest record.
    let (group, record, peer_meta) = bare(None);
    let line = rendered(Format::Json, false, &group, &record, &peer_meta);
    let least = serde_json::from_str::<serde_json::Value>(&line).expect("JSON");
    let rows = table.lines().filter(|line| line.contains("| always")).filter_map(|line| line.strip_prefix("| `"));
    let always: BTreeSet<&str> = rows
        .filter_map(|row| row.split(" |").next())
        .flat_map(|row| row.split(", "))
        .map(|name| name.trim_matches('`'))
        .collect();
    assert_eq!(least.as_object().expect("an object").keys().map(String::as_str).collect::<BTreeSet<_>>(), always);
}

#[test]
fn json_bodies() {
    for (body, golden) in [
        (None, r#""body":null"#),
        (Some(AnyValue::Empty), r#""body":null"#),
        (Some(AnyValue::String(String::new())), r#""body":"""#),
        (Some(AnyValue::Bytes(b"text".to_vec())), r#""body":"text""#),
        (Some(AnyValue::Bytes(vec![0xFF])), r#""body_base64":"/w==""#),
        (Some(AnyValue::Int(-5)), r#""body":-5"#),
        (Some(AnyValue::Double(1e300)), r#""body":1e300"#),
        (Some(AnyValue::Double(f64::NEG_INFINITY)), r#""body":"-Infinity""#),
        (Some(AnyValue::StringIndex(4)), r#""body":{"string_index":4}"#),
        (Some(AnyValue::KvList(vec![KeyValue::new("a", "\u{7f}\\")])), r#""body":{"a":"\u007f\\"}"#),
    ] {
        let (group, record, peer_meta) = bare(body);
        let line = rendered(Format::Json, false, &group, &record, &peer_meta);
        assert!(line.contains(golden), "{line}");
        serde_json::from_str::<serde_json::Value>(&line).expect("it is JSON");
    }
}

#[test]
fn cat_changes_nothing() {
    for body in ["", "plain", "cr\r", "\0\x1b[31m", "two\nlines"] {
        for value in [AnyValue::String(body.to_owned()), AnyValue::Bytes(body.as_bytes().to_vec())] {
            let (group, record, peer_meta) = bare(Some(value));
            assert_eq!(rendered(Format::Cat, true, &group, &record, &peer_meta), format!("{body}\n"));
        }
    }
    let (group, record, peer_meta) = bare(Some(AnyValue::Array(vec![AnyValue::Int(1), "x".into()])));
    assert_eq!(rendered(Format::Cat, false, &group, &record, &peer_meta), "[1,\"x\"]\n");
}

#[test]
fn verbose() {
    let (group, record, peer_meta) = full();
    let golden = r#"Thu 2026-01-01 10:00:00.123456789 UTC [abababababababababababababababab:3:42]
    offset           41 in epoch 3
    time             Thu 2026-01-01 10:00:00.123456789 UTC
    observed time    Thu 2026-01-01 10:00:00.123456794 UTC
    append time      Thu 2026-01-01 10:00:01.123456789 UTC
    severity         WARN (13)
    severity text    Warnung
    component        web
    event            request
    body             slow "reply"\nsecond line
    path             "/a\u001b[2J"
    path             2
    ratio            0.5
    raw              {"base64":"/wA="}
    none             -
    list             [true,null,"NaN"]
    dropped          2
    trace id         11111111111111111111111111111111
    span id          2222222222222222
    flags            1
    resource service.name  "web"
    scope            http
    scope version    1.2
    sender           unix, uid 1000, gid 100, pid 4711
    producer         cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd epoch 1, sequence 7
"#;
    assert_eq!(rendered(Format::Verbose, true, &group, &record, &peer_meta), golden);
}

#[test]
fn nothing_harmful_gets_through() {
    let unseen = [0x61C, 0xFEFF].into_iter().chain(0x200B..=0x200F).chain(0x2028..=0x202E).chain(0x2066..=0x2069);
    let nasty: String = (0..0xA0).chain(unseen).chain(0xE0000..=0xE007F).filter_map(char::from_u32).collect();
    let group = Group::component_named(nasty.clone());
    let record = Record {
        attributes: vec![KeyValue::new(nasty.clone(), nasty.as_str())],
        severity_text: nasty.clone(),
        event_name: nasty.clone(),
        ..Record::text(TIME, 9, nasty.clone())
    };
    for format in [Format::Short, Format::Json, Format::Verbose] {
        let text = rendered(format, false, &group, &record, &PeerMeta::default());
        let harmful = text.trim_end_matches('\n').chars().find(|&c| c != '\n' && !super::escape::is_harmless(c));
        assert_eq!(harmful, None, "{format:?}");
        assert!(format == Format::Verbose || text.lines().count() == 1, "{format:?}");
        if format == Format::Json {
            let value: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
            assert_eq!(value["body"], nasty.as_str(), "and the same text");
        }
    }
}
