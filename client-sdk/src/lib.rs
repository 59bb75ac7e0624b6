//! Client of clad: hand log records to the daemon, know how safe each of them is, read them back.
//!
//! # Appending
//! A [`Producer`] is a cheap handle over one task that owns the connection. An append has four steps, so that each can
//! wait, fail and be dropped separately. *Reserve* room ([`Producer::reserve`]). *Submit* records into it
//! ([`Reservation::submit`], never waits, fixes their place in the order). Hold the [`Ticket`]. Await its [`Receipt`].
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use clad_client::{AckLevel, Producer, Record};
//!
//! let producer = Producer::builder("unix:///run/clad/clad.sock".parse()?).component("billing").connect().await?;
//! let ticket = producer.reserve(512).await?.at(AckLevel::Durable).submit(&Record::text(0, 9, "paid"))?;
//! let receipt = ticket.await?; // on stable storage now
//! println!("offset {:?} of log {}", receipt.first_offset, receipt.log_id);
//! producer.close().await?;
//! # Ok(()) }
//! ```
//!
//! Promises: records of one producer are stored in the order in which they were submitted. Each append is stored once,
//! also when it was sent several times over several connections. A receipt is never given before the daemon's answer.
//! An error says whether the records may be in the log. [`ProducerBuilder::delivery_timeout`] says where exactly-once
//! ends.
//!
//! # Reading
//! A [`Reader`] gives [`Event`]s: chunks of records as they were appended, gaps with their reason, and a cursor from
//! which to resume later. See [`Reader::builder`].
//!
//! # Transports
//! [`Address`] picks one; the rules are the same on all of them. On the framed ones (`unix://`, `tcp://`) the bytes and
//! the checksum that are made at submit are what lies on the disk. On `grpc://` (feature `grpc`, on by default) the
//! daemon encodes, and record fields that OTLP has no place for are left out.
//!
//! `shm://` asks for a ring of shared memory on the Unix socket. A submit puts its record there in the calling thread,
//! by no system call. The level `posted` is reached when it returns; the other levels as everywhere. If no ring is
//! given ([`Producer::why_no_ring`]) it goes over the socket. A record must fit a quarter of the ring; a longer one is
//! refused.
//!
//! A child of `fork` is refused whatever it asks of its parent's producer ([`SubmitError::Forked`]), at every address,
//! and makes one of its own.
//!
//! Every queue and wait has a bound with a name: `max_buffered_bytes`, `max_in_flight_appends`, `connect_timeout`,
//! `delivery_timeout`, `linger`, `drop_timeout`.

mod backoff;
mod clock;
mod error;
mod lock;
mod log_info;
mod producer;
mod reader;
mod receipt;
mod ring;
mod session;
mod stats;
mod transport;
mod waiters;

pub use error::{AppendError, ConnectError, ReadError, ReserveError, SendError, SubmitError};
pub use log_info::LogInfo;
pub use producer::{Batch, Producer, ProducerBuilder, Reservation, Ticket};
pub use reader::{Chunk, Event, Gap, Reader, ReaderBuilder, Start};
pub use receipt::Receipt;
pub use stats::{Stats, Summary};
pub use transport::address::{Address, DEFAULT_GRPC_PORT, DEFAULT_TCP_PORT, HostPort, ParseAddressError};

#[doc(no_inline)]
pub use clad_proto::{
    AckLevel, AnyValue, Body, Cursor, DurabilityPolicy, EncodeError, ErrorCode, ErrorInfo, Group, GroupView, KeyValue,
    LogId, ProducerId, Record, RecordView, Resource, Scope, Severity, ValueRef,
    frame::{GapReason, PeerMeta, Transport},
};
