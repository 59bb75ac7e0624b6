//! Store for the descriptors of rings while no daemon runs.
//!
//! A record that is committed in a ring must outlive the daemon. The memory lives as long as a process has its
//! descriptor, so a third one beside the daemon and the client must have it. Under systemd that is its descriptor store
//! (`store`), elsewhere a small process that does nothing else (`holder`).
//!
//! One thread (`clerk`) speaks with the store or holder, and with nobody else. Neither a client nor the drain waits for
//! it, except a client whose ring is new. It also watches a holder: the end of one is reported, and another is given
//! all rings.
//!
//! Invariants:
//! - The stored rings are one daemon's. No other daemon gets them while it lives, or is near them by its configuration
//!   alone (`places`).
//! - A ring is given to a client only once it is stored. It is released only once it is drained to its end and its
//!   client is gone.
//! - At a start every stored ring comes back, or is released because it is broken, and the daemon is not ready before
//!   (`search`).
//! - While a ring that was given out is not stored, the daemon says so and tries again.

mod clerk;
mod holder;
mod holding;
mod note;
mod places;
mod search;
mod store;

#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::defect::ends_clad;
use crate::ops::health::Health;
pub(crate) use holding::hold;
pub(crate) use note::{Layout, Note};
#[cfg(test)]
pub(crate) use places::HOLDER_SOCKET;
pub(crate) use search::{Sought, find};
pub(crate) use store::InheritedFds;

use clerk::{Ask, Clerk, Place};

/// Description of the thread in the message when it cannot continue.
const THREAD_DESCRIPTION: &str = "the keeper of the rings";

/// Descriptors that make up a ring: the ring itself, and its doorbell. (Each daemon makes a new completion page.)
pub(crate) const RING_FDS: usize = 2;

/// Most requests that are pending: more than there are rings, so that no release waits.
const PENDING_REQUESTS_MAX: usize = 4096;

/// Time that a client waits until its ring is stored: less than the time that clients give a handshake.
const FD_STORE_TIMEOUT: Duration = Duration::from_secs(3);

/// A ring that was stored.
#[derive(Debug)]
pub(crate) struct StoredRing {
    pub(crate) note: Note,
    /// [`RING_FDS`] of them.
    pub(crate) fds: Vec<OwnedFd>,
}

impl StoredRing {
    fn of(note: &Note, parts: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let fds = parts.iter().map(|fd| fd.try_clone_to_owned()).collect::<io::Result<_>>()?;
        Ok(Self { note: *note, fds })
    }

    /// The same, with descriptors of its own.
    fn again(&self) -> io::Result<Self> {
        Self::of(&self.note, &self.parts())
    }

    fn parts(&self) -> Vec<BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd).collect()
    }
}

/// Access to the store, for everybody else.
#[derive(Debug)]
pub(crate) struct FdStore {
    name: &'static str,
    asks: mpsc::SyncSender<Ask>,
    /// Wakes the thread.
    bell: Arc<OwnedFd>,
}

impl FdStore {
    /// With a holder in this folder, which there is none yet.
    #[cfg(test)]
    pub(crate) fn for_test(folder: &std::path::Path) -> Self {
        let holder = holder::Holder::at(folder.join(HOLDER_SOCKET), [0; 16], holder::PATIENCE);
        Self::over(Place::Holder(holder), Health::default()).expect("a keeper")
    }

    fn over(place: Place, health: Health) -> io::Result<Self> {
        let name = place.name();
        let (asks, asked) = mpsc::sync_channel(PENDING_REQUESTS_MAX);
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let clerk = Clerk::new(place, asked, bell.clone(), health);
        std::thread::Builder::new()
            .name("clad-keep".to_owned())
            .spawn(move || ends_clad(THREAD_DESCRIPTION, || clerk.run()))?;
        Ok(Self { name, asks, bell })
    }

    /// Name of the store, for people.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Stores a ring. Blocks, for [`FD_STORE_TIMEOUT`] at most; a ring that is stored later than that is released
    /// again.
    pub(crate) fn put(&self, note: &Note, fds: [BorrowedFd<'_>; RING_FDS]) -> io::Result<()> {
        let (done, stored) = mpsc::sync_channel(1);
        self.ask(Ask::Keep(StoredRing::of(note, &fds)?, done));
        stored.recv_timeout(FD_STORE_TIMEOUT).unwrap_or_else(|e| match e {
            RecvTimeoutError::Disconnected => Err(io::ErrorKind::BrokenPipe.into()),
            RecvTimeoutError::Timeout => {
                self.forget(note);
                Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("it has not said within {FD_STORE_TIMEOUT:?} that it does"),
                ))
            }
        })
    }

    /// Releases a ring. Does not wait.
    pub(crate) fn forget(&self, note: &Note) {
        self.ask(Ask::Forget(*note));
    }

    /// Waits until everything that was asked for before is done.
    pub(crate) fn settle(&self, until: Instant) {
        let (done, settled) = mpsc::sync_channel(1);
        self.ask(Ask::Settle(done));
        let _ = settled.recv_timeout(until.saturating_duration_since(Instant::now()).max(Duration::from_millis(100)));
    }

    fn ask(&self, ask: Ask) {
        // A thread that has ended answers nobody: the channel of the request is dropped, and that is seen.
        let _ = self.asks.send(ask);
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}

impl Drop for FdStore {
    fn drop(&mut self) {
        self.ask(Ask::End);
    }
}

/// Returns true if the other end of a pipe or socket is closed everywhere, now or within some time.
fn has_hung_up(pipe: impl AsFd, within: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::new(&pipe, PollFlags::IN)];
    let within = Timespec { tv_sec: within.as_secs() as _, tv_nsec: within.subsec_nanos().into() };
    poll(&mut fds, Some(&within))?;
    Ok(fds[0].revents().contains(PollFlags::HUP))
}

/// Returns true if this process, or the machine, lacks what it takes to be given rings.
fn is_want(why: &io::Error) -> bool {
    let errno = why.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS))
}
