//! Layer between the journal and the simulated disk: it holds operations in flight, and can be made wrong.
//!
//! Invariant: without a [`Flaw`] and outside of [`Tap::die_with`] every call reaches the disk unchanged, once. A sync
//! that was begun early covers what was complete when it was begun, not when it was executed.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use clad_journal::io::{Access, Durability, Entry, File, IoBuf, Lock, Space, Storage, TakeOver};

use crate::SimDisk;
use crate::disk::{Dead, Ticket};

/// A disk or a system that breaks its word all the time, to show that the checker notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A write with its own sync is not synced.
    SyncedIsWritten,
    /// `sync_data` does nothing.
    SyncDataLies,
    /// `sync_all` does nothing.
    SyncAllLies,
    /// `sync_range` does nothing.
    SyncRangeLies,
    /// Space that was only reserved passes for written space.
    AllInPlace,
    /// `sync_dir` does nothing.
    SyncDirLies,
    /// Locks are given to everybody at once.
    LockAtOnce,
}

/// The storage that the journal is given.
#[derive(Clone)]
pub struct Tap {
    disk: SimDisk,
    flaw: Option<Flaw>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The process dies: so many operations are still begun, and none of them ends.
    dying: Option<u32>,
    /// The segment's description that was opened last: the one that its syncs go through.
    newest: Option<Weak<dyn File>>,
    /// A sync that is in flight, and on which description.
    early: Option<(usize, Ticket)>,
    /// Action before a file is opened.
    before_open: Option<Meanwhile>,
}

/// Action of another process in the middle of an operation.
type Meanwhile = Box<dyn FnMut() + Send>;

impl Tap {
    /// A process's view of the disk.
    pub fn new(disk: SimDisk, flaw: Option<Flaw>) -> Self {
        Self { disk, flaw, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on nothing ends; `begun` more writes or syncs are begun and stay in flight.
    pub fn die_with(&self, begun: u32) {
        self.state().dying = Some(begun);
    }

    /// Begins the sync of the segment that was opened last, if the journal still has it open.
    pub fn begin_sync(&self) {
        let file = self.state().newest.as_ref().and_then(Weak::upgrade);
        if let Some(file) = file
            && let Ok(ticket) = self.disk.begin_sync(&file, false)
        {
            self.state().early = Some((address(&file), ticket));
        }
    }

    /// Runs this before each file that is opened, but for those that it opens itself.
    pub fn before_open(&self, meanwhile: impl FnMut() + Send + 'static) {
        self.state().before_open = Some(Box::new(meanwhile));
    }

    fn meanwhile(&self) {
        let taken = self.state().before_open.take();
        if let Some(mut meanwhile) = taken {
            meanwhile();
            self.state().before_open = Some(meanwhile);
        }
    }

    fn alive(&self) -> io::Result<()> {
        if self.state().dying.is_some() { Err(Dead.into()) } else { Ok(()) }
    }

    /// Returns whether this operation is still begun, if the process is dying.
    fn last_words(&self) -> Option<bool> {
        let mut state = self.state();
        let left = state.dying.as_mut()?;
        let begun = *left > 0;
        *left = left.saturating_sub(1);
        Some(begun)
    }

    fn tapped(&self, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(TapFile { inner, tap: self.clone() })
    }
}

fn address(file: &Arc<dyn File>) -> usize {
    Arc::as_ptr(file).cast::<()>() as usize
}

impl Storage for Tap {
    fn list(&self, dir: &str) -> io::Result<Vec<Entry>> {
        self.alive()?;
        self.disk.list(dir)
    }
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>> {
        self.alive()?;
        self.meanwhile();
        let file = self.disk.open(name, access)?;
        if name.ends_with(".clog") && matches!(access, Access::WriteDirect | Access::WriteCached) {
            self.state().newest = Some(Arc::downgrade(&file));
        }
        Ok(self.tapped(file))
    }
    fn create(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>> {
        self.alive()?;
        Ok(self.tapped(self.disk.create(name, access)?))
    }
    fn create_dir(&self, name: &str) -> io::Result<()> {
        self.alive()?;
        self.disk.create_dir(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.alive()?;
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.alive()?;
        self.disk.remove(name)
    }
    fn take_over(&self, from: &str, to: &str) -> io::Result<TakeOver> {
        self.alive()?;
        self.disk.take_over(from, to)
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.alive()?;
        if self.flaw == Some(Flaw::SyncDirLies) { Ok(()) } else { self.disk.sync_dir(dir) }
    }
    fn set_sealed_mode(&self, name: &str, sealed: bool) -> io::Result<()> {
        self.alive()?;
        self.disk.set_sealed_mode(name, sealed)
    }
    fn space(&self) -> io::Result<Space> {
        self.alive()?;
        self.disk.space()
    }
    fn block_size(&self) -> u32 {
        self.disk.block_size()
    }
    fn is_direct(&self) -> bool {
        self.disk.is_direct()
    }
    fn zeroing_pays(&self) -> bool {
        self.disk.zeroing_pays()
    }
}

struct TapFile {
    inner: Arc<dyn File>,
    tap: Tap,
}

impl TapFile {
    fn sync(&self, all: bool) -> io::Result<()> {
        if let Some(begun) = self.tap.last_words() {
            if begun {
                let _ = self.tap.disk.begin_sync(&self.inner, all);
            }
            return Err(Dead.into());
        }
        let lies = if all { Flaw::SyncAllLies } else { Flaw::SyncDataLies };
        let early = {
            let mut state = self.tap.state();
            state.early.take_if(|(file, _)| *file == address(&self.inner) && !all)
        };
        match early {
            _ if self.tap.flaw == Some(lies) => Ok(()),
            Some((_, ticket)) => self.tap.disk.finish(ticket).1,
            None if all => self.inner.sync_all(),
            None => self.inner.sync_data(),
        }
    }
}

impl File for TapFile {
    fn write_at(&self, buf: IoBuf, pos: u64, durability: Durability) -> (IoBuf, io::Result<()>) {
        if let Some(begun) = self.tap.last_words() {
            if begun {
                let _ = self.tap.disk.begin_write(&self.inner, IoBuf::copy_of(&buf), pos, durability);
            }
            return (buf, Err(Dead.into()));
        }
        let durability = match self.tap.flaw {
            Some(Flaw::SyncedIsWritten) => Durability::Written,
            _ => durability,
        };
        self.inner.write_at(buf, pos, durability)
    }
    fn read_at(&self, buf: IoBuf, pos: u64, want: usize) -> (IoBuf, io::Result<()>) {
        match self.tap.alive() {
            Ok(()) => self.inner.read_at(buf, pos, want),
            Err(e) => (buf, Err(e)),
        }
    }
    fn sync_data(&self) -> io::Result<()> {
        self.sync(false)
    }
    fn sync_all(&self) -> io::Result<()> {
        self.sync(true)
    }
    fn sync_range(&self, pos: u64, len: u64) -> io::Result<()> {
        if let Some(begun) = self.tap.last_words() {
            if begun {
                let _ = self.tap.disk.begin_range(&self.inner, pos, len);
            }
            return Err(Dead.into());
        }
        if self.tap.flaw == Some(Flaw::SyncRangeLies) { Ok(()) } else { self.inner.sync_range(pos, len) }
    }
    fn overwrites_in_place(&self, len: u64) -> io::Result<bool> {
        self.tap.alive()?;
        let is = self.inner.overwrites_in_place(len)?;
        Ok(is || self.tap.flaw == Some(Flaw::AllInPlace))
    }
    fn len(&self) -> io::Result<u64> {
        self.tap.alive()?;
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.tap.alive()?;
        self.inner.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.tap.alive()?;
        self.inner.allocate(len)
    }
    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        self.tap.alive()?;
        if self.tap.flaw == Some(Flaw::LockAtOnce) { Ok(true) } else { self.inner.try_lock(lock) }
    }
    fn lock(&self, lock: Lock) -> io::Result<()> {
        self.tap.alive()?;
        if self.tap.flaw == Some(Flaw::LockAtOnce) { Ok(()) } else { self.inner.lock(lock) }
    }
}
