//! What the record of a number must be, whoever sent it; and what an SDK cannot say, or says by itself.

use clad_e2e::Json;
use serde_json::{Map, json};

/// Severities of five records in turn.
const LEVELS: [(u64, &str); 5] = [(5, "DEBUG"), (9, "INFO"), (13, "WARN"), (17, "ERROR"), (21, "FATAL")];
/// The largest integer of JavaScript.
const SAFE_INTEGER: i64 = (1 << 53) - 1;

/// The severity of a record: its number and text.
fn level(language: &str, n: u64) -> (u64, &'static str) {
    // `tracing` has no level above ERROR.
    if language == "rust" && n % 5 == 4 { (1, "TRACE") } else { LEVELS[(n % 5) as usize] }
}

/// A body that is no text, where the SDK can send one.
fn body(language: &str, n: u64) -> Json {
    match n % 6 {
        0 => json!(format!("record {n}")),
        1 => json!(format!("Grüße {n}, 世界 🚀")),
        2 => json!(""),
        3 => json!(format!("one\ntwo\t\"three\" \\ {n}")),
        4 => json!(format!("{}{n}", "x".repeat(2000))),
        _ if language == "go" || language == "js" => json!({"n": n, "list": [1, "two", [true]]}),
        _ => json!(format!("last {n}")),
    }
}

/// Of an exception: the type that the language has for it.
fn exception(language: &str, n: u64) -> Json {
    let message = format!("broken {n}");
    match language {
        "python" => json!({"exception.type": "ValueError", "exception.message": message}),
        "go" => json!({"exception.type": "*errors.errorString", "exception.message": message}),
        "js" => json!({"exception.type": "RangeError", "exception.message": message}),
        _ => json!({"exception.message": message}),
    }
}

/// Values of every kind, in turn.
fn values(language: &str, n: u64) -> Json {
    let half = n as f64 + 0.5;
    match (n % 8, language) {
        (0, _) => json!({"text": format!("Zürich/東京 {n}")}),
        (1, "js") => json!({"least": -SAFE_INTEGER, "most": SAFE_INTEGER}),
        (1, _) => json!({"least": i64::MIN, "most": i64::MAX}),
        (2, _) => json!({"half": half, "tiny": 1e-300, "negative": -0.25}),
        (3, _) => json!({"yes": true, "no": false}),
        // The layer of `tracing` makes texts of what it has no kind for.
        (4, "rust") => json!({"over": u64::MAX.to_string()}),
        (5, "rust") => json!({"list": "[1, 2]"}),
        (4, _) => json!({"list": ["a", n, true, half, ["in", []]]}),
        (5, _) => json!({"map": {"key": "value", "inner": {"n": n, "list": [1, 2]}}}),
        (6, _) => json!({"bytes": {"base64": "AAH+/w=="}}),
        _ => json!({"empty": ""}),
    }
}

fn attributes(language: &str, n: u64) -> Map<String, Json> {
    let has_exception = n % 10 == 9;
    let mut all = Map::from_iter([("n".to_owned(), json!(n))]);
    let mut add = |more: Json| all.extend(more.as_object().cloned().unwrap_or_default());
    // A macro of `tracing` has the fields of its place in the source: there an exception stands alone.
    if !(has_exception && language == "rust") {
        add(values(language, n));
    }
    if has_exception {
        add(exception(language, n));
    }
    all
}

/// Removes a member that is there.
fn take(record: &mut Json, key: &str) -> Json {
    record.as_object_mut().and_then(|members| members.shift_remove(key)).unwrap_or(Json::Null)
}

/// Compares a record of mode `simple` with what it must be. `within` are the times before the first was made, and after the
/// last.
pub(crate) fn compare(language: &str, n: u64, record: &Json, within: (&str, &str)) {
    let mut rest = record.clone();
    let is = |what: &str, found: Json, wanted: Json| assert_eq!(found, wanted, "{what} of {n} in {record}");

    let (severity, text) = level(language, n);
    is("severity_number", take(&mut rest, "severity_number"), json!(severity));
    is("severity_text", take(&mut rest, "severity_text"), json!(text));
    is("body", take(&mut rest, "body"), body(language, n));

    let mut found = take(&mut rest, "attributes");
    let trace = take(&mut found, "exception.stacktrace");
    let has_trace = n % 10 == 9 && (language == "python" || language == "js");
    assert_eq!(trace.as_str().is_some_and(|text| text.contains(&format!("broken {n}"))), has_trace, "{record}");
    is("attributes", found, Json::Object(attributes(language, n)));

    let in_span = n.is_multiple_of(4);
    let or_null = |value: String| if in_span { json!(value) } else { Json::Null };
    is("trace_id", take(&mut rest, "trace_id"), or_null(format!("c1ad{:028x}", n + 1)));
    is("span_id", take(&mut rest, "span_id"), or_null(format!("c1ad{:012x}", n + 1)));
    is("flags", take(&mut rest, "flags"), if in_span { json!(1) } else { Json::Null });
    let event = take(&mut rest, "event_name");
    match language {
        // The layer of `tracing` names an event by its place in the source.
        "rust" => assert!(event.as_str().is_some_and(|name| name.starts_with("event ")), "{record}"),
        _ => is("event_name", event, if n % 7 == 3 { json!("order.taken") } else { Json::Null }),
    }

    let (time, observed) = (take(&mut rest, "time"), take(&mut rest, "observed_time"));
    for (what, time) in [("time", &time), ("observed_time", &observed)] {
        let is_within = time.as_str().is_some_and(|time| (within.0..=within.1).contains(&time));
        // The layer of `tracing` gives no time of the event.
        assert!(is_within || (what == "time" && language == "rust" && time.is_null()), "{what} of {n} in {record}");
    }
    of_group(language, &mut rest);
    of_the_daemon(&mut rest);
    assert_eq!(rest, json!({}), "members that nobody expects, of {n} in {record}");
}

/// Resource and scope.
fn of_group(language: &str, record: &mut Json) {
    let resource = take(record, "resource");
    let sdk = if language == "js" { "nodejs" } else { language };
    let wanted = json!({"service.name": "otlp-agent", "telemetry.sdk.language": sdk, "cpus": 2, "ratio": 0.5, "flag": true,
                        "names": ["a", "b"]});
    for (key, value) in wanted.as_object().expect("it is one") {
        assert_eq!(&resource[key], value, "{key} of {resource}");
    }
    let scope = match language {
        "go" => json!({"name": "clad.agent", "version": "1.0", "attributes": {"kind": "test"}}),
        "js" => json!({"name": "clad.agent", "version": "1.0"}),
        _ => json!({"name": "clad.agent"}),
    };
    assert_eq!(take(record, "scope"), scope);
    assert_eq!(take(record, "component"), json!("otlp-agent"), "the service is the component");
}

/// What is the daemon's own.
fn of_the_daemon(record: &mut Json) {
    let own = [
        "offset",
        "epoch",
        "append_time",
        "severity",
        "peer_meta",
        "producer_id",
        "producer_epoch",
        "sequence",
        "cursor",
    ];
    for key in own {
        assert!(!take(record, key).is_null(), "no {key}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times around a record.
    const WITHIN: (&str, &str) = ("2026-01-01T00:00:00.000000000Z", "2026-01-01T00:00:01.000000000Z");

    /// Record 4 of Go, as it must be.
    fn good() -> Json {
        json!({
            "offset": 4, "epoch": 1, "time": "2026-01-01T00:00:00.500000000Z",
            "observed_time": "2026-01-01T00:00:00.500000001Z", "append_time": "2026-01-01T00:00:00.600000000Z",
            "severity": "FATAL", "severity_number": 21, "severity_text": "FATAL", "component": "otlp-agent",
            "body": format!("{}4", "x".repeat(2000)), "attributes": {"n": 4, "list": ["a", 4, true, 4.5, ["in", []]]},
            "trace_id": "c1ad0000000000000000000000000005", "span_id": "c1ad000000000005", "flags": 1,
            "resource": {"service.name": "otlp-agent", "telemetry.sdk.language": "go", "cpus": 2, "ratio": 0.5,
                         "flag": true, "names": ["a", "b"]},
            "scope": {"name": "clad.agent", "version": "1.0", "attributes": {"kind": "test"}},
            "peer_meta": {}, "producer_id": "0", "producer_epoch": 1, "sequence": 4, "cursor": "c",
        })
    }

    fn is_seen(change: impl FnOnce(&mut Json)) -> bool {
        let mut record = good();
        change(&mut record);
        std::panic::catch_unwind(|| compare("go", 4, &record, WITHIN)).is_err()
    }

    #[test]
    fn each_member_that_is_wrong_is_seen() {
        assert!(!is_seen(|_| ()));
        for key in good().as_object().expect("it is one").keys() {
            assert!(is_seen(|record| drop(take(record, key))), "{key}");
        }
        assert!(is_seen(|record| record["attributes"]["list"][3] = json!(4)));
        assert!(is_seen(|record| record["attributes"]["n"] = json!(4.0)));
        assert!(is_seen(|record| record["attributes"]["more"] = json!(1)));
        assert!(is_seen(|record| record["event_name"] = json!("order.taken")));
        assert!(is_seen(|record| record["dropped_attributes_count"] = json!(1)));
        assert!(is_seen(|record| record["time"] = json!("2026-01-02T00:00:00.000000000Z")));
    }
}
