//! Results of one READ on one connection, on either transport.

use super::{event::Event, plan::Start};
use crate::{ConnectError, LogInfo, ReadError};
use clad_proto::{Cursor, ErrorCode, ErrorInfo, LogId};

/// A source that was opened, and the log that it reads.
pub(super) struct Opened<S> {
    pub(super) source: S,
    pub(super) log_id: LogId,
    pub(super) log: Option<LogInfo>,
}

impl<S> Opened<S> {
    pub(super) fn map<T>(self, into: impl FnOnce(S) -> T) -> Opened<T> {
        Opened { source: into(self.source), log_id: self.log_id, log: self.log }
    }
}

/// The next event, and the reader's place after it.
#[derive(Debug)]
pub(super) enum Next {
    Event {
        event: Event,
        cursor: Cursor,
    },
    End {
        cursor: Cursor,
    },
    /// Nothing yet; ask again.
    Again,
}

/// A refusal of a READ as what it is. `start` is what was asked for.
pub(super) fn refused(error: ErrorInfo, start: Start) -> ReadError {
    match (error.code, start) {
        (ErrorCode::CursorAbandoned, Start::Cursor(cursor)) => {
            ReadError::CursorAbandoned { cursor, parting: error.cursor }
        }
        (ErrorCode::CursorUnknown, Start::Cursor(cursor)) => ReadError::CursorUnknown { cursor, text: error.text },
        _ => ReadError::Refused(Box::new(error)),
    }
}

/// A refusal that came as the end of a call or connection, likewise.
pub(super) fn of_connect(error: ConnectError, start: Start) -> ReadError {
    match error {
        ConnectError::Refused { error, .. } => refused(*error, start),
        other => ReadError::Connect(other),
    }
}
