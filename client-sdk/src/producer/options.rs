//! Options of a producer, as its builder leaves them.

use super::call::Overload;
use crate::{Address, undelivered::OnError};
use clad_proto::{AckLevel, Group, ProducerId};
use std::time::Duration;

/// Options of a producer.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) address: Address,
    pub(crate) name: String,
    pub(crate) producer_id: ProducerId,
    pub(crate) producer_epoch: u32,
    /// The caller chose the id, and may resume with it later.
    pub(crate) comes_back: bool,
    pub(crate) secret: Vec<u8>,
    pub(crate) group: Group,
    pub(crate) level: Option<AckLevel>,
    pub(crate) max_in_flight: u32,
    pub(crate) max_buffered_bytes: usize,
    pub(crate) max_records: u32,
    pub(crate) max_bytes: usize,
    pub(crate) linger: Duration,
    pub(crate) backoff: (Duration, Duration),
    pub(crate) connect_timeout: Duration,
    pub(crate) delivery_timeout: Duration,
    pub(crate) drop_timeout: Duration,
    pub(crate) drop_when_full: bool,
    pub(crate) overload: Overload,
    pub(crate) on_first_error: Option<OnError>,
}
