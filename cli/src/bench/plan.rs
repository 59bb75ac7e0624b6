//! The load that is asked for.

use std::time::Duration;

use clad_client::Address;
use clad_proto::AckLevel;

use crate::interrupt::Interrupt;

/// The load on a daemon.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// Where it is.
    pub(super) address: Address,
    /// Number of connections.
    pub(super) connections: u16,
    /// Appends that each keeps in flight.
    pub(super) in_flight: usize,
    /// Threads that serve the connections.
    pub(super) threads: usize,
    /// Bytes of a body.
    pub(super) size: usize,
    /// Records in an append.
    pub(super) records: u32,
    /// The level that an answer waits for; nothing is the highest.
    pub(super) ack: Option<AckLevel>,
    /// Time in which appends leave.
    pub(super) duration: Duration,
    /// Time that a thread with a producer of the SDK looks for an answer before it sleeps.
    pub(super) spin: Duration,
    /// Through the SDK, whatever the transport.
    pub(super) sdk: bool,
    /// Rest before each append.
    pub(super) rest: Option<Duration>,
    /// Ends it early.
    pub(super) interrupt: Interrupt,
}
