//! The daemon's word that records have reached a level.

use crate::AppendError;
use clad_proto::{AckLevel, LogId};
use tokio::sync::oneshot;

/// The daemon's word that records have reached a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The log that has them.
    pub log_id: LogId,
    /// The epoch in which the offsets hold.
    pub epoch: u32,
    /// Offset of the first record; the others follow without a gap. Nothing at level `none`, which has no answer.
    pub first_offset: Option<u64>,
    /// The number of records.
    pub count: u32,
    /// The level that they have reached: the one that was asked for.
    pub level: AckLevel,
}

impl Receipt {
    /// Offset of the last record.
    #[must_use]
    pub fn last_offset(&self) -> Option<u64> {
        self.first_offset.map(|first| first + u64::from(self.count.saturating_sub(1)))
    }
}

/// Sends the outcome of an append to its ticket.
pub(crate) type TicketSender = oneshot::Sender<Result<Receipt, AppendError>>;
