//! Stop points of a test build: `CLAD_SHM_KILL_AT="POINT"` or `"POINT#N"` in the environment kills the process
//! (`SIGKILL`) when it comes past that point, or past it for the Nth time. Their names stand in `writer.rs`, `reader.rs`,
//! `wake.rs` and `board.rs`; between any two stores to shared memory there is at least one, which a test sees to.
//!
//! For tests of whole programs. Does not exist without the feature `stop-points`, and does not compile in a release.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Signal, getpid, kill_process};

/// The variable.
pub const VARIABLE: &str = "CLAD_SHM_KILL_AT";

static ORDER: OnceLock<Option<(String, AtomicU64)>> = OnceLock::new();

pub(crate) fn reached(name: &str) {
    let Some((point, left)) = ORDER.get_or_init(order) else { return };
    if point == name && left.fetch_sub(1, Ordering::SeqCst) == 1 {
        let _ = kill_process(getpid(), Signal::KILL);
    }
}

fn order() -> Option<(String, AtomicU64)> {
    let order = std::env::var(VARIABLE).ok()?;
    match order.split_once('#') {
        Some((point, times)) => Some((point.to_owned(), AtomicU64::new(times.parse().unwrap_or(1)))),
        None => Some((order, AtomicU64::new(1))),
    }
}
