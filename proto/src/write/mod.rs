//! Encoding: values, records and groups are written front to back into one buffer, nothing is built first.
//!
//! A nested list does not know its length before it is written. It is written behind one free byte and the length put
//! in front afterwards ([`close_delimited`](crate::wire::close_delimited)).
//!
//! Errors are stored in the sink rather than returned by each method, so that a writer reads as a list of fields. The
//! record is checked once, at its end, and taken back whole if anything was wrong. Foreign data is written under a
//! [`Limit`], and abandoned as soon as it is over it.

mod encoded;
mod group;
mod open;
mod record;
mod sink;
mod value;

pub use encoded::EncodedPairs;
pub(crate) use group::put_group;
#[cfg(feature = "grpc")]
pub(crate) use group::{put_count, put_group_with, put_pairs, put_text};
pub(crate) use open::OpenPayload;
pub(crate) use record::header as record_header;
pub use record::{Body, RecordHead, RecordWriter};
pub(crate) use sink::Sink;
pub use value::{ArrayWriter, KvWriter, ValueWriter};
