//! The daemon's quota of bytes, of two owners, while the total changes.
//!
//! What must hold in every order: whoever waits gets his share when those who have some give it back; never are more
//! out than the larger of the totals, and no more than the last one when all is quiet.

use std::sync::Arc;

use clad_journal::Permit;
use shuttle::future::block_on;
use shuttle::thread;
use tokio::sync::Semaphore;

use crate::quota::{Owner, Quota};

/// Takers: their user, and bytes that each asks for, twice.
const TAKERS: [(u32, usize); 3] = [(1, 6), (1, 3), (2, 8)];
const BEFORE: usize = 8;
/// The totals that come after that.
const TOTALS: [usize; 2] = [4, 6];

trait Permits: Send + Sync + 'static {
    fn take(self: &Arc<Self>, user: u32, bytes: usize) -> Option<Permit>;
    fn resize(&self, to: usize);
    /// What is free when nothing is out.
    fn free(self: &Arc<Self>, all: usize) -> bool;
}

impl Permits for Quota {
    fn take(self: &Arc<Self>, user: u32, bytes: usize) -> Option<Permit> {
        block_on(self.handle(Owner::Uid(user)).take(bytes))
    }
    fn resize(&self, to: usize) {
        Self::resize(self, to);
    }
    fn free(self: &Arc<Self>, all: usize) -> bool {
        let mine = Permits::take(self, 3, all + 1).expect("it is there");
        (self.total(), self.in_use(), mine.num_permits()) == (all, all, all)
    }
}

/// As it once was: what a request may ask for is one look, its place in the queue another.
#[derive(Debug)]
pub struct TwoLooks {
    permits: Arc<Semaphore>,
    total: shuttle::sync::atomic::AtomicUsize,
}

impl Permits for TwoLooks {
    fn take(self: &Arc<Self>, _: u32, bytes: usize) -> Option<Permit> {
        let share = bytes.min(self.total.load(shuttle::sync::atomic::Ordering::SeqCst));
        thread::yield_now();
        block_on(self.permits.acquire_many(share as u32)).ok()?.forget();
        Some(Permit::new(self.permits.clone(), share))
    }
    fn resize(&self, to: usize) {
        let before = self.total.swap(to, shuttle::sync::atomic::Ordering::SeqCst);
        if to > before {
            self.permits.add_permits(to - before);
        } else {
            let withdrawn = self.permits.clone().acquire_many_owned((before - to) as u32);
            drop(crate::sync::spawn(async move { withdrawn.await.expect("it is open").forget() }));
        }
    }
    fn free(self: &Arc<Self>, all: usize) -> bool {
        block_on(self.permits.acquire_many(all as u32)).is_ok()
    }
}

/// The daemon's own.
pub fn right() {
    model(Quota::new(BEFORE));
}

/// The one with two looks.
pub fn wrong() {
    let total = shuttle::sync::atomic::AtomicUsize::new(BEFORE);
    model(Arc::new(TwoLooks { permits: Arc::new(Semaphore::new(BEFORE)), total }));
}

fn model(budget: Arc<impl Permits>) {
    let takers = TAKERS.map(|(user, bytes)| {
        let budget = budget.clone();
        thread::spawn(move || {
            for _ in 0..2 {
                let permit = budget.take(user, bytes).expect("it is open");
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
