//! Requests of OTLP exporters, cut into appends: nothing is lost, added, or cut otherwise for other limits; what is bad
//! costs itself alone.
#![cfg(feature = "grpc")]

mod support;

use clad_proto::grpc::opentelemetry::proto::collector::logs::v1::ExportLogsServiceRequest;
use clad_proto::grpc::opentelemetry::proto::{common::v1 as common, logs::v1 as logs, resource::v1 as resource};
use clad_proto::otlp::{ExportLimits, ExportPart, ExportRequest, SPLIT_BYTES, to_otlp};
use clad_proto::{limits, *};
use common::any_value::Value;
use proptest::prelude::*;
use prost::Message;
use support::*;

const LIMITS: ExportLimits =
    ExportLimits { max_append_bytes: limits::MAX_APPEND_BYTES, max_record_bytes: limits::MAX_RECORD_BYTES };

fn back(payload: &Payload) -> logs::ResourceLogs {
    to_otlp(&PayloadView::parse(&payload.bytes, payload.count).expect("parses"))
}

fn parts(bytes: &[u8], limits: ExportLimits) -> Vec<ExportPart> {
    let request = ExportRequest::new(bytes).expect("a request");
    let (mut parts, mut all) = (request.parts(limits), Vec::new());
    loop {
        let mut again = parts.clone();
        let Some(part) = parts.next() else { break };
        let repeated = again.next().expect("the same part once more");
        assert_eq!(
            (&part.payload, part.rejected, &part.first_rejected),
            (&repeated.payload, repeated.rejected, &repeated.first_rejected)
        );
        assert!(part.payload.is_some() || part.rejected > 0, "a part of nothing");
        all.push(part);
    }
    let records = all.iter().map(|part| u64::from(part.payload.as_ref().map_or(0, |p| p.count) + part.rejected));
    assert_eq!(records.sum::<u64>(), request.count());
    all
}

/// The request that the parts are: parts of one scope in a row as one again.
fn joined(parts: &[ExportPart]) -> Vec<logs::ResourceLogs> {
    let mut all: Vec<logs::ResourceLogs> = Vec::new();
    for part in parts {
        let mut next = back(part.payload.as_ref().expect("all are good"));
        let records = std::mem::take(&mut next.scope_logs[0].log_records);
        match all.last_mut() {
            Some(last) if same_group(last, &next) => last.scope_logs[0].log_records.extend(records),
            _ => {
                next.scope_logs[0].log_records = records;
                all.push(next);
            }
        }
    }
    all
}

fn same_group(one: &logs::ResourceLogs, other: &logs::ResourceLogs) -> bool {
    let without = |of: &logs::ResourceLogs| {
        let mut of = of.clone();
        of.scope_logs[0].log_records.clear();
        of.encode_to_vec()
    };
    without(one) == without(other)
}

/// Each scope with records as a message of its own, equal neighbours as one.
fn scopes(resource_logs: &[logs::ResourceLogs]) -> Vec<logs::ResourceLogs> {
    let mut all: Vec<logs::ResourceLogs> = Vec::new();
    for of in resource_logs {
        for scope in of.scope_logs.iter().filter(|scope| !scope.log_records.is_empty()) {
            let mut next = logs::ResourceLogs { scope_logs: vec![scope.clone()], ..of.clone() };
            match all.last_mut() {
                Some(last) if same_group(last, &next) => {
                    last.scope_logs[0].log_records.append(&mut next.scope_logs[0].log_records);
                }
                _ => all.push(next),
            }
        }
    }
    all
}

fn message(group: &Group, records: &[Record]) -> logs::ResourceLogs {
    let mut builder = PayloadBuilder::new(group).expect("fits");
    for record in records {
        builder.push(record).expect("fits");
    }
    back(&builder.finish())
}

fn text(len: usize) -> logs::LogRecord {
    let body = Some(common::AnyValue { value: Some(Value::StringValue("x".repeat(len))) });
    logs::LogRecord { time_unix_nano: 1, body, ..Default::default() }
}

fn request(resource_logs: Vec<logs::ResourceLogs>) -> Vec<u8> {
    ExportLogsServiceRequest { resource_logs }.encode_to_vec()
}

fn of_scopes(scopes: Vec<Vec<logs::LogRecord>>) -> Vec<u8> {
    let scope = |(n, log_records)| logs::ScopeLogs { log_records, schema_url: format!("{n}"), scope: None };
    let scope_logs = scopes.into_iter().enumerate().map(scope).collect();
    request(vec![logs::ResourceLogs { scope_logs, ..Default::default() }])
}

proptest! {
    #[test]
    fn every_request_comes_back(
        messages in proptest::collection::vec((group(), proptest::collection::vec(record(), 1..4)), 0..4),
        empty in any::<bool>(),
    ) {
        let mut all: Vec<_> = messages.iter().map(|(group, records)| message(group, records)).collect();
        if empty {
            // Scopes and resources without records are no append, and no error.
            all.insert(0, logs::ResourceLogs::default());
            all.push(logs::ResourceLogs { scope_logs: vec![logs::ScopeLogs::default(); 2], ..Default::default() });
        }
        if all.len() > 2 {
            let scope_logs = all[1].scope_logs.clone();
            all[0].scope_logs.extend(scope_logs);
        }
        let parts = parts(&request(all.clone()), LIMITS);
        let bytes = |of: Vec<logs::ResourceLogs>| request(of);
        prop_assert_eq!(bytes(joined(&parts)), bytes(scopes(&all)));
    }

    /// Whatever it is: no panic, and an error or parts.
    #[test]
    fn changed_bytes_are_a_request_or_an_error(
        messages in proptest::collection::vec((group(), proptest::collection::vec(record(), 1..3)), 1..3),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut in any::<bool>(),
    ) {
        let mut bytes = request(messages.iter().map(|(group, records)| message(group, records)).collect());
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if cut {
                bytes.truncate(at + 1);
            }
        }
        if ExportRequest::new(&bytes).is_ok() {
            for payload in parts(&bytes, LIMITS).into_iter().filter_map(|part| part.payload) {
                PayloadView::parse(&payload.bytes, payload.count).expect("a payload that a reader takes");
            }
        }
    }
}

#[test]
fn a_long_scope_is_cut_at_one_length_whatever_the_limits() {
    let records: Vec<_> = (0..3000).map(|n| text(n % 700)).collect();
    let bytes = of_scopes(vec![records.clone(), records]);
    let all = parts(&bytes, LIMITS);
    assert!(all.len() > 4, "{}", all.len());
    let lens: Vec<_> = all.iter().map(|part| part.payload.as_ref().expect("good").bytes.len()).collect();
    assert!(lens.iter().all(|len| *len <= SPLIT_BYTES as usize), "{lens:?}");
    let smaller = ExportLimits { max_append_bytes: 2 * SPLIT_BYTES, max_record_bytes: 1 << 20 };
    for (part, other) in all.iter().zip(parts(&bytes, smaller)) {
        assert_eq!(part.payload, other.payload);
    }
    assert_eq!(joined(&all), scopes(&ExportLogsServiceRequest::decode(&*bytes).expect("one").resource_logs));
}

#[test]
fn a_record_beyond_the_cut_is_alone_and_one_beyond_its_limit_is_rejected() {
    let long = SPLIT_BYTES as usize + 1;
    let limits = ExportLimits { max_append_bytes: 4 * SPLIT_BYTES, max_record_bytes: 2 * SPLIT_BYTES };
    let all = parts(&of_scopes(vec![vec![text(1), text(long), text(2), text(2 * long), text(3)]]), limits);
    let counts: Vec<_> = all.iter().map(|part| part.payload.as_ref().map_or(0, |payload| payload.count)).collect();
    assert_eq!((counts, all.iter().map(|part| part.rejected).sum::<u32>()), (vec![1, 1, 1, 1], 1));
    let first = all[3].first_rejected.as_ref().expect("its name");
    assert!(first.starts_with("record 3 of ScopeLogs 0 of ResourceLogs 0: "), "{first}");
    // The limit of an append is a record's too.
    let tight = ExportLimits { max_append_bytes: 1000, max_record_bytes: 1 << 20 };
    let all = parts(&of_scopes(vec![vec![text(2000), text(500), text(500), text(1)]]), tight);
    let counts: Vec<_> = all.iter().map(|part| (part.payload.as_ref().map_or(0, |p| p.count), part.rejected)).collect();
    assert_eq!(counts, [(1, 1), (2, 0)]);
}

#[test]
fn a_scope_whose_resource_does_not_fit_is_rejected_and_no_other() {
    let pair = common::KeyValue { key: "k".repeat(limits::MAX_GROUP_BYTES as usize), ..Default::default() };
    let resource = Some(resource::Resource { attributes: vec![pair], ..Default::default() });
    let scope = |n: usize| logs::ScopeLogs { log_records: vec![text(1); n], ..Default::default() };
    let bytes = request(vec![
        logs::ResourceLogs { scope_logs: vec![scope(1)], ..Default::default() },
        logs::ResourceLogs { resource, scope_logs: vec![scope(0), scope(2), scope(3)], ..Default::default() },
        logs::ResourceLogs { scope_logs: vec![scope(4)], ..Default::default() },
    ]);
    let all = parts(&bytes, LIMITS);
    let counts: Vec<_> = all.iter().map(|part| (part.payload.as_ref().map_or(0, |p| p.count), part.rejected)).collect();
    assert_eq!(counts, [(1, 0), (0, 2), (0, 3), (4, 0)]);
    let first = all[1].first_rejected.as_ref().expect("its name");
    assert!(first.starts_with("record 0 of ScopeLogs 1 of ResourceLogs 1: resource or scope: "), "{first}");
}

/// A record that is not protobuf is rejected by itself; where the structure above it is broken, nothing is taken.
#[test]
fn what_is_broken_is_refused_as_far_as_it_reaches() {
    let delimited = |number: u8, content: &[u8]| {
        let mut bytes = vec![number << 3 | 2];
        prost::encoding::encode_varint(content.len() as u64, &mut bytes);
        [bytes, content.to_vec()].concat()
    };
    let good = delimited(2, &text(3).encode_to_vec());
    let bad = delimited(2, &[0x2A, 9]);
    let of = |scope: &[u8]| delimited(1, &delimited(2, scope));
    let all = parts(&of(&[&good[..], &bad, &good].concat()), LIMITS);
    assert_eq!((all.len(), all[0].rejected, all[0].payload.as_ref().map(|p| p.count)), (1, 1, Some(2)));
    for broken in [
        of(&[&good[..], &[0x12, 9]].concat()),
        delimited(1, &[0x12]),
        delimited(1, &[0x0A, 0].repeat(5)),
        vec![0x0A, 1],
        vec![0x08, 1, 0x80],
    ] {
        assert!(ExportRequest::new(&broken).is_err(), "{broken:x?}");
    }
    assert_eq!(parts(&[], LIMITS).len(), 0, "an empty request");
}

/// The SDK for JavaScript has whole milliseconds in both times.
#[test]
fn an_append_says_whether_the_clock_of_a_record_is_coarse() {
    let record = |times: &(u64, u64)| logs::LogRecord {
        time_unix_nano: times.0,
        observed_time_unix_nano: times.1,
        ..logs::LogRecord::default()
    };
    for (times, is_coarse) in [
        (&[(1, 0)][..], false),
        (&[(5_000_000, 7)], false),
        (&[(1, 0), (5_000_000, 7)], false),
        (&[(0, 0)], true),
        (&[(5_000_000, 0)], true),
        (&[(5_000_000, 6_000_000)], true),
        (&[(1, 0), (5_000_000, 0)], true),
    ] {
        let parts = parts(&of_scopes(vec![times.iter().map(record).collect()]), LIMITS);
        assert_eq!(parts.iter().map(|part| part.has_coarse_time).collect::<Vec<_>>(), [is_coarse], "{times:?}");
    }
    // Each append for itself; one that is longer than the cut is alone.
    let long = text(300_000);
    let parts = parts(&of_scopes(vec![vec![record(&(0, 0))], vec![long]]), LIMITS);
    assert_eq!(parts.iter().map(|part| part.has_coarse_time).collect::<Vec<_>>(), [true, false]);
}
