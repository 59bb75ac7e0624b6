//! The one place where this crate reads the time. Everything that decides takes the time as an argument.

use std::time::Duration;
use tokio::time::Instant;

/// Stands for ever.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Now, on the monotonic clock of the runtime (so that a test can stop it).
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Now, for people and other machines: Unix nanoseconds.
pub(crate) fn unix_nanos() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A wait that can be added to any moment: `Duration::MAX` means that the wait never ends.
pub(crate) fn bounded(wait: Duration) -> Duration {
    wait.min(DURATION_MAX)
}
