//! Who waits for an append, and what it holds until it is answered.

use super::ticket::{Receipt, TicketSender};
use crate::AppendError;
use tokio::sync::OwnedSemaphorePermit;

/// One record's share of an append that others share too.
#[derive(Debug)]
pub(crate) struct Share {
    /// The record, counted from 0 in its append.
    pub(crate) index: u32,
    pub(crate) ticket: TicketSender,
}

#[derive(Debug)]
pub(crate) enum Waiters {
    /// Nobody: fire and forget.
    Nobody,
    /// The whole append has one ticket.
    Whole(TicketSender),
    /// Records that were submitted one by one.
    Shares(Vec<Share>),
}

/// Travels with an append through the session; its room is free when it is gone.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) waiters: Waiters,
    pub(crate) permit: OwnedSemaphorePermit,
}

impl Claim {
    /// Whether records that were submitted one by one wait for it.
    pub(crate) const fn is_shared(&self) -> bool {
        matches!(self.waiters, Waiters::Shares(_))
    }

    /// Tells everybody. False when it was an error and somebody was not there to hear it.
    pub(crate) fn resolve(self, outcome: &Result<Receipt, AppendError>) -> bool {
        // The room is free before its owner is told, so that who heard may reserve at once.
        drop(self.permit);
        match self.waiters {
            Waiters::Nobody => outcome.is_ok(),
            Waiters::Whole(ticket) => ticket.send(outcome.clone()).is_ok() || outcome.is_ok(),
            Waiters::Shares(shares) => {
                let mut heard = true;
                for share in shares {
                    let own = outcome.clone().map(|receipt| Receipt {
                        first_offset: receipt.first_offset.map(|first| first + u64::from(share.index)),
                        count: 1,
                        ..receipt
                    });
                    heard &= share.ticket.send(own).is_ok() || outcome.is_ok();
                }
                heard
            }
        }
    }
}
