//! `json`: one object a line.
//!
//! Invariants: the first keys, up to `body`, are there in every object, `null` where the record has nothing to say,
//! so that a program need not ask; the rest is there where it is not empty. A body that is not UTF-8 is `body_base64`
//! and then there is no `body`. Numbers of 64 bits are written as numbers.

use std::fmt::Write;

use clad_proto::frame::PeerMeta;
use clad_proto::{GroupView, RecordView, Severity};

use super::entry::Entry;
use super::json::{self, Object};
use super::times;

pub(super) fn write(entry: &Entry<'_>, out: &mut String) {
    let record = &entry.record;
    let mut object = Object::open(out);
    object.number("offset", entry.offset).number("epoch", entry.epoch);
    time(&mut object, "time", record.time_unix_nano());
    time(&mut object, "observed_time", record.observed_time_unix_nano());
    time(&mut object, "append_time", entry.append_time);
    severity(&mut object, record);
    match entry.group.component() {
        Some(name) => drop(object.string("component", name)),
        None => object.key("component").push_str("null"),
    }
    body(&mut object, record);
    if !record.attributes().is_empty() {
        json::pairs(object.key("attributes"), record.attributes());
    }
    count(&mut object, "dropped_attributes_count", record.dropped_attributes_count());
    hex(&mut object, "trace_id", record.trace_id());
    hex(&mut object, "span_id", record.span_id());
    count(&mut object, "flags", record.flags());
    text(&mut object, "event_name", record.event_name());
    group(&mut object, &entry.group);
    peer_meta(object.key("peer_meta"), entry.peer_meta);
    forwarded(&mut object, entry);
    let _ = write!(object.key("producer_id"), "\"{}\"", entry.producer_id);
    object.number("producer_epoch", entry.producer_epoch).number("sequence", entry.sequence);
    let _ = write!(object.key("cursor"), "\"{}\"", entry.cursor());
    object.close();
}

fn time(object: &mut Object<'_>, key: &str, nanos: u64) {
    let out = object.key(key);
    if nanos == 0 {
        out.push_str("null");
    } else {
        out.push('"');
        times::rfc3339(out, nanos);
        out.push('"');
    }
}

fn severity(object: &mut Object<'_>, record: &RecordView<'_>) {
    let severity = Severity(record.severity_number());
    match severity.name() {
        Some(name) => drop(object.string("severity", name)),
        None => object.key("severity").push_str("null"),
    }
    object.number("severity_number", severity.0);
    text(object, "severity_text", record.severity_text());
}

fn body(object: &mut Object<'_>, record: &RecordView<'_>) {
    match (record.body_bytes(), record.body()) {
        (Some(bytes), _) => match std::str::from_utf8(bytes) {
            Ok(text) => drop(object.string("body", text)),
            Err(_) => json::base64(object.key("body_base64"), bytes),
        },
        (None, Some(value)) => json::any(object.key("body"), value),
        (None, None) => object.key("body").push_str("null"),
    }
}

fn group(object: &mut Object<'_>, group: &GroupView<'_>) {
    if let Some(resource) = group.resource() {
        json::pairs(object.key("resource"), resource.attributes());
        count(object, "resource_dropped_attributes_count", resource.dropped_attributes_count());
    }
    text(object, "resource_schema_url", group.resource_schema_url());
    if let Some(scope) = group.scope() {
        let mut inner = Object::open(object.key("scope"));
        inner.string("name", scope.name());
        text(&mut inner, "version", scope.version());
        if !scope.attributes().is_empty() {
            json::pairs(inner.key("attributes"), scope.attributes());
        }
        count(&mut inner, "dropped_attributes_count", scope.dropped_attributes_count());
        inner.close();
    }
    text(object, "scope_schema_url", group.scope_schema_url());
}

fn peer_meta(out: &mut String, peer_meta: &PeerMeta) {
    let mut object = Object::open(out);
    if let Some(transport) = peer_meta.transport {
        object.string("transport", transport.name());
    }
    if let Some(address) = peer_meta.address {
        object.string("address", &address.to_string());
    }
    if let Some(identity) = &peer_meta.identity {
        object.string("identity", identity);
    }
    let numbers = [
        ("uid", peer_meta.uid.map(u64::from)),
        ("gid", peer_meta.gid.map(u64::from)),
        ("pid", peer_meta.pid.map(u64::from)),
        ("pid_start_ticks", peer_meta.pid_start),
    ];
    for (key, value) in numbers {
        if let Some(value) = value {
            object.number(key, value);
        }
    }
    object.close();
}

/// The first log of a forwarded record, and the logs that it came through.
fn forwarded(object: &mut Object<'_>, entry: &Entry<'_>) {
    if let Some(origin) = &entry.peer_meta.origin {
        let mut first = Object::open(object.key("origin"));
        first.string("log_id", &origin.log_id.to_string()).number("epoch", origin.epoch);
        first.number("offset", origin.first_offset.wrapping_add(entry.place));
        time(&mut first, "append_time", origin.append_time);
        first.string("producer_id", &origin.producer_id.to_string()).number("producer_epoch", origin.producer_epoch);
        first.number("sequence", origin.first_seq.wrapping_add(entry.place));
        if let Ok(seen) = PeerMeta::decode(&origin.peer_meta) {
            peer_meta(first.key("peer_meta"), &seen);
        }
        first.close();
    }
    if let Some(path) = &entry.peer_meta.path {
        let ids: Vec<String> = path.logs.iter().map(|log| format!("\"{log}\"")).collect();
        let _ = write!(object.key("path"), "[{}]", ids.join(","));
        object.string("stream", path.stream.as_str());
    }
}

fn text(object: &mut Object<'_>, key: &str, value: &str) {
    if !value.is_empty() {
        object.string(key, value);
    }
}

fn count(object: &mut Object<'_>, key: &str, value: u32) {
    if value != 0 {
        object.number(key, value);
    }
}

fn hex(object: &mut Object<'_>, key: &str, bytes: &[u8]) {
    if !bytes.is_empty() {
        let out = object.key(key);
        out.push('"');
        super::verbose::hex(out, bytes);
        out.push('"');
    }
}
