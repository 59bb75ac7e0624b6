//! Times as people give them to `--since` and `--until`, as journalctl takes them.
//!
//! | form | meaning |
//! |---|---|
//! | `2026-01-01 10:00`, `2026-01-01 10:00:00.5`, `2026-01-01`, `10:00` | a local time; midnight, or today, where a part is missing |
//! | `2026-01-01 10:00 UTC`, `… Europe/Berlin` | the same in that zone |
//! | `2026-01-01T10:00:00Z`, `…+02:00` | RFC 3339 |
//! | `now`, `today`, `yesterday`, `tomorrow` | the last three are midnights |
//! | `-5min`, `+1h`, `1 hour ago`, `2h 30min ago` | from now |
//! | `@1767261600`, `@1767261600.5` | Unix seconds |
//!
//! Invariants: a text is read whole or refused; a span has the fixed lengths that systemd gives its units (a day is
//! 24 hours, a month 30.44 days), so the same text means the same here and there.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};

/// A text that is no time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no time; try `2026-01-01 10:00`, `today`, `-5min`, `1 hour ago`, or `@` and Unix seconds")]
pub(crate) struct TimeError(String);

const NANOS: f64 = 1e9;

/// Units of a span and their length in nanoseconds; without a unit a number is seconds.
const UNITS: [(&[&str], f64); 9] = [
    (&["us", "usec", "µs", "μs"], 1e3),
    (&["ms", "msec"], 1e6),
    (&["", "s", "sec", "second", "seconds"], NANOS),
    (&["m", "min", "minute", "minutes"], 60.0 * NANOS),
    (&["h", "hr", "hour", "hours"], 3600.0 * NANOS),
    (&["d", "day", "days"], 86_400.0 * NANOS),
    (&["w", "week", "weeks"], 7.0 * 86_400.0 * NANOS),
    (&["M", "month", "months"], 30.44 * 86_400.0 * NANOS),
    (&["y", "year", "years"], 365.25 * 86_400.0 * NANOS),
];

/// Reads a time; gives Unix nanoseconds. `now` also says which zone is the local one.
pub(crate) fn parse(text: &str, now: &Zoned) -> Result<i64, TimeError> {
    let trimmed = text.trim();
    relative(trimmed, now)
        .or_else(|| absolute(trimmed, now))
        .and_then(|moment| i64::try_from(moment.as_nanosecond()).ok())
        .ok_or_else(|| TimeError(text.to_owned()))
}

fn relative(text: &str, now: &Zoned) -> Option<Timestamp> {
    let midnight = |days: i32| Some(now.checked_add(days.days()).ok()?.start_of_day().ok()?.timestamp());
    match text {
        "now" => return Some(now.timestamp()),
        "today" => return midnight(0),
        "yesterday" => return midnight(-1),
        "tomorrow" => return midnight(1),
        _ => {}
    }
    if let Some(seconds) = text.strip_prefix('@') {
        return unix(seconds);
    }
    let (nanos, back) = if let Some(past) = text.strip_suffix("ago") {
        (span(past.strip_suffix(char::is_whitespace)?)?, true)
    } else if let Some(past) = text.strip_prefix('-') {
        (span(past)?, true)
    } else {
        (span(text.strip_prefix('+')?)?, false)
    };
    let now = now.timestamp().as_nanosecond();
    Timestamp::from_nanosecond(if back { now.checked_sub(nanos)? } else { now.checked_add(nanos)? }).ok()
}

fn unix(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let nanos: i128 = format!("{fraction:0<9}").parse().ok()?;
    let whole: i128 = whole.parse().ok()?;
    Timestamp::from_nanosecond(whole.checked_mul(1_000_000_000)?.checked_add(nanos)?).ok()
}

/// `5min`, `1 hour 30 min`, `1.5h`, `90`.
fn span(text: &str) -> Option<i128> {
    let mut rest = text.trim();
    let mut total = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?.trim_start();
        let letters = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        let unit = rest.get(..letters)?;
        let (_, length) = UNITS.iter().find(|(names, _)| names.contains(&unit))?;
        total += number * length;
        rest = rest.get(letters..)?.trim_start();
    }
    // Spans that a calendar cannot hold are refused by who adds them; this only keeps the cast honest.
    (total < 1e24).then_some(total as i128)
}

fn absolute(text: &str, now: &Zoned) -> Option<Timestamp> {
    if let Ok(moment) = text.parse::<Timestamp>() {
        return Some(moment);
    }
    let (civil, zone) = match text.rsplit_once(char::is_whitespace) {
        // A zone begins with a letter; a time of day does not.
        Some((civil, name)) if name.starts_with(|c: char| c.is_alphabetic()) => {
            (civil.trim_end(), TimeZone::get(name).ok()?)
        }
        _ => (text, now.time_zone().clone()),
    };
    let today = now.with_time_zone(zone.clone()).date();
    let when = match civil.split_once([' ', 'T']) {
        Some((date, time)) => DateTime::from_parts(day(date)?, time_of_day(time.trim_start())?),
        None if civil.contains(':') => DateTime::from_parts(today, time_of_day(civil)?),
        None => DateTime::from_parts(day(civil)?, Time::midnight()),
    };
    Some(when.to_zoned(zone).ok()?.timestamp())
}

fn day(text: &str) -> Option<Date> {
    let looks_right = text.len() == 10 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    looks_right.then(|| text.parse().ok()).flatten()
}

fn time_of_day(text: &str) -> Option<Time> {
    let looks_right = text.contains(':') && text.bytes().all(|byte| byte.is_ascii_digit() || b":.".contains(&byte));
    looks_right.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thursday 2026-01-01 10:00:00.5 in a zone two hours ahead.
    fn now() -> Zoned {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        "2026-01-01T08:00:00.5Z".parse::<Timestamp>().expect("a time").to_zoned(zone)
    }

    fn utc(text: &str) -> String {
        let nanos = parse(text, &now()).unwrap_or_else(|error| panic!("{error}"));
        Timestamp::from_nanosecond(nanos.into()).expect("within range").to_string()
    }

    #[test]
    fn times_that_are_taken() {
        for (text, golden) in [
            ("2026-01-01 10:00", "2026-01-01T08:00:00Z"),
            ("2026-01-01 10:00:07", "2026-01-01T08:00:07Z"),
            ("2026-01-01 10:00:07.25", "2026-01-01T08:00:07.25Z"),
            ("2026-01-01", "2025-12-31T22:00:00Z"),
            (" 2026-01-01T10:00 ", "2026-01-01T08:00:00Z"),
            ("10:00", "2026-01-01T08:00:00Z"),
            ("23:59:59", "2026-01-01T21:59:59Z"),
            ("2026-01-01 10:00 UTC", "2026-01-01T10:00:00Z"),
            ("2026-01-01 UTC", "2026-01-01T00:00:00Z"),
            ("2026-01-01T10:00:00Z", "2026-01-01T10:00:00Z"),
            ("2026-01-01T10:00:00+01:00", "2026-01-01T09:00:00Z"),
            ("now", "2026-01-01T08:00:00.5Z"),
            ("today", "2025-12-31T22:00:00Z"),
            ("yesterday", "2025-12-30T22:00:00Z"),
            ("tomorrow", "2026-01-01T22:00:00Z"),
            ("-5min", "2026-01-01T07:55:00.5Z"),
            ("-5 min", "2026-01-01T07:55:00.5Z"),
            ("+1h", "2026-01-01T09:00:00.5Z"),
            ("1 hour ago", "2026-01-01T07:00:00.5Z"),
            ("2h 30min ago", "2026-01-01T05:30:00.5Z"),
            ("1h30m ago", "2026-01-01T06:30:00.5Z"),
            ("1.5d ago", "2025-12-30T20:00:00.5Z"),
            ("-500ms", "2026-01-01T08:00:00Z"),
            ("-1w", "2025-12-25T08:00:00.5Z"),
            ("-90", "2026-01-01T07:58:30.5Z"),
            ("@1767261600", "2026-01-01T10:00:00Z"),
            ("@1767261600.5", "2026-01-01T10:00:00.5Z"),
            ("@0", "1970-01-01T00:00:00Z"),
        ] {
            assert_eq!(utc(text), golden, "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_time() {
        for text in [
            "",
            " ",
            "-",
            "+",
            "ago",
            " ago",
            "5min",
            "5 parsecs ago",
            "1..5h ago",
            "2026-13-01",
            "2026-02-30 10:00",
            "25:00",
            "10",
            "10:",
            "@",
            "@1.2.3",
            "@-5",
            "@0.1234567890",
            "noon",
            "2026-01-01 10:00 Nowhere/Land",
            "-99999999999999y",
            "2026-01-01x10:00",
            "20260101",
            "-1e9s",
        ] {
            assert_eq!(parse(text, &now()), Err(TimeError(text.to_owned())), "{text}");
        }
    }
}
