//! A look through a whole archive.
//!
//! Invariants: everything that is wrong is reported, not only the first; an object that cannot be compared with the log is counted as such. Nothing is
//! changed.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clad_client::{AckLevel, Address, Cursor, Event, LogId, Reader, Start};
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::Int64Type;
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use sha2::{Digest, Sha256};

use super::bucket::{Bucket, Found};
use super::chain::{self, origin_of};
use super::names::Names;
use super::object::Described;
use super::pieces::hex;
use super::raw;
use crate::config::{Format, FromClad, ToObjects};
use crate::out::source::Cursored;

/// Offsets that are read of a file at once.
const BATCH_ROWS: usize = 8192;

/// What is to be looked through.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Which {
    /// The history; absent is the newest
    #[arg(long)]
    history: Option<u32>,
    /// The log; absent is that of the daemon, and then objects are compared with it
    #[arg(long)]
    log: Option<LogId>,
    /// Objects at the beginning may have expired
    #[arg(long)]
    expired: bool,
}

/// Counts of what was found.
#[derive(Debug, Default)]
struct Report {
    text: String,
    wrong: usize,
    objects: u64,
    records: u64,
    bytes: u64,
    gaps: u64,
    missing: u64,
    compared: u64,
}

impl Report {
    fn wrong(&mut self, text: &str) {
        self.wrong += 1;
        self.note(&format!("wrong: {text}"));
    }

    fn note(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }
}

/// Looks through a history: what there is, and whether nothing is wrong.
pub(crate) async fn verify(from: &FromClad, to: &ToObjects, name: &str, which: &Which) -> Result<(String, bool)> {
    let bucket = Bucket::open(to)?;
    let mut reached = None;
    let (log_id, mut log) = match which.log {
        Some(log_id) => (log_id, None),
        None => {
            let address = from.address()?;
            let near = Cursored::connect(&address, name).await?;
            reached = chain::reached(&near);
            (near.log_id, Some(Log { address, log_id: near.log_id, lowest: near.lowest, reader: None, at: 0 }))
        }
    };
    let names = Names::new(&bucket.prefix, log_id, to.format);
    let histories = bucket.histories(&names).await?;
    let history = which.history.or(histories.last().copied());
    let history = history.with_context(|| format!("{} has nothing of log {log_id}", bucket.url()))?;
    ensure!(
        histories.contains(&history),
        "{} has no history {history} of log {log_id}, but {histories:?}",
        bucket.url()
    );
    let mut report = Report::default();
    report.note(&format!("log {log_id}, history {history} of {histories:?} in {}", bucket.url()));
    let origin = match origin_of(&bucket, &names, history, log_id).await {
        Ok(origin) => origin.map(|(origin, _)| origin),
        Err(error) => {
            report.wrong(&format!("{error:#}"));
            None
        }
    };
    let (objects, others) = bucket.objects(&names, history, None).await?;
    for other in others {
        report.wrong(&format!("{other} is no object of an archive"));
    }
    let mut expected = origin.as_ref().map(|origin| origin.first);
    if origin.is_none() {
        beginning(&mut report, which.expired, "the origin is gone");
    }
    for (at, &first) in objects.iter().enumerate() {
        let path = names.object(history, first);
        let Some(bytes) = bucket.read(&path).await? else {
            report.wrong(&format!("{path} went while it was looked for"));
            continue;
        };
        let said = bucket.find(&path, to.format).await?;
        let described = match judge(&bytes, said, to.format) {
            Ok(described) => described,
            Err(error) => {
                report.wrong(&format!("{path}: {error:#}"));
                continue;
            }
        };
        if (described.log_id, described.history, described.first) != (log_id, history, first) {
            report.wrong(&format!("{path} says that it has {}", described.numbers()));
        }
        match expected {
            Some(expected) if expected < first && at == 0 => {
                beginning(&mut report, which.expired, &format!("offsets {expected} to {} are gone", first - 1));
            }
            Some(expected) if expected < first => {
                report.wrong(&format!("offsets {expected} to {} are in no object", first - 1));
            }
            Some(expected) if expected > first => {
                let end = expected.min(described.end);
                report.wrong(&format!("offsets {first} to {} are in two objects", end.saturating_sub(1)));
            }
            _ => {}
        }
        expected = Some(expected.unwrap_or_default().max(described.end));
        report.objects += 1;
        report.bytes += bytes.len() as u64;
        report.records += described.records;
        if let Some(reason) = &described.gap {
            report.gaps += 1;
            report.missing += described.end - described.first;
            report.note(&format!("gap: offsets {first} to {} were not in the log: {reason}", described.end - 1));
            continue;
        }
        if let Some(log) = &mut log {
            match log.payloads(&described).await {
                Ok(Some(here)) if here == described.payloads => report.compared += 1,
                Ok(Some(here)) => {
                    report.wrong(&format!("{path} has {}; the log has sha256 {here}", described.numbers()))
                }
                Ok(None) => {}
                Err(error) => report.wrong(&format!("{path}: the log cannot be compared with it: {error:#}")),
            }
        }
    }
    if let (Some((in_history, reached)), Some(end)) = (reached, expected)
        && in_history == history
        && reached > end
    {
        report
            .wrong(&format!("offsets {end} to {} were stored, as the cursor says, and are in no object", reached - 1));
    }
    let Report { objects, records, bytes, gaps, missing, compared, .. } = report;
    report.note(&format!(
        "{objects} objects, {records} records, {bytes} bytes; {gaps} gaps of {missing} offsets; {compared} objects are as the \
         log has them"
    ));
    if let (Some(origin), Some(end)) = (&origin, expected) {
        report.note(&format!("offsets {} to below {end}", origin.first));
    }
    let is_right = report.wrong == 0;
    report.note(&if is_right { "nothing is wrong".to_owned() } else { format!("{} things are wrong", report.wrong) });
    Ok((report.text.trim_end().to_owned(), is_right))
}

fn beginning(report: &mut Report, may_be_gone: bool, what: &str) {
    match may_be_gone {
        true => report.note(&format!("expired: {what}")),
        false => report.wrong(&format!("{what} (`--expired` where a rule of the bucket removes old objects)")),
    }
}

/// A file against what it says of itself, there and in the store.
fn judge(bytes: &Bytes, said: Found, format: Format) -> Result<Described> {
    let described = Described::of_file(bytes, format)?.context("the file says nothing of a log")?;
    match said {
        Found::Ours(said) => {
            ensure!(*said == described, "the store says {}, the file {}", said.numbers(), described.numbers());
        }
        Found::Foreign(why) => anyhow::bail!("{why}"),
        Found::Nothing => anyhow::bail!("it went while it was looked at"),
    }
    let length = usize::try_from(described.data_bytes)?;
    let data = bytes.get(..length).context("the file is shorter than it says")?;
    let found = hex(Sha256::new_with_prefix(data));
    ensure!(found == described.data, "its data has sha256 {found}, and it says {}", described.data);
    match format {
        Format::Parquet => offsets(bytes, &described)?,
        Format::Raw => raw::check(bytes, &described)?,
    }
    Ok(described)
}

/// Each offset is there, once and in order.
fn offsets(bytes: &Bytes, described: &Described) -> Result<()> {
    let file = SerializedFileReader::new(bytes.clone())?;
    let metadata = file.metadata().file_metadata();
    let rows = u64::try_from(metadata.num_rows())?;
    ensure!(rows == described.records, "it has {rows} rows, and says {}", described.records);
    let columns = metadata.schema_descr().columns();
    let at = columns.iter().position(|column| column.name() == "Offset").context("it has no column Offset")?;
    let (mut expected, mut values) = (described.first, Vec::with_capacity(BATCH_ROWS));
    for group in 0..file.num_row_groups() {
        let mut reader = get_typed_column_reader::<Int64Type>(file.get_row_group(group)?.get_column_reader(at)?);
        loop {
            values.clear();
            if reader.read_records(BATCH_ROWS, None, None, &mut values)?.0 == 0 {
                break;
            }
            for &value in &values {
                ensure!(
                    value.cast_unsigned() == expected,
                    "offset {} stands where {expected} belongs",
                    value.cast_unsigned()
                );
                expected += 1;
            }
        }
    }
    Ok(())
}

/// The log, read once from the first object that it still has.
struct Log {
    address: Address,
    log_id: LogId,
    lowest: u64,
    reader: Option<Reader>,
    at: u64,
}

impl Log {
    /// The checksum of the payloads of an object's offsets; nothing where the log does not have all of them any more.
    async fn payloads(&mut self, described: &Described) -> Result<Option<String>> {
        if described.first < self.lowest {
            return Ok(None);
        }
        if self.at != described.first {
            self.reader = None;
        }
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                let place = Cursor { log_id: self.log_id, epoch: described.first_epoch, offset: described.first };
                let reader = Reader::builder(self.address.clone()).from(Start::Cursor(place)).level(AckLevel::Written);
                none.insert(reader.open().await?)
            }
        };
        let mut hash = Sha256::new();
        self.at = described.first;
        while self.at < described.end {
            match reader.next().await? {
                Some(Event::Records(chunk)) => {
                    let raw = chunk.raw().context("the log gives no whole appends")?;
                    hash.update(raw.payload());
                    self.at = raw.end_offset();
                }
                Some(Event::Gap(gap)) => {
                    self.at = gap.to;
                    self.reader = None;
                    return Ok(None);
                }
                Some(_) => {}
                None => anyhow::bail!("it ends at offset {}, and the object at {}", self.at, described.end),
            }
        }
        ensure!(self.at == described.end, "an append ends at offset {}, and the object at {}", self.at, described.end);
        Ok(Some(hex(hash)))
    }
}
