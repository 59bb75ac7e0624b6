//! RFC 5424: `<PRI>1 TIMESTAMP HOSTNAME APP-NAME PROCID MSGID STRUCTURED-DATA MSG`.
//!
//! Laxer than the RFC where nothing is lost by it: parts may be longer, and UTF-8.

use super::elements::Elements;
use super::parts::SyslogMessage;
use super::timestamp;
use super::words::{header_part, word};
use crate::ops::metrics;

const BOM: &[u8] = b"\xEF\xBB\xBF";
pub(super) const NO_VERSION: &str = "not RFC 5424: no version 1 behind the priority";
const BAD_TIME: &str = "not RFC 5424: the time is neither - nor as in RFC 3339";
const BAD_HEADER: &str = "not RFC 5424: a part of the header is missing, too long, or no text";
const BAD_DATA: &str = "not RFC 5424: structured data is not well formed";

/// Takes apart what is behind the version. `raw` is what it is where that fails.
pub(super) fn parse<'a>(rest: &'a [u8], raw: SyslogMessage<'a>) -> SyslogMessage<'a> {
    let mut message = SyslogMessage { format: metrics::SyslogFormat::Rfc5424, ..raw.clone() };
    let (time, mut rest) = word(rest);
    if time != b"-" {
        message.time = timestamp::rfc3339(time, None);
        if message.time.is_none() {
            return SyslogMessage { fault: Some(BAD_TIME), ..raw };
        }
    }
    let parts = [&mut message.hostname, &mut message.app_name, &mut message.procid, &mut message.msgid];
    for part in parts {
        let (text, behind) = word(rest);
        rest = behind;
        match header_part(text) {
            Some("-") => {}
            Some(text) => *part = Some(text),
            None => return SyslogMessage { fault: Some(BAD_HEADER), ..raw },
        }
    }
    // The header is right: it stays, whatever comes behind it.
    let (elements, rest) = match rest.strip_prefix(b"-") {
        Some(rest) => (Elements::default(), rest),
        None => match Elements::parse(rest) {
            Some(found) => found,
            None => return SyslogMessage { fault: Some(BAD_DATA), body: raw.body, ..message },
        },
    };
    let body = match rest {
        [] => rest,
        [b' ', body @ ..] => body,
        _ => return SyslogMessage { fault: Some(BAD_DATA), body: raw.body, ..message },
    };
    let has_bom = body.starts_with(BOM);
    SyslogMessage { elements, body: if has_bom { &body[BOM.len()..] } else { body }, has_bom, ..message }
}
