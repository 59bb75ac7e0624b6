//! Times of messages.
//!
//! Invariants: a time that cannot be is none, never zero. Without a year it is the year that brings it nearest to now: a
//! message of New Year's Eve that comes late is not from the future.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;

use super::words::header_part;

const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
/// Years that a number of four digits may be.
const YEARS: std::ops::RangeInclusive<i16> = 1970..=2500;
/// Longest fraction of a second; more digits than nanoseconds have say nothing.
const FRACTION_DIGITS_MAX: usize = 9;
/// Longest name of a zone behind a time.
const ZONE_BYTES_MAX: usize = 5;

/// A time at the begin of a message.
pub(super) struct Timed<'a> {
    /// Unix nanoseconds; absent where the calendar has no such time.
    pub(super) time: Option<u64>,
    /// A zone that is not known by this name.
    pub(super) zone: Option<&'a str>,
}

/// A time as in RFC 3339, where the whole is one. Without an offset it is in the zone; without a zone it must have one.
pub(super) fn rfc3339(text: &[u8], zone: Option<&TimeZone>) -> Option<u64> {
    // Laxer forms of ISO 8601 are left out: a part of a sentence must not pass for a time.
    let is_shaped = text.len() >= 19 && text[4] == b'-' && text[7] == b'-' && text[13] == b':' && text[16] == b':';
    let text = std::str::from_utf8(text).ok().filter(|text| is_shaped && text.len() <= 40 && !text.contains('['))?;
    if let Ok(time) = text.parse::<Timestamp>() {
        return nanos(time);
    }
    let local: DateTime = text.parse().ok().filter(|_| !text.ends_with(['Z', 'z']))?;
    nanos(zone?.to_timestamp(local).ok()?)
}

/// The time that a message begins with, and what is behind it and one blank.
pub(super) fn leading<'a>(bytes: &'a [u8], zone: &TimeZone, now: u64) -> Option<(Timed<'a>, &'a [u8])> {
    if bytes.first()?.is_ascii_digit() {
        let end = bytes.iter().position(|byte| *byte == b' ').unwrap_or(bytes.len());
        let text = bytes[..end].strip_suffix(b":").unwrap_or(&bytes[..end]);
        let time = rfc3339(text, Some(zone))?;
        return Some((Timed { time: Some(time), zone: None }, bytes.get(end + 1..).unwrap_or_default()));
    }
    let mut text = Text(bytes);
    let month = MONTHS.iter().position(|month| bytes.starts_with(*month))?;
    text.0 = &bytes[3..];
    text.blank()?;
    text.blank(); // a day of one digit
    let day = text.number(1, 2)?;
    text.blank()?;
    let mut year = text.year_then(b" ");
    let (hour, minute, second) = (text.number(1, 2)?, text.colon_number()?, text.colon_number()?);
    let fraction = text.fraction();
    let mut later = Text(text.0.strip_prefix(b" ").unwrap_or_default());
    if year.is_none()
        && let found @ Some(_) = later.year_then(b"")
        && matches!(later.0, [] | [b' ' | b':', ..])
    {
        (year, text) = (found, later);
    }
    let (named, rest) = zone_behind(text.0);
    let rest = rest.strip_prefix(b":").unwrap_or(rest);
    let rest = match rest {
        [] => rest,
        [b' ', rest @ ..] => rest,
        _ => return None,
    };
    let utc = TimeZone::UTC;
    let is_utc = named.is_some_and(|name| matches!(name, "UTC" | "GMT" | "Z"));
    let zone = if is_utc { &utc } else { zone };
    let time = Time::new(hour as i8, minute as i8, second.min(59) as i8, fraction).ok();
    let time = time.and_then(|time| {
        let at =
            |year: i16| zone.to_timestamp(Date::new(year, month as i8 + 1, day as i8).ok()?.to_datetime(time)).ok();
        match year {
            Some(year) => nanos(at(year)?),
            None => nearest(now, (month as i8 + 1, day as i8), at),
        }
    });
    Some((Timed { time, zone: named.filter(|_| !is_utc) }, rest))
}

/// The time of the year that brings it nearest to now. 29 February is not in each.
fn nearest(now: u64, (month, day): (i8, i8), at: impl Fn(i16) -> Option<Timestamp>) -> Option<u64> {
    let today = TimeZone::UTC.to_datetime(Timestamp::from_nanosecond(now.into()).ok()?).date();
    // Zones are slow. Far enough from half a year the calendar alone decides.
    let days = (i32::from(month) - i32::from(today.month())) * 31 + i32::from(day) - i32::from(today.day());
    let likely = match days {
        -170..=170 => today.year(),
        200.. => today.year() - 1,
        ..=-200 => today.year() + 1,
        _ => 0,
    };
    if likely != 0
        && let Some(time) = at(likely)
    {
        return nanos(time);
    }
    (today.year() - 4..=today.year() + 4).filter_map(|year| nanos(at(year)?)).min_by_key(|time| time.abs_diff(now))
}

/// A zone's name before a blank or colon, and what is behind it.
fn zone_behind(bytes: &[u8]) -> (Option<&str>, &[u8]) {
    let found = bytes.strip_prefix(b" ").and_then(|rest| {
        let length = rest.iter().take(ZONE_BYTES_MAX + 1).take_while(|byte| byte.is_ascii_uppercase()).count();
        // Only before a colon: else it is the first word of the rest, such as a host.
        let is_one = (1..=ZONE_BYTES_MAX).contains(&length) && rest[length..].starts_with(b": ");
        is_one.then(|| (header_part(&rest[..length]), &rest[length..]))
    });
    found.unwrap_or((None, bytes))
}

fn nanos(time: Timestamp) -> Option<u64> {
    u64::try_from(time.as_nanosecond()).ok().filter(|nanos| *nanos > 0)
}

/// Bytes that are being read.
struct Text<'a>(&'a [u8]);

impl Text<'_> {
    fn blank(&mut self) -> Option<()> {
        self.0 = self.0.strip_prefix(b" ")?;
        Some(())
    }

    /// A number of so many digits.
    fn number(&mut self, least: usize, most: usize) -> Option<u16> {
        let digits = self.0.iter().take(most).take_while(|byte| byte.is_ascii_digit()).count();
        let is_over = self.0.get(digits).is_none_or(|byte| !byte.is_ascii_digit());
        if digits < least || !is_over {
            return None;
        }
        let number = self.0[..digits].iter().fold(0, |number, digit| number * 10 + u16::from(digit - b'0'));
        self.0 = &self.0[digits..];
        Some(number)
    }

    fn colon_number(&mut self) -> Option<u16> {
        self.0 = self.0.strip_prefix(b":")?;
        self.number(2, 2)
    }

    /// A year, and what must be behind it.
    fn year_then(&mut self, behind: &[u8]) -> Option<i16> {
        let before = self.0;
        let year = self.number(4, 4).and_then(|year| i16::try_from(year).ok()).filter(|year| YEARS.contains(year));
        match year.and_then(|year| Some((year, self.0.strip_prefix(behind)?))) {
            Some((year, rest)) => {
                self.0 = rest;
                Some(year)
            }
            None => {
                self.0 = before;
                None
            }
        }
    }

    /// Nanoseconds of a fraction.
    fn fraction(&mut self) -> i32 {
        let Some(rest) = self.0.strip_prefix(b".").or_else(|| self.0.strip_prefix(b",")) else { return 0 };
        let digits = rest.iter().take(FRACTION_DIGITS_MAX).take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return 0;
        }
        self.0 = &rest[digits..];
        let number = rest[..digits].iter().fold(0, |number, digit| number * 10 + i32::from(digit - b'0'));
        number * 10_i32.pow((FRACTION_DIGITS_MAX - digits) as u32)
    }
}
