//! Construction of a reader.

use super::{
    handle::Reader,
    plan::{Plan, Start},
    sieve::Sieve,
};
use crate::{Address, ReadError, clock::bounded};
use clad_proto::{AckLevel, filter::Filter};
use std::{num::NonZeroU64, sync::Arc, time::Duration};

/// Makes a [`Reader`]. [`open`](Self::open) ends it.
#[derive(Debug, Clone)]
#[must_use = "open() makes the reader"]
pub struct ReaderBuilder(Plan, Option<Filter>);

impl ReaderBuilder {
    pub(crate) fn new(address: Address) -> Self {
        let plan = Plan {
            address,
            name: "clad-client reader".to_owned(),
            start: Start::Oldest,
            follow: false,
            level: AckLevel::Written,
            limit: None,
            since: None,
            until: None,
            sieve: None,
            backoff: (Duration::from_millis(10), Duration::from_secs(2)),
            connect_timeout: Duration::from_secs(5),
            reconnect_timeout: Duration::from_secs(300),
        };
        Self(plan, None)
    }

    /// The name by which a person finds this client in the daemon's own messages; at most 128 bytes.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.0.name = name.into();
        self
    }

    /// Where to start. Default: the oldest.
    pub const fn from(mut self, start: Start) -> Self {
        self.0.start = start;
        self
    }

    /// Continues with what is appended later, over disconnects. Default: end at the end.
    pub const fn follow(mut self, follow: bool) -> Self {
        self.0.follow = follow;
        self
    }

    /// Give a record only when it has reached this level, `written` or `durable`. Default: `written`.
    pub const fn level(mut self, level: AckLevel) -> Self {
        self.0.level = level;
        self
    }

    /// End after this many records; 0 is no limit. Default: none.
    pub const fn limit(mut self, records: u64) -> Self {
        self.0.limit = NonZeroU64::new(records);
        self
    }

    /// Leave out records before this time, Unix nanoseconds. What is compared is [`Chunk::time`](super::Chunk::time).
    ///
    /// The limit counts records that are given. [`Start::Tail`] counts all.
    pub const fn since(mut self, unix_nanos: i64) -> Self {
        self.0.since = Some(unix_nanos);
        self
    }

    /// Leave out records after this time, Unix nanoseconds, as with [`since`](Self::since).
    pub const fn until(mut self, unix_nanos: i64) -> Self {
        self.0.until = Some(unix_nanos);
        self
    }

    /// Give only records that match. The daemon leaves out appends without any, so little is sent where little matches;
    /// one that does not know filters, or not this one, sends all, and this client drops it. What is given is the same.
    ///
    /// The limit counts records that match. [`Start::Tail`] counts all. Default: every record.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.1 = Some(filter);
        self
    }

    /// Waits between tries to connect again while following: doubling from `first` to `max`, jittered. Default: 10 ms
    /// to 2 s.
    pub const fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.0.backoff = (first, max);
        self
    }

    /// The longest time for one try to connect, the greeting included. Default: 5 s.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.0.connect_timeout = timeout;
        self
    }

    /// Time that a following reader tries to connect again before it ends with an error. Default: 5 min.
    pub const fn reconnect_timeout(mut self, time: Duration) -> Self {
        self.0.reconnect_timeout = time;
        self
    }

    /// Connects and starts to read.
    ///
    /// # Errors
    /// When there is no daemon, or it does not let this client read; a filter that is none. A cursor that is not of its
    /// log is reported here or by the first [`Reader::next`].
    ///
    /// # Cancel safety
    /// Dropped before it is done, nothing is left.
    pub async fn open(self) -> Result<Reader, ReadError> {
        let Self(mut plan, filter) = self;
        plan.sieve = Sieve::new(filter.as_ref(), plan.since, plan.until)?.map(Arc::new);
        let Plan { reconnect_timeout, backoff: (first, max_delay), connect_timeout, .. } = &mut plan;
        for wait in [reconnect_timeout, first, max_delay, connect_timeout] {
            *wait = bounded(*wait);
        }
        Reader::open(plan).await
    }
}

impl Reader {
    /// Starts to make one for the daemon at this address.
    pub fn builder(address: Address) -> ReaderBuilder {
        ReaderBuilder::new(address)
    }
}
