//! One record as it is shown.

use clad_proto::frame::PeerMeta;
use clad_proto::{Cursor, GroupView, LogId, ProducerId, RecordView, ValueRef};

use super::{escape, json};

/// A record with all that is known about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a> {
    /// The log.
    pub(crate) log_id: LogId,
    /// Epoch in which it got its offset.
    pub(crate) epoch: u32,
    /// Its offset.
    pub(crate) offset: u64,
    /// When the daemon took it, Unix nanoseconds.
    pub(crate) append_time: u64,
    /// The producer that appended it.
    pub(crate) producer_id: ProducerId,
    /// The producer's epoch.
    pub(crate) producer_epoch: u32,
    /// Its sequence.
    pub(crate) sequence: u64,
    /// Its place in its append, from 0.
    pub(crate) place: u64,
    /// Peer metadata: what the daemon saw of the sender.
    pub(crate) peer_meta: &'a PeerMeta,
    /// Resource and scope that it shares with the rest of its append.
    pub(crate) group: GroupView<'a>,
    /// The record.
    pub(crate) record: RecordView<'a>,
}

impl Entry<'_> {
    /// The place after it.
    pub(crate) fn cursor(&self) -> Cursor {
        Cursor { log_id: self.log_id, epoch: self.epoch, offset: self.offset.saturating_add(1) }
    }

    /// The time to file it under: its own, else the observed one, else that of its append.
    pub(crate) fn time(&self) -> u64 {
        self.record.time().unwrap_or(self.append_time)
    }
}

/// Writes the body for a person: text escaped, anything structured as JSON, the event's name where there is no body.
pub(super) fn body(entry: &Entry<'_>, line: &mut String) {
    match (entry.record.body_bytes(), entry.record.body()) {
        (Some(bytes), _) => escape::bytes(line, bytes),
        (None, Some(ValueRef::Empty)) => {}
        (None, Some(value)) => json::any(line, value),
        (None, None) => escape::text(line, entry.record.event_name()),
    }
}
