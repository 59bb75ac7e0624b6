//! `clad.meta` on the disk: written in turn, synced, by blocking calls only, so that the lock file outlives each write.
//!
//! Invariant: when [`MetaFile::update`] returns without an error, the change is durable. When it fails, the old
//! content is still whole in the other slot and the next update goes to the same slot again.
//!
//! One slot may have bit rot, or the device may not return it any more: then the other has the state of one update
//! before. Nothing is lost by that: facts that the segments do not contain as well are in both slots
//! ([`MetaFile::update_both`]).

use std::io;
use std::sync::{Arc, Mutex, RwLock};

use crate::format::META_NAME;
use crate::format::meta::{EpochStart, Meta, MetaError, SLOT};
use crate::io::{Access, Durability, File, IoBuf, Storage, if_there, is_bad_place, read_thrice};
use crate::sync::unpoisoned;

/// The open file and its content.
pub(crate) struct MetaFile {
    inner: Mutex<Inner>,
    /// Its content, for callers that must not wait for a running write.
    said: RwLock<Meta>,
}

struct Inner {
    file: Arc<dyn File>,
    meta: Meta,
    next_slot: u64,
    /// The last write failed, and may be on the disk all the same.
    unsure: bool,
}

/// Result of reading both slots.
pub(crate) enum Loaded {
    /// The chosen slot and its place; and the greatest epoch in either slot.
    Found {
        /// The truth.
        meta: Meta,
        /// Slot that contains it.
        slot: u64,
        /// The greatest epoch that any slot names.
        greatest_epoch: u32,
        /// Nothing newer can have been lost: the other slot holds as well.
        whole: bool,
    },
    /// The file is not there, or neither slot holds.
    Lost,
    /// A newer clad wrote it.
    Newer(MetaError),
}

/// Reads `clad.meta` without changing it.
///
/// # Errors
/// Error of the kernel, except for a missing file.
pub(crate) fn load(storage: &dyn Storage) -> io::Result<Loaded> {
    let Some(file) = if_there(storage.open(META_NAME, Access::ReadDirect))? else { return Ok(Loaded::Lost) };
    let read = [read_slot(file.as_ref(), 0)?, read_slot(file.as_ref(), 1)?];
    let slots: Vec<_> = read.iter().map(|s| s.as_ref().map_or(Err(MetaError::Damaged), |b| Meta::decode(b))).collect();
    if let Some(Err(newer @ MetaError::Newer { .. })) = slots.iter().find(|s| matches!(s, Err(MetaError::Newer { .. })))
    {
        return Ok(Loaded::Newer(*newer));
    }
    let good = || slots.iter().enumerate().filter_map(|(i, s)| s.as_ref().ok().map(|m| (i as u64, m)));
    let greatest_epoch = good().flat_map(|(_, m)| m.epochs.iter().map(|e| e.epoch)).max().unwrap_or(0);
    let whole = slots.iter().all(Result::is_ok);
    match good().max_by_key(|(_, m)| m.generation) {
        Some((slot, meta)) => Ok(Loaded::Found { meta: meta.clone(), slot, greatest_epoch, whole }),
        // The device may return tomorrow what it does not return now: that log has not lost its file.
        None => read.into_iter().find_map(Result::err).map_or(Ok(Loaded::Lost), Err),
    }
}

/// The bytes of one slot, or that the device does not give them.
type Slot = Result<IoBuf, io::Error>;

fn read_slot(file: &dyn File, slot: u64) -> io::Result<Slot> {
    match read_thrice(file, slot * SLOT as u64, SLOT) {
        Err(e) if !is_bad_place(&e) => Err(e),
        slot => Ok(slot),
    }
}

impl MetaFile {
    /// Makes `clad.meta` for a new log: durable, its name too, when this returns.
    ///
    /// # Errors
    /// Error of the kernel.
    pub(crate) fn create(storage: &dyn Storage, log_id: [u8; 16], created_ns: i64) -> io::Result<Self> {
        // Left by a start that was cut before it had made anything else: nothing in it counts.
        if_there(storage.remove(META_NAME))?;
        let epochs = vec![EpochStart { epoch: 1, first_offset: 0 }];
        Self::make(storage, Meta { epochs, ..Meta::new(log_id, created_ns) })
    }

    /// Makes the file, which must not be there, with this in it.
    ///
    /// # Errors
    /// Error of the kernel.
    pub(crate) fn make(storage: &dyn Storage, meta: Meta) -> io::Result<Self> {
        let file = storage.create(META_NAME, Access::WriteDirect)?;
        let both = meta.encode().repeat(2);
        let (_, done) = file.write_at(IoBuf::copy_of(&both), 0, Durability::Written);
        done?;
        storage.set_sealed_mode(META_NAME, true)?;
        file.sync_all()?;
        storage.sync_dir("")?;
        Ok(Self {
            said: RwLock::new(meta.clone()),
            inner: Mutex::new(Inner { file, meta, next_slot: 1, unsure: false }),
        })
    }

    /// Opens the slot that [`load`] found, for writing. That slot is first written again and synced: it may be a clean
    /// page that is not on the disk.
    ///
    /// # Errors
    /// Error of the kernel.
    pub(crate) fn open(storage: &dyn Storage, meta: Meta, slot: u64) -> io::Result<Self> {
        let file = storage.open(META_NAME, Access::WriteDirect)?;
        let inner = Inner { file, meta, next_slot: slot, unsure: false };
        inner.write(&inner.meta)?;
        let said = RwLock::new(inner.meta.clone());
        Ok(Self { said, inner: Mutex::new(Inner { next_slot: 1 - slot, ..inner }) })
    }

    /// The same, and then durably with what `wanted` says in place of that. The chosen slot may be the only one that
    /// holds: it is first written again as it was, for other bytes in its place could be torn, and the new ones go to
    /// the other.
    ///
    /// # Errors
    /// Error of the kernel.
    pub(crate) fn open_with(storage: &dyn Storage, said: Meta, slot: u64, wanted: Meta) -> io::Result<Self> {
        let same = said == wanted;
        let file = Self::open(storage, said, slot)?;
        if !same {
            file.update_both(|meta| *meta = Meta { generation: meta.generation, ..wanted })?;
        }
        Ok(file)
    }

    /// Its content now.
    pub(crate) fn get(&self) -> Meta {
        unpoisoned(self.said.read()).clone()
    }

    /// Changes it, durably.
    ///
    /// # Errors
    /// Error of the kernel; then nothing has changed.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Meta)) -> io::Result<()> {
        let mut inner = self.lock();
        let mut meta = inner.meta.clone();
        change(&mut meta);
        meta.generation += 1;
        inner.unsure = true;
        inner.write(&meta)?;
        inner.unsure = false;
        *unpoisoned(self.said.write()) = meta.clone();
        inner.meta = meta;
        inner.next_slot = 1 - inner.next_slot;
        Ok(())
    }

    /// The same in both slots: what no segment says as well must not hang on one of them.
    ///
    /// # Errors
    /// Error of the kernel on the first; then nothing has changed. The second is tried three times, as reads are; if
    /// all fail the change is valid, on one slot.
    pub(crate) fn update_both(&self, change: impl FnOnce(&mut Meta)) -> io::Result<()> {
        self.update(change)?;
        let again = || self.update(|_| {});
        let _ = again().or_else(|_| again()).or_else(|_| again());
        Ok(())
    }

    /// For callers that are about to remove a file that a failed write may have named: on return the current content
    /// is on the disk, and that write is not.
    ///
    /// # Errors
    /// Error of the kernel; then it may still be there.
    pub(crate) fn settle(&self) -> io::Result<()> {
        let unsure = self.lock().unsure;
        if unsure { self.update(|_| {}) } else { Ok(()) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        unpoisoned(self.inner.lock())
    }
}

impl Inner {
    fn write(&self, meta: &Meta) -> io::Result<()> {
        let at = self.next_slot * SLOT as u64;
        self.file.write_at(IoBuf::copy_of(&meta.encode()), at, Durability::Synced).1
    }
}
