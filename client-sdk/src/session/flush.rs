//! Flushes: everything that was submitted before has reached a level.
//!
//! A flush waits until every append before it has its outcome. Then, unless all of those ended at its level or higher
//! anyway, it asks the daemon, and the watermark that answers must cover the last known place. Asking covers what was
//! sent at level `none` on this connection; what was sent so on an earlier one was promised nothing.

use super::{
    Out, Outcome, Session,
    flush_wait::{Asked, FlushWait},
};
use crate::AppendError;
use clad_proto::{AckLevel, ErrorInfo, frame::Watermark};
use tokio::time::Instant;

impl<W, F> Session<W, F> {
    /// Takes a flush in.
    pub(crate) fn flush(&mut self, level: Option<AckLevel>, waiter: F, now: Instant) {
        self.flushes.push_back(FlushWait {
            upto: self.next_order,
            level,
            since: now,
            waiter,
            sent: None,
            not_before: None,
        });
    }

    /// True if a flush waits.
    pub(crate) fn has_flushes(&self) -> bool {
        !self.flushes.is_empty()
    }

    /// Releases the flushes without a waiter; not those that the daemon has, for their answer may be reported once.
    /// Returns how many are left.
    pub(crate) fn prune_flushes(&mut self, is_abandoned: impl Fn(&F) -> bool) -> usize {
        self.flushes.retain(|flush| flush.is_sent() || !is_abandoned(&flush.waiter));
        self.flushes.len()
    }

    /// Ends the flushes that need no asking, and gives the next one that does.
    pub(super) fn next_flush(&mut self, now: Instant) -> Option<Out> {
        let mut at = 0;
        while let Some(flush) = self.flushes.get(at) {
            if self.entries.front().is_some_and(|entry| entry.order < flush.upto) {
                return None; // nor is any later one ready
            }
            let highest = self.known.map(|known| known.highest);
            let level = flush.level.or(highest);
            if let Some(lowest) = self.left_behind
                && level? > lowest
            {
                self.left_behind = None;
                self.flush_ends(at, Err(AppendError::Lost));
                continue;
            }
            if self.unflushed.is_none_or(|lowest| level.is_some_and(|level| level <= lowest)) {
                self.flush_ends(at, Ok(()));
                continue;
            }
            let (Some(level), Some(_)) = (level, &self.link) else { return None };
            if level == AckLevel::Posted || highest.is_some_and(|highest| level > highest) {
                self.flush_ends(at, Err(AppendError::unreachable_level(level).with_maybe_written(true)));
                continue;
            }
            if flush.is_sent() || flush.not_before.is_some_and(|time| time > now) {
                at += 1;
                continue;
            }
            self.flush_id = self.flush_id.checked_add(1).unwrap_or(1);
            let (id, resolved) = (self.flush_id, self.resolved);
            if let Some(flush) = self.flushes.get_mut(at) {
                flush.sent = Some(Asked { id, level, resolved });
            }
            return Some(Out::Flush { id, level });
        }
        None
    }

    fn asked(&self, id: u32) -> Option<(usize, Asked)> {
        let is_it = |flush: &FlushWait<F>| flush.sent.filter(|asked| asked.id == id);
        self.flushes.iter().enumerate().find_map(|(at, flush)| is_it(flush).map(|asked| (at, asked)))
    }

    pub(super) fn flush_answered(&mut self, watermark: &Watermark, now: Instant) {
        let Some((at, asked)) = self.asked(watermark.request_id) else { return };
        let (Some(link), Some(known)) = (&self.link, &self.known) else { return };
        if watermark.epoch != link.epoch || watermark.level < asked.level || watermark.offset < known.places_end {
            return self.ask_again(at, now);
        }
        if self.resolved == asked.resolved {
            self.unflushed = self.unflushed.max(Some(asked.level));
        }
        self.flush_ends(at, Ok(()));
    }

    /// The daemon refuses a flush.
    pub(crate) fn flush_refused(&mut self, id: u32, error: ErrorInfo, now: Instant) {
        let Some((at, _)) = self.asked(id) else { return };
        let overdue = self.flushes.get(at).is_some_and(|flush| flush.since + self.delivery_timeout <= now);
        if error.retryable && !overdue {
            self.ask_again(at, now);
        } else {
            self.flush_ends(at, Err(AppendError::Refused { error: Box::new(error), maybe_written: true }));
        }
    }

    fn ask_again(&mut self, at: usize, now: Instant) {
        let wait = self.backoff.next();
        if let Some(flush) = self.flushes.get_mut(at) {
            flush.unsend();
            flush.not_before = Some(now + wait);
        }
    }

    pub(super) fn flush_ends(&mut self, at: usize, result: Result<(), AppendError>) {
        let Some(flush) = self.flushes.remove(at) else { return };
        // A flush whose end is an abandonment is not notified of a loss: the next one is.
        let result = match result {
            Ok(()) if std::mem::take(&mut self.lost) => Err(AppendError::Lost),
            result => result,
        };
        self.outcomes.push(Outcome::Flush { waiter: flush.waiter, result });
    }

    pub(super) fn flush_timer(&self) -> Option<Instant> {
        self.flushes.iter().filter(|flush| !flush.is_sent()).filter_map(|flush| flush.not_before).min()
    }
}
