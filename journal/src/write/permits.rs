//! Permits that admission counted for appends, as the journal holds them.
//!
//! Invariant: counted permits return to their own pool, once, when the journal releases the memory that they stand
//! for. Appends of several pools (each owner has one) lie in one batch, so a permit may have parts of several. The
//! parts are in the order in which they were merged, and are split off from the front.

use std::fmt;
use std::sync::Arc;

use tokio::sync::Semaphore;

/// Pool of permits.
pub trait PermitPool: Send + Sync {
    /// Takes so many back.
    fn give_back(&self, permits: usize);
}

impl PermitPool for Semaphore {
    fn give_back(&self, permits: usize) {
        self.add_permits(permits);
    }
}

/// Permits in use; released when this is dropped.
pub struct Permit {
    first: PoolPermits,
    /// Of other pools; empty where appends of one owner lie together.
    more: Vec<PoolPermits>,
}

struct PoolPermits {
    pool: Arc<dyn PermitPool>,
    permits: usize,
}

impl Drop for PoolPermits {
    fn drop(&mut self) {
        if self.permits > 0 {
            self.pool.give_back(self.permits);
        }
    }
}

impl PoolPermits {
    fn split(&mut self, permits: usize) -> Self {
        assert!(permits <= self.permits, "{permits} permits leave of {}: the pool would grow", self.permits);
        self.permits -= permits;
        Self { pool: self.pool.clone(), permits }
    }

    fn joins(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool)
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("permits", &self.num_permits()).finish_non_exhaustive()
    }
}

impl Permit {
    /// So many, which were taken out of the pool.
    #[must_use]
    pub fn new(pool: Arc<dyn PermitPool>, permits: usize) -> Self {
        Self { first: PoolPermits { pool, permits }, more: Vec::new() }
    }

    /// Number of permits.
    #[must_use]
    pub fn num_permits(&self) -> usize {
        self.first.permits + self.more.iter().map(|part| part.permits).sum::<usize>()
    }

    /// Takes so many off the front; nothing where there are fewer.
    pub fn split(&mut self, permits: usize) -> Option<Self> {
        if permits > self.num_permits() {
            return None;
        }
        let mut wanted = permits - permits.min(self.first.permits);
        let mut front = Self { first: self.first.split(permits - wanted), more: Vec::new() };
        let mut spent = 0;
        for part in &mut self.more {
            if wanted == 0 {
                break;
            }
            let taken = wanted.min(part.permits);
            wanted -= taken;
            spent += usize::from(taken == part.permits);
            front.push(part.split(taken));
        }
        self.more.drain(..spent);
        if self.first.permits == 0 && !self.more.is_empty() {
            self.first = self.more.remove(0);
        }
        Some(front)
    }

    /// Adds others, of any pool.
    pub fn merge(&mut self, mut other: Self) {
        let more = std::mem::take(&mut other.more);
        self.push(other.first);
        more.into_iter().for_each(|part| self.push(part));
    }

    fn push(&mut self, mut part: PoolPermits) {
        let last = self.more.last_mut().unwrap_or(&mut self.first);
        if last.joins(&part) {
            last.permits += std::mem::take(&mut part.permits);
        } else if part.permits > 0 {
            self.more.push(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(pool: &Arc<Semaphore>, permits: usize) -> Permit {
        pool.try_acquire_many(permits as u32).unwrap().forget();
        Permit::new(pool.clone(), permits)
    }

    proptest! {
        #[test]
        fn each_pool_gets_back_what_is_its_own(
            parts in proptest::collection::vec((0..3usize, 0..5usize), 1..20),
            cuts in proptest::collection::vec(0..7usize, 0..20),
        ) {
            const ALL: usize = 100;
            let pools: Vec<_> = (0..3).map(|_| Arc::new(Semaphore::new(ALL))).collect();
            let mut all = of(&pools[0], 0);
            let mut order = Vec::new();
            for (pool, permits) in &parts {
                all.merge(of(&pools[*pool], *permits));
                order.extend(std::iter::repeat_n(*pool, *permits));
            }
            prop_assert_eq!(all.num_permits(), order.len());
            for cut in cuts {
                let free = |pools: &[Arc<Semaphore>]| pools.iter().map(|p| p.available_permits()).collect::<Vec<_>>();
                let before = free(&pools);
                let Some(front) = all.split(cut) else {
                    prop_assert!(cut > order.len());
                    continue;
                };
                prop_assert_eq!(front.num_permits(), cut);
                drop(front);
                let mut expected = before;
                order.drain(..cut).for_each(|pool| expected[pool] += 1);
                prop_assert_eq!(free(&pools), expected, "they leave in their order");
            }
            drop(all);
            prop_assert!(pools.iter().all(|pool| pool.available_permits() == ALL));
        }
    }
}
