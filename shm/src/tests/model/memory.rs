//! Memory whose interleavings and reorderings loom enumerates.
//!
//! Words of the header and slots are atomics. The data area is made of plain cells. Two threads that reach one without
//! an order between them, one of them writing, are a failure, whether or not the value came out right. So a model fails
//! as soon as an entry is read before its commit is seen, or space is used again before it was given back.
//!
//! loom remembers one last access of each atomic, so it overlooks a race between a load of one thread and an exchange
//! of another that loaded the same word before. Therefore each model runs twice: as it is, and [`Setting::linked`],
//! where each access is preceded by a relaxed addition to a shadow of the word, which loom does not overlook. (Not only
//! so: between fences, the shadows order more than the protocol does.)

use std::collections::HashMap;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, fence};

use crate::layout::{Shape, at};
use crate::memory::{Memory, Ordering};

/// Defect made on purpose, to see the model fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// The commit is stored, not exchanged: it can overwrite that the drain gave the append up.
    CommitByStore,
    /// The commit does not release what was written before.
    CommitRelaxed,
    /// The drain does not acquire what was committed.
    SlotLoadRelaxed,
    /// The tail does not release the space.
    TailStoreRelaxed,
    /// The tail is not acquired.
    TailLoadRelaxed,
    /// The head is stored, not exchanged.
    ReserveByStore,
    /// There are no fences.
    NoFences,
    /// Clients do not look for abandoned regions.
    AbandonedRegionsIgnored,
}

/// Setting of a model run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) flaw: Option<Flaw>,
    pub(super) linked: bool,
}

/// Shared memory of a model.
pub(super) struct Modelled(Arc<Inner>);

struct Inner {
    words: HashMap<usize, AtomicU64>,
    shadows: HashMap<usize, AtomicU64>,
    cells: Vec<UnsafeCell<u64>>,
    data_at: usize,
    slots: std::ops::Range<usize>,
    setting: Setting,
}

// SAFETY: the cells are checked by loom: an unordered access is a failed model.
#[allow(unsafe_code)]
unsafe impl Send for Inner {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Inner {}

impl Clone for Modelled {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl Modelled {
    /// A ring of zeroes.
    pub(super) fn ring(shape: Shape, setting: Setting) -> Self {
        let header = [at::MAGIC, at::VERSION, at::DATA_BYTES, at::SLOTS, at::HEAD, at::ACK_WAITERS, at::SPACE_WAITERS];
        let daemon = at::TAIL..=at::ACK_BELL;
        let regions = at::ABANDONED_REGIONS..at::ABANDONED_REGIONS + Self::ABANDONED_REGIONS_MAX * 16;
        let left = at::LEFT..at::LEFT + Self::ABANDONED_REGIONS_MAX * 8;
        let slots = at::SLOT_TABLE..at::SLOT_TABLE + shape.slots() as usize * 8;
        let all = header.into_iter().chain(daemon.step_by(8)).chain((256..320).step_by(8));
        let all = all.chain(regions.step_by(8)).chain(left.step_by(8)).chain(slots.clone().step_by(8));
        let (words, shadows) = words(all, setting);
        let cells = (0..shape.units()).map(|_| UnsafeCell::new(0)).collect();
        Self(Arc::new(Inner { words, shadows, cells, data_at: shape.data_at(), slots, setting }))
    }

    /// A completion page with its header and the answers of the first `answers` appends.
    pub(super) fn completion_page(answers: usize, setting: Setting) -> Self {
        let all = (0..152).step_by(8).chain((4096..4096 + answers * 32).step_by(8));
        let (words, shadows) = words(all, setting);
        Self(Arc::new(Inner { words, shadows, cells: Vec::new(), data_at: usize::MAX, slots: 0..0, setting }))
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.0.setting.flaw == Some(flaw)
    }

    /// The atomic of a word, about to be reached.
    fn word(&self, at: usize) -> &AtomicU64 {
        if let Some(shadow) = self.0.shadows.get(&at) {
            shadow.fetch_add(1, Ordering::Relaxed);
        }
        &self.0.words[&at]
    }

    fn cell(&self, at: usize) -> Option<&UnsafeCell<u64>> {
        at.checked_sub(self.0.data_at).map(|offset| &self.0.cells[offset / 8])
    }

    fn weaken(&self, at: usize, order: Ordering, store: bool) -> Ordering {
        let weak = match (at, store) {
            (at::TAIL, true) => self.is(Flaw::TailStoreRelaxed),
            (at::TAIL, false) => self.is(Flaw::TailLoadRelaxed),
            (at, false) if self.0.slots.contains(&at) => self.is(Flaw::SlotLoadRelaxed),
            _ => false,
        };
        if weak { Ordering::Relaxed } else { order }
    }
}

type Words = HashMap<usize, AtomicU64>;

fn words(all: impl Iterator<Item = usize>, setting: Setting) -> (Words, Words) {
    let places: Vec<usize> = all.collect();
    let make = || places.iter().map(|at| (*at, AtomicU64::new(0))).collect();
    (make(), if setting.linked { make() } else { HashMap::new() })
}

#[allow(unsafe_code)]
impl Memory for Modelled {
    const ABANDONED_REGIONS_MAX: usize = 2;

    fn load(&self, at: usize, order: Ordering) -> u64 {
        if at == at::ABANDONED_REGION_COUNT && self.is(Flaw::AbandonedRegionsIgnored) {
            return 0;
        }
        match self.cell(at) {
            // SAFETY: loom fails the model where this is not ordered with all writes.
            Some(cell) => cell.with(|word| unsafe { *word }),
            // loom has no sequentially consistent loads and stores; the protocol may not lean on them without a fence.
            None => self.word(at).load(match self.weaken(at, order, false) {
                Ordering::SeqCst => Ordering::Acquire,
                order => order,
            }),
        }
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        match self.cell(at) {
            // SAFETY: as above, with all accesses.
            Some(cell) => cell.with_mut(|word| unsafe { *word = value }),
            None => self.word(at).store(
                value,
                match self.weaken(at, order, true) {
                    Ordering::SeqCst => Ordering::Release,
                    order => order,
                },
            ),
        }
    }

    fn exchange(&self, at: usize, old: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        let committing = self.0.slots.contains(&at) && new >> 62 == 1;
        let by_store = at == at::HEAD && self.is(Flaw::ReserveByStore) || committing && self.is(Flaw::CommitByStore);
        if by_store {
            self.word(at).store(new, Ordering::Release);
            return Ok(old);
        }
        let relaxed = committing && self.is(Flaw::CommitRelaxed);
        let success = match success {
            _ if relaxed => Ordering::Relaxed,
            Ordering::SeqCst => Ordering::AcqRel,
            order => order,
        };
        self.word(at).compare_exchange(old, new, success, failure)
    }

    fn add(&self, at: usize, value: u64) -> u64 {
        self.word(at).fetch_add(value, Ordering::AcqRel)
    }

    fn set_bits(&self, at: usize, bits: u64) -> u64 {
        self.word(at).fetch_or(bits, Ordering::AcqRel)
    }

    fn fence(&self) {
        if !self.is(Flaw::NoFences) {
            fence(Ordering::SeqCst);
        }
    }

    fn fence_of(&self, order: Ordering) {
        if !self.is(Flaw::NoFences) {
            fence(order);
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        for (index, piece) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.store(at + index * 8, u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }

    fn read(&self, at: usize, bytes: &mut [u8]) {
        for (index, piece) in bytes.chunks_mut(8).enumerate() {
            let word = self.load(at + index * 8, Ordering::Relaxed).to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }
}
