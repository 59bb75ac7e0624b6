//! Answers that wait for company: the ACCEPTED of an append that asked for more than `received`.
//!
//! What must hold:
//! - Such an answer acknowledges nothing yet. Told at once, it costs a system call here, and one with a wake-up of the
//!   peer there, a moment before the watermark costs the same again. So it leaves together with what is said next.
//! - It leaves after [`LONGEST`] at the latest, and when [`MOST`] bytes of them have gathered: a slow disk keeps nobody in
//!   the dark.
//! - Whatever else is to be said is said at once, behind them: the order of the answers never changes.

use std::time::{Duration, Instant};

use super::Connection;

/// The longest that such an answer waits.
pub(super) const LONGEST: Duration = Duration::from_millis(5);
/// Bytes of such answers that wait at most.
const MOST: usize = 16 * 1024;

/// How much of the output may wait.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// The first bytes of the output, so many, are answers that may wait.
    bytes: usize,
    since: Option<Instant>,
}

impl Connection {
    /// The output ends with an answer that may wait; before it, it was so long.
    pub(in crate::ingest) fn may_wait(&mut self, before: usize, since: Instant) {
        if before == self.quiet.bytes && self.out.len() <= MOST {
            self.quiet.bytes = self.out.len();
            self.quiet.since.get_or_insert(since);
        }
    }

    /// Whether there is something that must be said now.
    pub(super) fn must_say(&self) -> bool {
        self.out.len() > self.quiet.bytes
    }

    /// Nothing waits any more: the output is being said, or has waited long enough.
    pub(super) fn say_all(&mut self) {
        self.quiet = Quiet::default();
    }

    /// When what waits must be said.
    pub(super) fn say_at(&self) -> Option<Instant> {
        self.quiet.since.map(|since| since + LONGEST)
    }
}
