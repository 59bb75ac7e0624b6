//! One connection of the framed protocol, from HELLO to its end.
//!
//! Invariants:
//! - Memory of a connection is bounded. Its read buffer: by the frame under assembly. Large ones count against their
//!   own budget ([`super::quota`]), so that half a frame cannot hold the log's. Its output: by [`OUT_BYTES_MAX`] (a
//!   peer that does not read its answers is not read from either). Its appends: by its window and its share of bytes.
//!   The memory of all together is bounded too: buffers beyond [`OUT_UNSHARED_BYTES_MAX`] and
//!   [`CHUNK_UNSHARED_BYTES_MAX`] are part of one budget, and where none is left the connection continues with these.
//! - A connection whose answers are not read has no place in the queue for room, and no granted share. Free room would
//!   be reserved for it, for up to an hour where it has a READ.
//! - Half a frame has [`FRAME_TIMEOUT`] to become whole, and a peer [`PEER_WRITE_TIMEOUT`] to take some of its output
//!   ([`READER_WRITE_TIMEOUT`] while it has a READ: a person may be looking at it), also when it has closed its own
//!   side.
//! - A connection that is to make room for others takes no new frame, is sent its pending answers, and is notified.
//! - An error of framing is reported and ends the connection; an error of one append is reported and the connection
//!   stays.
//! - During the shutdown no new frame is taken, and taken appends are answered while the drain lasts.

mod ack_coalescer;
mod alarm;
mod append;
mod buffers;
mod end;
mod frames;
mod handshake;
mod orders;
mod ring;
mod room;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use clad_journal::{AppendError, Watcher};
use clad_proto::frame::{ErrorFrame, KnownHeader};
use clad_proto::{ErrorCode, ErrorInfo, KnownGroup};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use self::ack_coalescer::AckCoalescer;
use self::alarm::Alarm;
use self::buffers::{Chunk, OUT_BYTES_MAX, OutRoom};
use super::admission::{Admission, Admitted, Arrival, Producer, count_refusal};
use super::connection_slots::makes_room;
use super::peer::Peer;
use super::quota::{Quota, QuotaGuard, QuotaHandle};
use super::reactor::GiveFds;
use super::session::{Answer, Session};
use super::slots::{PendingAnswer, SlotState};
use crate::ingest::rings::{Given, RingRef, Rings};
use crate::read::Reads;

/// Time for the rest of a frame whose first byte came.
const FRAME_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a peer to take some of what waits for it.
const PEER_WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for one that has a READ.
const READER_WRITE_TIMEOUT: Duration = Duration::from_secs(3600);
/// Time for a peer to take the last words.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for a client to take its ring off the socket.
const RING_HANDOVER_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks at whether the READs of a peer that closed its side have ended.
const READ_END_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Parts of the daemon that a connection uses.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) admission: Arc<Admission>,
    pub(crate) reads: Arc<Reads>,
    pub(crate) rings: Rings,
    /// Bytes of large frames that are being put together, over all connections.
    pub(crate) assembly: Arc<Quota>,
    /// Bytes that buffers of connections use beyond their own.
    pub(crate) buffers: Arc<Quota>,
    pub(crate) handshake_timeout: Duration,
    /// Zero: never.
    pub(crate) idle_timeout: Duration,
    pub(crate) peer_timeouts: PeerTimeouts,
    pub(crate) stop: watch::Receiver<bool>,
}

/// Timeouts for a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerTimeouts {
    /// For a peer that takes nothing of what waits for it,
    pub(crate) write: Duration,
    /// and for one that reads: a pager that no person looks at takes nothing;
    pub(crate) reader_write: Duration,
    /// and for one that does not take the ring that it has asked for.
    pub(crate) ring_handover: Duration,
}

impl PeerTimeouts {
    /// The time for which a peer that reads, or does not, may take nothing.
    pub(crate) fn of(self, reads: bool) -> Duration {
        if reads { self.reader_write } else { self.write }
    }
}

impl Default for PeerTimeouts {
    fn default() -> Self {
        Self { write: PEER_WRITE_TIMEOUT, reader_write: READER_WRITE_TIMEOUT, ring_handover: RING_HANDOVER_TIMEOUT }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flow {
    /// Every whole frame was handled.
    NeedBytes,
    /// The frame at the front waits for a permit, or for the ring of its connection.
    NeedPermit,
    /// The peer must read first.
    OutputFull,
    /// The peer said BYE, or was sent the reason why the connection ends.
    Close,
}

/// A READ that has not ended.
struct OpenRead {
    task: AbortHandle,
    follows: bool,
    cancel: watch::Sender<bool>,
}

/// Pending answer to a RING, with its request id.
type Asking = Option<(u32, Pin<Box<dyn Future<Output = Result<(Given, RingRef), ErrorInfo>> + Send>>)>;
type Waiting<T> = Option<Pin<Box<dyn Future<Output = T> + Send>>>;

pub(super) struct Connection {
    pub(super) service: Service,
    pub(super) peer: Peer,
    pub(super) producer: Option<Producer>,
    pub(super) session: Session,
    slot_state: Arc<SlotState>,
    /// Notes for others whether it has a pending answer: then it makes no room.
    pending_answer: PendingAnswer,
    buf: BytesMut,
    chunk: Chunk,
    pub(super) out: BytesMut,
    out_room: OutRoom,
    /// Time since when there is no output, where there is none.
    out_empty_since: Instant,
    /// Time since when something has waited for the peer, and it took nothing.
    taking_since: Option<Instant>,
    /// Some of what waits for the peer is of a READ, which may have ended.
    of_read: bool,
    ack_coalescer: AckCoalescer,
    answers: Vec<Answer>,
    /// Its owner's handle for the bytes that may be in flight.
    pub(super) inflight_quota: QuotaHandle,
    admitting: Waiting<Result<Admitted, ErrorInfo>>,
    admitted: Option<Result<Admitted, ErrorInfo>>,
    /// Time since when an append has waited for this connection's share of bytes; until there was room for one.
    pub(super) share_since: Option<Instant>,
    /// Waits until what its ring had reserved when a FLUSH came is with the journal.
    draining: Waiting<Result<(), ErrorInfo>>,
    /// It is, for that FLUSH; or the reason why not.
    pub(super) drained: Option<Result<(), ErrorInfo>>,
    assembly: QuotaHandle,
    assembling: Waiting<Option<QuotaGuard>>,
    assembled: Option<QuotaGuard>,
    records: (mpsc::Sender<Bytes>, mpsc::Receiver<Bytes>),
    reads: HashMap<u32, OpenRead>,
    partial_since: Option<Instant>,
    last_activity: Instant,
    /// Time at which the bytes that are being handled came.
    pub(super) arrival: Arrival,
    /// The part that most of a stream repeats, checked once.
    known_header: KnownHeader,
    pub(super) known_group: KnownGroup,
    pub(super) verdicts: Vec<Result<clad_journal::Accepted, AppendError>>,
    /// A RING that is being answered.
    asking: Asking,
    /// The ring that its appends come by.
    ring: Option<RingRef>,
    /// The ring that its producer had when it came: unless it resumes that ring, or has another, it appends nothing.
    met_ring: Option<RingRef>,
    /// Its producer has a ring that another connection was given; as of so many changes of which rings there are.
    ring_elsewhere: (bool, u64),
    /// The client has said that it will not come back.
    says_bye: bool,
}

/// Serves one connection to its end.
pub(crate) async fn serve<R, W>(service: Service, peer: Peer, slot_state: Arc<SlotState>, mut rd: R, mut wr: W)
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + GiveFds + Unpin + Send,
{
    let name = peer.name.clone();
    let watermarks = service.admission.journal.watcher();
    let mut connection = Connection::new(service, peer, slot_state);
    let ended = connection.run(&mut rd, &mut wr, watermarks).await;
    if let Some(ring) = connection.ring.as_mut().filter(|_| connection.says_bye) {
        ring.forget();
    }
    (connection.ring, connection.met_ring) = (None, None);
    for (_, read) in connection.reads.drain() {
        read.task.abort();
    }
    if let Err(e) = ended
        && !matches!(
            e.kind(),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof
        )
    {
        tracing::debug!(peer = name, error = %e, "connection ended");
    }
}

impl Connection {
    fn new(service: Service, peer: Peer, slot_state: Arc<SlotState>) -> Self {
        let owner = peer.quota_owner();
        Self {
            peer,
            producer: None,
            session: Session::begin(&service.admission.journal.watermarks()),
            pending_answer: slot_state.pending_answer(),
            slot_state,
            buf: BytesMut::new(),
            chunk: Chunk::new(service.buffers.handle(owner)),
            out: BytesMut::new(),
            out_room: OutRoom::new(service.buffers.handle(owner)),
            out_empty_since: Instant::now(),
            taking_since: None,
            of_read: false,
            ack_coalescer: AckCoalescer::default(),
            answers: Vec::new(),
            inflight_quota: service.admission.budget.handle(owner),
            admitting: None,
            admitted: None,
            share_since: None,
            draining: None,
            drained: None,
            assembly: service.assembly.handle(owner),
            assembling: None,
            assembled: None,
            records: mpsc::channel(2),
            reads: HashMap::new(),
            partial_since: None,
            last_activity: Instant::now(),
            arrival: service.admission.arrival(),
            known_header: KnownHeader::default(),
            known_group: KnownGroup::default(),
            verdicts: Vec::new(),
            asking: None,
            ring: None,
            met_ring: None,
            ring_elsewhere: (false, 0),
            says_bye: false,
            service,
        }
    }

    /// Notes that the output, which was `before` bytes long, ends with an answer to an append that came at this moment.
    pub(super) fn coalesce_ack(&mut self, before: usize, since: Instant) {
        self.ack_coalescer.note(before, self.out.len(), since);
    }

    async fn run<R, W>(&mut self, rd: &mut R, wr: &mut W, mut watermarks: Watcher) -> io::Result<()>
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + GiveFds + Unpin + Send,
    {
        if !self.handshake(rd, wr).await? {
            return self.last_words(wr).await;
        }
        let mut stop = self.service.stop.clone();
        let mut alarm = Alarm::new();
        loop {
            let (stopping, leaving) = (*stop.borrow(), self.slot_state.is_leaving());
            let flow = if stopping || leaving { Flow::NeedPermit } else { self.process() };
            self.release(&watermarks.now());
            if stopping || leaving || !self.has_room_for_answers() {
                self.leave_the_queue();
            }
            self.pending_answer.set(self.session.unanswered() > 0 || flow == Flow::NeedPermit && !leaving);
            if flow == Flow::Close {
                return self.last_words(wr).await;
            }
            if self.asking.is_some() {
                self.answer_ring(wr).await?;
                continue; // a frame behind it may have waited for the answer
            }
            if stopping && self.session.unanswered() == 0 {
                ErrorFrame { request_id: 0, error: going_down() }.encode(&mut self.out);
                return self.last_words(wr).await;
            }
            if leaving && self.session.unanswered() == 0 {
                self.fatal(makes_room());
                return self.last_words(wr).await;
            }
            let may_read = flow == Flow::NeedBytes && self.assembling.is_none() && self.out.len() < OUT_BYTES_MAX;
            if may_read {
                self.make_room();
            }
            self.forget_ended_reads();
            self.note_what_waits();
            let deadline = self.deadline(flow);
            tokio::select! {
                biased;
                written = wr.write_buf(&mut self.out), if self.ack_coalescer.must_send(self.out.len()) => {
                    self.ack_coalescer.release();
                    if written? == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                    self.took_some();
                }
                reached = watermarks.reached(self.session.wants()), if self.session.waits() => {
                    if reached.is_err() {
                        return Ok(());
                    }
                }
                read = rd.read_buf(&mut self.buf), if may_read && self.assembling.is_none() => {
                    match read? {
                        0 if self.slot_state.is_leaving() => continue, // it seems so only
                        0 => return self.hang_up(wr, watermarks).await,
                        _ => {}
                    }
                    self.last_activity = Instant::now();
                    self.slot_state.active(self.last_activity);
                }
                drained = poll_some(&mut self.draining), if self.draining.is_some() => {
                    self.draining = None;
                    self.drained = Some(drained);
                }
                admitted = poll_some(&mut self.admitting), if self.admitting.is_some() => {
                    self.admitting = None;
                    self.admitted = Some(admitted);
                }
                permit = poll_some(&mut self.assembling), if self.assembling.is_some() => {
                    self.assembling = None;
                    self.assembled = permit;
                    self.partial_since = Some(Instant::now()); // from now on the rest can come
                }
                Some(bytes) = self.records.1.recv(), if self.out.len() < OUT_BYTES_MAX && !self.reads.is_empty() => {
                    self.out.extend_from_slice(&bytes);
                    self.of_read = true;
                    self.slot_state.active(Instant::now());
                }
                () = alarm.until(deadline) => {
                    if self.timed_out(flow) {
                        return self.last_words(wr).await;
                    }
                }
                _ = stop.changed() => {}
                () = self.slot_state.leaves(), if !leaving => {}
            }
        }
    }
}

/// Error for a connection that a stop ends.
fn going_down() -> ErrorInfo {
    ErrorInfo::new(ErrorCode::ShuttingDown, "clad is stopping").retry_after_ms(1000)
}

async fn poll_some<T>(waiting: &mut Waiting<T>) -> T {
    match waiting {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
