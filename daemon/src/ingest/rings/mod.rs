//! Rings of shared memory: given out on the Unix socket, drained by one thread at a time, stored over the death of both
//! ends.
//!
//! ```text
//!  client ─ RING ─▶ framed connection ─▶ Rings::give ─▶ FdStore (kept)        client: push ─▶ ring
//!         ◀ fds ──                          │                                                │
//!                                           ▼                                                ▼
//!                                    orders ─▶ drain thread: cycle over all rings, a run of each in turn
//!                                                   │ Journal::append                 ▲ watermarks
//!                                                   └────────▶ answers on the boards ◀┘ space back when `written`
//! ```
//! Invariants: a ring belongs to one producer of one process, and is given only once it is stored. It ends with its
//! client's process, or with the last connection that held it ([`RingRef`]). Then it is closed, drained up to where
//! that was, and released when all of it is written, whatever a surviving process writes there. Anything that a client
//! does to its ring costs that client alone.
//!
//! A panic of a draining thread ends the process ([`crate::defect`]): no other would drain, and everybody would wait.
//!
//! Nothing is promised between what is only `posted` in a ring and what comes by any other way. A producer has one way
//! at a time: its ring is closed and drained to its closing head before its next HELLO, RING or APPEND is taken
//! ([`Rings::meet`]). A FLUSH covers what was reserved in its own ring before it came ([`RingRef::drained`]).
//!
//! After a restart the stored rings are drained again from where space was given back; the journal knows by their
//! sequences what it has. Their clients continue to log meanwhile, and come back to name their ring.

mod backoff;
mod cycle;
mod give;
mod in_flight;
mod leader;
mod process;
mod registry;
mod ring;
mod stalled;
mod thread;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use clad_journal::Journal;
use clad_proto::frame::{Hello, RingId};
use clad_proto::{ErrorCode, ErrorInfo, ProducerId};
use clad_shm::{Drain, OpenError, Shape, Usage};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

use crate::config::SharedMemory;
use crate::defect::ends_clad;
use crate::fdstore::{FdStore, Note, StoredRing};
use crate::ingest::quota::QuotaUsage;
use crate::ingest::{Admission, Peer};
pub(crate) use give::{Asker, Given, borrowed};
use leader::Leader;
use registry::RingRegistry;
use ring::Ring;
use stalled::StalledRing;

/// Description of a drain thread in the message when it cannot continue.
const THREAD_DESCRIPTION: &str = "the drain of the rings";

/// Time that a FLUSH waits for what lies in its ring: as long as an append for room in the budget. The start of the
/// daemon waits for the stored rings for as long.
const RING_DRAIN_TIMEOUT: Duration = crate::ingest::ADMISSION_TIMEOUT;
/// Time that a stop of the daemon waits for the count of what rings still have.
const COUNT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a client waits for the end of its producer's earlier ring, until the answer is to retry: less than the
/// time that clients give a handshake.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(3);

/// Settings of the operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    bytes: u32,
    max_rings: usize,
    spin: Duration,
}

impl Settings {
    /// From the configuration, which has checked them.
    pub(crate) fn of(config: &SharedMemory) -> Self {
        let bytes = u32::try_from(config.ring_bytes).unwrap_or(u32::MAX);
        // Rings that an earlier daemon gave out are drained also where no more are given.
        let max_rings = if config.enabled { config.max_rings as usize } else { 0 };
        Self { bytes, max_rings, spin: config.spin }
    }

    #[cfg(test)]
    pub(crate) const fn for_test(bytes: u32, max_rings: usize) -> Self {
        Self { bytes, max_rings, spin: Duration::ZERO }
    }
}

/// Shape of a ring of so many bytes: with a place for an append for every 128 of them; an append hardly takes less.
fn shape(bytes: u32) -> Option<Shape> {
    Shape::new(bytes, (bytes / 128).max(8)).ok()
}

/// Orders to the drain thread.
enum Order {
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
struct Reach {
    id: RingId,
    upto: u64,
    done: oneshot::Sender<Result<(), ErrorInfo>>,
}

struct Shared {
    settings: Settings,
    journal: Arc<Journal>,
    /// Admission of the next ring; a reload replaces it.
    admission: Mutex<Arc<Admission>>,
    fd_store: FdStore,
    registry: RingRegistry,
    /// `None` when the drain has ended: a later caller learns it from the loss of its channel.
    orders: Mutex<Option<Vec<Order>>>,
    ordered: AtomicBool,
    /// The drain thread sleeps until it is woken.
    asleep: AtomicBool,
    /// The thread wants to be woken when the watermarks move.
    waits_for_watermarks: AtomicBool,
    /// Wakes the thread.
    bell: OwnedFd,
    /// The liveness reply that was asked for, and when.
    sign: Mutex<Option<(Instant, oneshot::Receiver<()>)>>,
    /// Stored, and not attached now.
    stalled: Mutex<Vec<StalledRing>>,
    /// Held by the thread that tries to resume them.
    retrying: Mutex<()>,
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Option<Vec<Order>>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admission(&self) -> Arc<Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns false when the drain has ended: the order is lost.
    fn order(&self, order: Order) -> bool {
        match &mut *self.orders() {
            Some(orders) => orders.push(order),
            None => return false,
        }
        self.ordered.store(true, Ordering::SeqCst);
        self.ring_bell();
        true
    }

    /// Waits until what was reserved in a ring before this call is handed to the journal, but for what its writers have
    /// not committed by then. Cancel safe.
    ///
    /// # Errors
    /// The reason why that cannot be now. Retryable.
    fn drained(&self, ring: &registry::RegisteredRing) -> impl Future<Output = Result<(), ErrorInfo>> + Send + use<> {
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

    fn ring_bell(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Notes that the watermarks have moved.
    fn watermarks_moved(&self) {
        fence(Ordering::SeqCst);
        if !leader::looks_itself()
            && self.asleep.load(Ordering::SeqCst)
            && self.waits_for_watermarks.load(Ordering::Relaxed)
        {
            self.ring_bell();
        }
    }
}

/// Wakes the drain: there is room for what it holds.
impl std::task::Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.ring_bell();
    }
}

/// A connection's hold of a ring, which ends with the last of them. A client comes back by another connection before
/// the end of its old one is seen.
pub(crate) struct RingRef {
    shared: Arc<Shared>,
    registered: Arc<registry::RegisteredRing>,
    forget: bool,
}

impl RingRef {
    /// `None` where the ring is ending.
    fn of(shared: &Arc<Shared>, registered: &Arc<registry::RegisteredRing>) -> Option<Self> {
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
pub(crate) struct Rings(Option<Arc<Shared>>);

impl Rings {
    /// Starts to drain the rings that were stored, and is ready to give out more.
    pub(crate) fn start(
        settings: Settings,
        admission: Arc<Admission>,
        fd_store: FdStore,
        stored: Vec<StoredRing>,
    ) -> std::io::Result<Self> {
        let journal = admission.journal.clone();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared {
            settings,
            journal: journal.clone(),
            admission: Mutex::new(admission),
            fd_store,
            registry: RingRegistry::default(),
            orders: Mutex::new(Some(Vec::new())),
            ordered: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            waits_for_watermarks: AtomicBool::new(false),
            bell,
            sign: Mutex::default(),
            stalled: Mutex::default(),
            retrying: Mutex::default(),
        });
        let adopted: Vec<Ring> = stored.into_iter().filter_map(|stored| shared.adopt(stored)).collect();
        if !adopted.is_empty() {
            tracing::info!(rings = adopted.len(), keeper = shared.fd_store.name(), "rings of an earlier daemon go on");
        }
        let observer = Arc::downgrade(&shared);
        journal.on_watermarks(move || {
            if let Some(shared) = observer.upgrade() {
                shared.watermarks_moved();
            }
        });
        let leader = Arc::new(Leader::new(shared.clone(), adopted)?);
        for _ in 0..2 {
            let leader = leader.clone();
            std::thread::Builder::new()
                .name("clad-drain".to_owned())
                .spawn(move || ends_clad(THREAD_DESCRIPTION, || leader.serve()))?;
        }
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
        if peer.uid != Some(registered.note.uid) {
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

    /// Returns true if this producer has a ring.
    pub(crate) fn has_ring(&self, producer: &ProducerId) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.registry.of_producer(producer).is_some())
    }

    /// Ends a ring: closed, drained, given back. Waits for that within a timeout; returns true if it is over.
    async fn retire(&self, id: RingId) -> bool {
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

/// Duplicates a descriptor of the same file.
fn duplicate(fd: BorrowedFd<'_>) -> std::io::Result<OwnedFd> {
    fd.as_fd().try_clone_to_owned()
}

/// Memory that a ring takes, its completion page included.
fn memory(shape: Shape) -> usize {
    shape.ring_bytes() + shape.completion_page_bytes()
}

/// Owner of the ring, for the journal.
fn peer_of(note: &Note) -> Peer {
    let pid = (note.pid != 0).then_some(note.pid);
    Peer::shm(note.uid, note.gid, pid, (note.pid_start != 0).then_some(note.pid_start))
}

/// The drain of a new ring, or of a stored one, with what others need to know of it.
fn registered_ring(note: Note, drain: &Drain) -> Result<Arc<registry::RegisteredRing>, OpenError> {
    let watch = clad_shm::Watch::of(drain)?;
    Ok(Arc::new(registry::RegisteredRing::new(note, memory(drain.shape()), watch, drain.next())))
}
