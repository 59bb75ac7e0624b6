//! One suite over both engines: the operations of the storage, and the journal above them.
//!
//! `storage`: what an operation does, by a blocking call and through a ring, around the page cache and through it.
//! `journal`: that both engines come to the same log, also over a write that fails. (Kills are in `kill.rs`, rotations and
//! restarts in `basic/`; both run under both engines as well.)
//! `waiting`: threads that append and wait, and write by themselves what they find nothing beside.
//! `close`: an end on a disk that hangs.
//! `refused`: kernels that refuse what an engine wants, played by seccomp filters and limits.

mod breakable;
mod close;
mod deferred;
mod journal;
mod refused;
mod storage;
mod waiting;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clad_journal::io::{EngineOptions, EngineWish, Fallback, OsStorage, device};

/// Only what hangs takes longer.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A folder on a real file system.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Opens a folder with an engine; and what it had to do without.
fn open(dir: &Path, wish: EngineWish, in_flight: usize) -> (Arc<OsStorage>, Arc<Mutex<Vec<Fallback>>>) {
    let fallbacks = Arc::new(Mutex::new(Vec::new()));
    let its = fallbacks.clone();
    let on_fallback = Arc::new(move |f: &Fallback| its.lock().unwrap().push(f.clone()));
    let options = EngineOptions { wish, in_flight, on_fallback };
    let block = device::discover(dir).block_size;
    (Arc::new(OsStorage::open_with(dir, block, true, &options).unwrap()), fallbacks)
}
