//! Reports of the completion page on the appends in a ring, and their notification.

use std::task::Waker;

use clad_proto::{ErrorCode, ErrorInfo, LogId};
use clad_shm::Look;

use super::completions::{Log, Reached, Resolved, Settled};
use super::handle::{Other, RingHandle, Waiters};
use super::waiting::Waiting;
use crate::sync::{MutexGuard, atomic::Ordering};
use crate::{AppendError, Receipt, lock::lock, waiters::Claim};

impl RingHandle {
    /// Reads the completion page and notifies the waiters whose level is reached. True when any waiter was notified.
    pub(crate) fn pump(&self) -> bool {
        let mut covered = Vec::new();
        let mut settled = Settled::default();
        let look = self.ring.look();
        let (watermarks, refusals) = (look.watermarks(), look.refused());
        // The answers are those of its completion page; there may be another one by the time that they are delivered.
        let log = log_of(&look);
        let mut waiting = lock(&self.waiting);
        {
            let Waiters { completions, queues, .. } = &mut *waiting;
            if completions.has_news(&watermarks, refusals) {
                completions.set_log(log);
                let answer = |append| self.place(&look, append);
                completions.settle(&watermarks, refusals, answer, |append| is_refused(&look, append), &mut settled);
            }
            queues.covered(&watermarks, &mut covered);
            // A refusal is final when it is there: no level is waited for. It is on the page before the watermark that
            // covers it.
            let refused = refusals.min(watermarks.received);
            let looked = self.looked.load(Ordering::Acquire);
            if looked < refused {
                self.looked.store(refused, Ordering::Release);
                queues.refused(looked..refused, |append| is_refused(&look, append), &mut covered);
            }
        }
        for Waiting { append, count, level, claim } in covered {
            let place = self.place(&look, append);
            settled.claim(claim, count, place.map(|place| Reached { place, count, level, log }.into()));
        }
        drop(look);
        let any = !settled.is_nothing();
        self.notify(waiting, settled);
        any
    }

    /// Counts what was settled, gives the lock back, and notifies the waiters.
    pub(super) fn notify(&self, mut waiting: MutexGuard<'_, Waiters>, settled: Settled) {
        let Settled { acked, failed, undelivered, wakers, claims } = settled;
        if acked > 0 {
            self.counters.acked.add(acked);
        }
        if failed > 0 {
            self.counters.failed.add(failed);
        }
        if let Some(error) = undelivered {
            self.undelivered.add(error);
        }
        let awaited = waiting.awaited.filter(|append| waiting.is_answered_below(*append));
        if awaited.is_some() {
            waiting.awaited = None;
        }
        drop(waiting);
        for Resolved { claim, outcome, is_noted } in claims {
            if !claim.resolve(&outcome)
                && !is_noted
                && let Err(error) = outcome
            {
                self.undelivered.add(error);
            }
        }
        wakers.into_iter().for_each(Waker::wake);
        if awaited.is_some() {
            self.wake.notify_one();
        }
    }

    /// The place of an append that a watermark has passed, or the reason why it has none.
    fn place(&self, look: &Look<'_>, append: u64) -> Result<Option<(u32, u64)>, AppendError> {
        let Some(answer) = look.answer(append) else {
            if append < look.refused() {
                // The answer went with the daemon that gave it, or is overwritten, and it may have been a refusal.
                return Err(AppendError::Forgotten);
            }
            if append < look.first()
                && let Some(Other { before, .. }) = self.other().filter(|other| other.before != log_of(look).0)
            {
                // It was given back before this completion page existed, and its log is not the one that has it.
                return Err(AppendError::LogChanged { before, now: log_of(look).0 });
            }
            // It is as safe as was asked for; where it lies was overwritten by later answers.
            return Ok(None);
        };
        let code = ErrorCode::from_number(u16::try_from(answer.code).unwrap_or(u16::MAX));
        match (answer.code, code) {
            (0, _) => Ok(Some((answer.epoch, answer.first_offset))),
            // Stored by a daemon before this one, so long ago that the offset is not known any more.
            (_, ErrorCode::SequenceTooOld) => Ok(None),
            _ => {
                let text = match code {
                    ErrorCode::LevelUnreachable => {
                        "the log has no such level since clad was restarted; what was posted is stored as far as it reaches"
                    }
                    _ => "the daemon refused it as it drained the ring",
                };
                let mut error = ErrorInfo::new(code, text);
                error.record_index = (code == ErrorCode::BadRecord || code == ErrorCode::RecordTooLarge)
                    .then(|| u32::try_from(answer.detail).unwrap_or(u32::MAX));
                // A level that is known not to be there is refused before the ring: this one was there when it was
                // pushed.
                error.maybe_written |= append < self.met.load(Ordering::Acquire) || code == ErrorCode::LevelUnreachable;
                let maybe_written = error.maybe_written;
                Err(AppendError::Refused { error: Box::new(error), maybe_written })
            }
        }
    }

    /// The outcome of an append that was pushed, if it is there.
    pub(super) fn outcome(&self, append: u64) -> Option<Result<Receipt, AppendError>> {
        // The completion page is read before this lock is taken, or after: `pump` takes them the other way round. (A
        // waker is dropped without the lock, too: what it drops may be another ticket.)
        let taken = lock(&self.waiting).completions.take(append);
        let (outcome, _waker) = taken?;
        Some(outcome.map(Receipt::from))
    }

    /// As [`RingHandle::outcome`], with a look at the completion page.
    pub(super) fn outcome_now(&self, append: u64) -> Option<Result<Receipt, AppendError>> {
        self.outcome(append).or_else(|| {
            self.pump();
            self.outcome(append)
        })
    }

    /// Wakes the task that polls for it. The waker that was set before is dropped without the lock, for it is foreign
    /// code.
    pub(super) fn set_waker(&self, append: u64, waker: &Waker) {
        let before = lock(&self.waiting).completions.set_waker(append, waker);
        drop(before);
    }

    /// The ticket of an append was dropped before it had its outcome.
    pub(super) fn release_ticket(&self, append: u64) {
        let mut waiting = lock(&self.waiting);
        let (error, _waker) = waiting.completions.release_ticket(append);
        if let Some(error) = error {
            self.undelivered.add(error);
        }
        drop(waiting); // before the waker
    }

    pub(crate) fn resolve(&self, claim: Claim, count: u32, result: Result<Receipt, AppendError>) {
        let counter = if result.is_ok() { &self.counters.acked } else { &self.counters.failed };
        counter.add(count.into());
        if !claim.resolve(&result)
            && let Err(error) = result
        {
            self.undelivered.add(error);
        }
    }

    /// An error that its caller has not heard of.
    pub(crate) fn has_undelivered(&self, error: AppendError) {
        // A fork has the lock as it was.
        if !self.is_forked() {
            self.undelivered.add(error);
        }
    }

    /// One past the last append whose ticket is due, so far.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// True if every append below has its outcome. Else the task is woken when they have.
    pub(crate) fn is_answered_below(&self, append: u64) -> bool {
        let mut waiting = lock(&self.waiting);
        let is_answered = waiting.is_answered_below(append);
        if !is_answered {
            waiting.awaited = Some(waiting.awaited.map_or(append, |awaited| awaited.min(append)));
        }
        is_answered
    }

    /// True if all that was put into it, at whatever level, was given back: then it is `written`.
    pub(crate) fn is_drained(&self) -> bool {
        self.ring.unreleased() == 0
    }

    /// Why the daemon takes nothing of it for now, where it says so. What is in it waits, and what is not is not
    /// written.
    pub(crate) fn refused_for_now(&self) -> Option<ErrorInfo> {
        let code = ErrorCode::from_number(u16::try_from(self.ring.waits()?).unwrap_or(u16::MAX));
        let text = match code {
            ErrorCode::NoSpace => "the log has no room for what is in the ring: it waits until there is",
            ErrorCode::QuotaExceeded => {
                "this user's records fill their share of the log: what is in the ring waits until retention has removed some"
            }
            ErrorCode::JournalFailed => {
                "a write or sync of the log has failed: what is in the ring waits until it has recovered"
            }
            ErrorCode::AppendTooLarge => {
                "an append in the ring is longer than the log takes since clad was restarted: it waits, and all behind it, \
                 for larger segments"
            }
            _ => "what is in the ring waits",
        };
        let mut error = ErrorInfo::new(code, text);
        (error.retryable, error.maybe_written) = (true, false);
        Some(error)
    }

    /// The reason why what waits for its answer goes no further, as far as the completion page says; nothing if nothing
    /// waits.
    pub(crate) fn why_waiting(&self) -> Option<String> {
        if let Some(error) = self.refused_for_now() {
            return Some(error.to_string());
        }
        self.pump();
        let (received, oldest) = (self.ring.watermarks().received, lock(&self.waiting).oldest()?);
        let why = match oldest < received {
            true => "the daemon has it, and waits for its disk, which is slow",
            false => "the daemon has not come to it in the ring yet",
        };
        Some(why.to_owned())
    }
}

impl From<Reached> for Receipt {
    #[inline]
    fn from(Reached { place, count, level, log: (log_id, epoch) }: Reached) -> Self {
        let (epoch, first_offset) = place.map_or((epoch, None), |(epoch, offset)| (epoch, Some(offset)));
        Self { log_id, epoch, first_offset, count, level }
    }
}

fn log_of(look: &Look<'_>) -> Log {
    let (log_id, epoch) = look.log();
    (LogId::from_bytes(log_id), epoch)
}

fn is_refused(look: &Look<'_>, append: u64) -> bool {
    let code = look.answer(append).map_or(0, |answer| answer.code);
    code != 0 && code != u32::from(ErrorCode::SequenceTooOld.number())
}
