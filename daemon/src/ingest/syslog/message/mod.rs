//! A message of syslog, taken apart.
//!
//! Invariants:
//! - Any bytes are a message: what cannot be taken apart is the body, whole, with the fault named beside it.
//! - The body is the sender's bytes, untouched but for the BOM that says it is UTF-8.
//! - Nothing is invented: a part is there only if it was sent. Exceptions: priority 13 where none can be read (RFC 3164, 4.3.3),
//!   and the year of a time that has none.
//! - The work is linear in the length of the message.

mod elements;
mod parts;
mod rfc3164;
mod rfc5424;
mod timestamp;
mod words;

use crate::config::SyslogFormat;

#[cfg(test)]
use {crate::ops::metrics, elements::Elements, jiff::tz::TimeZone, parts::Clock};

pub(crate) use parts::Rules;
pub(super) use parts::SyslogMessage;

/// `user.notice`.
const DEFAULT_PRIORITY: u8 = 13;
/// Highest priority: facility 23, severity 7.
const PRIORITY_MAX: u16 = 191;

const NO_PRIORITY: &str = "no priority: it does not begin with <0> to <191>";

/// Takes a message apart that arrived at `now`, Unix nanoseconds.
pub(super) fn parse<'a>(bytes: &'a [u8], rules: &Rules, now: u64) -> SyslogMessage<'a> {
    let raw = SyslogMessage::raw(bytes);
    if rules.format == SyslogFormat::Raw {
        return raw;
    }
    let Some((priority, rest)) = priority(bytes) else {
        return SyslogMessage { priority: Some(DEFAULT_PRIORITY), fault: Some(NO_PRIORITY), ..raw };
    };
    let raw = SyslogMessage { priority: Some(priority), ..raw };
    match (rules.format, rest.strip_prefix(b"1 ")) {
        (SyslogFormat::Rfc5424, None) => SyslogMessage { fault: Some(rfc5424::NO_VERSION), ..raw },
        (SyslogFormat::Rfc5424 | SyslogFormat::Auto, Some(rest)) => rfc5424::parse(rest, raw),
        _ => rfc3164::parse(rest, raw, rules, now),
    }
}

/// `<PRI>`, and what is behind it.
fn priority(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let rest = bytes.strip_prefix(b"<")?;
    let digits = rest.iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
    let number = rest[..digits].iter().fold(0, |number, digit| number * 10 + u16::from(digit - b'0'));
    let rest = rest[digits..].strip_prefix(b">").filter(|_| digits > 0 && number <= PRIORITY_MAX)?;
    Some((u8::try_from(number).ok()?, rest))
}

#[cfg(test)]
mod tests;
