//! Contents of a log, whichever way it is read.

use std::ops::Range;

use bytes::Bytes;
use clad_client::Chunk;
use clad_proto::frame::{GapReason, PeerMeta, RecordsHead};
use clad_proto::{Cursor, LogId, PayloadView};

use crate::exit::Stop;
use crate::format::{Entry, Renderer};

/// Lines are collected up to this before they are handed on.
const LINE_BUFFER_BYTES: usize = 64 * 1024;

/// The next event of a log.
#[derive(Debug)]
pub(crate) enum Event {
    /// Records of one append.
    Records(Piece),
    /// Offsets that cannot be read.
    Gap(Gap),
    /// All there is so far was given; more may come.
    CaughtUp,
    /// All before this offset was given, or does not match what the daemon was asked for.
    Progress(u64),
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

/// Content of files at a place: an append as its client encoded it, or nothing that can be read.
#[derive(Debug)]
pub(crate) enum Whole {
    /// A whole append; its checksum was compared.
    Append {
        /// The fields before the peer metadata.
        head: RecordsHead,
        /// The peer metadata, encoded.
        peer_meta: Bytes,
        /// Group and records.
        payload: Bytes,
    },
    /// Offsets that cannot be read.
    Gap(Gap),
}

impl From<Whole> for Event {
    fn from(whole: Whole) -> Self {
        match whole {
            Whole::Append { head, peer_meta, payload } => {
                let peer_meta = Box::new(PeerMeta::decode(&peer_meta).unwrap_or_default());
                Self::Records(Piece { head, peer_meta, payload })
            }
            Whole::Gap(gap) => Self::Gap(gap),
        }
    }
}

/// Records of one append: those behind `skip` of its head, `take` of them. Its checksum was compared.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) head: RecordsHead,
    pub(crate) peer_meta: Box<PeerMeta>,
    pub(crate) payload: Bytes,
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
    /// The line for a person.
    pub(crate) fn note(&self) -> String {
        let last = self.to.saturating_sub(1);
        match self.reason {
            GapReason::Retention => format!("-- records {} to {last} removed by retention --", self.from),
            GapReason::Damage => format!("-- records {} to {last} are damaged and cannot be read --", self.from),
        }
    }
}

impl From<Chunk> for Piece {
    fn from(chunk: Chunk) -> Self {
        let (head, peer_meta, payload) = chunk.into_append();
        Self { head, peer_meta: Box::new(peer_meta), payload }
    }
}

impl Piece {
    /// Shows each record from `from` on to `each`, until that says to stop; says whether it did not.
    pub(crate) fn each(&self, log_id: LogId, from: u64, mut each: impl FnMut(&Entry<'_>) -> bool) -> bool {
        let head = &self.head;
        let Ok(view) = PayloadView::parse(&self.payload, head.count) else { return true };
        let wanted = (0u64..).zip(view.records()).skip(head.skip as usize).take(head.take as usize);
        wanted.filter(|(at, _)| head.first_offset + at >= from).all(|(at, record)| {
            each(&Entry {
                log_id,
                epoch: head.epoch,
                offset: head.first_offset + at,
                append_time: head.append_time,
                producer_id: head.producer_id,
                producer_epoch: head.producer_epoch,
                sequence: head.first_seq.wrapping_add(at),
                place: at,
                peer_meta: &self.peer_meta,
                group: view.group(),
                record,
            })
        })
    }

    /// Renders the records whose offsets are in `range` and that are wanted, and hands their lines to `write` by way of
    /// `lines`, which is empty before and after; returns how many they are.
    pub(crate) fn render(
        &self,
        log_id: LogId,
        range: Range<u64>,
        renderer: &mut Renderer,
        lines: &mut Vec<u8>,
        wanted: impl Fn(&Entry<'_>) -> bool,
        mut write: impl FnMut(&[u8]) -> Result<(), Stop>,
    ) -> Result<u64, Stop> {
        let (mut count, mut written) = (0, Ok(()));
        self.each(log_id, range.start, |entry| {
            if entry.offset >= range.end {
                return false;
            }
            if wanted(entry) {
                count += 1;
                renderer.render(entry, lines);
                if lines.len() >= LINE_BUFFER_BYTES {
                    written = write(lines);
                    lines.clear();
                }
            }
            written.is_ok()
        });
        written?;
        write(lines)?;
        lines.clear();
        Ok(count)
    }

    /// The offset of its first record, and the one after its last.
    pub(crate) const fn range(&self) -> (u64, u64) {
        let first = self.head.first_offset + self.head.skip as u64;
        (first, first + self.head.take as u64)
    }
}
