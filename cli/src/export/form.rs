//! The form of records in an export.
//!
//! Invariants: the bytes of a record depend on nothing but the record, so that an export in several goes is the one
//! in a single go. `raw` (docs/FORMAT.md, "Exports") is a head of [`raw_export::HEAD_BYTES`], then RECORDS and GAP frames of the
//! protocol with request id 0: an append of which anything is wanted is there whole, with its client's checksum, and
//! `skip` and `take` say which of its records are wanted, from the first to the last.

use std::ops::Range;

use bytes::BytesMut;
use clad_proto::frame::{self, RecordsHead, encode_records};
use clad_proto::{LogId, raw_export};
use jiff::tz::TimeZone;

use super::args::Output;
use crate::exit::Stop;
use crate::format::{Entry, Format, Renderer};
use crate::read::piece::{Gap, Piece};

/// Form of an export.
pub(super) enum Form {
    /// Lines.
    Lines { renderer: Box<Renderer>, lines: Vec<u8> },
    /// Frames.
    Raw(BytesMut),
}

impl Form {
    pub(super) fn new(output: Output) -> Self {
        let format = match output {
            Output::Cat => Format::Cat,
            Output::Json => Format::Json,
            Output::Raw => return Self::Raw(BytesMut::new()),
        };
        let renderer = Box::new(Renderer::new(format, TimeZone::UTC, false));
        Self::Lines { renderer, lines: Vec::new() }
    }

    /// Bytes before the first record.
    pub(super) fn head(&self, log_id: LogId) -> Vec<u8> {
        match self {
            Self::Lines { .. } => Vec::new(),
            Self::Raw(_) => raw_export::head(log_id).to_vec(),
        }
    }

    /// Gives `write` the records of a piece whose offsets are in `range` and that are wanted; says how many they are.
    pub(super) fn piece(
        &mut self,
        piece: &Piece,
        log_id: LogId,
        range: Range<u64>,
        wanted: impl Fn(&Entry<'_>) -> bool,
        mut write: impl FnMut(&[u8]) -> Result<(), Stop>,
    ) -> Result<u64, Stop> {
        match self {
            Self::Lines { renderer, lines } => piece.render(log_id, range, renderer, lines, wanted, write),
            Self::Raw(out) => {
                let mut span: Option<Range<u64>> = None;
                piece.each(log_id, range.start, |entry| {
                    if entry.offset < range.end && wanted(entry) {
                        let start = span.as_ref().map_or(entry.offset, |span| span.start);
                        span = Some(start..entry.offset + 1);
                    }
                    entry.offset < range.end
                });
                let Some(span) = span else { return Ok(0) };
                let count = span.end - span.start;
                let skip = (span.start - piece.head.first_offset) as u32;
                let head = RecordsHead { skip, take: count as u32, ..piece.head };
                out.clear();
                encode_records(out, 0, &head, &piece.peer_meta.to_bytes(), &piece.payload);
                write(out).map(|()| count)
            }
        }
    }

    /// Bytes of a gap in the stream.
    pub(super) fn gap(&self, gap: &Gap) -> Vec<u8> {
        let mut out = BytesMut::new();
        if let Self::Raw(_) = self {
            // The epoch of a GAP is that of the time of the question: another for the call that goes on.
            frame::Gap { request_id: 0, from: gap.from, to: gap.to, epoch: 0, reason: gap.reason }.encode(&mut out);
        }
        out.to_vec()
    }
}
