//! `verbose`: a line with time and cursor, then every field on a line of its own.

use std::fmt::{self, Write};

use clad_proto::frame::PeerMeta;
use clad_proto::{KvsRef, Severity};
use jiff::tz::TimeZone;

use super::entry::{Entry, body};
use super::{escape, json, times};

/// Width of the column of names.
const NAMES: usize = 15;

pub(super) fn write(entry: &Entry<'_>, zone: &TimeZone, out: &mut String) {
    let record = &entry.record;
    times::long(out, entry.time(), zone);
    let _ = write!(out, " [{}]", entry.cursor());
    name(out, "offset", |out| put(out, format_args!("{} in epoch {}", entry.offset, entry.epoch)));
    for (key, nanos) in [
        ("time", record.time_unix_nano()),
        ("observed time", record.observed_time_unix_nano()),
        ("append time", entry.append_time),
    ] {
        if nanos != 0 {
            name(out, key, |out| times::long(out, nanos, zone));
        }
    }
    let severity = Severity(record.severity_number());
    name(out, "severity", |out| put(out, format_args!("{severity} ({})", severity.0)));
    text(out, "severity text", record.severity_text());
    text(out, "component", entry.group.component().unwrap_or_default());
    text(out, "event", record.event_name());
    if record.body().is_some() {
        name(out, "body", |out| body(entry, out));
    }
    pairs(out, "", record.attributes());
    count(out, "dropped", record.dropped_attributes_count());
    for (key, id) in [("trace id", record.trace_id()), ("span id", record.span_id())] {
        if !id.is_empty() {
            name(out, key, |out| hex(out, id));
        }
    }
    count(out, "flags", record.flags());
    group(entry, out);
    name(out, "sender", |out| sender(entry, out));
    name(out, "producer", |out| {
        let _ = write!(out, "{} epoch {}, sequence {}", entry.producer_id, entry.producer_epoch, entry.sequence);
    });
    forwarded(entry, out);
}

/// The first log of a forwarded record, and the logs that it came through.
fn forwarded(entry: &Entry<'_>, out: &mut String) {
    if let Some(origin) = &entry.peer_meta.origin {
        name(out, "origin", |out| {
            let offset = origin.first_offset.wrapping_add(entry.place);
            put(out, format_args!("log {}, offset {offset} in epoch {}", origin.log_id, origin.epoch));
        });
        name(out, "origin producer", |out| {
            let (id, epoch, sequence) = (origin.producer_id, origin.producer_epoch, origin.first_seq);
            put(out, format_args!("{id} epoch {epoch}, sequence {}", sequence.wrapping_add(entry.place)));
        });
        if let Ok(seen) = PeerMeta::decode(&origin.peer_meta) {
            name(out, "origin sender", |out| seen_by(&seen, out));
        }
    }
    if let Some(path) = &entry.peer_meta.path {
        name(out, "path", |out| {
            path.logs.iter().for_each(|log| put(out, format_args!("{log} ")));
            put(out, format_args!("stream {}", path.stream));
        });
    }
}

fn group(entry: &Entry<'_>, out: &mut String) {
    if let Some(resource) = entry.group.resource() {
        pairs(out, "resource ", resource.attributes());
        count(out, "resource dropped", resource.dropped_attributes_count());
    }
    text(out, "resource schema", entry.group.resource_schema_url());
    if let Some(scope) = entry.group.scope() {
        text(out, "scope", scope.name());
        text(out, "scope version", scope.version());
        pairs(out, "scope ", scope.attributes());
        count(out, "scope dropped", scope.dropped_attributes_count());
    }
    text(out, "scope schema", entry.group.scope_schema_url());
}

fn sender(entry: &Entry<'_>, out: &mut String) {
    seen_by(entry.peer_meta, out);
}

/// A sender, as a daemon saw it.
fn seen_by(seen: &PeerMeta, out: &mut String) {
    out.push_str(seen.transport.map_or("unknown way", |transport| transport.name()));
    for (key, value) in [("uid", seen.uid), ("gid", seen.gid), ("pid", seen.pid)] {
        if let Some(value) = value {
            let _ = write!(out, ", {key} {value}");
        }
    }
    if let Some(identity) = &seen.identity {
        out.push_str(", identity ");
        json::string(out, identity);
    }
}

fn put(out: &mut String, text: fmt::Arguments<'_>) {
    // A string takes everything.
    let _ = out.write_fmt(text);
}

/// A name in its column on a new line; what follows is written by `rest`.
fn name(out: &mut String, key: &str, rest: impl FnOnce(&mut String)) {
    let _ = write!(out, "\n    {key:NAMES$}  ");
    rest(out);
}

fn text(out: &mut String, key: &str, value: &str) {
    if !value.is_empty() {
        name(out, key, |out| escape::text(out, value));
    }
}

fn count(out: &mut String, key: &str, value: u32) {
    if value != 0 {
        name(out, key, |out| put(out, format_args!("{value}")));
    }
}

fn pairs(out: &mut String, what: &str, pairs: KvsRef<'_>) {
    for pair in pairs.iter() {
        let key = format!("{what}{}", escape::escaped(pair.key));
        name(out, &key, |out| match pair.value {
            Some(value) => json::any(out, value),
            None => out.push('-'),
        });
    }
}

/// Bytes as hex digits.
pub(super) fn hex(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
}
