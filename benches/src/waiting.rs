//! A thread that appends one thing after the other and waits for each, by the way that the daemon's threads go.

use anyhow::{Result, ensure};
use clad_journal::{Accepted, Append, Hand, Journal, Wants};
use tokio::runtime::{Builder, Runtime};

/// Appends to a journal, makes the write that it owes, and waits until it is durable.
pub(crate) struct Waiting<'a> {
    journal: &'a Journal,
    hand: Hand,
    runtime: Runtime,
}

impl<'a> Waiting<'a> {
    pub(crate) fn on(journal: &'a Journal) -> Result<Self> {
        Ok(Self { journal, hand: Hand::default(), runtime: Builder::new_current_thread().build()? })
    }

    /// Returns when the append is durable.
    pub(crate) fn append(&mut self, append: Append<'_>) -> Result<Accepted> {
        let (accepted, mut owed) = self.journal.append_owing(append, self.journal.now())?;
        while let Some(due) = owed {
            owed = due.write(&mut self.hand);
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
