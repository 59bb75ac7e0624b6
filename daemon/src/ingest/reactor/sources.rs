//! Sources of the reactor's epoll, by the number of their events.
//!
//! Invariant: an event of something that is gone finds nobody, for no number is given twice.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::epoll::{self, EventData, EventFlags};

/// A source of events.
pub(super) trait Watched: Send + Sync + 'static {
    /// Notes events of the epoll.
    fn happened(&self, flags: EventFlags);
}

/// Sources of one epoll.
pub(super) struct Sources {
    epoll: Arc<OwnedFd>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    last: u64,
    by_number: HashMap<u64, Weak<dyn Watched>>,
}

impl Sources {
    pub(super) fn new(epoll: &Arc<OwnedFd>) -> Arc<Self> {
        Arc::new(Self { epoll: epoll.clone(), known: Mutex::default() })
    }

    pub(super) fn find(&self, number: u64) -> Option<Arc<dyn Watched>> {
        self.known().by_number.get(&number).and_then(Weak::upgrade)
    }

    /// Enters the source that is made with this number. It leaves when it is dropped.
    pub(super) fn enter<W: Watched>(&self, made: impl FnOnce(u64) -> W) -> Arc<W> {
        let mut known = self.known();
        known.last += 1;
        let number = known.last;
        let source = Arc::new(made(number));
        let weak = Arc::downgrade(&source);
        let before = known.by_number.insert(number, weak);
        assert!(before.is_none(), "a number is given twice: events would wake another task, and theirs never");
        source
    }

    /// Reports events of a descriptor to the source of this number; those that are already there are reported at once.
    pub(super) fn watch(&self, fd: impl AsFd, number: u64, events: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(number), events)?)
    }

    /// Asks for these events from now on; those that are already there are reported at once.
    pub(super) fn ask(&self, fd: impl AsFd, number: u64, events: EventFlags) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(number), events)?)
    }

    /// Reports nothing of this descriptor any more.
    pub(super) fn unwatch(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd); // where it fails, it was not watched
    }

    /// Forgets a source.
    pub(super) fn forget(&self, number: u64) {
        self.known().by_number.remove(&number);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.known().by_number.is_empty()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
