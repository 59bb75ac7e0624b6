//! Appending from a thread that waits for the answer.
//!
//! What must hold:
//! - **An append that finds nothing under way is written by the thread that brought it**: no hand-over, no second thread
//!   woken to write and this one to go on. Whoever comes meanwhile gathers behind it, as always. The thread carries out
//!   writes and syncs alone; what takes long (rotation, recovery, the end) is for the journal's own threads, and so is
//!   every write while it waits for somebody else's.
//! - **Those who were answered together leave together**: what gathered behind a write waits a moment for who was in it
//!   ([`Company`](crate::company::Company)), and the last of them to come makes the write.
//! - It leads until its own append has come to its level, and no further: what gathered behind it is given to another.
//! - **Somebody keeps the time**: before it goes, one of the journal's threads is awake or will wake by itself, for the
//!   vouch of an idle log, the batch that has waited for company, the segment that is old enough.
//! - What is answered rests on the watermarks alone, as everywhere.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::{Core, Journal, Shared};
use crate::committer::{Accepted, Append, Step, Turn};
use crate::error::CommitError;
use crate::io::IoBuf;
use crate::marks::Wants;
use crate::marks::{Level, Marks};
use crate::sync::MutexGuard;
use crate::sync::thread::{self, Thread};
use crate::watcher::Watcher;

/// For a thread that appends and waits: see [`Journal::appender`].
pub struct Appender<'a> {
    shared: &'a Arc<Shared>,
    watcher: Watcher,
    buf: Option<IoBuf>,
}

impl Journal {
    /// For a thread of its own that appends one thing after the other, each until it has reached its level. With nothing
    /// under way that thread makes the write itself, which spares two wake-ups for each append. It blocks, so it is not
    /// for a worker of a runtime: those use [`Journal::append`] and [`Journal::watcher`].
    pub fn appender(&self) -> Appender<'_> {
        Appender { shared: &self.shared, watcher: self.watcher(), buf: None }
    }
}

impl Appender<'_> {
    /// Takes an append, and returns when it has reached the level that it asks for. Blocks for as long as the disk does.
    ///
    /// # Errors
    /// [`CommitError::Refused`]: certainly not stored. Anything else: maybe stored; the same append again is told apart.
    pub fn append(&mut self, append: Append<'_>) -> Result<Accepted, CommitError> {
        let (shared, level) = (self.shared, append.level);
        let now = shared.env().now();
        let mut core = shared.core();
        let accepted = core.committer.append(append, now).map_err(CommitError::Refused)?;
        core.company.came(level >= Level::Written && !accepted.duplicate);
        while let Ok(false) = reached(&accepted, level, &core.committer.marks()) {
            let now = shared.env().now();
            if shared.turn(&core, now) != Turn::Thread || !core.committer.is_lone(now) {
                break;
            }
            if shared.awaited(&mut core, now).is_some() {
                break; // whoever comes last takes this along
            }
            let Step::Run(job) = core.committer.step(now) else { break };
            shared.wake_for_more(&mut core, &job, now);
            drop(core);
            let (done, back) = shared.executor.run(job, self.buf.take().unwrap_or_else(|| IoBuf::with_capacity(0)));
            self.buf = Some(back);
            shared.finish(done);
            core = shared.core();
        }
        self.wait(core, &accepted, level)?;
        Ok(accepted)
    }

    fn wait(&mut self, mut core: MutexGuard<'_, Core>, accepted: &Accepted, level: Level) -> Result<(), CommitError> {
        let shared = self.shared;
        let now = reached(accepted, level, &core.committer.marks());
        shared.leave_to_others(&mut core, shared.env().now());
        drop(core);
        if now? {
            return Ok(());
        }
        // What is waited for is what the watcher's own look does not say: with any other, a failure could be told between
        // the two, and nobody would be woken for it again.
        while !reached(accepted, level, &self.watcher.now())? {
            block_on(self.watcher.reached(wants(accepted, level))).map_err(|_| CommitError::Closed)?;
        }
        Ok(())
    }
}

fn wants(accepted: &Accepted, level: Level) -> Wants {
    let end = accepted.first_offset + u64::from(accepted.count);
    match level {
        Level::Written => Wants { written: end, durable: u64::MAX },
        _ => Wants { written: u64::MAX, durable: end },
    }
}

/// Whether the answer is there; after a failure the same offset may be somebody else's.
fn reached(accepted: &Accepted, level: Level, marks: &Marks) -> Result<bool, CommitError> {
    match marks.failures > accepted.failures {
        true => Err(CommitError::Failed),
        false => Ok(marks.of(level) >= accepted.first_offset + u64::from(accepted.count)),
    }
}

/// Waits on this thread: what it waits for needs no runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
