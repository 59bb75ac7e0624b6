//! The one place where this crate reads the time. Everything that decides takes the time as an argument.

use tokio::time::Instant;

/// Now, on the monotonic clock of the runtime (so that a test can stop it).
pub(crate) fn now() -> Instant {
    Instant::now()
}
