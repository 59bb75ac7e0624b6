//! The daemon's byte permits, while the total changes.
//!
//! What must hold in every order: whoever waits gets his permits when those who have some give them back; never are more
//! out than the larger of the totals, and no more than the last one when all is quiet.

use std::sync::Arc;

use shuttle::future::block_on;
use shuttle::thread;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::budget::Budget;

/// Takers, and bytes that each asks for, twice.
const TAKERS: [usize; 3] = [6, 3, 8];
const BEFORE: usize = 8;
/// The totals that come after that.
const TOTALS: [usize; 2] = [4, 6];

trait Permits: Send + Sync + 'static {
    fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit>;
    fn resize(&self, to: usize);
    /// What is free when nothing is out.
    fn free(&self, all: usize) -> bool;
}

impl Permits for Budget {
    fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        block_on(Self::take(self, bytes))
    }
    fn resize(&self, to: usize) {
        Self::resize(self, to);
    }
    fn free(&self, all: usize) -> bool {
        self.total() == all && self.share(all + 1) as usize == all && {
            // What is owed may still be on its way out: it is ahead of this in the queue.
            let mine = block_on(Self::take(self, all)).expect("it is open");
            mine.num_permits() == all && self.try_take(1).is_none()
        }
    }
}

/// As it once was: what a request may ask for is one look, its place in the queue another.
#[derive(Debug)]
pub struct TwoLooks {
    permits: Arc<Semaphore>,
    total: shuttle::sync::atomic::AtomicUsize,
}

impl Permits for TwoLooks {
    fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let share = bytes.min(self.total.load(shuttle::sync::atomic::Ordering::SeqCst));
        thread::yield_now();
        block_on(self.permits.clone().acquire_many_owned(share as u32)).ok()
    }
    fn resize(&self, to: usize) {
        let before = self.total.swap(to, shuttle::sync::atomic::Ordering::SeqCst);
        if to > before {
            self.permits.add_permits(to - before);
        } else {
            let owed = self.permits.clone().acquire_many_owned((before - to) as u32);
            drop(crate::sync::spawn(async move { owed.await.expect("it is open").forget() }));
        }
    }
    fn free(&self, all: usize) -> bool {
        block_on(self.permits.acquire_many(all as u32)).is_ok()
    }
}

/// The daemon's own.
pub fn right() {
    model(Budget::new(BEFORE));
}

/// The one with two looks.
pub fn wrong() {
    let total = shuttle::sync::atomic::AtomicUsize::new(BEFORE);
    model(Arc::new(TwoLooks { permits: Arc::new(Semaphore::new(BEFORE)), total }));
}

fn model(budget: Arc<impl Permits>) {
    let takers = TAKERS.map(|bytes| {
        let budget = budget.clone();
        thread::spawn(move || {
            for _ in 0..2 {
                let permit = budget.take(bytes).expect("it is open");
                assert!(permit.num_permits() <= bytes.min(BEFORE));
                thread::yield_now();
            }
        })
    });
    let its = budget.clone();
    let operator = thread::spawn(move || TOTALS.into_iter().for_each(|total| its.resize(total)));
    takers.into_iter().for_each(|taker| taker.join().expect("a taker"));
    operator.join().expect("the operator");
    assert!(budget.free(TOTALS[1]), "as many as the total says");
}
