//! Leader of the drain: one thread of two. The other stands by, for when the first is at the disk.
//!
//! The draining thread makes a write itself if a client waits for it and no other thread makes it. So no thread has to
//! be woken to write, and this one needs no notification. But a `received` answer waits for no device,
//! so the drain must not wait either. The thread that holds the [`Drainage`] leads. Before the leader goes to the disk
//! it says on all rings that it sleeps, looks once more, releases the drain and arms the watch. A client that has
//! something for the drain then rings as for one that sleeps. That wakes the other thread, which leads from then on.
//! Back from the disk, the first thread resumes, if none leads.
//!
//! Invariants:
//! - **No wake-up is lost.** The watch is armed once the drain is free. So a woken thread finds it free, or led by a
//!   thread that looks at everything first. A bell that rang before it was armed wakes at once.
//! - **No thread is woken to stand by**, and a leader is woken only by a sender that has something for it.
//! - A writer that others interrupted again and again hands its writes over as before
//!   ([`InlineWritePolicy`](super::backoff::InlineWritePolicy)): rings whose clients continue to log meanwhile need not
//!   wake a thread for each write.
//! - At most one of the two is at the disk: no write is deferred while one is under way.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use clad_journal::{DeferredWrite, WriteBuffer};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;

use super::Shared;
use super::ring::Ring;
use super::thread::Drainage;

thread_local! {
    /// This thread makes a write, and looks at the watermarks after it.
    static WRITES: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if the watermarks are moved by a thread that looks at them itself.
pub(super) fn looks_itself() -> bool {
    WRITES.get()
}

/// Reason why a thread stops leading.
pub(super) enum StepDown {
    /// It makes this write.
    DeferredWrite(DeferredWrite),
    /// All is drained, and nothing more comes.
    Drained,
}

/// The drain, and the access of its two threads to it.
pub(super) struct Leader {
    shared: Arc<Shared>,
    watch: Arc<Watch>,
    drainage: Mutex<Drainage>,
}

impl Leader {
    pub(super) fn new(shared: Arc<Shared>, adopted: Vec<Ring>) -> io::Result<Self> {
        let watch = Arc::new(Watch::new(shared.bell.as_fd())?);
        let drainage = Mutex::new(Drainage::new(shared.clone(), watch.clone(), adopted));
        Ok(Self { shared, watch, drainage })
    }

    /// Runs each of the two threads, until all is drained.
    pub(super) fn serve(&self) {
        let mut write_buffer = WriteBuffer::default();
        loop {
            match self.try_lead() {
                // Where it cannot be armed, no thread would stand by: others are to write.
                Some(StepDown::DeferredWrite(deferred_write)) if !self.watch.arm() => drop(deferred_write),
                Some(StepDown::DeferredWrite(deferred_write)) => {
                    WRITES.set(true);
                    // A write deferred behind it is another thread's: a sync, for example, for which a waiter for
                    // `written` does not wait.
                    drop(deferred_write.write(&mut write_buffer));
                    WRITES.set(false);
                }
                Some(StepDown::Drained) => {
                    self.watch.arm();
                    self.shared.ring_bell();
                    return;
                }
                None => {
                    // The leader was not notified of what this thread has written.
                    self.shared.watermarks_moved();
                    self.watch.wait();
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn stand_by(&self) {
        self.watch.wait();
        self.serve();
    }

    #[cfg(test)]
    pub(super) fn drainage(&self) -> std::sync::MutexGuard<'_, Drainage> {
        self.drainage.lock().expect("no panic")
    }

    #[cfg(test)]
    pub(super) fn arm(&self) {
        assert!(self.watch.arm());
    }

    /// Returns true if the standby thread would be woken now.
    #[cfg(test)]
    pub(super) fn wakes(&self) -> bool {
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut armed = [rustix::event::PollFd::new(&self.watch.armed, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut armed, Some(&at_once)).expect("it can be asked") > 0
    }

    /// Leads, unless the other does.
    pub(super) fn try_lead(&self) -> Option<StepDown> {
        match self.drainage.try_lock() {
            Ok(mut drainage) => Some(drainage.lead()),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("the other thread of the drain panicked"),
        }
    }
}

/// Wakes the standby thread, once for each time that it was armed.
pub(super) struct Watch {
    /// Everything that wakes the drain: its own bell, and those of the rings.
    bells: OwnedFd,
    /// Holds `bells`, for one event at a time.
    armed: OwnedFd,
    /// A thread was woken since the last look.
    woke: AtomicBool,
}

impl Watch {
    pub(super) fn new(bell: BorrowedFd<'_>) -> io::Result<Self> {
        let create = || epoll::create(epoll::CreateFlags::CLOEXEC);
        let watch = Self { bells: create()?, armed: create()?, woke: AtomicBool::new(false) };
        epoll::add(&watch.bells, bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        epoll::add(&watch.armed, &watch.bells, epoll::EventData::new_u64(0), epoll::EventFlags::ONESHOT)?;
        Ok(watch)
    }

    /// Adds one more bell; `false`: the kernel has no room for it.
    pub(super) fn add(&self, bell: BorrowedFd<'_>) -> bool {
        epoll::add(&self.bells, bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN).is_ok()
    }

    /// Removes a bell. A client may hold the same one, so that closing ours would not do.
    pub(super) fn remove(&self, bell: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.bells, bell); // it fails where there was no room for it
    }

    fn arm(&self) -> bool {
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::modify(&self.armed, &self.bells, epoll::EventData::new_u64(0), once).is_ok()
    }

    /// Disarms it: no thread is woken until it is armed again.
    pub(super) fn disarm(&self) {
        let _ = epoll::modify(&self.armed, &self.bells, epoll::EventData::new_u64(0), epoll::EventFlags::empty());
    }

    fn wait(&self) {
        let mut events = Vec::with_capacity(1);
        // An error is a signal that came, or leaves nothing to look at.
        if epoll::wait(&self.armed, spare_capacity(&mut events), None).is_ok() {
            self.woke.store(true, Ordering::Relaxed);
            crate::ops::metrics::ring_wakeup();
        }
    }

    /// Returns true if a thread was woken since the last call.
    pub(super) fn woke(&self) -> bool {
        self.woke.swap(false, Ordering::Relaxed)
    }
}
