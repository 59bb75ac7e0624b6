//! Answers that wait for company: the ACCEPTED of an append that asked for more than `received`.
//!
//! What must hold:
//! - Such an answer acknowledges nothing yet. Told at once, it costs a system call here, and one with a wake-up of the
//!   peer there, a moment before the watermark costs the same again. So it leaves together with what is said next: the
//!   watermark that covers it or another append, a refusal, a PONG.
//! - [`MOST`] bytes of them wait at most.
//! - Whatever else is to be said is said at once, behind them: the order of the answers never changes.

use super::Connection;

/// Bytes of such answers that wait at most.
const MOST: usize = 16 * 1024;

/// How much of the output may wait: its first bytes, so many, are such answers.
#[derive(Debug, Default)]
pub(super) struct Quiet(usize);

impl Connection {
    /// The output, which was so long before, ends with an answer that may wait.
    pub(in crate::ingest) fn may_wait(&mut self, before: usize) {
        if before == self.quiet.0 && self.out.len() <= MOST {
            self.quiet.0 = self.out.len();
        }
    }

    /// Whether there is something that must be said now.
    pub(super) fn must_say(&self) -> bool {
        self.out.len() > self.quiet.0
    }

    /// The output is being said: nothing of it waits any more.
    pub(super) fn saying(&mut self) {
        self.quiet = Quiet::default();
    }
}
