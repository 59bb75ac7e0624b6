//! The one place that asks what time it is.

use std::time::Instant;

/// A moment, for measuring.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}
