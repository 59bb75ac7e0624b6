//! Result of an append: a ticket, and what it resolves to.

use super::shared::Shared;
use crate::{
    Address, AppendError, Receipt,
    receipt::TicketSender,
    ring::{RingHandle, RingTicket},
};
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::sync::oneshot;

/// The longest sleep of a wait before it checks that there is still a ring.
const RING_WAIT_SLICE: Duration = Duration::from_millis(10);

/// Resolves once, when the records have reached their level or it is known that they will not.
///
/// At level `none` it resolves as soon as the append was handed to the connection, at level `posted` as soon as it is
/// in the ring.
///
/// # Cancel safety
/// Dropping a ticket cancels nothing: the append continues. If it ends with an error, the next
/// [`flush`](crate::Producer::flush) or [`close`](crate::Producer::close) reports it. A ticket may be polled in a
/// `select!` and awaited again.
#[derive(Debug)]
#[must_use = "the ticket tells whether the records have reached their level"]
pub struct Ticket(Way);

/// The way of the outcome.
#[derive(Debug)]
enum Way {
    /// From the task.
    Channel(oneshot::Receiver<Result<Receipt, AppendError>>, Arc<Shared>),
    /// It is in the ring.
    Ring(RingTicket),
    /// It is there.
    Known(Result<Receipt, AppendError>),
    /// It was given.
    Over,
}

impl Ticket {
    pub(crate) fn new(shared: &Arc<Shared>) -> (TicketSender, Self) {
        let (sender, answer) = oneshot::channel();
        (sender, Self(Way::Channel(answer, shared.clone())))
    }

    /// Waits in the calling thread. With a ring it polls the ring's completion page for `spin` without sleeping, then
    /// sleeps until that changes: no other thread has to be woken in between. It offers its processor between two
    /// looks: where there are few, the daemon may need just this one for the answer.
    ///
    /// # Errors
    /// As the ticket, awaited.
    ///
    /// # Panics
    /// In a task of a runtime, where there is no ring: await it there. And once it was polled to its end.
    pub fn wait(self, spin: Duration) -> Result<Receipt, AppendError> {
        match self.0 {
            Way::Channel(answer, shared) => wait_for_task(answer, &shared, spin),
            Way::Ring(ticket) => ticket.wait(spin, RING_WAIT_SLICE),
            Way::Known(outcome) => outcome,
            Way::Over => panic!("{OVER}"),
        }
    }
}

impl From<Receipt> for Ticket {
    fn from(receipt: Receipt) -> Self {
        Self(Way::Known(Ok(receipt)))
    }
}

impl From<AppendError> for Ticket {
    fn from(error: AppendError) -> Self {
        Self(Way::Known(Err(error)))
    }
}

impl From<RingTicket> for Ticket {
    fn from(ticket: RingTicket) -> Self {
        Self(Way::Ring(ticket))
    }
}

const OVER: &str = "a ticket gives its outcome once";

fn wait_for_task(
    mut answer: oneshot::Receiver<Result<Receipt, AppendError>>,
    shared: &Shared,
    spin: Duration,
) -> Result<Receipt, AppendError> {
    // An earlier look at the completion page has notified others, too.
    if let Ok(answer) = answer.try_recv() {
        return answer;
    }
    if shared.is_forked() {
        return Err(AppendError::Forked);
    }
    let start = std::time::Instant::now();
    while let Some(ring_handle) = ring_of(shared) {
        let seen = ring_handle.watermarks();
        ring_handle.pump();
        match answer.try_recv() {
            Ok(answer) => return answer,
            Err(oneshot::error::TryRecvError::Closed) => return gone(),
            Err(oneshot::error::TryRecvError::Empty) if start.elapsed() < spin => std::thread::yield_now(),
            // It may queue for room, or the ring end: then the completion page does not show it.
            Err(oneshot::error::TryRecvError::Empty) => ring_handle.wait_change(seen, RING_WAIT_SLICE),
        }
    }
    answer.blocking_recv().unwrap_or_else(|_| gone())
}

/// If there may be a ring, the waiter polls its completion page itself.
fn ring_of(shared: &Shared) -> Option<Arc<RingHandle>> {
    matches!(shared.options.address, Address::Shm(_)).then(|| shared.ring_handle()).flatten()
}

/// The task went away with its runtime; the fate of what it had sent by then is unknown.
fn gone() -> Result<Receipt, AppendError> {
    Err(AppendError::Closed { maybe_written: true })
}

impl Future for Ticket {
    type Output = Result<Receipt, AppendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = match &mut self.0 {
            Way::Channel(answer, shared) => {
                let mut polled = Pin::new(&mut *answer).poll(cx);
                if polled.is_pending() && shared.is_forked() {
                    return Poll::Ready(Err(AppendError::Forked));
                }
                if polled.is_pending() && ring_of(shared).is_some() {
                    shared.poll_completion_page();
                    polled = Pin::new(answer).poll(cx);
                }
                polled.map(|answer| answer.unwrap_or_else(|_| gone()))
            }
            Way::Ring(ticket) => ticket.poll(cx),
            Way::Known(_) => match std::mem::replace(&mut self.0, Way::Over) {
                Way::Known(outcome) => Poll::Ready(outcome),
                _ => unreachable!("it was just looked at"),
            },
            Way::Over => panic!("{OVER}"),
        };
        if polled.is_ready() {
            self.0 = Way::Over;
        }
        polled
    }
}
