//! The parts of a message.

use jiff::tz::TimeZone;

use super::elements::Elements;
use crate::config::SyslogFormat;
use crate::ops::metrics;

/// Rules by which a listener reads messages.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) format: SyslogFormat,
    /// Zone of times without one.
    pub(crate) zone: TimeZone,
    /// Names of this host, as a program of this host may put them into a message on a local socket; absent elsewhere.
    pub(crate) local_names: Option<Vec<String>>,
}

/// Words of a device about its clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::ingest::syslog) struct Clock<'a> {
    /// A number that it puts before the time.
    pub(in crate::ingest::syslog) sequence: Option<&'a str>,
    /// A zone that it names behind the time, and that is not known by its name.
    pub(in crate::ingest::syslog) zone: Option<&'a str>,
    /// The clock is not set.
    pub(in crate::ingest::syslog) is_doubtful: bool,
}

/// The parts of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::ingest::syslog) struct SyslogMessage<'a> {
    pub(in crate::ingest::syslog) format: metrics::SyslogFormat,
    /// Facility and severity; absent where the format has none.
    pub(in crate::ingest::syslog) priority: Option<u8>,
    /// Unix nanoseconds.
    pub(in crate::ingest::syslog) time: Option<u64>,
    pub(in crate::ingest::syslog) clock: Clock<'a>,
    pub(in crate::ingest::syslog) hostname: Option<&'a str>,
    pub(in crate::ingest::syslog) app_name: Option<&'a str>,
    pub(in crate::ingest::syslog) procid: Option<&'a str>,
    pub(in crate::ingest::syslog) msgid: Option<&'a str>,
    /// Structured data, well formed.
    pub(in crate::ingest::syslog) elements: Elements<'a>,
    pub(in crate::ingest::syslog) body: &'a [u8],
    pub(in crate::ingest::syslog) has_bom: bool,
    pub(in crate::ingest::syslog) fault: Option<&'static str>,
}

impl<'a> SyslogMessage<'a> {
    /// The whole as body.
    pub(in crate::ingest::syslog) fn raw(bytes: &'a [u8]) -> Self {
        Self {
            format: metrics::SyslogFormat::Raw,
            priority: None,
            time: None,
            clock: Clock::default(),
            hostname: None,
            app_name: None,
            procid: None,
            msgid: None,
            elements: Elements::default(),
            body: bytes,
            has_bom: false,
            fault: None,
        }
    }

    /// The facility's name.
    pub(in crate::ingest::syslog) fn facility(&self) -> Option<&'static str> {
        self.priority.and_then(|priority| FACILITIES.get(usize::from(priority >> 3)).copied())
    }
}

/// Names of the facilities, as `syslog(3)` and RFC 5424 (table 1) give them.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp",
    "audit", "alert", "clock", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
];
