//! A look at a ring from beside its drain.

use crate::drain::Drain;
use crate::error::OpenError;
use crate::layout::{Cursor, at};
use crate::mapped::{Mapped, Reach};
use crate::memory::{Memory, Ordering};

/// Tells whether there is anything in a ring that its drain has not passed yet. Any thread may ask.
#[derive(Debug)]
pub struct Watch(Mapped);

impl Watch {
    /// One for the ring of a drain.
    ///
    /// # Errors
    /// When the kernel refuses a second mapping.
    pub fn of(drain: &Drain) -> Result<Self, OpenError> {
        Mapped::new(drain.client_fds().ring, drain.shape().ring_bytes(), Reach::ReadOnly).map(Self)
    }

    /// Whether an append with the number `next` or a later one was reserved. Whatever was pushed before something that
    /// the caller knows of, it sees. The client can make this say anything.
    #[must_use]
    pub fn is_behind(&self, next: u64) -> bool {
        Cursor(self.0.load(at::HEAD, Ordering::SeqCst)).ahead_of(next) != 0
    }
}
