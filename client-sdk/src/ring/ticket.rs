//! The ticket's end of an append that is in the ring: how its outcome is waited for.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::RingHandle;
use crate::{AppendError, producer::Receipt};

/// The outcome of an append that is in the ring. If it is dropped before it was fetched, the next flush reports an
/// error.
#[derive(Debug)]
pub(crate) struct RingTicket {
    handle: Arc<RingHandle>,
    append: u64,
    fetched: bool,
}

impl RingTicket {
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
