//! One READ on one connection, on either transport.

use super::{
    builder::{Plan, Start},
    event::Event,
    framed::FramedSource,
};
use crate::{ConnectError, LogInfo, ReadError};
use clad_proto::{Cursor, ErrorCode, ErrorInfo, LogId};
use std::num::NonZeroU64;

#[derive(Debug)]
pub(super) enum Source {
    Framed(Box<FramedSource>),
    #[cfg(feature = "grpc")]
    Grpc(Box<super::grpc::GrpcSource>),
}

/// A source that was opened, and the log that it reads.
pub(super) struct Opened {
    pub(super) source: Source,
    pub(super) log_id: LogId,
    pub(super) log: Option<LogInfo>,
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

impl Source {
    pub(super) async fn open(plan: &Plan, start: Start, limit: Option<NonZeroU64>) -> Result<Opened, ReadError> {
        match &plan.address {
            #[cfg(feature = "grpc")]
            crate::Address::Grpc(at) => super::grpc::GrpcSource::open(plan, at, start, limit).await,
            _ => FramedSource::open(plan, start, limit).await,
        }
    }

    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Next, ReadError> {
        match self {
            Self::Framed(source) => source.next().await,
            #[cfg(feature = "grpc")]
            Self::Grpc(source) => source.next().await,
        }
    }
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
