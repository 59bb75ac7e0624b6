//! Follows a log from where it stopped, however it stopped: `cargo run --example tailer -- ADDRESS CURSOR_FILE`.
//!
//! The cursor is stored after the records before it were handled. A tailer that is killed in between handles some records
//! again, and misses none. Who needs each once stores the cursor together with the result, in one transaction.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use clad_client::{Cursor, Event, ReadError, Reader, RecordView, Start};

/// Between two tries to begin.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Hands each record with its offset to `handle`, for ever.
pub(crate) async fn follow(
    address: &str,
    place: &Path,
    mut handle: impl FnMut(u64, &RecordView<'_>) -> io::Result<()>,
) -> Result<(), Box<dyn Error>> {
    loop {
        let start = match fs::read_to_string(place) {
            Ok(text) => Start::Cursor(text.trim().parse()?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Start::Oldest,
            Err(error) => return Err(error.into()),
        };
        match read(address, start, place, &mut handle).await {
            // A power cut took records that were handled: the log continues from where histories part.
            Err(Stop::Read(ReadError::CursorAbandoned { parting: Some(parting), .. })) => {
                eprintln!("records from offset {} on are not in the log any more", parting.offset);
                store(place, parting)?;
            }
            // No daemon when the read began, or none came back: a reader that follows waits only for one that it had.
            Err(Stop::Read(error)) if error.is_retryable() => {
                eprintln!("{error}; another try in {} s", RETRY_INTERVAL.as_secs());
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            // Another log, or a backup: a person decides. The file says what was handled.
            Err(Stop::Read(error)) => return Err(error.into()),
            Err(Stop::Io(error)) => return Err(error.into()),
            Ok(()) => return Ok(()),
        }
    }
}

enum Stop {
    Read(ReadError),
    Io(io::Error),
}

async fn read(
    address: &str,
    start: Start,
    place: &Path,
    handle: &mut impl FnMut(u64, &RecordView<'_>) -> io::Result<()>,
) -> Result<(), Stop> {
    let address = address.parse().map_err(|error| Stop::Io(io::Error::other(error)))?;
    let mut reader = Reader::builder(address).from(start).follow(true).open().await.map_err(Stop::Read)?;
    while let Some(event) = reader.next().await.map_err(Stop::Read)? {
        match event {
            Event::Records(chunk) => {
                for (offset, record) in chunk.records() {
                    handle(offset, &record).map_err(Stop::Io)?;
                }
            }
            Event::Gap(gap) => eprintln!("offsets {} to {} cannot be read: {:?}", gap.from, gap.to - 1, gap.reason),
            _ => {}
        }
        if let Some(cursor) = reader.cursor() {
            store(place, cursor).map_err(Stop::Io)?;
        }
    }
    Ok(())
}

/// Replaces the file as a whole: whoever reads it finds the old cursor or the new one.
fn store(place: &Path, cursor: Cursor) -> io::Result<()> {
    let new = place.with_extension("new");
    let mut file = File::create(&new)?;
    writeln!(file, "{cursor}")?;
    file.sync_data()?;
    fs::rename(&new, place)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(address), Some(place)) = (arguments.next(), arguments.next()) else {
        return Err("usage: tailer ADDRESS CURSOR_FILE".into());
    };
    let mut out = io::stdout();
    follow(&address, Path::new(&place), |offset, record| {
        let body = String::from_utf8_lossy(record.body_bytes().unwrap_or_default());
        writeln!(out, "{offset} {body}")?;
        out.flush()
    })
    .await
}
