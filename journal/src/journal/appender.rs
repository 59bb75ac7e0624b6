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

use std::sync::Arc;

use super::waiting::{Place, reached};
use super::{Core, Journal, Shared};
use crate::clock::Moment;
use crate::committer::{Accepted, Append, Step, Turn};
use crate::error::CommitError;
use crate::faults::Fault;
use crate::io::IoBuf;
use crate::marks::Level;
use crate::sync::MutexGuard;

/// For a thread that appends and waits: see [`Journal::appender`].
pub struct Appender<'a> {
    shared: &'a Arc<Shared>,
    place: Place,
    buf: Option<IoBuf>,
}

impl Journal {
    /// For a thread of its own that appends one thing after the other, each until it has reached its level. With nothing
    /// under way that thread makes the write itself, which spares two wake-ups for each append. It blocks, so it is not
    /// for a worker of a runtime: those use [`Journal::append`] and [`Journal::watcher`].
    pub fn appender(&self) -> Appender<'_> {
        Appender { shared: &self.shared, place: Place::default(), buf: None }
    }
}

impl Appender<'_> {
    /// Takes an append, and returns when it has reached the level that it asks for. Blocks for as long as the disk does.
    ///
    /// # Errors
    /// [`CommitError::Refused`]: certainly not stored. Anything else: maybe stored; the same append again is told apart.
    pub fn append(&mut self, append: Append<'_>) -> Result<Accepted, CommitError> {
        let (shared, level) = (self.shared, append.level);
        let mut core = shared.core();
        let mut now = shared.env().now();
        let accepted = core.committer.append(append, now).map_err(CommitError::Refused)?;
        core.company.came(level >= Level::Written && !accepted.duplicate);
        while let Ok(false) = reached(&accepted, level, &core.committer.marks()) {
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
            now = shared.env().now();
        }
        self.wait(core, &accepted, level, now)?;
        Ok(accepted)
    }

    fn wait<'s>(
        &'s self,
        mut core: MutexGuard<'s, Core>,
        accepted: &Accepted,
        level: Level,
        now: Moment,
    ) -> Result<(), CommitError> {
        let shared = self.shared;
        let is_there = match reached(accepted, level, &core.committer.marks()) {
            Ok(false) if core.committer.is_over() => Err(CommitError::Closed),
            is_there => is_there,
        };
        if let Ok(false) = is_there {
            if shared.env().config.faults.has(Fault::EntersAfterALook) {
                drop(core);
                core = shared.core();
            }
            core.threads.enter(accepted, level, &self.place);
        }
        shared.leave_to_others(&mut core, now);
        drop(core);
        match is_there? {
            true => Ok(()),
            false => self.place.wait(),
        }
    }
}
