//! Sizes and durations as people write them.
//!
//! Invariants: a text is read exactly or refused, never rounded; what [`show_size`] and [`show_duration`] print is read
//! back as the same value; a bare number is a size in bytes but never a duration, because its unit is not known.

use std::time::Duration;

/// Units of sizes: the binary ones first, so that [`show_size`] prefers them. Compared without case:
/// nobody gives a log's size in bits.
const SIZES: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Units of durations in nanoseconds, longest first: [`show_duration`] takes them in this order.
const DURATIONS: [(&str, u64); 8] = [
    ("w", 7 * 86_400_000_000_000),
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Reads `64MiB`, `10 MB` or `4096`; `None` where the text is anything else or does not fit 64 bits.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let (number, rest) = leading_number(text.trim())?;
    let unit = rest.trim_start();
    if unit.is_empty() {
        return Some(number);
    }
    let (_, factor) = SIZES.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    number.checked_mul(*factor)
}

/// The shortest exact text: in the largest binary unit that divides the value, else in bytes.
pub(crate) fn show_size(bytes: u64) -> String {
    SIZES[..4]
        .iter()
        .find(|(_, factor)| bytes != 0 && bytes.is_multiple_of(*factor))
        .map_or_else(|| bytes.to_string(), |(name, factor)| format!("{}{name}", bytes / factor))
}

/// Reads `10ms`, `1h30m`, `7d`, and `0`, the one number that needs no unit.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut nanos: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = leading_number(rest)?;
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (_, factor) = DURATIONS.iter().find(|(name, _)| *name == &after[..end])?;
        nanos = nanos.checked_add(number.checked_mul(*factor)?)?;
        rest = &after[end..];
    }
    (!text.trim().is_empty()).then(|| Duration::from_nanos(nanos))
}

/// The value in its units, longest first: `1h30m`; nothing at all is `0`.
pub(crate) fn show_duration(duration: Duration) -> String {
    // Weeks are read but not shown: `7d` is what people expect to see for a week.
    let mut nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let mut shown = String::new();
    for (name, factor) in &DURATIONS[1..] {
        if nanos >= *factor {
            shown.push_str(&format!("{}{name}", nanos / factor));
            nanos %= factor;
        }
    }
    if shown.is_empty() {
        shown.push('0');
    }
    shown
}

/// Splits the decimal number off the front of a text.
fn leading_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_exactly_or_refused() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64MiB", 64 << 20),
            ("64 mib", 64 << 20),
            ("10MB", 10_000_000),
            ("1kB", 1000),
            ("7B", 7),
            ("3TiB", 3 << 40),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        // `M` could be either unit; a fraction would have to be rounded; the last does not fit.
        for text in ["", "MiB", "64M", "1.5GiB", "-1", "64 MiB!", "20000000TiB", "1_000"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_read_exactly_or_refused() {
        for (text, duration) in [
            ("0", Duration::ZERO),
            ("0s", Duration::ZERO),
            ("10ms", Duration::from_millis(10)),
            ("1h30m", Duration::from_secs(5400)),
            ("7d", Duration::from_secs(7 * 86_400)),
            ("1w", Duration::from_secs(7 * 86_400)),
            ("250us", Duration::from_micros(250)),
        ] {
            assert_eq!(parse_duration(text), Some(duration), "{text}");
        }
        for text in ["", "10", "ms", "10 ms", "1h30", "-1s", "1.5s", "99999999w"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_shown_is_read_back() {
        for bytes in [0, 1, 1000, 1024, 1536, 64 << 20, 1 << 40, u64::MAX] {
            assert_eq!(parse_size(&show_size(bytes)), Some(bytes));
        }
        for nanos in [0, 1, 5_000_000, 5_400_000_000_000, 90_061_000_000_001] {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(parse_duration(&show_duration(duration)), Some(duration));
        }
        assert_eq!(show_size(64 << 20), "64MiB");
        assert_eq!(show_duration(Duration::from_secs(5400)), "1h30m");
    }
}
