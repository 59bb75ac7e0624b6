//! Resources that all connections share, and each owner's part of them: bytes of appends, of frames and messages under
//! assembly, of buffers; looks of readers at the log; slots of connections, READs and rings.
//!
//! An owner is a user, on any transport, or the network as a whole, whose addresses prove nothing.
//!
//! Invariants:
//! - An owner *grows* only while as much as it then holds is left free for others; an owner with nothing takes whatever
//!   is free. So no newcomer finds that another owner has everything: with one other owner, half is left. Root is
//!   exempt: an administrator always gets in, where anything is free, and is served first.
//! - Nothing held is taken back here, even if the total gets smaller: the total is reached as shares come back. (Slots
//!   of connections and READs are taken back by [`super::slots`].)
//! - Requests of one owner are served in their order, and wait for no other owner's: each owner has its own queue, and
//!   the owner with least is served first. One exception, or large requests would starve behind small ones: while an
//!   owner with nothing waits, because it wants more than is free, owners with something do not grow.
//! - No request waits for more than the total: its size and its place in the queue are settled under one lock, and a
//!   smaller total cuts down the waiting requests. (`models/src/permits.rs` tries it in every order.)
//!
//! One lock is taken for a share, and one to give it back. No task is woken under it.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use clad_journal::{Permit, PermitPool};
use tokio::sync::oneshot;

use crate::sync::{Mutex, MutexGuard};

/// The user, or the network, that holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Owner {
    Uid(u32),
    Network,
}

impl Owner {
    /// Returns true for root: no fairness rule holds up an administrator.
    pub(crate) fn is_root(self) -> bool {
        self == Self::Uid(0)
    }

    /// Words for use within a sentence.
    pub(crate) fn in_words(self) -> String {
        match self {
            Self::Network => "the network".to_owned(),
            Self::Uid(_) => self.to_string(),
        }
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uid(uid) => write!(f, "uid {uid}"),
            Self::Network => f.write_str("network"),
        }
    }
}

/// Returns true if an owner with `used` may have `count` more, of what is `free`. The rule, in one place.
pub(crate) fn grows(owner: Owner, used: usize, free: usize, count: usize) -> bool {
    count <= free && (owner.is_root() || used == 0 || used + count <= free - count)
}

/// A share, given back when it is dropped.
pub(crate) type QuotaGuard = Permit;

/// The total of something, and each owner's part of it.
pub(crate) struct Quota {
    state: Mutex<State>,
    /// Amount that root may have beyond the total.
    reserve: usize,
}

struct State {
    total: usize,
    in_use: usize,
    accounts: HashMap<Owner, Weak<Account>>,
    /// Waiting owners; no queue is empty.
    waiting: HashMap<Owner, Waiting>,
    last: u64,
}

struct Waiting {
    account: Arc<Account>,
    /// In the order of arrival.
    requests: BTreeMap<u64, Request>,
}

struct Request {
    count: usize,
    served: oneshot::Sender<QuotaGuard>,
}

/// Requests that were served and are not notified yet: that is not done under the lock.
#[must_use]
#[derive(Default)]
struct Served(Vec<(Request, QuotaGuard)>);

impl Served {
    fn notify(self) {
        for (request, guard) in self.0 {
            // A request that is gone gives it back.
            let _ = request.served.send(guard);
        }
    }
}

/// One owner's account; changed under the quota's lock.
struct Account {
    quota: Arc<Quota>,
    owner: Owner,
    used: AtomicUsize,
}

impl Account {
    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl PermitPool for Account {
    fn give_back(&self, count: usize) {
        let mut state = self.quota.lock();
        state.take_back(self, count);
        let served = state.serve(self.quota.reserve);
        drop(state);
        served.notify();
    }
}

/// One owner's handle to it. Clones share it.
#[derive(Clone)]
pub(crate) struct QuotaHandle(Arc<Account>);

/// Amount that each owner has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuotaUsage {
    pub(crate) total: usize,
    /// Each owner that has something, the largest first.
    pub(crate) by_owner: Vec<(Owner, usize)>,
}

/// Sorts the owners, the largest first.
pub(crate) fn sorted(by_owner: impl IntoIterator<Item = (Owner, usize)>) -> Vec<(Owner, usize)> {
    let mut by_owner: Vec<_> = by_owner.into_iter().collect();
    by_owner.sort_unstable_by_key(|(owner, used)| (std::cmp::Reverse(*used), *owner));
    by_owner
}

impl State {
    fn free(&self) -> usize {
        self.total.saturating_sub(self.in_use)
    }

    /// Returns true if so much fits, and the owner may grow by it now.
    fn fits(&self, account: &Account, count: usize, reserve: usize) -> bool {
        let (free, used) = (self.free(), account.used());
        if account.owner.is_root() {
            return count <= (self.total + reserve).saturating_sub(self.in_use);
        }
        grows(account.owner, used, free, count) && (used == 0 || !self.somebody_starves())
    }

    /// Returns true if it may be had at once: no request of the same owner is before it.
    fn may(&self, account: &Account, count: usize, reserve: usize) -> bool {
        !self.waiting.contains_key(&account.owner) && self.fits(account, count, reserve)
    }

    /// Returns true if an owner with nothing waits.
    fn somebody_starves(&self) -> bool {
        self.waiting.values().any(|waiting| waiting.account.used() == 0)
    }

    /// Grants so much, which [`Self::fits`].
    fn grant(&mut self, account: &Arc<Account>, count: usize, reserve: usize) -> QuotaGuard {
        let most = self.total + reserve;
        assert!(
            count == 0 || self.in_use + count <= most,
            "more is granted than there is: the bound of memory is lost"
        );
        self.take(account, count)
    }

    fn take(&mut self, account: &Arc<Account>, count: usize) -> QuotaGuard {
        self.in_use += count;
        account.used.fetch_add(count, Ordering::Relaxed);
        QuotaGuard::new(account.clone(), count)
    }

    fn take_back(&mut self, account: &Account, count: usize) {
        let used = account.used();
        assert!(count <= used, "more comes back than its owner has: the bound of the owner's share is lost");
        assert!(used <= self.in_use, "an owner has more than all together: the bound of all is lost");
        account.used.store(used - count, Ordering::Relaxed);
        self.in_use -= count;
    }

    /// The owner whose first request is served next.
    fn next(&self, reserve: usize) -> Option<Owner> {
        let first = |waiting: &Waiting| waiting.requests.first_key_value().map(|(ticket, r)| (*ticket, r.count));
        let fitting = self.waiting.iter().filter_map(|(owner, waiting)| {
            let (ticket, count) = first(waiting)?;
            let fits = self.fits(&waiting.account, count.min(self.total), reserve);
            fits.then(|| (!owner.is_root(), waiting.account.used(), ticket, *owner))
        });
        fitting.min().map(|(.., owner)| owner)
    }

    fn serve(&mut self, reserve: usize) -> Served {
        let mut served = Served::default();
        while !self.waiting.is_empty()
            && let Some(owner) = self.next(reserve)
            && let Some(waiting) = self.waiting.get_mut(&owner)
            && let Some((_, request)) = waiting.requests.pop_first()
        {
            let account = waiting.account.clone();
            if waiting.requests.is_empty() {
                self.waiting.remove(&owner);
            }
            let guard = self.grant(&account, request.count.min(self.total), reserve);
            served.0.push((request, guard));
        }
        served
    }
}

impl Quota {
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Self::with_reserve(total, 0)
    }

    /// A quota of which root may have some beyond the total.
    pub(crate) fn with_reserve(total: usize, reserve: usize) -> Arc<Self> {
        let (accounts, waiting) = (HashMap::new(), HashMap::new());
        Arc::new(Self { state: Mutex::new(State { total, in_use: 0, accounts, waiting, last: 0 }), reserve })
    }

    /// A handle for an owner; there is one account for each owner, for as long as a handle exists.
    pub(crate) fn handle(self: &Arc<Self>, owner: Owner) -> QuotaHandle {
        let mut state = self.lock();
        if let Some(account) = state.accounts.get(&owner).and_then(Weak::upgrade) {
            return QuotaHandle(account);
        }
        state.accounts.retain(|_, account| account.strong_count() > 0);
        let account = Arc::new(Account { quota: self.clone(), owner, used: AtomicUsize::new(0) });
        state.accounts.insert(owner, Arc::downgrade(&account));
        QuotaHandle(account)
    }

    /// The total.
    pub(crate) fn total(&self) -> usize {
        self.lock().total
    }

    /// Amount that is held.
    pub(crate) fn in_use(&self) -> usize {
        self.lock().in_use
    }

    /// Changes the total.
    pub(crate) fn resize(&self, to: usize) {
        let mut state = self.lock();
        state.total = to;
        let served = state.serve(self.reserve);
        drop(state);
        served.notify();
    }

    /// Amount that each owner has now.
    pub(crate) fn quota_usage(&self) -> QuotaUsage {
        let state = self.lock();
        let accounts = state.accounts.values().filter_map(Weak::upgrade);
        let by_owner: Vec<_> = accounts.map(|a| (a.owner, a.used())).filter(|(_, used)| *used > 0).collect();
        let total = state.total;
        drop(state);
        QuotaUsage { total, by_owner: sorted(by_owner) }
    }

    /// Requests that wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting.values().map(|waiting| waiting.requests.len()).sum()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QuotaHandle {
    /// Takes so much, if it may be had right now.
    pub(crate) fn try_take(&self, count: usize) -> Option<QuotaGuard> {
        let Self(account) = self;
        let mut state = account.quota.lock();
        let reserve = account.quota.reserve;
        state.may(account, count, reserve).then(|| state.grant(account, count, reserve))
    }

    /// Takes so much, or at most the total, in turn: its place in the owner's queue is taken at once. Cancel safe:
    /// nothing is taken then.
    pub(crate) fn take(&self, count: usize) -> Taking {
        let account = self.0.clone();
        let mut state = account.quota.lock();
        let most = count.min(state.total);
        if state.may(&account, most, account.quota.reserve) {
            let served = Err(Some(state.grant(&account, most, account.quota.reserve)));
            drop(state);
            return Taking { account, ticket: 0, served };
        }
        let (served, receiver) = oneshot::channel();
        state.last += 1;
        let ticket = state.last;
        let waiting = || Waiting { account: account.clone(), requests: BTreeMap::new() };
        let queue = state.waiting.entry(account.owner).or_insert_with(waiting);
        queue.requests.insert(ticket, Request { count, served });
        drop(state);
        Taking { account, ticket, served: Ok(receiver) }
    }

    /// Takes so much, whatever the rule says: as much was released for it.
    pub(super) fn take_over(&self, count: usize) -> QuotaGuard {
        self.0.quota.lock().take(&self.0, count)
    }

    /// The total.
    pub(crate) fn total(&self) -> usize {
        self.0.quota.total()
    }

    /// Amount that the owner has.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.0.used()
    }

    #[cfg(test)]
    pub(crate) fn available(&self) -> usize {
        self.0.quota.lock().free()
    }
}

/// A request in the queue, or one served at once. Returns nothing only if polled again after it was served.
pub(crate) struct Taking {
    account: Arc<Account>,
    ticket: u64,
    served: Result<oneshot::Receiver<QuotaGuard>, Option<QuotaGuard>>,
}

impl Future for Taking {
    type Output = Option<QuotaGuard>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let guard = match &mut self.served {
            Ok(receiver) => ready!(Pin::new(receiver).poll(cx)).ok(),
            Err(guard) => return Poll::Ready(guard.take()),
        };
        self.served = Err(None);
        Poll::Ready(guard)
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        if self.served.is_err() {
            return;
        }
        let mut state = self.account.quota.lock();
        let Some(waiting) = state.waiting.get_mut(&self.account.owner) else { return };
        if waiting.requests.remove(&self.ticket).is_none() {
            return; // it was served: what lies in the channel goes back with it
        }
        if waiting.requests.is_empty() {
            state.waiting.remove(&self.account.owner);
        }
        // Requests behind it, or held back for it, may resume.
        let served = state.serve(self.account.quota.reserve);
        drop(state);
        served.notify();
    }
}
