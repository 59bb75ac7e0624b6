//! Delayed answers: the ACCEPTED of an append that asked for more than `received`.
//!
//! Invariants:
//! - Such an answer acknowledges nothing yet. Sent at once, it costs a system call here, and one with a wake-up of the
//!   peer there. A moment later the watermark costs the same again; where this thread makes the write, the disk waits
//!   for that. So it leaves together with the next output: the watermark that covers it or another append, a refusal, a
//!   PONG.
//! - It leaves after [`ACK_DELAY_MAX`] at the latest, and when [`COALESCED_ACK_BYTES_MAX`] bytes of them are collected:
//!   a slow disk does not delay the report of taken appends for longer.
//! - All other output is sent at once, behind them: the order of the answers never changes.

use std::time::{Duration, Instant};

/// The longest that such an answer waits: much longer than a healthy disk takes, so that the timer seldom decides.
const ACK_DELAY_MAX: Duration = Duration::from_millis(100);
/// Bytes of such answers that wait at most.
const COALESCED_ACK_BYTES_MAX: usize = 16 * 1024;

/// Part of the output that may wait.
#[derive(Debug, Default)]
pub(super) struct AckCoalescer {
    /// The first bytes of the output, so many, are such answers.
    bytes: usize,
    /// Time at which the append came that the first of them answers.
    since: Option<Instant>,
}

impl AckCoalescer {
    /// Notes that the output, which was `before` bytes long and is `len` now, ends with an answer to an append that
    /// came at this moment.
    pub(super) fn note(&mut self, before: usize, len: usize, since: Instant) {
        if before == self.bytes && len <= COALESCED_ACK_BYTES_MAX {
            self.bytes = len;
            self.since.get_or_insert(since);
        }
    }

    /// Returns true if some of an output of `len` bytes must be sent now.
    pub(super) fn must_send(&self, len: usize) -> bool {
        len > self.bytes
    }

    /// Time at which waiting output must be sent, if any waits.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.since.map(|since| since + ACK_DELAY_MAX)
    }

    /// Nothing of the output waits any more: it is being sent, or has waited long enough.
    pub(super) fn release(&mut self) {
        (self.bytes, self.since) = (0, None);
    }
}
