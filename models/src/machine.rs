//! The simulated disk with a modelled ring beside it.

use std::io;
use std::sync::Arc;

use clad_journal::format::segment_name;
use clad_journal::io::uring::Ring;
use clad_journal::io::{Access, Durability, Entry, File, IoBuf, Lock, Space, Storage, TakeOver};
use clad_sim::SimDisk;
use shuttle::sync::{Condvar, Mutex};

/// One process on the simulated machine, and its ring if it has one.
pub(crate) struct Machine {
    disk: SimDisk,
    ring: Option<Ring>,
    /// Writes since it was made slow.
    slow: Arc<Slow>,
}

/// A device on which a write ends only when another one has been begun beside it.
#[derive(Default)]
struct Slow {
    begun: Mutex<Option<usize>>,
    more: Condvar,
}

impl Slow {
    fn write(&self) {
        let mut begun = self.begun.lock().expect("it is whole");
        let Some(number) = begun.as_mut() else { return };
        *number += 1;
        self.more.notify_all();
        while begun.is_some_and(|number| number < 2) {
            begun = self.more.wait(begun).expect("it is whole");
        }
    }
}

/// A file on it.
struct SlowFile {
    inner: Arc<dyn File>,
    slow: Arc<Slow>,
}

impl File for SlowFile {
    fn write_at(&self, buf: IoBuf, pos: u64, durability: Durability) -> (IoBuf, io::Result<()>) {
        if durability == Durability::Synced {
            self.slow.write();
        }
        self.inner.write_at(buf, pos, durability)
    }
    fn read_at(&self, buf: IoBuf, pos: u64, want: usize) -> (IoBuf, io::Result<()>) {
        self.inner.read_at(buf, pos, want)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.inner.sync_all()
    }
    fn sync_range(&self, pos: u64, len: u64) -> io::Result<()> {
        self.inner.sync_range(pos, len)
    }
    fn overwrites_in_place(&self, len: u64) -> io::Result<bool> {
        self.inner.overwrites_in_place(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.inner.allocate(len)
    }
    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        self.inner.try_lock(lock)
    }
    fn lock(&self, lock: Lock) -> io::Result<()> {
        self.inner.lock(lock)
    }
}

impl Machine {
    pub(crate) fn new(disk: SimDisk, with_ring: bool) -> Arc<Self> {
        let ring = with_ring.then(|| Ring::modelled().expect("it asks nobody"));
        Arc::new(Self { disk, ring, slow: Arc::default() })
    }

    /// Waits until such a write has been begun.
    pub(crate) fn wait_for_write(&self) {
        let mut begun = self.slow.begun.lock().expect("it is whole");
        while begun.is_some_and(|number| number == 0) {
            begun = self.slow.more.wait(begun).expect("it is whole");
        }
    }

    /// From now on a write into the first segment waits for company.
    pub(crate) fn slow_down(&self) {
        *self.slow.begun.lock().expect("it is whole") = Some(0);
    }
}

impl Storage for Machine {
    fn list(&self, dir: &str) -> io::Result<Vec<Entry>> {
        self.disk.list(dir)
    }
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>> {
        let inner = self.disk.open(name, access)?;
        match name == segment_name(0) {
            true => Ok(Arc::new(SlowFile { inner, slow: self.slow.clone() })),
            false => Ok(inner),
        }
    }
    fn create(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>> {
        self.disk.create(name, access)
    }
    fn create_dir(&self, name: &str) -> io::Result<()> {
        self.disk.create_dir(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn take_over(&self, from: &str, to: &str) -> io::Result<TakeOver> {
        self.disk.take_over(from, to)
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn set_sealed_mode(&self, name: &str, sealed: bool) -> io::Result<()> {
        self.disk.set_sealed_mode(name, sealed)
    }
    fn space(&self) -> io::Result<Space> {
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
    fn ring(&self) -> Option<&Ring> {
        self.ring.as_ref()
    }
}
