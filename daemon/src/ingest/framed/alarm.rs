//! One timer for a connection's life, set as seldom as may be.
//!
//! Invariants: it fires at the deadline or before, never after. It fires early where the deadline has moved away since
//! it was set: a deadline that moves with every append would cost a timer for each, and often a wake-up of the timer
//! thread.

use std::pin::Pin;
use std::time::Instant;

use tokio::time::Sleep;

/// A timer.
pub(super) struct Alarm {
    sleep: Pin<Box<Sleep>>,
    /// Time at which it fires; nothing: it is not set.
    at: Option<Instant>,
}

impl Alarm {
    pub(super) fn new() -> Self {
        Self { sleep: Box::pin(tokio::time::sleep_until(Instant::now().into())), at: None }
    }

    /// Waits for a deadline, or not even as long; for ever where there is none.
    pub(super) async fn until(&mut self, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return std::future::pending().await };
        if self.at.is_none_or(|at| at > deadline) {
            self.sleep.as_mut().reset(deadline.into());
            self.at = Some(deadline);
        }
        self.sleep.as_mut().await;
        self.at = None;
    }
}
