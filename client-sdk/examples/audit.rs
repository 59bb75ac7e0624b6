//! An audit trail: an action is done only once the record of it is on stable storage.
//!
//! `audit ADDRESS FILE` does the actions that it reads from stdin, a line each: here, it adds the line to FILE. A power
//! cut may leave a record whose action was not done. It leaves no action without a record.

use std::error::Error;
use std::fs::OpenOptions;
use std::io::{Write, stdin};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clad_client::{AckLevel, Address, ConnectError, Producer, Record, SendError, Severity, blocking};

/// A user waits no longer for the log; then the action is refused.
const RECORD_TIMEOUT: Duration = Duration::from_secs(5);

/// A trail into the log of a daemon, which need not be there yet.
pub(crate) fn trail(address: Address, timeout: Duration) -> Result<blocking::Producer, ConnectError> {
    let builder = Producer::builder(address).component("audit").level(AckLevel::Durable);
    blocking::Producer::start(builder.delivery_timeout(timeout))
}

/// Records an action, then does it. At an error it was not done; its record may be in the log
/// ([`SendError::maybe_written`]).
pub(crate) fn audited<T>(trail: &blocking::Producer, what: &str, action: impl FnOnce() -> T) -> Result<T, SendError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    trail.append_within(&[Record::text(now, Severity::INFO.0, what)], RECORD_TIMEOUT)?;
    Ok(action())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, file] = words.as_slice() else {
        return Err("audit ADDRESS FILE".into());
    };
    let trail = trail(address.parse()?, RECORD_TIMEOUT)?;
    let mut file = OpenOptions::new().append(true).create(true).open(file)?;
    for line in stdin().lines() {
        let line = line?;
        match audited(&trail, &line, || writeln!(file, "{line}")) {
            Ok(done) => done?,
            Err(error) => eprintln!("not done: {line}: {error}"),
        }
    }
    Ok(())
}
