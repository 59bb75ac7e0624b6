//! A deferred write: the appending thread may make it, or have it made.
//!
//! Invariants:
//! - **No append is forgotten.** An append that needs a thread awake either wakes one of the journal's threads, or
//!   returns a [`DeferredWrite`]. The appending thread answers that by a write, or by waking a thread: at the latest
//!   when it is dropped.
//! - It is returned only if nothing is under way and the open batch is small. A larger batch wakes a thread at once,
//!   as do rotation, recovery and the end.
//! - **One job at a time**: the writing thread checks its other work between two jobs. The batch collected meanwhile
//!   is deferred again, so that no thread is woken for it.
//! - **The time is always watched**: before no write is deferred any more, one of the journal's threads is awake or
//!   has a timer. The timer covers the commit marker of an idle log, a batch that has waited long enough, and a
//!   segment that is old enough.

use std::sync::Arc;

use super::shared::{Core, CoreGuard, Shared};
use super::workers::shrink_buffer;
use crate::clock::Moment;
use crate::io::IoBuf;
use crate::write::committer::{Step, Turn};

/// Size of the open batch above which an append wakes another thread.
const DEFERRED_WRITE_BYTES_MAX: usize = 32 * 1024;

/// A pending write of appends for which no thread was woken. Dropped, it wakes a thread of the journal.
#[must_use = "dropped, it wakes a thread of the journal at once"]
pub struct DeferredWrite(Option<Arc<Shared>>);

/// Outcome of appends, beside the answer to each.
#[must_use = "dropped, it wakes a thread of the journal at once"]
pub struct AppendOutcome {
    /// The write that is left to the caller.
    pub deferred_write: Option<DeferredWrite>,
}

/// Buffer of a thread for the writes that it makes.
#[derive(Default)]
pub struct WriteBuffer(Option<IoBuf>);

impl Shared {
    pub(crate) fn defer_write(
        self: &Arc<Self>,
        mut core: CoreGuard<'_>,
        before: usize,
        now: Moment,
    ) -> Option<DeferredWrite> {
        let wanted = self.wants_waking(&mut core, before, now)?;
        if wanted == Turn::Thread && may_be_deferred(&core, now) {
            return Some(DeferredWrite(Some(Arc::clone(self))));
        }
        drop(core);
        self.wake_one(Some(wanted));
        None
    }
}

fn may_be_deferred(core: &Core, now: Moment) -> bool {
    core.committer.allows_inline_write(now) && core.committer.writer.pending_bytes() < DEFERRED_WRITE_BYTES_MAX
}

impl DeferredWrite {
    /// Makes the write if nothing is under way, or else ensures that another thread does. Blocks as long as the disk
    /// does, so only call it on a thread that others do not wait for. The next write is deferred again.
    pub fn write(mut self, buffer: &mut WriteBuffer) -> Option<Self> {
        let shared = self.0.take()?;
        let mut now = shared.env().now();
        let mut core = shared.core();
        if shared.turn(&core, now) == Turn::Thread
            && core.committer.allows_inline_write(now)
            && let Step::Run(job) = core.committer.step(now)
        {
            shared.wake_for_more(&mut core, now);
            drop(core);
            let (done, back) = shared.executor.run(job, buffer.0.take().unwrap_or_else(|| IoBuf::with_capacity(0)));
            buffer.0 = Some(shrink_buffer(back));
            if done.is_err() {
                // The work after a failure also writes to the disk, which may hang: other threads report it.
                shared.core().failed = Some(done);
                shared.work.notify_one();
                return None;
            }
            shared.finish(done);
            now = shared.env().now();
            core = shared.core();
            if core.committer.more_to_do() && may_be_deferred(&core, now) {
                drop(core);
                return Some(Self(Some(shared)));
            }
        }
        shared.leave_to_others(&mut core, now);
        None
    }

    /// Merges two deferred writes of one journal into one.
    pub fn join(self, mut other: Self) -> Self {
        other.0 = None;
        self
    }
}

impl Drop for DeferredWrite {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.wake_one(Some(Turn::Thread));
        }
    }
}
