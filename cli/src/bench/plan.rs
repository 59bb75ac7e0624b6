//! The load that is asked for.

use std::time::Duration;

use clad_client::Address;
use clad_proto::AckLevel;

use crate::interrupt::Interrupt;

/// What is asked of a daemon.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// Where it is.
    pub(super) address: Address,
    /// How many connections.
    pub(super) connections: u16,
    /// How many appends each keeps in flight.
    pub(super) in_flight: usize,
    /// Threads that serve the connections.
    pub(super) threads: usize,
    /// Bytes of a body.
    pub(super) size: usize,
    /// Records in an append.
    pub(super) records: u32,
    /// The level that an answer waits for; nothing is the highest.
    pub(super) ack: Option<AckLevel>,
    /// How long appends leave.
    pub(super) duration: Duration,
    /// How long a thread with a producer of the SDK looks for an answer before it sleeps.
    pub(super) spin: Duration,
    /// How long it rests before each append.
    pub(super) rest: Option<Duration>,
    /// Ends it early.
    pub(super) interrupt: Interrupt,
}
