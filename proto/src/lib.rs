//! The log record of clad, its one encoding, frames, errors and limits.
//!
//! This crate does no I/O. It turns records into bytes and back, and it is the only place that knows how those bytes
//! look. The bytes that a client makes here are the bytes that lie on the disk and the bytes that a reader gets:
//! nothing between them decodes and encodes again, so one checksum made by the client holds the whole way.
//!
//! | part | what it is |
//! |---|---|
//! | [`Record`], [`Group`], [`AnyValue`] | owned values of the OpenTelemetry Logs Data Model |
//! | [`PayloadBuilder`] | makes the payload of an append: one group, then records |
//! | [`PayloadView`], [`RecordView`], [`scan`] | reads a payload in place, checking all of it, without allocating |
//! | [`filter`] | which records a reader wants |
//! | [`journald`] | entries of systemd's journal, as records |
//! | [`frame`] | the framed protocol of the TCP and Unix sockets |
//! | [`raw_export`] | the head of frames in a file |
//! | [`ErrorCode`], [`ErrorInfo`] | what a refusal says: may I retry, may it be written |
//! | `grpc`, `otlp` (feature `grpc`) | the generated gRPC services, and OTLP messages to and from records |
//!
//! Invariants that every module here keeps:
//! * All integers are little-endian and of a stated width; every length is bounded by a name in [`limits`].
//! * A length that came from a peer is compared with what is there before anything is sliced or allocated.
//! * No input makes a decoder panic; every decoder either gives a value or an error that says what is wrong.
//! * There is one encoding of a record: what decodes encodes to the same bytes, and what is not in that form is
//!   refused.

pub mod filter;
pub mod frame;
pub mod journald;
pub mod limits;
pub mod raw_export;

mod checksum;
mod error;
mod fault;
mod group;
mod ids;
mod level;
mod payload;
mod record;
mod severity;
mod value;
mod view;
mod wire;
mod write;

#[cfg(feature = "grpc")]
pub mod grpc;
#[cfg(feature = "grpc")]
pub mod otlp;

pub use checksum::{PayloadChecksum, crc32c, payload_checksum};
pub use error::{ErrorCode, ErrorInfo};
pub use fault::{EncodeError, Fault, PayloadError};
pub use group::{EntityRef, Group, Resource, Scope};
pub use ids::{Cursor, LogId, ParseIdError, ProducerId};
pub use level::{AckLevel, DurabilityPolicy, ParseNameError};
pub use payload::{
    KnownGroup, Payload, PayloadBuilder, PayloadView, RecordIter, Scan, TimeRange, first_record, max_severity,
    parse_group, scan, scan_known,
};
pub use record::{Record, UnknownField};
pub use severity::Severity;
pub use value::{AnyValue, KeyValue};
pub use view::{
    ArrayIter, ArrayRef, EntityRefView, GroupView, KeyValueRef, KvIter, KvsRef, RecordView, ResourceView, ScopeView,
    StrIter, UnknownIter, ValueRef,
};
pub use write::{ArrayWriter, Body, EncodedPairs, KvWriter, RecordHead, RecordWriter, ValueWriter};
