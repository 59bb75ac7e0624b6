//! What an append gives back: a ticket, and what it resolves to.

use crate::AppendError;
use clad_proto::{AckLevel, LogId};
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::sync::oneshot;

/// The daemon's word that records have reached a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The log that has them.
    pub log_id: LogId,
    /// The epoch in which the offsets hold.
    pub epoch: u32,
    /// Offset of the first record; the others follow without a hole. Nothing at level `none`, where nobody answers.
    pub first_offset: Option<u64>,
    /// How many records.
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

pub(crate) type TicketSender = oneshot::Sender<Result<Receipt, AppendError>>;

/// Resolves once, when the records have reached their level or it is known that they will not.
///
/// At level `none` it resolves as soon as the append was handed to the connection.
///
/// # Cancel safety
/// Dropping a ticket cancels nothing: the append goes on. Its error, if it ends with one, is then told by the next
/// [`flush`](crate::Producer::flush) or [`close`](crate::Producer::close). A ticket may be polled in a `select!` and
/// awaited again.
#[derive(Debug)]
#[must_use = "the ticket tells whether the records have reached their level"]
pub struct Ticket(oneshot::Receiver<Result<Receipt, AppendError>>);

impl Ticket {
    pub(crate) fn new() -> (TicketSender, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(receiver))
    }
}

impl Future for Ticket {
    type Output = Result<Receipt, AppendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|answer| {
            // The task went away with its runtime; what it had sent by then nobody knows.
            answer.unwrap_or(Err(AppendError::Closed { maybe_written: true }))
        })
    }
}
