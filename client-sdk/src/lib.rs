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
//! ends. `examples/audit.rs` does nothing before the record of it is durable.
//!
//! # Exactly once over the death of the program
//! A program that makes its records from something that it can read again (a file, a queue) appends each of them once,
//! however often it dies. It keeps an identity: the [id](ProducerBuilder::producer), an epoch that it raises before each
//! start, and over TCP and gRPC a [secret](ProducerBuilder::secret). [`ProducerBuilder::resume`] connects, and
//! [`Producer::last_stored`] has the sequence of the last record in the log. Sequences count records from 0, so this is
//! the place from which to go on. It holds while each record of the input becomes one record of this producer, above
//! level `none`, and the program ends at the first error. It ends where the daemon forgets the producer (see
//! docs/PROTOCOL.md). `examples/exactly_once.rs` is such a program.
//!
//! # Reading
//! A [`Reader`] gives [`Event`]s: chunks of records as they were appended, gaps with their reason, and a cursor from
//! which to resume later. A [`Filter`] says which records are wanted. See [`Reader::builder`], and `examples/tailer.rs`.
//!
//! # Forwarding
//! A [`Forwarder`] hands appends of one log on to another, as they are, each once. [`Chunk::raw`] has an append as it goes
//! on.
//!
//! # Transports
//! [`Address`] picks one; the rules are the same on all of them. On the framed ones (`unix://`, `tcp://`) the bytes and
//! the checksum that are made at submit are what lies on the disk. On `grpc://` (feature `grpc`, on by default) the
//! daemon encodes, and record fields that OTLP has no place for are left out.
//!
//! `shm://` asks for a ring of shared memory on the Unix socket. A submit puts its record there in the calling thread,
//! by no system call. Where the ring is stored ([`Producer::offers_posted`]), the level `posted` is reached when it
//! returns; elsewhere `none` is the level of a log call that wants no answer. The other levels are as everywhere. If no
//! ring is given ([`Producer::why_no_ring`]) it goes over the socket; where there is none just now, it is asked for again
//! within a minute. A record must fit a quarter of the ring; a longer one is refused. A restarted daemon gets the ring
//! from this client, if nobody else has it.
//!
//! A child of `fork` is refused whatever it asks of its parent's producer ([`SubmitError::Forked`]), at every address,
//! and makes one of its own. Nothing here may be called in a signal handler.
//!
//! # Logging
//! [`Producer::offer`] is for a program that cannot wait: where there is no room, [`Overload`] says what is dropped, or
//! how long the call waits at most. Every drop is counted ([`Stats`]), and becomes a record of the log when there is
//! room ([`DROPS_EVENT_NAME`]). [`blocking`] is for programs without a runtime. The crate `clad-tracing` has a layer for
//! `tracing`.
//!
//! Every queue and wait has a bound with a name: `max_buffered_bytes`, `max_in_flight_appends`, `connect_timeout`,
//! `delivery_timeout`, `linger`, `drop_timeout`.

mod backoff;
pub mod blocking;
mod clock;
mod cursors;
mod drops;
mod error;
mod forward;
mod lock;
mod log_info;
#[cfg(feature = "models")]
#[doc(hidden)]
pub mod models;
mod producer;
mod reader;
mod receipt;
mod ring;
mod session;
mod stats;
mod sync;
mod thread_wait;
mod transport;
mod undelivered;
mod waiters;

pub use cursors::Cursors;
pub use drops::{DROPS_EVENT_NAME, DropCounts, DropReason};
pub use error::{AppendError, ConnectError, ReadError, ReserveError, SendError, SubmitError};
pub use forward::{ForwardAs, ForwardError, Forwarded, Forwarder, ForwarderOptions, RawRecords};
pub use log_info::LogInfo;
pub use producer::{Batch, Call, Overload, Producer, ProducerBuilder, Reservation, Ticket};
pub use reader::{Chunk, Event, Gap, Reader, ReaderBuilder, Start};
pub use receipt::Receipt;
pub use stats::{Stats, Summary};
#[cfg(feature = "tls")]
pub use transport::address::TlsHost;
pub use transport::address::{Address, DEFAULT_GRPC_PORT, DEFAULT_TCP_PORT, HostPort, ParseAddressError};
#[cfg(feature = "grpc")]
#[doc(hidden)]
pub use transport::{Channel, WithToken, channel};

#[doc(no_inline)]
pub use clad_proto::{
    AckLevel, AnyValue, ArrayWriter, Body, Cursor, DurabilityPolicy, EncodeError, EncodedPairs, ErrorCode, ErrorInfo,
    Group, GroupView, KeyValue, KvWriter, LogId, ProducerId, Record, RecordHead, RecordView, Resource, Scope, Severity,
    ValueRef,
    filter::{Filter, FilterError},
    frame::{
        FirstOrigin, GapReason, LastStored, NamedCursor, OriginState, Path, PeerMeta, SkipReason, StreamName, Transport,
    },
};
