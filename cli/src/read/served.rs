//! Reading from a daemon.
//!
//! Invariants: records that come damaged are asked for once more before they are called damage: what went wrong may
//! have been the way and not the disk. While following, a history that was given up is reported, and the reading goes on
//! where the histories part; it is never skipped in silence.

use anyhow::anyhow;
use clad_client::{Address, Filter, ReadError, Reader, Start};
use clad_proto::frame::GapReason;
use clad_proto::{AckLevel, Cursor, ErrorCode};

use super::filter;
use super::piece::{Event, Gap, Standing};
use crate::exit::Stop;
use crate::output::say;
use crate::reach::unreachable;

/// A log behind a daemon.
#[derive(Debug)]
pub(crate) struct Served {
    address: Address,
    since: Option<i64>,
    until: Option<i64>,
    level: AckLevel,
    asked: Option<Filter>,
}

/// A read of it.
#[derive(Debug)]
pub(crate) struct ServedStream {
    log: Served,
    reader: Reader,
    follow: bool,
    damaged_at: Option<u64>,
}

impl Served {
    /// The log that is served at an address, as far as it has reached a level; whole appends outside of the filter's
    /// times are not even sent.
    pub(crate) fn new(address: Address, filter: &filter::Filter, level: AckLevel) -> Self {
        Self { address, since: filter.since, until: filter.until, level, asked: None }
    }

    /// Asks the daemon for what a filter lets through, as far as a daemon can say; the rest is the filter's.
    pub(crate) fn asking(self, filter: &filter::Filter) -> Self {
        Self { asked: filter.asked(), ..self }
    }

    fn again(&self) -> Self {
        Self { address: self.address.clone(), asked: self.asked.clone(), ..*self }
    }

    /// Where the log stands.
    pub(crate) async fn standing(&self) -> Result<Standing, Stop> {
        let mut reader = self.reader(Start::Tail(0), false, None).await.map_err(failed)?;
        while reader.next().await.map_err(failed)?.is_some() {}
        let end = reader
            .cursor()
            .ok_or_else(|| Stop::Failed(anyhow!("{} did not report the end of its log", self.address)))?;
        let written = reader.log().map_or(end.offset, |log| log.written);
        Ok(Standing { log_id: end.log_id, end, written })
    }

    /// Refuses a cursor that is no place in this history of this log.
    pub(crate) async fn judge(&self, cursor: Cursor) -> Result<(), Stop> {
        let anytime = Self { since: None, until: None, asked: None, ..self.again() };
        let mut reader = anytime.reader(Start::Cursor(cursor), false, Some(1)).await.map_err(failed)?;
        // A daemon judges before it gives anything.
        reader.next().await.map_err(failed).map(drop)
    }

    /// Starts a read.
    pub(crate) async fn read(&self, start: Start, follow: bool, limit: Option<u64>) -> Result<ServedStream, Stop> {
        let reader = self.reader(start, follow, limit).await.map_err(failed)?;
        Ok(ServedStream { log: self.again(), reader, follow, damaged_at: None })
    }

    async fn reader(&self, start: Start, follow: bool, limit: Option<u64>) -> Result<Reader, ReadError> {
        let mut builder =
            Reader::builder(self.address.clone()).name("clactl").from(start).follow(follow).level(self.level);
        if let Some(since) = self.since {
            builder = builder.since(since);
        }
        if let Some(until) = self.until {
            builder = builder.until(until);
        }
        if let (Some(limit), None, None, None) = (limit, self.since, self.until, &self.asked) {
            // With times the daemon counts what it sends, which is not what we want to count.
            builder = builder.limit(limit);
        }
        if let Some(asked) = &self.asked {
            builder = builder.filter(asked.clone());
        }
        builder.open().await
    }
}

impl ServedStream {
    /// The next event; nothing at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, Stop> {
        loop {
            match self.reader.next().await {
                Ok(None) => return Ok(None),
                Ok(Some(clad_client::Event::Records(chunk))) => return Ok(Some(Event::Records(chunk.into()))),
                Ok(Some(clad_client::Event::Gap(gap))) => {
                    return Ok(Some(Event::Gap(Gap { from: gap.from, to: gap.to, reason: gap.reason })));
                }
                Ok(Some(clad_client::Event::CaughtUp { .. })) => return Ok(Some(Event::CaughtUp)),
                Ok(Some(clad_client::Event::Progress { cursor })) => return Ok(Some(Event::Progress(cursor.offset))),
                Ok(Some(_)) => {} // of a newer client; nothing that we asked for
                Err(ReadError::Damaged { offset, count, what }) => {
                    if self.damaged_at == Some(offset) {
                        say(&format!("clactl: {what}"));
                        let gap = Gap { from: offset, to: offset + u64::from(count), reason: GapReason::Damage };
                        self.resume(Start::Offset(gap.to)).await?;
                        return Ok(Some(Event::Gap(gap)));
                    }
                    self.damaged_at = Some(offset);
                    self.resume(Start::Offset(offset)).await?;
                }
                Err(error) => match (&error, self.follow) {
                    (ReadError::CursorAbandoned { parting: Some(parting), .. }, true) => {
                        let lost = format!("the records shown from offset {} on did not survive", parting.offset);
                        self.resume(Start::Cursor(*parting)).await?;
                        return Ok(Some(Event::Parted(format!("-- a crash set the log back: {lost} --"))));
                    }
                    _ => return Err(failed(error)),
                },
            }
        }
    }

    /// The place after what was given last: to go on at another time. None before the first.
    pub(crate) const fn cursor(&self) -> Option<Cursor> {
        self.reader.cursor()
    }

    async fn resume(&mut self, start: Start) -> Result<(), Stop> {
        self.reader = self.log.reader(start, self.follow, None).await.map_err(failed)?;
        Ok(())
    }
}

/// The error with what to do about it.
fn failed(error: ReadError) -> Stop {
    match (&error, error.code()) {
        (ReadError::Connect(error), _) => unreachable(error),
        (_, Some(ErrorCode::PermissionDenied)) => Stop::Failed(anyhow!(
            "{error}; reading is for root, the daemon's user and [access] read_group on its Unix socket, and on other \
             listeners only where allow_read is set"
        )),
        (_, Some(ErrorCode::LevelUnreachable)) => Stop::Failed(anyhow!(
            "{error}; exported records must be durable: `clactl query -o json` shows the written ones"
        )),
        _ => Stop::Failed(error.into()),
    }
}
