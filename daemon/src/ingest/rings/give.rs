//! Creation of rings: given to a client, or adopted from an earlier daemon.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clad_journal::AppendError;
use clad_proto::frame::{RingId, RingWanted};
use clad_proto::{ErrorCode, ErrorInfo, ProducerId};
use clad_shm::{Drain, OpenError};
use tokio::sync::oneshot;

use super::given::Given;
use super::handle::{RETIRE_TIMEOUT, RingRef, Rings, not_drained};
use super::process::Process;
use super::registry::{RegisteredRing, Registration, RingQuota};
use super::ring::Ring;
use super::shared::{Order, Shared, memory, peer_of, registered_ring, shape};
use super::stalled::AttachError;
use crate::fdstore::{Layout, Note, RING_FDS, StoredRing};
use crate::ingest::{Admission, Owner, Peer, Producer, random};
use crate::ops::metrics;

pub(super) const RINGS_DISABLED: &str = "this daemon gives out no rings ([ingest.shm] enabled)";
/// Time that a client has to come back to its ring after a restart of the daemon. What it has pushed is drained
/// meanwhile; later it gets another ring.
const CLIENT_RETURN_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a client asking for a ring waits for the drain to have it: less than the time that clients give a
/// handshake.
const DRAIN_REPLY_TIMEOUT: Duration = RETIRE_TIMEOUT;
/// The smallest ring that a client can have.
const RING_BYTES_MIN: u32 = 16 * 1024;

/// Client that asks for a ring.
pub(crate) struct Asker {
    pub(crate) peer: Peer,
    pub(crate) producer: ProducerId,
    pub(crate) producer_epoch: u32,
    pub(crate) owner: u64,
    /// The memory of the ring that it names.
    pub(crate) handed_back: Option<OwnedFd>,
}

impl Asker {
    /// Its ring: whose it is says the kernel, and the handshake.
    pub(super) fn note(&self, id: RingId, uid: u32) -> Note {
        let (pid, pid_start) = self.peer.process();
        Note {
            id,
            producer: self.producer,
            producer_epoch: self.producer_epoch,
            uid,
            gid: self.peer.gid().unwrap_or_default(),
            pid,
            pid_start,
            layout: Layout::default(),
        }
    }
}

pub(super) fn going_down() -> ErrorInfo {
    ErrorInfo::new(ErrorCode::ShuttingDown, "clad is stopping").retry_after_ms(1000)
}

pub(super) fn unavailable(text: impl Into<String>) -> ErrorInfo {
    ErrorInfo::new(ErrorCode::RingUnavailable, text)
}

/// Error that says nothing of the ring that was asked for.
fn drain_does_not_get_on() -> ErrorInfo {
    let text = format!("the drain of the rings has not answered within {DRAIN_REPLY_TIMEOUT:?}: come again");
    ErrorInfo::new(ErrorCode::Busy, text).retry_after_ms(1000)
}

impl Rings {
    /// Gives out a ring, or the new completion page of one that the client has; it lasts as long as the reference.
    pub(crate) async fn give(&self, wanted: RingWanted, asker: Asker) -> Result<(Given, RingRef), ErrorInfo> {
        let (given, ring_ref) = self.find_or_make(wanted, asker).await?;
        Ok((Given { stored: ring_ref.registered.is_stored(), ..given }, ring_ref))
    }

    async fn find_or_make(&self, wanted: RingWanted, mut asker: Asker) -> Result<(Given, RingRef), ErrorInfo> {
        let Some(shared) = &self.0 else {
            return Err(unavailable(RINGS_DISABLED));
        };
        if shared.settings.max_rings == 0 && wanted.known.is_none() {
            return Err(unavailable(RINGS_DISABLED));
        }
        let Some(uid) = asker.peer.uid() else {
            return Err(unavailable("rings are given out on the Unix socket only"));
        };
        // What is posted in a ring is safe already: nothing of it may be refused any more.
        if !asker.peer.rights().is_unlimited() {
            return Err(unavailable(
                "the access.rule of this peer limits its appends, and in a ring nothing is checked",
            ));
        }
        let before = shared.registry.of_producer(&asker.producer);
        if let Some(known) = wanted.known {
            let theirs = before.filter(|m| m.note.id == known && m.note.uid == uid);
            let ring_ref = theirs.and_then(|registered| RingRef::of(shared, &registered));
            return match (ring_ref, asker.handed_back.take()) {
                (Some(ring_ref), handed_back) => {
                    let mut given = self.resume(shared, known).await?;
                    // Only a client that hands it back can have another doorbell than the ring.
                    given.fds.truncate(if handed_back.is_some() { 2 } else { 1 });
                    Ok((given, ring_ref))
                }
                (None, Some(memory)) => self.take_back(shared, (known, uid), memory, asker).await,
                (None, None) => Err(unavailable("there is no such ring any more")),
            };
        }
        if let Some(before) = before
            && !self.retire(before.note.id).await
        {
            return Err(not_drained());
        }
        let (shared, wanted_bytes) = (shared.clone(), wanted.bytes);
        // This brings memory in and asks the fd store: not on a worker.
        let made = tokio::task::spawn_blocking(move || shared.make(&asker, uid, wanted_bytes));
        let (given, ring_ref, added) = made.await.map_err(|_| unavailable("the ring could not be made"))??;
        match tokio::time::timeout(DRAIN_REPLY_TIMEOUT, added).await {
            Ok(_) => Ok((given, ring_ref)),
            Err(_) => Err(drain_does_not_get_on()), // the ring ends with `held`
        }
    }

    pub(super) async fn resume(&self, shared: &Shared, id: RingId) -> Result<Given, ErrorInfo> {
        let (given, answer) = oneshot::channel();
        shared.order(Order::Resume(id, given));
        let answer = tokio::time::timeout(DRAIN_REPLY_TIMEOUT, answer).await.map_err(|_| drain_does_not_get_on())?;
        answer.ok().flatten().ok_or_else(|| unavailable("there is no such ring any more"))
    }
}

impl Shared {
    fn make(
        self: &Arc<Self>,
        asker: &Asker,
        uid: u32,
        wanted_bytes: u32,
    ) -> Result<(Given, RingRef, oneshot::Receiver<()>), ErrorInfo> {
        let note = asker.note(RingId::from_bytes(random()?), uid);
        let most = self.settings.bytes;
        let bytes = if wanted_bytes == 0 { most } else { wanted_bytes.clamp(RING_BYTES_MIN, most).next_power_of_two() };
        let shape = shape(bytes.min(most)).ok_or_else(|| unavailable("no ring can be of that size"))?;
        let made = |e: OpenError| unavailable(format!("the ring could not be made: {e}"));
        let refused = |e| crate::ingest::refusal(&e);
        let producer = self.session(&note).map_err(refused)?;
        // A reason that would hold up its first record is reported now, where the client can still go another way.
        let known = self.journal.may_append(asker.producer.as_bytes(), asker.owner, note.producer_epoch);
        let known = known.map_err(|e| producer.refusal(&e))?;
        let first = known.and_then(|state| state.last).map_or(0, |(sequence, _)| sequence.wrapping_add(1));
        let watermarks = self.journal.watermarks();
        let drain = Drain::create(shape, first, self.journal.meta().log_id, watermarks.epoch).map_err(&made)?;
        let registered = registered_ring(note, &drain).map_err(made)?;
        let doorbell = self.bells.doorbell(drain.waker());
        let doorbell = doorbell.map_err(|e| unavailable(format!("the ring's doorbell cannot be watched: {e}")))?;
        self.enter(registered.clone())?;
        self.put(&registered, &drain);
        let given = Given::new(note, &drain).map_err(|e| {
            self.fd_store.forget(&note);
            self.registry.deregister(&registered);
            unavailable(format!("no descriptors for a ring: {e}"))
        })?;
        let watched = (doorbell, self.bells.process(Process::of(&note).watched()));
        let ring = Ring::new(registered.clone(), drain, self.admission(), peer_of(&note), producer, watched);
        let (done, added) = oneshot::channel();
        let ring_ref = RingRef::of(self, &registered);
        match ring_ref.filter(|_| self.order(Order::Add(Box::new(ring), done))) {
            Some(ring_ref) => Ok((given, ring_ref, added)),
            None => {
                self.fd_store.forget(&note);
                self.registry.deregister(&registered);
                Err(going_down())
            }
        }
    }

    /// Stores a ring, where there is a store and it has room. The ring is given out all the same, without `posted`.
    pub(super) fn put(&self, registered: &RegisteredRing, drain: &Drain) {
        let fds = drain.client_fds();
        match self.fd_store.put(&registered.note, [fds.ring, fds.waker]) {
            Ok(()) => registered.set_stored(),
            Err(_) if !self.fd_store.exists() => {}
            Err(error) => {
                tracing::error!(%error, "{} does not take a ring: `posted` is not offered there", crate::fdstore::NAME);
            }
        }
    }

    /// Enters a ring, within the quotas.
    pub(super) fn enter(&self, registered: Arc<RegisteredRing>) -> Result<(), ErrorInfo> {
        let rings = self.settings.max_rings;
        match self.registry.register(registered, self.share(rings)) {
            Registration::Done => Ok(()),
            Registration::HasOne => Err(not_drained()),
            Registration::Known => Err(unavailable("another producer has this ring")),
            Registration::Full => {
                metrics::refused_for_share(metrics::Share::Rings);
                let text = format!(
                    "as many rings as [ingest.shm] max_rings ({rings}) and ring_bytes allow are given out, or as many to this \
                     user as others leave him: at most half of them, and of what is free"
                );
                Err(ErrorInfo::new(ErrorCode::Busy, text).limited_to(rings as u64).retry_after_ms(1000))
            }
        }
    }

    /// So many rings of full size.
    fn share(&self, rings: usize) -> RingQuota {
        let bytes = shape(self.settings.bytes).map_or(usize::MAX, memory);
        RingQuota { rings, bytes: rings.saturating_mul(bytes) }
    }

    /// The session of a ring's producer.
    pub(super) fn session(&self, note: &Note) -> Result<Producer, AppendError> {
        let counted = Owner::Uid(note.uid);
        Producer::begin(self.journal.clone(), note.producer, note.uid.into(), note.producer_epoch, counted)
    }

    /// Resumes a ring that an earlier daemon had given out. An obstacle leaves the ring as it is, and returns it.
    pub(super) fn attach(&self, stored: StoredRing) -> Result<Ring, Box<(StoredRing, AttachError)>> {
        let note = stored.note;
        if note.layout != Layout::default() {
            let error = OpenError::Version(note.layout.version());
            return Err(Box::new((stored, AttachError::Open(error))));
        }
        let producer = match self.session(&note) {
            Ok(producer) => producer,
            Err(error) => return Err(Box::new((stored, AttachError::Session(error)))),
        };
        let [ring, waker] = <[OwnedFd; RING_FDS]>::try_from(stored.fds)
            .map_err(|fds| Box::new((StoredRing { note, fds }, AttachError::Broken(OpenError::Foreign))))?;
        let watermarks = self.journal.watermarks();
        let mut drain = Drain::adopt(ring, waker, self.journal.meta().log_id, watermarks.epoch).map_err(|not| {
            let stored = StoredRing { note, fds: vec![not.ring, not.waker] };
            Box::new((stored, AttachError::of(not.error)))
        })?;
        let doorbell = self.bells.doorbell(drain.waker());
        let doorbell = doorbell.map_err(|error| OpenError::Os { what: "watch a ring's doorbell", error });
        let (registered, doorbell) = match registered_ring(note, &drain).and_then(|ring| Ok((ring, doorbell?))) {
            Ok(both) => both,
            Err(error) => {
                let stored = StoredRing { note, fds: drain.into_fds().into() };
                return Err(Box::new((stored, AttachError::of(error))));
            }
        };
        if self.admission().highest >= clad_proto::AckLevel::Durable {
            // What was given back had been written, and recovery has synced all that it retained.
            drain.raise(clad_shm::Level::Durable, drain.released());
        }
        let process = Process::of(&note);
        let over = matches!(process, Process::Gone) || drain.is_closed();
        // Posted appends were taken by an earlier daemon's limits, and lower ones of today do not undo that.
        let longest = u32::try_from(drain.shape().max_payload()).unwrap_or(u32::MAX);
        let today = self.admission();
        let admission = Admission {
            max_append: today.max_append.max(longest),
            max_record: today.max_record.max(longest),
            ..Admission::clone(&today)
        };
        let watched = (doorbell, self.bells.process(process.watched()));
        let mut ring = Ring::new(registered, drain, Arc::new(admission), peer_of(&note), producer, watched);
        ring.is_adopted();
        match over {
            true => ring.leave(false),
            false => ring.is_expected_by(Instant::now() + CLIENT_RETURN_TIMEOUT),
        }
        ring.look_for_loss();
        Ok(ring)
    }
}
