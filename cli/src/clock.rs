//! The only place that asks what time it is; everything else is handed the time.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A moment, for measuring.
#[must_use]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Unix nanoseconds; 0 for a clock set before 1970.
#[must_use]
pub(crate) fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
