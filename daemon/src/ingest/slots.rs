//! Slots of whatever stays for long and can come again: connections and READs.
//!
//! Invariants:
//! - An owner that takes a slot grows by the rule of [`super::quota`]: so one is free for an owner with none.
//! - Where it may not grow, or none is free, another owner with more gives one up: the owner with most, the slot that
//!   was idle for longest. Exception: the newcomer would then have more than that owner. So parts become equal, and no
//!   slot moves to and fro. A slot with unanswered appends is not released for another: its client would not know their
//!   result.
//! - A released slot is the newcomer's at once. Its former holder is notified, and ends by itself. Where the number of
//!   [leaving](Slots::new) holders has a bound, no further slot is released while that is reached.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::peer::Peer;
use super::quota::{Owner, Quota, QuotaGuard, QuotaUsage};
use crate::access::{Access, RuleSet};

/// Slots of one kind.
pub(crate) struct Slots {
    quota: Arc<Quota>,
    taken: Mutex<Taken>,
    leaving_max: usize,
}

#[derive(Default)]
struct Taken {
    last: u64,
    slots: HashMap<u64, Arc<SlotState>>,
    leaving: usize,
}

/// One of them, given back when it is dropped.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    key: u64,
    slot_state: Arc<SlotState>,
}

/// State of a slot's holder that others see.
pub(crate) struct SlotState {
    owner: Owner,
    began: Instant,
    /// Time of the last activity, in nanoseconds since `began`.
    active: AtomicU64,
    /// It is in use though nothing comes by it.
    in_use: AtomicBool,
    /// Sessions of it with a pending answer.
    pending_answer: AtomicUsize,
    leaving: AtomicBool,
    /// A peer of it has other rights than when it came.
    revoked: AtomicBool,
    /// Peers of it that have something open, each once.
    peers: Mutex<Vec<Arc<Peer>>>,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Nothing once it is released.
    guard: Mutex<Option<QuotaGuard>>,
}

impl fmt::Debug for SlotState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotState").field("owner", &self.owner).field("leaving", &self.leaving).finish_non_exhaustive()
    }
}

/// A session's note on whether it has a pending answer.
#[derive(Debug)]
pub(crate) struct PendingAnswer {
    slot_state: Arc<SlotState>,
    is_pending: bool,
}

impl PendingAnswer {
    /// Sets whether it has one now.
    pub(crate) fn set(&mut self, is_pending: bool) {
        if is_pending != std::mem::replace(&mut self.is_pending, is_pending) {
            let step = if is_pending { 1 } else { usize::MAX };
            let before = self.slot_state.pending_answer.fetch_add(step, Ordering::Relaxed);
            assert!(
                is_pending || before > 0,
                "an answer is taken back that nobody waits for: a slot would never leave"
            );
        }
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        self.set(false);
    }
}

impl SlotState {
    fn new(owner: Owner, guard: QuotaGuard) -> Self {
        Self {
            owner,
            began: Instant::now(),
            active: AtomicU64::new(0),
            in_use: AtomicBool::new(false),
            pending_answer: AtomicUsize::new(0),
            leaving: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            peers: Mutex::default(),
            wake: OnceLock::new(),
            guard: Mutex::new(Some(guard)),
        }
    }

    /// Something has come.
    pub(crate) fn active(&self, now: Instant) {
        self.active.store(now.duration_since(self.began).as_nanos() as u64, Ordering::Relaxed);
    }

    /// It is the control of a ring: others make room before it.
    pub(crate) fn in_use(&self) {
        self.in_use.store(true, Ordering::Relaxed);
    }

    /// For a session that says whether it has a pending answer.
    pub(crate) fn pending_answer(self: &Arc<Self>) -> PendingAnswer {
        PendingAnswer { slot_state: self.clone(), is_pending: false }
    }

    /// Returns true if it is to make room, or its rights have changed.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed) || self.is_revoked()
    }

    /// Returns true if its rights have changed.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Relaxed)
    }

    /// Notes a peer that has something open for long, and was judged by rules that may have changed since.
    pub(crate) fn serves(&self, peer: &Arc<Peer>, access: &Access) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if !peers.iter().any(|known| known.is_same(peer)) {
            peers.push(peer.clone());
        }
        drop(peers);
        self.recheck(&access.rules());
    }

    /// Has it leave if a peer of it has other rights by these rules.
    fn recheck(&self, rules: &RuleSet) -> bool {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_revoked = peers.iter().any(|peer| peer.rights_have_changed(rules));
        drop(peers);
        if is_revoked
            && !self.revoked.swap(true, Ordering::Relaxed)
            && let Some(wake) = self.wake.get()
        {
            wake();
        }
        is_revoked
    }

    /// Waits until it is to leave, for a task that is woken then.
    pub(crate) async fn leaves(&self) {
        std::future::poll_fn(|_| if self.is_leaving() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Sets the function that wakes it.
    pub(crate) fn wake_by(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }

    fn may_leave(&self) -> bool {
        !self.is_leaving() && self.wake.get().is_some() && self.pending_answer.load(Ordering::Relaxed) == 0
    }

    /// Time of its last use, as far as others matter.
    fn since(&self) -> (bool, Instant) {
        let active = Duration::from_nanos(self.active.load(Ordering::Relaxed));
        (self.in_use.load(Ordering::Relaxed), self.began + active)
    }

    fn guard(&self) -> MutexGuard<'_, Option<QuotaGuard>> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    /// So many; for root some beyond; and so many may be leaving at a time.
    pub(crate) fn new(max: usize, reserve: usize, leaving_max: usize) -> Arc<Self> {
        Arc::new(Self { quota: Quota::with_reserve(max, reserve), taken: Mutex::default(), leaving_max })
    }

    /// Sets another maximum. No holder is sent away by it.
    pub(crate) fn set_max(&self, max: usize) {
        self.quota.resize(max);
    }

    /// Number of slots in use, the leaving ones included.
    pub(crate) fn open(&self) -> usize {
        self.taken().slots.len()
    }

    /// Has those leave whose peers have other rights by these rules: how many there are.
    pub(crate) fn recheck(&self, rules: &RuleSet) -> usize {
        let all: Vec<Arc<SlotState>> = self.taken().slots.values().cloned().collect();
        all.iter().filter(|slot_state| slot_state.recheck(rules)).count()
    }

    /// Slots of each owner, without the leaving ones.
    pub(crate) fn quota_usage(&self) -> QuotaUsage {
        self.quota.quota_usage()
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one more, while the owner may have it, or another makes room.
    pub(crate) fn take(self: &Arc<Self>, owner: Owner) -> Option<Slot> {
        let handle = self.quota.handle(owner);
        let mut taken = self.taken();
        let guard = match handle.try_take(1) {
            Some(guard) => guard,
            None => {
                let slot_state = self.greediest(&taken, owner)?;
                // The newcomer's from now on: no other takes a slot meanwhile.
                slot_state.guard().take();
                let guard = handle.take_over(1);
                slot_state.leaving.store(true, Ordering::Relaxed);
                taken.leaving += 1;
                if let Some(wake) = slot_state.wake.get() {
                    wake();
                }
                guard
            }
        };
        taken.last += 1;
        let (key, slot_state) = (taken.last, Arc::new(SlotState::new(owner, guard)));
        taken.slots.insert(key, slot_state.clone());
        drop(taken);
        Some(Slot { slots: self.clone(), key, slot_state })
    }

    /// The slot that makes room for one of this owner's.
    fn greediest(&self, taken: &Taken, newcomer: Owner) -> Option<Arc<SlotState>> {
        if taken.leaving >= self.leaving_max {
            return None;
        }
        let counts: HashMap<Owner, usize> = self.quota.quota_usage().by_owner.into_iter().collect();
        let mine = counts.get(&newcomer).copied().unwrap_or_default();
        let has = |slot_state: &SlotState| counts.get(&slot_state.owner).copied().unwrap_or_default();
        let may = taken.slots.values().filter(|slot_state| has(slot_state) > mine + 1 && slot_state.may_leave());
        may.max_by_key(|slot_state| (has(slot_state), Reverse(slot_state.since()))).cloned()
    }
}

impl Slot {
    pub(crate) fn slot_state(&self) -> &Arc<SlotState> {
        &self.slot_state
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken();
        let known = taken.slots.remove(&self.key).is_some();
        assert!(known, "a slot is given back twice: its successor's would be lost");
        let leaving = usize::from(self.slot_state.leaving.load(Ordering::Relaxed));
        assert!(leaving <= taken.leaving, "more slots leave than were asked to: the bound of leaving ones is lost");
        taken.leaving -= leaving;
        // Given back under the lock: an owner that finds none free looks for one to take over.
        self.slot_state.guard().take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Owner = Owner::Uid(1000);
    const LEAVING_SLOTS_MAX: usize = 4;

    fn slots(max: usize) -> Arc<Slots> {
        Slots::new(max, 0, LEAVING_SLOTS_MAX)
    }

    /// A slot whose holder can be notified that it is to make room.
    fn take(slots: &Arc<Slots>, owner: Owner) -> Option<Slot> {
        let slot = slots.take(owner)?;
        slot.slot_state.wake_by(|| ());
        Some(slot)
    }

    fn all_of(slots: &Arc<Slots>, owner: Owner) -> Vec<Slot> {
        std::iter::from_fn(|| take(slots, owner)).collect()
    }

    fn leaving(slots: &[Slot]) -> Vec<usize> {
        (0..slots.len()).filter(|at| slots[*at].slot_state.is_leaving()).collect()
    }

    #[test]
    fn who_has_less_takes_from_who_has_most_until_they_are_equal() {
        let slots = slots(10);
        let mut mine = all_of(&slots, ME);
        assert_eq!(mine.len(), 5, "as many are left for others");
        let mut others: Vec<_> = (0..2).map(|_| take(&slots, Owner::Network).expect("it is free")).collect();
        assert!(leaving(&mine).is_empty(), "nobody makes room for what is free");
        others.push(take(&slots, Owner::Network).expect("somebody makes room"));
        assert_eq!(leaving(&mine).len(), 1);
        assert!(take(&slots, Owner::Network).is_none(), "then they have as many, but for one");
        assert!(take(&slots, ME).is_none(), "and none goes back and forth");
        let third = take(&slots, Owner::Uid(7)).expect("who has none gets one");
        mine.retain(|slot| !slot.slot_state.is_leaving());
        others.retain(|slot| !slot.slot_state.is_leaving());
        assert_eq!((mine.len(), others.len()), (4, 3));
        drop((mine, others, third));
        assert!(slots.open() == 0 && slots.quota_usage().by_owner.is_empty() && slots.taken().leaving == 0);
    }

    #[test]
    fn the_idlest_makes_room_and_who_holds_a_ring_comes_last() {
        let slots = slots(8);
        let mine = all_of(&slots, ME);
        let now = Instant::now() + Duration::from_secs(1);
        for (at, after) in [(0, 50), (1, 10), (2, 40), (3, 30)] {
            mine[at].slot_state.active(now + Duration::from_nanos(after));
        }
        mine[1].slot_state.in_use();
        let fill: Vec<_> = (1..=4).map(|uid| take(&slots, Owner::Uid(uid)).unwrap()).collect();
        assert!(leaving(&mine).is_empty());
        let _other = take(&slots, Owner::Uid(7)).unwrap();
        assert_eq!(leaving(&mine), [3]);
        let _another = take(&slots, Owner::Uid(8)).unwrap();
        assert_eq!(leaving(&mine), [2, 3]);
        drop(fill);
    }

    #[test]
    fn a_connection_with_an_answer_due_makes_no_room() {
        let slots = slots(4);
        let mine = all_of(&slots, ME);
        let mut pending_answer: Vec<_> = mine.iter().map(|slot| slot.slot_state.pending_answer()).collect();
        pending_answer.iter_mut().for_each(|pending_answer| pending_answer.set(true));
        let fill = [take(&slots, Owner::Uid(1)).unwrap(), take(&slots, Owner::Uid(2)).unwrap()];
        assert!(take(&slots, Owner::Network).is_none() && leaving(&mine).is_empty());
        pending_answer[1].set(true);
        pending_answer[1].set(false);
        assert!(take(&slots, Owner::Network).is_some());
        assert_eq!(leaving(&mine), [1]);
        drop(pending_answer);
        assert!(mine.iter().all(|slot| slot.slot_state.pending_answer.load(Ordering::Relaxed) == 0));
        drop(fill);
    }

    #[test]
    fn where_who_has_most_cannot_who_has_second_most_makes_room() {
        let slots = slots(16);
        let most = all_of(&slots, ME);
        let mut pending_answer: Vec<_> = most.iter().map(|slot| slot.slot_state.pending_answer()).collect();
        pending_answer.iter_mut().for_each(|pending_answer| pending_answer.set(true));
        let second = all_of(&slots, Owner::Uid(1));
        assert_eq!((most.len(), second.len()), (8, 4));
        let fill: Vec<_> = (10..14).map(|uid| take(&slots, Owner::Uid(uid)).unwrap()).collect();
        let _new = take(&slots, Owner::Network).expect("the second makes room");
        assert_eq!((leaving(&most).len(), leaving(&second).len()), (0, 1));
        drop(fill);
    }

    /// A leaving holder has no slot any more, though it is not gone yet; and the number of leaving ones is bounded.
    #[test]
    fn a_slot_is_free_as_soon_as_it_was_given_up_and_few_are_leaving_at_a_time() {
        let slots = slots(32);
        let mut mine = all_of(&slots, ME);
        let fill: Vec<_> = (1..=16).map(|uid| take(&slots, Owner::Uid(uid)).unwrap()).collect();
        let others: Vec<_> =
            (0..LEAVING_SLOTS_MAX as u32).map(|n| take(&slots, Owner::Uid(100 + n)).unwrap()).collect();
        assert_eq!(
            (slots.open(), slots.quota_usage().by_owner[0]),
            (32 + LEAVING_SLOTS_MAX, (ME, 16 - LEAVING_SLOTS_MAX))
        );
        assert!(take(&slots, Owner::Network).is_none(), "they are not gone yet");
        mine.remove(leaving(&mine)[0]);
        assert!(take(&slots, Owner::Network).is_some());
        drop((fill, others));
    }

    /// One that was just accepted, and whose task does not run yet: it could not hear that it is to make room.
    #[test]
    fn who_cannot_hear_of_it_makes_no_room() {
        let slots = slots(4);
        let mine = [slots.take(ME).unwrap(), slots.take(ME).unwrap()];
        let _fill = [take(&slots, Owner::Uid(1)).unwrap(), take(&slots, Owner::Uid(2)).unwrap()];
        assert!(take(&slots, Owner::Network).is_none() && leaving(&mine).is_empty());
        let heard = Arc::new(AtomicUsize::new(0));
        let hears = heard.clone();
        mine[1].slot_state.wake_by(move || _ = hears.fetch_add(1, Ordering::Relaxed));
        assert!(take(&slots, Owner::Network).is_some());
        assert_eq!((leaving(&mine), heard.load(Ordering::Relaxed)), (vec![1], 1));
    }

    #[test]
    fn a_lower_limit_sends_nobody_away_by_itself() {
        let slots = slots(8);
        let mine = all_of(&slots, ME);
        slots.set_max(2);
        assert!(take(&slots, ME).is_none() && leaving(&mine).is_empty());
        assert!(take(&slots, Owner::Network).is_some(), "one for one");
        assert_eq!(leaving(&mine).len(), 1);
    }
}
