//! Bytes that may be in memory at once, as permits; the total can change while they are in use.
//!
//! What must hold: what is in use is never taken back; a smaller total is reached as permits come back, and whoever
//! queued under the larger one is served first; nobody ever waits for more than there will be, or all behind him would
//! wait with him. So what a request may ask for, and its place in the queue, are settled under one lock, which a change of
//! the total takes too. (`models/src/permits.rs` tries it in every order.)

use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::task::unconstrained;

use crate::sync::Mutex;

/// The permits and their total.
#[derive(Debug)]
pub(crate) struct Budget {
    permits: Arc<Semaphore>,
    total: Mutex<usize>,
}

/// A request in the queue. Queued when it is made, also when nobody looks at it yet.
type Queued = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

impl Budget {
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { permits: Arc::new(Semaphore::new(total)), total: Mutex::new(total) })
    }

    /// What there is in all.
    pub(crate) fn total(&self) -> usize {
        *self.locked()
    }

    /// What one request for so many bytes gets now: never more than there is.
    pub(crate) fn share(&self, bytes: usize) -> u32 {
        share(bytes, self.total())
    }

    pub(crate) fn available(&self) -> usize {
        self.permits.available_permits()
    }

    /// So many permits, if they are free right now.
    pub(crate) fn try_take(&self, share: u32) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_many_owned(share).ok()
    }

    /// Permits for so many bytes, or all there are, in turn. Cancel safe: nothing is taken then.
    pub(crate) fn take(&self, bytes: usize) -> impl Future<Output = Option<OwnedSemaphorePermit>> + Send + use<> {
        let total = self.locked();
        let queued = self.queue(share(bytes, *total));
        drop(total);
        async move {
            match queued {
                Ok(permit) => permit,
                Err(queued) => queued.await.ok(),
            }
        }
    }

    /// Changes the total. To be called within a runtime.
    pub(crate) fn resize(&self, to: usize) {
        let mut total = self.locked();
        let before = std::mem::replace(&mut *total, to);
        if to > before {
            self.permits.add_permits(to - before);
        } else if to < before {
            match self.queue(share(before - to, before)) {
                Ok(free) => free.into_iter().for_each(OwnedSemaphorePermit::forget),
                Err(owed) => drop(crate::sync::spawn(async move {
                    if let Ok(permits) = owed.await {
                        permits.forget();
                    }
                })),
            }
        }
    }

    /// So many permits (none where they are closed), or a place in the queue for them. The total is locked.
    fn queue(&self, share: u32) -> Result<Option<OwnedSemaphorePermit>, Queued> {
        // Unconstrained, because a task that has done much already would not be queued but told to come back.
        let mut queued: Queued = Box::pin(unconstrained(self.permits.clone().acquire_many_owned(share)));
        // The first look is what queues it; who waits is told by the next.
        match queued.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Ok(done.ok()),
            Poll::Pending => Err(queued),
        }
    }

    fn locked(&self) -> impl std::ops::DerefMut<Target = usize> {
        self.total.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn share(bytes: usize, total: usize) -> u32 {
    u32::try_from(bytes.min(total)).unwrap_or(u32::MAX)
}
