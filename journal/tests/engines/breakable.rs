//! A storage over the real one: its segments can be made to fail or to wait, and it remembers who wrote.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;

use clad_journal::io::uring::Ring;
use clad_journal::io::{
    Access, Durability, EngineReport, Entry, File, IoBuf, Lock, OsStorage, Space, Storage, TakeOver,
};
use rustix::io::Errno;

/// What the test does to writes by a call, and knows of them.
#[derive(Default)]
pub(crate) struct Writes {
    /// Who wrote to a segment, in the order of the calls.
    pub(crate) by: Mutex<Vec<ThreadId>>,
    /// They fail, as on a bad place of the disk.
    pub(crate) fail: AtomicBool,
    /// Calls that wait until they are let go.
    held: (Mutex<Held>, Condvar),
}

#[derive(Default)]
struct Held {
    /// The next so many writes wait.
    next: usize,
    waiting: usize,
}

impl Writes {
    /// Holds up the next write.
    pub(crate) fn hold_one(&self) {
        self.held.0.lock().unwrap().next = 1;
    }

    pub(crate) fn are_held(&self) -> usize {
        self.held.0.lock().unwrap().waiting
    }

    pub(crate) fn release(&self) {
        *self.held.0.lock().unwrap() = Held::default();
        self.held.1.notify_all();
    }

    fn came(&self) {
        self.by.lock().unwrap().push(std::thread::current().id());
        let mut held = self.held.0.lock().unwrap();
        if held.next > 0 {
            held.next -= 1;
            held.waiting += 1;
            drop(self.held.1.wait_while(held, |held| held.waiting > 0).unwrap());
        }
    }
}

/// A storage whose segments can be made to fail: then writes go to a description that is open for reading only, and it is
/// the kernel that refuses them, in a call as in a ring.
pub(crate) struct Breakable {
    pub(crate) inner: Arc<OsStorage>,
    pub(crate) broken: Arc<AtomicBool>,
    /// No file can be made, whatever [`Storage::space`] says: a quota, say.
    pub(crate) full: Arc<AtomicBool>,
    pub(crate) writes: Arc<Writes>,
    /// Writes to a segment that is being made, but for its header.
    pub(crate) zeroes: Arc<Writes>,
}

struct BreakableFile {
    good: Arc<dyn File>,
    bad: Option<Arc<dyn File>>,
    broken: Arc<AtomicBool>,
    writes: Option<Arc<Writes>>,
    zeroes: Option<Arc<Writes>>,
}

impl BreakableFile {
    fn now(&self) -> &Arc<dyn File> {
        self.bad.as_ref().filter(|_| self.broken.load(Ordering::SeqCst)).unwrap_or(&self.good)
    }
}

impl Storage for Breakable {
    fn list(&self, dir: &str) -> io::Result<Vec<Entry>> {
        self.inner.list(dir)
    }
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>> {
        let writes = matches!(access, Access::WriteDirect | Access::WriteCached) && name.ends_with(".clog");
        let bad = if writes { Some(self.inner.open(name, Access::ReadCached)?) } else { None };
        let (good, broken) = (self.inner.open(name, access)?, self.broken.clone());
        Ok(Arc::new(BreakableFile { good, bad, broken, writes: writes.then(|| self.writes.clone()), zeroes: None }))
    }
    fn create(&self, name: &str, access: Access) -> io::Result<Arc<dyn File>> {
        if self.full.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(Errno::NOSPC.raw_os_error()));
        }
        let (good, broken) = (self.inner.create(name, access)?, self.broken.clone());
        Ok(Arc::new(BreakableFile { good, bad: None, broken, writes: None, zeroes: Some(self.zeroes.clone()) }))
    }
    fn create_dir(&self, name: &str) -> io::Result<()> {
        self.inner.create_dir(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
    fn take_over(&self, from: &str, to: &str) -> io::Result<TakeOver> {
        self.inner.take_over(from, to)
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }
    fn set_sealed_mode(&self, name: &str, sealed: bool) -> io::Result<()> {
        self.inner.set_sealed_mode(name, sealed)
    }
    fn space(&self) -> io::Result<Space> {
        self.inner.space()
    }
    fn block_size(&self) -> u32 {
        self.inner.block_size()
    }
    fn is_direct(&self) -> bool {
        self.inner.is_direct()
    }
    fn zeroing_pays(&self) -> bool {
        self.inner.zeroing_pays()
    }
    fn ring(&self) -> Option<&Ring> {
        self.inner.ring()
    }
    fn engine(&self) -> EngineReport {
        self.inner.engine()
    }
}

impl File for BreakableFile {
    fn write_at(&self, buf: IoBuf, pos: u64, durability: Durability) -> (IoBuf, io::Result<()>) {
        if let Some(writes) = &self.writes {
            writes.came();
        }
        if let Some(zeroes) = self.zeroes.as_ref().filter(|_| durability == Durability::Written) {
            zeroes.came();
            if zeroes.fail.load(Ordering::SeqCst) {
                return (buf, Err(io::Error::from_raw_os_error(Errno::IO.raw_os_error())));
            }
        }
        self.now().write_at(buf, pos, durability)
    }
    fn read_at(&self, buf: IoBuf, pos: u64, want: usize) -> (IoBuf, io::Result<()>) {
        self.good.read_at(buf, pos, want)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.good.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.good.sync_all()
    }
    fn sync_range(&self, pos: u64, len: u64) -> io::Result<()> {
        self.good.sync_range(pos, len)
    }
    fn overwrites_in_place(&self, len: u64) -> io::Result<bool> {
        self.good.overwrites_in_place(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.good.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.good.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.good.allocate(len)
    }
    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        self.good.try_lock(lock)
    }
    fn lock(&self, lock: Lock) -> io::Result<()> {
        self.good.lock(lock)
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.now().descriptor()
    }
}
