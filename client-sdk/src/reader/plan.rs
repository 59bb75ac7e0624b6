//! The read that a caller wants, over all connections.

use super::sieve::Sieve;
use crate::Address;
use clad_proto::{
    AckLevel, Cursor,
    frame::{Read, ReadFrom},
};
use std::{num::NonZeroU64, sync::Arc, time::Duration};

/// Where to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Start {
    /// At the oldest stored record. What was removed before it comes as a gap.
    #[default]
    Oldest,
    /// At this offset of whatever history the log has now.
    Offset(u64),
    /// At a place in a history that must be this log's: where an earlier reader stopped.
    Cursor(Cursor),
    /// At the last records, this many; 0 is only what comes from now on.
    Tail(u64),
}

/// The read to do.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) address: Address,
    pub(crate) name: String,
    pub(crate) start: Start,
    pub(crate) follow: bool,
    pub(crate) level: AckLevel,
    pub(crate) limit: Option<NonZeroU64>,
    pub(crate) since: Option<i64>,
    pub(crate) until: Option<i64>,
    pub(crate) sieve: Option<Arc<Sieve>>,
    pub(crate) backoff: (Duration, Duration),
    pub(crate) connect_timeout: Duration,
    pub(crate) reconnect_timeout: Duration,
}

/// The one READ of a connection.
pub(super) const REQUEST: u32 = 2;

impl Plan {
    /// The READ that begins at a place and gives no more records than `limit`.
    pub(super) fn read(&self, start: Start, limit: Option<NonZeroU64>) -> Read {
        let from = match start {
            Start::Oldest => ReadFrom::Offset(0),
            Start::Offset(offset) => ReadFrom::Offset(offset),
            Start::Cursor(cursor) => ReadFrom::Cursor(cursor),
            Start::Tail(records) => ReadFrom::Tail(records),
        };
        let Self { follow, level: min_level, since, until, .. } = *self;
        // The daemon counts what it sends, and that is whole appends.
        let limit = limit.filter(|_| self.sieve.is_none());
        let filter = self.sieve.as_ref().and_then(|sieve| sieve.encoded());
        Read { request_id: REQUEST, from, follow, limit, min_level, since, until, filter }
    }
}
