//! A log that is read: from where its named cursor is, at the level that outlasts everything.
//!
//! Invariants: the cursor is never ahead of what the destination has. It is behind by [`COMMIT_INTERVAL`] at most while
//! records come, and not at all at a stop. A history that has parted from the cursor's ends the relay: what is there now is
//! not what was brought over.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use clad_client::{AckLevel, Address, Cursor, Cursors, Event, Filter, LogId, ReadError, Reader, Severity, Start};
use tokio::time::Instant;

use crate::config::{self, FromClad};

/// Time between two commits of the cursor.
const COMMIT_INTERVAL: Duration = Duration::from_millis(200);
/// An outage of the daemon is waited out: the log keeps what is not read.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The log.
pub(super) struct Source {
    reader: Reader,
    cursors: Cursors,
    name: String,
    hold: bool,
    note: String,
    /// The place up to which the destination has all, and the committed one.
    done: Option<Cursor>,
    committed: Option<Cursor>,
    commit_at: Instant,
}

impl Source {
    /// Opens it where the cursor of this name is, else where the relay's file says. Waits for a daemon.
    ///
    /// # Errors
    /// The daemon refuses the relay, or its cursor is of another history.
    pub(super) async fn open(from: &FromClad, name: &str, note: String) -> Result<Self> {
        let (cursors, found) = connected(&from.address()?, name).await?;
        let place = found.map(|named| named.place);
        let start = match (place, from.start) {
            (Some(place), _) => Start::Cursor(place),
            (None, config::Start::Beginning) => Start::Offset(0),
            (None, config::Start::Now) => Start::Tail(0),
        };
        let mut source = Self::at(from, cursors, name, start, place, note).await?;
        // From the first moment on: what comes now must not go before it is read.
        if let (None, config::Start::Now, Some(log)) = (place, from.start, source.reader.log()) {
            let offset = if log.highest_ack == AckLevel::Durable { log.durable } else { log.written };
            source.done = Some(Cursor { log_id: log.log_id, epoch: log.epoch, offset });
            source.commit().await?;
        }
        Ok(source)
    }

    /// Opens it at a place, and sets the cursor to where the destination has all, at once.
    pub(super) async fn begin_at(
        from: &FromClad,
        cursors: Cursors,
        name: &str,
        start: Start,
        done: Option<Cursor>,
        note: String,
    ) -> Result<Self> {
        let mut source = Self::at(from, cursors, name, start, None, note).await?;
        source.done = done;
        source.commit().await?;
        Ok(source)
    }

    async fn at(
        from: &FromClad,
        cursors: Cursors,
        name: &str,
        start: Start,
        place: Option<Cursor>,
        note: String,
    ) -> Result<Self> {
        let address = from.address()?;
        let reader = Reader::builder(address.clone()).name(format!("clad-relay {name}")).from(start).follow(true);
        let reader = reader.level(level(&address).await?).reconnect_timeout(RECONNECT_TIMEOUT);
        let reader = match filter(from) {
            Some(filter) => reader.filter(filter),
            None => reader,
        };
        let reader = reader.open().await.map_err(|error| parted(error, name))?;
        let (name, commit_at) = (name.to_owned(), Instant::now() + COMMIT_INTERVAL);
        Ok(Self { reader, cursors, name, hold: from.hold, note, done: place, committed: place, commit_at })
    }

    /// The next event, and the place behind it. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<(Event, Cursor)> {
        let event = self.reader.next().await.map_err(|error| parted(error, &self.name))?;
        event.zip(self.reader.cursor()).context("the log gives no more")
    }

    /// Commits where the first event of all begins: nothing of it must go before the destination has it.
    pub(super) async fn begin(&mut self, event: &Event, behind: Cursor) -> Result<()> {
        if self.done.is_some() {
            return Ok(());
        }
        let offset = match event {
            Event::Records(chunk) => chunk.first_offset(),
            Event::Gap(gap) => gap.from,
            _ => behind.offset,
        };
        self.done = Some(Cursor { offset, ..behind });
        self.commit().await
    }

    /// What is committed with the cursor from now on.
    pub(super) fn note(&mut self, note: String) {
        self.note = note;
    }

    /// The destination has everything below this place.
    pub(super) fn done(&mut self, place: Cursor) {
        self.done = Some(place);
    }

    /// When the cursor is to be committed; nothing while it has not moved.
    pub(super) fn commit_due(&self) -> Option<Instant> {
        (self.done != self.committed).then_some(self.commit_at)
    }

    /// Commits the cursor, if it has moved and it is time.
    pub(super) async fn commit_in_time(&mut self) -> Result<()> {
        if Instant::now() < self.commit_at {
            return Ok(());
        }
        self.commit().await
    }

    /// Commits the cursor, if it has moved.
    pub(super) async fn commit(&mut self) -> Result<()> {
        self.commit_at = Instant::now() + COMMIT_INTERVAL;
        let Some(place) = self.done.filter(|_| self.done != self.committed) else { return Ok(()) };
        match self.cursors.commit(&self.name, place, self.hold, self.note.clone()).await {
            Ok(_) => self.committed = Some(place),
            // It is for the log's keeping alone; the next one says more.
            Err(error) if error.is_retryable() => tracing::debug!("the cursor is not committed: {error}"),
            Err(error) => return Err(parted(error, &self.name)),
        }
        Ok(())
    }
}

/// What is at the cursor is not what was read there: only a person goes on.
pub(super) fn parted(error: ReadError, name: &str) -> anyhow::Error {
    let text = match &error {
        ReadError::CursorAbandoned { cursor, parting } => format!(
            "the log has lost records that this relay has brought over: it stands at {cursor}, and the log parts from that at {}. \
             Nothing was sent. `clad-relay begin` lets it begin again, where `start` says",
            parting.map_or_else(|| "an unknown place".to_owned(), |parting| parting.to_string())
        ),
        ReadError::CursorUnknown { cursor, text } => format!(
            "the log is not the one that this relay has read up to {cursor} ({text}): it was replaced, or restored from an older \
             copy. Nothing was sent. `clad-relay begin` lets it begin again, where `start` says"
        ),
        _ => format!("the cursor {name} or the log cannot be read"),
    };
    anyhow::Error::from(error).context(text)
}

/// An append, by what is known of it elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Append {
    pub(super) epoch: u32,
    pub(super) first: u64,
    pub(super) count: u32,
    pub(super) payload_crc: u32,
}

impl fmt::Display for Append {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, count, payload_crc, .. } = self;
        write!(f, "its last append has {count} records from offset {first} on with CRC {payload_crc:08x}")
    }
}

/// Reads an append once more: what is there, where it is another one. `whose` says who knows of it.
pub(super) async fn other_than(
    address: &Address,
    log_id: LogId,
    append: &Append,
    whose: &str,
) -> Result<Option<String>> {
    let place = Cursor { log_id, epoch: append.epoch, offset: append.first };
    let reader = Reader::builder(address.clone()).from(Start::Cursor(place)).level(AckLevel::Written);
    let mut reader = reader.limit(append.count.into()).open().await.map_err(|error| parted(error, whose))?;
    let here = match reader.next().await.map_err(|error| parted(error, whose))? {
        Some(Event::Records(chunk)) => {
            let raw = chunk.raw().context("the source gives no whole appends")?;
            let head = raw.head();
            if (head.first_offset, head.count, head.payload_crc) == (append.first, append.count, append.payload_crc) {
                return Ok(None);
            }
            format!("{} records from offset {} on with CRC {:08x}", head.count, head.first_offset, head.payload_crc)
        }
        // It was there, and nothing contradicts: the epoch of the place is of this history.
        Some(Event::Gap(_)) => return Ok(None),
        _ => "no such append".to_owned(),
    };
    Ok(Some(here))
}

/// The cursor of a relay, before its log is read.
pub(super) struct Cursored {
    pub(super) cursors: Cursors,
    pub(super) cursor: Option<clad_client::NamedCursor>,
    pub(super) log_id: LogId,
    pub(super) epoch: u32,
    /// End of what outlasts everything.
    pub(super) end: u64,
    /// The lowest offset that is there.
    pub(super) lowest: u64,
}

impl Cursored {
    /// Waits for a daemon.
    pub(super) async fn connect(address: &Address, name: &str) -> Result<Self> {
        let (cursors, cursor) = connected(address, name).await?;
        let mut reader = Reader::builder(address.clone()).limit(1).open().await?;
        let log = reader.log().context("no word of the log")?.clone();
        let lowest = match reader.next().await? {
            Some(Event::Gap(gap)) => gap.to,
            _ => 0,
        };
        let end = if log.highest_ack == AckLevel::Durable { log.durable } else { log.written };
        Ok(Self { cursors, cursor, log_id: log.log_id, epoch: log.epoch, end, lowest })
    }

    /// The cursor's note.
    pub(super) fn note(&self) -> Option<&str> {
        self.cursor.as_ref().and_then(|named| std::str::from_utf8(&named.note).ok())
    }
}

/// Where a relay begins that has brought nothing yet.
pub(super) fn start(from: &FromClad, near: &Cursored) -> u64 {
    match from.start {
        config::Start::Beginning => near.lowest,
        config::Start::Now => near.end,
    }
}

fn filter(from: &FromClad) -> Option<Filter> {
    let mut filter = Filter::new();
    if let Some(component) = &from.component {
        filter = filter.component(component);
    }
    if let Some(severity) = from.severity() {
        filter = filter.severity_at_least(severity);
    }
    (from.component.is_some() || from.min_severity.is_some()).then_some(filter)
}

impl FromClad {
    /// The least severity, by its name.
    pub(crate) fn severity(&self) -> Option<Severity> {
        self.min_severity.as_deref().and_then(|name| name.parse().ok())
    }
}

/// The connection for the cursor, and the cursor. Waits for a daemon.
async fn connected(address: &Address, name: &str) -> Result<(Cursors, Option<clad_client::NamedCursor>)> {
    let mut said = false;
    loop {
        let asked = match Cursors::connect(address.clone()).await {
            Ok(mut cursors) => cursors.get(name).await.map(|found| (cursors, found)),
            Err(error) => Err(error),
        };
        match asked {
            Ok(asked) => return Ok(asked),
            Err(error) if !error.is_retryable() => {
                return Err(anyhow::Error::from(error)
                    .context("the daemon refuses this relay ([access] read_group, or a rule)"));
            }
            Err(error) => {
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!("no daemon at {address}, or it serves no reader now: {error}");
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// The level at which records are read: `durable`, where the log reaches it.
async fn level(address: &Address) -> Result<AckLevel> {
    // A reader that asks for more is refused only with its first event.
    let reader = Reader::builder(address.clone()).from(Start::Tail(0)).level(AckLevel::Written).open().await?;
    let is_durable = reader.log().is_some_and(|log| log.highest_ack >= AckLevel::Durable);
    Ok(if is_durable { AckLevel::Durable } else { AckLevel::Written })
}

/// Where a relay's cursor stands, for a person.
pub(crate) async fn status(from: &FromClad, name: &str) -> Result<String> {
    let mut cursors = Cursors::connect(from.address()?).await?;
    let Some(cursor) = cursors.get(name).await? else {
        return Ok(format!("relay {name}: it has not begun"));
    };
    let lost = if cursor.lost { "\nrecords that it has not read are gone" } else { "" };
    Ok(format!("relay {name}\nnext offset  {}\ncursor  {}{lost}", cursor.unread_from, cursor.place))
}

/// Lets a relay begin again.
pub(crate) async fn begin(from: &FromClad, name: &str) -> Result<()> {
    Ok(Cursors::connect(from.address()?).await?.remove(name).await?)
}
