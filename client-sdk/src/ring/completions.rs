//! Outcomes due to the tickets of appends that went into the ring in their caller's thread.
//!
//! A log call must be cheap, so an append leaves no more here than a small entry in a row by its number: no channel, no
//! allocation. A look at the completion page settles all entries that it covers; a ticket then fetches its own.
//!
//! Invariants:
//! - An entry is there until its ticket has fetched the outcome or was dropped. Its answer is taken off the completion
//!   page before a later append's can take its place (the ring handle looks well before).
//! - The row is as long as the ring at most (twice its slots); what is older and still has a ticket lies beside it.
//! - Threads come here in another order than to the ring: what comes late is settled by the next look all the same.
//! - A waker is stored for as long as its append waits for its outcome, or has one that was not fetched. Its drop runs
//!   foreign code, which may come here again: none is dropped here, under the lock.
//! - An outcome is of the log whose completion page reported it, however late its ticket fetches it.
//! - The work of a log call here does not grow with the tickets that are held: no call walks the answered ones.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::task::Waker;

use clad_proto::{AckLevel, LogId};
use clad_shm::Watermarks;

use crate::{AppendError, Receipt, waiters::Claim};

/// One append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Completion {
    /// It has no waiter, or it is over.
    #[default]
    None,
    Pending {
        count: u32,
        level: AckLevel,
        /// Somebody holds its ticket.
        held: bool,
    },
    /// As safe as was asked for; the place is not known where the answer went with its daemon.
    Reached { count: u32, level: AckLevel, place: Option<(u32, u64)> },
    /// Its error lies in `errors`.
    Failed,
}

impl Completion {
    /// The level that it waits for. All that look for what waits ask here: the tests count how often.
    fn pending_level(self) -> Option<AckLevel> {
        #[cfg(test)]
        ENTRIES_EXAMINED.set(ENTRIES_EXAMINED.get() + 1);
        match self {
            Self::Pending { level, .. } => Some(level),
            Self::None | Self::Reached { .. } | Self::Failed => None,
        }
    }
}

#[cfg(test)]
thread_local! {
    /// Number of entries that this thread has checked for a waiter.
    pub(super) static ENTRIES_EXAMINED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A log, and the epoch in which it was.
pub(super) type Log = (LogId, u32);

/// Outcome of an append that has its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    /// Epoch and offset, if they are known.
    pub(super) place: Option<(u32, u64)>,
    /// Records.
    pub(super) count: u32,
    pub(super) level: AckLevel,
    /// The log whose completion page reported it.
    pub(super) log: Log,
}

/// An append whose outcome is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) append: u64,
    pub(crate) count: u32,
    pub(crate) level: AckLevel,
}

/// An append that came through the queue.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) claim: Claim,
    pub(super) outcome: Result<Receipt, AppendError>,
    /// It is an error without a listener, and was noted as that.
    pub(super) is_noted: bool,
}

/// Result of a look: what it settled. Its counts and its error are noted under the lock that it was settled under.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// Records that have their level, and that will not.
    pub(super) acked: u64,
    pub(super) failed: u64,
    /// An error of an append without a listener.
    pub(super) undelivered: Option<AppendError>,
    /// The wakers to wake.
    pub(super) wakers: Vec<Waker>,
    pub(super) claims: Vec<Resolved>,
}

impl Settled {
    pub(super) const fn is_nothing(&self) -> bool {
        self.acked == 0 && self.failed == 0
    }

    /// An append that came through the queue has its outcome.
    pub(super) fn claim(&mut self, claim: Claim, count: u32, outcome: Result<Receipt, AppendError>) {
        *if outcome.is_ok() { &mut self.acked } else { &mut self.failed } += u64::from(count);
        let error = outcome.as_ref().err().filter(|_| claim.is_released()).cloned();
        let is_noted = error.is_some();
        self.undelivered = self.undelivered.take().or(error);
        self.claims.push(Resolved { claim, outcome, is_noted });
    }
}

/// The entries of a ring.
#[derive(Debug)]
pub(super) struct Completions {
    /// The number of the first in the row.
    base: u64,
    row: VecDeque<Completion>,
    /// The longest row.
    row_len_max: usize,
    /// Outcomes that came late, or were not fetched for long.
    overflow: BTreeMap<u64, Completion>,
    /// Those beside that wait: few, where of the others there may be as many as tickets.
    overflow_waiting: BTreeSet<u64>,
    errors: HashMap<u64, AppendError>,
    /// The log of the completion page that was read last. An outcome that another page reported before, and that was
    /// not fetched, lies in `elsewhere`: nothing, mostly.
    log: Log,
    elsewhere: HashMap<u64, Log>,
    wakers: HashMap<u64, Waker>,
    /// Number of waiting appends, by level.
    waiting: [usize; 3],
    /// All below were looked at when the watermark of the level came there.
    seen: [u64; 3],
    /// All below were looked at for refusals.
    looked: u64,
    /// None below waits, but for those beside.
    open: u64,
}

const LEVELS: [AckLevel; 3] = [AckLevel::Received, AckLevel::Written, AckLevel::Durable];

const fn index(level: AckLevel) -> usize {
    match level {
        AckLevel::Durable => 2,
        AckLevel::Written => 1,
        _ => 0,
    }
}

impl Completions {
    /// None, for a ring with so many slots.
    pub(super) fn new(slots: u32, log: Log) -> Self {
        Self {
            log,
            elsewhere: HashMap::new(),
            base: 0,
            row: VecDeque::new(),
            row_len_max: 2 * slots as usize,
            overflow: BTreeMap::new(),
            overflow_waiting: BTreeSet::new(),
            errors: HashMap::new(),
            wakers: HashMap::new(),
            waiting: [0; 3],
            seen: [0; 3],
            looked: 0,
            open: 0,
        }
    }

    /// Number of waiting appends.
    pub(super) fn len(&self) -> usize {
        self.waiting.iter().sum()
    }

    /// Stored entries.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.row.len() + self.overflow.len()
    }

    fn end(&self) -> u64 {
        self.base + self.row.len() as u64
    }

    /// An append waits for its level; its ticket is held.
    pub(super) fn insert(&mut self, asked: Asked) {
        let Asked { append, count, level } = asked;
        let completion = Completion::Pending { count, level, held: true };
        self.waiting[index(level)] += 1;
        if self.row.is_empty() {
            (self.base, self.open) = (append, append);
        }
        if append == self.end() {
            self.row.push_back(completion);
        } else if append < self.base {
            self.move_to_overflow(append, completion);
        } else {
            let gap = append.saturating_sub(self.end());
            if gap > self.row_len_max as u64 {
                self.shorten(0);
                (self.base, self.open) = (append, append);
            }
            while self.end() <= append {
                self.row.push_back(Completion::None);
            }
            self.row[(append - self.base) as usize] = completion;
        }
        // What others have passed is looked at again.
        self.seen[index(level)] = self.seen[index(level)].min(append);
        self.looked = self.looked.min(append);
        self.open = self.open.min(append.max(self.base));
        if self.row.len() > self.row_len_max {
            self.shorten(self.row_len_max / 2);
        }
    }

    /// Makes the row this short; what is still needed goes beside it.
    fn shorten(&mut self, len: usize) {
        while self.row.len() > len
            && let Some(completion) = self.row.pop_front()
        {
            if completion != Completion::None {
                self.move_to_overflow(self.base, completion);
            }
            self.base += 1;
        }
        self.open = self.open.max(self.base);
    }

    fn move_to_overflow(&mut self, append: u64, completion: Completion) {
        if completion.pending_level().is_some() {
            self.overflow_waiting.insert(append);
        }
        self.overflow.insert(append, completion);
    }

    fn get(&mut self, append: u64) -> Option<&mut Completion> {
        match append.checked_sub(self.base) {
            Some(at) => self.row.get_mut(at as usize),
            None => self.overflow.get_mut(&append),
        }
    }

    /// It is over.
    fn remove(&mut self, append: u64) {
        if !self.elsewhere.is_empty() {
            self.elsewhere.remove(&append);
        }
        if append < self.base {
            self.overflow.remove(&append);
        } else if let Some(completion) = self.get(append) {
            *completion = Completion::None;
            // Not the last one: the next append follows it.
            while self.row.len() > 1 && self.row.front() == Some(&Completion::None) {
                self.row.pop_front();
                self.base += 1;
            }
            self.open = self.open.max(self.base);
        }
    }

    /// Takes the outcome of an append, if it is there. And a waker that came behind it.
    pub(super) fn take(&mut self, append: u64) -> Option<(Result<Reached, AppendError>, Option<Waker>)> {
        let outcome = match *self.get(append)? {
            Completion::Reached { count, level, place } => {
                let log = self.elsewhere.get(&append).copied().unwrap_or(self.log);
                Ok(Reached { place, count, level, log })
            }
            Completion::Failed => Err(self.errors.remove(&append).unwrap_or(AppendError::Forgotten)),
            Completion::Pending { .. } | Completion::None => return None,
        };
        self.remove(append);
        Some((outcome, self.take_waker(append)))
    }

    /// Its ticket was dropped: returns an unreported error, and the waker that was set.
    pub(super) fn release_ticket(&mut self, append: u64) -> (Option<AppendError>, Option<Waker>) {
        let waker = self.take_waker(append);
        let error = match self.get(append) {
            Some(Completion::Pending { held, .. }) => {
                *held = false;
                None
            }
            Some(Completion::Reached { .. } | Completion::None | Completion::Failed) => {
                self.remove(append);
                self.errors.remove(&append)
            }
            None => None,
        };
        (error, waker)
    }

    /// Sets the waker for the outcome of the append; returns the one before.
    pub(super) fn set_waker(&mut self, append: u64, waker: &Waker) -> Option<Waker> {
        match self.wakers.get(&append) {
            Some(known) if known.will_wake(waker) => None,
            _ => self.wakers.insert(append, waker.clone()),
        }
    }

    fn take_waker(&mut self, append: u64) -> Option<Waker> {
        // Mostly there are none: a log call and its ticket look for none then.
        if self.wakers.is_empty() { None } else { self.wakers.remove(&append) }
    }

    /// The lowest append that waits.
    pub(super) fn oldest(&mut self) -> Option<u64> {
        if self.len() == 0 {
            return None;
        }
        while let Some(completion) = self.row.get((self.open - self.base) as usize)
            && completion.pending_level().is_none()
        {
            self.open += 1;
        }
        self.overflow_waiting.first().copied().or(Some(self.open).filter(|open| *open < self.end()))
    }

    /// True if a look at these watermarks would settle anything. Cheap; may be true for nothing.
    pub(super) fn has_news(&self, watermarks: &Watermarks, refused: u64) -> bool {
        let covered =
            |level: AckLevel| self.waiting[index(level)] > 0 && watermark(watermarks, level) > self.seen[index(level)];
        LEVELS.into_iter().any(covered) || (self.len() > 0 && self.looked < refused.min(watermarks.received))
    }

    /// Sets the log whose completion page reports what is settled from now on.
    pub(super) fn set_log(&mut self, log: Log) {
        if log.0 != self.log.0 {
            let row = (self.base..)
                .zip(&self.row)
                .chain(self.overflow.iter().map(|(append, completion)| (*append, completion)));
            for (append, _) in row.filter(|(_, completion)| matches!(completion, Completion::Reached { .. })) {
                self.elsewhere.entry(append).or_insert(self.log);
            }
        }
        self.log = log;
    }

    /// Settles what the watermarks cover, and what was refused. `answer` reads the completion page: the place of an
    /// append, or why it has none; `is_refused` says whether it was.
    pub(super) fn settle(
        &mut self,
        watermarks: &Watermarks,
        refused: u64,
        answer: impl Fn(u64) -> Result<Option<(u32, u64)>, AppendError>,
        is_refused: impl Fn(u64) -> bool,
        settled: &mut Settled,
    ) {
        // A refusal is final when it is there: no level is waited for. It is on the page before the watermark that
        // covers it.
        let refused = refused.min(watermarks.received);
        if self.looked < refused {
            let range = std::mem::replace(&mut self.looked, refused)..refused;
            self.settle_range(range, |_, append| is_refused(append), &answer, settled);
        }
        for level in LEVELS {
            let upto = watermark(watermarks, level);
            if self.waiting[index(level)] > 0 && self.seen[index(level)] < upto {
                let range = self.seen[index(level)]..upto;
                self.settle_range(range, |of, _| of == level, &answer, settled);
            }
            self.seen[index(level)] = self.seen[index(level)].max(upto);
        }
    }

    fn settle_range(
        &mut self,
        appends: Range<u64>,
        wanted: impl Fn(AckLevel, u64) -> bool,
        answer: impl Fn(u64) -> Result<Option<(u32, u64)>, AppendError>,
        settled: &mut Settled,
    ) {
        let overflow: Vec<u64> = self.overflow_waiting.range(appends.clone()).copied().collect();
        for append in overflow.into_iter().chain(appends.start.max(self.base)..appends.end.min(self.end())) {
            if self
                .get(append)
                .and_then(|completion| completion.pending_level())
                .is_some_and(|level| wanted(level, append))
            {
                self.complete(append, answer(append), settled);
            }
        }
    }

    fn complete(&mut self, append: u64, outcome: Result<Option<(u32, u64)>, AppendError>, settled: &mut Settled) {
        let Some(&mut Completion::Pending { count, level, held }) = self.get(append) else { return };
        self.waiting[index(level)] -= 1;
        if append < self.base {
            self.overflow_waiting.remove(&append);
        }
        let after = match outcome {
            Ok(place) => {
                settled.acked += u64::from(count);
                Completion::Reached { count, level, place }
            }
            Err(error) => {
                settled.failed += u64::from(count);
                match held {
                    true => drop(self.errors.insert(append, error)),
                    false => drop(settled.undelivered.get_or_insert(error)),
                }
                Completion::Failed
            }
        };
        if !held {
            return self.remove(append);
        }
        if let Some(completion) = self.get(append) {
            *completion = after;
        }
        settled.wakers.extend(self.take_waker(append));
    }

    /// All that wait end with this.
    pub(super) fn end_all(&mut self, error: &AppendError, settled: &mut Settled) {
        let all: Vec<u64> = self.overflow_waiting.iter().copied().chain(self.base..self.end()).collect();
        for append in all {
            self.complete(append, Err(error.clone()), settled);
        }
    }

    /// The completion page is a new one, which says nothing of what came before.
    pub(super) fn completion_page_replaced(&mut self) {
        (self.seen, self.looked) = ([0; 3], 0);
    }
}

/// The watermark of a level.
pub(super) fn watermark(watermarks: &Watermarks, level: AckLevel) -> u64 {
    match level {
        AckLevel::Durable => watermarks.durable,
        AckLevel::Written => watermarks.written,
        _ => watermarks.received,
    }
}
