//! One connection of the framed protocol, from HELLO to its end.
//!
//! What must hold:
//! - Memory of a connection is bounded: its read buffer by the frame that is being put together (large ones count
//!   against a budget of their own, so that half a frame cannot hold the log's), its output by [`OUT_LIMIT`] (a peer
//!   that does not read its answers is not read from either), its appends by its window and its share of bytes.
//! - Half a frame is given [`FRAME_TIMEOUT`] to become whole.
//! - An error of framing is told and ends the connection; an error of one append is told and the connection goes on.
//! - On the way down no new frame is taken, and what was taken is answered while the drain lasts.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use clad_journal::{AppendError, Level, Marks};
use clad_proto::frame::{
    self, AppendView, ErrorFrame, Flush, Frame, FrameError, FrameHeader, FrameType, KnownHeader, RawFrame, ReadEnd,
    ReadEndReason, encode_pong, peek, peek_known,
};
use clad_proto::limits::{FRAME_HEADER_BYTES, MAX_READS_PER_CONNECTION};
use clad_proto::{AckLevel, Cursor, ErrorCode, ErrorInfo, KnownGroup, LogId};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::task::AbortHandle;

use super::budget::Budget;
use super::burst::Burst;
use super::door::{ADMISSION_WAIT, Admitted, Arrival, Door, Producer, count_refusal};
use super::peer::Peer;
use super::session::{Answer, Session};
use crate::read::Reads;

/// Output that waits for the peer at most, before its input is left alone.
const OUT_LIMIT: usize = 256 * 1024;
/// Time for the rest of a frame whose first byte came.
const FRAME_TIMEOUT: Duration = Duration::from_secs(30);
/// Frames up to this length need no share of the assembly budget.
const SMALL_FRAME: usize = 64 * 1024;
/// Time for a peer to take the last words.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Between two looks at whether the READs of a peer that closed its side have ended.
const READ_LOOK: Duration = Duration::from_millis(50);
const CHUNK_MIN: usize = 4 * 1024;
const CHUNK_MAX: usize = 128 * 1024;

/// What a connection is given by the daemon.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) door: Arc<Door>,
    pub(crate) reads: Arc<Reads>,
    /// Bytes of large frames that are being put together, over all connections.
    pub(crate) assembly: Arc<Budget>,
    pub(crate) handshake_timeout: Duration,
    /// Zero: never.
    pub(crate) idle_timeout: Duration,
    pub(crate) stop: watch::Receiver<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flow {
    /// Every whole frame was handled.
    NeedBytes,
    /// The frame at the front waits for a permit.
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
}

type Waiting<T> = Option<Pin<Box<dyn Future<Output = T> + Send>>>;

pub(super) struct Connection {
    pub(super) service: Service,
    pub(super) peer: Peer,
    pub(super) producer: Option<Producer>,
    pub(super) session: Session,
    buf: BytesMut,
    chunk: usize,
    pub(super) out: BytesMut,
    answers: Vec<Answer>,
    admitting: Waiting<Result<Admitted, ErrorInfo>>,
    admitted: Option<Result<Admitted, ErrorInfo>>,
    /// Since when an append has waited for this connection's share of bytes; until there was room for one.
    share_since: Option<Instant>,
    assembling: Waiting<Option<OwnedSemaphorePermit>>,
    assembled: Option<OwnedSemaphorePermit>,
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
}

/// Serves one connection to its end.
pub(crate) async fn serve<R, W>(service: Service, peer: Peer, mut rd: R, mut wr: W)
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    let name = peer.name.clone();
    let marks = service.door.journal.subscribe();
    let mut connection = Connection {
        peer,
        producer: None,
        session: Session::default(),
        buf: BytesMut::new(),
        chunk: CHUNK_MIN,
        out: BytesMut::new(),
        answers: Vec::new(),
        admitting: None,
        admitted: None,
        share_since: None,
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
        service,
    };
    let ended = connection.run(&mut rd, &mut wr, marks).await;
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
    async fn run<R, W>(&mut self, rd: &mut R, wr: &mut W, mut marks: watch::Receiver<Marks>) -> io::Result<()>
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + Unpin + Send,
    {
        if !self.handshake(rd, wr).await? {
            return self.last_words(wr).await;
        }
        let mut stop = self.service.stop.clone();
        loop {
            let stopping = *stop.borrow();
            let flow = if stopping { Flow::NeedPermit } else { self.process() };
            self.release(&marks.borrow_and_update().clone());
            if flow == Flow::Close {
                return self.last_words(wr).await;
            }
            if stopping && self.session.unanswered() == 0 {
                let error = ErrorInfo::new(ErrorCode::ShuttingDown, "clad is going down").retry_after_ms(1000);
                ErrorFrame { request_id: 0, error }.encode(&mut self.out);
                return self.last_words(wr).await;
            }
            let may_read = flow == Flow::NeedBytes && self.assembling.is_none() && self.out.len() < OUT_LIMIT;
            if may_read {
                self.make_room();
            }
            self.forget_ended_reads();
            let deadline = self.deadline(flow);
            tokio::select! {
                biased;
                written = wr.write_buf(&mut self.out), if !self.out.is_empty() => {
                    if written? == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                }
                changed = marks.changed(), if self.session.waits() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
                read = rd.read_buf(&mut self.buf), if may_read && self.assembling.is_none() => {
                    if read? == 0 {
                        return self.hang_up(wr, marks).await;
                    }
                    self.last_activity = Instant::now();
                }
                admitted = poll_some(&mut self.admitting), if self.admitting.is_some() => {
                    self.admitting = None;
                    self.admitted = Some(admitted);
                }
                permit = poll_some(&mut self.assembling), if self.assembling.is_some() => {
                    self.assembling = None;
                    self.assembled = permit;
                }
                Some(bytes) = self.records.1.recv(), if self.out.len() < OUT_LIMIT && !self.reads.is_empty() => {
                    self.out.extend_from_slice(&bytes);
                }
                () = until(deadline) => {
                    if self.timed_out(flow) {
                        return self.last_words(wr).await;
                    }
                }
                _ = stop.changed() => {}
            }
        }
    }

    /// The peer closed its side. What it asked for is still answered, as long as it can be told.
    async fn hang_up<W: AsyncWrite + Unpin>(
        &mut self,
        wr: &mut W,
        mut marks: watch::Receiver<Marks>,
    ) -> io::Result<()> {
        while self.session.unanswered() > 0 {
            self.release(&marks.borrow_and_update().clone());
            wr.write_all_buf(&mut self.out).await?;
            if self.session.unanswered() > 0 && marks.changed().await.is_err() {
                break;
            }
        }
        // Who follows and closes is gone: nothing else would ever tell, on a log that rests. Who only half-closed its side
        // still gets the rest of what it asked for.
        self.reads.retain(|_, read| {
            if read.follows {
                read.task.abort();
            }
            !read.follows
        });
        loop {
            self.forget_ended_reads();
            wr.write_all_buf(&mut self.out).await?;
            if self.reads.is_empty() || *self.service.stop.borrow() {
                break;
            }
            // The task may end between its last block and this look: this side holds a sender too, so that the channel
            // never says so by itself.
            if let Ok(Some(bytes)) = tokio::time::timeout(READ_LOOK, self.records.1.recv()).await {
                self.out.extend_from_slice(&bytes);
            }
        }
        self.last_words(wr).await
    }

    /// Those whose task is over and whose last block was taken.
    fn forget_ended_reads(&mut self) {
        // In this order: a task that is over has sent its last block, and it is in the channel or was taken.
        let blocks = &self.records.1;
        self.reads.retain(|_, read| !(read.task.is_finished() && blocks.is_empty()));
    }

    async fn last_words<W: AsyncWrite + Unpin>(&mut self, wr: &mut W) -> io::Result<()> {
        self.producer = None; // its session ends before the peer can see the end
        let say = async {
            wr.write_all_buf(&mut self.out).await?;
            wr.shutdown().await
        };
        tokio::time::timeout(LAST_WORDS, say).await.unwrap_or(Ok(()))
    }

    /// HELLO and WELCOME; `false` when the peer was told why not.
    async fn handshake<R, W>(&mut self, rd: &mut R, wr: &mut W) -> io::Result<bool>
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + Unpin + Send,
    {
        let hello = async {
            loop {
                if let Some(raw) = peek(&self.buf, self.service.door.max_append).map_err(|e| e.info())? {
                    let total = raw.total_len();
                    if raw.header.kind != FrameType::Hello {
                        let text = "the first frame must be HELLO";
                        return Err(ErrorInfo::new(ErrorCode::MalformedFrame, text));
                    }
                    let frame = raw.decode().map_err(|e| e.info())?;
                    self.buf.advance(total);
                    return Ok(frame);
                }
                self.buf.reserve(CHUNK_MIN);
                match rd.read_buf(&mut self.buf).await {
                    Ok(1..) if self.buf.len() <= SMALL_FRAME => {}
                    _ => return Err(ErrorInfo::new(ErrorCode::MalformedFrame, "the connection ended before HELLO")),
                }
            }
        };
        let timeout = self.service.handshake_timeout;
        let hello = match tokio::time::timeout(timeout, hello).await {
            Ok(got) => got,
            Err(_) => Err(ErrorInfo::new(ErrorCode::HandshakeTimeout, format!("no HELLO within {timeout:?}"))),
        };
        let answer = match hello {
            Ok(Frame::Hello(hello)) => self.service.door.welcome(&hello, &self.peer),
            Ok(_) => Err(ErrorInfo::new(ErrorCode::MalformedFrame, "the first frame must be HELLO")),
            Err(e) => Err(e),
        };
        match answer {
            Ok((welcome, producer)) => {
                welcome.encode(&mut self.out);
                self.producer = producer;
                wr.write_all_buf(&mut self.out).await?;
                Ok(true)
            }
            Err(error) => {
                count_refusal(AckLevel::Received, error.code, 1);
                ErrorFrame { request_id: 0, error }.encode(&mut self.out);
                Ok(false)
            }
        }
    }

    /// Handles every whole frame in the buffer.
    fn process(&mut self) -> Flow {
        let buf = std::mem::take(&mut self.buf);
        if !buf.is_empty() {
            self.arrival = self.service.door.arrival();
        }
        let (at, flow) = self.frames(&buf);
        if at > 0 {
            self.assembled = None; // it was for the frame at the front
        }
        self.buf = buf;
        self.buf.advance(at);
        self.partial_since = match (flow, self.buf.is_empty()) {
            // A large frame holds its share of the assembly budget also while its sender does not read.
            (Flow::NeedBytes, false) => self.partial_since.filter(|_| at == 0).or_else(|| Some(Instant::now())),
            (Flow::OutputFull, _) if self.assembled.is_some() => self.partial_since.or_else(|| Some(Instant::now())),
            _ => None,
        };
        flow
    }

    /// Handles whole frames from the front on; says how many bytes they took, and why it stopped.
    fn frames(&mut self, bytes: &[u8]) -> (usize, Flow) {
        let mut at = 0;
        let mut burst = Burst::default();
        loop {
            if self.out.len() + burst.answers_len() >= OUT_LIMIT {
                match self.hand_over(&mut burst) {
                    Err(stopped) => return (stopped, Flow::NeedPermit),
                    Ok(()) if self.out.len() >= OUT_LIMIT => return (at, Flow::OutputFull),
                    Ok(()) => {}
                }
            }
            let peeked = peek_known(&bytes[at..], self.service.door.max_append, &mut self.known_header);
            if let Ok(Some(raw)) = &peeked
                && raw.header.kind == FrameType::Append
                && self.join(&mut burst, raw.body, at)
            {
                at += raw.total_len();
                continue;
            }
            if let Err(stopped) = self.hand_over(&mut burst) {
                return (stopped, Flow::NeedPermit);
            }
            let raw = match peeked {
                Ok(Some(raw)) => raw,
                Ok(None) => return (at, Flow::NeedBytes),
                Err(e) => return (at, self.protocol_error(&e)),
            };
            // A burst may have been full: then this one begins the next.
            if raw.header.kind != FrameType::Append || !self.join(&mut burst, raw.body, at) {
                match self.frame(&raw) {
                    Flow::NeedPermit => return (at, Flow::NeedPermit),
                    Flow::Close => return (at + raw.total_len(), Flow::Close),
                    Flow::NeedBytes | Flow::OutputFull => {}
                }
            }
            at += raw.total_len();
        }
    }

    fn protocol_error(&mut self, e: &FrameError) -> Flow {
        self.fatal(e.info())
    }

    fn fatal(&mut self, error: ErrorInfo) -> Flow {
        count_refusal(AckLevel::Received, error.code, 1);
        tracing::debug!(peer = self.peer.name, %error, "protocol error");
        ErrorFrame { request_id: 0, error }.encode(&mut self.out);
        Flow::Close
    }

    fn frame(&mut self, raw: &RawFrame<'_>) -> Flow {
        if raw.header.kind == FrameType::Append {
            return self.append(raw.body);
        }
        match raw.decode() {
            Ok(Frame::Flush(flush)) => self.flush(flush),
            Ok(Frame::Read(read)) => self.read(read),
            Ok(Frame::Ping(request_id)) => encode_pong(&mut self.out, request_id),
            Ok(Frame::CancelRead(request_id)) => self.cancel(request_id),
            Ok(Frame::Bye) => {
                if self.session.unanswered() == 0
                    && let Some(producer) = &mut self.producer
                {
                    producer.forget();
                }
                return Flow::Close;
            }
            Ok(_) => {
                let text = format!("a {:?} frame is none that a client sends here", raw.header.kind);
                return self.fatal(ErrorInfo::new(ErrorCode::MalformedFrame, text));
            }
            Err(e) => return self.protocol_error(&e),
        }
        Flow::NeedBytes
    }

    fn append(&mut self, body: &[u8]) -> Flow {
        let view = match AppendView::parse(body) {
            Ok(view) => view,
            Err(e) => return self.protocol_error(&e),
        };
        if self.producer.is_none() {
            let text = "HELLO did not say that this connection appends";
            return self.fatal(ErrorInfo::new(ErrorCode::MalformedFrame, text));
        }
        match self.append_alone(&view) {
            Some(()) => Flow::NeedBytes,
            None => Flow::NeedPermit,
        }
    }

    /// Whether a permit is being waited for, or was, for the append at the front.
    pub(super) fn waits_for_room(&self) -> bool {
        self.admitting.is_some() || self.admitted.is_some()
    }

    /// Takes or refuses one append; nothing when it must wait for room.
    pub(super) fn append_alone(&mut self, view: &AppendView<'_>) -> Option<()> {
        let door = self.service.door.clone();
        let admitted = match self.admitted.take() {
            Some(waited) => waited,
            // Its turn in the queue for room is kept.
            None if self.admitting.is_some() => return None,
            // One connection's share; it is free again when the marks have passed what it holds. Once that has been waited
            // for in vain, what follows need not wait as long again.
            None if self.session.held_bytes() > 0
                && self.session.held_bytes() + view.payload.len() > door.max_connection_bytes =>
            {
                if self.share_since.get_or_insert_with(Instant::now).elapsed() < ADMISSION_WAIT {
                    return None;
                }
                Err(door.share_is_full())
            }
            None => {
                self.share_since = None;
                match door.try_admit(view.payload.len(), self.arrival) {
                    Some(admitted) => Ok(admitted),
                    None => {
                        let payload = view.payload.len();
                        self.admitting = Some(Box::pin(async move { door.admit(payload).await }));
                        return None;
                    }
                }
            }
        };
        let since = admitted.as_ref().map_or_else(|_| Instant::now(), |a| a.at.since);
        match admitted.and_then(|a| self.take(view, a)) {
            Ok(accepted) => self.taken(&view.head, &accepted, view.payload.len(), since),
            Err(error) => self.refused(&view.head, error),
        }
        Some(())
    }

    fn take(&self, view: &AppendView<'_>, admitted: Admitted) -> Result<clad_journal::Accepted, ErrorInfo> {
        let door = &self.service.door;
        if !view.checksum_holds() {
            let text = "the payload does not fit its checksum: it was damaged on the way, or made wrongly";
            return Err(ErrorInfo::new(ErrorCode::BadChecksum, text));
        }
        if self.session.unanswered() >= door.window as usize {
            let text = format!("more than {} appends are unanswered", door.window);
            return Err(ErrorInfo::new(ErrorCode::WindowExceeded, text).limited_to(door.window.into()));
        }
        let producer = self.producer.as_ref().expect("append checked it");
        door.take(&self.peer, producer, &view.head, view.payload, admitted)
    }

    fn flush(&mut self, flush: Flush) {
        let door = &self.service.door;
        let level = match flush.level {
            AckLevel::Durable => Level::Durable,
            _ => Level::Written,
        };
        // Where acks end at `written`, a flush still asks the disk: the sync is made, the mark is what it is.
        match flush.level {
            level if level > door.flush_reach => {
                let text = format!("this log reaches `{}` at most, not `{level}`", door.flush_reach);
                let error = ErrorInfo::new(ErrorCode::LevelUnreachable, text);
                ErrorFrame { request_id: flush.request_id, error }.encode(&mut self.out);
            }
            _ if self.session.unanswered() >= 2 * door.window as usize => {
                let error = ErrorInfo::new(ErrorCode::Busy, "too many FLUSHes are unanswered").retry_after_ms(100);
                ErrorFrame { request_id: flush.request_id, error }.encode(&mut self.out);
            }
            AckLevel::Durable | AckLevel::Written => {
                let end = match level {
                    Level::Durable => door.journal.request_sync(),
                    _ => door.journal.marks().received,
                };
                self.session.flush(flush.request_id, end, level, door.journal.marks().failures);
            }
            _ => {
                let m = door.journal.marks();
                frame::Watermark {
                    request_id: flush.request_id,
                    epoch: m.epoch,
                    epoch_first_offset: m.epoch_first,
                    level: AckLevel::Received,
                    offset: m.received,
                }
                .encode(&mut self.out);
            }
        }
    }

    fn read(&mut self, read: frame::Read) {
        let refuse = |code, text: &str| Err(ErrorInfo::new(code, text));
        self.forget_ended_reads();
        let checked = if !self.peer.may_read {
            refuse(ErrorCode::PermissionDenied, "this peer may not read this log ([access] read_group, allow_read)")
        } else if self.reads.contains_key(&read.request_id) || read.request_id == 0 {
            refuse(ErrorCode::MalformedFrame, "a READ needs a request id that no open READ has")
        } else if self.reads.len() >= MAX_READS_PER_CONNECTION {
            refuse(ErrorCode::Busy, "too many READs are open on this connection")
        } else {
            self.service.reads.start(&read)
        };
        match checked {
            Ok(start) => {
                let task = tokio::spawn(start.run(self.records.0.clone(), self.service.stop.clone()));
                let open = OpenRead { task: task.abort_handle(), follows: read.follow };
                self.reads.insert(read.request_id, open);
            }
            Err(error) => ErrorFrame { request_id: read.request_id, error }.encode(&mut self.out),
        }
    }

    fn cancel(&mut self, request_id: u32) {
        let Some(read) = self.reads.remove(&request_id) else { return };
        read.task.abort();
        let m = self.service.door.journal.marks();
        let log_id = LogId::from_bytes(self.service.door.journal.meta().log_id);
        let cursor = Cursor { log_id, epoch: m.epoch, offset: m.written };
        ReadEnd { request_id, cursor, reason: ReadEndReason::Cancelled }.encode(&mut self.out);
    }

    fn release(&mut self, marks: &Marks) {
        let mut answers = std::mem::take(&mut self.answers);
        self.session.release(marks, &mut answers);
        for answer in answers.drain(..) {
            match answer {
                Answer::Watermark(w) => w.encode(&mut self.out),
                Answer::Refused(r) => {
                    count_refusal(AckLevel::Received, r.error.code, r.count);
                    r.encode(&mut self.out);
                }
                Answer::FlushFailed(request_id, error) => ErrorFrame { request_id, error }.encode(&mut self.out),
            }
        }
        self.answers = answers;
    }

    /// Room for the next read: in small steps while little comes, whole where a large frame is under way.
    fn make_room(&mut self) {
        let header = self.buf.first_chunk::<FRAME_HEADER_BYTES>();
        let header = header.and_then(|h| FrameHeader::decode(h, self.service.door.max_append).ok());
        let missing = header.map_or(0, |h| (FRAME_HEADER_BYTES + h.body_len as usize).saturating_sub(self.buf.len()));
        if missing > SMALL_FRAME && self.assembled.is_none() {
            let wanted = self.service.assembly.share(missing + self.buf.len());
            match self.service.assembly.try_take(wanted) {
                Some(permit) => self.assembled = Some(permit),
                None => {
                    self.assembling = Some(Box::pin(self.service.assembly.take(wanted)));
                    return;
                }
            }
        }
        if self.buf.capacity() == self.buf.len() {
            // The last read filled everything there was: more is coming than the buffer expects.
            self.chunk = (self.chunk * 2).min(CHUNK_MAX);
        }
        if self.buf.is_empty() && self.chunk > CHUNK_MIN && self.last_activity.elapsed() > Duration::from_millis(100) {
            self.chunk = CHUNK_MIN;
            self.buf = BytesMut::new();
        }
        self.buf.reserve(missing.max(self.chunk / 2).max(CHUNK_MIN / 2));
    }

    fn deadline(&self, flow: Flow) -> Option<Instant> {
        let half = self.partial_since.map(|t| t + FRAME_TIMEOUT);
        let idle = self.idles(flow).then(|| self.last_activity + self.service.idle_timeout);
        let share = self.share_since.map(|t| t + ADMISSION_WAIT).filter(|t| *t > Instant::now());
        half.into_iter().chain(idle).chain(share).min()
    }

    /// Whether silence has a bound now: nothing is under way in either direction.
    fn idles(&self, flow: Flow) -> bool {
        let bounded = !self.service.idle_timeout.is_zero();
        bounded && flow == Flow::NeedBytes && !self.session.waits() && self.reads.is_empty()
    }

    fn timed_out(&mut self, flow: Flow) -> bool {
        let text = match self.partial_since {
            Some(t) if t.elapsed() >= FRAME_TIMEOUT => format!("half a frame, and nothing more for {FRAME_TIMEOUT:?}"),
            _ if self.idles(flow) && self.last_activity.elapsed() >= self.service.idle_timeout => {
                "nothing came for too long".to_owned()
            }
            _ => return false, // what waits for its share is looked at again
        };
        self.fatal(ErrorInfo::new(ErrorCode::IdleTimeout, text));
        true
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(t) => tokio::time::sleep_until(t.into()).await,
        None => std::future::pending().await,
    }
}

async fn poll_some<T>(waiting: &mut Waiting<T>) -> T {
    match waiting {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
