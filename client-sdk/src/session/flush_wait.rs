//! One flush and how far it is.

use clad_proto::AckLevel;
use tokio::time::Instant;

/// A flush that waits.
#[derive(Debug)]
pub(super) struct FlushWait<F> {
    /// Everything with a lower index is before it.
    pub(super) upto: u64,
    /// Nothing: the highest that the log offers.
    pub(super) level: Option<AckLevel>,
    pub(super) since: Instant,
    pub(super) waiter: F,
    pub(super) sent: Option<Asked>,
    pub(super) not_before: Option<Instant>,
}

/// A FLUSH that was sent, and how many appends had ended well by then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) id: u32,
    pub(super) level: AckLevel,
    pub(super) resolved: u64,
}

impl<F> FlushWait<F> {
    pub(super) const fn is_sent(&self) -> bool {
        self.sent.is_some()
    }

    pub(super) const fn unsend(&mut self) {
        self.sent = None;
    }
}
