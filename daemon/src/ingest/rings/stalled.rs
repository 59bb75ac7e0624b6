//! Stored rings that cannot be resumed: for now, by this version, or in this log.
//!
//! Invariants: a stored ring is released only where it is nonsense, which no later try and no other version can take.
//! Only its note is proof that another version made it: in the ring, its client can write that. Any other ring stays
//! stored as it is, with all that is `posted` in it. Until it is drained its producer logs by no other way, for that
//! would count the same sequences; nobody else waits for it. The daemon reports it, with the remedy, and tries again
//! after [`ATTACH_RETRY_PAUSE`], doubling, where that can help. A mere look at stalled rings waits for no try.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use clad_journal::AppendError;
use clad_proto::frame::RingId;
use clad_shm::OpenError;
use rustix::fs::fstat;
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::registry::RegisteredRing;
use super::ring::Ring;
use super::{Order, Rings, Shared};
use crate::fdstore::StoredRing;
use crate::ingest::Producer;

/// Time between two tries: at first, and at most.
const ATTACH_RETRY_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Most reasons that are reported at once.
const REPORTED_REASONS_MAX: usize = 3;

/// Reason why a stored ring is not resumed.
#[derive(Debug)]
pub(super) enum AttachError {
    /// It is broken: no daemon can ever resume it.
    Broken(OpenError),
    /// The kernel, or another version of the layout.
    Open(OpenError),
    /// The log takes nothing of its producer.
    Session(AppendError),
}

impl AttachError {
    pub(super) fn of(error: OpenError) -> Self {
        match error.is_for_good() {
            true => Self::Broken(error),
            false => Self::Open(error),
        }
    }

    /// Returns true if it may pass by itself, or by what an operator does to this process and the host.
    const fn may_pass(&self) -> bool {
        match self {
            Self::Broken(_) | Self::Open(OpenError::Version(_)) => false,
            Self::Open(_) | Self::Session(_) => true,
        }
    }

    /// Remedy that would let the ring resume.
    fn way_out(&self) -> &'static str {
        let number = match self {
            Self::Open(OpenError::Os { error, .. }) => error.raw_os_error().map(Errno::from_raw_os_error),
            _ => None,
        };
        match (self, number) {
            (_, Some(Errno::MFILE)) => "it needs more open files: raise LimitNOFILE= in the unit (ulimit -n)",
            (_, Some(Errno::NFILE)) => "it needs more open files on this host: raise the sysctl fs.file-max",
            (_, Some(Errno::NOMEM | Errno::NOSPC)) => {
                "it needs more memory: see MemoryMax= in the unit, and the sysctls vm.overcommit_memory and vm.max_map_count"
            }
            (Self::Open(OpenError::Version(_)), _) => "the version of clad that gave it out can go on with it",
            (Self::Session(_), _) => {
                "another log is in the folder than when it was given out, or the log has forgotten it"
            }
            _ => "mend that",
        }
    }

    fn cause(&self) -> &dyn std::fmt::Display {
        match self {
            Self::Broken(error) | Self::Open(error) => error,
            Self::Session(error) => error,
        }
    }
}

impl std::fmt::Display for AttachError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.cause(), self.way_out())
    }
}

/// A stalled ring.
pub(super) struct StalledRing {
    /// Not there while it is tried again.
    stored: Option<StoredRing>,
    why: AttachError,
    /// Holds its producer's place meanwhile.
    registered: Arc<RegisteredRing>,
    /// As long as there is one, the log does not forget which of its records it has.
    #[expect(dead_code, reason = "it is there to be dropped")]
    session: Option<Producer>,
}

impl StalledRing {
    #[cfg(test)]
    pub(super) fn fds(&mut self) -> &mut Vec<std::os::fd::OwnedFd> {
        &mut self.stored.as_mut().expect("it is not tried just now").fds
    }

    #[cfg(test)]
    pub(super) const fn is_tried(&self) -> bool {
        self.stored.is_none()
    }
}

impl Shared {
    pub(super) fn stalled(&self) -> MutexGuard<'_, Vec<StalledRing>> {
        self.stalled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resumes a ring of an earlier daemon, releases it, or adds it to the stalled rings.
    pub(super) fn adopt(&self, stored: StoredRing) -> Option<Ring> {
        let note = stored.note;
        let (stored, why) = match self.attach(stored) {
            Ok(ring) => {
                self.registry.register_adopted(ring.registered.clone());
                return Some(ring);
            }
            Err(failed) => *failed,
        };
        if let AttachError::Broken(error) = &why {
            crate::ops::metrics::ring_cut_off();
            tracing::error!(ring = %note.id, uid = note.uid, pid = note.pid, why = %error, "a ring that was kept is let go");
            self.fd_store.forget(&note);
            return None;
        }
        tracing::error!(
            ring = %note.id, producer = %note.producer, uid = note.uid, pid = note.pid, %why,
            "a ring that was kept cannot be gone on with: it stays kept, with what is posted in it"
        );
        let bytes = stored.fds.first().and_then(|ring| fstat(ring).ok()).map_or(0, |found| found.st_size);
        let registered = Arc::new(RegisteredRing::stalled(note, usize::try_from(bytes).unwrap_or(0)));
        self.registry.register_adopted(registered.clone());
        let session = self.session(&note).ok();
        self.stalled().push(StalledRing { stored: Some(stored), why, registered, session });
        None
    }

    /// Tries again to resume the stalled rings. Blocks.
    pub(super) fn retry_stalled(&self) {
        // One after the other: a stop comes after the try that is under way.
        let _trying = self.retrying.lock().unwrap_or_else(PoisonError::into_inner);
        let ids: Vec<RingId> =
            self.stalled().iter().filter(|one| one.why.may_pass()).map(|one| one.registered.note.id).collect();
        for id in ids {
            let stored =
                self.stalled().iter_mut().find(|one| one.registered.note.id == id).and_then(|one| one.stored.take());
            if let Some(stored) = stored {
                self.try_one(stored);
            }
        }
    }

    fn try_one(&self, stored: StoredRing) {
        let note = stored.note;
        match self.attach(stored).map_err(|failed| *failed) {
            Ok(ring) => {
                tracing::info!(ring = %note.id, uid = note.uid, pid = note.pid, "a ring that was set aside goes on");
                let Some(one) = self.remove_stalled(note.id) else { return };
                // In one step: a lookup of its producer's ring finds the one or the other.
                self.registry.replace(&one.registered, ring.registered.clone());
                // Where the drain has ended it stays stored, for the next daemon.
                let (done, _) = oneshot::channel();
                self.order(Order::Add(Box::new(ring), done));
            }
            Err((_, AttachError::Broken(error))) => {
                crate::ops::metrics::ring_cut_off();
                tracing::error!(ring = %note.id, uid = note.uid, pid = note.pid, why = %error, "a ring that was kept is let go");
                self.fd_store.forget(&note);
                if let Some(one) = self.remove_stalled(note.id) {
                    self.registry.deregister(&one.registered);
                }
            }
            Err((stored, why)) => {
                if let Some(one) = self.stalled().iter_mut().find(|one| one.registered.note.id == note.id) {
                    (one.stored, one.why) = (Some(stored), why);
                }
            }
        }
    }

    fn remove_stalled(&self, id: RingId) -> Option<StalledRing> {
        let mut stalled = self.stalled();
        let at = stalled.iter().position(|one| one.registered.note.id == id)?;
        Some(stalled.remove(at))
    }
}

impl Rings {
    /// Resumes the stalled rings as soon as possible: returns when none is left that time can mend. Cancel safe.
    pub(crate) async fn adopt_the_rest(self) {
        let Some(shared) = self.0 else { return };
        let mut pause = ATTACH_RETRY_PAUSE.0;
        while shared.stalled().iter().any(|stalled| stalled.why.may_pass()) {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(ATTACH_RETRY_PAUSE.1);
            let again = shared.clone();
            // It brings memory in: not on a worker.
            if tokio::task::spawn_blocking(move || again.retry_stalled()).await.is_err() {
                return;
            }
        }
    }

    /// Rings of an earlier daemon that are stored and not drained, and the remedy; `None` where there are none.
    pub(crate) fn not_drained(&self) -> Option<String> {
        let shared = self.0.as_ref()?;
        let (mut rings, mut reasons) = (0, Vec::new());
        let stalled: Vec<String> = shared.stalled().iter().map(|stalled| stalled.why.to_string()).collect();
        for why in stalled.into_iter().chain(shared.registry.stuck()) {
            rings += 1;
            if !reasons.contains(&why) {
                reasons.push(why);
            }
        }
        let more = if reasons.len() > REPORTED_REASONS_MAX { "; and more" } else { "" };
        reasons.truncate(REPORTED_REASONS_MAX);
        (rings > 0).then(|| {
            format!(
                "{rings} rings of an earlier daemon are not drained and stay kept, with what is posted in them: {}{more}",
                reasons.join("; ")
            )
        })
    }
}
