//! The filter of a reader.
//!
//! The daemon leaves out whole appends at best, and an older one leaves out nothing: every record is looked at here,
//! whatever the daemon does.

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
    matcher: Matcher,
    /// Nothing where it is beyond what a READ takes, or the daemon has refused it.
    encoded: Option<Bytes>,
}

impl Sieve {
    pub(super) fn new(filter: &Filter) -> Result<Self, FilterError> {
        let matcher = Matcher::new(filter, EXPRESSION_BYTES_MAX)?;
        Ok(Self { matcher, encoded: filter.to_bytes().ok() })
    }

    /// The same, with no word to the daemon.
    pub(super) fn alone(&self) -> Self {
        Self { matcher: self.matcher.clone(), encoded: None }
    }

    pub(super) fn encoded(&self) -> Option<Bytes> {
        self.encoded.clone()
    }

    /// Matching records of a chunk, at most so many records; nothing if none does.
    pub(super) fn sift(&self, mut chunk: Chunk, records_max: u64) -> Option<Chunk> {
        let wanted = chunk.head.skip..chunk.head.skip + chunk.head.take;
        let view = PayloadView::parse(&chunk.payload, chunk.head.count).ok()?;
        let matches = (0..).zip(self.matcher.records(chunk.head.producer_id, &view));
        let records_max = usize::try_from(records_max).unwrap_or(usize::MAX);
        let matches = matches.filter(|(at, matches)| *matches && wanted.contains(at)).map(|(at, _)| at);
        let matching: Vec<u32> = matches.take(records_max).collect();
        let (first, last) = (*matching.first()?, *matching.last()?);
        (chunk.head.skip, chunk.head.take) = (first, last - first + 1);
        chunk.matching = (matching.len() < chunk.head.take as usize).then(|| matching.into());
        Some(chunk)
    }
}
