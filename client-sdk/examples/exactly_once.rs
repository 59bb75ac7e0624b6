//! Appends each line of a file exactly once, however often this program or the daemon is killed.
//!
//! `exactly_once ADDRESS FILE IDENTITY`. IDENTITY is a file of its own for each FILE, which this program makes. It must
//! outlive the program, as must FILE: lines may be added, the lines that are there do not change.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::time::Duration;

use clad_client::{AckLevel, Producer, ProducerId, Record, Severity, blocking};

/// A line counts as done once it survives a power cut.
const LEVEL: AckLevel = AckLevel::Durable;
/// Lines of an append, which is stored whole or not at all.
const APPEND_LINES_MAX: usize = 16;
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, file, identity] = words.as_slice() else {
        return Err("exactly_once ADDRESS FILE IDENTITY".into());
    };
    let (id, epoch, secret) = next_identity(Path::new(identity))?;
    let builder =
        Producer::builder(address.parse()?).component("lines").producer(id, epoch).secret(secret).level(LEVEL);
    let producer = blocking::Producer::resume(builder, LEVEL)?;
    // Sequences count records from 0, and each line is a record.
    let stored = producer.last_stored().map_or(0, |last| last.sequence + 1);
    let mut lines = BufReader::new(File::open(file)?).lines().skip(usize::try_from(stored)?);
    loop {
        let records = lines.by_ref().take(APPEND_LINES_MAX).map(|line| Ok(Record::text(0, Severity::INFO.0, line?)));
        let records = records.collect::<std::io::Result<Vec<_>>>()?;
        if records.is_empty() {
            break;
        }
        // At an error this program ends. Called again it goes on behind what the log has, whatever became of these.
        producer.append(&records)?;
    }
    producer.close(CLOSE_TIMEOUT)?;
    Ok(())
}

/// The id, the epoch of this start and the secret. The epoch is on the disk before it is used, so that none is used twice.
fn next_identity(path: &Path) -> Result<(ProducerId, u32, Vec<u8>), Box<dyn Error>> {
    let mut bytes = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => new_identity()?,
        read => read?,
    };
    let (known, epoch) = bytes.split_at_mut_checked(ID_BYTES + SECRET_BYTES).ok_or("no identity")?;
    let next = u32::from_be_bytes((&*epoch).try_into()?).checked_add(1).ok_or("every epoch was used")?;
    epoch.copy_from_slice(&next.to_be_bytes());
    let (id, secret) = known.split_at(ID_BYTES);
    let identity = (ProducerId::from_bytes(id.try_into()?), next, secret.to_vec());
    // Renamed, so that the file is never half of one; then its folder is synced.
    let whole = path.with_extension("new");
    let mut file = File::create(&whole)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&whole, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()?;
    Ok(identity)
}

const ID_BYTES: usize = 16;
const SECRET_BYTES: usize = 16;

/// A random id and secret, and epoch 0.
fn new_identity() -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; ID_BYTES + SECRET_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    bytes.extend(0_u32.to_be_bytes());
    Ok(bytes)
}
