//! A thread that appends one thing after the other and waits for each, by the way that the daemon's threads go.

use anyhow::{Result, ensure};
use clad_journal::{Accepted, AfterRefusal, Append, Journal, Wants, WriteBuffer};
use tokio::runtime::{Builder, Runtime};

/// Appends to a journal, makes the deferred write, and waits until it is durable.
pub(crate) struct Waiting<'a> {
    journal: &'a Journal,
    buffer: WriteBuffer,
    runtime: Runtime,
}

impl<'a> Waiting<'a> {
    pub(crate) fn on(journal: &'a Journal) -> Result<Self> {
        Ok(Self { journal, buffer: WriteBuffer::default(), runtime: Builder::new_current_thread().build()? })
    }

    /// Returns when the append is durable.
    pub(crate) fn append(&mut self, append: Append<'_>) -> Result<Accepted> {
        let (from, item, permit) = append.split();
        let mut answer = None;
        let runs = [(&from, &[item][..])];
        let outcome = self.journal.append(runs, AfterRefusal::Judge, permit, self.journal.now(), |a| answer = Some(a));
        let (accepted, mut deferred) = (answer.expect("an answer")?, outcome.deferred_write);
        while let Some(due) = deferred {
            deferred = due.write(&mut self.buffer);
        }
        let durable = accepted.first_offset + u64::from(accepted.count);
        let mut watcher = self.journal.watcher();
        while watcher.now().durable < durable {
            ensure!(watcher.now().failures == accepted.failures, "the journal failed");
            self.runtime.block_on(watcher.reached(Wants { written: u64::MAX, durable }))?;
        }
        Ok(accepted)
    }
}
