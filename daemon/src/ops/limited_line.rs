//! Lines of the log that a peer can cause as often as it likes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two lines of one kind.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Lines of one kind: one in a while, and how many were left out.
#[derive(Debug)]
pub(crate) struct LimitedLine(Mutex<(Option<Instant>, u64)>);

impl LimitedLine {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new((None, 0)))
    }

    /// Writes a line, or leaves it out. It ends in the words that it is given.
    pub(crate) fn write(&self, line: impl FnOnce(&str)) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, more) = &mut *state;
        if last.is_some_and(|last| last.elapsed() < LINE_INTERVAL) {
            *more += 1;
            return;
        }
        let left_out = std::mem::take(more);
        *last = Some(Instant::now());
        drop(state);
        match left_out {
            0 => line(""),
            more => line(&format!("; {more} more of this kind since the last line")),
        }
    }
}
