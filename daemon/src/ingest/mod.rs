//! Taking records in: from a socket's bytes to an offset, and the answers back.
//!
//! ```text
//! framed, grpc, otlp, syslog ─▶ Admission::take (check, level, permits) ─▶ Journal::append ─▶ Session (answers due) ─▶ the socket
//! ```
//! Invariants, for every transport: an append is taken whole or refused whole, and a refusal names the record at fault.
//! Bytes are counted against the budget before they are taken. Nothing that a peer does costs another peer its answers.
//! Whatever is dropped without an answer (level `none`) is counted.

mod admission;
mod append_quota;
mod connection_slots;
mod flush;
mod forwards;
mod framed;
pub(crate) mod grpc;
pub(crate) mod http;
mod listen;
mod live_settings;
pub(crate) mod otlp;
mod own_appends;
mod own_producers;
mod peer;
pub(crate) mod quota;
#[cfg(test)]
mod quota_tests;
mod reactor;
pub(crate) mod rings;
mod session;
pub(crate) mod slots;
pub(crate) mod sock_diag;
pub(crate) mod syslog;

use crate::ops::metrics;

pub(crate) use admission::{
    ADMISSION_TIMEOUT, Admission, Admitted, Arrival, Producer, count_refusal, dropped, random, refusal,
};
pub(crate) use append_quota::AppendQuota;
pub(crate) use connection_slots::{
    ConnectionSlot, ConnectionSlots, LEAVING_CONNECTIONS_MAX, ROOT_RESERVED_CONNECTIONS, leaves, no_place,
};
pub(crate) use framed::{PeerTimeouts, Service as FramedService};
pub(crate) use listen::{bind_unix, bind_unix_datagram, tcp, unix};
pub(crate) use live_settings::{LiveSettings, buffers, clamp};
pub use otlp::to_protobuf;
pub(crate) use own_producers::OwnProducers;
pub(crate) use peer::{Peer, Shown, start_time, start_time_of_peer};
pub(crate) use quota::Owner;
pub(crate) use reactor::Reactor;
pub(crate) use session::{Answer, Session};
