//! A machine with one disk, in memory, that fails in every way that a journal must survive.
//!
//! **The fault model.** What can happen, all of it chosen by the seed or asked for by a test:
//! 1. *Power cut.* Every handle and process dies, the boot id changes. Synced data is there. Of everything else: each
//!    512-byte sector holds what the media held or any one of the unsynced writes that covered it, independent of its
//!    neighbours and of order. The choices range over none, all, half, most, whole writes, a prefix with a torn end,
//!    only the latest, and single sectors ([`Survival`]).
//! 2. *Sizes.* A size set by `set_len` or `allocate` is durable after `sync_all` only; unsynced changes of the size
//!    survive as a prefix. A synced write takes along the size that it needs; `sync_data` does the same.
//! 3. *Uninitialised blocks.* Space from `allocate` and `set_len` reads as zeroes and needs metadata when it is first
//!    written: without a volatile cache ([`Options::volatile_cache`]) a complete direct write survives by itself on
//!    sectors that were durably written before, and on no others.
//!    A *range sync* sends the dirty pages of its bytes to the device and does nothing else: durable after it is what
//!    was written before to sectors that were durably written once, on a device without a volatile cache.
//! 4. *Names.* Creations, renames and removals are durable after `sync_dir` of their folder; each unsynced one
//!    survives or not on its own, but for what `names.rs` says every file system keeps. A synced file with an unsynced
//!    name is gone. Modes are durable after `sync_all` of the file.
//! 5. *Kill.* One process dies, its handles with it; the machine, its page cache and its boot id stay. A buffered write
//!    in flight may have been copied to any page. A direct one may be complete, be cut short at a page, never have
//!    begun, or be complete **later**, during any operation of a later process.
//! 6. *Late writes and locks.* A dead or closed descriptor keeps its `flock` until its last write in flight has landed.
//!    Waiting for the lock makes the writes land. A lock that is refused while it replaces another loses that one.
//! 7. *A failed sync.* Some sectors landed; the others are marked clean: reads still return them, no later sync writes
//!    them, only a new write does. Those lost in the page cache can be evicted, and read around it they are old at
//!    once.
//! 8. *Errors are reported once* for each open file description that was open when they happened, and to a later one
//!    only if they are unreported. The next sync reports a write-back that fails in the background; it may take along
//!    what the sectors held before ([`SimDisk::destroy_in_writeback`]).
//! 9. *Operation k fails*: with EIO, ENOSPC, a write of zero bytes, a short write (it goes on, as a second operation
//!    that can fail in turn), or the power cut or kill comes in the middle of it. After a failed write any part of it
//!    may have landed.
//! 10. *A flush that lies*: it says yes and does nothing.
//! 11. *Bit rot* and *sectors that cannot be read*, until they are written again, or for good: then writes to them fail
//!     as
//!     well. They go with the file, across power cuts and starts, also when it becomes another segment's.
//! 12. *No space*: a write ends at the last block that there was room for, having landed up to it.
//! 13. *Read-only*: every change fails, as after an error that remounts the file system.
//! 14. *Misuse*: direct accesses that are not made of whole blocks, writes through a handle that only reads, and every
//!     use of a handle of a dead process are errors.
//!
//! **Not modelled:** a sector torn inside, writes that land in another place, stale bytes of other files in new blocks,
//! loss of what was synced, reads that tear against a write in flight, links. Several threads may use it, but then the
//! seed decides less than the scheduler.
//!
//! **Shape.** [`SimDisk`] is one process on the machine, and also the hand that breaks it. All state is one value
//! behind one lock, so that [`SimDisk::fork`] can copy the machine at any instant and crash the copy, as often as there
//! are seeds.

mod content;
mod crash;
mod fault;
mod file;
mod folder;
mod handle;
mod names;
mod state;
mod storage;
#[cfg(test)]
mod tests;
mod transfer;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use clad_journal::io::{Durability, File, IoBuf};

pub use content::{BLOCK, SECTOR};
pub use crash::Survival;
pub use fault::{Counters, Dead, Fault, Op, OpKind};
use names::Node;
use state::{Action, Disk};

use crate::Rng;

/// Properties of the machine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Value of [`clad_journal::io::Storage::block_size`], the unit of direct accesses.
    pub block_size: u32,
    /// True if direct accesses go around the page cache.
    pub direct: bool,
    /// Value of [`clad_journal::io::Storage::zeroing_pays`].
    pub zeroing_pays: bool,
    /// True if a complete direct write may be lost before a flush.
    pub volatile_cache: bool,
    /// Bytes in the file system.
    pub capacity: u64,
    /// True if a lock that another live handle holds is waited for. A single thread would wait for itself for ever, so
    /// without this it gets the error `Deadlock`.
    pub threaded: bool,
    /// Keep every operation for [`SimDisk::trace`].
    pub trace: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            block_size: 4096,
            direct: true,
            zeroing_pays: true,
            volatile_cache: true,
            capacity: 1 << 40,
            threaded: false,
            trace: false,
        }
    }
}

/// One process on the simulated machine, as a [`clad_journal::io::Storage`]; clones are the same process.
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<Shared>,
    process: u64,
}

/// A write or sync in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

struct Shared {
    disk: Mutex<Disk>,
    /// Locks were given back.
    unlocked: Condvar,
    /// Buffers of writes in flight. Not part of the machine: a copy of the machine leaves them here.
    buffers: Mutex<BTreeMap<u64, IoBuf>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn buffers(&self) -> MutexGuard<'_, BTreeMap<u64, IoBuf>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimDisk {
    /// A new machine with an empty folder.
    pub fn new(seed: u64) -> Self {
        Self::with_options(seed, Options::default())
    }

    /// A new machine of some kind.
    pub fn with_options(seed: u64, options: Options) -> Self {
        Self::start(Disk::new(seed, options))
    }

    fn start(mut disk: Disk) -> Self {
        let process = disk.start_process();
        let shared = Shared { disk: Mutex::new(disk), unlocked: Condvar::new(), buffers: Mutex::default() };
        Self { shared: Arc::new(shared), process }
    }

    /// A new process on the same machine: after a power cut the one after the boot, after a kill the next start, and
    /// while this one lives a second one beside it.
    pub fn reopen(&self) -> Self {
        let process = self.shared.lock().start_process();
        Self { shared: self.shared.clone(), process }
    }

    /// A copy of the machine at this instant, writes in flight included, that makes its choices from another seed.
    /// The copy stands for this same process; handles belong to the original.
    pub fn fork(&self, seed: u64) -> Self {
        let mut disk = self.shared.lock().clone();
        disk.rng = Rng::new(seed);
        let shared = Shared { disk: Mutex::new(disk), unlocked: Condvar::new(), buffers: Mutex::default() };
        Self { shared: Arc::new(shared), process: self.process }
    }

    /// The power goes; what survives is chosen by the seed.
    pub fn power_cut(&self) {
        let mut disk = self.shared.lock();
        let survival = Survival::choose(&mut disk.rng);
        disk.power_cut(survival);
        self.shared.unlocked.notify_all();
    }

    /// The power goes, and this much survives.
    pub fn power_cut_as(&self, survival: Survival) {
        self.shared.lock().power_cut(survival);
        self.shared.unlocked.notify_all();
    }

    /// This process dies.
    pub fn kill(&self) {
        self.shared.lock().kill(self.process);
        self.shared.unlocked.notify_all();
    }

    /// True if this process lives.
    pub fn is_alive(&self) -> bool {
        self.shared.lock().is_alive(self.process)
    }

    /// Names this boot of the machine.
    pub fn boot_id(&self) -> [u8; 16] {
        self.shared.lock().boot_id()
    }

    /// Starts a write and leaves it in flight.
    ///
    /// # Errors
    /// The handle is not of a live process of this machine, or the operation failed before it began.
    pub fn begin_write(
        &self,
        file: &Arc<dyn File>,
        buf: IoBuf,
        pos: u64,
        durability: Durability,
    ) -> Result<Ticket, (IoBuf, io::Error)> {
        let mut disk = self.shared.lock();
        let action = Action::Write { pos, bytes: buf.to_vec(), durability };
        match disk.handle_at(address(file)).and_then(|handle| disk.begin(handle, action)) {
            Ok(id) => {
                self.shared.buffers().insert(id, buf);
                Ok(Ticket(id))
            }
            Err(e) => Err((buf, e)),
        }
    }

    /// Starts a sync (`all`: with size and blocks) and leaves it in flight. It covers what is complete now.
    ///
    /// # Errors
    /// As with [`SimDisk::begin_write`].
    pub fn begin_sync(&self, file: &Arc<dyn File>, all: bool) -> io::Result<Ticket> {
        let mut disk = self.shared.lock();
        let handle = disk.handle_at(address(file))?;
        let action = Action::Sync { upto: disk.seq(), all };
        disk.begin(handle, action).map(Ticket)
    }

    /// Starts a range sync and leaves it in flight.
    ///
    /// # Errors
    /// As with [`SimDisk::begin_write`].
    pub fn begin_range(&self, file: &Arc<dyn File>, pos: u64, len: u64) -> io::Result<Ticket> {
        let mut disk = self.shared.lock();
        let handle = disk.handle_at(address(file))?;
        let action = Action::Range { upto: disk.seq(), pos, len };
        disk.begin(handle, action).map(Ticket)
    }

    /// Lets an operation in flight come to its end, and gives a write's buffer back.
    ///
    /// # Errors
    /// Result of the operation; of a dead process, [`Dead`].
    pub fn finish(&self, ticket: Ticket) -> (Option<IoBuf>, io::Result<()>) {
        let done = self.shared.lock().finish(ticket.0);
        self.shared.unlocked.notify_all();
        (self.shared.buffers().remove(&ticket.0), done)
    }

    /// Operations in flight, oldest first.
    pub fn in_flight(&self) -> Vec<Ticket> {
        self.shared.lock().flights.keys().map(|id| Ticket(*id)).collect()
    }

    /// Direct writes of dead processes that have not landed yet.
    pub fn late_writes(&self) -> usize {
        self.shared.lock().late.len()
    }

    /// Lets all of them land.
    pub fn land_late_writes(&self) {
        self.shared.lock().land_late(None);
        self.shared.unlocked.notify_all();
    }

    /// Operations so far, which is the number of the next one.
    pub fn ops(&self) -> u64 {
        self.shared.lock().counters.ops
    }

    /// Makes operation `op` fail (they are counted from 0, over all processes).
    pub fn fail_at(&self, op: u64, fault: Fault) {
        self.shared.lock().faults.insert(op, fault);
    }

    /// Makes the next operation of a kind on a name that contains `part` fail. Several calls queue up.
    pub fn fail_next(&self, kind: OpKind, part: &str, fault: Fault) {
        self.shared.lock().rules.push((kind, part.to_owned(), fault));
    }

    /// Forgets faults that have not come up.
    pub fn clear_faults(&self) {
        let mut disk = self.shared.lock();
        disk.faults.clear();
        disk.rules.clear();
    }

    /// From now on every write and sync fails with EIO, until this is taken back.
    pub fn set_broken(&self, broken: bool) {
        self.shared.lock().broken = broken;
    }

    /// The file system becomes read-only, or writable again.
    pub fn set_read_only(&self, read_only: bool) {
        self.shared.lock().read_only = read_only;
    }

    /// Sets how many bytes the file system holds.
    pub fn set_capacity(&self, bytes: u64) {
        self.shared.lock().options.capacity = bytes;
    }

    /// The kernel fails to write back some unsynced pages of a file; the next sync reports it.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn fail_writeback(&self, name: &str) {
        self.shared.lock().fail_writeback(name);
    }

    /// The kernel fails to write back the unsynced pages of a file, and the device loses what it held there: the
    /// sectors cannot be read until they are written again. The next sync reports it. Returns true if there was any
    /// such page.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn destroy_in_writeback(&self, name: &str) -> bool {
        self.shared.lock().destroy_in_writeback(name)
    }

    /// The page cache drops every clean page.
    pub fn evict(&self) {
        self.shared.lock().inodes.values_mut().for_each(|inode| inode.content.evict());
    }

    /// True if some write-back failed and the error is unreported: the next open of the file gets it.
    pub fn has_untold_error(&self) -> bool {
        self.shared.lock().inodes.values().any(|inode| inode.errors > 0 && !inode.error_reported)
    }

    /// Turns the bits of `mask` over in one byte, everywhere it is held.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn flip(&self, name: &str, pos: u64, mask: u8) {
        self.shared.lock().named(name).content.flip(pos, mask);
    }

    /// Makes the sector of a position unreadable until it is written.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn spoil(&self, name: &str, pos: u64) {
        self.shared.lock().named(name).content.spoil(pos);
    }

    /// Makes the sector of a position fail with EIO for good, for every read and write.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn ruin(&self, name: &str, pos: u64) {
        self.shared.lock().named(name).content.ruin(pos);
    }

    /// The device gives a range of a file again, as it was, and takes writes there.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn heal(&self, name: &str, pos: u64, len: u64) {
        self.shared.lock().named(name).content.heal(pos, len);
    }

    /// A file is copied to sound sectors, with zeroes for the blocks that cannot be read.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn copy(&self, name: &str) {
        self.shared.lock().named(name).content.copy();
    }

    /// The sectors of a file that cannot be read now; none, if there is no such file.
    pub fn bad_sectors(&self, name: &str) -> Vec<u64> {
        let mut disk = self.shared.lock();
        match disk.names.get(name) {
            Some(Node::File(_)) => disk.named(name).content.bad_sectors(),
            _ => Vec::new(),
        }
    }

    /// Puts a file on the media as if it had always been there.
    pub fn install(&self, name: &str, bytes: &[u8]) {
        self.shared.lock().install(name, bytes);
    }

    /// Content of a file as seen through the page cache; no operation, no fault.
    pub fn peek(&self, name: &str) -> Option<Vec<u8>> {
        self.shared.lock().peek(name)
    }

    /// Content of the file if nothing unsynced survived.
    pub fn peek_durable(&self, name: &str) -> Option<Vec<u8>> {
        let mut disk = self.shared.lock();
        matches!(disk.names.get(name), Some(Node::File(_))).then(|| disk.named(name).content.durable())
    }

    /// All names, folders with a `/` at the end.
    pub fn names(&self) -> Vec<String> {
        let disk = self.shared.lock();
        let show = |(name, node): (&str, Node)| if node == Node::Dir { format!("{name}/") } else { name.to_owned() };
        disk.names.all().map(show).collect()
    }

    /// True if a file has its sealed mode.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn is_sealed_mode(&self, name: &str) -> bool {
        self.shared.lock().named(name).sealed
    }

    /// Somebody makes a copy of a file that shares its blocks, or gives it a second name.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn share(&self, name: &str) {
        self.shared.lock().named(name).shared = true;
    }

    /// A number that is the same for machines with the same names and bytes, as a reader sees them.
    pub fn digest(&self) -> u64 {
        self.shared.lock().digest()
    }

    /// Counters of all operations so far, of all processes.
    pub fn counters(&self) -> Counters {
        self.shared.lock().counters
    }

    /// Counters of the operations on a file.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn counters_of(&self, name: &str) -> Counters {
        self.shared.lock().named(name).counters
    }

    /// Every operation so far, if [`Options::trace`] asks for it.
    pub fn trace(&self) -> Vec<Op> {
        self.shared.lock().trace.clone()
    }
}

/// Where a handle lives, which names it while it lives.
fn address(file: &Arc<dyn File>) -> usize {
    Arc::as_ptr(file).cast::<()>() as usize
}
