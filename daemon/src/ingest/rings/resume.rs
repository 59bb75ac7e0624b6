//! Stored rings that cannot be resumed: for now, by this version, or in this log.
//!
//! Invariants: a stored ring is released only where it is nonsense, which no later try and no other version can take.
//! Only its note is proof that another version made it: in the ring, its client can write that. Any other ring stays
//! stored as it is, with all that is `posted` in it. Until it is drained its producer logs by no other way, for that
//! would count the same sequences; nobody else waits for it. The daemon reports it, with the remedy, and tries again
//! after [`ATTACH_RETRY_PAUSE`], doubling, where that can help. A mere look at stalled rings waits for no try.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use clad_proto::frame::RingId;
use rustix::fs::fstat;
use tokio::sync::oneshot;

use super::handle::Rings;
use super::registry::RegisteredRing;
use super::ring::Ring;
use super::shared::{Order, Shared};
use super::stalled::{AttachError, StalledRing};
use crate::fdstore::StoredRing;

/// Time between two tries: at first, and at most.
const ATTACH_RETRY_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Most reasons that are reported at once.
const REPORTED_REASONS_MAX: usize = 3;

impl Shared {
    pub(super) fn stalled(&self) -> MutexGuard<'_, Vec<StalledRing>> {
        self.stalled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resumes a ring of an earlier daemon, releases it, or adds it to the stalled rings.
    pub(super) fn adopt(&self, stored: StoredRing) -> Option<Ring> {
        let note = stored.note;
        let (stored, why) = match self.attach(stored) {
            Ok(ring) => {
                ring.registered.set_stored();
                self.registry.register_adopted(ring.registered.clone());
                return Some(ring);
            }
            Err(failed) => *failed,
        };
        if let AttachError::Broken(error) = &why {
            crate::ops::metrics::ring_cut_off();
            tracing::error!(ring = %note.id, uid = note.uid, pid = note.pid, why = %error, "a stored ring is released");
            self.fd_store.forget(&note);
            return None;
        }
        tracing::error!(
            ring = %note.id, producer = %note.producer, uid = note.uid, pid = note.pid, %why,
            "a stored ring cannot be resumed: it stays stored, with what is posted in it"
        );
        let found = stored.fds.first().and_then(|ring| fstat(ring).ok());
        let bytes = found.map_or(0, |found| usize::try_from(found.st_size).unwrap_or(0));
        let file = found.map(|found| (found.st_dev, found.st_ino));
        let registered = Arc::new(RegisteredRing::stalled(note, bytes, file));
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
                tracing::info!(ring = %note.id, uid = note.uid, pid = note.pid, "a stalled ring goes on");
                let Some(one) = self.remove_stalled(note.id) else { return };
                ring.registered.set_stored();
                // In one step: a lookup of its producer's ring finds the one or the other.
                self.registry.replace(&one.registered, ring.registered.clone());
                // Where the drain has ended it stays stored, for the next daemon.
                let (done, _) = oneshot::channel();
                self.order(Order::Add(Box::new(ring), done));
            }
            Err((_, AttachError::Broken(error))) => {
                crate::ops::metrics::ring_cut_off();
                tracing::error!(ring = %note.id, uid = note.uid, pid = note.pid, why = %error, "a stored ring is released");
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
                "{rings} rings of an earlier daemon are not drained and stay stored, with what is posted in them: {}{more}",
                reasons.join("; ")
            )
        })
    }
}
