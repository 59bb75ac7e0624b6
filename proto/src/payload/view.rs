//! Reading a payload in place. One pass checks all of it; nothing is allocated.

use crate::{
    fault::{Fault, PayloadError},
    limits::{MAX_APPEND_RECORDS, MAX_RECORD_BYTES},
    view::{GroupView, RecordView, split_record},
};

/// A payload that was checked as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadView<'a> {
    group: GroupView<'a>,
    records: &'a [u8],
    count: u32,
}

/// Earliest and latest time of some records, Unix nanoseconds, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeRange {
    /// Earliest.
    pub min: u64,
    /// Latest.
    pub max: u64,
}

/// Result of [`scan`] for a good payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scan {
    /// Over the records that have a time (their own, else the observed one); nothing when none has.
    pub times: Option<TimeRange>,
    /// The number of records that have neither time.
    pub untimed: u32,
}

impl Scan {
    /// The range with records that have no time counted as of `append_time`.
    #[must_use]
    pub fn times_or(&self, append_time: u64) -> TimeRange {
        let now = TimeRange { min: append_time, max: append_time };
        match self.times {
            None => now,
            Some(times) if self.untimed == 0 => times,
            Some(times) => times.with(append_time),
        }
    }
}

impl TimeRange {
    #[inline]
    fn with(self, time: u64) -> Self {
        Self { min: self.min.min(time), max: self.max.max(time) }
    }
}

/// Checks a payload that a peer sent: all of it, before an offset is given.
///
/// # Errors
/// Says what is wrong, and with which record.
pub fn scan(payload: &[u8], count: u32, max_record_bytes: u32) -> Result<Scan, PayloadError> {
    let (_, rest) = split_group(payload, count)?;
    scan_records(rest, count, max_record_bytes)
}

/// The group that was found good last; see [`scan_known`]. Takes [`KnownGroup::MAX`] bytes at most.
#[derive(Debug, Clone, Default)]
pub struct KnownGroup(Vec<u8>);

impl KnownGroup {
    /// Longer groups are not remembered: comparing them would not be much less work than checking them.
    pub const MAX: usize = 1024;
}

/// As [`scan`], for payloads of one producer in a row: a group that is byte for byte the last good one was checked
/// then.
///
/// # Errors
/// As [`scan`].
pub fn scan_known(
    payload: &[u8],
    count: u32,
    max_record_bytes: u32,
    known: &mut KnownGroup,
) -> Result<Scan, PayloadError> {
    // A group begins with its length, so an equal start is an equal group.
    let same = payload.strip_prefix(known.0.as_slice()).filter(|_| !known.0.is_empty());
    if let Some(rest) = same.filter(|_| (1..=MAX_APPEND_RECORDS).contains(&count)) {
        return scan_records(rest, count, max_record_bytes);
    }
    let (group, rest) = split_group(payload, count)?;
    known.0.clear();
    if group.as_bytes().len() <= KnownGroup::MAX {
        known.0.extend_from_slice(group.as_bytes());
    }
    scan_records(rest, count, max_record_bytes)
}

fn scan_records(mut rest: &[u8], count: u32, max_record_bytes: u32) -> Result<Scan, PayloadError> {
    let max = max_record_bytes.min(MAX_RECORD_BYTES);
    let mut range = TimeRange { min: u64::MAX, max: 0 };
    let mut untimed = 0;
    for index in 0..count {
        let fault = |fault| PayloadError::Record { index, fault };
        let (record, next) = split_record(rest, max).map_err(fault)?;
        record.check().map_err(fault)?;
        match record.time() {
            Some(time) => range = range.with(time),
            None => untimed += 1,
        }
        rest = next;
    }
    if !rest.is_empty() {
        return Err(PayloadError::LeftOver { count, bytes: rest.len() });
    }
    Ok(Scan { times: (untimed < count).then_some(range), untimed })
}

/// The group in front of a payload, checked; for a reader that needs only the source of the records.
///
/// # Errors
/// Says what is wrong with the group. Nothing is said about the records.
pub fn parse_group(payload: &[u8]) -> Result<GroupView<'_>, Fault> {
    GroupView::split(payload).map(|(group, _)| group)
}

fn split_group(payload: &[u8], count: u32) -> Result<(GroupView<'_>, &[u8]), PayloadError> {
    if count == 0 {
        return Err(PayloadError::Empty);
    }
    if count > MAX_APPEND_RECORDS {
        return Err(PayloadError::TooManyRecords { count, max: MAX_APPEND_RECORDS });
    }
    GroupView::split(payload).map_err(PayloadError::Group)
}

impl<'a> PayloadView<'a> {
    /// Checks a payload and gives access to it.
    ///
    /// # Errors
    /// Says what is wrong, and with which record.
    pub fn parse(payload: &'a [u8], count: u32) -> Result<Self, PayloadError> {
        let (group, records) = split_group(payload, count)?;
        scan_records(records, count, MAX_RECORD_BYTES)?;
        Ok(Self { group, records, count })
    }

    /// The group that the records share.
    #[must_use]
    pub const fn group(&self) -> GroupView<'a> {
        self.group
    }

    /// The number of records; at least one.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The records in order.
    #[must_use]
    pub const fn records(&self) -> RecordIter<'a> {
        RecordIter { rest: self.records, left: self.count }
    }
}

impl<'a> IntoIterator for PayloadView<'a> {
    type Item = RecordView<'a>;
    type IntoIter = RecordIter<'a>;

    fn into_iter(self) -> RecordIter<'a> {
        self.records()
    }
}

/// Iterates over the records of a payload.
#[derive(Debug, Clone)]
pub struct RecordIter<'a> {
    rest: &'a [u8],
    left: u32,
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = RecordView<'a>;

    #[inline]
    fn next(&mut self) -> Option<RecordView<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (record, rest) = split_record(self.rest, MAX_RECORD_BYTES).ok()?;
        self.rest = rest;
        Some(record)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for RecordIter<'_> {}
