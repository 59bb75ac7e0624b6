//! One connection of the framed protocol, from HELLO to its end.
//!
//! What must hold:
//! - Memory of a connection is bounded: its read buffer by the frame that is being put together (large ones count
//!   against a budget of their own, [`super::quota`], so that half a frame cannot hold the log's), its output by [`OUT_LIMIT`] (a peer
//!   that does not read its answers is not read from either), its appends by its window and its share of bytes. So is
//!   that of all together: what a connection's buffers take beyond [`OUT_OWN`] and [`CHUNK_OWN`] is a part of one budget,
//!   and where there is none left it goes on with these.
//! - Nobody has a place in the queue for room, or a share that was granted, whose answers are not read: what is free would be
//!   kept for him, and he has an hour where he has a READ.
//! - Half a frame is given [`FRAME_TIMEOUT`] to become whole, and a peer [`TAKES_NOTHING`] to take some of what it is told
//!   ([`READER_RESTS`] while it has a READ: a person may be looking at it), also when it has closed its own side.
//! - One that is to make room for others takes no new frame, is answered what it is owed, and told.
//! - An error of framing is told and ends the connection; an error of one append is told and the connection goes on.
//! - On the way down no new frame is taken, and what was taken is answered while the drain lasts.

mod alarm;
mod append;
mod buffers;
mod end;
mod frames;
mod handshake;
mod orders;
mod quiet;
mod ring;
mod room;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
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

use self::alarm::Alarm;
use self::buffers::{Chunk, OUT_LIMIT, OutRoom};
use self::quiet::Quiet;
use self::ring::GIVE_WAIT;
use super::door::{Admitted, Arrival, Door, Producer, count_refusal};
use super::peer::Peer;
use super::places::makes_room;
use super::quota::{Part, Quota, QuotaGuard};
use super::session::{Answer, Session};
use super::slots::{Owing, Seat};
use crate::read::Reads;
use crate::rings::{Given, Held, Rings};

/// Time for the rest of a frame whose first byte came.
const FRAME_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a peer to take some of what waits for it.
const TAKES_NOTHING: Duration = Duration::from_secs(60);
/// The same for one that has a READ.
const READER_RESTS: Duration = Duration::from_secs(3600);
/// Time for a peer to take the last words.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Between two looks at whether the READs of a peer that closed its side have ended.
const READ_LOOK: Duration = Duration::from_millis(50);

/// What a connection is given by the daemon.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) door: Arc<Door>,
    pub(crate) reads: Arc<Reads>,
    pub(crate) rings: Rings,
    /// Bytes of large frames that are being put together, over all connections.
    pub(crate) assembly: Arc<Quota>,
    /// What buffers of connections take beyond their own.
    pub(crate) buffers: Arc<Quota>,
    pub(crate) handshake_timeout: Duration,
    /// Zero: never.
    pub(crate) idle_timeout: Duration,
    pub(crate) patience: Patience,
    pub(crate) stop: watch::Receiver<bool>,
}

/// How long a connection waits for others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For a peer that takes nothing of what waits for it,
    pub(crate) taking: Duration,
    /// and for one that reads: a pager at which nobody looks takes nothing;
    pub(crate) reading: Duration,
    /// and for one that does not take the ring that it has asked for.
    pub(crate) giving: Duration,
}

impl Patience {
    /// For how long one may take nothing that reads, or does not.
    pub(crate) fn of(self, reads: bool) -> Duration {
        if reads { self.reading } else { self.taking }
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self { taking: TAKES_NOTHING, reading: READER_RESTS, giving: GIVE_WAIT }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flow {
    /// Every whole frame was handled.
    NeedBytes,
    /// The frame at the front waits for a permit, or for the rings.
    NeedPermit,
    /// The peer must read first.
    OutputFull,
    /// The peer said BYE, or was told why the connection ends.
    Close,
}

/// A READ that has not ended.
struct OpenRead {
    task: AbortHandle,
    follows: bool,
    cancel: watch::Sender<bool>,
}

/// What a RING will be answered, with its request id.
type Asking = Option<(u32, Pin<Box<dyn Future<Output = Result<(Given, Held), ErrorInfo>> + Send>>)>;
type Waiting<T> = Option<Pin<Box<dyn Future<Output = T> + Send>>>;

/// Where descriptors can go along.
pub(crate) trait GiveFds {
    /// Sends bytes and descriptors, as much as can be sent now.
    fn give(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> impl Future<Output = io::Result<usize>> + Send;
}

pub(super) struct Connection {
    pub(super) service: Service,
    pub(super) peer: Peer,
    pub(super) producer: Option<Producer>,
    pub(super) session: Session,
    seat: Arc<Seat>,
    /// Tells the others whether it owes an answer: then it makes no room.
    owing: Owing,
    buf: BytesMut,
    chunk: Chunk,
    pub(super) out: BytesMut,
    out_room: OutRoom,
    /// Since when there is no output, where there is none.
    out_empty_since: Instant,
    /// Since when something has waited for the peer, and it took nothing.
    taking_since: Option<Instant>,
    /// Some of what waits for the peer is of a READ, which may have ended.
    of_read: bool,
    quiet: Quiet,
    answers: Vec<Answer>,
    /// Its owner's way to the bytes that may be in flight.
    pub(super) admission: Part,
    admitting: Waiting<Result<Admitted, ErrorInfo>>,
    admitted: Option<Result<Admitted, ErrorInfo>>,
    /// Since when an append has waited for this connection's share of bytes; until there was room for one.
    pub(super) share_since: Option<Instant>,
    /// Waits until what was logged by rings before is with the journal.
    catching_up: Waiting<Result<(), ErrorInfo>>,
    /// It is, for all that was read so far; or why not.
    caught_up: Option<Result<(), ErrorInfo>>,
    assembly: Part,
    assembling: Waiting<Option<QuotaGuard>>,
    assembled: Option<QuotaGuard>,
    records: (mpsc::Sender<Bytes>, mpsc::Receiver<Bytes>),
    reads: HashMap<u32, OpenRead>,
    partial_since: Option<Instant>,
    last_activity: Instant,
    /// When the bytes that are being handled came.
    pub(super) arrival: Arrival,
    /// What most of a stream repeats, and was checked once.
    known_header: KnownHeader,
    pub(super) known_group: KnownGroup,
    pub(super) verdicts: Vec<Result<clad_journal::Accepted, AppendError>>,
    /// When WELCOME was sent, by the clock of rings.
    welcomed: u64,
    /// A RING that is being answered.
    asking: Asking,
    /// The ring that its appends come by.
    ring: Option<Held>,
    /// The ring that its producer had when it came: unless it goes on with that, or has another, it appends nothing.
    met_ring: Option<Held>,
    /// The client has said that it will not come back.
    says_bye: bool,
}

/// Serves one connection to its end.
pub(crate) async fn serve<R, W>(service: Service, peer: Peer, seat: Arc<Seat>, mut rd: R, mut wr: W)
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + GiveFds + Unpin + Send,
{
    let name = peer.name.clone();
    let marks = service.door.journal.watcher();
    let mut connection = Connection::new(service, peer, seat);
    let ended = connection.run(&mut rd, &mut wr, marks).await;
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
    fn new(service: Service, peer: Peer, seat: Arc<Seat>) -> Self {
        let owner = peer.part();
        Self {
            peer,
            producer: None,
            session: Session::begin(&service.door.journal.marks()),
            owing: seat.owing(),
            seat,
            buf: BytesMut::new(),
            chunk: Chunk::new(service.buffers.part(owner)),
            out: BytesMut::new(),
            out_room: OutRoom::new(service.buffers.part(owner)),
            out_empty_since: Instant::now(),
            taking_since: None,
            of_read: false,
            quiet: Quiet::default(),
            answers: Vec::new(),
            admission: service.door.budget.part(owner),
            admitting: None,
            admitted: None,
            share_since: None,
            catching_up: None,
            caught_up: None,
            assembly: service.assembly.part(owner),
            assembling: None,
            assembled: None,
            records: mpsc::channel(2),
            reads: HashMap::new(),
            partial_since: None,
            last_activity: Instant::now(),
            arrival: service.door.arrival(),
            known_header: KnownHeader::default(),
            known_group: KnownGroup::default(),
            verdicts: Vec::new(),
            welcomed: 0,
            asking: None,
            ring: None,
            met_ring: None,
            says_bye: false,
            service,
        }
    }

    async fn run<R, W>(&mut self, rd: &mut R, wr: &mut W, mut marks: Watcher) -> io::Result<()>
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
            let (stopping, leaving) = (*stop.borrow(), self.seat.is_leaving());
            let flow = if stopping || leaving { Flow::NeedPermit } else { self.process() };
            self.release(&marks.now());
            if stopping || leaving || !self.has_room_for_answers() {
                self.leave_the_queue();
            }
            self.owing.set(self.session.unanswered() > 0 || flow == Flow::NeedPermit && !leaving);
            if flow == Flow::Close {
                return self.last_words(wr).await;
            }
            if self.asking.is_some() {
                self.answer_ring(wr).await?;
            }
            if stopping && self.session.unanswered() == 0 {
                ErrorFrame { request_id: 0, error: going_down() }.encode(&mut self.out);
                return self.last_words(wr).await;
            }
            if leaving && self.session.unanswered() == 0 {
                self.fatal(makes_room());
                return self.last_words(wr).await;
            }
            let may_read = flow == Flow::NeedBytes && self.assembling.is_none() && self.out.len() < OUT_LIMIT;
            if may_read {
                self.make_room();
            }
            self.forget_ended_reads();
            self.note_what_waits();
            let deadline = self.deadline(flow);
            tokio::select! {
                biased;
                written = wr.write_buf(&mut self.out), if self.must_say() => {
                    self.say_all();
                    if written? == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                    self.took_some();
                }
                reached = marks.reached(self.session.wants()), if self.session.waits() => {
                    if reached.is_err() {
                        return Ok(());
                    }
                }
                read = rd.read_buf(&mut self.buf), if may_read && self.assembling.is_none() => {
                    match read? {
                        0 if self.seat.is_leaving() => continue, // it seems so only
                        0 => return self.hang_up(wr, marks).await,
                        _ => {}
                    }
                    self.last_activity = Instant::now();
                    self.seat.active(self.last_activity);
                    (self.catching_up, self.caught_up) = (None, None); // of what came before
                }
                caught_up = poll_some(&mut self.catching_up), if self.catching_up.is_some() => {
                    self.catching_up = None;
                    self.caught_up = Some(caught_up);
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
                Some(bytes) = self.records.1.recv(), if self.out.len() < OUT_LIMIT && !self.reads.is_empty() => {
                    self.out.extend_from_slice(&bytes);
                    self.of_read = true;
                    self.seat.active(Instant::now());
                }
                () = alarm.until(deadline) => {
                    if self.timed_out(flow) {
                        return self.last_words(wr).await;
                    }
                }
                _ = stop.changed() => {}
                () = self.seat.leaves(), if !leaving => {}
            }
        }
    }
}

/// What a connection is told that a stop ends.
fn going_down() -> ErrorInfo {
    ErrorInfo::new(ErrorCode::ShuttingDown, "clad is going down").retry_after_ms(1000)
}

async fn poll_some<T>(waiting: &mut Waiting<T>) -> T {
    match waiting {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
