//! Messages as records, in appends.
//!
//! Invariants: a message is one record; its order stays. The name of the program is the component, so an append holds
//! messages of one program in a row. A message whose parts make its record too long is stored whole, as body.

use clad_proto::{AnyValue, Body, EncodeError, Group, Payload, PayloadBuilder, RecordHead, Severity};

use super::message::SyslogMessage;
use crate::ops::metrics;

/// Bytes of an append at which it is closed.
const APPEND_BYTES: usize = 256 << 10;

const TOO_LONG: &str = "its parts make a record longer than [journal] max_record_bytes";

/// Messages in appends.
pub(super) struct MessageBatch {
    open: Option<(Option<String>, PayloadBuilder)>,
    closed: Vec<Payload>,
    max_append: u32,
    max_record: u32,
}

/// Arrival of a message.
#[derive(Clone, Copy)]
pub(super) struct Arrived {
    /// Unix nanoseconds.
    pub(super) at: u64,
    /// The length that it had, where it was cut.
    pub(super) cut_from: Option<u64>,
}

impl MessageBatch {
    /// With the largest append and the largest record that the log takes.
    pub(super) fn new((max_append, max_record): (u32, u32)) -> Self {
        Self { open: None, closed: Vec::new(), max_append, max_record }
    }

    /// The log takes other sizes from now on.
    pub(super) fn set_limits(&mut self, limits: (u32, u32)) {
        if limits != (self.max_append, self.max_record) {
            *self = Self::new(limits);
        }
    }

    /// Adds a message; false if it can never be stored.
    pub(super) fn push(&mut self, message: &SyslogMessage<'_>, whole: &[u8], arrived: Arrived) -> bool {
        metrics::syslog_message(message.format, message.fault.is_some(), arrived.cut_from.is_some());
        if self.try_push(message, arrived).is_err() {
            let raw = SyslogMessage { priority: message.priority, fault: Some(TOO_LONG), ..SyslogMessage::raw(whole) };
            if let Err(error) = self.try_push(&raw, arrived) {
                // [ingest.syslog.NAME] max_message is at most half of a record.
                tracing::error!(%error, "a message of syslog does not fit a record");
                metrics::dropped(metrics::Dropped::Invalid, 1);
                return false;
            }
        }
        true
    }

    /// Adds a record of the daemon's own.
    pub(super) fn push_own(&mut self, record: &clad_proto::Record) {
        let pushed = self.builder(Some("clad")).and_then(|builder| builder.push(record));
        if let Err(error) = pushed {
            tracing::error!(%error, "a record of drops does not fit");
        }
    }

    /// Bytes of the appends so far.
    pub(super) fn bytes(&self) -> usize {
        let open = self.open.as_ref().map_or(0, |(_, builder)| if builder.is_empty() { 0 } else { builder.len() });
        self.closed.iter().map(|payload| payload.bytes.len()).sum::<usize>() + open
    }

    /// The appends so far, in the order of their messages.
    pub(super) fn take(&mut self) -> Vec<Payload> {
        self.close();
        std::mem::take(&mut self.closed)
    }

    fn try_push(&mut self, message: &SyslogMessage<'_>, arrived: Arrived) -> Result<(), EncodeError> {
        match write(self.builder(message.app_name)?, message, arrived) {
            Err(EncodeError::AppendFull { .. }) => {
                self.close();
                write(self.builder(message.app_name)?, message, arrived)
            }
            done => done,
        }
    }

    fn close(&mut self) {
        if let Some((_, builder)) = &mut self.open
            && !builder.is_empty()
        {
            self.closed.push(builder.finish());
        }
    }

    /// The open append for messages of this program.
    fn builder(&mut self, app_name: Option<&str>) -> Result<&mut PayloadBuilder, EncodeError> {
        let fits = |open: &(Option<String>, PayloadBuilder)| open.0.as_deref() == app_name;
        if self.open.as_ref().is_some_and(|open| !fits(open) || open.1.len() >= APPEND_BYTES) {
            self.close();
        }
        let open = match self.open.take().filter(fits) {
            Some(open) => open,
            None => {
                let group = app_name.map_or_else(Group::default, Group::component_named);
                let builder = PayloadBuilder::with_limits(&group, self.max_append, self.max_record)?;
                (app_name.map(str::to_owned), builder)
            }
        };
        Ok(&mut self.open.insert(open).1)
    }
}

fn write(builder: &mut PayloadBuilder, message: &SyslogMessage<'_>, arrived: Arrived) -> Result<(), EncodeError> {
    let severity = message.priority.and_then(|priority| Severity::from_syslog(priority & 7));
    let head = RecordHead {
        time_unix_nano: message.time.unwrap_or(0),
        observed_time_unix_nano: arrived.at,
        severity_number: severity.map_or(0, |severity| severity.0),
        flags: 0,
    };
    let body = match std::str::from_utf8(message.body) {
        Ok("") => Body::Empty,
        Ok(text) => Body::Text(text),
        Err(_) => Body::Bytes(message.body),
    };
    let mut record = builder.record(head, body);
    record.attributes(|attributes| {
        let texts = [
            ("syslog.facility", message.facility()),
            ("syslog.hostname", message.hostname),
            ("syslog.procid", message.procid),
            ("syslog.msgid", message.msgid),
            ("syslog.sequence", message.clock.sequence),
            ("syslog.time_zone", message.clock.zone),
            ("clad.parse_error", message.fault),
        ];
        for (key, text) in texts {
            if let Some(text) = text {
                attributes.entry(key).text(text);
            }
        }
        for parameter in message.elements.parameters() {
            let key = match parameter.name {
                Some(name) => format!("syslog.structured_data.{}.{name}", parameter.element),
                None => format!("syslog.structured_data.{}", parameter.element),
            };
            match std::str::from_utf8(&parameter.value) {
                Ok(text) => attributes.entry(&key).text(text),
                Err(_) => attributes.entry(&key).bytes(&parameter.value),
            }
        }
        for (key, is_set) in [
            ("syslog.bom", message.has_bom),
            ("syslog.time_doubtful", message.clock.is_doubtful),
            ("log.truncated", arrived.cut_from.is_some()),
        ] {
            if is_set {
                attributes.entry(key).boolean(true);
            }
        }
        if let Some(length) = arrived.cut_from {
            attributes.entry("log.original_length").any(&AnyValue::Int(i64::try_from(length).unwrap_or(i64::MAX)));
        }
    });
    record.commit()
}
