//! Times as text.
//!
//! A time is Unix nanoseconds in 64 bits: it ends in the year 2554, well within what a calendar here can say.

use std::fmt::Write;

use jiff::Timestamp;
use jiff::tz::TimeZone;

const NANOS: u64 = 1_000_000_000;

/// The moment of a time.
pub(crate) fn timestamp(nanos: u64) -> Timestamp {
    Timestamp::from_nanosecond(nanos.into()).unwrap_or(Timestamp::MAX)
}

/// RFC 3339 in UTC with all nine digits, so that texts sort as times do.
pub(crate) fn rfc3339(out: &mut String, nanos: u64) {
    let _ = write!(out, "{:.9}", timestamp(nanos));
}

/// The same of a time that may be absent.
pub(crate) fn rfc3339_if_any(nanos: Option<u64>) -> Option<String> {
    nanos.map(|nanos| {
        let mut text = String::new();
        rfc3339(&mut text, nanos);
        text
    })
}

/// `Thu 2026-01-01 10:00:00.123456789 UTC`.
pub(crate) fn long(out: &mut String, nanos: u64, zone: &TimeZone) {
    let zoned = timestamp(nanos).to_zoned(zone.clone());
    let _ = write!(out, "{}", zoned.strftime("%a %Y-%m-%d %H:%M:%S%.9f %Z"));
}

/// Writes `Jan 01 10:00:00.123`; what stays the same within a second is made once.
#[derive(Debug)]
pub(crate) struct ShortTime {
    zone: TimeZone,
    second: Option<u64>,
    text: String,
}

impl ShortTime {
    /// Times in this zone.
    pub(crate) fn new(zone: TimeZone) -> Self {
        Self { zone, second: None, text: String::new() }
    }

    /// The zone.
    pub(crate) const fn zone(&self) -> &TimeZone {
        &self.zone
    }

    /// Adds a time.
    pub(crate) fn write(&mut self, out: &mut String, nanos: u64) {
        let second = nanos / NANOS;
        if self.second != Some(second) {
            self.text.clear();
            let zoned = timestamp(second * NANOS).to_zoned(self.zone.clone());
            let _ = write!(self.text, "{}", zoned.strftime("%b %d %H:%M:%S"));
            self.second = Some(second);
        }
        let _ = write!(out, "{}.{:03}", self.text, nanos % NANOS / 1_000_000);
    }
}
