//! An entry, and the record that it becomes.

use std::borrow::Cow;

use crate::{AnyValue, Body, EncodeError, Group, KvWriter, PayloadBuilder, RecordHead, Severity, ValueWriter};

/// Attribute with an entry's cursor, by which journalctl finds it.
pub const CURSOR_ATTRIBUTE: &str = "clad.source.cursor";
/// Before the name of a field that has no name in OpenTelemetry's conventions.
const PREFIX: &str = "journald.";
/// Fields with names in OpenTelemetry's conventions, and whether these are numbers. `_` before a name: the journal itself
/// says so, not the sender.
const NAMES: [(&str, &str, bool); 10] = [
    ("CODE_FILE", "code.file.path", false),
    ("CODE_FUNC", "code.function.name", false),
    ("CODE_LINE", "code.line.number", true),
    ("_CMDLINE", "process.command_line", false),
    ("_COMM", "process.executable.name", false),
    ("_EXE", "process.executable.path", false),
    ("_HOSTNAME", "host.name", false),
    ("_PID", "process.pid", true),
    ("_SYSTEMD_UNIT", "systemd.unit", false),
    ("__CURSOR", CURSOR_ATTRIBUTE, false),
];
/// Fields that the cursor says too.
const IN_CURSOR: [&str; 3] = ["__MONOTONIC_TIMESTAMP", "__SEQNUM", "__SEQNUM_ID"];

/// An entry of the journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalEntry {
    /// In the order of their names.
    pub(super) fields: Vec<(String, Vec<u8>)>,
    /// Bytes of all values as they were, where some are not here.
    pub(super) cut_from: Option<u64>,
}

impl JournalEntry {
    /// The first value of a field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        let at = self.fields.partition_point(|(field, _)| field.as_str() < name);
        self.fields.get(at).filter(|(field, _)| field == name).map(|(_, value)| value.as_slice())
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.field(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// The values of a field.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.fields.iter().filter(move |(field, _)| field == name).map(|(_, value)| value.as_slice())
    }

    /// Where journalctl finds it.
    #[must_use]
    pub fn cursor(&self) -> Option<&str> {
        self.text("__CURSOR")
    }

    /// The program: its identifier, else the name that the kernel has.
    #[must_use]
    pub fn component(&self) -> Option<&str> {
        let fits = |name: &&str| !name.is_empty() && name.len() <= 256;
        self.text("SYSLOG_IDENTIFIER").filter(fits).or_else(|| self.text("_COMM").filter(fits))
    }

    /// The group of its record.
    #[must_use]
    pub fn group(&self) -> Group {
        self.component().map_or_else(Group::default, Group::component_named)
    }

    /// Adds it as a record.
    ///
    /// # Errors
    /// As [`PayloadBuilder::push`]. It fits a record of twice the bytes that its reader was given.
    pub fn push_to(&self, builder: &mut PayloadBuilder) -> Result<(), EncodeError> {
        let micros = |name| self.text(name).and_then(|text| text.parse::<u64>().ok()?.checked_mul(1000));
        let received = micros("__REALTIME_TIMESTAMP");
        let sent = micros("_SOURCE_REALTIME_TIMESTAMP");
        let severity = self.text("PRIORITY").and_then(|text| Severity::from_syslog(text.parse().ok()?));
        let head = RecordHead {
            time_unix_nano: sent.or(received).unwrap_or(0),
            observed_time_unix_nano: received.unwrap_or(0),
            severity_number: severity.map_or(0, |severity| severity.0),
            flags: 0,
        };
        let body = match self.field("MESSAGE").map(std::str::from_utf8) {
            None => Body::Absent,
            Some(Ok(text)) => Body::Text(text),
            Some(Err(_)) => Body::Bytes(self.field("MESSAGE").unwrap_or_default()),
        };
        let mut record = builder.record(head, body);
        record.attributes(|attributes| {
            for same in self.fields.chunk_by(|(one, _), (other, _)| one == other) {
                let name = same[0].0.as_str();
                let said = match name {
                    "MESSAGE" => true,
                    "PRIORITY" => severity.is_some(),
                    "SYSLOG_IDENTIFIER" => self.component().is_some_and(|name| name.as_bytes() == same[0].1),
                    "__REALTIME_TIMESTAMP" => received.is_some(),
                    "_SOURCE_REALTIME_TIMESTAMP" => sent.is_some(),
                    _ => IN_CURSOR.contains(&name) && self.cursor().is_some(),
                };
                put(attributes, name, &same[usize::from(said)..]);
            }
            if let Some(length) = self.cut_from {
                attributes.entry("log.truncated").boolean(true);
                attributes.entry("log.original_length").int(i64::try_from(length).unwrap_or(i64::MAX));
            }
        });
        record.commit()
    }
}

/// Adds the values of a field; of none, nothing.
fn put(attributes: &mut KvWriter<'_>, name: &str, values: &[(String, Vec<u8>)]) {
    let known = NAMES.iter().find(|(field, _, _)| *field == name);
    let own = || Cow::Owned([PREFIX, name].concat());
    match (values, known) {
        ([], _) => {}
        ([(_, value)], Some((_, key, true))) => match number(value) {
            Some(number) => attributes.entry(key).int(number),
            None => put_value(attributes.entry(&own()), value),
        },
        ([(_, value)], _) => {
            let key = known.map_or_else(own, |(_, key, _)| Cow::Borrowed(*key));
            put_value(attributes.entry(&key), value);
        }
        _ => {
            let values = values.iter().map(|(_, value)| match std::str::from_utf8(value) {
                Ok(text) => AnyValue::String(text.to_owned()),
                Err(_) => AnyValue::Bytes(value.clone()),
            });
            attributes.entry(&own()).any(&AnyValue::Array(values.collect()));
        }
    }
}

/// A number, where it is written as one is.
fn number(value: &[u8]) -> Option<i64> {
    let number = std::str::from_utf8(value).ok()?.parse::<i64>().ok()?;
    (number.to_string().as_bytes() == value).then_some(number)
}

fn put_value(writer: ValueWriter<'_, '_>, value: &[u8]) {
    match std::str::from_utf8(value) {
        Ok(text) => writer.text(text),
        Err(_) => writer.bytes(value),
    }
}
