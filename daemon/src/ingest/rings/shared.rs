//! State that the drain and everybody else share: the registry, the orders to the drain, the store.

use std::future::Future;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use clad_journal::Journal;
use clad_proto::frame::RingId;
use clad_proto::{ErrorCode, ErrorInfo};
use clad_shm::{Drain, OpenError, Shape};
use tokio::sync::oneshot;

use super::bells::RingBells;
use super::given::Given;
use super::registry::{self, RingRegistry};
use super::ring::Ring;
use super::stalled::StalledRing;
use crate::config::SharedMemory;
use crate::fdstore::{FdStore, Note};
use crate::ingest::{Admission, Peer};

/// Time that a FLUSH waits for what lies in its ring: as long as an append for room in the budget. The start of the
/// daemon waits for the stored rings for as long.
const RING_DRAIN_TIMEOUT: Duration = crate::ingest::ADMISSION_TIMEOUT;

/// Settings of the operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(super) bytes: u32,
    pub(super) max_rings: usize,
}

impl Settings {
    /// From the configuration, which has checked them.
    pub(crate) fn of(config: &SharedMemory) -> Self {
        let bytes = u32::try_from(config.ring_bytes).unwrap_or(u32::MAX);
        // Rings that an earlier daemon gave out are drained also where no more are given.
        let max_rings = if config.enabled { config.max_rings as usize } else { 0 };
        Self { bytes, max_rings }
    }

    #[cfg(test)]
    pub(crate) const fn for_test(bytes: u32, max_rings: usize) -> Self {
        Self { bytes, max_rings }
    }
}

/// Shape of a ring of so many bytes: with a place for an append for every 128 of them; an append hardly takes less.
pub(super) fn shape(bytes: u32) -> Option<Shape> {
    Shape::new(bytes, (bytes / 128).max(8)).ok()
}

/// Orders to the drain.
pub(super) enum Order {
    Add(Box<Ring>, oneshot::Sender<()>),
    Resume(RingId, oneshot::Sender<Option<Given>>),
    Retire {
        id: RingId,
        forget: bool,
        done: Option<oneshot::Sender<()>>,
    },
    Reach(Reach),
    /// Asks for a liveness reply.
    Sign(oneshot::Sender<()>),
    /// Number of records that were taken, are not written up to this watermark, and lie in rings.
    Count(u64, mpsc::SyncSender<u64>),
    Stop,
}

/// A waiter, until what is committed in a ring below an append is handed over.
pub(super) struct Reach {
    pub(super) id: RingId,
    pub(super) upto: u64,
    pub(super) done: oneshot::Sender<Result<(), ErrorInfo>>,
}

pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) journal: Arc<Journal>,
    /// Admission of the next ring; a reload replaces it.
    pub(super) admission: Mutex<Arc<Admission>>,
    pub(super) fd_store: FdStore,
    pub(super) registry: RingRegistry,
    /// `None` when the drain has ended: a later caller learns it from the loss of its channel.
    pub(super) orders: Mutex<Option<Vec<Order>>>,
    pub(super) ordered: AtomicBool,
    /// The drain sleeps until it is woken.
    pub(super) asleep: AtomicBool,
    pub(super) bells: RingBells,
    /// The liveness reply that was asked for, and when.
    pub(super) sign: Mutex<Option<(Instant, oneshot::Receiver<()>)>>,
    /// Stored, and not attached now.
    pub(super) stalled: Mutex<Vec<StalledRing>>,
    /// Held by the thread that tries to resume them.
    pub(super) retrying: Mutex<()>,
}

impl Shared {
    pub(super) fn orders(&self) -> MutexGuard<'_, Option<Vec<Order>>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn admission(&self) -> Arc<Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns false when the drain has ended: the order is lost.
    pub(super) fn order(&self, order: Order) -> bool {
        match &mut *self.orders() {
            Some(orders) => orders.push(order),
            None => return false,
        }
        self.ordered.store(true, Ordering::SeqCst);
        self.bells.wake_task();
        true
    }

    /// Waits until what was reserved in a ring before this call is handed to the journal, but for what its writers have
    /// not committed by then. Cancel safe.
    ///
    /// # Errors
    /// The reason why that cannot be now. Retryable.
    pub(super) fn drained(
        &self,
        ring: &registry::RegisteredRing,
    ) -> impl Future<Output = Result<(), ErrorInfo>> + Send + use<> {
        let (done, drained) = oneshot::channel();
        self.order(Order::Reach(Reach { id: ring.note.id, upto: ring.head(), done }));
        let until = tokio::time::Instant::now() + RING_DRAIN_TIMEOUT;
        async move {
            match tokio::time::timeout_at(until, drained).await {
                Ok(Ok(drained)) => drained,
                Ok(Err(_)) => Ok(()), // the drain has ended: nothing is left to wait for
                Err(_) => {
                    let text = format!("what lies in this ring has waited for {RING_DRAIN_TIMEOUT:?} to be taken");
                    Err(ErrorInfo::new(ErrorCode::Busy, text).retry_after_ms(100))
                }
            }
        }
    }
}

/// Identity of a ring's memory.
pub(super) fn file_of(ring: impl AsFd) -> Option<registry::File> {
    rustix::fs::fstat(ring).ok().map(|found| (found.st_dev, found.st_ino))
}

/// Memory that a ring takes, its completion page included.
pub(super) fn memory(shape: Shape) -> usize {
    shape.ring_bytes() + shape.completion_page_bytes()
}

/// Owner of the ring, for the journal.
pub(super) fn peer_of(note: &Note) -> Peer {
    let pid = (note.pid != 0).then_some(note.pid);
    Peer::shm(note.uid, note.gid, pid, (note.pid_start != 0).then_some(note.pid_start))
}

/// The drain of a new ring, or of a stored one, with what others need to know of it.
pub(super) fn registered_ring(note: Note, drain: &Drain) -> Result<Arc<registry::RegisteredRing>, OpenError> {
    let watch = clad_shm::Watch::of(drain)?;
    let file = file_of(drain.client_fds().ring);
    Ok(Arc::new(registry::RegisteredRing::new(note, memory(drain.shape()), file, watch, drain.next())))
}
