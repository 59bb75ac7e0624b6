//! Buffer that values, records and groups are written to.

use crate::{
    fault::EncodeError,
    wire::{put_delimited, put_field},
};
use bytes::BytesMut;

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
    pub(super) body_kind: u8,
}

impl Sink {
    pub(crate) fn fail(&mut self, error: EncodeError) {
        self.fault.get_or_insert(error);
    }

    /// True if so many bytes more are to be written. Behind a fault nothing is: the whole is taken back.
    #[inline]
    pub(super) fn takes(&mut self, more: usize) -> bool {
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

    #[inline]
    pub(crate) fn put_slice(&mut self, bytes: &[u8]) {
        if self.takes(bytes.len()) {
            self.buf.extend_from_slice(bytes);
        }
    }

    #[inline]
    pub(crate) fn put_delimited(&mut self, bytes: &[u8]) {
        if self.takes(bytes.len()) {
            put_delimited(&mut self.buf, bytes);
        }
    }

    #[inline]
    pub(crate) fn put_field(&mut self, tag: u8, bytes: &[u8]) {
        if self.takes(bytes.len()) {
            put_field(&mut self.buf, tag, bytes);
        }
    }
}
