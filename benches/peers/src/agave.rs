//! agave-fs's writer of large files. Its `flush` ends it and syncs nothing: the file is opened again for the sync, within the
//! time.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use agave_fs::buffered_writer::large_file_buf_writer;
use agave_fs::io_setup::IoSetupState;
use anyhow::Result;
use clad_benches::Outcome;
use clad_benches::bulk::{Work, sync_name};

pub fn run(direct: bool, work: &Work, dir: &Path) -> Result<Outcome> {
    let name = if direct { "agave-fs 4.2.0, direct" } else { "agave-fs 4.2.0, buffered" };
    let setup = IoSetupState::default().with_direct_io(direct).with_buffers_registered(true);
    work.timed(name, &dir.join("file"), |path, chunks| {
        let mut file = large_file_buf_writer(path, &setup)?;
        chunks.write_to(&mut file)?;
        file.flush()?;
        drop(file);
        File::open(path)?.sync_data()?;
        sync_name(path)
    })
}
