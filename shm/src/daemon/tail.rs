//! The place up to which space was given back, as it stands in the ring: the client needs it, and so does the next
//! drain.
//!
//! Invariant: a drain that dies at any step leaves a tail whose append number, place and sequence belong together. What
//! was given back is in the log alone: where in which log ([`Stored`]) lies beside the tail, and is the truth or not
//! there. A drain that dies just as it says another log or epoch leaves nothing there.

use crate::error::Corrupt;
use crate::layout::{Cursor, at};
use crate::memory::{Memory, Ordering};

/// No ring lives to see so many: a tail beyond is nonsense, and numbers below it can be added to.
const APPEND_NUMBER_MAX: u64 = 1 << 62;

/// Up to where space was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) append: u64,
    pub(crate) place: u32,
    pub(crate) sequence: u64,
    /// One past the last offset of it in its log; 0: it is not known.
    pub(crate) end: u64,
}

/// Where what was given back is stored: below an offset, in the history of an epoch of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The log.
    pub log_id: [u8; 16],
    /// An epoch in which all of it was there; never 0.
    pub epoch: u32,
    /// One past the last offset of it.
    pub end: u64,
}

impl Stored {
    fn is_of(&self, other: &Self) -> bool {
        (self.log_id, self.epoch) == (other.log_id, other.epoch)
    }
}

impl Tail {
    /// That of a ring which an earlier drain has left.
    pub(crate) fn left<M: Memory>(ring: &M) -> Result<Self, Corrupt> {
        let tail = Cursor(ring.load(at::TAIL, Ordering::Acquire));
        for checkpoint in at::CHECKPOINTS {
            let word = ring.load(checkpoint, Ordering::Acquire);
            let [append, sequence, end] = [8, 16, 24].map(|at| ring.load(checkpoint + at, Ordering::Relaxed));
            if word == tail.0 && Cursor::new(append, tail.place()) == tail && append < APPEND_NUMBER_MAX {
                return Ok(Self { append, place: tail.place(), sequence, end });
            }
        }
        Err(Corrupt::Tail)
    }

    /// Publishes it to the client and to the next drain.
    fn publish<M: Memory>(self, ring: &M) {
        let word = Cursor::new(self.append, self.place).0;
        let current = ring.load(at::TAIL, Ordering::Relaxed);
        // The checkpoint of the current tail stays until the tail has moved.
        let inactive = usize::from(ring.load(at::CHECKPOINTS[0], Ordering::Relaxed) == current);
        let checkpoint = at::CHECKPOINTS[inactive];
        ring.store(checkpoint, u64::MAX, Ordering::Relaxed);
        ring.point("release: checkpoint open");
        ring.store(checkpoint + 8, self.append, Ordering::Relaxed);
        ring.point("release: checkpoint append");
        ring.store(checkpoint + 16, self.sequence, Ordering::Relaxed);
        ring.point("release: checkpoint sequence");
        ring.store(checkpoint + 24, self.end, Ordering::Relaxed);
        ring.point("release: checkpoint end");
        ring.store(checkpoint, word, Ordering::Release);
        ring.point("release: checkpoint, no tail");
        ring.store(at::RELEASED, self.append, Ordering::Relaxed);
        ring.point("release: hint, no tail");
        ring.store(at::TAIL, word, Ordering::Release);
        ring.point("release: tail");
    }
}

/// The ring's word on the log that has what was given back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Log {
    stored: Option<Stored>,
    /// The ring says its log and epoch.
    said: bool,
}

impl Log {
    /// Reads what an earlier drain has left in a ring.
    pub(crate) fn left<M: Memory>(ring: &M, tail: &Tail) -> Self {
        let epoch = ring.load(at::STORED_EPOCH, Ordering::Acquire) as u32;
        let [low, high] = at::STORED_LOG.map(|at| u128::from(ring.load(at, Ordering::Relaxed)));
        let log_id = (low | high << 64).to_le_bytes();
        let stored = (epoch != 0 && tail.end != 0).then_some(Stored { log_id, epoch, end: tail.end });
        Self { stored, said: stored.is_some() }
    }

    pub(crate) const fn stored(&self) -> Option<Stored> {
        self.stored
    }

    /// All that was given back, and all that is given back from now on, is stored there.
    pub(crate) fn note(&mut self, stored: Stored) {
        self.said &= self.stored.is_some_and(|before| before.is_of(&stored));
        self.stored = Some(stored);
    }

    /// The tail moves.
    pub(crate) fn publish<M: Memory>(&mut self, ring: &M, tail: Tail) {
        let news = self.stored.filter(|_| !self.said);
        if news.is_some() {
            // With the words of before, the end that comes would be in another history.
            ring.store(at::STORED_EPOCH, 0, Ordering::Relaxed);
            ring.point("release: no log");
        }
        tail.publish(ring);
        let Some(stored) = news else { return };
        let id = u128::from_le_bytes(stored.log_id);
        let [low, high] = at::STORED_LOG;
        ring.store(low, id as u64, Ordering::Relaxed);
        ring.point("release: half of a log's id");
        ring.store(high, (id >> 64) as u64, Ordering::Relaxed);
        ring.point("release: log, no epoch");
        ring.store(at::STORED_EPOCH, u64::from(stored.epoch), Ordering::Release);
        ring.point("release: log");
        self.said = true;
    }
}
