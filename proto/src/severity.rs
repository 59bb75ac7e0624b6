//! Severity: the numbers of the OpenTelemetry data model, their short names, and syslog's eight priorities.
//!
//! The eight exact pairs are those of appendix B of the data model: emerg..debug is 21, 19, 18, 17, 13, 10, 9, 5. Any
//! other number goes to the priority of the range it lies in.

use crate::level::ParseNameError;
use std::{fmt, str::FromStr};

/// A severity number. 1 to 24 have names; 0 says unspecified; any other value is preserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Severity(pub i32);

const NAMES: [&str; 24] = [
    "TRACE", "TRACE2", "TRACE3", "TRACE4", "DEBUG", "DEBUG2", "DEBUG3", "DEBUG4", "INFO", "INFO2", "INFO3", "INFO4",
    "WARN", "WARN2", "WARN3", "WARN4", "ERROR", "ERROR2", "ERROR3", "ERROR4", "FATAL", "FATAL2", "FATAL3", "FATAL4",
];

/// Severity numbers of the syslog priorities 0 (emerg) to 7 (debug).
const OF_SYSLOG: [i32; 8] = [21, 19, 18, 17, 13, 10, 9, 5];
const SYSLOG_NAMES: [&str; 8] = ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];

impl Severity {
    /// Fine-grained debugging.
    pub const TRACE: Self = Self(1);
    /// Debugging.
    pub const DEBUG: Self = Self(5);
    /// Informational.
    pub const INFO: Self = Self(9);
    /// A warning.
    pub const WARN: Self = Self(13);
    /// An error.
    pub const ERROR: Self = Self(17);
    /// The program cannot continue.
    pub const FATAL: Self = Self(21);

    /// The severity of a syslog priority (0 emerg to 7 debug).
    #[must_use]
    pub fn from_syslog(priority: u8) -> Option<Self> {
        OF_SYSLOG.get(usize::from(priority)).map(|&number| Self(number))
    }

    /// The syslog priority; nothing for numbers that the data model does not name.
    #[must_use]
    pub const fn to_syslog(self) -> Option<u8> {
        Some(match self.0 {
            1..=8 => 7,
            9 => 6,
            10..=12 => 5,
            13..=16 => 4,
            17 => 3,
            18 => 2,
            19..=20 => 1,
            21..=24 => 0,
            _ => return None,
        })
    }

    /// The short name (`INFO`, `WARN2`), nothing for numbers that have none.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        usize::try_from(self.0).ok().and_then(|n| NAMES.get(n.checked_sub(1)?)).copied()
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.0) {
            (Some(name), _) => f.pad(name),
            (None, 0) => f.pad("-"),
            (None, number) => f.pad(&number.to_string()),
        }
    }
}

impl From<i32> for Severity {
    fn from(number: i32) -> Self {
        Self(number)
    }
}

impl FromStr for Severity {
    type Err = ParseNameError;

    /// Takes the short names and syslog's names in any case, and the words people use for them. A bare number is not
    /// taken: it could mean a syslog priority or a severity number.
    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        let is = |name: &str| name.eq_ignore_ascii_case(text);
        if let Some(at) = NAMES.iter().position(|name| is(name)) {
            return Ok(Self(at as i32 + 1));
        }
        let word = match text.to_ascii_lowercase().as_str() {
            "emergency" | "panic" => "emerg",
            "critical" => "crit",
            "warning" => "warning",
            "information" | "informational" => "info",
            other => return syslog_word(other).ok_or_else(|| unknown(text)),
        };
        syslog_word(word).ok_or_else(|| unknown(text))
    }
}

fn syslog_word(word: &str) -> Option<Severity> {
    let at = SYSLOG_NAMES.iter().position(|name| *name == word)?;
    OF_SYSLOG.get(at).map(|&number| Severity(number))
}

fn unknown(text: &str) -> ParseNameError {
    ParseNameError {
        text: text.to_owned(),
        kind: "severity",
        expected: "trace, debug, info, notice, warn, error, crit, alert, fatal, emerg (or trace2 … fatal4)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syslog_goes_there_and_back() {
        for (priority, number) in [21, 19, 18, 17, 13, 10, 9, 5].into_iter().enumerate() {
            let severity = Severity::from_syslog(priority as u8).expect("eight priorities");
            assert_eq!(severity.0, number);
            assert_eq!(severity.to_syslog(), Some(priority as u8));
            assert_eq!(SYSLOG_NAMES[priority].parse(), Ok(severity));
        }
        assert_eq!(Severity::from_syslog(8), None);
        assert_eq!(Severity(0).to_syslog(), None);
        assert_eq!(Severity(25).to_syslog(), None);
    }

    #[test]
    fn names_go_there_and_back() {
        for number in 1..=24 {
            let severity = Severity(number);
            assert_eq!(severity.name().expect("named").to_lowercase().parse(), Ok(severity));
        }
        for odd in [i32::MIN, -1, 0, 25, i32::MAX] {
            assert_eq!(Severity(odd).name(), None);
        }
        assert_eq!(Severity(300).to_string(), "300");
        assert!("9".parse::<Severity>().is_err());
        assert_eq!("Warning".parse(), Ok(Severity::WARN));
        assert_eq!("critical".parse(), Ok(Severity(18)));
    }
}
