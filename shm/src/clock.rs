//! The clock of the rings: CLOCK_MONOTONIC, the same for all processes of a host (but for time namespaces, which the
//! handshake compares).

use std::sync::atomic::{Ordering, fence};

/// CLOCK_MONOTONIC now, nanoseconds.
#[must_use]
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// [`now`], and no load that comes behind it in the program is made before the clock was read.
///
/// A drain takes this time and then looks at all rings: what was committed before this time it sees.
#[must_use]
pub fn now_before_looking() -> u64 {
    let time = now();
    fence(Ordering::SeqCst);
    // The counter that the clock reads is not memory: a memory fence alone does not order what follows behind it.
    crate::mapped::fence_clock();
    time
}
