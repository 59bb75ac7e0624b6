//! An object of an archive: what it says of itself, and how it is built.
//!
//! Invariants:
//! - It begins and ends with whole appends, and has every offset between; or it has no row and says why.
//! - What it says of itself stands in the object, and in the store's metadata where that has any: equal in both.
//! - It is built of the records alone: the same appends give the same bytes.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clad_client::{Chunk, Cursor, GapReason, LogId, RawRecords};
use object_store::{Attribute, Attributes, PutPayload};
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::file::writer::SerializedFileWriter;
use sha2::{Digest, Sha256};

use super::columns::{self, Rows, Shared};
use super::pieces::{Pieces, hex};
use super::raw::{self, Export};
use crate::config::Format;
use crate::out::source::Append;

/// What is not encoded yet counts as this part of its size.
const ENCODED_PART: usize = 4;

/// What an object says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Described {
    pub(super) log_id: LogId,
    pub(super) history: u32,
    pub(super) first: u64,
    /// The offset behind it, and the epoch to go on with there.
    pub(super) end: u64,
    pub(super) end_epoch: u32,
    pub(super) records: u64,
    /// Epoch of the first append.
    pub(super) first_epoch: u32,
    /// The last append in it, or before it where it has no row.
    pub(super) last: Option<Append>,
    /// Of the payloads, as their clients encoded them, one behind the other.
    pub(super) payloads: String,
    /// Of the bytes before the file's footer, and their number.
    pub(super) data: String,
    pub(super) data_bytes: u64,
    /// Why it has no row.
    pub(super) gap: Option<String>,
    pub(super) version: String,
}

/// Names of what an object says of itself. A store writes them with small letters.
const PREFIX: &str = "clad-";

impl Described {
    /// Its pairs, in one order.
    pub(super) fn pairs(&self) -> Vec<(String, String)> {
        let mut pairs = vec![
            ("log", self.log_id.to_string()),
            ("history", self.history.to_string()),
            ("first", self.first.to_string()),
            ("end", self.end.to_string()),
            ("end-epoch", self.end_epoch.to_string()),
            ("records", self.records.to_string()),
            ("first-epoch", self.first_epoch.to_string()),
            ("sha256", self.payloads.clone()),
            ("data-sha256", self.data.clone()),
            ("data-bytes", self.data_bytes.to_string()),
            ("version", self.version.clone()),
        ];
        if let Some(last) = &self.last {
            pairs.push(("last-epoch", last.epoch.to_string()));
            pairs.push(("last-first", last.first.to_string()));
            pairs.push(("last-count", last.count.to_string()));
            pairs.push(("last-crc", format!("{:08x}", last.payload_crc)));
        }
        if let Some(gap) = &self.gap {
            pairs.push(("gap", gap.clone()));
        }
        pairs.into_iter().map(|(key, value)| (format!("{PREFIX}{key}"), value)).collect()
    }

    pub(super) fn attributes(&self, format: Format) -> Attributes {
        let mut attributes: Attributes =
            self.pairs().into_iter().map(|(key, value)| (Attribute::Metadata(key.into()), value)).collect();
        let content = match format {
            Format::Parquet => "application/vnd.apache.parquet",
            Format::Raw => "application/zstd",
        };
        attributes.insert(Attribute::ContentType, content.into());
        attributes
    }

    /// From its pairs; nothing where it says nothing: it is not ours.
    pub(super) fn of(pair: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let text = |key: &str| pair(&format!("{PREFIX}{key}"));
        if text("log").is_none() {
            return Ok(None);
        }
        let word = |key: &str| text(key).with_context(|| format!("its metadata has no {PREFIX}{key}"));
        let number = |key: &str| {
            word(key)?.parse::<u64>().with_context(|| format!("its metadata has no number as {PREFIX}{key}"))
        };
        let small = |key: &str| Ok::<_, anyhow::Error>(u32::try_from(number(key)?)?);
        let last = match text("last-crc") {
            Some(crc) => Some(Append {
                epoch: small("last-epoch")?,
                first: number("last-first")?,
                count: small("last-count")?,
                payload_crc: u32::from_str_radix(&crc, 16).context("its metadata has no checksum as clad-last-crc")?,
            }),
            None => None,
        };
        let described = Self {
            log_id: word("log")?.parse().context("its metadata has no id as clad-log")?,
            history: small("history")?,
            first: number("first")?,
            end: number("end")?,
            end_epoch: small("end-epoch")?,
            records: number("records")?,
            first_epoch: small("first-epoch")?,
            last,
            payloads: word("sha256")?,
            data: word("data-sha256")?,
            data_bytes: number("data-bytes")?,
            gap: text("gap"),
            version: word("version")?,
        };
        let is_right = described.end > described.first
            && match described.gap {
                Some(_) => described.records == 0,
                None => described.records == described.end - described.first && described.last.is_some(),
            };
        ensure!(is_right, "its metadata contradicts itself: {}", described.numbers());
        Ok(Some(described))
    }

    pub(super) fn of_attributes(attributes: &Attributes) -> Result<Option<Self>> {
        Self::of(|key| attributes.get(&Attribute::Metadata(key.to_owned().into())).map(|value| value.to_string()))
    }

    /// From a whole file.
    pub(super) fn of_file(bytes: &Bytes, format: Format) -> Result<Option<Self>> {
        match format {
            Format::Parquet => {
                let file = SerializedFileReader::new(bytes.clone()).context("it is no Parquet file")?;
                Self::of_metadata(file.metadata())
            }
            Format::Raw => raw::of_file(bytes),
        }
    }

    pub(super) fn of_metadata(metadata: &ParquetMetaData) -> Result<Option<Self>> {
        let pairs = metadata.file_metadata().key_value_metadata().cloned().unwrap_or_default();
        Self::of(|key| pairs.iter().find(|pair| pair.key == key)?.value.clone())
    }

    /// True of an object with the same records under the same name, whoever wrote it.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let own = |of: &Self| (of.log_id, of.history, of.first, of.end, of.last, of.gap.clone());
        own(self) == own(other) && self.payloads == other.payloads
    }

    /// The place behind it.
    pub(super) const fn place(&self) -> Cursor {
        Cursor { log_id: self.log_id, epoch: self.end_epoch, offset: self.end }
    }

    /// Its numbers, for a person.
    pub(super) fn numbers(&self) -> String {
        let last = self.last.map_or_else(|| "no append before it".to_owned(), |last| last.to_string());
        format!("offsets {} to {} of log {}; {last}; sha256 {}", self.first, self.end - 1, self.log_id, self.payloads)
    }
}

/// The content of an object, in its form.
enum Content {
    Parquet { file: Box<SerializedFileWriter<Pieces>>, rows: Box<Rows> },
    Raw(Box<Export>),
}

impl Content {
    fn new(format: Format, log_id: LogId) -> Result<Self> {
        Ok(match format {
            Format::Parquet => {
                Self::Parquet { file: Box::new(columns::file(Pieces::default())?), rows: Box::default() }
            }
            Format::Raw => Self::Raw(Box::new(Export::new(log_id)?)),
        })
    }

    /// Adds an append; the number of its records.
    fn push(&mut self, chunk: &Chunk, raw: &RawRecords) -> Result<u64> {
        match self {
            Self::Parquet { file, rows } => {
                let (mut shared, mut count) = (Shared::of(chunk), 0);
                for (offset, record) in chunk.records() {
                    if rows.is_full() {
                        rows.write(file)?;
                    }
                    rows.push(&mut shared, offset, &record);
                    count += 1;
                }
                Ok(count)
            }
            Self::Raw(export) => {
                export.push(raw)?;
                Ok(chunk.records().count() as u64)
            }
        }
    }

    /// Ends it with what it says of itself.
    fn finish(self, mut described: Described) -> Result<(Described, PutPayload)> {
        match self {
            Self::Parquet { mut file, mut rows } => {
                if rows.count() > 0 {
                    rows.write(&mut file)?;
                }
                file.flush()?;
                (described.data_bytes, described.data) = file.inner().sum();
                for (key, value) in described.pairs() {
                    file.append_key_value_metadata(KeyValue::new(key, value));
                }
                Ok((described, file.into_inner()?.into_payload()))
            }
            Self::Raw(export) => export.finish(described),
        }
    }
}

/// An object that is being built.
pub(super) struct Building {
    content: Content,
    payloads: Sha256,
    first: u64,
    first_epoch: u32,
    records: u64,
    last: Append,
    /// When the daemon took its first append.
    pub(super) first_time: u64,
}

impl Building {
    /// Begins with an append.
    pub(super) fn begin(chunk: &Chunk, log_id: LogId, format: Format) -> Result<Self> {
        let (first, first_epoch) = (chunk.first_offset(), chunk.epoch());
        let last = Append { epoch: first_epoch, first, count: 0, payload_crc: 0 };
        Ok(Self {
            content: Content::new(format, log_id)?,
            payloads: Sha256::new(),
            first,
            first_epoch,
            records: 0,
            last,
            first_time: chunk.append_time(),
        })
    }

    /// The offset behind it.
    pub(super) const fn end(&self) -> u64 {
        self.first + self.records
    }

    /// Bytes that it will have, about.
    pub(super) fn bytes(&self) -> u64 {
        match &self.content {
            Content::Parquet { file, rows } => (file.bytes_written() + rows.bytes() / ENCODED_PART) as u64,
            Content::Raw(export) => export.bytes(),
        }
    }

    /// Adds an append.
    pub(super) fn push(&mut self, chunk: &Chunk, raw: &RawRecords) -> Result<()> {
        let head = raw.head();
        ensure!(
            chunk.first_offset() == self.end()
                && chunk.count() == head.count
                && chunk.first_offset() == head.first_offset,
            "the log gives offsets {} to {} of an append of {} to {}, where {} is next: the archive has whole appends, one behind \
             the other",
            chunk.first_offset(),
            chunk.end_offset(),
            head.first_offset,
            raw.end_offset(),
            self.end()
        );
        if self.content.push(chunk, raw)? != u64::from(head.count) {
            bail!("the append of offset {} has not the {} records that it says", head.first_offset, head.count);
        }
        self.records += u64::from(head.count);
        self.payloads.update(raw.payload());
        self.last =
            Append { epoch: head.epoch, first: head.first_offset, count: head.count, payload_crc: head.payload_crc };
        Ok(())
    }

    /// Ends it at a place.
    pub(super) fn finish(self, history: u32, end: Cursor) -> Result<(Described, PutPayload)> {
        ensure!(end.offset == self.end(), "an object of offsets up to {} is not ended at {}", self.end(), end.offset);
        let described = Described {
            log_id: end.log_id,
            history,
            first: self.first,
            end: end.offset,
            end_epoch: end.epoch,
            records: self.records,
            first_epoch: self.first_epoch,
            last: Some(self.last),
            payloads: hex(self.payloads),
            data: String::new(),
            data_bytes: 0,
            gap: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        self.content.finish(described)
    }
}

/// An object without a row, for offsets that the log does not have.
pub(super) fn gap(
    history: u32,
    from: u64,
    end: Cursor,
    reason: GapReason,
    last: Option<Append>,
    format: Format,
) -> Result<(Described, PutPayload)> {
    let mut content = Content::new(format, end.log_id)?;
    if let Content::Raw(export) = &mut content {
        export.push_gap(from, end.offset, reason);
    }
    let reason = match reason {
        GapReason::Retention => "retention",
        GapReason::Damage => "damage",
    };
    let described = Described {
        log_id: end.log_id,
        history,
        first: from,
        end: end.offset,
        end_epoch: end.epoch,
        records: 0,
        first_epoch: end.epoch,
        last,
        payloads: hex(Sha256::new()),
        data: String::new(),
        data_bytes: 0,
        gap: Some(reason.to_owned()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    content.finish(described)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(offset: u64) -> Cursor {
        Cursor { log_id: LogId::from_bytes([7; 16]), epoch: 2, offset }
    }

    #[test]
    fn a_gap_has_no_row_and_says_why_in_both_places() {
        let last = Append { epoch: 1, first: 3, count: 2, payload_crc: 0xab };
        for format in [Format::Parquet, Format::Raw] {
            let (described, payload) = gap(1, 5, place(9), GapReason::Retention, Some(last), format).expect("made");
            let bytes: Bytes = payload.into();
            assert_eq!(Described::of_file(&bytes, format).expect("right"), Some(described.clone()));
            let attributes = described.attributes(format);
            assert_eq!(Described::of_attributes(&attributes).expect("right"), Some(described.clone()));
            match format {
                Format::Parquet => {
                    let file = SerializedFileReader::new(bytes).expect("Parquet");
                    assert_eq!(file.metadata().file_metadata().num_rows(), 0);
                }
                Format::Raw => raw::check(&bytes, &described).expect("nothing in it"),
            }
            assert_eq!((described.records, described.gap.as_deref()), (0, Some("retention")));
            assert_eq!(described.place(), place(9));
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let (described, _) = gap(1, 5, place(9), GapReason::Damage, None, Format::Parquet).expect("made");
        let with = |changed: &str, value: &str| {
            let pairs = described.pairs();
            Described::of(|key| {
                let of = if key == changed { Some(value.to_owned()) } else { None };
                of.or_else(|| pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone()))
            })
        };
        assert_eq!(with("none", "").expect("right"), Some(described.clone()));
        for (key, value) in [("clad-end", "5"), ("clad-records", "1"), ("clad-first", "x"), ("clad-log", "x")] {
            assert!(with(key, value).is_err(), "{key}");
        }
        assert_eq!(Described::of(|_| None).expect("nothing"), None);
    }
}
