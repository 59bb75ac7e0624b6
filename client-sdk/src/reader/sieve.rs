//! The filter and the times of a reader.
//!
//! The daemon leaves out whole appends at best, and an older one leaves out nothing for a filter: every record is looked
//! at here, whatever the daemon does.

use super::event::Chunk;
use bytes::Bytes;
use clad_proto::{
    PayloadView,
    filter::{Filter, FilterError, Matcher},
};

/// The memory of a compiled regular expression, as the crate `regex` bounds it by default.
const EXPRESSION_BYTES_MAX: usize = 10 << 20;
/// Bytes of appends that are dropped here before the reader reports its place.
pub(super) const PASSED_OVER_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct Sieve {
    /// Nothing: every record matches.
    matcher: Option<Matcher>,
    /// Unix nanoseconds, both included.
    since: Option<i64>,
    until: Option<i64>,
    /// Nothing where it is beyond what a READ takes, or the daemon has refused it.
    encoded: Option<Bytes>,
}

impl Sieve {
    /// Nothing if every record is wanted.
    pub(super) fn new(
        filter: Option<&Filter>,
        since: Option<i64>,
        until: Option<i64>,
    ) -> Result<Option<Self>, FilterError> {
        let matcher = filter.map(|filter| Matcher::new(filter, EXPRESSION_BYTES_MAX)).transpose()?;
        let encoded = filter.and_then(|filter| filter.to_bytes().ok());
        let wants_all = matcher.is_none() && since.is_none() && until.is_none();
        Ok((!wants_all).then_some(Self { matcher, since, until, encoded }))
    }

    /// The same, with no word to the daemon.
    pub(super) fn alone(&self) -> Self {
        Self { matcher: self.matcher.clone(), encoded: None, ..*self }
    }

    pub(super) fn encoded(&self) -> Option<Bytes> {
        self.encoded.clone()
    }

    /// Matching records of a chunk, at most so many records; nothing if none does.
    pub(super) fn sift(&self, mut chunk: Chunk, records_max: u64) -> Option<Chunk> {
        let wanted = chunk.head.skip..chunk.head.skip + chunk.head.take;
        let view = PayloadView::parse(&chunk.payload, chunk.head.count).ok()?;
        let times = view.records().map(|record| self.is_in_time(chunk.time(&record)));
        let filter = self.matcher.as_ref().map(|matcher| matcher.records(chunk.head.producer_id, &view));
        let filter = filter.into_iter().flatten().chain(std::iter::repeat(self.matcher.is_none()));
        let matches = (0..).zip(times.zip(filter).map(|(in_time, matches)| in_time && matches));
        let records_max = usize::try_from(records_max).unwrap_or(usize::MAX);
        let matches = matches.filter(|(at, matches)| *matches && wanted.contains(at)).map(|(at, _)| at);
        let matching: Vec<u32> = matches.take(records_max).collect();
        let (first, last) = (*matching.first()?, *matching.last()?);
        (chunk.head.skip, chunk.head.take) = (first, last - first + 1);
        chunk.matching = (matching.len() < chunk.head.take as usize).then(|| matching.into());
        Some(chunk)
    }

    fn is_in_time(&self, time: u64) -> bool {
        // As the protocol compares: a time beyond that of an i64 counts as the last one.
        let time = i64::try_from(time).unwrap_or(i64::MAX);
        self.since.is_none_or(|since| time >= since) && self.until.is_none_or(|until| time <= until)
    }
}
