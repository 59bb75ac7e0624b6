//! Pieces of a log, whichever way it is read.

use clad_client::Chunk;
use clad_proto::frame::{GapReason, PeerMeta, RecordsHead};
use clad_proto::{Cursor, LogId, PayloadView, ProducerId, payload_checksum};

use crate::format::Entry;

/// Next piece of a log.
#[derive(Debug)]
pub(crate) enum Event {
    /// Records of one append.
    Records(Piece),
    /// Offsets that cannot be read.
    Gap(Gap),
    /// All there is so far was given; more may come.
    CaughtUp,
    /// Some of what was given before is not in the log any more; what is there now follows.
    Parted(String),
}

/// Offsets that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    /// First that is missing.
    pub(crate) from: u64,
    /// The offset after the last.
    pub(crate) to: u64,
    /// Why.
    pub(crate) reason: GapReason,
}

/// Records of one append.
#[derive(Debug)]
pub(crate) enum Piece {
    /// From a daemon.
    Served(Chunk),
    /// From files.
    Stored(Stored),
}

/// An append as it lies in a file; its checksum was compared.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) epoch: u32,
    pub(crate) first_offset: u64,
    pub(crate) append_time: u64,
    pub(crate) producer_id: ProducerId,
    pub(crate) producer_epoch: u32,
    pub(crate) first_sequence: u64,
    pub(crate) peer_meta: PeerMeta,
    pub(crate) count: u32,
    pub(crate) payload: Vec<u8>,
}

/// Where a log stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    /// The log.
    pub(crate) log_id: LogId,
    /// The place after its last readable record.
    pub(crate) end: Cursor,
    /// All offsets below are written; some of them may be beyond what is read here.
    pub(crate) written: u64,
}

impl Gap {
    /// Note for a person.
    pub(crate) fn note(&self) -> String {
        let last = self.to.saturating_sub(1);
        match self.reason {
            GapReason::Retention => format!("-- records {} to {last} removed by retention --", self.from),
            GapReason::Damage => format!("-- records {} to {last} are damaged and cannot be read --", self.from),
        }
    }
}

impl Piece {
    /// Shows each record from `from` on to `each`, until that says to stop; says whether it did not.
    pub(crate) fn each(&self, log_id: LogId, from: u64, mut each: impl FnMut(&Entry<'_>) -> bool) -> bool {
        match self {
            Self::Served(chunk) => {
                let Some(group) = chunk.group() else { return true };
                chunk.records().filter(|(offset, _)| *offset >= from).all(|(offset, record)| {
                    each(&Entry {
                        log_id,
                        epoch: chunk.epoch(),
                        offset,
                        append_time: chunk.append_time(),
                        producer_id: chunk.producer_id(),
                        producer_epoch: chunk.producer_epoch(),
                        sequence: chunk.first_sequence() + (offset - chunk.first_offset()),
                        peer_meta: chunk.peer_meta(),
                        group,
                        record,
                    })
                })
            }
            Self::Stored(stored) => {
                let Ok(view) = PayloadView::parse(&stored.payload, stored.count) else { return true };
                (0u64..).zip(view.records()).filter(|(at, _)| stored.first_offset + at >= from).all(|(at, record)| {
                    each(&Entry {
                        log_id,
                        epoch: stored.epoch,
                        offset: stored.first_offset + at,
                        append_time: stored.append_time,
                        producer_id: stored.producer_id,
                        producer_epoch: stored.producer_epoch,
                        sequence: stored.first_sequence + at,
                        peer_meta: &stored.peer_meta,
                        group: view.group(),
                        record,
                    })
                })
            }
        }
    }

    /// What it is as a whole: the payload of its append, and what stands beside it. The records that are given are
    /// those behind `skip`, `take` of them.
    pub(crate) fn whole(&self) -> (RecordsHead, &PeerMeta, &[u8]) {
        match self {
            Self::Served(chunk) => {
                let (payload, count) = chunk.payload();
                let skip = chunk.skipped();
                let head = RecordsHead {
                    epoch: chunk.epoch(),
                    count,
                    first_offset: chunk.first_offset() - u64::from(skip),
                    append_time: chunk.append_time(),
                    producer_id: chunk.producer_id(),
                    producer_epoch: chunk.producer_epoch(),
                    payload_crc: payload_checksum(payload),
                    first_seq: chunk.first_sequence().wrapping_sub(skip.into()),
                    skip,
                    take: chunk.count(),
                };
                (head, chunk.peer_meta(), payload)
            }
            Self::Stored(stored) => {
                let head = RecordsHead {
                    epoch: stored.epoch,
                    count: stored.count,
                    first_offset: stored.first_offset,
                    append_time: stored.append_time,
                    producer_id: stored.producer_id,
                    producer_epoch: stored.producer_epoch,
                    payload_crc: payload_checksum(&stored.payload),
                    first_seq: stored.first_sequence,
                    skip: 0,
                    take: stored.count,
                };
                (head, &stored.peer_meta, &stored.payload)
            }
        }
    }

    /// The epoch in which it got its offsets.
    pub(crate) fn epoch(&self) -> u32 {
        match self {
            Self::Served(chunk) => chunk.epoch(),
            Self::Stored(stored) => stored.epoch,
        }
    }

    /// The offset of its first record, and the one after its last.
    pub(crate) fn range(&self) -> (u64, u64) {
        match self {
            Self::Served(chunk) => (chunk.first_offset(), chunk.end_offset()),
            Self::Stored(stored) => (stored.first_offset, stored.first_offset + u64::from(stored.count)),
        }
    }
}
