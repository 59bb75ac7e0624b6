//! One append and how far it is.

use bytes::Bytes;
use clad_proto::{AckLevel, ErrorInfo};
use tokio::time::Instant;

/// Records handed over. The bytes are made once.
#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) payload: Bytes,
    pub(crate) count: u32,
    pub(crate) crc: u32,
    /// Nothing: the highest that the log offers.
    pub(crate) level: Option<AckLevel>,
    /// The highest of its records.
    pub(crate) severity: i32,
    pub(crate) submitted: Instant,
}

/// Progress of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// To be sent.
    Queued,
    /// Sent on this connection, not answered.
    Sent,
    /// Stored at this place of the connection's epoch; `epoch` is what the daemon called it.
    Accepted { epoch: u32, first_offset: u64 },
    /// It has its outcome.
    Done,
}

#[derive(Debug)]
pub(super) struct Entry<W> {
    /// Records handed over before it.
    pub(super) order: u64,
    /// Its first sequence, without the base; as long as it was not sent, plus the records that were dropped unsent
    /// before it ([`Session::drop_unsent`](super::Session::drop_unsent)).
    pub(super) index: u64,
    pub(super) append: Append,
    pub(super) stage: Stage,
    /// The level that was asked for when it was last sent.
    pub(super) level: AckLevel,
    /// Its payload shares memory with nothing.
    pub(super) copied: bool,
    /// It was sent before.
    pub(super) was_sent: bool,
    /// A sending of it may have been stored without our knowing.
    pub(super) lost: bool,
    /// It was last sent with the gap mark.
    pub(super) marked: bool,
    /// The sequence that the daemon expected when it was last sent.
    pub(super) expected: u64,
    /// The last refusal for now.
    pub(super) refusal: Option<Box<ErrorInfo>>,
    waiter: Option<W>,
}

impl<W> Entry<W> {
    pub(super) const fn new(order: u64, index: u64, append: Append, waiter: W) -> Self {
        Self {
            order,
            index,
            append,
            stage: Stage::Queued,
            level: AckLevel::None,
            copied: false,
            was_sent: false,
            lost: false,
            marked: false,
            expected: 0,
            refusal: None,
            waiter: Some(waiter),
        }
    }

    /// A reader may find it.
    pub(super) const fn maybe_written(&self) -> bool {
        self.lost || matches!(self.stage, Stage::Sent | Stage::Accepted { .. })
    }

    /// True if nothing of it has left this process, so that its sequence is not fixed.
    pub(super) fn is_unsent(&self) -> bool {
        !self.was_sent && self.stage != Stage::Done
    }

    pub(super) const fn waiter(&self) -> Option<&W> {
        self.waiter.as_ref()
    }

    /// It has its outcome: its memory is free, and its waiter is given, once.
    pub(super) fn finish(&mut self) -> Option<W> {
        self.stage = Stage::Done;
        self.append.payload = Bytes::new();
        self.waiter.take()
    }
}
