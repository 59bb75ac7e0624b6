//! Invariants.
//!
//! - Every append and every flush ends, once.
//! - A receipt of a level is given for what the log has at that level then, unless the log has lost it and the loss is
//!   unreported. It is still there in the end, unless something happened that the level does not cover.
//! - An append that ends with "not written" is in no log, then or later. Nothing is in the logs twice, or in part, or
//!   out of order.
//! - A flush that ends well: every append before it has ended, and every error was reported. Every append with a
//!   receipt is at the flush's level, or had it in a log that is not there any more, or its loss was reported.
//! - Nothing ends with an error that has no reason in what happened.

use super::super::model::{Answer, FULL, Limits, Log, Stored};
use super::World;
use crate::{AppendError, Receipt, session::Known};
use clad_proto::{AckLevel, ErrorCode, LogId};
use std::collections::{HashMap, HashSet};

type Outcomes = HashMap<u64, Result<Receipt, AppendError>>;

/// Events that excuse something, and the reports of them.
pub(super) struct Book {
    /// Where which log was cut, and which level survived that; nothing: none.
    cuts: Vec<(LogId, Option<AckLevel>, u64)>,
    pub(super) forgotten: bool,
    pub(super) replaced: bool,
    pub(super) closed: bool,
    /// Nothing went forward for longer than is waited.
    pub(super) waited: bool,
    least: Limits,
    /// Appends that were dropped for lack of room.
    pub(super) dropped: HashSet<u64>,
    /// Appends whose error is unreported.
    pub(super) unreported: HashSet<u64>,
    /// Appends with a receipt...
    /// ...that are lost, and the client can know it by what it has heard.
    known_gone: HashSet<u64>,
    /// ...or without one yet, that were lost out of the midst of the log: a FLUSH of the same connection reports it.
    in_gaps: HashSet<u64>,
    /// ...the same, and that connection ended before: nothing reports it.
    excused: HashSet<u64>,
    /// ...that are in a log that another was seen in the place of.
    left: HashSet<u64>,
    /// ...that are in this log, or were, over a crash of a daemon that has forgotten the client: they may be reported
    /// as lost.
    unsure: HashSet<u64>,
    /// ...that a flush has brought to this level.
    raised: HashMap<u64, AckLevel>,
    /// ...that were reported to be lost, or out of reach.
    reported: HashSet<u64>,
}

impl Default for Book {
    fn default() -> Self {
        Self {
            cuts: Vec::new(),
            forgotten: false,
            replaced: false,
            closed: false,
            waited: false,
            least: FULL,
            dropped: HashSet::new(),
            unreported: HashSet::new(),
            known_gone: HashSet::new(),
            in_gaps: HashSet::new(),
            excused: HashSet::new(),
            left: HashSet::new(),
            unsure: HashSet::new(),
            raised: HashMap::new(),
            reported: HashSet::new(),
        }
    }
}

/// Those with a receipt and a place that this log gave.
fn receipts<'a>(log: &'a Log, outcomes: &'a Outcomes) -> impl Iterator<Item = (u64, &'a Receipt)> {
    let of_it = |(append, outcome): (&'a u64, &'a Result<Receipt, AppendError>)| {
        let receipt = outcome.as_ref().ok()?;
        (receipt.log_id == log.id && receipt.first_offset.is_some()).then_some((*append, receipt))
    };
    outcomes.iter().filter_map(of_it)
}

fn lost<'a>(log: &'a Log, outcomes: &'a Outcomes) -> impl Iterator<Item = u64> + 'a {
    let is_lost = |(append, receipt): &(u64, &Receipt)| !is_there(log, *append, receipt);
    receipts(log, outcomes).filter(is_lost).map(|(append, _)| append)
}

fn is_there(log: &Log, append: u64, receipt: &Receipt) -> bool {
    receipt.log_id == log.id && receipt.first_offset.is_some_and(|first| log.has(append, first, receipt.count))
}

impl Book {
    pub(super) fn cut(&mut self, log: &Log, survives: Option<AckLevel>) {
        self.cuts.push((log.id, survives, log.end()));
    }

    pub(super) fn note_gap(&mut self, log: &Log, appends: Vec<u64>) {
        self.in_gaps.extend(appends);
        self.cuts.push((log.id, Some(AckLevel::Durable), 0));
    }

    /// The connection ends.
    pub(super) fn note_unreported(&mut self, log: &Log, outcomes: &Outcomes) {
        let in_gaps = &self.in_gaps;
        self.excused.extend(lost(log, outcomes).filter(|append| in_gaps.contains(append)));
    }

    pub(super) fn limited_to(&mut self, limits: Limits) {
        let least = &mut self.least;
        *least = Limits {
            window: least.window.min(limits.window),
            max_append: least.max_append.min(limits.max_append),
            max_record: least.max_record.min(limits.max_record),
            highest: least.highest.min(limits.highest),
        };
    }

    /// This log is what the session sees next.
    pub(super) fn left_for(&mut self, log: &Log, known: &Option<Known>, outcomes: &Outcomes) {
        let Some(known) = known else { return };
        let placed = |receipt: &Receipt| receipt.first_offset.is_some();
        let with_place = outcomes.iter().filter(|(_, end)| end.as_ref().is_ok_and(placed)).map(|(append, _)| *append);
        if known.log_id != log.id {
            self.left.extend(with_place);
        } else if known.epoch < log.epoch && !log.knows_us() {
            self.unsure.extend(with_place);
        }
    }
}

impl World {
    /// Notes what the client can know from here on: it has heard of the epoch that the log is in.
    pub(super) fn note_news(&mut self) {
        let (log, book) = (&self.daemon.log, &mut self.book);
        let knows_epoch = |link: &crate::session::Link| link.epoch == log.epoch && link.epoch_first.is_some();
        if self.daemon.connected && self.session.link.as_ref().is_some_and(knows_epoch) {
            let (in_gaps, left) = (&book.in_gaps, &book.left);
            let gone = lost(log, &self.outcomes).filter(|append| !in_gaps.contains(append) && !left.contains(append));
            book.known_gone.extend(gone);
        }
    }

    /// An append ends: what is true of it now.
    pub(super) fn check_outcome(&self, number: u64, result: &Result<Receipt, AppendError>) {
        let log = &self.daemon.log;
        match result {
            Ok(receipt) => {
                let knows =
                    self.daemon.connected && self.session.link.as_ref().is_some_and(|link| link.epoch == log.epoch);
                let Some(first) = receipt.first_offset.filter(|_| knows) else { return };
                assert_eq!(receipt.log_id, log.id, "a receipt of another log");
                assert!(log.has(number, first, receipt.count), "append {number} is not there: {receipt:?}");
                let end = first + u64::from(receipt.count);
                assert!(end <= log.reached(receipt.level), "append {number} is not so far: {receipt:?}");
            }
            Err(error) if !error.maybe_written() => {
                let is_it = |log: &Log| log.records.iter().any(|stored| stored.append == Some(number));
                assert!(!self.daemon.logs().any(is_it), "append {number} is written: {error}");
            }
            Err(_) => {}
        }
    }

    /// The session ends a flush well, or but for a loss, whatever is reported to its waiter: an append that has a
    /// receipt and is at that level has it, also one that came later.
    pub(super) fn raise(&mut self, number: usize) {
        let log = &self.daemon.log;
        let level = self.flushes[number].level.unwrap_or(self.daemon.limits.highest);
        for (append, receipt) in receipts(log, &self.outcomes) {
            let end = receipt.first_offset.map(|first| first + u64::from(receipt.count));
            if is_there(log, append, receipt) && end.is_some_and(|end| end <= log.reached(level)) {
                let raised = self.book.raised.entry(append).or_insert(level);
                *raised = level.max(*raised);
            }
        }
    }

    /// Something may be lost now. An answer to a flush that is on its way says what was so when it was given.
    pub(super) fn raise_on_the_way(&mut self) {
        for answer in &self.daemon.outbound {
            let Answer::Watermark(watermark) = answer else { continue };
            let below = (0..).zip(&self.daemon.log.records).take_while(|(at, _)| *at < watermark.offset);
            for append in below.filter_map(|(_, stored)| stored.append).filter(|_| watermark.request_id != 0) {
                let raised = self.book.raised.entry(append).or_insert(watermark.level);
                *raised = watermark.level.max(*raised);
            }
        }
    }

    /// A flush that ends well.
    pub(super) fn check_flush(&self, number: usize) {
        let (before, log) = (self.flushes[number].before, &self.daemon.log);
        let level = self.flushes[number].level.unwrap_or(self.daemon.limits.highest);
        let reached = log.reached(level);
        for append in 0..before {
            let Some(outcome) = self.outcomes.get(&append) else {
                panic!("flush {number} ended before append {append}")
            };
            let Ok(receipt) = outcome else {
                assert!(!self.book.unreported.contains(&append), "flush {number}: nothing reported {append}");
                continue;
            };
            let Some(first) = receipt.first_offset else {
                self.check_flushed_unanswered(number, append, reached);
                continue;
            };
            let end = first + u64::from(receipt.count);
            if is_there(log, append, receipt) {
                assert!(end <= reached, "flush {number} to {level:?} ended with {receipt:?} of {append} behind");
            } else if !self.book.reported.contains(&append) {
                let raised = self.book.raised.get(&append).copied().unwrap_or(receipt.level);
                let excused = raised.max(receipt.level) >= level || self.book.excused.contains(&append);
                assert!(
                    excused && !self.book.known_gone.contains(&append),
                    "flush {number} to {level:?} said nothing of {append}, which is lost: {receipt:?}"
                );
            }
        }
    }

    /// Appends sent with `none` count as far as this connection brought them.
    fn check_flushed_unanswered(&self, number: usize, append: u64, reached: u64) {
        let here = |stored: &Stored| {
            self.daemon.connected && stored.append == Some(append) && stored.connection == self.daemon.connection
        };
        let behind = (0..).zip(&self.daemon.log.records).find(|(at, stored)| *at >= reached && here(stored));
        assert!(behind.is_none(), "flush {number} ended with {behind:?} behind");
    }

    /// A flush has reported this, which it ended with itself, or which was stored for it.
    pub(super) fn check_reported(&mut self, error: &AppendError, of_its_own: Option<&AppendError>) {
        if of_its_own.is_none() {
            self.book.unreported.clear();
        }
        let of_a_loss = match error {
            AppendError::Lost => true,
            AppendError::Refused { error, .. } => error.code == ErrorCode::JournalFailed && !error.retryable,
            _ => false,
        };
        if of_a_loss {
            let book = &mut self.book;
            book.reported.extend(book.known_gone.iter().chain(&book.in_gaps).chain(&book.left).chain(&book.unsure));
        }
    }

    pub(super) fn check(&self) {
        assert_eq!(self.outcomes.len(), self.submitted.len(), "every append has ended");
        self.check_logs();
        for (number, outcome) in &self.outcomes {
            let is_it = |stored: &Stored| stored.append == Some(*number);
            match outcome {
                Ok(receipt) => self.check_receipt(*number, receipt),
                Err(error) => {
                    let places = self.daemon.logs().flat_map(|log| &log.records).filter(|stored| is_it(stored)).count();
                    assert!(places == 0 || error.maybe_written(), "append {number} is written: {error}");
                    self.check_reason(*number, error);
                }
            }
        }
        for (number, flush) in self.flushes.iter().enumerate().filter(|(_, flush)| !flush.dropped) {
            match flush.result.as_ref().unwrap_or_else(|| panic!("flush {number} has not ended")) {
                Ok(()) => {}
                Err(AppendError::Lost) => {
                    let lost = self.book.replaced || self.book.forgotten || !self.book.cuts.is_empty();
                    assert!(lost, "nothing was lost");
                }
                Err(error) => assert!(self.has_reason(error), "flush {number} ended for no reason: {error}"),
            }
        }
    }

    /// Whole, once and in order; and in one log.
    fn check_logs(&self) {
        let mut in_logs = HashSet::new();
        for log in self.daemon.logs() {
            let ours: Vec<(u64, u64)> =
                (0..).zip(&log.records).filter_map(|(at, stored)| Some((stored.append?, at))).collect();
            assert!(ours.windows(2).all(|two| two[0].0 <= two[1].0), "in order: {ours:?}");
            for of_one in ours.chunk_by(|one, next| one.0 == next.0) {
                let (append, first) = of_one[0];
                assert!(in_logs.insert(append), "append {append} is there twice");
                assert_eq!(of_one.len(), self.submitted[append as usize].count as usize, "whole or not at all");
                assert!(log.has(append, first, of_one.len() as u32), "in one piece");
            }
        }
    }

    fn check_receipt(&self, number: u64, receipt: &Receipt) {
        let submitted = &self.submitted[number as usize];
        assert_eq!(receipt.count, submitted.count);
        match submitted.level {
            Some(level) => assert_eq!(receipt.level, level),
            None => assert!(receipt.level >= self.book.least.highest),
        }
        let Some(first) = receipt.first_offset else { return assert_eq!(receipt.level, AckLevel::None) };
        let end = first + u64::from(receipt.count);
        // A cut that the level does not cover may have taken it.
        let uncovered = self.book.cuts.iter().any(|(log, survives, at)| {
            receipt.log_id == *log && survives.is_none_or(|survives| receipt.level < survives) && end > *at
        });
        let there = self.daemon.logs().any(|log| is_there(log, number, receipt));
        assert!(uncovered || there, "append {number} is not where the receipt says: {receipt:?}");
    }

    fn check_reason(&self, number: u64, error: &AppendError) {
        let (submitted, least) = (&self.submitted[number as usize], &self.book.least);
        let right = match error {
            AppendError::TooLarge { .. } => submitted.len > least.max_append,
            AppendError::Dropped { .. } => self.book.dropped.contains(&number),
            AppendError::Refused { error, .. } => match error.code {
                ErrorCode::AppendTooLarge => self.poison.contains(&number) || submitted.len > least.max_append,
                ErrorCode::RecordTooLarge => submitted.len > least.max_record,
                ErrorCode::LevelUnreachable => submitted.level > Some(least.highest),
                _ => self.has_reason(&AppendError::Refused { error: error.clone(), maybe_written: false }),
            },
            _ => self.has_reason(error),
        };
        assert!(right, "append {number} ended for no reason of its own: {error}");
    }

    fn has_reason(&self, error: &AppendError) -> bool {
        let book = &self.book;
        match error {
            AppendError::DeliveryTimeout { .. } => book.waited,
            AppendError::Dropped { .. } => !book.dropped.is_empty(),
            AppendError::Closed { .. } => book.closed,
            AppendError::LogChanged { .. } => book.replaced,
            // A cut that took all we had may look like it.
            AppendError::Forgotten => book.forgotten || !book.cuts.is_empty(),
            AppendError::TooLarge { .. } => book.least.max_append < FULL.max_append,
            AppendError::Refused { error, .. } => match error.code {
                ErrorCode::BadRecord | ErrorCode::AppendTooLarge => true,
                ErrorCode::RecordTooLarge => book.least.max_record < FULL.max_record,
                ErrorCode::LevelUnreachable => book.least.highest < FULL.highest,
                // Where fewer are remembered, or some were lost.
                ErrorCode::SequenceTooOld => book.least.window < FULL.window,
                ErrorCode::SequenceOverlap => self.fates.losses,
                ErrorCode::JournalFailed if !error.retryable => !book.cuts.is_empty(),
                _ => error.retryable && book.waited,
            },
            _ => false,
        }
    }
}
