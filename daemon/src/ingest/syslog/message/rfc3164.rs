//! RFC 3164, which describes what programs do: `<PRI>Mmm dd hh:mm:ss HOSTNAME TAG[PID]: CONTENT`, and what vendors make of it.
//!
//! Each part may be missing. Times come with a year, with fractions, as in RFC 3339, with a zone, behind a `*`, before a
//! colon, behind a number (Cisco). A tag ends in `:` or `[PID]` and a blank; without that the content has no tag. Without a
//! time there is no host either: the first word of a plain sentence is none.

use super::parts::{Clock, Rules, SyslogMessage};
use super::timestamp;
use super::words::{header_part, word};
use crate::ops::metrics;

/// Longest tag. The RFC has 32; programs have more.
const TAG_BYTES_MAX: usize = 128;

/// Takes apart what is behind the priority.
pub(super) fn parse<'a>(rest: &'a [u8], raw: SyslogMessage<'a>, rules: &Rules, now: u64) -> SyslogMessage<'a> {
    let mut message = SyslogMessage { format: metrics::SyslogFormat::Rfc3164, ..raw };
    let (sequence, behind_sequence) = sequence(rest);
    let doubtful = behind_sequence.strip_prefix(b"*").or_else(|| behind_sequence.strip_prefix(b"."));
    let mut content = rest;
    if let Some((timestamp, behind)) = timestamp::leading(doubtful.unwrap_or(behind_sequence), &rules.zone, now) {
        message.time = timestamp.time;
        message.clock = Clock { sequence, zone: timestamp.zone, is_doubtful: doubtful.is_some() };
        content = match hostname(behind, rules) {
            Some((hostname, behind)) => {
                message.hostname = Some(hostname);
                behind
            }
            None => behind,
        };
        // Cisco's ASA puts blanks around the colon behind the host.
        content = content.strip_prefix(b": ").unwrap_or(content);
    }
    if let Some((tag, procid, behind)) = tag(content) {
        (message.app_name, message.procid, content) = (Some(tag), procid, behind);
    }
    SyslogMessage { body: content, ..message }
}

/// `123: `, which Cisco's devices put before the time.
fn sequence(rest: &[u8]) -> (Option<&str>, &[u8]) {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match rest[digits..].strip_prefix(b": ") {
        Some(behind) if digits > 0 => (header_part(&rest[..digits]), behind),
        _ => (None, rest),
    }
}

/// The host, where the next word is one, and what is behind it.
fn hostname<'a>(rest: &'a [u8], rules: &Rules) -> Option<(&'a str, &'a [u8])> {
    let (first, behind) = word(rest);
    if tag(rest).is_some() {
        return None;
    }
    let name = header_part(first).filter(|name| first.len() < rest.len() && !name.ends_with(':'))?;
    // On a local socket programs send none, but some send this host's.
    let is_one = rules.local_names.as_ref().is_none_or(|names| names.iter().any(|own| own == name));
    is_one.then_some((name, behind))
}

/// `TAG: `, `TAG[PID]: ` or `TAG[PID] `: the tag, the process, and what is behind them and one blank.
fn tag(content: &[u8]) -> Option<(&str, Option<&str>, &[u8])> {
    let end = content.iter().take(TAG_BYTES_MAX + 1).position(|byte| matches!(byte, b' ' | b':' | b'['))?;
    let name = header_part(&content[..end])?;
    let rest = &content[end..];
    let (procid, rest) = match rest.strip_prefix(b"[") {
        None => (None, rest.strip_prefix(b":")?),
        Some(inner) => {
            let close = inner.iter().take(TAG_BYTES_MAX).position(|byte| *byte == b']')?;
            let behind = &inner[close + 1..];
            (Some(header_part(&inner[..close])?), behind.strip_prefix(b":").unwrap_or(behind))
        }
    };
    match rest {
        [] => Some((name, procid, rest)),
        [b' ', behind @ ..] => Some((name, procid, behind)),
        _ => None,
    }
}
