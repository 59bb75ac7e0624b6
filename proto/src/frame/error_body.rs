//! ERROR, and the error inside REFUSED.
//!
//! `u16 code, u8 flags, u8 reserved`, tagged: 1 text, 2 `u64` expected sequence, 3 `u32` record at fault, 4 `u64`
//! limit, 5 cursor (`[16] log id, u32 epoch, u64 offset`), 6 `u32` milliseconds to wait. Flag 1: retryable. Flag 2:
//! maybe written.

use super::{
    control::{self, Fields, cut},
    header::{FrameError, FrameType},
};
use crate::{
    error::{ErrorCode, ErrorInfo},
    ids::{Cursor, LogId},
    limits::MAX_ERROR_TEXT_BYTES,
    wire::{Reader, put_field},
};
use bytes::{BufMut, BytesMut};

const RETRYABLE: u8 = 1;
const MAYBE_WRITTEN: u8 = 2;

const TEXT: u8 = 1;
const EXPECTED: u8 = 2;
const RECORD: u8 = 3;
const LIMIT: u8 = 4;
const CURSOR: u8 = 5;
const RETRY_AFTER: u8 = 6;

/// With a request id, the end of that READ or FLUSH; with request id 0, the end of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorFrame {
    /// The READ or FLUSH that ends; 0 is the connection.
    pub request_id: u32,
    /// Why.
    pub error: ErrorInfo,
}

impl ErrorFrame {
    /// Writes the frame.
    pub fn encode(&self, buf: &mut BytesMut) {
        control::put(buf, FrameType::Error, self.request_id, |buf| put(buf, &self.error));
    }

    pub(super) fn decode(mut fields: Fields<'_>) -> Result<Self, FrameError> {
        Ok(Self { request_id: fields.request_id, error: take(&mut fields)? })
    }
}

pub(super) fn put(buf: &mut BytesMut, error: &ErrorInfo) {
    buf.put_u16_le(error.code.number());
    let retryable = if error.retryable { RETRYABLE } else { 0 };
    let maybe_written = if error.maybe_written { MAYBE_WRITTEN } else { 0 };
    buf.put_u8(retryable | maybe_written);
    buf.put_u8(0);
    let text = cut(&error.text, MAX_ERROR_TEXT_BYTES);
    if !text.is_empty() {
        put_field(buf, TEXT, text.as_bytes());
    }
    if let Some(sequence) = error.expected_sequence {
        put_field(buf, EXPECTED, &sequence.to_le_bytes());
    }
    if let Some(index) = error.record_index {
        put_field(buf, RECORD, &index.to_le_bytes());
    }
    if let Some(limit) = error.limit {
        put_field(buf, LIMIT, &limit.to_le_bytes());
    }
    if let Some(cursor) = &error.cursor {
        put_field(buf, CURSOR, &cursor_bytes(cursor));
    }
    if let Some(wait) = error.retry_after_ms {
        put_field(buf, RETRY_AFTER, &wait.to_le_bytes());
    }
}

pub(super) fn take(fields: &mut Fields<'_>) -> Result<ErrorInfo, FrameError> {
    let code = ErrorCode::from_number(fields.u16()?);
    // ERROR is read before a version is agreed on, so bits that are not known are left alone.
    let flags = fields.u8()?;
    fields.u8()?;
    let mut error = ErrorInfo::new(code, "");
    error.retryable = flags & RETRYABLE != 0;
    error.maybe_written = flags & MAYBE_WRITTEN != 0;
    while let Some((tag, content)) = fields.next_tagged()? {
        match tag {
            TEXT => fields.text(content, MAX_ERROR_TEXT_BYTES)?.clone_into(&mut error.text),
            EXPECTED => error.expected_sequence = Some(u64::from_le_bytes(fields.exactly(content)?)),
            RECORD => error.record_index = Some(u32::from_le_bytes(fields.exactly(content)?)),
            LIMIT => error.limit = Some(u64::from_le_bytes(fields.exactly(content)?)),
            CURSOR => error.cursor = Some(cursor_of(fields, content)?),
            RETRY_AFTER => error.retry_after_ms = Some(u32::from_le_bytes(fields.exactly(content)?)),
            _ => {}
        }
    }
    Ok(error)
}

pub(super) fn cursor_bytes(cursor: &Cursor) -> [u8; 28] {
    let mut bytes = [0; 28];
    let mut at = &mut bytes[..];
    at.put_slice(cursor.log_id.as_bytes());
    at.put_u32_le(cursor.epoch);
    at.put_u64_le(cursor.offset);
    bytes
}

pub(super) fn take_cursor(fields: &mut Fields<'_>) -> Result<Cursor, FrameError> {
    Ok(Cursor { log_id: fields.id()?, epoch: fields.u32()?, offset: fields.u64()? })
}

fn cursor_of(fields: &Fields<'_>, content: &[u8]) -> Result<Cursor, FrameError> {
    let bytes = fields.exactly::<28>(content)?;
    let mut reader = Reader(&bytes);
    let (Some(log_id), Some(epoch), Some(offset)) = (reader.array(), reader.u32(), reader.u64()) else {
        return Err(fields.error("a tagged field has the wrong length")); // 28 bytes are enough for all three
    };
    Ok(Cursor { log_id: LogId::from_bytes(log_id), epoch, offset })
}
