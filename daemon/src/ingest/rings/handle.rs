//! Handles of rings: that of all, and a connection's hold of one.

use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use clad_proto::frame::{Hello, RingId};
use clad_proto::{ErrorCode, ErrorInfo, ProducerId};
use clad_shm::Usage;
use tokio::sync::oneshot;

use super::bells::RingBells;
use super::drainage::Drainage;
use super::registry::{self, RingRegistry};
use super::ring::Ring;
use super::shared::{Order, Settings, Shared};
use super::task::DrainTask;
use crate::fdstore::{FdStore, StoredRing};
use crate::ingest::quota::QuotaUsage;
use crate::ingest::{Admission, Peer, Reactor};

/// Time that a stop of the daemon waits for the count of what rings still have.
const COUNT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a client waits for the end of its producer's earlier ring, until the answer is to retry: less than the
/// time that clients give a handshake.
pub(super) const RETIRE_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection's hold of a ring, which ends with the last of them. A client comes back by another connection before
/// the end of its old one is seen.
pub(crate) struct RingRef {
    shared: Arc<Shared>,
    pub(super) registered: Arc<registry::RegisteredRing>,
    forget: bool,
}

impl RingRef {
    /// `None` where the ring is ending.
    pub(super) fn of(shared: &Arc<Shared>, registered: &Arc<registry::RegisteredRing>) -> Option<Self> {
        registered.acquire().then(|| Self { shared: shared.clone(), registered: registered.clone(), forget: false })
    }

    pub(crate) fn id(&self) -> RingId {
        self.registered.note.id
    }

    /// Returns true if the log has lost what came by it and was given back; once for each time.
    pub(crate) fn take_lost(&self) -> bool {
        self.registered.take_lost()
    }

    /// Returns true if all that was reserved in it is with the journal.
    pub(crate) fn is_drained(&self) -> bool {
        !self.registered.is_behind()
    }

    /// Waits until what was reserved in it before this call is with the journal; see [`Shared::drained`].
    pub(crate) fn drained(&self) -> impl Future<Output = Result<(), ErrorInfo>> + Send + use<> {
        self.shared.drained(&self.registered)
    }

    /// Notes that the client has said that it will not come back.
    pub(crate) fn forget(&mut self) {
        self.forget = true;
    }
}

impl Drop for RingRef {
    fn drop(&mut self) {
        if self.registered.release_ref() {
            self.shared.order(Order::Retire { id: self.id(), forget: self.forget, done: None });
        }
    }
}

/// The rings of this daemon; clones are the same. Empty where they are turned off.
#[derive(Clone, Default)]
pub(crate) struct Rings(pub(super) Option<Arc<Shared>>);

impl Rings {
    /// Starts to drain the rings that were stored, and is ready to give out more.
    pub(crate) fn start(
        reactor: &Reactor,
        settings: Settings,
        admission: Arc<Admission>,
        fd_store: FdStore,
        stored: Vec<StoredRing>,
    ) -> std::io::Result<Self> {
        let bells = RingBells::new(reactor.bells());
        let timer = bells.timer()?;
        let shared = Arc::new(Shared {
            settings,
            journal: admission.journal.clone(),
            admission: Mutex::new(admission),
            fd_store,
            registry: RingRegistry::default(),
            orders: Mutex::new(Some(Vec::new())),
            ordered: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            bells,
            sign: Mutex::default(),
            stalled: Mutex::default(),
            retrying: Mutex::default(),
        });
        let adopted: Vec<Ring> = stored.into_iter().filter_map(|stored| shared.adopt(stored)).collect();
        if !adopted.is_empty() {
            tracing::info!(rings = adopted.len(), "stored rings of an earlier daemon go on");
        }
        let drainage = Drainage::new(shared.clone(), adopted);
        reactor.spawn(DrainTask::new(drainage, shared.clone(), timer));
        Ok(Self(Some(shared)))
    }

    /// Sets the limits of the rings that are given out from now on; existing rings keep theirs, as connections do.
    pub(crate) fn set_admission(&self, admission: Arc<Admission>) {
        if let Some(shared) = &self.0 {
            *shared.admission.lock().unwrap_or_else(PoisonError::into_inner) = admission;
        }
    }

    /// Rings, and the memory that they take.
    pub(crate) fn quota_usage(&self) -> QuotaUsage {
        let usage = |shared: &Arc<Shared>| QuotaUsage {
            total: shared.settings.max_rings,
            by_owner: shared.registry.by_owner(),
        };
        self.0.as_ref().map_or_else(QuotaUsage::default, usage)
    }

    /// Number of rings, and the memory that they take.
    pub(crate) fn totals(&self) -> (usize, usize) {
        self.0.as_ref().map_or((0, 0), |shared| shared.registry.totals())
    }

    /// Number of rings of an earlier daemon that are stored and not drained.
    pub(crate) fn stalled(&self) -> usize {
        self.0.as_ref().map_or(0, |shared| shared.registry.stalled())
    }

    /// Number of rings that are stored nowhere, and `true` if there is a store that should have them.
    pub(crate) fn unstored(&self) -> (usize, bool) {
        self.0.as_ref().map_or((0, false), |shared| (shared.registry.unstored(), shared.fd_store.exists()))
    }

    /// Fill level of all together.
    pub(crate) fn usage(&self) -> Usage {
        self.0.as_ref().map_or_else(Usage::default, |shared| shared.registry.usage())
    }

    /// Waits until what lay in the stored rings is with the journal, or waits there for a reason: it has been `posted`
    /// for longer than anything that a socket could bring. Within a timeout.
    pub(crate) async fn first_drain(&self) {
        let Some(shared) = &self.0 else { return };
        let rings = shared.registry.all();
        let each: Vec<_> = rings.iter().filter(|ring| ring.is_behind()).map(|ring| shared.drained(ring)).collect();
        for drained in each {
            drop(drained.await); // the timeouts run together
        }
    }

    /// Handles a producer's HELLO, before its answer is made. Records that it, or an earlier process of it, has logged
    /// by a ring are drained first. So the answer says correctly what is stored, and the producer is not fenced off.
    /// Another process's ring ends with this. Returns the ring that the producer has and may resume.
    ///
    /// # Errors
    /// Where that cannot be drained now: a producer that continued without it would count the same sequences again.
    /// Retryable.
    pub(crate) async fn meet(&self, hello: &Hello, peer: &Peer) -> Result<Option<RingRef>, ErrorInfo> {
        let Some(shared) = &self.0 else { return Ok(None) };
        if hello.producer_id == ProducerId::default() {
            return Ok(None);
        }
        let Some(registered) = shared.registry.of_producer(&hello.producer_id) else { return Ok(None) };
        if peer.uid() != Some(registered.note.uid) {
            return Ok(None); // it is refused for that
        }
        let same = (registered.note.pid, registered.note.pid_start) == peer.process() && registered.note.pid != 0;
        if same
            && hello.producer_epoch == registered.note.producer_epoch
            && !registered.is_leaving()
            && let Some(ring_ref) = RingRef::of(shared, &registered)
        {
            // Where it cannot be drained now, the answer is still true of what is stored.
            drop(ring_ref.drained().await);
            return Ok(Some(ring_ref));
        }
        match self.retire(registered.note.id).await {
            true => Ok(None),
            false => Err(not_drained()),
        }
    }

    /// A number that is another one when there are other rings.
    pub(crate) fn changes(&self) -> u64 {
        self.0.as_ref().map_or(0, |shared| shared.registry.changes())
    }

    /// Returns true if this producer has a ring. That of an older instance of it, which may not know that it is to stop,
    /// ends with this.
    pub(crate) fn has_ring(&self, producer: &ProducerId, producer_epoch: u32) -> bool {
        let Some(registered) = self.0.as_ref().and_then(|shared| shared.registry.of_producer(producer)) else {
            return false;
        };
        if registered.note.producer_epoch < producer_epoch {
            self.end(registered.note.id);
        }
        true
    }

    /// Ends a ring: closed, drained, given back. Waits for that within a timeout; returns true if it is over.
    pub(super) async fn retire(&self, id: RingId) -> bool {
        let Some(shared) = &self.0 else { return true };
        let (done, ended) = oneshot::channel();
        shared.order(Order::Retire { id, forget: false, done: Some(done) });
        let _ = tokio::time::timeout(RETIRE_TIMEOUT, ended).await;
        !shared.registry.has(id)
    }

    /// Ends a ring, even if connections hold it.
    pub(crate) fn end(&self, id: RingId) {
        if let Some(shared) = &self.0 {
            shared.order(Order::Retire { id, forget: false, done: None });
        }
    }

    /// Closes all rings and drains them, until `deadline` at most. What is not drained by then stays stored. Blocks.
    ///
    /// Returns how many rings are left: their content is stored for the next start.
    pub(crate) fn stop(&self, deadline: Instant) -> usize {
        let Some(shared) = &self.0 else { return 0 };
        shared.retry_stalled();
        shared.order(Order::Stop);
        while shared.registry.any_gets_on() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(why) = self.not_drained() {
            tracing::error!("{why}");
        }
        // Drained rings are released before the process ends, or the next one would find them.
        shared.fd_store.settle(deadline);
        shared.registry.totals().0
    }

    /// Number of the records that were taken, are not written up to this watermark, and lie in rings still. `None`
    /// where the drain does not say it in [`COUNT_TIMEOUT`]. Blocks.
    pub(crate) fn unwritten_in_rings(&self, written: u64) -> Option<u64> {
        let Some(shared) = &self.0 else { return Some(0) };
        let (done, counted) = mpsc::sync_channel(1);
        match shared.order(Order::Count(written, done)) {
            true => counted.recv_timeout(COUNT_TIMEOUT).ok(),
            false => Some(0), // there are none any more
        }
    }

    /// Time without a liveness reply of the drain. To be called every second or so; a sleeping drain is woken for it only
    /// where something lies in rings.
    pub(crate) fn silent_for(&self) -> Duration {
        let Some(shared) = &self.0 else { return Duration::ZERO };
        let mut asked = shared.sign.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *asked {
            _ if shared.asleep.load(Ordering::SeqCst) && !shared.registry.any_behind() => *asked = None,
            Some((since, sign)) => match sign.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => return since.elapsed(),
                _ => *asked = None, // it has answered, or ended
            },
            None => {
                let (sign, signed) = oneshot::channel();
                *asked = shared.order(Order::Sign(sign)).then(|| (Instant::now(), signed));
            }
        }
        Duration::ZERO
    }
}

/// Error for a producer whose earlier ring is not drained.
pub(crate) fn not_drained() -> ErrorInfo {
    let text = "what this producer has logged by its ring comes first, and is not in the log yet: come again";
    ErrorInfo::new(ErrorCode::Busy, text).retry_after_ms(1000)
}
