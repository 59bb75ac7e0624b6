//! Messages that were dropped, until a record of the log says so.

use clad_proto::{AnyValue, KeyValue, Record, Severity};
use jiff::Timestamp;

use crate::ops::metrics::{self, Dropped, Label};

/// Event name of the record, as clients of clad have it.
const EVENT_NAME: &str = "clad.records_dropped";

/// Messages of a listener that were dropped and are in no record yet.
#[derive(Debug)]
pub(super) struct ListenerDrops {
    listener: String,
    counts: [u64; Dropped::ALL.len()],
    /// The first and the last of them, Unix nanoseconds.
    between: Option<(u64, u64)>,
}

impl ListenerDrops {
    /// `listener` is as the record names it.
    pub(super) fn new(listener: String) -> Self {
        Self { listener, counts: [0; Dropped::ALL.len()], between: None }
    }

    /// Counts messages that are dropped now.
    pub(super) fn add(&mut self, reason: Dropped, messages: u64, now: u64) {
        metrics::dropped(reason, messages);
        self.counts[reason.index()] += messages;
        self.between = Some((self.between.map_or(now, |(first, _)| first), now));
    }

    /// The record that says so, where something was dropped.
    pub(super) fn record(&self, now: u64) -> Option<Record> {
        let (first, last) = self.between?;
        let total: u64 = self.counts.iter().sum();
        let noun = if total == 1 { "message" } else { "messages" };
        let text = format!("{total} {noun} of {} dropped between {} and {}", self.listener, utc(first), utc(last));
        let number =
            |key: String, value: u64| KeyValue::new(key, AnyValue::Int(i64::try_from(value).unwrap_or(i64::MAX)));
        let mut record = Record::text(last, Severity::WARN.0, text);
        record.observed_time_unix_nano = now;
        record.event_name = EVENT_NAME.to_owned();
        record.attributes = vec![
            number("clad.dropped.records".to_owned(), total),
            number("clad.dropped.first_time_unix_nano".to_owned(), first),
            number("clad.dropped.last_time_unix_nano".to_owned(), last),
        ];
        let reasons = Dropped::ALL.iter().filter(|reason| self.counts[reason.index()] > 0);
        let reasons =
            reasons.map(|reason| number(format!("clad.dropped.{}", reason.as_str()), self.counts[reason.index()]));
        record.attributes.extend(reasons);
        Some(record)
    }

    /// The record was stored.
    pub(super) fn clear(&mut self) {
        *self = Self::new(std::mem::take(&mut self.listener));
    }
}

fn utc(nanos: u64) -> String {
    Timestamp::from_nanosecond(nanos.into()).map_or_else(|_| nanos.to_string(), |time| format!("{time:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_how_many_were_dropped_between_when() {
        let mut drops = ListenerDrops::new("udp://127.0.0.1:514".to_owned());
        assert_eq!(drops.record(0), None);
        drops.add(Dropped::KernelQueue, 140, 1_709_251_199_000_000_000);
        drops.add(Dropped::Busy, 2, 1_709_251_200_500_000_000);
        let record = drops.record(7).expect("something was dropped");
        let text =
            "142 messages of udp://127.0.0.1:514 dropped between 2024-02-29T23:59:59.000Z and 2024-03-01T00:00:00.500Z";
        assert_eq!(record.body, Some(AnyValue::String(text.into())));
        let keys: Vec<&str> = record.attributes.iter().skip(3).map(|pair| pair.key.as_str()).collect();
        assert_eq!(keys, ["clad.dropped.busy", "clad.dropped.kernel_queue"]);
        drops.clear();
        assert_eq!(drops.record(7), None);
    }
}
