//! The ticket's end of an append that is in the ring: how its outcome is waited for.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::Port;
use crate::{AppendError, producer::Receipt};

/// The outcome of an append that is in the ring. Dropped before it was fetched, an error is the next flush's to tell.
#[derive(Debug)]
pub(crate) struct Later {
    port: Arc<Port>,
    append: u64,
    fetched: bool,
}

impl Later {
    pub(super) const fn new(port: Arc<Port>, append: u64) -> Self {
        Self { port, append, fetched: false }
    }

    /// Waits in the calling thread; looks without sleeping for `spin`, then sleeps until the board changes, for `most` at
    /// a time.
    pub(crate) fn wait(mut self, spin: Duration, most: Duration) -> Result<Receipt, AppendError> {
        // A fork has the locks as they were.
        if self.port.is_forked() {
            return Err(AppendError::Forked);
        }
        // Who looked at the board before has settled others, too.
        if let Some(outcome) = self.fetch(Port::outcome) {
            return outcome;
        }
        let mut start = None;
        loop {
            let seen = self.port.marks();
            if let Some(outcome) = self.fetch(Port::outcome_now) {
                return outcome;
            }
            let now = Instant::now();
            match now - *start.get_or_insert(now) < spin {
                true => std::thread::yield_now(),
                // It may be told by another's look, or the ring end: then nothing on the board says so.
                false => self.port.wait_change(seen, most),
            }
        }
    }

    /// As a future is polled.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<Receipt, AppendError>> {
        if self.port.is_forked() {
            return Poll::Ready(Err(AppendError::Forked));
        }
        if let Some(outcome) = self.fetch(Port::outcome_now) {
            return Poll::Ready(outcome);
        }
        self.port.set_waker(self.append, cx.waker());
        self.port.want();
        // It may have come since.
        self.fetch(Port::outcome_now).map_or(Poll::Pending, Poll::Ready)
    }

    fn fetch(
        &mut self,
        by: impl FnOnce(&Port, u64) -> Option<Result<Receipt, AppendError>>,
    ) -> Option<Result<Receipt, AppendError>> {
        let outcome = by(&self.port, self.append);
        self.fetched |= outcome.is_some();
        outcome
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        if !self.fetched && !self.port.is_forked() {
            self.port.let_go(self.append);
        }
    }
}
