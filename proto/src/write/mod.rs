//! Encoding: values, records and groups are written front to back into one buffer, nothing is built first.
//!
//! A nested list does not know its length before it is written. It is written behind one free byte and the length put
//! in front afterwards ([`close_delimited`](crate::wire::close_delimited)).
//!
//! Errors are kept in the sink rather than returned by each method, so that a writer reads as a list of fields; the
//! record is checked once, at its end, and taken back whole if anything was wrong.

mod group;
mod record;
mod value;

pub(crate) use group::put_group;
pub(crate) use record::header as record_header;
pub use record::{Body, RecordHead, RecordWriter};
pub use value::{ArrayWriter, KvWriter, ValueWriter};

use crate::fault::EncodeError;
use bytes::BytesMut;

/// Where a payload is written, and the first thing that went wrong.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    pub(crate) buf: BytesMut,
    pub(crate) fault: Option<EncodeError>,
    /// Kind of the body of the record that is being written.
    body_kind: u8,
}

impl Sink {
    fn fail(&mut self, error: EncodeError) {
        self.fault.get_or_insert(error);
    }
}
