//! Records that were dropped: why, how many, when, and the report of them that becomes a record of its own.
//!
//! Invariants: each dropped record is counted once, by its reason. It is in one report, unless the producer ends before
//! there is room for one, or the report itself may be written and is not confirmed.

use crate::sync::{
    Mutex,
    atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};
use crate::{clock::unix_nanos, lock::lock};
use clad_proto::{AnyValue, KeyValue, Record, Severity};

/// The event name of a record that reports drops.
pub const DROPS_EVENT_NAME: &str = "clad.records_dropped";

/// Why a record was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// There was no room for it.
    NoRoom,
    /// There was no room for it until its deadline.
    Deadline,
    /// It was not sent yet, and made room for a newer one.
    Oldest,
    /// It was below the severity that is kept when there is no room.
    Severity,
    /// The ring of shared memory was full
    /// ([`drop_when_full`](crate::ProducerBuilder::drop_when_full)).
    RingFull,
    /// It had the level `none`, and no daemon took it in time.
    Undelivered,
    /// It is longer than the log takes.
    TooLarge,
    /// It was logged while another record of the same thread was made.
    Recursive,
    /// The producer had ended.
    Ended,
}

impl DropReason {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::NoRoom,
        Self::Deadline,
        Self::Oldest,
        Self::Severity,
        Self::RingFull,
        Self::Undelivered,
        Self::TooLarge,
        Self::Recursive,
        Self::Ended,
    ];

    /// The name, as reports have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoRoom => "no_room",
            Self::Deadline => "deadline",
            Self::Oldest => "oldest",
            Self::Severity => "severity",
            Self::RingFull => "ring_full",
            Self::Undelivered => "undelivered",
            Self::TooLarge => "too_large",
            Self::Recursive => "recursive",
            Self::Ended => "ended",
        }
    }

    /// True if the same record can be taken later.
    pub(crate) const fn is_for_room(self) -> bool {
        !matches!(self, Self::TooLarge | Self::Recursive | Self::Ended)
    }
}

/// Numbers of dropped records, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DropCounts([u64; DropReason::ALL.len()]);

impl DropCounts {
    /// Those of one reason.
    #[must_use]
    pub const fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// Drops that no record reports yet.
#[derive(Debug, Default)]
pub(crate) struct Unreported {
    counts: DropCounts,
    /// The first and the last of them, Unix nanoseconds.
    between: Option<(u64, u64)>,
}

/// The counters, and what is to be reported.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    counters: [AtomicU64; DropReason::ALL.len()],
    unreported: Mutex<Unreported>,
    any_unreported: AtomicBool,
    /// Reports that were handed over.
    reports: AtomicU64,
}

impl Drops {
    /// Counts records. True if none waited for a report: the producer's task is to be woken then.
    pub(crate) fn add(&self, reason: DropReason, records: u64) -> bool {
        if let Some(counter) = self.counters.get(reason as usize) {
            counter.fetch_add(records, Release);
        }
        let now = unix_nanos();
        let mut counts = DropCounts::default();
        counts.0[reason as usize] = records;
        self.merge(&Unreported { counts, between: Some((now, now)) })
    }

    fn merge(&self, more: &Unreported) -> bool {
        let mut unreported = lock(&self.unreported);
        for (sum, more) in unreported.counts.0.iter_mut().zip(more.counts.0) {
            *sum += more;
        }
        if let Some((first, last)) = more.between {
            let (from, to) = unreported.between.unwrap_or((first, last));
            unreported.between = Some((from.min(first), to.max(last)));
        }
        !self.any_unreported.swap(true, Release)
    }

    pub(crate) fn has_unreported(&self) -> bool {
        self.any_unreported.load(Acquire)
    }

    /// Takes what is to be reported: a report of it is handed over.
    pub(crate) fn take_unreported(&self) -> Unreported {
        let mut unreported = lock(&self.unreported);
        self.any_unreported.store(false, Release);
        self.reports.fetch_add(1, Relaxed);
        std::mem::take(&mut unreported)
    }

    /// The report was not stored. If it is certain, what it said is to be reported again.
    pub(crate) fn report_failed(&self, report: &Unreported, maybe_written: bool) {
        self.reports.fetch_sub(1, Relaxed);
        if !maybe_written {
            self.merge(report);
        }
    }

    pub(crate) fn counts(&self) -> DropCounts {
        let mut counts = DropCounts::default();
        for (count, counter) in counts.0.iter_mut().zip(&self.counters) {
            *count = counter.load(Acquire);
        }
        counts
    }

    pub(crate) fn reports(&self) -> u64 {
        self.reports.load(Acquire)
    }
}

impl Unreported {
    /// The report.
    pub(crate) fn record(&self) -> Record {
        let total = self.counts.total();
        let (first, last) = self.between.unwrap_or_default();
        let noun = if total == 1 { "record" } else { "records" };
        let text = format!("{total} {noun} dropped between {} and {}", utc(first), utc(last));
        let mut record = Record::text(last, Severity::WARN.0, text);
        record.observed_time_unix_nano = unix_nanos();
        record.event_name = DROPS_EVENT_NAME.into();
        let number =
            |key: &str, value: u64| KeyValue::new(key, AnyValue::Int(i64::try_from(value).unwrap_or(i64::MAX)));
        record.attributes = vec![
            number("clad.dropped.records", total),
            number("clad.dropped.first_time_unix_nano", first),
            number("clad.dropped.last_time_unix_nano", last),
        ];
        for reason in DropReason::ALL.into_iter().filter(|reason| self.counts.of(*reason) > 0) {
            record.attributes.push(number(&format!("clad.dropped.{}", reason.name()), self.counts.of(reason)));
        }
        record
    }
}

/// A time in Unix nanoseconds, for a person.
fn utc(nanos: u64) -> String {
    let (seconds, millis) = (nanos / 1_000_000_000, nanos / 1_000_000 % 1000);
    // Years begin in March here, so that the odd day comes last; 719,468 days lie before 1970.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + u64::from(month < 3);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_people_write_it() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(seconds * 1_000_000_000), text);
        }
    }

    #[test]
    fn drops_are_reported_once_and_again_where_the_report_was_not_stored() {
        let drops = Drops::default();
        assert!(!drops.has_unreported());
        assert!(drops.add(DropReason::Oldest, 3) && !drops.add(DropReason::NoRoom, 1), "one wake-up is enough");
        let report = drops.take_unreported();
        assert!(!drops.has_unreported());
        let record = report.record();
        assert_eq!(record.event_name, DROPS_EVENT_NAME);
        assert!(matches!(&record.body, Some(AnyValue::String(text)) if text.starts_with("4 records dropped between ")));
        drops.report_failed(&report, true);
        assert!(!drops.has_unreported(), "it may be there");
        drops.add(DropReason::Oldest, 2);
        drops.report_failed(&report, false);
        let counts = drops.take_unreported().counts;
        assert_eq!((counts.of(DropReason::Oldest), counts.total()), (5, 6));
        assert_eq!((drops.counts().of(DropReason::Oldest), drops.counts().total()), (5, 6), "each is counted once");
        assert_eq!(DropReason::ALL.map(|reason| reason as usize), std::array::from_fn(|at| at));
    }
}
