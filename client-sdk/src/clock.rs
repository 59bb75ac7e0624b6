//! The one place where this crate reads the time. Everything that decides takes the time as an argument.

use std::time::Duration;
use tokio::time::Instant;

/// Stands for ever.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Now, on the monotonic clock of the runtime (so that a test can stop it).
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A wait that can be added to any moment: `Duration::MAX` means that the wait never ends.
pub(crate) fn bounded(wait: Duration) -> Duration {
    wait.min(DURATION_MAX)
}
