//! The reader itself: events in order, over connections that come and go.
//!
//! * The cursor moves when an event is given, or over records that do not match, not before: a reader that
//!   resumes from [`Reader::cursor`] misses nothing and gets nothing twice.
//! * Coming back is always by cursor, once there is one. So a history that was abandoned in the meantime is an error
//!   and never a silent skip.
//! * Nothing is read ahead of the caller but what one read from the socket brings; a slow caller slows the daemon's
//!   sending down, nothing else.

use super::{
    event::Event,
    next::{Next, Opened},
    plan::{Plan, Start},
    sieve::PASSED_OVER_BYTES_MAX,
    source::Source,
};
use crate::{
    ConnectError, LogInfo, ReadError,
    backoff::{Backoff, random},
    clock::now,
};
use clad_proto::{Cursor, ErrorCode, LogId};
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::{Instant, sleep_until};

/// Reads a log. Made by [`Reader::builder`].
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use clad_client::{Event, Reader, Start};
///
/// let mut reader =
///     Reader::builder("unix:///run/clad/clad.sock".parse()?).from(Start::Tail(10)).follow(true).open().await?;
/// while let Some(event) = reader.next().await? {
///     match event {
///         Event::Records(chunk) => {
///             for (offset, record) in chunk.records() {
///                 println!("{offset}: {:?}", record.body());
///             }
///         }
///         Event::Gap(gap) => println!("{} to {} cannot be read: {:?}", gap.from, gap.to, gap.reason),
///         _ => {}
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Reader {
    plan: Plan,
    source: Option<Source>,
    opening: Option<Opening>,
    log: Option<LogInfo>,
    log_id: Option<LogId>,
    cursor: Option<Cursor>,
    /// Records that were given.
    given: u64,
    /// Bytes of appends without a match since the last event.
    passed_over: u64,
    backoff: Backoff,
    /// Since when there is no connection.
    outage: Option<Instant>,
    retry_at: Option<Instant>,
    ended: bool,
}

/// A connection that is being made: it is the reader's, and not that of a call which may be dropped. (The lock makes a
/// `Send` type `Sync`; no code takes it.)
struct Opening(Mutex<Pin<Box<Attempt>>>);

type Attempt = dyn Future<Output = Result<Opened<Source>, ReadError>> + Send;

impl std::fmt::Debug for Opening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opening")
    }
}

impl Opening {
    fn begin(plan: Plan, start: Start, limit: Option<NonZeroU64>) -> Self {
        Self(Mutex::new(Box::pin(async move {
            let timeout = plan.connect_timeout;
            match tokio::time::timeout(timeout, Source::open(&plan, start, limit)).await {
                Ok(opened) => opened,
                Err(_) => Err(ConnectError::Timeout { address: plan.address, timeout }.into()),
            }
        })))
    }

    /// Cancel safe: the next call continues.
    async fn end(&mut self) -> Result<Opened<Source>, ReadError> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).await
    }
}

impl Reader {
    pub(crate) async fn open(plan: Plan) -> Result<Self, ReadError> {
        let backoff = Backoff::new(plan.backoff.0, plan.backoff.1, u64::from_le_bytes(random()));
        let mut reader = Self {
            plan,
            source: None,
            opening: None,
            log: None,
            log_id: None,
            cursor: None,
            given: 0,
            passed_over: 0,
            backoff,
            outage: None,
            retry_at: None,
            ended: false,
        };
        while let Err(error) = reader.connect().await {
            if !reader.filters_alone(&error) {
                return Err(error);
            }
        }
        Ok(reader)
    }

    /// Cancel safe.
    async fn connect(&mut self) -> Result<(), ReadError> {
        let start = self.cursor.map_or(self.plan.start, Start::Cursor);
        let limit = self.plan.limit.and_then(|limit| NonZeroU64::new(limit.get().saturating_sub(self.given)));
        let opening = self.opening.get_or_insert_with(|| Opening::begin(self.plan.clone(), start, limit));
        let opened = opening.end().await;
        self.opening = None;
        let opened = opened?;
        self.log_id = Some(opened.log_id);
        self.log = opened.log;
        self.source = Some(opened.source);
        Ok(())
    }

    /// The next event; nothing at the end. While following there is an end only if a limit was set.
    ///
    /// # Errors
    /// The reason why the read ended; the next call then gives nothing. A following reader connects again by itself,
    /// for [`reconnect_timeout`](super::ReaderBuilder::reconnect_timeout) at most; any other error is reported at once.
    ///
    /// # Cancel safety
    /// Dropped before it is done, nothing is lost: the next call continues where this one was.
    pub async fn next(&mut self) -> Result<Option<Event>, ReadError> {
        while !self.ended {
            let step = match &mut self.source {
                Some(source) => source.next().await,
                None => self.come_back().await,
            };
            match step {
                Ok(Next::Event { event, cursor }) => {
                    if let Some(event) = self.take(event, cursor) {
                        return Ok(Some(event));
                    }
                }
                Ok(Next::End { cursor }) => {
                    self.cursor = Some(cursor);
                    self.ended = true;
                }
                Ok(Next::Again) => {}
                Err(error) => self.failed(error)?,
            }
        }
        Ok(None)
    }

    /// Gives the wanted part of an event; the place moves behind all of it.
    fn take(&mut self, event: Event, cursor: Cursor) -> Option<Event> {
        self.cursor = Some(cursor);
        self.outage = None;
        self.backoff.reset();
        let passed_over = std::mem::take(&mut self.passed_over);
        let Event::Records(mut chunk) = event else { return Some(event) };
        let left = self.plan.limit.map_or(u64::MAX, |limit| limit.get() - self.given);
        if let Some(sieve) = self.plan.sieve.clone() {
            let passed_over = passed_over + chunk.payload.len() as u64;
            let Some(matching) = sieve.sift(chunk, left) else {
                if passed_over < PASSED_OVER_BYTES_MAX {
                    self.passed_over = passed_over;
                    return None;
                }
                return Some(Event::Progress { cursor });
            };
            chunk = matching;
        }
        self.given += u64::from(chunk.count());
        // The daemon counts too, but with filter or times; this is for a connection that ends before it says so.
        self.ended = self.plan.limit.is_some_and(|limit| self.given >= limit.get());
        if self.ended && self.plan.sieve.is_some() {
            self.source = None;
            self.cursor = Some(Cursor { offset: chunk.end_offset(), epoch: chunk.epoch(), ..cursor });
        }
        Some(Event::Records(chunk))
    }

    /// True if the daemon does not evaluate the filter: it is asked for everything then.
    fn filters_alone(&mut self, error: &ReadError) -> bool {
        let asked = self.plan.sieve.as_ref().filter(|sieve| sieve.encoded().is_some());
        let Some(alone) = asked.map(|sieve| sieve.alone()) else { return false };
        if error.code() != Some(ErrorCode::FilterUnsupported) {
            return false;
        }
        tracing::debug!(address = %self.plan.address, %error, "filtering what comes");
        self.plan.sieve = Some(Arc::new(alone));
        true
    }

    /// Waits, then connects again at the cursor.
    async fn come_back(&mut self) -> Result<Next, ReadError> {
        if let Some(time) = self.retry_at {
            sleep_until(time).await;
        }
        self.connect().await.map(|()| Next::Again)
    }

    fn failed(&mut self, error: ReadError) -> Result<(), ReadError> {
        self.source = None;
        if self.filters_alone(&error) {
            return Ok(());
        }
        let now = now();
        let since = *self.outage.get_or_insert(now);
        let again = self.plan.follow && error.is_retryable() && now < since + self.plan.reconnect_timeout;
        if !again {
            self.ended = true;
            return Err(error);
        }
        tracing::debug!(address = %self.plan.address, %error, "reading again");
        self.retry_at = Some(now + self.backoff.next());
        Ok(())
    }

    /// The place to resume from later: after what the last event gave, and what the filter left out since. Nothing
    /// before the first. Its text form ([`Display`](std::fmt::Display), [`FromStr`](std::str::FromStr)) is what a
    /// program stores.
    #[must_use]
    pub const fn cursor(&self) -> Option<Cursor> {
        self.cursor
    }

    /// The log that is read.
    #[must_use]
    pub const fn log_id(&self) -> Option<LogId> {
        self.log_id
    }

    /// The daemon's description of itself and its log at the last greeting; nothing over gRPC, where reading has none.
    #[must_use]
    pub const fn log(&self) -> Option<&LogInfo> {
        self.log.as_ref()
    }
}
