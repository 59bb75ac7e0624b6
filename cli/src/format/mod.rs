//! How a record looks: `short`, `json`, `cat`, `verbose`.
//!
//! Invariants: `cat` gives the bytes of a body and one `\n`, nothing more and nothing less; every other format is
//! one line for one record (`verbose`: one line for one field) whatever the record holds, because all that could end a
//! line or drive a terminal is escaped. Nothing here prints: everything is written into a buffer.

pub(crate) mod escape;
pub(crate) mod human;
pub(crate) mod json;
mod record_json;
mod short;
#[cfg(test)]
mod tests;
pub(crate) mod times;
mod verbose;

use clad_proto::frame::PeerMeta;
use clad_proto::{Cursor, GroupView, LogId, ProducerId, RecordView, ValueRef};
use clap::ValueEnum;
use jiff::tz::TimeZone;

use self::times::ShortTime;

/// The forms of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// One line: time, component and process, severity, body
    Short,
    /// One JSON object a line
    Json,
    /// The body and a newline, byte for byte
    Cat,
    /// Every field on a line of its own
    Verbose,
}

/// A record with all that is known about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a> {
    /// The log.
    pub(crate) log_id: LogId,
    /// Epoch in which it got its offset.
    pub(crate) epoch: u32,
    /// Its offset.
    pub(crate) offset: u64,
    /// When the daemon took it, Unix nanoseconds.
    pub(crate) append_time: u64,
    /// Who appended it.
    pub(crate) producer_id: ProducerId,
    /// The producer's epoch.
    pub(crate) producer_epoch: u32,
    /// Its sequence.
    pub(crate) sequence: u64,
    /// What the daemon saw of the sender.
    pub(crate) peer_meta: &'a PeerMeta,
    /// What it shares with the rest of its append.
    pub(crate) group: GroupView<'a>,
    /// The record.
    pub(crate) record: RecordView<'a>,
}

impl Entry<'_> {
    /// The place after it.
    pub(crate) fn cursor(&self) -> Cursor {
        Cursor { log_id: self.log_id, epoch: self.epoch, offset: self.offset.saturating_add(1) }
    }

    /// The time to file it under: its own, else the observed one, else that of its append.
    pub(crate) fn time(&self) -> u64 {
        self.record.time().unwrap_or(self.append_time)
    }
}

/// Writes records in one format.
#[derive(Debug)]
pub(crate) struct Renderer {
    format: Format,
    short: ShortTime,
    colour: bool,
    line: String,
}

impl Renderer {
    /// A renderer; times are shown in `zone`.
    pub(crate) fn new(format: Format, zone: TimeZone, colour: bool) -> Self {
        Self { format, short: ShortTime::new(zone), colour, line: String::new() }
    }

    /// Adds a record to `out`, its newline included.
    pub(crate) fn render(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) {
        self.line.clear();
        match self.format {
            Format::Cat => cat(entry, &mut self.line, out),
            Format::Short => short::write(entry, &mut self.short, self.colour, &mut self.line),
            Format::Json => record_json::write(entry, &mut self.line),
            Format::Verbose => verbose::write(entry, self.short.zone(), &mut self.line),
        }
        out.extend_from_slice(self.line.as_bytes());
        out.push(b'\n');
    }
}

fn cat(entry: &Entry<'_>, line: &mut String, out: &mut Vec<u8>) {
    match (entry.record.body_bytes(), entry.record.body()) {
        (Some(bytes), _) => out.extend_from_slice(bytes),
        (None, Some(value)) => json::any(line, value),
        (None, None) => {}
    }
}

/// The body for a person: text escaped, anything structured as JSON, the event's name where there is no body.
fn body(entry: &Entry<'_>, line: &mut String) {
    match (entry.record.body_bytes(), entry.record.body()) {
        (Some(bytes), _) => escape::bytes(line, bytes),
        (None, Some(ValueRef::Empty)) => {}
        (None, Some(value)) => json::any(line, value),
        (None, None) => escape::text(line, entry.record.event_name()),
    }
}
