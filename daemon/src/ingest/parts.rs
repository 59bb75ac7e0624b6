//! A budget of which nobody has more than his part: bytes of large frames and messages that are being put together, buffers
//! of connections, looks of readers at the log.
//!
//! What must hold:
//! - An owner (a uid; the network as a whole, whose addresses prove nothing) holds half of all at most, however many
//!   connections it has: what it begins and does not end holds up nobody else's.
//! - Nobody waits for more than there will be, and never for the others while he holds what they wait for: first for
//!   the owner's part, then for that of all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::OwnedSemaphorePermit;

use super::budget::Budget;

/// On whose behalf something is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    Uid(u32),
    Network,
}

/// All of it.
pub(crate) struct Parts {
    all: Arc<Budget>,
    parts: Mutex<HashMap<Owner, Weak<Budget>>>,
}

/// What one owner's connections have of it together. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Part {
    all: Arc<Budget>,
    own: Arc<Budget>,
}

/// A share, given back when it is dropped.
pub(crate) struct Held {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
    /// What it is of: the owner has no second part while he holds something of this one.
    _part: Arc<Budget>,
}

impl Parts {
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { all: Budget::new(total), parts: Mutex::default() })
    }

    /// The part of an owner, for as long as somebody has it.
    pub(crate) fn part(&self, owner: Owner) -> Part {
        let mut parts = self.parts();
        let own = parts.get(&owner).and_then(Weak::upgrade).unwrap_or_else(|| {
            parts.retain(|_, part| part.strong_count() > 0);
            let own = Budget::new(half(self.all.total()));
            parts.insert(owner, Arc::downgrade(&own));
            own
        });
        Part { all: self.all.clone(), own }
    }

    /// Changes the total. To be called within a runtime.
    pub(crate) fn resize(&self, to: usize) {
        let parts = self.parts();
        self.all.resize(to);
        parts.values().filter_map(Weak::upgrade).for_each(|part| part.resize(half(to)));
    }

    /// How much of it is held.
    pub(crate) fn in_use(&self) -> usize {
        self.all.total().saturating_sub(self.all.available())
    }

    fn parts(&self) -> MutexGuard<'_, HashMap<Owner, Weak<Budget>>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn half(total: usize) -> usize {
    total.div_ceil(2)
}

impl Part {
    /// A share for so many bytes, if it is free right now.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<Held> {
        let own = self.own.try_take(self.own.share(bytes))?;
        Some(Held { _own: own, _all: self.all.try_take(self.all.share(bytes))?, _part: self.own.clone() })
    }

    /// A share for so many bytes, or all that there is, in turn. Cancel safe: nothing is taken then.
    pub(crate) fn take(&self, bytes: usize) -> impl Future<Output = Option<Held>> + Send + use<> {
        let (own, all, part) = (self.own.take(bytes), self.all.clone(), self.own.clone());
        async move {
            let own = own.await?;
            Some(Held { _own: own, _all: all.take(bytes).await?, _part: part })
        }
    }

    #[cfg(test)]
    pub(crate) fn available(&self) -> usize {
        self.all.available()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn an_owner_holds_half_of_it_and_waits_for_itself_alone() {
        let parts = Parts::new(1000);
        let (one, other, network) = (parts.part(Owner::Uid(1)), parts.part(Owner::Uid(2)), parts.part(Owner::Network));
        let held = one.take(400).await.unwrap();
        assert!(one.try_take(200).is_none(), "600 would be more than half");
        let mut waits = tokio::spawn(parts.part(Owner::Uid(1)).take(200));
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut waits).await.is_err());
        let most = other.take(600);
        let most = tokio::time::timeout(Duration::from_secs(60), most).await.expect("it holds nothing yet").unwrap();
        assert_eq!(other.available(), 0, "what is larger than a part comes through, too");
        drop(most);
        let beside = network.take(500).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut waits).await.is_err());
        drop(held);
        let second = waits.await.unwrap().unwrap();
        assert_eq!(one.available(), 300);
        drop((second, beside));
        assert_eq!(one.available(), 1000);
    }

    #[tokio::test]
    async fn a_new_total_holds_for_those_who_are_there_and_for_those_who_come() {
        let parts = Parts::new(1000);
        let one = parts.part(Owner::Uid(1));
        parts.resize(200);
        assert!(one.try_take(100).is_some() && one.own.total() == 100);
        assert_eq!(parts.part(Owner::Network).own.total(), 100);
        let gone = Arc::downgrade(&one.own);
        let held = one.try_take(50);
        drop(one);
        assert!(parts.part(Owner::Uid(1)).try_take(60).is_none(), "what is held of a part keeps it");
        drop(held);
        drop(parts.part(Owner::Uid(3)));
        assert!(gone.upgrade().is_none() && parts.parts().len() == 1, "nothing is kept of who is gone");
    }
}
