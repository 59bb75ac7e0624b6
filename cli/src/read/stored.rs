//! Reading the files of a log with no daemon: its data folder, or an archive of it.
//!
//! Invariants: nothing is written and no lock is taken; a torn tail is a note; what fails its checksum is a gap and
//! never a record. Cursors are judged by the same rule as the daemon's (docs/PROTOCOL.md, section 6).

use std::collections::VecDeque;
use std::path::Path;

use anyhow::anyhow;
use bytes::Bytes;
use clad_client::Start;
use clad_journal::{Batch, OfflineLog, OfflineReader, OpenError, ReadError};
use clad_proto::frame::{GapReason, RecordsHead};
use clad_proto::{Cursor, LogId, PayloadView, ProducerId, payload_checksum};

use super::archive::{Archive, ArchiveReader};
use super::piece::{Event, Gap, Standing, Whole};
use crate::exit::Stop;

/// A log in a folder.
pub(crate) enum Files {
    /// Its data folder.
    Log(Box<OfflineLog>),
    /// An archive of it.
    Archive(Archive),
}

/// A read of it.
pub(crate) enum FilesStream<'a> {
    /// From its data folder.
    Log {
        /// Reader of batches.
        reader: OfflineReader<'a>,
        /// No append that ends before it: a batch begins earlier.
        from: u64,
        /// Appends of the last one.
        ready: VecDeque<Whole>,
    },
    /// From an archive.
    Archive(ArchiveReader<'a>),
}

/// The error of a folder that cannot be read, with what to do about it.
pub(crate) fn unreadable(dir: &Path, error: OpenError) -> Stop {
    match &error {
        OpenError::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            use std::os::unix::fs::MetadataExt;
            let owner =
                dir.metadata().map_or_else(|_| "the daemon's user".to_owned(), |meta| format!("uid {}", meta.uid()));
            Stop::Failed(anyhow!("{error}; the files of a log are for {owner}, its group, and root"))
        }
        _ => Stop::Failed(error.into()),
    }
}

impl Files {
    /// Opens a folder.
    pub(crate) fn open(dir: &Path) -> Result<Self, Stop> {
        if Archive::is_one(dir) {
            return Archive::open(dir).map(Self::Archive).map_err(Stop::Failed);
        }
        let log = OfflineLog::open(dir).map_err(|error| unreadable(dir, error))?;
        Ok(Self::Log(Box::new(log)))
    }

    /// Notes for an operator, each with true if it is damage.
    pub(crate) fn notes(&self) -> Vec<(String, bool)> {
        match self {
            Self::Log(log) => {
                let notes = log.notes().iter().map(|note| (note.clone(), false));
                notes.chain(log.faults().iter().map(|fault| (format!("DAMAGE: {fault}"), true))).collect()
            }
            Self::Archive(archive) => archive.faults().map(|fault| (format!("DAMAGE: {fault}"), true)).collect(),
        }
    }

    /// Where the log stands.
    pub(crate) fn standing(&self) -> Standing {
        let end = match self {
            Self::Log(log) => {
                let log_id = LogId::from_bytes(log.log_id());
                Cursor { log_id, epoch: log.meta().epoch(), offset: log.end_offset() }
            }
            Self::Archive(archive) => archive.end(),
        };
        Standing { log_id: end.log_id, end, written: end.offset }
    }

    /// One past the last record that the files prove durable.
    pub(crate) fn durable_end(&self) -> u64 {
        match self {
            Self::Log(log) => log.durable_end(),
            Self::Archive(archive) => archive.end().offset,
        }
    }

    /// The first offset that there is.
    pub(crate) fn first_offset(&self) -> u64 {
        match self {
            Self::Log(log) => log.first_offset(),
            Self::Archive(archive) => archive.first_offset(),
        }
    }

    /// Starts a read.
    pub(crate) fn read(&self, start: Start) -> Result<FilesStream<'_>, Stop> {
        let end = self.standing().end.offset;
        let from = match start {
            Start::Offset(offset) if offset > end => {
                return Err(Stop::Failed(anyhow!("offset {offset} is beyond the end of the log at {end}")));
            }
            Start::Offset(offset) => offset,
            Start::Cursor(cursor) => self.judge(cursor)?,
            Start::Tail(records) => end.saturating_sub(records).max(self.first_offset()),
            _ => 0,
        };
        Ok(match self {
            Self::Log(log) => FilesStream::Log { reader: log.read(from), from, ready: VecDeque::new() },
            // What was before its first object is no loss.
            Self::Archive(archive) => FilesStream::Archive(archive.read(from.max(archive.first_offset()))),
        })
    }

    /// The offset of a cursor that is a place in this history of this log.
    pub(crate) fn judge(&self, cursor: Cursor) -> Result<u64, Stop> {
        let standing = self.standing();
        if cursor.log_id != standing.log_id {
            return Err(Stop::Failed(anyhow!("the cursor is of log {}, this is {}", cursor.log_id, standing.log_id)));
        }
        if cursor.epoch > standing.end.epoch || cursor.offset > standing.end.offset {
            return Err(Stop::Failed(anyhow!(
                "the cursor {cursor} is beyond the end of this log at {}: it was made up, or is of a longer copy of this \
                 log (a backup was restored); read on from there, or without a cursor",
                standing.end
            )));
        }
        let epochs = match self {
            Self::Log(log) => &log.meta().epochs[..],
            Self::Archive(_) => &[], // each of its offsets was durable: none is of an abandoned history
        };
        match epochs.iter().find(|at| at.epoch > cursor.epoch && at.first_offset < cursor.offset) {
            None => Ok(cursor.offset),
            Some(at) => Err(Stop::Failed(anyhow!(
                "the cursor {cursor} belongs to an abandoned history; the log continues from {}:{}:{}",
                standing.log_id,
                at.epoch,
                at.first_offset
            ))),
        }
    }
}

impl FilesStream<'_> {
    /// The next event; nothing at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Event>, Stop> {
        Ok(self.next_whole()?.map(Event::from))
    }

    /// The next append or gap; nothing at the end.
    pub(crate) fn next_whole(&mut self) -> Result<Option<Whole>, Stop> {
        let (reader, from, ready) = match self {
            Self::Archive(reader) => return reader.next_whole(),
            Self::Log { reader, from, ready } => (reader, *from, ready),
        };
        while ready.is_empty() {
            match reader.next_batch() {
                Ok(None) => return Ok(None),
                Ok(Some(batch)) => open(&batch, from, ready),
                Err(ReadError::Gap { from, to, damaged }) => {
                    let reason = if damaged { GapReason::Damage } else { GapReason::Retention };
                    ready.push_back(Whole::Gap(Gap { from, to, reason }));
                }
                Err(error) => return Err(Stop::Failed(error.into())),
            }
        }
        Ok(ready.pop_front())
    }
}

/// Adds those of a batch's appends that do not end before an offset.
fn open(batch: &Batch, from: u64, ready: &mut VecDeque<Whole>) {
    let damage = |from: u64, to: u64| Whole::Gap(Gap { from, to, reason: GapReason::Damage });
    let mut next = batch.first_offset;
    for chunk in batch.chunks() {
        let Ok((first_offset, chunk)) = chunk else {
            // The lengths inside do not fit: what follows in this batch cannot be found.
            if next < batch.end_offset() {
                ready.push_back(damage(next, batch.end_offset()));
            }
            return;
        };
        let header = chunk.header;
        next = first_offset + u64::from(header.count);
        if next <= from {
            continue;
        }
        let sound = payload_checksum(chunk.payload) == header.payload_checksum
            && PayloadView::parse(chunk.payload, header.count).is_ok();
        if !sound {
            if first_offset < next {
                ready.push_back(damage(first_offset, next));
            }
            continue;
        }
        let head = RecordsHead {
            epoch: batch.epoch,
            count: header.count,
            first_offset,
            append_time: u64::try_from(batch.append_real_ns).unwrap_or(0),
            producer_id: ProducerId::from_bytes(header.producer),
            producer_epoch: header.producer_epoch,
            payload_crc: header.payload_checksum,
            first_seq: header.first_sequence,
            skip: 0,
            take: header.count,
        };
        let (peer_meta, payload) = (Bytes::copy_from_slice(chunk.peer_meta), Bytes::copy_from_slice(chunk.payload));
        ready.push_back(Whole::Append { head, peer_meta, payload });
    }
}
