//! The daemon's description of itself and its log at the greeting.

use clad_proto::{AckLevel, DurabilityPolicy, LogId, frame::Welcome};

/// The daemon's description of itself and its log at the greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogInfo {
    /// The log.
    pub log_id: LogId,
    /// Its epoch.
    pub epoch: u32,
    /// The way it reaches `durable`.
    pub policy: DurabilityPolicy,
    /// The highest level that it can promise.
    pub highest_ack: AckLevel,
    /// True if this client may read here.
    pub may_read: bool,
    /// The number of appends that may be unanswered.
    pub window: u32,
    /// The longest payload of an append, bytes.
    pub max_append_bytes: u32,
    /// The longest record, bytes.
    pub max_record_bytes: u32,
    /// All offsets below were received when we came.
    pub received: u64,
    /// All offsets below were written when we came.
    pub written: u64,
    /// All offsets below were durable when we came.
    pub durable: u64,
}

impl From<&Welcome> for LogInfo {
    fn from(welcome: &Welcome) -> Self {
        Self {
            log_id: welcome.log_id,
            epoch: welcome.epoch,
            policy: welcome.policy,
            highest_ack: welcome.highest_ack,
            may_read: welcome.may_read,
            window: welcome.window,
            max_append_bytes: welcome.max_append_bytes,
            max_record_bytes: welcome.max_record_bytes,
            received: welcome.received,
            written: welcome.written,
            durable: welcome.durable,
        }
    }
}
