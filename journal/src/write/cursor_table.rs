//! The table of named cursors: what those who read the log have committed, on the disk and in memory.
//!
//! Invariants:
//! - What is in memory is on the disk: a change counts, and its commit is answered, only after the synced write. After a
//!   failed write the table is as before. On the disk that write may have landed, so a start may find a commit that was
//!   answered by an error; it never finds one that nobody asked for.
//! - Changes that came together are one write. Each is judged by itself, in its order: one that is refused changes nothing
//!   for the others.
//! - A name belongs to the owner that first used it. Places are shared by owner: an owner grows only while as many places
//!   as it has are still free.
//! - The two slots are written in turn. With one slot damaged, cursors are as one write before: lower, never higher. With
//!   both, the file is moved to `quarantine/` and the log has no cursors; nothing else depends on them.

use std::io;
use std::sync::{Arc, Mutex, RwLock};

use crate::clock::Moment;
use crate::error::{CursorError, OpenError};
use crate::format::cursors::{CursorSlot, MAX_CURSORS, NOTE_BYTES_MAX, NamedCursor, SLOT, SlotError, is_name};
use crate::format::meta::Meta;
use crate::format::{CURSORS_DIR, CURSORS_NAME};
use crate::io::{Access, Durability, File, IoBuf, Storage, if_there, is_bad_place, read_thrice};
use crate::sync::unpoisoned;
use crate::write::owner_bytes::NETWORK;

const HALF_MADE: &str = "cursors/table.tmp";

/// A wanted change of one cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CursorChange {
    /// Sets the place, and makes the cursor where there is none. The caller has checked the place.
    Commit {
        /// Its name.
        name: String,
        /// The owner that asks.
        owner: u64,
        /// The epoch whose history the place is in.
        epoch: u32,
        /// Offset of the next record to read.
        offset: u64,
        /// Retention is to pass over what is not read.
        hold: bool,
        /// The owner's own words; at most [`NOTE_BYTES_MAX`] bytes.
        note: Vec<u8>,
    },
    /// Removes a cursor.
    Drop {
        /// Its name.
        name: String,
        /// The owner that asks; nothing is an administrator.
        owner: Option<u64>,
    },
}

/// The table.
pub(crate) struct CursorTable {
    inner: Mutex<Inner>,
    /// The cursors that are on the disk, for callers that must not wait for a running write.
    synced: RwLock<Arc<Vec<NamedCursor>>>,
}

struct Inner {
    /// None before the first commit of a log.
    file: Option<Arc<dyn File>>,
    log_id: [u8; 16],
    generation: u64,
    next_slot: u64,
}

/// Result of reading the file.
pub(crate) enum Loaded {
    /// The table; empty where there is no file.
    Table(CursorTable),
    /// Neither slot is valid: the file's bytes.
    Damaged(u64),
}

impl CursorTable {
    /// A table without cursors, and without a file.
    pub(crate) fn new(log_id: [u8; 16]) -> Self {
        let inner = Inner { file: None, log_id, generation: 0, next_slot: 0 };
        Self { inner: Mutex::new(inner), synced: RwLock::default() }
    }

    /// Reads the table of a log, and writes it once again: what a dead process left may be in the page cache alone.
    ///
    /// # Errors
    /// Error of the kernel, or a newer version.
    pub(crate) fn load(storage: &dyn Storage, log_id: [u8; 16]) -> Result<Loaded, OpenError> {
        let io = || OpenError::io(CURSORS_NAME);
        if_there(storage.remove(HALF_MADE)).map_err(io())?;
        let opened = if_there(storage.open(CURSORS_NAME, Access::WriteDirect)).map_err(io())?;
        let Some(file) = opened else { return Ok(Loaded::Table(Self::new(log_id))) };
        let len = file.len().map_err(io())?;
        let mut slots = Vec::new();
        for slot in 0..2 {
            match read_thrice(file.as_ref(), slot * SLOT as u64, SLOT) {
                Err(e) if !is_bad_place(&e) && e.kind() != io::ErrorKind::UnexpectedEof => return Err(io()(e)),
                read => slots.push(read.ok().map_or(Err(SlotError::Damaged), |bytes| CursorSlot::decode(&bytes))),
            }
        }
        if let Some(newer) = slots.iter().find_map(|s| s.as_ref().err().filter(|e| **e != SlotError::Damaged)) {
            return Err(OpenError::Newer(newer.to_string()));
        }
        let good = slots.into_iter().zip(0..).filter_map(|(slot, at)| slot.ok().map(|slot| (slot, at)));
        let of_this_log = good.filter(|(slot, _)| slot.log_id == log_id);
        let Some((newest, at)) = of_this_log.max_by_key(|(slot, _)| slot.generation) else {
            return Ok(Loaded::Damaged(len));
        };
        let inner = Inner { file: Some(file), log_id, generation: newest.generation, next_slot: 1 - at };
        let table = Self { inner: Mutex::new(inner), synced: RwLock::new(Arc::new(newest.cursors.clone())) };
        unpoisoned(table.inner.lock()).write(storage, &newest.cursors).map_err(io())?;
        Ok(Loaded::Table(table))
    }

    /// The cursors, by name.
    pub(crate) fn all(&self) -> Arc<Vec<NamedCursor>> {
        unpoisoned(self.synced.read()).clone()
    }

    /// Makes changes, in one write. The answers are in the order of the changes.
    ///
    /// # Errors
    /// Error of the kernel; then none is made.
    pub(crate) fn change(
        &self,
        storage: &dyn Storage,
        changes: &[CursorChange],
        max: usize,
        now: Moment,
    ) -> io::Result<Vec<Result<(), CursorError>>> {
        let mut inner = unpoisoned(self.inner.lock());
        let before = self.all();
        let mut cursors = before.as_ref().clone();
        let answers = changes.iter().map(|change| apply(&mut cursors, change, max.min(MAX_CURSORS), now)).collect();
        if cursors != *before {
            inner.write(storage, &cursors)?;
            *unpoisoned(self.synced.write()) = Arc::new(cursors);
        }
        Ok(answers)
    }
}

/// The first offset that a cursor has not read in this history of the log: where its own has parted from it, that place.
pub(crate) fn unread_from(meta: &Meta, cursor: &NamedCursor) -> u64 {
    meta.parting(cursor.epoch, cursor.offset).map_or(cursor.offset, |parting| parting.first_offset)
}

fn apply(cursors: &mut Vec<NamedCursor>, change: &CursorChange, max: usize, now: Moment) -> Result<(), CursorError> {
    let (CursorChange::Commit { name, .. } | CursorChange::Drop { name, .. }) = change;
    let place = cursors.binary_search_by(|cursor| cursor.name.cmp(name));
    match change {
        CursorChange::Drop { owner, .. } => {
            let at = place.map_err(|_| CursorError::NotThere)?;
            if owner.is_some_and(|owner| owner != cursors[at].owner) {
                return Err(CursorError::NotOwner);
            }
            cursors.remove(at);
        }
        CursorChange::Commit { name, owner, epoch, offset, hold, note } => {
            if !is_name(name) || note.len() > NOTE_BYTES_MAX {
                return Err(CursorError::BadName);
            }
            let new = NamedCursor {
                name: name.clone(),
                owner: *owner,
                epoch: *epoch,
                offset: *offset,
                committed_ns: now.real_ns,
                hold: *hold,
                note: note.clone(),
            };
            match place {
                Ok(at) if cursors[at].owner != *owner => return Err(CursorError::NotOwner),
                Ok(at) => cursors[at] = new,
                Err(at) => {
                    if !has_room_for(cursors, *owner, max) {
                        return Err(CursorError::TooMany { max });
                    }
                    cursors.insert(at, new);
                }
            }
        }
    }
    Ok(())
}

/// An owner grows only while as many places as it then has are free for others. Root may take the last.
fn has_room_for(cursors: &[NamedCursor], owner: u64, max: usize) -> bool {
    let counted = |owner: u64| if owner & NETWORK != 0 { NETWORK } else { owner };
    let theirs = cursors.iter().filter(|cursor| counted(cursor.owner) == counted(owner)).count();
    let free = max.saturating_sub(cursors.len());
    free > 0 && (owner == 0 || theirs < free)
}

impl Inner {
    fn write(&mut self, storage: &dyn Storage, cursors: &[NamedCursor]) -> io::Result<()> {
        let slot = CursorSlot { generation: self.generation + 1, log_id: self.log_id, cursors: cursors.to_vec() };
        let mut bytes = slot.encode();
        match &self.file {
            Some(file) => {
                // A direct write covers whole blocks; what lies behind the checksum means nothing.
                bytes.resize(bytes.len().next_multiple_of(storage.block_size() as usize), 0);
                let at = self.next_slot * SLOT as u64;
                file.write_at(IoBuf::copy_of(&bytes), at, Durability::Synced).1?;
            }
            None => self.file = Some(make(storage, bytes)?),
        }
        (self.generation, self.next_slot) = (slot.generation, 1 - self.next_slot);
        Ok(())
    }
}

/// Makes the file: under its name it has a whole slot from the first moment on.
fn make(storage: &dyn Storage, mut first_slot: Vec<u8>) -> io::Result<Arc<dyn File>> {
    storage.create_dir(CURSORS_DIR)?;
    if_there(storage.remove(HALF_MADE))?;
    let file = storage.create(HALF_MADE, Access::WriteDirect)?;
    first_slot.resize(2 * SLOT, 0);
    file.write_at(IoBuf::copy_of(&first_slot), 0, Durability::Written).1?;
    storage.set_sealed_mode(HALF_MADE, true)?;
    file.sync_all()?;
    storage.rename(HALF_MADE, CURSORS_NAME)?;
    storage.sync_dir(CURSORS_DIR)?;
    storage.sync_dir("")?;
    Ok(file)
}
