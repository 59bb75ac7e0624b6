//! Sleep and wake-up: two flags that are looked at after something was published.
//!
//! Both ways go the same: *A* publishes, then looks whether *B* sleeps; *B* says that it sleeps, then looks whether
//! there is something. With a sequentially consistent fence between the two steps of each, at least one sees the other,
//! so neither sleeps on what has come. A wake-up for nothing is possible, and costs a system call.

use crate::layout::at;
use crate::memory::{Memory, Ordering};

/// The drain says that it is about to sleep. Then it must look once more.
pub(crate) fn fall_asleep<M: Memory>(ring: &M) {
    let word = ring.load(at::SLEEP, Ordering::Relaxed);
    ring.store(at::SLEEP, word.wrapping_add(1 + (word & 1)), Ordering::SeqCst);
    ring.point("sleep: said");
    ring.fence();
}

/// True while the drain says that it sleeps.
pub(crate) fn is_asleep<M: Memory>(ring: &M) -> bool {
    ring.load(at::SLEEP, Ordering::Relaxed) & 1 == 1
}

/// The drain is awake.
pub(crate) fn wake_up<M: Memory>(ring: &M) {
    let word = ring.load(at::SLEEP, Ordering::Relaxed);
    if word & 1 == 1 {
        ring.store(at::SLEEP, word.wrapping_add(1), Ordering::Relaxed);
        ring.point("sleep: over");
    }
}

/// After a commit: true if the drain sleeps. The word is for [`woken`].
#[inline]
pub(crate) fn sleeper<M: Memory>(ring: &M) -> Option<u64> {
    ring.fence_after_exchange();
    let word = ring.load(at::SLEEP, Ordering::SeqCst);
    (word & 1 == 1).then_some(word)
}

/// The drain was woken out of this sleep: no other needs to wake it. A later sleep has another word.
pub(crate) fn woken<M: Memory>(ring: &M, word: u64) {
    let _ = ring.exchange(at::SLEEP, word, word.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
}

/// Event that a client can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Space was given back.
    Space,
    /// A watermark was raised.
    Ack,
}

impl Event {
    fn waiters(self) -> usize {
        match self {
            Self::Space => at::SPACE_WAITERS,
            Self::Ack => at::ACK_WAITERS,
        }
    }

    /// The word to wait on: it changes when the event comes and there is a waiter.
    pub(crate) fn bell(self) -> usize {
        match self {
            Self::Space => at::SPACE_BELL,
            Self::Ack => at::ACK_BELL,
        }
    }
}

/// A thread of the client says that it waits.
pub(crate) fn begin_wait<M: Memory>(ring: &M, event: Event) {
    ring.add(event.waiters(), 1);
    ring.point("wait: said");
}

/// The bell's value now. Then look whether the event has come; if not, wait for the bell to change.
pub(crate) fn bell<M: Memory>(ring: &M, event: Event) -> u32 {
    ring.fence();
    ring.load(event.bell(), Ordering::SeqCst) as u32
}

/// The thread waits no more.
pub(crate) fn end_wait<M: Memory>(ring: &M, event: Event) {
    ring.add(event.waiters(), u64::MAX);
    ring.point("wait: over");
}

/// After the event was published: true if there is a waiter, which the futex of the bell must wake.
pub(crate) fn ring_bell<M: Memory>(ring: &M, event: Event) -> bool {
    ring.fence();
    if ring.load(event.waiters(), Ordering::Relaxed) == 0 {
        return false;
    }
    ring.add(event.bell(), 1);
    ring.point("bell: rung");
    true
}
