//! The segments of a log, as a listing shows them.

use super::catalog::Sealed;
use crate::io::Storage;

/// One segment, for a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSummary {
    /// Its number.
    pub number: u64,
    /// Its first offset.
    pub first_offset: u64,
    /// One past its last offset.
    pub end_offset: u64,
    /// Bytes of its file (of its batches, where it is active).
    pub bytes: u64,
    /// Sealed, or active.
    pub sealed: bool,
    /// Least and greatest record time, where it is sealed and holds a record.
    pub times_ns: Option<(i64, i64)>,
    /// Its header and footer cannot be believed.
    pub damaged: bool,
}

/// A sealed segment, by its footer.
pub(crate) fn summary(sealed: &Sealed, storage: &dyn Storage) -> SegmentSummary {
    let f = sealed.summary(storage).ok().flatten();
    SegmentSummary {
        number: sealed.number,
        first_offset: f.map_or(0, |f| f.first_offset),
        end_offset: f.map_or(0, |f| f.end_offset),
        bytes: sealed.bytes,
        sealed: true,
        times_ns: f.filter(|f| f.min_time_ns <= f.max_time_ns).map(|f| (f.min_time_ns, f.max_time_ns)),
        damaged: f.is_none_or(|f| f.damaged),
    }
}
