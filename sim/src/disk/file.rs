//! An open file description of the simulated machine.

use std::io;
use std::sync::{Arc, PoisonError};

use clad_journal::io::{Durability, File, IoBuf, Lock};

use super::Shared;
use super::state::Action;

/// A handle: the number of an open file description. Everything else is in the machine's state.
pub(super) struct SimFile {
    shared: Arc<Shared>,
    handle: u64,
}

impl SimFile {
    pub(super) fn new(shared: Arc<Shared>, handle: u64) -> Self {
        Self { shared, handle }
    }

    fn run(&self, action: impl FnOnce(u64) -> Action) -> io::Result<()> {
        let mut disk = self.shared.lock();
        let action = action(disk.seq());
        let id = disk.begin(self.handle, action)?;
        disk.finish(id)
    }
}

impl File for SimFile {
    fn write_at(&self, buf: IoBuf, pos: u64, durability: Durability) -> (IoBuf, io::Result<()>) {
        // An empty write is no write: it must not sync anything either.
        if buf.is_empty() {
            return (buf, Ok(()));
        }
        let done = self.run(|_| Action::Write { pos, bytes: buf.to_vec(), durability });
        (buf, done)
    }

    fn read_at(&self, mut buf: IoBuf, pos: u64, want: usize) -> (IoBuf, io::Result<()>) {
        buf.set_len(want);
        match self.shared.lock().read(self.handle, pos, &mut buf) {
            Ok(got) => {
                buf.set_len(got);
                (buf, Ok(()))
            }
            Err(e) => {
                buf.clear();
                (buf, Err(e))
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.run(|upto| Action::Sync { upto, all: false })
    }

    fn sync_all(&self) -> io::Result<()> {
        self.run(|upto| Action::Sync { upto, all: true })
    }

    fn sync_range(&self, pos: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        self.run(|upto| Action::Range { upto, pos, len })
    }

    fn overwrites_in_place(&self, len: u64) -> io::Result<bool> {
        self.shared.lock().overwrites_in_place(self.handle, len)
    }

    fn len(&self) -> io::Result<u64> {
        self.shared.lock().len(self.handle)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.shared.lock().resize(self.handle, len, false)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.shared.lock().resize(self.handle, len, true)
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        let taken = self.shared.lock().try_lock(self.handle, lock);
        self.shared.unlocked.notify_all(); // a lock that was replaced may have been lost
        taken
    }

    fn lock(&self, lock: Lock) -> io::Result<()> {
        let mut disk = self.shared.lock();
        while !disk.wait_for_lock(self.handle, lock)? {
            disk = self.shared.unlocked.wait(disk).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.shared.lock().close(self.handle);
        self.shared.unlocked.notify_all();
    }
}
