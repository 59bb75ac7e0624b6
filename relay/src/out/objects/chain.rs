//! The chain of a history's objects: where it begins, where it ends, and how it goes on.
//!
//! Invariants:
//! - An object is stored at an offset only where one was seen that ends there, or where the history's origin names it.
//! - An object that is there already is ours by its records, not by who wrote it. Another one is passed by only after its log,
//!   its first offset and its last append have been checked.
//! - The bucket says where the archive ends. The cursor only says where to look first; where it is beyond the end, objects
//!   are gone, and a person decides.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clad_client::{Address, Cursor, LogId};
use object_store::{Attributes, PutPayload};
use serde::{Deserialize, Serialize};

use super::bucket::{Bucket, Created, Found, Pauses};
use super::names::Names;
use super::object::Described;
use crate::config::Format;
use crate::out::source::{Append, Cursored, other_than};

/// The object that names the first offset of a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Origin {
    pub(super) log: String,
    pub(super) history: u32,
    pub(super) first: u64,
    /// The epoch to begin with there.
    pub(super) epoch: u32,
    pub(super) version: String,
}

impl Origin {
    fn new(place: Cursor, history: u32) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { log: place.log_id.to_string(), history, first: place.offset, epoch: place.epoch, version }
    }

    fn bytes(&self) -> Result<Bytes> {
        Ok(serde_json::to_vec(self)?.into())
    }
}

/// The end of a history, as the bucket has it.
pub(super) struct Chain<'a> {
    bucket: &'a Bucket,
    names: Names,
    address: Address,
    history: u32,
    /// Where the next object begins.
    place: Cursor,
    last: Option<Append>,
    /// First offset of the last object.
    tail: Option<u64>,
}

/// The end of storing an object.
pub(super) enum Stored {
    Ours,
    /// Somebody else's is there: what was built is of no use.
    Theirs,
    /// So many bytes take longer than one request may: they are there or not, and are to be fewer.
    TooSlow(u64),
}

/// What a cursor's note says: the history, and where its last object begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Noted {
    history: u32,
    object: Option<u64>,
}

impl Noted {
    fn of(note: &str) -> Option<Self> {
        let mut words = note.split(' ');
        let (Some("history"), Some(history)) = (words.next(), words.next()) else { return None };
        let object = match (words.next(), words.next()) {
            (Some("object"), Some(first)) => Some(first.parse().ok()?),
            _ => None,
        };
        Some(Self { history: history.parse().ok()?, object })
    }
}

impl<'a> Chain<'a> {
    /// Finds the end of the newest history; begins the first one at `start`, where there is none and there was none.
    pub(super) async fn open(
        bucket: &'a Bucket,
        format: Format,
        near: &Cursored,
        address: Address,
        start: u64,
    ) -> Result<Self> {
        let names = Names::new(&bucket.prefix, near.log_id, format);
        let noted = near.note().and_then(Noted::of);
        let cursor = near.cursor.as_ref().map(|named| named.place);
        let newest = bucket.histories(&names).await?.last().copied();
        let history = match (newest, cursor) {
            (Some(newest), _) => newest,
            (None, None) => {
                let place = Cursor { log_id: near.log_id, epoch: near.epoch, offset: start };
                begin_at(bucket, &names, place, near.epoch).await?;
                near.epoch
            }
            (None, Some(cursor)) => bail!(
                "{} has nothing of log {}, and this relay has stored records up to offset {} there: all objects have expired, or \
                 this is another bucket. Nothing was stored. `clad-relay begin --at-cursor` goes on here with a new history",
                bucket.url(),
                near.log_id,
                cursor.offset
            ),
        };
        if let Some(noted) = noted {
            ensure!(
                noted.history <= history,
                "{} has no history {} of log {}, which this relay has written, but {history}: it was restored from an older copy, \
                 or this is another bucket. Nothing was stored. `clad-relay begin --at-cursor` goes on here with a new history",
                bucket.url(),
                noted.history,
                near.log_id
            );
        }
        let noted = noted.filter(|noted| noted.history == history);
        let reached = reached(near).filter(|&(in_history, _)| in_history == history).map(|(_, offset)| offset);
        let origin = origin_of(bucket, &names, history, near.log_id).await?;
        if let Some((_, bytes)) = &origin {
            bucket.ensure_conditional(&names.origin(history), bytes).await?;
        }
        let tail = tail(bucket, &names, history, noted.and_then(|noted| noted.object)).await?;
        let gone = |end: u64, reached: u64| {
            format!(
                "history {history} of log {} ends in {} at offset {end}, and this relay has stored records up to {reached} there: \
                 objects have expired or were removed. Nothing was stored. `clad-relay begin --at-cursor` goes on here with a new \
                 history",
                near.log_id,
                bucket.url()
            )
        };
        let mut chain = Self { bucket, names, address, history, place: near_place(near), last: None, tail: None };
        match (tail, origin) {
            (Some(tail), _) => {
                chain.judge(&tail, tail.first).await?;
                if let Some(reached) = reached.filter(|&reached| reached > tail.end) {
                    bail!("{}", gone(tail.end, reached));
                }
                chain.go_behind(&tail);
            }
            (None, Some((origin, _))) => {
                if let Some(reached) = reached.filter(|&reached| reached > origin.first) {
                    bail!("{}", gone(origin.first, reached));
                }
                chain.place = Cursor { log_id: near.log_id, epoch: origin.epoch, offset: origin.first };
            }
            (None, None) => bail!(
                "{} has neither the origin nor an object of history {history} of log {}: they have expired. Nothing was stored. \
                 `clad-relay begin` begins a new history",
                bucket.url(),
                near.log_id
            ),
        }
        Ok(chain)
    }

    pub(super) const fn place(&self) -> Cursor {
        self.place
    }

    pub(super) const fn format(&self) -> Format {
        self.names.format()
    }

    pub(super) const fn history(&self) -> u32 {
        self.history
    }

    pub(super) const fn last(&self) -> Option<Append> {
        self.last
    }

    /// What the cursor's note is to say.
    pub(super) fn note(&self) -> String {
        match self.tail {
            Some(first) => format!("history {} object {first}", self.history),
            None => format!("history {}", self.history),
        }
    }

    fn go_behind(&mut self, tail: &Described) {
        (self.place, self.last, self.tail) = (tail.place(), tail.last, Some(tail.first));
    }

    /// Stores an object at the end of the chain.
    pub(super) async fn store(&mut self, described: &Described, payload: &PutPayload) -> Result<Stored> {
        ensure!(
            described.first == self.place.offset && described.history == self.history,
            "an object of offset {} does not go on where history {} ends: {}",
            described.first,
            self.history,
            self.place.offset
        );
        let path = self.names.object(self.history, described.first);
        let mut pauses = Pauses::new();
        loop {
            match self.bucket.create(&path, payload, described.attributes(self.format())).await? {
                Created::Done => {
                    self.go_behind(described);
                    return Ok(Stored::Ours);
                }
                Created::TooSlow => return Ok(Stored::TooSlow(payload.content_length() as u64)),
                Created::NoBucket => {
                    pauses.pause().await;
                    self.ensure_still_there().await?;
                }
                // The object says whose it is: an answer to ours may have been lost.
                Created::Exists => match self.bucket.find(&path, self.format()).await? {
                    // Somebody wrote it at the same moment and failed, or the store asks for another try.
                    Found::Nothing => pauses.pause().await,
                    Found::Ours(found) if found.is_same(described) => {
                        self.go_behind(described);
                        return Ok(Stored::Ours);
                    }
                    Found::Ours(found) => {
                        self.judge(&found, described.first).await.with_context(|| {
                            format!("{path} is not what was to be stored there: {}", described.numbers())
                        })?;
                        tracing::info!("another relay has stored offsets {} to {}", found.first, found.end - 1);
                        self.go_behind(&found);
                        return Ok(Stored::Theirs);
                    }
                    Found::Foreign(why) => bail!(
                        "{path} is not of an archive ({why}), and this was to be stored there: {}. Nothing was stored. A person \
                         decides: remove it, or `clad-relay begin` for a new history",
                        described.numbers()
                    ),
                },
            }
        }
    }

    /// A bucket that was away may be a new one of the same name: what was stored before is to be there.
    async fn ensure_still_there(&self) -> Result<()> {
        let (objects, _) = self.bucket.objects(&self.names, self.history, None).await?;
        let is_there = match self.tail {
            Some(first) => objects.binary_search(&first).is_ok(),
            None => self.bucket.read(&self.names.origin(self.history)).await?.is_some(),
        };
        ensure!(
            is_there,
            "{} was away, and came back without the object of offset {}: it is another bucket. Nothing more was stored. \
             `clad-relay begin --at-cursor` goes on with a new history",
            self.bucket.url(),
            self.tail.unwrap_or(self.place.offset)
        );
        Ok(())
    }

    /// An object that was found under our name is of this log, and the log has its last append.
    async fn judge(&self, found: &Described, first: u64) -> Result<()> {
        ensure!(
            found.log_id == self.place.log_id && found.first == first && found.history == self.history,
            "the object of offset {first} in history {} of log {} says that it has {}, of history {}. Nothing was stored: a person \
             decides",
            self.history,
            self.place.log_id,
            found.numbers(),
            found.history
        );
        let Some(last) = &found.last else { return Ok(()) };
        match other_than(&self.address, self.place.log_id, last, "of the bucket").await? {
            None => Ok(()),
            Some(here) => bail!(
                "the log here and the archive have parted: the object of offset {first} ends at {}, and {last}; here is {here}. A copy \
                 was restored, or records were lost. Nothing was stored. `clad-relay begin` begins a new history",
                found.end
            ),
        }
    }
}

fn near_place(near: &Cursored) -> Cursor {
    Cursor { log_id: near.log_id, epoch: near.epoch, offset: near.end }
}

/// Creates the origin of a history. Another relay may have been faster: then its origin holds.
/// The history that the cursor is in, and the end of what was stored there when it was committed.
pub(super) fn reached(near: &Cursored) -> Option<(u32, u64)> {
    let noted = near.note().and_then(Noted::of)?;
    Some((noted.history, near.cursor.as_ref()?.place.offset))
}

async fn begin_at(bucket: &Bucket, names: &Names, place: Cursor, history: u32) -> Result<bool> {
    let (path, payload) = (names.origin(history), PutPayload::from(Origin::new(place, history).bytes()?));
    let mut pauses = Pauses::new();
    loop {
        match bucket.create(&path, &payload, Attributes::new()).await? {
            Created::Done => return Ok(true),
            Created::Exists if bucket.read(&path).await?.is_some() => return Ok(false),
            Created::Exists | Created::NoBucket | Created::TooSlow => pauses.pause().await,
        }
    }
}

/// The origin of a history, and its bytes.
pub(super) async fn origin_of(
    bucket: &Bucket,
    names: &Names,
    history: u32,
    log_id: LogId,
) -> Result<Option<(Origin, Bytes)>> {
    let path = names.origin(history);
    let Some(bytes) = bucket.read(&path).await? else { return Ok(None) };
    let origin: Origin =
        serde_json::from_slice(&bytes).with_context(|| format!("{path} is no origin of an archive"))?;
    ensure!(
        origin.log == log_id.to_string() && origin.history == history,
        "{path} is of history {} of log {}: somebody has copied it",
        origin.history,
        origin.log
    );
    Ok(Some((origin, bytes)))
}

/// The last object of a history: from `hint` on each is looked at, without one the last two.
async fn tail(bucket: &Bucket, names: &Names, history: u32, hint: Option<u64>) -> Result<Option<Described>> {
    // It may have expired, and others may be there.
    let hinted = match hint {
        Some(first) => look(bucket, names, history, first).await?,
        None => None,
    };
    let (objects, _) = bucket.objects(names, history, hinted.as_ref().map(|found| found.first)).await?;
    let from = if hinted.is_some() { 0 } else { objects.len().saturating_sub(2) };
    let mut tail = hinted;
    for &first in objects.get(from..).unwrap_or_default() {
        let Some(found) = look(bucket, names, history, first).await? else { continue };
        if let Some(before) = &tail {
            ensure!(
                before.end == found.first,
                "history {history} in {} is no chain: an object ends at offset {}, and the next one begins at {}. Nothing was \
                 stored. `clad-relay verify` says more",
                bucket.url(),
                before.end,
                found.first
            );
        }
        tail = Some(found);
    }
    Ok(tail)
}

async fn look(bucket: &Bucket, names: &Names, history: u32, first: u64) -> Result<Option<Described>> {
    let path = names.object(history, first);
    match bucket.find(&path, names.format()).await? {
        Found::Nothing => Ok(None),
        Found::Ours(found) if found.first == first && found.history == history => Ok(Some(*found)),
        Found::Ours(found) => bail!(
            "{path} says that it has {}, of history {}. Nothing was stored: a person decides",
            found.numbers(),
            found.history
        ),
        Found::Foreign(why) => bail!(
            "{path} is not of an archive: {why}. Nothing was stored. A person decides: remove it, or `clad-relay begin` for a new \
             history"
        ),
    }
}

/// Begins a history that is newer than all others, at a place: its number.
pub(super) async fn begin_new(
    bucket: &Bucket,
    format: Format,
    near: &Cursored,
    place: Cursor,
) -> Result<(u32, String)> {
    let names = Names::new(&bucket.prefix, near.log_id, format);
    loop {
        let newest = bucket.histories(&names).await?.last().copied();
        let known = near.note().and_then(Noted::of).map(|noted| noted.history);
        let behind = newest.max(known).map(|newest| newest.checked_add(1).context("every history was used"));
        let history = near.epoch.max(behind.transpose()?.unwrap_or_default());
        if begin_at(bucket, &names, place, history).await? {
            return Ok((history, format!("history {history}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        assert_eq!(Noted::of("history 3 object 17"), Some(Noted { history: 3, object: Some(17) }));
        assert_eq!(Noted::of("history 3"), Some(Noted { history: 3, object: None }));
        for other in ["", "to https://collector", "history x", "history 3 object x"] {
            assert_eq!(Noted::of(other), None, "{other}");
        }
    }
}
