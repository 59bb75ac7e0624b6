//! Going through a log from its end.
//!
//! Invariants: a log is read in pieces of at most [`MAX_STEP`] offsets, each forward and each once more than needed
//! at most, so that neither the size of the log nor `-n` decides how much memory is taken. Nothing is held but offsets
//! ([`nth_last`]) or the lines of one piece, at most [`MAX_LINES`] bytes and one record ([`Backward`]).

use clad_client::Start;
use clad_proto::Cursor;
use clad_proto::frame::GapReason;

use super::filter::Filter;
use super::piece::{Event, Gap, Standing};
use super::source::Source;
use crate::exit::Stop;
use crate::format::Entry;

/// The most offsets in one piece.
const MAX_STEP: u64 = 1 << 16;
/// The fewest in the first piece.
const MIN_STEP: u64 = 16;
/// The most bytes of lines that are held to be turned around.
const MAX_LINES: usize = 32 * 1024 * 1024;

/// Part of a log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// Where it stands.
    pub(super) standing: Standing,
    /// Nothing below this is wanted.
    pub(super) lower: u64,
}

/// Shows the records of `from..to` to `each` until that says to stop; gives the gaps among them.
async fn range(
    source: &Source,
    part: &Part,
    from: u64,
    to: u64,
    mut each: impl FnMut(&Entry<'_>) -> bool,
) -> Result<Vec<Gap>, Stop> {
    let mut gaps = Vec::new();
    let mut stream = source.read(Start::Offset(from), false, Some(to - from)).await?;
    while let Some(event) = stream.next().await? {
        match event {
            Event::Records(piece) => {
                let wants_more = piece.each(part.standing.log_id, from, |entry| entry.offset < to && each(entry));
                if !wants_more || piece.range().1 >= to {
                    break;
                }
            }
            Event::Gap(gap) if gap.from < to => gaps.push(Gap { to: gap.to.min(to), ..gap }),
            Event::Gap(_) => break,
            // Beyond the range nothing matches for a while: what a filter passes over is not waited for.
            Event::Progress(at) if at >= to => break,
            Event::Progress(_) | Event::CaughtUp | Event::Parted(_) => {}
        }
    }
    Ok(gaps)
}

/// The offset of the record that is the n-th from the end of those that the filter lets through; where there are fewer,
/// the first that is there.
pub(super) async fn nth_last(source: &Source, part: &Part, filter: &Filter, n: u64) -> Result<u64, Stop> {
    let mut to = part.standing.end.offset;
    let mut left = n;
    let mut step = n.clamp(MIN_STEP, MAX_STEP);
    while to > part.lower && left > 0 {
        let from = to.saturating_sub(step).max(part.lower);
        let mut found = Vec::new();
        let gaps = range(source, part, from, to, |entry| {
            if filter.lets(entry) {
                found.push(entry.offset);
            }
            true
        })
        .await?;
        let place = usize::try_from(left).ok().and_then(|left| found.len().checked_sub(left));
        if let Some(offset) = place.and_then(|place| found.get(place)) {
            return Ok(*offset);
        }
        left -= found.len() as u64;
        if let Some(removed) = gaps.iter().find(|gap| gap.reason == GapReason::Retention) {
            return Ok(removed.to);
        }
        to = from;
        step = (step * 2).min(MAX_STEP);
    }
    Ok(to)
}

/// A piece of a log, newest line first.
#[derive(Debug, Default)]
pub(super) struct Turned {
    lines: Vec<u8>,
    /// The end of each line, and the place after its record.
    ends: Vec<(usize, Cursor)>,
    /// Gaps in it.
    pub(super) gaps: Vec<Gap>,
}

/// Goes through a log piece by piece, from its end.
pub(super) struct Backward<'a> {
    source: &'a Source,
    part: Part,
    to: u64,
    step: u64,
}

impl<'a> Backward<'a> {
    /// At the end.
    pub(super) fn new(source: &'a Source, part: Part) -> Self {
        Self { source, part, to: part.standing.end.offset, step: 1024 }
    }

    /// The next piece; nothing at the beginning. `line` adds a record's line, or nothing for one that is not shown.
    pub(super) async fn next(
        &mut self,
        mut line: impl FnMut(&Entry<'_>, &mut Vec<u8>),
    ) -> Result<Option<Turned>, Stop> {
        while self.to > self.part.lower {
            let from = self.to.saturating_sub(self.step).max(self.part.lower);
            let mut turned = Turned::default();
            let single = self.to - from == 1;
            let mut too_much = false;
            turned.gaps = range(self.source, &self.part, from, self.to, |entry| {
                let before = turned.lines.len();
                line(entry, &mut turned.lines);
                if turned.lines.len() > before {
                    turned.ends.push((turned.lines.len(), entry.cursor()));
                }
                too_much = turned.lines.len() > MAX_LINES && !single;
                !too_much
            })
            .await?;
            if too_much {
                self.step = ((self.to - from) / 2).max(1);
                continue;
            }
            let bottom = turned.gaps.iter().any(|gap| gap.reason == GapReason::Retention);
            self.to = if bottom { self.part.lower } else { from };
            self.step = (self.step * 2).min(MAX_STEP);
            return Ok(Some(turned));
        }
        Ok(None)
    }
}

impl Turned {
    /// Its lines, newest first.
    pub(super) fn lines(&self) -> impl Iterator<Item = (&[u8], Cursor)> {
        let start = |at: usize| at.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |end| end.0);
        (0..self.ends.len()).rev().filter_map(move |at| {
            let (end, cursor) = self.ends.get(at)?;
            Some((self.lines.get(start(at)..*end)?, *cursor))
        })
    }
}
