//! Forms of a record: `short`, `json`, `cat`, `verbose`.
//!
//! Invariants: `cat` gives the bytes of a body and one `\n`, nothing more and nothing less; every other format is
//! one line for one record (`verbose`: one line for one field) whatever the record holds, because all that could end a
//! line or drive a terminal is escaped. Nothing here prints: everything is written into a buffer.

mod entry;
pub(crate) mod escape;
pub(crate) mod human;
pub(crate) mod json;
mod record_json;
mod short;
#[cfg(test)]
mod tests;
pub(crate) mod times;
mod verbose;

use clap::ValueEnum;
use jiff::tz::TimeZone;

pub(crate) use self::entry::Entry;
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
