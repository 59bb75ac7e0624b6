//! Encoding: values, records and groups are written front to back into one buffer, nothing is built first.
//!
//! A nested list does not know its length before it is written. It is written behind one free byte and the length put
//! in front afterwards ([`close_delimited`](crate::wire::close_delimited)).
//!
//! Errors are stored in the sink rather than returned by each method, so that a writer reads as a list of fields. The
//! record is checked once, at its end, and taken back whole if anything was wrong. Foreign data is written under a
//! [`Limit`], and abandoned as soon as it is over it.

mod group;
mod record;
mod value;

pub(crate) use group::put_group;
#[cfg(feature = "grpc")]
pub(crate) use group::{put_count, put_group_with, put_pairs, put_text};
pub(crate) use record::header as record_header;
pub use record::{Body, RecordHead, RecordWriter};
pub use value::{ArrayWriter, KvWriter, ValueWriter};

use crate::{
    fault::EncodeError,
    wire::{put_delimited, put_field},
};
use bytes::{BufMut, BytesMut};

/// Limit of the group or record that is being written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// Where it begins in the buffer.
    pub(crate) start: usize,
    pub(crate) max: usize,
    /// The fault, of a length that it has at least and the limit.
    pub(crate) too_large: fn(u64, u64) -> EncodeError,
}

/// Where a payload is written, and the first thing that went wrong.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    pub(crate) buf: BytesMut,
    pub(crate) fault: Option<EncodeError>,
    /// Where there is one, what is beyond it is a fault at once, and not written.
    pub(crate) limit: Option<Limit>,
    /// Kind of the body of the record that is being written.
    body_kind: u8,
}

impl Sink {
    pub(crate) fn fail(&mut self, error: EncodeError) {
        self.fault.get_or_insert(error);
    }

    /// True if so many bytes more are to be written. Behind a fault nothing is: the whole is taken back.
    #[inline]
    fn takes(&mut self, more: usize) -> bool {
        if let Some(limit) = self.limit {
            let len = self.buf.len().saturating_sub(limit.start).saturating_add(more);
            if len > limit.max {
                self.fail((limit.too_large)(len as u64, limit.max as u64));
            }
        }
        self.fault.is_none()
    }

    /// Asked before each element of a foreign list, so that it is not read on for nothing.
    ///
    /// # Errors
    /// The fault, if there is one; to be over the limit is one.
    #[cfg(feature = "grpc")]
    pub(crate) fn check(&mut self) -> Result<(), EncodeError> {
        self.takes(0);
        self.fault.map_or(Ok(()), Err)
    }

    pub(crate) fn put_slice(&mut self, bytes: &[u8]) {
        if self.takes(bytes.len()) {
            self.buf.put_slice(bytes);
        }
    }

    pub(crate) fn put_delimited(&mut self, bytes: &[u8]) {
        if self.takes(bytes.len()) {
            put_delimited(&mut self.buf, bytes);
        }
    }

    pub(crate) fn put_field(&mut self, tag: u8, bytes: &[u8]) {
        if self.takes(bytes.len()) {
            put_field(&mut self.buf, tag, bytes);
        }
    }
}
