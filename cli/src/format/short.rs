//! `short`: `Jan 01 10:00:00.123 component[pid]: LEVEL body`.
//!
//! The process is that of the peer metadata; where that names none there is no `[pid]`. What is missing
//! is `-`. Colour goes by severity and spans level and body.

use std::fmt::Write;

use clad_proto::Severity;

use super::entry::{Entry, body};
use super::escape;
use super::times::ShortTime;

const RESET: &str = "\x1b[0m";

pub(super) fn write(entry: &Entry<'_>, time: &mut ShortTime, colour: bool, line: &mut String) {
    time.write(line, entry.time());
    line.push(' ');
    match entry.group.component() {
        Some("") | None => line.push('-'),
        Some(name) => escape::text(line, name),
    }
    if let Some(pid) = entry.peer_meta.pid {
        let _ = write!(line, "[{pid}]");
    }
    line.push_str(": ");
    let severity = Severity(entry.record.severity_number());
    let paint = if colour { paint(severity) } else { "" };
    let _ = write!(line, "{paint}{severity} ");
    body(entry, line);
    if !paint.is_empty() {
        line.push_str(RESET);
    }
}

/// As journalctl paints: errors red, warnings yellow, what is between bold, debugging grey.
fn paint(severity: Severity) -> &'static str {
    match severity.0 {
        1..=8 => "\x1b[90m",
        10..=12 => "\x1b[1m",
        13..=16 => "\x1b[1;33m",
        17..=24 => "\x1b[1;31m",
        _ => "",
    }
}
