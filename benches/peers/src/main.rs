//! What clad's storage engine is measured against: the same command line and the same line of JSON as `clad-benches
//! durable` and `clad-benches bulk`, so that one driver lets all of them take turns.

mod agave;
mod commonware;
mod okay;

use std::process::ExitCode;

use anyhow::Result;
use clad_benches::Outcome;
use clad_benches::cli::{Common, OneBulk, OneDurable, print_outcome};
use clad_benches::place::Place;
use clap::{Args, Parser, ValueEnum};

/// Other crates, for `clad-benches speed`
#[derive(Parser)]
enum Cli {
    /// Writers that want each write durable; prints one line of JSON
    Durable(Durable),
    /// A large file in small chunks; prints one line of JSON
    Bulk(Bulk),
}

#[derive(Args)]
struct Durable {
    #[command(flatten)]
    common: Common,
    #[arg(long, value_enum)]
    by: Writer,
    #[command(flatten)]
    one: OneDurable,
}

#[derive(Args)]
struct Bulk {
    #[command(flatten)]
    common: Common,
    #[arg(long, value_enum)]
    by: FileWriter,
    #[command(flatten)]
    one: OneBulk,
}

#[derive(Clone, Copy, ValueEnum)]
enum Writer {
    /// commonware-runtime's `Blob::write_at_sync`
    Commonware,
    /// okaywal as it is made by default
    Okaywal,
    /// okaywal with files as large as clad's segments
    Okaywal64m,
}

#[derive(Clone, Copy, ValueEnum)]
enum FileWriter {
    /// agave-fs, direct, registered buffers
    AgaveDirect,
    /// agave-fs through the page cache
    AgaveBuffered,
}

fn main() -> ExitCode {
    match execute(Cli::parse()).and_then(print_outcome) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("clad-peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(cli: Cli) -> Result<Outcome> {
    match cli {
        Cli::Durable(Durable { common, by, one }) => {
            let place = Place::new(&common.dir, common.on)?;
            match by {
                Writer::Commonware => commonware::run(&one, place.path()),
                Writer::Okaywal => okay::run("okaywal 0.3.1", None, &one, place.path()),
                Writer::Okaywal64m => okay::run("okaywal 0.3.1, 64 MiB files", Some(64 << 20), &one, place.path()),
            }
        }
        Cli::Bulk(Bulk { common, by, one }) => {
            let place = Place::new(&common.dir, common.on)?;
            agave::run(matches!(by, FileWriter::AgaveDirect), &one.work(), place.path())
        }
    }
}

/// What differs between releases of commonware-runtime.
mod api {
    use commonware_runtime::{Blob as _, Error};

    pub const NAME: &str =
        if cfg!(feature = "uring") { "commonware 2026.5.0, io_uring" } else { "commonware 2026.5.0, tokio" };
    pub type Open = commonware_runtime::tokio::Context;
    pub type Blob = <Open as commonware_runtime::Storage>::Blob;

    pub async fn write(blob: &Blob, at: u64, bytes: Vec<u8>) -> Result<(), Error> {
        blob.write_at(at, bytes).await
    }

    pub async fn write_sync(blob: &Blob, at: u64, bytes: Vec<u8>) -> Result<(), Error> {
        blob.write_at_sync(at, bytes).await
    }

    pub async fn read(blob: &Blob, at: u64, len: usize) -> Result<Vec<u8>, Error> {
        Ok(blob.read_at(at, len).await?.coalesce().as_ref().to_vec())
    }
}
