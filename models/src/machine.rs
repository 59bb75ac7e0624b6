//! The simulated disk with a modelled ring beside it.

use std::io;
use std::sync::Arc;

use clad_journal::io::uring::Ring;
use clad_journal::io::{Access, Entry, File, Space, Storage, TakeOver};
use clad_sim::SimDisk;

/// One process on the simulated machine, and its ring if it has one.
pub(crate) struct Machine {
    disk: SimDisk,
    ring: Option<Ring>,
}

impl Machine {
    pub(crate) fn new(disk: SimDisk, with_ring: bool) -> Arc<Self> {
        Arc::new(Self { disk, ring: with_ring.then(|| Ring::modelled().expect("it asks nobody")) })
    }
}

impl Storage for Machine {
    fn list(&self, dir: &str) -> io::Result<Vec<Entry>> {
        self.disk.list(dir)
    }
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>> {
        self.disk.open(name, access)
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
