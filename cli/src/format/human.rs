//! Numbers for people: never more precise than a glance can take in. Programs get JSON.

use std::time::Duration;

/// `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}

/// `1 record`, `1,234 records`.
pub(crate) fn counted(number: u64, what: &str) -> String {
    format!("{} {what}{}", count(number), if number == 1 { "" } else { "s" })
}

/// `512 B`, `1.5 KiB`, `64.0 MiB`.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `850 µs`, `1.25 ms`, `3.4 s`, `12 min 5 s`, `3 h 12 min`, `2 d 5 h`.
pub(crate) fn duration(duration: Duration) -> String {
    let micros = duration.as_micros();
    let seconds = duration.as_secs();
    match seconds {
        0 if micros < 1000 => format!("{micros} µs"),
        0 => format!("{:.2} ms", micros as f64 / 1e3),
        1..=59 => format!("{:.1} s", duration.as_secs_f64()),
        60..=3599 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..=86_399 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_at_a_glance() {
        for (number, golden) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), golden);
        }
        assert_eq!((counted(1, "line"), counted(2, "line")), ("1 line".to_owned(), "2 lines".to_owned()));
        for (number, golden) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (64 << 20, "64.0 MiB"),
            (1_048_575, "1.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(number), golden);
        }
        for (micros, golden) in [
            (850, "850 µs"),
            (1250, "1.25 ms"),
            (3_400_000, "3.4 s"),
            (725_000_000, "12 min 5 s"),
            (11_520_000_000, "3 h 12 min"),
            (190_800_000_000, "2 d 5 h"),
        ] {
            assert_eq!(duration(Duration::from_micros(micros)), golden);
        }
    }
}
