//! Which records are shown.
//!
//! Invariants: a record is shown when everything that was asked for holds; times are both included; a record without
//! a severity is in no range of severities. A pattern without capitals ignores case, as journalctl's does.

use std::str::FromStr;

use clad_proto::{LogId, Severity};
use regex::bytes::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::format::{Entry, json};

/// A range of severities, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Priorities {
    least: i32,
    most: i32,
}

/// A text that names no severities.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no priority: a name (err, warning, WARN2), a number 0 (emerg) to 7 (debug), or FROM..TO")]
pub(crate) struct PriorityError(String);

impl FromStr for Priorities {
    type Err = PriorityError;

    /// One name or number is that and everything more severe; `FROM..TO` is what lies between, in either order.
    fn from_str(text: &str) -> Result<Self, PriorityError> {
        let one = |name: &str| {
            let number = match name.parse::<u8>() {
                Ok(priority) => Severity::from_syslog(priority),
                Err(_) => name.parse().ok(),
            };
            number.ok_or_else(|| PriorityError(text.to_owned()))
        };
        match text.split_once("..") {
            None => Ok(Self { least: one(text)?.0, most: i32::MAX }),
            Some((from, to)) => {
                let (from, to) = (one(from)?, one(to)?);
                Ok(Self { least: from.0.min(to.0), most: top(from.max(to)).0 })
            }
        }
    }
}

/// The highest number that goes by the same word: `warning` is 13 to 16.
fn top(severity: Severity) -> Severity {
    let exact = severity.to_syslog().and_then(Severity::from_syslog) == Some(severity);
    let same = |number: &i32| Severity(*number).to_syslog() == severity.to_syslog();
    let highest = (severity.0..=24).take_while(same).last();
    if exact { Severity(highest.unwrap_or(severity.0)) } else { severity }
}

/// Everything that was asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    /// Not before this, Unix nanoseconds.
    pub(crate) since: Option<i64>,
    /// Not after this.
    pub(crate) until: Option<i64>,
    /// Of these severities.
    pub(crate) priorities: Option<Priorities>,
    /// Of one of these components; none is all.
    pub(crate) components: Vec<String>,
    /// Of senders with one of these names in their certificates; none is all.
    pub(crate) identities: Vec<String>,
    /// Forwarded, and first in one of these logs; none is all.
    pub(crate) origins: Vec<LogId>,
    /// With this in the body.
    pub(crate) pattern: Option<Regex>,
}

/// A pattern as journalctl reads it.
pub(crate) fn pattern(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text).case_insensitive(ignores_case(text)).build()
}

fn ignores_case(text: &str) -> bool {
    !text.chars().any(char::is_uppercase)
}

impl Filter {
    /// Returns true if a record is shown.
    pub(crate) fn lets(&self, entry: &Entry<'_>) -> bool {
        let sender = self.identity(entry) && self.origin(entry);
        self.time(entry) && self.severity(entry) && self.component(entry) && sender && self.body(entry)
    }

    /// Filter that a daemon is asked for; nothing where that would be every record, or is more than a daemon is asked.
    /// Bodies that are no text come along, and are looked at here.
    pub(crate) fn asked(&self) -> Option<clad_client::Filter> {
        let mut asked = clad_client::Filter::new();
        if let Some(Priorities { least, most }) = self.priorities {
            asked = asked.severity_within(Severity(least), Severity(most));
        }
        match self.components.as_slice() {
            [] => {}
            [one] => asked = asked.component_named(one),
            several => asked = asked.any(several.iter().map(|one| clad_client::Filter::new().component_named(one))),
        }
        if let Some(pattern) = &self.pattern {
            asked = asked.body_matches(pattern.as_str(), ignores_case(pattern.as_str()));
        }
        (asked != clad_client::Filter::new() && asked.to_bytes().is_ok()).then_some(asked)
    }

    fn time(&self, entry: &Entry<'_>) -> bool {
        if self.since.is_none() && self.until.is_none() {
            return true;
        }
        let time = i64::try_from(entry.time()).unwrap_or(i64::MAX);
        self.since.is_none_or(|since| time >= since) && self.until.is_none_or(|until| time <= until)
    }

    fn severity(&self, entry: &Entry<'_>) -> bool {
        let number = entry.record.severity_number();
        self.priorities.is_none_or(|range| number > 0 && (range.least..=range.most).contains(&number))
    }

    fn component(&self, entry: &Entry<'_>) -> bool {
        self.components.is_empty()
            || entry.group.component().is_some_and(|name| self.components.iter().any(|wanted| wanted == name))
    }

    /// A daemon is not asked for these: what comes along is looked at here.
    fn identity(&self, entry: &Entry<'_>) -> bool {
        let identity = entry.peer_meta.identity.as_ref();
        self.identities.is_empty() || identity.is_some_and(|identity| self.identities.contains(identity))
    }

    fn origin(&self, entry: &Entry<'_>) -> bool {
        let origin = entry.peer_meta.origin.as_ref();
        self.origins.is_empty() || origin.is_some_and(|origin| self.origins.contains(&origin.log_id))
    }

    fn body(&self, entry: &Entry<'_>) -> bool {
        let Some(pattern) = &self.pattern else { return true };
        match (entry.record.body_bytes(), entry.record.body()) {
            (Some(bytes), _) => pattern.is_match(bytes),
            (None, Some(value)) => {
                let mut text = String::new();
                json::any(&mut text, value);
                pattern.is_match(text.as_bytes())
            }
            (None, None) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use clad_proto::frame::PeerMeta;
    use clad_proto::{AnyValue, Group, PayloadBuilder, PayloadView, ProducerId, Record};

    use super::*;

    fn lets(filter: &Filter, component: &str, record: &Record) -> bool {
        let mut builder = PayloadBuilder::new(&Group::component_named(component)).expect("a small group");
        builder.push(record).expect("a small record");
        let payload = builder.finish();
        let view = PayloadView::parse(&payload.bytes, 1).expect("what was built parses");
        filter.lets(&Entry {
            log_id: LogId::ZERO,
            epoch: 0,
            offset: 0,
            append_time: 500,
            producer_id: ProducerId::ZERO,
            producer_epoch: 0,
            sequence: 0,
            place: 0,
            peer_meta: &PeerMeta::default(),
            group: view.group(),
            record: view.records().next().expect("one record"),
        })
    }

    fn range(text: &str) -> (i32, i32) {
        let range: Priorities = text.parse().unwrap_or_else(|error| panic!("{error}"));
        (range.least, range.most)
    }

    #[test]
    fn priorities() {
        assert_eq!(range("err"), (17, i32::MAX));
        assert_eq!(range("3"), (17, i32::MAX));
        assert_eq!(range("WARN2"), (14, i32::MAX));
        assert_eq!(range("trace"), (1, i32::MAX));
        assert_eq!(range("info..warning"), (9, 16));
        assert_eq!(range("warning..info"), (9, 16));
        assert_eq!(range("4..6"), (9, 16));
        assert_eq!(range("err..err"), (17, 17));
        assert_eq!(range("emerg..emerg"), (21, 24));
        assert_eq!(range("debug2..warn2"), (6, 14));
        for bad in ["", "8", "-1", "loud", "err..", "..err", "1..2..3"] {
            assert_eq!(bad.parse::<Priorities>(), Err(PriorityError(bad.to_owned())));
        }
        let filter = Filter { priorities: Some("warning".parse().expect("a name")), ..Filter::default() };
        for (number, shown) in [(0, false), (9, false), (13, true), (24, true), (300, true), (-3, false)] {
            assert_eq!(lets(&filter, "c", &Record::text(1, number, "x")), shown, "{number}");
        }
    }

    #[test]
    fn times_are_the_records_own_then_observed_then_of_the_append() {
        let filter = Filter { since: Some(100), until: Some(200), ..Filter::default() };
        for (time, observed, shown) in [
            (100, 0, true),
            (200, 0, true),
            (99, 0, false),
            (201, 0, false),
            (0, 150, true),
            (150, 999, true),
            (0, 0, false),
        ] {
            let record = Record { observed_time_unix_nano: observed, ..Record::text(time, 9, "x") };
            assert_eq!(lets(&filter, "c", &record), shown, "{time} {observed}");
        }
    }

    #[test]
    fn components_and_patterns() {
        let filter = Filter { components: vec!["a".into(), "b".into()], ..Filter::default() };
        assert!(lets(&filter, "b", &Record::default()) && !lets(&filter, "ab", &Record::default()));
        let with = |text: &str| Filter { pattern: Some(pattern(text).expect("a pattern")), ..Filter::default() };
        assert!(lets(&with("fail(ed|ure)"), "c", &Record::text(1, 9, "It FAILED")));
        assert!(!lets(&with("Fail"), "c", &Record::text(1, 9, "it failed")));
        let bytes = |body: &[u8]| Record { body: Some(AnyValue::Bytes(body.to_vec())), ..Record::default() };
        assert!(lets(&with("nul.$"), "c", &bytes(b"\xff nul\0")));
        let list = Record { body: Some(AnyValue::Array(vec!["needle".into()])), ..Record::default() };
        assert!(lets(&with("\"needle\""), "c", &list));
        assert!(!lets(&with(""), "c", &Record::default()), "no body, nothing to match");
        assert!(pattern("(").is_err());
    }
}
