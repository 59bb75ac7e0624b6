//! A look at a ring from beside its drain.

use crate::daemon::drain::Drain;
use crate::error::OpenError;
use crate::layout::{Cursor, Shape, UNIT, at};
use crate::mapped::{MapMode, Mapped};
use crate::memory::{Memory, Ordering};

/// Reports whether there is anything in a ring that its drain has not passed yet. Any thread may ask.
#[derive(Debug)]
pub struct Watch(Mapped, Shape);

/// Fill of a ring. The values that its client can forge are bounded by what the ring can hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Room for entries, bytes.
    pub data_bytes: u64,
    /// Bytes reserved and not given back: records that are not written yet, and their headers.
    pub used_bytes: u64,
    /// Appends that were reserved and not passed.
    pub waiting: u64,
}

impl Watch {
    /// One for the ring of a drain.
    ///
    /// # Errors
    /// When the kernel refuses a second mapping.
    pub fn of(drain: &Drain) -> Result<Self, OpenError> {
        Mapped::new(drain.client_fds().ring, drain.shape().ring_bytes(), MapMode::ReadOnly)
            .map(|ring| Self(ring, drain.shape()))
    }

    /// Fill of the ring; `next` as for [`Watch::is_behind`].
    #[must_use]
    pub fn usage(&self, next: u64) -> Usage {
        // The tail first: the head is never behind it.
        let tail = Cursor(self.0.load(at::TAIL, Ordering::Acquire));
        let head = Cursor(self.0.load(at::HEAD, Ordering::Acquire));
        let used = u64::from(head.place().wrapping_sub(tail.place())) * u64::from(UNIT);
        let data_bytes = u64::from(self.1.data_bytes());
        Usage {
            data_bytes,
            used_bytes: used.min(data_bytes),
            waiting: head.ahead_of(next).min(u64::from(self.1.slots())),
        }
    }

    /// True if an append with the number `next` or a later one was reserved. It sees every push before an event that
    /// the caller knows of. The client can forge this answer.
    #[must_use]
    pub fn is_behind(&self, next: u64) -> bool {
        Cursor(self.0.load(at::HEAD, Ordering::SeqCst)).ahead_of(next) != 0
    }
}
