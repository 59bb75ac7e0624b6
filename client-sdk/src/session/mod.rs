//! The session: what a producer has handed over and what it knows of it, over connections that come and go.
//!
//! A plain state machine. Its inputs are the events (submits, greetings, answers, the end of a connection, the time).
//! Its outputs are what to send ([`Session::next_out`]) and the reports to the waiters ([`Session::outcomes`]). It does
//! no I/O.
//!
//! # The life of an append
//! ```text
//! queued ──sent──▶ sent ──ACCEPTED──▶ accepted ──watermark covers it──▶ done (receipt)
//!    ▲              │                    │
//!    └─ REFUSED for now, connection lost, offset given up by a new epoch ─┘        REFUSED for good ──▶ done (error)
//! ```
//! Its place in the order is fixed when it comes in, its sequence when it is first sent; neither changes, nor do its
//! bytes. Whatever is sent again is sent under the same sequence, and the daemon answers with the offset that it has
//! already, or stores it now: once, either way. Appends that were never sent can be dropped for newer ones (`drop`):
//! those behind them move up, and no gap is left.
//!
//! # Gaps, and the bearer of the gap mark
//! The daemon stores a producer's records in the order of their sequences and expects the next one. An append that ends
//! with an error for good leaves a gap behind which the daemon takes nothing, unless an append says that it jumps (the
//! gap mark). The mark is dangerous: an append that jumps over one that is still to be stored makes that one unstorable
//! for ever. Hence:
//!
//! 1. *Only the oldest append without an outcome carries the mark*, and only when its sequence is beyond what the
//!    daemon expects. Everything before it has its outcome, so nothing is overtaken.
//! 2. *After a refusal nothing is sent before everything in flight is answered.* An append sent behind a refused one is
//!    refused too (`sequence_gap`): it comes back and goes out again in order. So an append is never in flight twice on
//!    one connection, and an answer always belongs to one sending. The daemon's expected sequence is known again: it is
//!    in the refusal, or it is what it was before the refused append was sent.
//!
//! The obvious other way, to mark whatever follows a refusal at once, loses the race against a refusal for now of an
//! append in between.
//!
//! An append of level `none` is not answered, not even with a refusal, and everything behind one that was dropped would
//! be dropped in silence too. So what follows it carries the mark where rule 1 allows; where not, it goes without, and
//! a `sequence_gap` that comes of it is answered as any other.
//!
//! # One that ends the connection
//! A daemon, or a part between, may end a connection for the sake of one append and not say of which. If only one is in
//! flight it is that one, and it alone ends with that error. Else all that were in flight are sent again one at a time.
//! An append of level `none` may be it, too, and is not sent again: while one was sent and nothing behind it accepted,
//! no other is blamed.
//!
//! # Coming back
//! WELCOME says the last sequence that is stored. Appends behind it are sent again from the oldest on. Those before it
//! are sent too, unless a watermark of the same epoch covers them already: the daemon then answers with the offset it
//! has.
//!
//! A place (epoch, offset) that was reported before is still good in a later epoch only if the history was not cut
//! below it. A watermark says where *its* epoch began, so that can be known for the epoch that follows directly, on one
//! connection. A client that missed an epoch cannot know: an offset may have been abandoned by the epoch missed and
//! given again before the one seen. So after a reconnect into another epoch, and after a step of more than one,
//! everything without an outcome is sent again. See `resume` for a log that changed and a producer that was forgotten.
//!
//! # May it be written
//! "Maybe written" is said of an append that was in flight when a connection ended, or was accepted and then not
//! confirmed, or refused with that word. Once said it stays. Any other append is certainly not written.
//!
//! # Bounds
//! From the oldest append without an outcome on, at most `window` appends are sent, those of level `none` included. The
//! daemon remembers that many, so whatever is sent again is still known to it.

mod answers;
mod drop;
mod entry;
mod expiry;
mod flush;
mod flush_wait;
mod resume;
mod send;
#[cfg(test)]
mod tests;

pub(crate) use entry::Append;

use crate::{AppendError, Receipt, backoff::Backoff};
use bytes::Bytes;
use clad_proto::{AckLevel, LogId, frame::AppendHead};
use entry::{Entry, Stage};
use flush_wait::FlushWait;
use std::{collections::VecDeque, time::Duration};
use tokio::time::Instant;

/// The next message to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Out {
    Append { head: AppendHead, payload: Bytes, again: bool },
    Flush { id: u32, level: AckLevel },
}

/// A report for a waiter. `W` waits for an append, `F` for a flush.
#[derive(Debug)]
pub(crate) enum Outcome<W, F> {
    Append { waiter: W, count: u32, silent: bool, result: Result<Receipt, AppendError> },
    Flush { waiter: F, result: Result<(), AppendError> },
}

/// A peer that breaks the protocol; the connection cannot continue.
pub(crate) type Broken = &'static str;

/// State of the current connection.
#[derive(Debug)]
struct Link {
    epoch: u32,
    /// Where the epoch began; nothing when it is known by an ACCEPTED alone.
    epoch_first: Option<u64>,
    highest: AckLevel,
    window: usize,
    max_append_bytes: u32,
    /// The sequence that the daemon expects once it has seen everything that was sent.
    expected: u64,
    /// The sequence after the last append of level `none` that was sent, until the daemon has accepted one behind it:
    /// `expected` is only hoped for.
    unsure_below: Option<u64>,
    /// Appends that were sent and not answered.
    in_flight: usize,
    /// One was refused: nothing is sent until `in_flight` is 0.
    hold: bool,
    /// Ends of `received`, `written`, `durable` in this epoch.
    watermarks: [u64; 3],
}

/// State of the log, over connections.
#[derive(Debug, Clone, Copy)]
struct Known {
    log_id: LogId,
    epoch: u32,
    highest: AckLevel,
    /// Epoch and offset of the first record of ours that was accepted.
    first_place: Option<(u32, u64)>,
    /// The sequence and the offset after the last record that has a receipt and is not known to be gone.
    receipts_end: Option<(u64, u64)>,
    /// The offset after the last record that was accepted.
    places_end: u64,
    /// The sequence after the last that was sent.
    sent_end: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Session<W, F> {
    max_in_flight: usize,
    delivery_timeout: Duration,
    /// Oldest first, in the order of their indices; the first one is never done.
    entries: VecDeque<Entry<W>>,
    /// Records handed over so far.
    next_order: u64,
    /// The index of the next record that is handed over: a sequence is `base` and this, less `skipped`.
    next_index: u64,
    /// Records dropped from the front of those that were never sent.
    skipped: u64,
    base: u64,
    /// No entry before this is queued.
    cursor: usize,
    /// No entry from here on was sent on this connection.
    frontier: usize,
    link: Option<Link>,
    known: Option<Known>,
    flushes: VecDeque<FlushWait<F>>,
    flush_id: u32,
    /// The lowest level at which something ended well since the last flush.
    unflushed: Option<AckLevel>,
    /// Number of appends that ended well.
    resolved: u64,
    backoff: Backoff,
    not_before: Option<Instant>,
    /// Since when nothing goes forward, and why.
    trouble: Option<(Instant, String)>,
    /// Appends before this index are sent one at a time: one of them has ended a connection.
    single_in_flight_below: Option<u64>,
    /// Records with a receipt are gone after a crash; the next flush says so.
    lost: bool,
    /// The lowest level at which something ended well, and no flush has covered it, in a log that another has taken the
    /// place of, or in an epoch before this one of a log that has forgotten us.
    left_behind: Option<AckLevel>,
    pub(crate) outcomes: Vec<Outcome<W, F>>,
}

impl<W, F> Session<W, F> {
    pub(crate) fn new(max_in_flight: u32, delivery_timeout: Duration, backoff: Backoff) -> Self {
        Self {
            max_in_flight: max_in_flight.max(1) as usize,
            delivery_timeout,
            entries: VecDeque::new(),
            next_order: 0,
            next_index: 0,
            skipped: 0,
            base: 0,
            cursor: 0,
            frontier: 0,
            link: None,
            known: None,
            flushes: VecDeque::new(),
            flush_id: 0,
            unflushed: None,
            resolved: 0,
            backoff,
            not_before: None,
            trouble: None,
            single_in_flight_below: None,
            lost: false,
            left_behind: None,
            outcomes: Vec::new(),
        }
    }

    /// Takes an append in; its place in the order is fixed.
    pub(crate) fn submit(&mut self, append: Append, waiter: W) {
        let (order, index) = (self.next_order, self.next_index);
        self.next_order += u64::from(append.count);
        self.next_index += u64::from(append.count);
        self.entries.push_back(Entry::new(order, index, append, waiter));
    }

    /// True when nothing waits for anything.
    pub(crate) fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.flushes.is_empty()
    }

    /// True when nothing waits, and no crash of the daemon loses what ended well: that is all `written`.
    pub(crate) fn is_safe_in_the_log(&self) -> bool {
        let is_written = self.unflushed.is_none_or(|lowest| lowest >= AckLevel::Written);
        self.is_idle() && is_written && !self.lost && self.left_behind.is_none()
    }

    /// Forgets what was sent: the next connection says what the log has, also by another way.
    pub(crate) fn restart(&mut self) {
        debug_assert!(self.is_idle(), "what waits would be lost");
        let max_in_flight = u32::try_from(self.max_in_flight).unwrap_or(u32::MAX);
        let outcomes = std::mem::take(&mut self.outcomes);
        *self = Self { outcomes, ..Self::new(max_in_flight, self.delivery_timeout, self.backoff.clone()) };
    }

    /// Appends without an outcome, those between them that have one included.
    pub(crate) fn pending(&self) -> usize {
        self.entries.len()
    }

    /// True if an answer to something that was sent is still to come.
    pub(crate) fn awaits_answers(&self) -> bool {
        self.link.is_some() && (self.frontier > 0 || self.flushes.iter().any(FlushWait::is_sent))
    }

    const fn seq(&self, index: u64) -> u64 {
        self.base.wrapping_add(index)
    }

    /// The entry of a sequence that has no outcome yet.
    fn find(&self, seq: u64) -> Option<usize> {
        let index = seq.wrapping_sub(self.base);
        let at = self.entries.partition_point(|entry| entry.index < index);
        let entry = self.entries.get(at)?;
        (entry.index == index && entry.stage != Stage::Done).then_some(at)
    }

    fn requeue(&mut self, at: usize, lost: bool) {
        if let Some(entry) = self.entries.get_mut(at) {
            entry.stage = Stage::Queued;
            entry.lost |= lost;
            self.cursor = self.cursor.min(at);
        }
    }

    fn finish(&mut self, at: usize, result: Result<Receipt, AppendError>) {
        let Some(entry) = self.entries.get_mut(at) else { return };
        let silent = entry.append.level == Some(AckLevel::None);
        let count = entry.append.count;
        let lost = entry.maybe_written();
        if entry.is_unsent() {
            entry.index -= self.skipped; // indices ascend, also over what was never sent
        }
        if let Some(waiter) = entry.finish() {
            let result = result.map_err(|error| error.with_maybe_written(lost));
            self.outcomes.push(Outcome::Append { waiter, count, silent, result });
        }
    }

    /// Gives all that waits, and every outcome that was not taken out: nobody is left to end it.
    pub(crate) fn abandon(&mut self) -> impl Sized + use<W, F> {
        (self.cursor, self.frontier) = (0, 0);
        (std::mem::take(&mut self.entries), std::mem::take(&mut self.flushes), std::mem::take(&mut self.outcomes))
    }

    /// Releases what has its outcome at the front. Indices into `entries` are stale after this.
    fn trim(&mut self) {
        while self.entries.front().is_some_and(|entry| entry.stage == Stage::Done) {
            self.entries.pop_front();
            self.cursor = self.cursor.saturating_sub(1);
            self.frontier = self.frontier.saturating_sub(1);
        }
        if self.entries.is_empty() && self.link.is_some() {
            self.trouble = None;
        }
    }
}
