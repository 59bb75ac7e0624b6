//! Appends whose write their caller makes himself.
//!
//! A thread that hands appends over and has nothing better to do saves two wake-ups where nothing is in flight: it makes
//! the write, instead of waking one that makes it. Where anything is in flight, or a long job is due, it wakes as ever.
//!
//! What must hold: what was appended has somebody who writes it, whether or not its caller comes back: [`Owed`] wakes when
//! it is dropped. The caller is in a call to the disk meanwhile, for as long as that takes; nobody may wait for him.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use crate::clock::Moment;
use crate::committer::{Accepted, Item, Sender, Step, Turn};
use crate::error::AppendError;
use crate::gather::Purse;
use crate::io::IoBuf;
use crate::journal::{Journal, Shared};

/// The buffer of a thread that makes lone writes.
pub struct Hand(Option<IoBuf>);

impl Hand {
    /// One that holds no memory yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(None)
    }
}

impl Default for Hand {
    fn default() -> Self {
        Self::new()
    }
}

/// Somebody must write what was appended: whoever holds this does, or, when it is dropped, wakes one who does.
#[must_use = "dropped at once it is a wake-up"]
pub struct Owed<'a> {
    shared: &'a Arc<Shared>,
    wake: Option<Turn>,
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        self.shared.wake_one(self.wake.take());
    }
}

impl Journal {
    /// As [`Journal::append_burst`], for several senders in turn: all of one run are taken before any of the next, and
    /// nobody else's append comes between. What is given back says that a write is owed.
    pub fn append_runs<'a>(
        &self,
        runs: impl IntoIterator<Item = (&'a Sender<'a>, &'a [Item<'a>])>,
        permit: Option<OwnedSemaphorePermit>,
        now: Moment,
        mut answer: impl FnMut(Result<Accepted, AppendError>),
    ) -> Owed<'_> {
        let mut purse = Purse::new(permit);
        let mut core = self.shared.core();
        let before = core.committer.gathered_bytes();
        for (from, burst) in runs {
            core.committer.append_burst(from, burst, now, &mut purse, &mut answer);
        }
        let wake = self.shared.wants_waking(&mut core, before, now);
        drop(core);
        Owed { shared: &self.shared, wake }
    }
}

impl Owed<'_> {
    /// Makes the write, if it is a lone one; blocks for as long as the disk takes. Else it wakes who does. True when it
    /// was made here: the marks have moved.
    pub fn write_here(mut self, hand: &mut Hand) -> bool {
        if self.wake != Some(Turn::Thread) {
            return false;
        }
        let (shared, now) = (self.shared, self.shared.env().now());
        let mut core = shared.core();
        if shared.turn(&core, now) != Turn::Thread || !core.committer.is_lone(now) {
            return false;
        }
        let Step::Run(job) = core.committer.step(now) else { return false };
        shared.wake_for_more(&mut core, now);
        drop(core);
        self.wake = None;
        let (done, back) = shared.executor.run(job, hand.0.take().unwrap_or_else(|| IoBuf::with_capacity(0)));
        hand.0 = Some(back);
        shared.finish(done);
        // What has gathered meanwhile, and the sync of what was only written, is the threads'.
        shared.leave_to_others(&mut shared.core(), shared.env().now());
        true
    }
}
