//! From a clad to object storage: an archive, each record once.
//!
//! Invariants:
//! - The bucket is the checkpoint. Its objects are a chain: each begins at the offset where the one before ends ([`chain`]).
//! - The cursor moves when an object is stored and the store has said so. So the log holds what is not archived.
//! - An object has every offset from its first to its last. What the log does not have any more is an object without a row.
//! - An object that is not stored within `timeout` is built again half as large, from the log. After one that was stored in a
//!   quarter of it the next may be twice as large: over any link the archive goes on.
//! - Memory does not grow with an outage: one object is built or under way, up to `object_bytes`, beside one row group and its
//!   encoding.
//!
//! | module | what it has |
//! |---|---|
//! | [`bucket`] | what is asked of the store, until it answers |
//! | [`chain`] | where the archive ends, and how it goes on |
//! | [`columns`] | records as rows, and row groups |
//! | [`names`] | the names of objects |
//! | [`object`] | an object, and what it says of itself |
//! | [`pieces`] | the bytes of one that is built |
//! | [`raw`] | whole appends as they came, in zstd |
//! | [`verify`] | the whole archive, looked through |

mod bucket;
mod chain;
mod columns;
mod names;
mod object;
mod pieces;
mod raw;
mod verify;

use std::time::Duration;

use anyhow::{Context, Result};
use clad_client::{Cursor, Event, Gap, Start};
use tokio::time::{Instant, sleep, timeout};

use super::source::{Cursored, Source, start};
use crate::Stop;
use crate::config::{FromClad, OBJECT_BYTES_MIN, ToObjects};
use crate::metrics;
use bucket::Bucket;
use chain::{Chain, Stored};
use object::{Building, Described};
pub(crate) use verify::{Which, verify};

/// The longest time between two looks at an object's age.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Time for the last object at a stop. What is not stored then is read from the log at the next start.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The end of a stretch.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Stopped,
    /// Somebody else has stored what was to come next.
    Overtaken,
    /// An object of so many bytes was not stored in time.
    TooSlow(u64),
}

/// An archive that is written.
struct Archive<'a> {
    source: Source,
    chain: Chain<'a>,
    building: Option<Building>,
    /// The place behind all that was read.
    read: Cursor,
    begun_at: Instant,
    is_at_end: bool,
    max_age: Duration,
    /// Size of an object over this link, at most as configured.
    object_bytes: u64,
    object_bytes_max: u64,
    timeout: Duration,
}

/// Brings a log to a bucket, until the relay is stopped.
pub(crate) async fn run(from: &FromClad, to: &ToObjects, name: &str, mut stop: Stop) -> Result<()> {
    let (bucket, mut object_bytes) = (Bucket::open(to)?, to.object_bytes.as_u64());
    loop {
        let mut archive = tokio::select! {
            opened = open(from, to, name, &bucket, object_bytes) => opened?,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        object_bytes = match archive.bring(&mut stop).await? {
            End::Stopped => return Ok(()),
            End::Overtaken => archive.object_bytes,
            End::TooSlow(bytes) => {
                let smaller = (bytes / 2).max(OBJECT_BYTES_MIN);
                tracing::warn!(
                    "{bytes} bytes were not stored within to.objects.timeout: objects have {smaller} for now. A longer \
                     to.objects.timeout, or less to.objects.object_bytes, saves the tries"
                );
                smaller
            }
        };
    }
}

/// Lets a relay begin a new history: where `start` says, or where its cursor is.
pub(crate) async fn begin(from: &FromClad, to: &ToObjects, name: &str, is_at_cursor: bool) -> Result<String> {
    let (bucket, mut near) = (Bucket::open(to)?, Cursored::connect(&from.address()?, name).await?);
    let place = match (is_at_cursor, &near.cursor) {
        (true, Some(named)) => named.place,
        (true, None) => {
            anyhow::bail!("the log has no cursor of this relay: without --at-cursor it begins where `start` says")
        }
        (false, _) => Cursor { log_id: near.log_id, epoch: near.epoch, offset: start(from, &near) },
    };
    let (history, note) = chain::begin_new(&bucket, to.format, &near, place).await?;
    near.cursors.remove(name).await?;
    near.cursors.commit(name, place, from.hold, note).await?;
    Ok(format!("{name} begins history {history} of the archive at offset {}", place.offset))
}

async fn open<'a>(
    from: &FromClad,
    to: &ToObjects,
    name: &str,
    bucket: &'a Bucket,
    object_bytes: u64,
) -> Result<Archive<'a>> {
    let address = from.address()?;
    let near = Cursored::connect(&address, name).await?;
    let chain = Chain::open(bucket, to.format, &near, address, start(from, &near)).await?;
    let (place, note) = (chain.place(), chain.note());
    let source = Source::begin_at(from, near.cursors, name, Start::Cursor(place), Some(place), note).await?;
    Ok(Archive {
        source,
        chain,
        building: None,
        read: place,
        begun_at: Instant::now(),
        is_at_end: false,
        max_age: to.max_age()?,
        object_bytes,
        object_bytes_max: to.object_bytes.as_u64(),
        timeout: to.timeout()?,
    })
}

impl Archive<'_> {
    async fn bring(&mut self, stop: &mut Stop) -> Result<End> {
        loop {
            let next = tokio::select! {
                next = self.source.next() => Some(next?),
                () = sleep(LOOK_INTERVAL.min(self.max_age)) => None,
                _ = stop.wait_for(|stop| *stop) => {
                    self.close().await?;
                    return Ok(End::Stopped);
                }
            };
            let mut gap = None;
            match next {
                Some((Event::Records(chunk), place)) => {
                    let raw = chunk.raw().context("the source gives no whole appends")?;
                    let building = match &mut self.building {
                        Some(building) => building,
                        none => {
                            self.begun_at = Instant::now();
                            none.insert(Building::begin(&chunk, place.log_id, self.chain.format())?)
                        }
                    };
                    building.push(&chunk, &raw)?;
                    self.is_at_end = false;
                    self.read = Cursor { offset: raw.end_offset(), ..place };
                }
                Some((Event::Gap(found), place)) => gap = Some((found, place)),
                Some((Event::CaughtUp { .. }, _)) => self.is_at_end = true,
                _ => {}
            }
            if gap.is_some() || self.is_due() {
                let stored = tokio::select! {
                    stored = self.store_all(gap) => stored?,
                    // What is under way is stored or not: the next start sees which.
                    _ = stop.wait_for(|stop| *stop) => return Ok(End::Stopped),
                };
                match stored {
                    Stored::Ours => {}
                    Stored::Theirs => return Ok(End::Overtaken),
                    Stored::TooSlow(bytes) => return Ok(End::TooSlow(bytes)),
                }
            }
            self.source.commit_in_time().await?;
            metrics::behind_since(self.building.as_ref().map(|building| building.first_time));
        }
    }

    /// An object that is large enough or old enough. Its age counts from its first append where the log's end was reached, else
    /// a relay that is behind would store each append by itself.
    fn is_due(&self) -> bool {
        let Some(building) = &self.building else { return false };
        let age = Duration::from_nanos(crate::log::now().saturating_sub(building.first_time));
        building.bytes() >= self.object_bytes
            || self.begun_at.elapsed() >= self.max_age
            || (self.is_at_end && age >= self.max_age)
    }

    /// Stores what was built, then what is missing behind it.
    async fn store_all(&mut self, gap: Option<(Gap, Cursor)>) -> Result<Stored> {
        if let Some(building) = self.building.take() {
            let history = self.chain.history();
            let (described, payload) = building.finish(history, self.read)?;
            let stored = self.store(described, payload).await?;
            if !matches!(stored, Stored::Ours) {
                return Ok(stored);
            }
        }
        let Some((gap, place)) = gap else { return Ok(Stored::Ours) };
        tracing::error!("offsets {} to {} of the log cannot be read: {:?}", gap.from, gap.to - 1, gap.reason);
        metrics::lost(metrics::Lost::Source);
        self.read = Cursor { offset: gap.to, ..place };
        let (described, payload) =
            object::gap(self.chain.history(), gap.from, self.read, gap.reason, self.chain.last(), self.chain.format())?;
        self.store(described, payload).await
    }

    async fn store(&mut self, described: Described, payload: object_store::PutPayload) -> Result<Stored> {
        let (records, bytes) = (described.records, payload.content_length() as u64);
        let count = u32::try_from(records).unwrap_or(u32::MAX);
        let (waiting, began) = (Waiting::of(count), Instant::now());
        let stored = self.chain.store(&described, &payload).await?;
        drop(waiting);
        if matches!(stored, Stored::Ours) {
            metrics::stored(records, bytes);
            tracing::info!("offsets {} to {} are stored: {bytes} bytes", described.first, described.end - 1);
            self.source.note(self.chain.note());
            self.source.done(self.chain.place());
            self.source.commit().await?;
            if bytes >= self.object_bytes / 2 && began.elapsed() < self.timeout / 4 {
                self.object_bytes = (self.object_bytes * 2).min(self.object_bytes_max);
            }
        }
        Ok(stored)
    }

    /// Stores what there is, if the bucket takes it in time.
    async fn close(&mut self) -> Result<()> {
        match timeout(CLOSE_TIMEOUT, self.store_all(None)).await {
            Ok(stored) => {
                stored?;
            }
            Err(_) => tracing::warn!("the bucket did not take the last object in time: the next start reads it again"),
        }
        self.source.commit().await
    }
}

/// Records that wait for the bucket, in the metrics.
struct Waiting(u32);

impl Waiting {
    fn of(records: u32) -> Self {
        metrics::handed_over(records);
        Self(records)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        metrics::answered(self.0);
    }
}
