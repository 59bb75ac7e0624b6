//! A log to read, behind a daemon or in files, as one thing.

use clad_client::Start;
use clad_proto::Cursor;

use super::piece::{Event, Standing};
use super::served::{Served, ServedStream};
use super::stored::{Files, FilesStream};
use crate::exit::Stop;

/// A log to read.
pub(crate) enum Source {
    /// Behind a daemon.
    Served(Served),
    /// In files.
    Files(Box<Files>),
}

/// A read of it.
pub(crate) enum Stream<'a> {
    /// From a daemon.
    Served(Box<ServedStream>),
    /// From files.
    Files(Box<FilesStream<'a>>),
}

impl Source {
    /// Where the log stands.
    pub(crate) async fn standing(&self) -> Result<Standing, Stop> {
        match self {
            Self::Served(log) => log.standing().await,
            Self::Files(log) => Ok(log.standing()),
        }
    }

    /// Refuses a cursor that is no place in this history of this log.
    pub(crate) async fn judge(&self, cursor: Cursor) -> Result<(), Stop> {
        match self {
            Self::Served(log) => log.judge(cursor).await,
            Self::Files(log) => log.judge(cursor).map(drop),
        }
    }

    /// Starts a read. `limit` is a hint: no more records than this will be looked at.
    pub(crate) async fn read(&self, start: Start, follow: bool, limit: Option<u64>) -> Result<Stream<'_>, Stop> {
        Ok(match self {
            Self::Served(log) => Stream::Served(Box::new(log.read(start, follow, limit).await?)),
            Self::Files(log) => Stream::Files(Box::new(log.read(start)?)),
        })
    }
}

impl Stream<'_> {
    /// The place after what was given last, where it is known.
    pub(crate) fn cursor(&self) -> Option<Cursor> {
        match self {
            Self::Served(stream) => stream.cursor(),
            Self::Files(_) => None,
        }
    }

    /// Next piece; nothing at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, Stop> {
        match self {
            Self::Served(stream) => stream.next().await,
            Self::Files(stream) => stream.next(),
        }
    }
}
