//! Ring registry: the rings that there are, for everybody but their drain.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use clad_proto::ProducerId;
use clad_proto::frame::RingId;
use clad_shm::{Usage, Watch};

use crate::fdstore::Note;
use crate::ingest::quota::{self, Owner, grows};

/// No connection has held it since this daemon started: its client may come back.
const NEVER_REFERENCED: u32 = u32::MAX;

/// Identity of a ring's memory: device and inode.
pub(super) type File = (u64, u64);

/// State of a ring that others than the drain know.
#[derive(Debug)]
pub(crate) struct RegisteredRing {
    pub(super) note: Note,
    /// Memory that it takes.
    pub(super) bytes: usize,
    /// `None` where the kernel did not say it.
    file: Option<File>,
    /// `None` where no thread drains it.
    watch: Option<Watch>,
    /// All its appends below were handed to the journal.
    handed_over: AtomicU64,
    /// The fd store has it: what is posted there outlives client and daemon.
    stored: AtomicBool,
    /// It is closed, and drained to its end.
    leaving: AtomicBool,
    /// The log has lost what was given back as `written`, and no flush has reported it.
    lost: AtomicBool,
    /// Reason why it is not drained, and will not be by this daemon.
    stuck: Mutex<Option<String>>,
    /// Number of connections that hold it, or [`NEVER_REFERENCED`]. Once it is 0 it stays so: the ring is ending.
    ref_count: AtomicU32,
}

impl RegisteredRing {
    pub(super) fn new(note: Note, bytes: usize, file: Option<File>, watch: Watch, next: u64) -> Self {
        let (handed_over, leaving) = (AtomicU64::new(next), AtomicBool::new(false));
        let (lost, stuck, watch) = (AtomicBool::new(false), Mutex::default(), Some(watch));
        Self {
            note,
            bytes,
            file,
            watch,
            handed_over,
            stored: AtomicBool::new(false),
            leaving,
            lost,
            stuck,
            ref_count: AtomicU32::new(NEVER_REFERENCED),
        }
    }

    /// Entry for a ring that is stored, and that no thread drains now.
    pub(super) fn stalled(note: Note, bytes: usize, file: Option<File>) -> Self {
        Self {
            note,
            bytes,
            file,
            watch: None,
            handed_over: AtomicU64::new(0),
            stored: AtomicBool::new(true),
            leaving: AtomicBool::new(true),
            lost: AtomicBool::new(false),
            stuck: Mutex::default(),
            ref_count: AtomicU32::new(0),
        }
    }

    /// Returns true if both name one ring, or are the same memory.
    fn is_same(&self, other: &Self) -> bool {
        self.note.id == other.note.id || self.file.is_some() && self.file == other.file
    }

    /// Adds a connection that holds it, unless it is ending.
    pub(super) fn acquire(&self) -> bool {
        let more = |ref_count| match ref_count {
            NEVER_REFERENCED => Some(1),
            0 => None,
            some => Some(some + 1),
        };
        self.ref_count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Removes one; returns true if it was the last.
    pub(super) fn release_ref(&self) -> bool {
        self.ref_count.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(super) fn set_stored(&self) {
        self.stored.store(true, Ordering::Release);
    }

    pub(super) fn is_stored(&self) -> bool {
        self.stored.load(Ordering::Acquire)
    }

    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    pub(super) fn has_lost(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Returns true if it has lost something that no flush has reported.
    pub(super) fn has_unreported_loss(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Returns true if it has lost something; once for each time.
    pub(super) fn take_lost(&self) -> bool {
        self.has_unreported_loss() && self.lost.swap(false, Ordering::AcqRel)
    }

    pub(super) fn handed_over(&self, next: u64) {
        self.handed_over.store(next, Ordering::Release);
    }

    /// Fill level of the ring.
    pub(super) fn usage(&self) -> Usage {
        self.watch.as_ref().map_or_else(Usage::default, |watch| watch.usage(self.handed_over.load(Ordering::Acquire)))
    }

    /// Notes why this daemon will not drain it; returns true if that is new.
    pub(super) fn is_stuck(&self, why: &str) -> bool {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner).replace(why.to_owned()).is_none()
    }

    fn why_stuck(&self) -> Option<String> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if this daemon can drain it to its end, as far as is known.
    fn gets_on(&self) -> bool {
        self.watch.is_some() && self.why_stuck().is_none()
    }

    /// The number behind the last append that was reserved in it.
    pub(super) fn head(&self) -> u64 {
        let handed_over = self.handed_over.load(Ordering::Acquire);
        self.watch.as_ref().map_or(handed_over, |watch| watch.head(handed_over))
    }

    /// Returns true if there is something in it that was not handed over.
    pub(super) fn is_behind(&self) -> bool {
        let handed_over = self.handed_over.load(Ordering::Acquire);
        self.watch.as_ref().is_some_and(|watch| watch.head(handed_over) != handed_over)
    }
}

/// Limits of rings. In bytes too: rings of an earlier daemon may be larger than any that are given out now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingQuota {
    pub(super) rings: usize,
    pub(super) bytes: usize,
}

impl RingQuota {
    /// Returns true if there is room for one more, and its user may have it beside the others.
    fn has_room(&self, there: &[Arc<RegisteredRing>], one: &RegisteredRing) -> bool {
        let sum = |(rings, bytes), m: &Arc<RegisteredRing>| (rings + 1, bytes + m.bytes);
        let all = there.iter().fold((0, 0), sum);
        let of_one = there.iter().filter(|m| m.note.uid == one.note.uid).fold((0, 0), sum);
        let owner = Owner::Uid(one.note.uid);
        let (rings, bytes) = (self.rings.saturating_sub(all.0), self.bytes.saturating_sub(all.1));
        grows(owner, of_one.0, rings, 1) && grows(owner, of_one.1, bytes, one.bytes)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct RingRegistry {
    rings: RwLock<Vec<Arc<RegisteredRing>>>,
    /// Number of changes.
    changes: AtomicU64,
}

impl RingRegistry {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Vec<Arc<RegisteredRing>>> {
        self.rings.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rings, to change which there are. A reader that sees the new number sees the change.
    fn change<T>(&self, how: impl FnOnce(&mut Vec<Arc<RegisteredRing>>) -> T) -> T {
        let mut rings = self.rings.write().unwrap_or_else(PoisonError::into_inner);
        let changed = how(&mut rings);
        self.changes.fetch_add(1, Ordering::Release);
        changed
    }

    /// A number that is another one when there are other rings.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Enters a ring, unless it is there, or its producer has one, or there would be more with it than there may be: over all, or
    /// of one user beside others.
    pub(super) fn register(&self, registered: Arc<RegisteredRing>, most: RingQuota) -> Registration {
        self.change(|rings| {
            if rings.iter().any(|m| m.note.producer == registered.note.producer) {
                return Registration::HasOne;
            }
            if rings.iter().any(|m| m.is_same(&registered)) {
                return Registration::Known;
            }
            if !most.has_room(rings, &registered) {
                return Registration::Full;
            }
            rings.push(registered);
            Registration::Done
        })
    }

    /// Enters a ring that was given out before: whatever the limits are now, it is drained.
    pub(super) fn register_adopted(&self, registered: Arc<RegisteredRing>) {
        self.change(|rings| rings.push(registered));
    }

    pub(super) fn deregister(&self, registered: &Arc<RegisteredRing>) {
        self.change(|rings| rings.retain(|m| !Arc::ptr_eq(m, registered)));
    }

    /// Replaces one by another.
    pub(super) fn replace(&self, one: &Arc<RegisteredRing>, other: Arc<RegisteredRing>) {
        self.change(|rings| {
            rings.retain(|m| !Arc::ptr_eq(m, one));
            rings.push(other);
        });
    }

    /// Returns true if there are rings that this daemon drains to their end, if it has the time.
    pub(super) fn any_gets_on(&self) -> bool {
        self.read().iter().any(|m| m.gets_on())
    }

    /// Number of rings that this daemon does not drain, as far as is known.
    pub(super) fn stalled(&self) -> usize {
        self.read().iter().filter(|m| !m.gets_on()).count()
    }

    /// Number of rings that the fd store does not have.
    pub(super) fn unstored(&self) -> usize {
        self.read().iter().filter(|m| !m.is_stored()).count()
    }

    /// Reasons why some are not drained, for each of them.
    pub(super) fn stuck(&self) -> Vec<String> {
        self.read().iter().filter_map(|m| m.why_stuck()).collect()
    }

    pub(super) fn has(&self, id: RingId) -> bool {
        self.read().iter().any(|m| m.note.id == id)
    }

    /// The ring of a producer.
    pub(super) fn of_producer(&self, producer: &ProducerId) -> Option<Arc<RegisteredRing>> {
        self.read().iter().find(|m| m.note.producer == *producer).cloned()
    }

    /// Rings, and the memory that they take.
    pub(super) fn totals(&self) -> (usize, usize) {
        let registry = self.read();
        (registry.len(), registry.iter().map(|m| m.bytes).sum())
    }

    /// Number of rings of each user, largest first.
    pub(super) fn by_owner(&self) -> Vec<(Owner, usize)> {
        let mut by_owner: HashMap<Owner, usize> = HashMap::new();
        self.read().iter().for_each(|registered| *by_owner.entry(Owner::Uid(registered.note.uid)).or_default() += 1);
        quota::sorted(by_owner)
    }

    /// Fill level of all together.
    pub(super) fn usage(&self) -> Usage {
        self.read().iter().map(|registered| registered.usage()).fold(Usage::default(), |all, one| Usage {
            data_bytes: all.data_bytes + one.data_bytes,
            used_bytes: all.used_bytes + one.used_bytes,
            waiting: all.waiting + one.waiting,
        })
    }

    /// Returns true if something lies in one of them that was not handed over.
    pub(super) fn any_behind(&self) -> bool {
        self.read().iter().any(|ring| ring.is_behind())
    }

    pub(super) fn all(&self) -> Vec<Arc<RegisteredRing>> {
        self.read().clone()
    }
}

/// Result of entering a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registration {
    Done,
    Full,
    /// Its producer has one, which is to be drained first: both would count the same sequences.
    HasOne,
    /// Another producer has a ring of this name, or this memory.
    Known,
}
