//! The guard: gets out what was logged, at the end.

use std::time::{Duration, Instant};

use clad_client::{AckLevel, AppendError, blocking};

use crate::text::warn;

/// Waits, when it is dropped, until all that was logged has reached its level, for at most the time that
/// [`Setup::flush_timeout`](crate::Setup::flush_timeout) says; a failure is one line on stderr. Then the producer ends:
/// what is logged later is dropped.
#[derive(Debug)]
#[must_use = "dropped at once, it ends the log at once"]
pub struct Guard {
    producer: Option<blocking::Producer>,
    level: AckLevel,
    timeout: Duration,
}

impl Guard {
    pub(crate) const fn new(producer: Option<blocking::Producer>, level: AckLevel, timeout: Duration) -> Self {
        Self { producer, level, timeout }
    }

    /// Waits until all that was logged so far has reached the guard's level, for at most its time.
    ///
    /// # Errors
    /// As [`blocking::flush`]; some of it may be missing then. Nothing is wrong where records go to stderr.
    pub fn flush(&self) -> Result<(), AppendError> {
        self.producer.as_ref().map_or(Ok(()), |producer| producer.flush(self.level, self.timeout))
    }

    /// The producer, for its [statistics](clad_client::Stats) and for receipts; nothing where records go to stderr.
    #[must_use]
    pub const fn producer(&self) -> Option<&blocking::Producer> {
        self.producer.as_ref()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let start = Instant::now();
        let flushed = self.flush();
        let closed = self.producer.take().map(|producer| producer.close(self.timeout.saturating_sub(start.elapsed())));
        // A child of `fork` has nothing to bring home.
        if let Some(error) =
            flushed.err().or_else(|| closed?.err()).filter(|error| !matches!(error, AppendError::Forked))
        {
            warn(format_args!("records may be missing from the log: {error}"));
        }
    }
}
