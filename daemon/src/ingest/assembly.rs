//! Bytes of large frames and messages that are being put together, over all connections.
//!
//! What must hold:
//! - Who only claims much gets nothing for it: a share is asked for when [`BEGUN`] bytes have come.
//! - An owner (a uid; the network as a whole, whose addresses prove nothing) holds half of all at most, however many
//!   connections it has: what it begins and does not end holds up nobody else's.
//! - Nobody waits for more than there will be, and never for the others while he holds what they wait for: first for
//!   the owner's part, then for that of all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::OwnedSemaphorePermit;

use super::budget::Budget;

/// Frames and messages up to this length need no share, and of larger ones so much comes before a share is asked for.
pub(crate) const BEGUN: usize = 64 * 1024;

/// On whose behalf something is put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    Uid(u32),
    Network,
}

/// All of it.
pub(crate) struct Assembly {
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
}

impl Assembly {
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
        Some(Held { _own: own, _all: self.all.try_take(self.all.share(bytes))? })
    }

    /// A share for so many bytes, or all that there is, in turn. Cancel safe: nothing is taken then.
    pub(crate) fn take(&self, bytes: usize) -> impl Future<Output = Option<Held>> + Send + use<> {
        let (own, all) = (self.own.take(bytes), self.all.clone());
        async move {
            let own = own.await?;
            Some(Held { _own: own, _all: all.take(bytes).await? })
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
        let assembly = Assembly::new(1000);
        let (one, other, network) =
            (assembly.part(Owner::Uid(1)), assembly.part(Owner::Uid(2)), assembly.part(Owner::Network));
        let held = one.take(400).await.unwrap();
        assert!(one.try_take(200).is_none(), "600 would be more than half");
        let mut waits = tokio::spawn(assembly.part(Owner::Uid(1)).take(200));
        let most = other.take(600).await.unwrap();
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
        let assembly = Assembly::new(1000);
        let one = assembly.part(Owner::Uid(1));
        assembly.resize(200);
        assert!(one.try_take(100).is_some() && one.own.total() == 100);
        assert_eq!(assembly.part(Owner::Network).own.total(), 100);
        let gone = Arc::downgrade(&one.own);
        drop(one);
        drop(assembly.part(Owner::Uid(3)));
        assert!(gone.upgrade().is_none() && assembly.parts().len() == 1, "nothing is kept of who is gone");
    }
}
