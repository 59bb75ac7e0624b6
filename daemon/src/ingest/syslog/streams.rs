//! Connections of syslog over TCP and Unix sockets. Nothing is answered: the protocol has no words for it.
//!
//! Invariants:
//! - A sender waits while there is no room: nothing is read that cannot be stored soon. Nothing is dropped, but what a stop
//!   finds read and not stored.
//! - What is read is counted among the buffers of connections, and so is the begin of a long message, which must come to its
//!   end in time.
//! - A message that the end of a connection cuts is stored, and marked.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Notify, watch};
use tokio_rustls::server::TlsStream;

use super::framing::{Framing, RawMessage};
use super::message::{self, Rules};
use super::record::{Arrived, MessageBatch};
use crate::ingest::own_appends::OwnAppends;
use crate::ingest::quota::{QuotaGuard, QuotaHandle};
use crate::ingest::{Admission, ConnectionSlot, OwnProducers, Peer, count_refusal, dropped, leaves};
use crate::ops::metrics;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes of records that are made of a read before they are stored: a short message becomes a longer record.
pub(super) const RECORDS_BYTES: usize = 64 << 10;
/// Begin of a message that is not counted, and may come to its end at any time.
const SHORT_BYTES: usize = 4 << 10;
/// Time for a longer message to come to its end.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two tries of an append that was refused for now.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// A connection of each kind.
pub(super) enum StreamSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl StreamSocket {
    async fn readable(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
            // The session may have bytes that the socket has no more.
            Self::Tls(stream) => stream.fill_buf().await.map(drop),
        }
    }

    async fn read_buf(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read_buf(buf).await,
            Self::Unix(stream) => stream.read_buf(buf).await,
            Self::Tls(stream) => stream.read_buf(buf).await,
        }
    }

    /// Cancel safe only at the end of a connection.
    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes).await,
            Self::Unix(stream) => stream.write_all(bytes).await,
            Self::Tls(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
        }
    }

    pub(super) async fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown().await,
            Self::Unix(stream) => stream.shutdown().await,
            Self::Tls(stream) => stream.shutdown().await,
        }
    }
}

/// Outcome of a read.
pub(super) enum Came {
    Bytes,
    /// The peer has closed its side, or is gone.
    End,
    /// The daemon stops, or others want the place.
    Leave,
}

/// The incoming half of a connection, and its place.
pub(super) struct Incoming {
    pub(super) socket: StreamSocket,
    pub(super) buf: BytesMut,
    buffers: QuotaHandle,
    /// For a read, its records, and the begin of a long message. Taken at once: who has some waits for no more.
    held: Option<QuotaGuard>,
    max_message: usize,
    slot: ConnectionSlot,
    makes_room: Arc<Notify>,
    stop: watch::Receiver<bool>,
    _counted: metrics::Connection,
}

impl Incoming {
    pub(super) fn new(
        socket: StreamSocket,
        (buffers, max_message): (QuotaHandle, usize),
        slot: ConnectionSlot,
        transport: metrics::Transport,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let makes_room = Arc::new(Notify::new());
        let wake = makes_room.clone();
        slot.slot_state().wake_by(move || wake.notify_one());
        let _counted = metrics::Connection::open(transport);
        Self { socket, buf: BytesMut::new(), buffers, held: None, max_message, slot, makes_room, stop, _counted }
    }

    /// The place among the connections.
    pub(super) fn slot(&self) -> &ConnectionSlot {
        &self.slot
    }

    /// Waits for the stop of the daemon.
    pub(super) async fn stopped(&mut self) {
        let _ = self.stop.wait_for(|stop| *stop).await;
    }

    /// Reads behind what the buffer has; where it may not read, it waits for the end alone. Cancel safe.
    ///
    /// # Errors
    /// The end of a long message did not come in time.
    pub(super) async fn read(&mut self, may_read: bool) -> io::Result<Came> {
        let is_long = self.buf.len() > SHORT_BYTES;
        if !is_long {
            self.held = None; // of a read that was given up
        }
        let read = async {
            match is_long {
                // Its begin is held: the peer has to go on.
                true => tokio::time::timeout(MESSAGE_TIMEOUT, self.socket.readable()).await.map_err(|_| {
                    io::Error::new(io::ErrorKind::TimedOut, "the end of a message did not come in time")
                })??,
                false => self.socket.readable().await?,
            }
            if self.held.is_none() {
                let bytes = self.max_message + READ_BYTES + RECORDS_BYTES;
                let Some(held) = self.buffers.take(bytes).await else { return Ok(Came::Leave) };
                self.held = Some(held);
            }
            self.buf.reserve(READ_BYTES);
            match self.socket.read_buf(&mut self.buf).await {
                Ok(0) => Ok(Came::End),
                Ok(_) => Ok(Came::Bytes),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Came::End),
                Err(error) => Err(error),
            }
        };
        let (stop, room) = (&mut self.stop, &self.makes_room);
        let came = tokio::select! {
            came = read, if may_read => came?,
            _ = stop.wait_for(|stop| *stop) => Came::Leave,
            () = room.notified() => Came::Leave,
        };
        match &came {
            Came::Bytes => self.slot.slot_state().active(std::time::Instant::now()),
            Came::Leave if self.slot.slot_state().is_leaving() => {
                count_refusal(AckLevel::Received, leaves(self.slot.slot_state()).code, 1);
            }
            _ => {}
        }
        Ok(came)
    }

    /// Gives back what a read has taken, but for the begin of a long message.
    pub(super) fn settle(&mut self) {
        if self.buf.len() <= SHORT_BYTES {
            self.held = None;
        }
        // Its own memory, not that of the read.
        self.buf = if self.buf.is_empty() { BytesMut::new() } else { BytesMut::from(&self.buf[..]) };
    }
}

/// Messages of a connection, on their way into the log.
pub(super) struct StreamIntake {
    pub(super) appends: OwnAppends,
    pub(super) batch: MessageBatch,
    rules: Rules,
    admission: Arc<Admission>,
}

impl StreamIntake {
    /// # Errors
    /// The journal is closing.
    pub(super) fn begin(
        admission: Arc<Admission>,
        producers: &OwnProducers,
        peer: Peer,
        level: AckLevel,
        rules: Rules,
    ) -> Result<Self, ErrorInfo> {
        let appends = OwnAppends::begin(admission.clone(), producers, peer, level)?;
        Ok(Self { batch: MessageBatch::new(appends.limits()), appends, rules, admission })
    }

    /// Adds a message; false if it can never be stored.
    pub(super) fn push(&mut self, frame: &RawMessage) -> bool {
        let now = u64::try_from(self.admission.arrival().moment().real_ns).unwrap_or(0);
        let message = message::parse(&frame.bytes, &self.rules, now);
        self.batch.push(&message, &frame.bytes, Arrived { at: now, cut_from: frame.cut_from })
    }

    /// Stores an append, and waits for as long as it is refused for now.
    ///
    /// # Errors
    /// It is refused for good, or the daemon stops.
    pub(super) async fn store(&mut self, payload: &clad_proto::Payload) -> Result<(), ErrorInfo> {
        loop {
            let admitted = match self.appends.admit(payload.bytes.len()).await {
                Ok(admitted) => admitted,
                Err(error) if is_for_now(&error) => {
                    // At once where it has waited already.
                    if error.code != ErrorCode::Busy {
                        tokio::time::sleep(RETRY_INTERVAL).await;
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            match self.appends.take(payload, None, admitted) {
                Err(error) if is_for_now(&error) => tokio::time::sleep(RETRY_INTERVAL).await,
                // No thread of the runtime may block: the journal's threads make the write.
                done => return done.map(drop),
            }
        }
    }
}

/// A refusal of this append that passes, other than by the end of the daemon. An error after which earlier ones may be stored or
/// not is none: nothing that comes later makes it good.
fn is_for_now(error: &ErrorInfo) -> bool {
    error.retryable && !error.maybe_written && error.code != ErrorCode::ShuttingDown
}

/// Serves a connection until its end.
pub(super) async fn serve(mut input: Incoming, mut intake: StreamIntake, max_message: usize, peer: String) {
    let mut framing = Framing::new(max_message);
    loop {
        match input.read(true).await {
            Ok(Came::Bytes) => {}
            Ok(Came::End | Came::Leave) => break,
            Err(error) => {
                tracing::info!(peer, %error, "a connection of syslog has ended");
                break;
            }
        }
        loop {
            match framing.next(&mut input.buf) {
                Ok(Some(frame)) => {
                    intake.push(&frame);
                    if intake.batch.bytes() >= RECORDS_BYTES {
                        store_all(&mut input, &mut intake).await;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(peer, %error, "a connection of syslog is closed: what comes next is no message");
                    metrics::dropped(metrics::Dropped::Invalid, 1);
                    store_all(&mut input, &mut intake).await;
                    return;
                }
            }
        }
        store_all(&mut input, &mut intake).await;
        input.settle();
    }
    if let Some(frame) = framing.last(&mut input.buf) {
        intake.push(&frame);
    }
    store_all(&mut input, &mut intake).await;
}

/// Stores what was read. At a stop nothing is waited for: what there is no room for is dropped.
async fn store_all(input: &mut Incoming, intake: &mut StreamIntake) {
    let mut pending_answer = input.slot().slot_state().pending_answer();
    // Until it is stored, nobody else gets the place.
    pending_answer.set(true);
    let mut is_stopping = false;
    for payload in intake.batch.take() {
        let stored = if is_stopping {
            Err(ErrorCode::ShuttingDown)
        } else {
            tokio::select! {
                biased;
                stored = intake.store(&payload) => stored.map_err(|error| error.code),
                () = input.stopped() => Err(ErrorCode::ShuttingDown),
            }
        };
        if let Err(code) = stored {
            is_stopping |= code == ErrorCode::ShuttingDown;
            metrics::dropped(dropped(code), payload.count.into());
        }
    }
}
