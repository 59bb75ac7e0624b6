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
#[must_use = "the ticket resolves to whether the records have reached their level"]
pub struct Ticket(Way);

/// The way of the outcome.
#[derive(Debug)]
enum Way {
    /// From the task.
    Channel(oneshot::Receiver<Result<Receipt, AppendError>>, Arc<Shared>),
    /// It is in the ring.
    Ring(RingTicket),
    /// It is there.
    Known(Receipt),
    Failed(Failed),
    /// It was given.
    Over,
}

/// An error that is there. If it is dropped before it was given, the next flush reports it.
#[derive(Debug)]
struct Failed(Option<AppendError>, Arc<RingHandle>);

impl Failed {
    fn take(&mut self) -> AppendError {
        self.0.take().unwrap_or(AppendError::Forgotten)
    }
}

impl Drop for Failed {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|error| self.1.has_undelivered(error));
    }
}

impl Ticket {
    pub(crate) fn failed(error: AppendError, ring_handle: &Arc<RingHandle>) -> Self {
        Self(Way::Failed(Failed(Some(error), ring_handle.clone())))
    }

    pub(crate) fn new(shared: &Arc<Shared>) -> (TicketSender, Self) {
        let (sender, answer) = oneshot::channel();
        (sender, Self(Way::Channel(answer, shared.clone())))
    }

    /// Takes the outcome, if it is there; `None` while it is not. It wakes nobody and waits for nothing.
    ///
    /// # Panics
    /// Once the outcome was taken.
    pub fn try_wait(&mut self) -> Option<Result<Receipt, AppendError>> {
        let outcome = match &mut self.0 {
            Way::Channel(answer, shared) => look_for_task(answer, shared),
            Way::Ring(ticket) => ticket.look(),
            Way::Known(receipt) => Some(Ok(*receipt)),
            Way::Failed(failed) => Some(Err(failed.take())),
            Way::Over => panic!("{OVER}"),
        };
        if outcome.is_some() {
            self.0 = Way::Over;
        }
        outcome
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
            Way::Known(receipt) => Ok(receipt),
            Way::Failed(mut failed) => Err(failed.take()),
            Way::Over => panic!("{OVER}"),
        }
    }
}

impl From<Receipt> for Ticket {
    fn from(receipt: Receipt) -> Self {
        Self(Way::Known(receipt))
    }
}

impl From<RingTicket> for Ticket {
    fn from(ticket: RingTicket) -> Self {
        Self(Way::Ring(ticket))
    }
}

const OVER: &str = "a ticket gives its outcome once";

fn look_for_task(
    answer: &mut oneshot::Receiver<Result<Receipt, AppendError>>,
    shared: &Shared,
) -> Option<Result<Receipt, AppendError>> {
    // An earlier look at the completion page has notified others, too.
    let mut outcome = answer.try_recv();
    if outcome.is_err() && shared.is_forked() {
        return Some(Err(AppendError::Forked));
    }
    if let (Err(_), Some(ring_handle)) = (&outcome, ring_of(shared)) {
        ring_handle.pump();
        outcome = answer.try_recv();
    }
    match outcome {
        Ok(outcome) => Some(outcome),
        Err(oneshot::error::TryRecvError::Closed) => Some(gone()),
        Err(oneshot::error::TryRecvError::Empty) => None,
    }
}

fn wait_for_task(
    mut answer: oneshot::Receiver<Result<Receipt, AppendError>>,
    shared: &Shared,
    spin: Duration,
) -> Result<Receipt, AppendError> {
    let start = std::time::Instant::now();
    loop {
        let seen = ring_of(shared).map(|ring_handle| (ring_handle.watermarks(), ring_handle));
        if let Some(outcome) = look_for_task(&mut answer, shared) {
            return outcome;
        }
        match seen {
            None => return answer.blocking_recv().unwrap_or_else(|_| gone()),
            Some(_) if start.elapsed() < spin => std::thread::yield_now(),
            // It may queue for room, or the ring end: then the completion page does not show it.
            Some((seen, ring_handle)) => ring_handle.wait_change(seen, RING_WAIT_SLICE),
        }
    }
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
            Way::Known(receipt) => Poll::Ready(Ok(*receipt)),
            Way::Failed(failed) => Poll::Ready(Err(failed.take())),
            Way::Over => panic!("{OVER}"),
        };
        if polled.is_ready() {
            self.0 = Way::Over;
        }
        polled
    }
}
