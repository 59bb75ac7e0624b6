//! Waiters for an append, and what each holds until it is answered.

use crate::{AppendError, Receipt, drops::Unreported, receipt::TicketSender, stats::Counters};
use std::sync::Arc;
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
    /// No waiter: fire and forget.
    Nobody,
    /// The whole append has one ticket.
    Whole(TicketSender),
    /// Records that were submitted one by one, so many; some of them without a ticket, perhaps.
    Shares(Vec<Share>, u32),
    /// It reports drops, which are to be reported again if it is not stored.
    Report(Unreported, Arc<Counters>),
}

/// Travels with an append through the session; its room is free when it is gone.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) waiters: Waiters,
    pub(crate) permit: OwnedSemaphorePermit,
}

impl Claim {
    /// True if records that were submitted one by one wait for it.
    pub(crate) const fn is_shared(&self) -> bool {
        matches!(self.waiters, Waiters::Shares(..))
    }

    /// True if it is a report of drops, which no program has handed over.
    pub(crate) const fn is_report(&self) -> bool {
        matches!(self.waiters, Waiters::Report(..))
    }

    /// True if some waiter will not hear of an error.
    pub(crate) fn is_released(&self) -> bool {
        match &self.waiters {
            Waiters::Nobody => true,
            Waiters::Report(..) => false,
            Waiters::Whole(ticket) => ticket.is_closed(),
            Waiters::Shares(shares, records) => {
                shares.len() < *records as usize || shares.iter().any(|share| share.ticket.is_closed())
            }
        }
    }

    /// Notifies all waiters. False when it was an error and some waiter was not there to hear it.
    pub(crate) fn resolve(self, outcome: &Result<Receipt, AppendError>) -> bool {
        // The room is free before its owner is notified, so that the owner may reserve at once.
        drop(self.permit);
        match self.waiters {
            Waiters::Nobody => outcome.is_ok(),
            Waiters::Report(report, counters) => {
                if let Err(error) = outcome {
                    // It is as if it had never been handed over.
                    counters.submitted.take_back(1);
                    counters.failed.take_back(1);
                    counters.drops.report_failed(&report, error.maybe_written());
                }
                true
            }
            Waiters::Whole(ticket) => ticket.send(outcome.clone()).is_ok() || outcome.is_ok(),
            Waiters::Shares(shares, records) => {
                let mut delivered = outcome.is_ok() || shares.len() == records as usize;
                for share in shares {
                    let own = outcome.clone().map(|receipt| Receipt {
                        first_offset: receipt.first_offset.map(|first| first + u64::from(share.index)),
                        count: 1,
                        ..receipt
                    });
                    delivered &= share.ticket.send(own).is_ok() || outcome.is_ok();
                }
                delivered
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::sync::{Semaphore, oneshot};

    /// A group in which some have no ticket, or dropped it: then some waiter has not heard of its error.
    #[test]
    fn an_error_is_delivered_where_each_record_has_a_held_ticket() {
        for (tickets, held, delivered) in [(2, 2, true), (2, 1, false), (1, 1, false), (0, 0, false)] {
            for fails in [true, false] {
                let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("room");
                let (senders, mut receivers): (Vec<_>, Vec<_>) = (0..tickets).map(|_| oneshot::channel()).unzip();
                receivers.truncate(held);
                let shares = (0..).zip(senders).map(|(index, sender)| Share { index, ticket: sender }).collect();
                let claim = Claim { waiters: Waiters::Shares(shares, 2), permit };
                let receipt = Receipt {
                    log_id: clad_proto::LogId::from_bytes([1; 16]),
                    epoch: 1,
                    first_offset: Some(7),
                    count: 2,
                    level: clad_proto::AckLevel::Durable,
                };
                let outcome = if fails { Err(AppendError::Forgotten) } else { Ok(receipt) };
                assert_eq!(claim.resolve(&outcome), delivered || !fails, "{tickets} tickets, {held} held");
            }
        }
    }
}
