//! The ticket's end of an append that is in the ring: how its outcome is waited for.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use clad_proto::frame::RingAppendTrailer;
use clad_shm::PushError;

use super::handle::{RingHandle, Unsettled};
use crate::{AppendError, Receipt, stats::Book};

/// Result of a push that has no receipt at once.
pub(crate) enum Pushed {
    /// It is in the ring: what is due for it.
    Pending(RingTicket),
    /// It will never be in the ring, or its outcome will never be known, and that is its outcome.
    Ended(AppendError),
    /// There is no room for it now, or no ring any more: it must wait.
    Wait,
    /// This process is a fork of the one that has the ring.
    Forked,
}

/// The outcome of an append that is in the ring. If it is dropped before it was fetched, the next flush reports an
/// error.
#[derive(Debug)]
pub(crate) struct RingTicket {
    handle: Arc<RingHandle>,
    append: u64,
    fetched: bool,
}

impl RingTicket {
    /// Settles a push of so many records that has no receipt at once; counts it, unless it must wait, or is a fork's.
    pub(crate) fn settle(handle: &Arc<RingHandle>, unsettled: Unsettled, count: u32, book: Book<'_>) -> Pushed {
        let error = match unsettled {
            Unsettled::Asked(asked) => {
                book.sent(count.into());
                return match handle.pushed(asked) {
                    Ok(()) => Pushed::Pending(Self::new(handle.clone(), asked.append)),
                    Err(error) => Pushed::Ended(error),
                };
            }
            Unsettled::Unreachable(level) => AppendError::unreachable_level(level),
            Unsettled::Not(PushError::Size { len, max }) => {
                let trailer = RingAppendTrailer::BYTES as u64;
                AppendError::TooLarge { len: len as u64 - trailer, max: max as u64 - trailer }
            }
            Unsettled::Not(PushError::Forked) => return Pushed::Forked,
            Unsettled::Not(_) => return Pushed::Wait,
        };
        handle.counters.failed.add(count.into());
        Pushed::Ended(error)
    }

    pub(super) const fn new(handle: Arc<RingHandle>, append: u64) -> Self {
        Self { handle, append, fetched: false }
    }

    /// Waits in the calling thread; looks without sleeping for `spin`, then sleeps until the completion page changes,
    /// for `slice` at a time.
    pub(crate) fn wait(mut self, spin: Duration, slice: Duration) -> Result<Receipt, AppendError> {
        // A fork has the locks as they were.
        if self.handle.is_forked() {
            return Err(AppendError::Forked);
        }
        // An earlier look at the completion page has settled others, too.
        if let Some(outcome) = self.fetch(RingHandle::outcome) {
            return outcome;
        }
        let mut start = None;
        loop {
            let seen = self.handle.watermarks();
            if let Some(outcome) = self.fetch(RingHandle::outcome_now) {
                return outcome;
            }
            let now = Instant::now();
            match now - *start.get_or_insert(now) < spin {
                true => std::thread::yield_now(),
                // Another look may settle it, or the ring end: then the completion page does not show it.
                false => self.handle.wait_change(seen, slice),
            }
        }
    }

    /// Looks once.
    pub(crate) fn look(&mut self) -> Option<Result<Receipt, AppendError>> {
        match self.handle.is_forked() {
            true => Some(Err(AppendError::Forked)),
            false => self.fetch(RingHandle::outcome_now),
        }
    }

    /// As a future is polled.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<Receipt, AppendError>> {
        if self.handle.is_forked() {
            return Poll::Ready(Err(AppendError::Forked));
        }
        if let Some(outcome) = self.fetch(RingHandle::outcome_now) {
            return Poll::Ready(outcome);
        }
        self.handle.set_waker(self.append, cx.waker());
        self.handle.want();
        // It may have come since.
        self.fetch(RingHandle::outcome_now).map_or(Poll::Pending, Poll::Ready)
    }

    fn fetch(
        &mut self,
        by: impl FnOnce(&RingHandle, u64) -> Option<Result<Receipt, AppendError>>,
    ) -> Option<Result<Receipt, AppendError>> {
        let outcome = by(&self.handle, self.append);
        self.fetched |= outcome.is_some();
        outcome
    }
}

impl Drop for RingTicket {
    fn drop(&mut self) {
        if !self.fetched && !self.handle.is_forked() {
            self.handle.release_ticket(self.append);
        }
    }
}
