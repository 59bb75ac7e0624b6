//! The batched file writer on a real file system: against a plain `Vec`, under failure, and without what it would like.

mod failing;
mod model;
mod without;
mod workers;

use std::path::{Path, PathBuf};

use clad_journal::bulk::{Engine, Options};

/// A folder below the build folder: not in memory, where there is no direct I/O.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

fn file(folder: &Path) -> PathBuf {
    folder.join("file")
}

/// Each engine, each way. Small buffers, so that a little data is many writes.
fn every_way() -> impl Iterator<Item = Options> {
    let ways = [(Engine::Ring, true), (Engine::Ring, false), (Engine::Threads, true), (Engine::Threads, false)];
    ways.into_iter().map(|(engine, direct)| Options::new().engine(engine).direct(direct).buffers(3).buffer_bytes(8192))
}

/// Bytes that name their place.
fn pattern(from: u64, len: usize) -> Vec<u8> {
    (from..).take(len).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}
