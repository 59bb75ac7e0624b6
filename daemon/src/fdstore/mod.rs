//! Store for the descriptors of rings while no daemon runs: that of systemd.
//!
//! A record that is committed in a ring must outlive daemon and client. The memory lives as long as a process has its
//! descriptor, so a third one beside the daemon and the client must have it.
//!
//! Invariants:
//! - A ring counts as stored only where the store has it. For no other ring `posted` is offered.
//! - A stored ring is released only once it is drained to its end and its client is gone.
//! - At a start every stored ring comes back, or is released because it is broken, and the daemon is not ready before.
//! - A client whose ring is new waits for the store, and nobody else: a release that cannot be sent at once is sent with
//!   the next call. A ring that is released late loses nothing.

mod note;
mod poll;
mod store;
mod stored;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use note::{Layout, Note};
use store::Store;
pub(crate) use store::{InheritedFds, NAME};
pub(crate) use stored::{RING_FDS, StoredRing};

/// Interval between two tries to send what is released, at a stop.
const SETTLE_INTERVAL: Duration = Duration::from_millis(1);

/// Access to the store.
#[derive(Debug, Default)]
pub(crate) struct FdStore {
    /// `None` where no service manager has one for this process.
    store: Option<Mutex<Store>>,
    /// Rings that it still has, and that are to be removed.
    released: Mutex<Vec<Note>>,
}

impl FdStore {
    /// The store of this process, and the rings that came back from it.
    ///
    /// # Errors
    /// Where this process lacks descriptors: the rings stay stored.
    pub(crate) fn of_process(inherited: InheritedFds) -> io::Result<(Self, Vec<StoredRing>)> {
        match Store::of_process() {
            None => Ok((Self::default(), Vec::new())),
            Some(mut store) => {
                let stored = store.sort(inherited)?;
                Ok((Self::over(store), stored))
            }
        }
    }

    fn over(store: Store) -> Self {
        Self { store: Some(Mutex::new(store)), released: Mutex::default() }
    }

    /// With room for so many descriptors.
    #[cfg(test)]
    pub(crate) fn for_test(room: usize) -> Self {
        Self::over(store::tests::manager(room, Vec::new()).0)
    }

    /// Returns true if there is one.
    pub(crate) fn exists(&self) -> bool {
        self.store.is_some()
    }

    /// Stores a ring. Blocks until the store has it, or for as long as the service manager may take.
    ///
    /// # Errors
    /// Where it is not stored.
    pub(crate) fn put(&self, note: &Note, fds: [BorrowedFd<'_>; RING_FDS]) -> io::Result<()> {
        let Some(store) = &self.store else { return Err(io::Error::other("there is no descriptor store")) };
        let fds = fds.iter().map(|fd| fd.try_clone_to_owned()).collect::<io::Result<_>>()?;
        let put = lock(store).put(&StoredRing { note: *note, fds });
        match put {
            Ok(()) => self.send_released(),
            Err(_) => self.forget(note), // it may be taken yet
        }
        put
    }

    /// Releases a ring. Does not wait.
    pub(crate) fn forget(&self, note: &Note) {
        if self.exists() {
            lock(&self.released).push(*note);
            self.send_released();
        }
    }

    /// Waits until every ring that was released before is.
    pub(crate) fn settle(&self, until: Instant) {
        while self.exists() && !lock(&self.released).is_empty() && Instant::now() < until {
            self.send_released();
            std::thread::sleep(SETTLE_INTERVAL);
        }
    }

    /// Removes what is released. Who has the store at this moment does it afterwards.
    fn send_released(&self) {
        let Some(store) = &self.store else { return };
        while let Ok(mut store) = store.try_lock() {
            let notes = std::mem::take(&mut *lock(&self.released));
            let sent = notes.iter().take_while(|note| store.forget(note).is_ok()).count();
            drop(store);
            let mut released = lock(&self.released);
            released.extend_from_slice(&notes[sent..]);
            if sent < notes.len() || released.is_empty() {
                return;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
