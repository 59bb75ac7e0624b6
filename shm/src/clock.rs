//! The clock of the rings' timeouts: CLOCK_MONOTONIC.

/// CLOCK_MONOTONIC now, nanoseconds.
#[must_use]
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
