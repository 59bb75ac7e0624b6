//! The guard: gets out what was logged, at the end.

use std::fmt;
use std::time::{Duration, Instant};

use clad_client::{AckLevel, AppendError, blocking};

use crate::{SetupError, current::Current, text::warn};

/// Waits, when it is dropped, until all that was logged has reached its level, for at most the time that
/// [`Setup::flush_timeout`](crate::Setup::flush_timeout) says; a failure is one line on stderr. Then the producer ends:
/// what is logged later is dropped.
#[derive(Debug)]
#[must_use = "dropped at once, it ends the log at once"]
pub struct Guard {
    live: Option<Live>,
    level: AckLevel,
    timeout: Duration,
}

/// A log that goes to a daemon.
pub(crate) struct Live {
    pub(crate) producer: blocking::Producer,
    pub(crate) current: Current,
    /// Makes another producer with the same settings.
    pub(crate) start: Box<dyn Fn() -> Result<blocking::Producer, SetupError> + Send + Sync>,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.producer.fmt(f)
    }
}

impl Guard {
    pub(crate) const fn new(live: Live, level: AckLevel, timeout: Duration) -> Self {
        Self { live: Some(live), level, timeout }
    }

    /// For records that go to stderr.
    pub(crate) const fn none(level: AckLevel, timeout: Duration) -> Self {
        Self { live: None, level, timeout }
    }

    /// Waits until all that was logged so far has reached the guard's level, for at most its time.
    ///
    /// # Errors
    /// As [`blocking::flush`]; some of it may be missing then. Nothing is wrong where records go to stderr.
    pub fn flush(&self) -> Result<(), AppendError> {
        self.live.as_ref().map_or(Ok(()), |live| live.producer.flush(self.level, self.timeout))
    }

    /// Begins again in a child of `fork`, with the settings of its parent: layer, logger and panic hook of this process
    /// log by a producer of its own from now on. What the child logged before was refused. Never waits for a daemon;
    /// does nothing in a process that was not forked since the log began.
    ///
    /// # Errors
    /// As [`Setup::layer`](crate::Setup::layer); the log stays as it is then.
    pub fn begin_again(&mut self) -> Result<(), SetupError> {
        let Some(live) = self.live.as_mut().filter(|live| live.producer.is_forked()) else { return Ok(()) };
        live.producer = (live.start)()?;
        live.current.follow_with(&live.producer);
        Ok(())
    }

    /// The producer, for its [statistics](clad_client::Stats) and for receipts; nothing where records go to stderr.
    #[must_use]
    pub const fn producer(&self) -> Option<&blocking::Producer> {
        match &self.live {
            Some(live) => Some(&live.producer),
            None => None,
        }
    }

    #[cfg(feature = "log")]
    pub(crate) fn current(&self) -> Option<&Current> {
        self.live.as_ref().map(|live| &live.current)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let start = Instant::now();
        let flushed = self.flush();
        let rest = self.timeout.saturating_sub(start.elapsed());
        let closed = self.live.take().map(|live| live.producer.close(rest));
        // A child of `fork` has nothing to bring home.
        if let Some(error) =
            flushed.err().or_else(|| closed?.err()).filter(|error| !matches!(error, AppendError::Forked))
        {
            warn(format_args!("records may be missing from the log: {error}"));
        }
    }
}
