//! The newest commonware-runtime: `durable`, as in `clad-peers`.

#[path = "../../src/commonware.rs"]
mod commonware;

use std::process::ExitCode;

use clad_benches::cli::{Common, OneDurable, print_outcome};
use clad_benches::place::Place;
use clap::{Args, Parser, ValueEnum};

/// The newest commonware-runtime, for `clad-benches speed`
#[derive(Parser)]
enum Cli {
    /// Writers that want each write durable; prints one line of JSON
    Durable(Durable),
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

#[derive(Clone, Copy, ValueEnum)]
enum Writer {
    /// commonware-runtime's `Blob::write_at` with `WriteOptions::SYNC`
    Commonware,
}

fn main() -> ExitCode {
    let Cli::Durable(Durable { common, by: Writer::Commonware, one }) = Cli::parse();
    let run = || print_outcome(commonware::run(&one, Place::new(&common.dir, common.on)?.path())?);
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("clad-peers-newest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What differs between releases of commonware-runtime.
mod api {
    use commonware_runtime::{Blob as _, Error, ReadOptions, WriteOptions};

    pub const NAME: &str = "commonware 2026.10.0";
    pub type Open = commonware_runtime::tokio::Context;
    pub type Blob = <Open as commonware_runtime::Storage>::Blob;

    pub async fn write(blob: &Blob, at: u64, bytes: Vec<u8>) -> Result<(), Error> {
        blob.write_at(at, bytes, WriteOptions::default()).await
    }

    pub async fn write_sync(blob: &Blob, at: u64, bytes: Vec<u8>) -> Result<(), Error> {
        blob.write_at(at, bytes, WriteOptions::SYNC).await
    }

    pub async fn read(blob: &Blob, at: u64, len: usize) -> Result<Vec<u8>, Error> {
        Ok(blob.read_at(at, len, ReadOptions::default()).await?.coalesce().as_ref().to_vec())
    }
}
