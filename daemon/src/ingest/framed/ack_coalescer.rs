//! Answers that wait for company: the ACCEPTED of an append that asked for more than `received`.
//!
//! What must hold:
//! - Such an answer acknowledges nothing yet. Told at once, it costs a system call here, and one with a wake-up of the
//!   peer there, a moment before the watermark costs the same again; where this thread makes the write, the disk waits for
//!   that. So it leaves together with what is said next: the watermark that covers it or another append, a refusal, a PONG.
//! - It leaves after [`ACK_DELAY_MAX`] at the latest, and when [`COALESCED_ACK_BYTES_MAX`] bytes of them have gathered: a slow disk keeps nobody in
//!   the dark over what was taken.
//! - Whatever else is to be said is said at once, behind them: the order of the answers never changes.

use std::time::{Duration, Instant};

use super::Connection;

/// The longest that such an answer waits: much longer than a healthy disk takes, so that the timer seldom decides.
const ACK_DELAY_MAX: Duration = Duration::from_millis(100);
/// Bytes of such answers that wait at most.
const COALESCED_ACK_BYTES_MAX: usize = 16 * 1024;

/// How much of the output may wait.
#[derive(Debug, Default)]
pub(super) struct AckCoalescer {
    /// The first bytes of the output, so many, are such answers.
    bytes: usize,
    /// When the append came that the first of them answers.
    since: Option<Instant>,
}

impl Connection {
    /// The output, which was so long before, ends with an answer to what came at this moment.
    pub(in crate::ingest) fn coalesce_ack(&mut self, before: usize, since: Instant) {
        if before == self.ack_coalescer.bytes && self.out.len() <= COALESCED_ACK_BYTES_MAX {
            self.ack_coalescer.bytes = self.out.len();
            self.ack_coalescer.since.get_or_insert(since);
        }
    }

    /// Whether there is something that must be said now.
    pub(super) fn must_send(&self) -> bool {
        self.out.len() > self.ack_coalescer.bytes
    }

    /// When what waits must be said, if something does.
    pub(super) fn ack_deadline(&self) -> Option<Instant> {
        self.ack_coalescer.since.map(|since| since + ACK_DELAY_MAX)
    }

    /// Nothing of the output waits any more: it is being said, or has waited long enough.
    pub(super) fn release_acks(&mut self) {
        (self.ack_coalescer.bytes, self.ack_coalescer.since) = (0, None);
    }
}
