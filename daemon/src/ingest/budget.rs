//! Bytes that may be in memory at once, as permits; the total can change while they are in use.
//!
//! What must hold: what is in use is never taken back; a smaller total is reached as permits come back, and whoever
//! queued under the larger one is served first, so that nobody waits for more than there will ever be.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The permits and their total.
#[derive(Debug)]
pub(crate) struct Budget {
    permits: Arc<Semaphore>,
    total: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { permits: Arc::new(Semaphore::new(total)), total: AtomicUsize::new(total) })
    }

    /// What there is in all.
    pub(crate) fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// What one request may ask for: never more than there is.
    pub(crate) fn share(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.total())).unwrap_or(u32::MAX)
    }

    #[cfg(test)]
    pub(crate) fn available(&self) -> usize {
        self.permits.available_permits()
    }

    /// So many permits, if they are free right now.
    pub(crate) fn try_take(&self, share: u32) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_many_owned(share).ok()
    }

    /// So many permits, in turn. Cancel safe: nothing is taken then.
    pub(crate) fn take(&self, share: u32) -> impl Future<Output = Option<OwnedSemaphorePermit>> + Send + use<> {
        let permits = self.permits.clone();
        async move { permits.acquire_many_owned(share).await.ok() }
    }

    /// Changes the total. To be called within a runtime, by one caller at a time.
    pub(crate) fn resize(&self, total: usize) {
        let before = self.total.swap(total, Ordering::Relaxed);
        if total > before {
            self.permits.add_permits(total - before);
        } else if total < before {
            let back = self.take(u32::try_from(before - total).unwrap_or(u32::MAX));
            tokio::spawn(async move {
                if let Some(permits) = back.await {
                    permits.forget();
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn more_is_there_at_once_and_less_when_it_comes_back() {
        let budget = Budget::new(10);
        let used = budget.try_take(8).unwrap();
        budget.resize(20);
        assert_eq!((budget.total(), budget.available()), (20, 12));
        let waiting = tokio::spawn(budget.take(budget.share(15)));
        tokio::task::yield_now().await;
        budget.resize(5);
        assert_eq!(budget.share(15), 5);
        assert!(budget.try_take(1).is_none(), "it is owed");
        drop(used);
        // Queued under the larger total, served before the smaller one comes into force.
        drop(waiting.await.unwrap().unwrap());
        let all = budget.take(5).await.unwrap();
        tokio::task::yield_now().await;
        assert_eq!(budget.available(), 0, "no more than the new total");
        drop(all);
    }
}
