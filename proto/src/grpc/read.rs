//! The requests of a read and of a flush from and to their gRPC messages.

use super::{handshake::malformed, v1};
use crate::{
    error::ErrorInfo,
    frame::{Flush, Read, ReadEndReason, ReadFrom},
    level::AckLevel,
};
use std::num::NonZeroU64;
use v1::read_request::From as Place;

impl From<Read> for v1::ReadRequest {
    fn from(read: Read) -> Self {
        let from = match read.from {
            ReadFrom::Offset(offset) => Place::Offset(offset),
            ReadFrom::Cursor(cursor) => Place::Cursor(cursor.into()),
            ReadFrom::Tail(records) => Place::Tail(records),
        };
        Self {
            from: Some(from),
            follow: read.follow,
            limit: read.limit.map_or(0, NonZeroU64::get),
            min_level: v1::AckLevel::from(read.min_level).into(),
            since: read.since,
            until: read.until,
            filter: read.filter,
        }
    }
}

impl TryFrom<v1::ReadRequest> for Read {
    type Error = ErrorInfo;

    /// The request id is 1: a call is one read.
    fn try_from(request: v1::ReadRequest) -> Result<Self, ErrorInfo> {
        let min_level = request.min_level().level().unwrap_or(AckLevel::Written);
        if min_level < AckLevel::Written {
            return Err(malformed("nothing is readable below `written`"));
        }
        let from = match request.from {
            None => ReadFrom::Offset(0),
            Some(Place::Offset(offset)) => ReadFrom::Offset(offset),
            Some(Place::Tail(records)) => ReadFrom::Tail(records),
            Some(Place::Cursor(cursor)) => {
                ReadFrom::Cursor(cursor.cursor().ok_or_else(|| malformed("an id is 16 bytes"))?)
            }
        };
        Ok(Self {
            request_id: 1,
            from,
            follow: request.follow,
            limit: NonZeroU64::new(request.limit),
            min_level,
            since: request.since,
            until: request.until,
            filter: request.filter,
        })
    }
}

impl From<Flush> for v1::Flush {
    fn from(flush: Flush) -> Self {
        Self { id: flush.request_id, level: v1::AckLevel::from(flush.level).into() }
    }
}

impl TryFrom<v1::Flush> for Flush {
    type Error = ErrorInfo;

    fn try_from(flush: v1::Flush) -> Result<Self, ErrorInfo> {
        let level = flush.level().level().filter(|level| *level >= AckLevel::Received);
        let level = level.ok_or_else(|| malformed("a Flush is of `received`, `written` or `durable`"))?;
        match flush.id {
            0 => Err(malformed("a Flush needs an id that is not 0: its answer would be like any other watermark")),
            request_id => Ok(Self { request_id, level }),
        }
    }
}

impl From<ReadEndReason> for v1::ReadEndReason {
    fn from(reason: ReadEndReason) -> Self {
        match reason {
            ReadEndReason::Limit => Self::Limit,
            // Over gRPC a cancelled read is a cancelled call: there is no receiver for a report.
            ReadEndReason::End | ReadEndReason::Cancelled => Self::End,
        }
    }
}
