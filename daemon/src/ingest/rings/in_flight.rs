//! Appends that were taken of a ring and are not given back: the progress of each.
//!
//! ```text
//!  taken ──▶ written ──▶ durable        of what wants no more than `written`, the space goes there;
//!                └────────┴──▶ given back    of what wants `durable`, there
//! ```
//! Invariant: all go this way in the order of the ring, each step at the watermark that it waits for and none before.
//! Nothing that the journal had taken before it failed goes further ([`Moved::failed`]): those offsets may belong to
//! others by now.

use std::collections::VecDeque;
use std::time::Instant;

use clad_journal::{Accepted, Wants, Watermarks};
use clad_proto::AckLevel;
use clad_shm::Entry;

use crate::ops::metrics;

/// Appends that were taken together and wanted the same.
struct Run {
    /// One past the last of them.
    upto: u64,
    /// Records that the log took of them; `None` where all were refused.
    stored: Option<Stored>,
    /// Number of failures of the journal when they were taken.
    failures: u32,
    since: Instant,
    /// One of them asked for `durable`.
    wants_durable: bool,
    /// Appends and records that were taken and asked for `written`, and for `durable`.
    written: (u64, u64),
    durable: (u64, u64),
}

/// Records that the log took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// The first of their offsets, and one past the last.
    first: u64,
    pub(super) end: u64,
    /// The last sequence.
    pub(super) last: u64,
    records: u64,
}

impl Stored {
    pub(super) fn of(entry: &Entry, accepted: &Accepted) -> Self {
        let records = u64::from(entry.records);
        Self {
            first: accepted.first_offset,
            end: accepted.first_offset + u64::from(accepted.count),
            last: entry.sequence.saturating_add(records).saturating_sub(1),
            records,
        }
    }

    fn with(self, next: Option<Self>) -> Self {
        next.map_or(self, |next| Self {
            first: self.first.min(next.first),
            end: self.end.max(next.end),
            last: next.last,
            records: self.records + next.records,
        })
    }
}

/// Progress that a look at the watermarks has made: one past the last append each time, `None` where none was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) written: Option<u64>,
    pub(super) durable: Option<u64>,
    /// End of the space that may be given back.
    pub(super) given_back: Option<u64>,
    /// The last of that which the log took.
    pub(super) stored: Option<Stored>,
    /// One of them has the level that it asked for.
    pub(super) answered: bool,
    /// The journal has failed under the next of them.
    pub(super) failed: bool,
}

/// All of them, in the order of the ring: `row[..written]` are written, and so on.
#[derive(Default)]
pub(super) struct InFlight {
    row: VecDeque<Run>,
    written: usize,
    durable: usize,
    given_back: usize,
}

impl InFlight {
    pub(super) fn is_empty(&self) -> bool {
        self.row.is_empty()
    }

    /// Notes an append that was taken, or was refused for good (`stored` is `None`).
    pub(super) fn push(
        &mut self,
        entry: &Entry,
        level: AckLevel,
        stored: Option<Stored>,
        failures: u32,
        since: Instant,
    ) {
        let one = |wanted| if level == wanted && stored.is_some() { (1, u64::from(entry.records)) } else { (0, 0) };
        let (written, durable) = (one(AckLevel::Written), one(AckLevel::Durable));
        let (upto, wants_durable) = (entry.append + 1, level == AckLevel::Durable);
        match self.row.back_mut() {
            // Taken together, and wanted at the same level: one entry for all of them.
            Some(out) if (out.since, out.failures, out.wants_durable) == (since, failures, wants_durable) => {
                out.upto = upto;
                out.stored = out.stored.map_or(stored, |before| Some(before.with(stored)));
                out.written = (out.written.0 + written.0, out.written.1 + written.1);
                out.durable = (out.durable.0 + durable.0, out.durable.1 + durable.1);
            }
            _ => self.row.push_back(Run { upto, stored, failures, since, wants_durable, written, durable }),
        }
    }

    /// Moves them as far as the watermarks say. It waits for `durable` where the log has such a level and a client may
    /// look (`tracks_durable`).
    pub(super) fn advance(&mut self, watermarks: &Watermarks, tracks_durable: bool) -> Moved {
        let before = (self.written, self.durable, self.given_back);
        self.written = self.reached(self.written, watermarks, watermarks.written);
        self.durable = self.reached(self.durable, watermarks, watermarks.durable);
        while let Some(out) = self.row.get(self.given_back)
            && self.given_back < if out.wants_durable { self.durable } else { self.written }
        {
            self.given_back += 1;
        }
        let mut answered = false;
        for out in self.row.range(before.0..self.written) {
            answered |= count(metrics::Level::Written, out.written, out.since);
        }
        for out in self.row.range(before.1..self.durable) {
            answered |= count(metrics::Level::Durable, out.durable, out.since);
        }
        let upto = |from, to: usize| if from < to { self.row.get(to - 1).map(|out| out.upto) } else { None };
        let has_failed = |at: usize| self.row.get(at).is_some_and(|out| out.failures != watermarks.failures);
        let moved = Moved {
            written: upto(before.0, self.written),
            durable: upto(before.1, self.durable),
            given_back: upto(before.2, self.given_back),
            stored: self.row.range(before.2..self.given_back).rev().find_map(|out| out.stored),
            answered,
            failed: has_failed(self.written) || has_failed(self.durable),
        };
        self.forget(if tracks_durable { self.given_back.min(self.durable) } else { self.given_back });
        moved
    }

    /// Returns true if one of them asked for a level that it has not reached.
    pub(super) fn has_unanswered(&self) -> bool {
        let unwritten = self.row.range(self.written..).any(|out| out.written.0 > 0);
        unwritten || self.row.range(self.durable..).any(|out| out.durable.0 > 0)
    }

    /// Watermarks that move the next of them, if nobody fails: 0 for one that waits for none. Those that are given back
    /// are there until they are `durable`, or nobody waits for that.
    pub(super) fn wants(&self) -> Wants {
        let end = |at: usize| self.row.get(at).map_or(u64::MAX, |out| out.stored.map_or(0, |stored| stored.end));
        Wants { written: end(self.written), durable: end(self.durable) }
    }

    /// Number of those that have reached a level; `from` had reached it before.
    fn reached(&self, from: usize, watermarks: &Watermarks, mark: u64) -> usize {
        let has =
            |out: &&Run| out.failures == watermarks.failures && out.stored.is_none_or(|stored| stored.end <= mark);
        from + self.row.range(from..).take_while(has).count()
    }

    /// Releases the first, about which everything was announced.
    fn forget(&mut self, done: usize) {
        self.row.drain(..done);
        self.written -= done;
        self.durable = self.durable.saturating_sub(done);
        self.given_back -= done;
    }

    /// Releases all: what was not given back is taken again.
    pub(super) fn clear(&mut self) {
        *self = Self { row: std::mem::take(&mut self.row), ..Self::default() };
        self.row.clear();
    }

    /// Number of records that lie in the ring still, and whose offsets are not below this one. Where the offset divides
    /// a run that was taken together, the run is left out: no more is reported than is so.
    pub(super) fn records_from(&self, offset: u64) -> u64 {
        let there = self.row.range(self.given_back..).filter_map(|out| out.stored);
        there.filter(|stored| stored.first >= offset).map(|stored| stored.records).sum()
    }
}

/// Returns true if there are any.
fn count(level: metrics::Level, (appends, records): (u64, u64), since: Instant) -> bool {
    if appends > 0 {
        metrics::acked(level, appends, records, since.elapsed());
    }
    appends > 0
}
