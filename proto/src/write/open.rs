//! The payload that records are added to, whole or not at all.

use super::sink::Sink;
use crate::{fault::EncodeError, limits::MAX_APPEND_RECORDS};

/// Group and records so far, and the limits of both.
#[derive(Debug)]
pub(crate) struct OpenPayload {
    pub(crate) sink: Sink,
    pub(crate) group_len: usize,
    pub(crate) count: u32,
    /// Everything below is group and whole records.
    pub(crate) whole: usize,
    pub(crate) max_append: u32,
    pub(crate) max_record: u32,
}

impl OpenPayload {
    /// The longest that a record can be.
    #[inline]
    pub(crate) fn max_len(&self) -> usize {
        let room = (self.max_append as usize).saturating_sub(self.group_len);
        room.min(self.max_record as usize)
    }

    /// Says whether one more record of this length goes in; gives the length as the header holds it.
    #[inline]
    pub(crate) fn admit(&self, len: usize) -> Result<u32, EncodeError> {
        let max = self.max_len();
        let short = u32::try_from(len).unwrap_or(u32::MAX);
        if len > max || short == u32::MAX {
            return Err(EncodeError::RecordTooLarge { len: len as u64, max: max as u64 });
        }
        let with_it = self.whole + len;
        if with_it > self.max_append as usize || self.count >= MAX_APPEND_RECORDS {
            let records = self.count.saturating_add(1);
            let max = if with_it > self.max_append as usize { self.max_append } else { MAX_APPEND_RECORDS };
            return Err(EncodeError::AppendFull { len: with_it as u64, records, max: max.into() });
        }
        Ok(short)
    }

    /// Makes a record of the bytes written since the last one.
    #[inline]
    pub(crate) fn accept(&mut self) {
        self.whole = self.sink.buf.len();
        self.count += 1;
    }

    /// Forgets what was written since the last record.
    pub(crate) fn take_back(&mut self) {
        self.sink.buf.truncate(self.whole);
    }
}
