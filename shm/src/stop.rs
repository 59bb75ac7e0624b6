//! Stop points of a test build: `CLAD_SHM_KILL_AT="POINT"` or `"POINT#N"` in the environment kills the process
//! (`SIGKILL`) when it comes past that point, or past it for the Nth time. Their names stand in `client/`,
//! `daemon/`, `layout/` and `wake.rs`; between any two stores to shared
//! memory there is at least one, which a test sees to.
//!
//! `CLAD_SHM_STOP_AT` in the same form stops the thread that comes there, instead, for as long as the file exists that
//! `CLAD_SHM_STOP_WHILE` names.
//!
//! For tests of whole programs. Does not exist without the feature `stop-points`, and does not compile in a release.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

/// The variable that kills.
pub const VARIABLE: &str = "CLAD_SHM_KILL_AT";
/// The variable that stops a thread.
pub const STOP: &str = "CLAD_SHM_STOP_AT";
/// For as long as this file is there.
pub const WHILE: &str = "CLAD_SHM_STOP_WHILE";

type Order = Option<(String, AtomicU64)>;

static KILLS: OnceLock<Order> = OnceLock::new();
static STOPS: OnceLock<Order> = OnceLock::new();

pub(crate) fn reached(name: &str) {
    if is_time(KILLS.get_or_init(|| order(VARIABLE)), name) {
        let _ = kill_process(getpid(), Signal::KILL);
    }
    if is_time(STOPS.get_or_init(|| order(STOP)), name)
        && let Some(file) = std::env::var_os(WHILE)
    {
        while std::path::Path::new(&file).exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn is_time(order: &Order, name: &str) -> bool {
    order.as_ref().is_some_and(|(point, left)| point == name && left.fetch_sub(1, Ordering::SeqCst) == 1)
}

fn order(variable: &str) -> Order {
    let order = std::env::var(variable).ok()?;
    match order.split_once('#') {
        Some((point, times)) => Some((point.to_owned(), AtomicU64::new(times.parse().unwrap_or(1)))),
        None => Some((order, AtomicU64::new(1))),
    }
}
