//! Reading the files of a log with no daemon.
//!
//! Invariants: nothing is written and no lock is taken; a torn tail is a note; what fails its checksum is a gap and
//! never a record. Cursors are judged by the same rule as the daemon's (docs/PROTOCOL.md, section 6).

use std::collections::VecDeque;
use std::path::Path;

use anyhow::anyhow;
use bytes::Bytes;
use clad_client::Start;
use clad_journal::{Batch, OfflineLog, OfflineReader, OpenError, ReadError};
use clad_proto::frame::{GapReason, PeerMeta, RecordsHead};
use clad_proto::{Cursor, LogId, PayloadView, ProducerId, payload_checksum};

use super::piece::{Event, Gap, Piece, Standing};
use crate::exit::Stop;

/// A log in a folder.
pub(crate) struct Files {
    log: OfflineLog,
}

/// A read of it.
pub(crate) struct FilesStream<'a> {
    reader: OfflineReader<'a>,
    ready: VecDeque<Event>,
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
        let log = OfflineLog::open(dir).map_err(|error| unreadable(dir, error))?;
        Ok(Self { log })
    }

    /// Notes for an operator, each with true if it is damage.
    pub(crate) fn notes(&self) -> impl Iterator<Item = (String, bool)> {
        let notes = self.log.notes().iter().map(|note| (note.clone(), false));
        notes.chain(self.log.faults().iter().map(|fault| (format!("DAMAGE: {fault}"), true)))
    }

    /// Where the log stands.
    pub(crate) fn standing(&self) -> Standing {
        let log_id = LogId::from_bytes(self.log.log_id());
        let offset = self.log.end_offset();
        Standing { log_id, end: Cursor { log_id, epoch: self.log.meta().epoch(), offset }, written: offset }
    }

    /// One past the last record that the files prove durable.
    pub(crate) fn durable_end(&self) -> u64 {
        self.log.durable_end()
    }

    /// Starts a read.
    pub(crate) fn read(&self, start: Start) -> Result<FilesStream<'_>, Stop> {
        let end = self.log.end_offset();
        let from = match start {
            Start::Offset(offset) if offset > end => {
                return Err(Stop::Failed(anyhow!("offset {offset} is beyond the end of the log at {end}")));
            }
            Start::Offset(offset) => offset,
            Start::Cursor(cursor) => self.judge(cursor)?,
            Start::Tail(records) => end.saturating_sub(records).max(self.log.first_offset()),
            _ => 0,
        };
        Ok(FilesStream { reader: self.log.read(from), ready: VecDeque::new() })
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
        let later = self.log.meta().epochs.iter().find(|at| at.epoch > cursor.epoch && at.first_offset < cursor.offset);
        match later {
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
        while self.ready.is_empty() {
            match self.reader.next_batch() {
                Ok(None) => return Ok(None),
                Ok(Some(batch)) => self.open(&batch),
                Err(ReadError::Gap { from, to, damaged }) => {
                    let reason = if damaged { GapReason::Damage } else { GapReason::Retention };
                    self.ready.push_back(Event::Gap(Gap { from, to, reason }));
                }
                Err(error) => return Err(Stop::Failed(error.into())),
            }
        }
        Ok(self.ready.pop_front())
    }

    fn open(&mut self, batch: &Batch) {
        let mut next = batch.first_offset;
        for chunk in batch.chunks() {
            let Ok((first_offset, chunk)) = chunk else {
                // The lengths inside do not fit: what follows in this batch cannot be found.
                self.damage(next, batch.end_offset());
                return;
            };
            let header = chunk.header;
            next = first_offset + u64::from(header.count);
            let sound = payload_checksum(chunk.payload) == header.payload_checksum
                && PayloadView::parse(chunk.payload, header.count).is_ok();
            if !sound {
                self.damage(first_offset, next);
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
            let peer_meta = Box::new(PeerMeta::decode(chunk.peer_meta).unwrap_or_default());
            let payload = Bytes::copy_from_slice(chunk.payload);
            self.ready.push_back(Event::Records(Piece { head, peer_meta, payload }));
        }
    }

    fn damage(&mut self, from: u64, to: u64) {
        if from < to {
            self.ready.push_back(Event::Gap(Gap { from, to, reason: GapReason::Damage }));
        }
    }
}
