//! Budget of the time for which uncommitted slots hold others up, over several rings together.
//!
//! An append that was reserved and not committed holds up what lies behind it, and with it every other ring. Invariant:
//! the rings that share a budget hold others up for its share of the time at most. This holds for them together and
//! over any time but for a first moment; a moment in which several of them do is spent once. A budget may be part of
//! another: then both must last. Times are those of drain cycles: all rings are looked at with the same one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limits of how long an append that was reserved and not committed may hold up what lies behind it, and others with
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallLimits {
    /// At most so long for one append, nanoseconds.
    pub each_ns: u64,
    /// At most this share of the time, in percent, for all appends of the rings that share it together. So a client
    /// that leaves uncommitted slots all the time does not hold others up all the time.
    pub percent: u64,
}

impl Default for StallLimits {
    fn default() -> Self {
        Self { each_ns: 2_000_000, percent: 10 }
    }
}

/// A hold may last longer than it may, because no look came earlier; so many times [`StallLimits::each_ns`] of that are
/// remembered.
const STALL_DEBT_FACTOR: i64 = 10;

/// Budget of rings for their uncommitted slots. Clones are the same.
#[derive(Clone, Debug)]
pub struct StallBudget(Arc<Account>);

#[derive(Debug)]
struct Account {
    stall_limits: StallLimits,
    state: Mutex<State>,
    parent: Option<StallBudget>,
}

#[derive(Debug)]
struct State {
    credit_ns: i64,
    /// Income and spending until then are booked.
    at: u64,
    /// Number of slots that hold others up now.
    stalls: u32,
}

impl PartialEq for StallBudget {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for StallBudget {}

impl Default for StallBudget {
    fn default() -> Self {
        Self::new(StallLimits::default())
    }
}

impl StallBudget {
    /// One that is whole from the beginning.
    #[must_use]
    pub fn new(stall_limits: StallLimits) -> Self {
        Self::with(stall_limits, signed(stall_limits.each_ns), 0, None)
    }

    /// A part of this one, which has nothing at `now`: to begin again gains nothing.
    #[must_use]
    pub fn part(&self, stall_limits: StallLimits, now: u64) -> Self {
        Self::with(stall_limits, 0, now, Some(self.clone()))
    }

    fn with(stall_limits: StallLimits, credit_ns: i64, at: u64, parent: Option<Self>) -> Self {
        let state = Mutex::new(State { credit_ns, at, stalls: 0 });
        Self(Arc::new(Account { stall_limits, state, parent }))
    }

    /// An uncommitted slot begins to hold others up; `false`: it may not. To be followed by [`Self::end`] if it may.
    pub(crate) fn begin(&self, now: u64) -> bool {
        if !self.lasts(now) {
            return false;
        }
        self.each(|account| account.state().stalls += 1);
        true
    }

    /// True if the slot that began `since` then may hold others up still.
    pub(crate) fn may_continue(&self, since: u64, now: u64) -> bool {
        self.lasts(now) && now.saturating_sub(since) < self.0.stall_limits.each_ns
    }

    /// A slot that began to hold others up does so no more.
    pub(crate) fn end(&self) {
        self.each(|account| {
            let mut state = account.state();
            state.stalls = state.stalls.saturating_sub(1);
        });
    }

    /// Books until now; says whether anything is left.
    pub(crate) fn lasts(&self, now: u64) -> bool {
        let mut lasts = true;
        self.each(|account| {
            account.book(now);
            lasts &= account.state().credit_ns > 0;
        });
        lasts
    }

    fn each(&self, mut what: impl FnMut(&Account)) {
        let mut next = Some(self);
        while let Some(stall_budget) = next {
            what(&stall_budget.0);
            next = stall_budget.0.parent.as_ref();
        }
    }
}

impl Account {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn book(&self, now: u64) {
        let mut state = self.state();
        let time = now.saturating_sub(state.at);
        let most = signed(self.stall_limits.each_ns);
        state.at = state.at.max(now);
        state.credit_ns = match state.stalls {
            0 => state.credit_ns.saturating_add(signed(time.saturating_mul(self.stall_limits.percent) / 100)).min(most),
            _ => state.credit_ns.saturating_sub(signed(time)).max(most.saturating_mul(-STALL_DEBT_FACTOR)),
        };
    }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
