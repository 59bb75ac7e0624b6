//! FLUSH and READ, and what ends or interrupts a READ.
//!
//! * FLUSH: `u8 level, [3] reserved`.
//! * READ: `u8 from (1 offset, 2 cursor, 3 tail), u8 flags, u8 lowest level, u8 reserved, u64 limit (0 none),
//!   [16] log id, u32 epoch, u64 offset or number, i64 since, i64 until`. Flags: 1 follow, 2 since is set, 4 until is
//!   set. Log id and epoch are zero unless `from` is a cursor. Tagged: 1 filter.
//! * GAP: `u64 from, u64 to, u32 epoch, u8 reason (1 retention, 2 damage), [3] reserved`.
//! * CAUGHT_UP, PROGRESS: cursor, `[4] reserved`. READ_END: cursor, `u8 reason (1 end, 2 limit, 3 cancelled), [3] reserved`.
//!   A cursor is `[16] log id, u32 epoch, u64 offset`.

use super::{
    control::{self, Fields},
    error_body::{cursor_bytes, take_cursor},
    header::{FrameError, FrameType},
};
use crate::{ids::Cursor, level::AckLevel, wire::put_field};
use bytes::{BufMut, Bytes, BytesMut};
use std::num::NonZeroU64;

const FOLLOW: u8 = 1;
const SINCE: u8 = 2;
const UNTIL: u8 = 4;

const FILTER: u8 = 1;

/// Asks that every append that was sent before on this connection reaches a level; a WATERMARK with the same request id
/// answers when they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flush {
    /// The client's number for it, not 0.
    pub request_id: u32,
    /// The level.
    pub level: AckLevel,
}

/// Where a READ starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFrom {
    /// At this offset of whatever history the log has now; below the lowest stored offset it starts with a GAP.
    Offset(u64),
    /// At a place in a history that must be this log's.
    Cursor(Cursor),
    /// At the last records, this many.
    Tail(u64),
}

/// Asks for records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The client's number for it, not 0 and not of a READ that is still open.
    pub request_id: u32,
    /// Where to start.
    pub from: ReadFrom,
    /// Continues with what is appended later.
    pub follow: bool,
    /// End after this many records.
    pub limit: Option<NonZeroU64>,
    /// Give a record only when it has reached this level: `written` or `durable`.
    pub min_level: AckLevel,
    /// Leave out appends that are wholly before this time, Unix nanoseconds.
    pub since: Option<i64>,
    /// Leave out appends that are wholly after this time, Unix nanoseconds.
    pub until: Option<i64>,
    /// Leave out appends in which no record matches: a [`Filter`](crate::filter::Filter) as it is encoded.
    pub filter: Option<Bytes>,
}

/// Why offsets cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum GapReason {
    /// Removed by the operator's rule.
    Retention = 1,
    /// Damaged on the disk.
    Damage = 2,
}

/// Offsets that cannot be read; the READ continues after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The READ.
    pub request_id: u32,
    /// First offset that is missing.
    pub from: u64,
    /// The offset after the last that is missing.
    pub to: u64,
    /// The epoch of the log.
    pub epoch: u32,
    /// Why.
    pub reason: GapReason,
}

/// A following READ has given all there is so far; more comes when it is appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaughtUp {
    /// The READ.
    pub request_id: u32,
    /// Where it stands.
    pub cursor: Cursor,
}

/// A READ with a filter has come to a place: all before it was given, or does not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The READ.
    pub request_id: u32,
    /// Where it stands.
    pub cursor: Cursor,
}

/// Why a READ ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ReadEndReason {
    /// All there is was given.
    End = 1,
    /// As many records as asked for were given.
    Limit = 2,
    /// The client cancelled it.
    Cancelled = 3,
}

/// A READ ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadEnd {
    /// The READ.
    pub request_id: u32,
    /// The place to resume from later.
    pub cursor: Cursor,
    /// Why.
    pub reason: ReadEndReason,
}

impl Flush {
    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        control::put(buf, FrameType::Flush, self.request_id, |buf| {
            buf.put_u8(self.level.code());
            buf.put_bytes(0, 3);
        });
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        let level = fields.level()?;
        if level < AckLevel::Received {
            return Err(fields.error("a level without a watermark"));
        }
        if fields.request_id == 0 {
            return Err(fields.error("a FLUSH needs a request id: its answer would be like any other watermark"));
        }
        fields.reserved::<3>()?;
        fields.end()?;
        Ok(Self { request_id: fields.request_id, level })
    }
}

impl Read {
    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        let (from, place) = match self.from {
            ReadFrom::Offset(offset) => (1, Cursor { offset, ..Cursor::default() }),
            ReadFrom::Cursor(cursor) => (2, cursor),
            ReadFrom::Tail(records) => (3, Cursor { offset: records, ..Cursor::default() }),
        };
        let set = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = set(self.follow, FOLLOW) | set(self.since.is_some(), SINCE) | set(self.until.is_some(), UNTIL);
        control::put(buf, FrameType::Read, self.request_id, |buf| {
            buf.put_slice(&[from, flags, self.min_level.code(), 0]);
            buf.put_u64_le(self.limit.map_or(0, NonZeroU64::get));
            buf.put_slice(&cursor_bytes(&place));
            buf.put_i64_le(self.since.unwrap_or(0));
            buf.put_i64_le(self.until.unwrap_or(0));
            if let Some(filter) = &self.filter {
                put_field(buf, FILTER, filter);
            }
        });
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        let request_id = fields.request_id;
        let from = fields.u8()?;
        let flags = fields.flags(FOLLOW | SINCE | UNTIL)?;
        let min_level = fields.level()?;
        fields.reserved::<1>()?;
        let limit = NonZeroU64::new(fields.u64()?);
        let place = take_cursor(&mut fields)?;
        let (since, until) = (fields.u64()?.cast_signed(), fields.u64()?.cast_signed());
        let mut filter = None;
        while let Some((tag, content)) = fields.next_tagged()? {
            if tag == FILTER {
                filter = Some(Bytes::copy_from_slice(content));
            }
        }
        let no_history = place.log_id.is_zero() && place.epoch == 0;
        let from = match from {
            1 if no_history => ReadFrom::Offset(place.offset),
            2 => ReadFrom::Cursor(place),
            3 if no_history => ReadFrom::Tail(place.offset),
            1 | 3 => return Err(fields.error("a log id or epoch without a cursor")),
            _ => return Err(fields.error("unknown place to start")),
        };
        if min_level < AckLevel::Written {
            return Err(fields.error("nothing is readable below `written`"));
        }
        if request_id == 0 {
            return Err(fields.error("it has no request id"));
        }
        let timed = |flag, time: i64| match (flags & flag != 0, time) {
            (true, time) => Ok(Some(time)),
            (false, 0) => Ok(None),
            (false, _) => Err(fields.error("a time without its flag")),
        };
        let (since, until) = (timed(SINCE, since)?, timed(UNTIL, until)?);
        Ok(Self { request_id, from, follow: flags & FOLLOW != 0, limit, min_level, since, until, filter })
    }
}

impl Gap {
    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        control::put(buf, FrameType::Gap, self.request_id, |buf| {
            buf.put_u64_le(self.from);
            buf.put_u64_le(self.to);
            buf.put_u32_le(self.epoch);
            buf.put_u8(self.reason as u8);
            buf.put_bytes(0, 3);
        });
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        let request_id = fields.request_id;
        let (from, to, epoch) = (fields.u64()?, fields.u64()?, fields.u32()?);
        let reason = match fields.u8()? {
            1 => GapReason::Retention,
            2 => GapReason::Damage,
            _ => return Err(fields.error("unknown reason")),
        };
        fields.reserved::<3>()?;
        fields.end()?;
        if from >= to {
            return Err(fields.error("a gap of no offsets"));
        }
        Ok(Self { request_id, from, to, epoch, reason })
    }
}

impl CaughtUp {
    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        control::put(buf, FrameType::CaughtUp, self.request_id, |buf| {
            buf.put_slice(&cursor_bytes(&self.cursor));
            buf.put_bytes(0, 4);
        });
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        let (request_id, cursor) = (fields.request_id, take_cursor(&mut fields)?);
        fields.reserved::<4>()?;
        fields.end()?;
        Ok(Self { request_id, cursor })
    }
}

impl Progress {
    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        control::put(buf, FrameType::Progress, self.request_id, |buf| {
            buf.put_slice(&cursor_bytes(&self.cursor));
            buf.put_bytes(0, 4);
        });
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        let (request_id, cursor) = (fields.request_id, take_cursor(&mut fields)?);
        fields.reserved::<4>()?;
        fields.end()?;
        Ok(Self { request_id, cursor })
    }
}

impl ReadEnd {
    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        control::put(buf, FrameType::ReadEnd, self.request_id, |buf| {
            buf.put_slice(&cursor_bytes(&self.cursor));
            buf.put_u8(self.reason as u8);
            buf.put_bytes(0, 3);
        });
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        let (request_id, cursor) = (fields.request_id, take_cursor(&mut fields)?);
        let reason = match fields.u8()? {
            1 => ReadEndReason::End,
            2 => ReadEndReason::Limit,
            3 => ReadEndReason::Cancelled,
            _ => return Err(fields.error("unknown reason")),
        };
        fields.reserved::<3>()?;
        fields.end()?;
        Ok(Self { request_id, cursor, reason })
    }
}
