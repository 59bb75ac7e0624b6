//! Rings that their clients hand back: the daemon that gave them has ended, and this one does not have them from the
//! store.
//!
//! Invariants: the descriptor is a client's word, and costs that client alone.
//! - Only a file of this daemon's own user is taken. The kernel gives a file in memory to the user who makes it, so a
//!   daemon made this one, in a size that it chose. A file of the peer's own would be no ring that was ever given out.
//! - Its seals are checked before it is mapped, and it is never read from: no access can block or end in SIGBUS.
//! - Its name and its memory are in the registry before it is touched, within its user's quota: no ring has two drains.
//! - The doorbell is a new one: a client's descriptor could be anything that a poll or a read stumbles over.
//! - Its records are the peer's that hands it back, whatever the memory says.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use clad_journal::AppendError;
use clad_proto::frame::RingId;
use clad_proto::{ErrorCode, ErrorInfo};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::fstat;
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::give::{Asker, RINGS_DISABLED, unavailable};
use super::given::Given;
use super::handle::{RingRef, Rings};
use super::registry::RegisteredRing;
use super::ring::Ring;
use super::shared::{Order, Shared};
use super::stalled::AttachError;
use crate::fdstore::{Note, StoredRing};

impl Rings {
    pub(super) async fn take_back(
        &self,
        shared: &Arc<Shared>,
        (id, uid): (RingId, u32),
        memory: OwnedFd,
        asker: Asker,
    ) -> Result<(Given, RingRef), ErrorInfo> {
        let again = shared.clone();
        // It brings memory in and asks the fd store: not on a worker.
        let taken = tokio::task::spawn_blocking(move || again.take_back(asker.note(id, uid), memory));
        let ring_ref = taken.await.map_err(|_| unavailable("the ring could not be taken back"))??;
        Ok((self.resume(shared, id).await?, ring_ref))
    }
}

impl Shared {
    pub(super) fn take_back(self: &Arc<Self>, note: Note, memory: OwnedFd) -> Result<RingRef, ErrorInfo> {
        if self.settings.max_rings == 0 {
            return Err(unavailable(RINGS_DISABLED));
        }
        // A newer instance was welcomed, and counts on from what is stored: nothing may come in between.
        let known = self.journal.may_append(note.producer.as_bytes(), note.uid.into(), note.producer_epoch);
        if let Err(fenced @ AppendError::Fenced { .. }) = known {
            return Err(crate::ingest::refusal(&fenced));
        }
        let found = fstat(&memory).map_err(|e| unavailable(format!("the descriptor is of no file: {e}")))?;
        if found.st_uid != rustix::process::geteuid().as_raw() {
            return Err(unavailable("the descriptor is of no ring that a daemon of this user has given out"));
        }
        let (bytes, file) = (usize::try_from(found.st_size).unwrap_or(0), Some((found.st_dev, found.st_ino)));
        let place = Arc::new(RegisteredRing::stalled(note, bytes, file));
        self.enter(place.clone())?;
        let ring = self.attach_handed_back(note, memory).inspect_err(|_| self.registry.deregister(&place))?;
        let registered = ring.registered.clone();
        self.registry.replace(&place, registered.clone());
        tracing::info!(ring = %note.id, uid = note.uid, pid = note.pid, "a client has handed its ring back: it goes on");
        let (done, _) = oneshot::channel();
        let ring_ref = RingRef::of(self, &registered);
        ring_ref.filter(|_| self.order(Order::Add(Box::new(ring), done))).ok_or_else(|| {
            self.fd_store.forget(&note);
            self.registry.deregister(&registered);
            super::give::going_down()
        })
    }

    fn attach_handed_back(&self, note: Note, memory: OwnedFd) -> Result<Ring, ErrorInfo> {
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| come_again(&e))?;
        let ring = self.attach(StoredRing { note, fds: vec![memory, waker] }).map_err(|failed| refusal(&failed.1))?;
        if ring.drain().is_closed() && !ring.registered.is_behind() {
            return Err(unavailable("this ring is closed, and drained to its end"));
        }
        self.put(&ring.registered, ring.drain());
        Ok(ring)
    }
}

fn come_again(why: &dyn std::fmt::Display) -> ErrorInfo {
    let text = format!("the ring cannot be taken back now: {why}");
    ErrorInfo::new(ErrorCode::Busy, text).retry_after_ms(1000)
}

/// What is in the ring is lost to the client only where no daemon of this version can take it.
fn refusal(why: &AttachError) -> ErrorInfo {
    match why {
        AttachError::Session(error) => crate::ingest::refusal(error),
        AttachError::Open(clad_shm::OpenError::Os { error, .. })
            if error.raw_os_error().map(Errno::from_raw_os_error).is_some_and(is_want) =>
        {
            come_again(error)
        }
        AttachError::Open(error) | AttachError::Broken(error) => {
            unavailable(format!("the descriptor is of no ring that can go on: {error}"))
        }
    }
}

/// Returns true if this process, or the machine, lacks what it takes.
fn is_want(why: Errno) -> bool {
    matches!(why, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN)
}
