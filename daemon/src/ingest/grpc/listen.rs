//! Connections, before HTTP/2 sees them.
//!
//! Invariants: a connection has its slot for as long as its socket is open; one over the limit is notified in HTTP/2's
//! own words. One that does not begin to speak HTTP/2 in time is closed. An error of `accept` is waited out, never spun
//! on. Once [`Connection`]s are cut, their sockets close whatever calls are open. A peer that takes no output for as
//! long as [`PeerTimeouts`] allows is closed: longer where it has read.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use clad_proto::limits::MAX_READS_PER_CONNECTION;
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Sleep;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::Connected;

use crate::ingest::quota::Owner;
use crate::ingest::slots::{PendingAnswer, SlotState};
use crate::ingest::{
    ConnectionSlot, ConnectionSlots, LiveSettings, PeerTimeouts, count_refusal, makes_room, no_place, sock_diag,
};
use crate::ops::metrics;

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Bytes that every HTTP/2 client sends first.
const PREFACE_BYTES: usize = 24;
/// Time and bytes that a connection over the limit gets to read why.
const REFUSAL: (Duration, u64) = (Duration::from_secs(1), 64 * 1024);

/// The caller; every request has it in its extensions.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) address: SocketAddr,
    /// Owner whose share of the quotas it uses.
    pub(super) owner: Owner,
    slot_state: Arc<SlotState>,
    /// One permit for each read that may be open on this connection.
    reads: Arc<Semaphore>,
    /// There was a read. Its output may wait for the peer after its end: as blocks, in buffers of HTTP/2 or the socket.
    has_read: Arc<AtomicBool>,
}

impl Caller {
    /// For a call that says whether it has a pending answer.
    pub(super) fn pending_answer(&self) -> PendingAnswer {
        self.slot_state.pending_answer()
    }

    /// A place for one more read.
    pub(super) fn begin_read(&self) -> Option<OwnedSemaphorePermit> {
        let slot = self.reads.clone().try_acquire_owned().ok()?;
        self.has_read.store(true, Ordering::Relaxed);
        Some(slot)
    }
}

/// A socket with its place.
pub(super) struct Connection {
    stream: TcpStream,
    caller: Caller,
    /// Nothing any more once it is cut.
    cut: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// There until the preface has come.
    handshake: Option<Pin<Box<Sleep>>>,
    got: usize,
    /// Dropped with the connection; that ends the stream that it was made for.
    over: Option<mpsc::Sender<Infallible>>,
    peer_timeouts: PeerTimeouts,
    /// Set while it waits for the peer to take something, with the time since when.
    taking: Option<(tokio::time::Instant, Pin<Box<Sleep>>)>,
    slot: ConnectionSlot,
    _counted: metrics::Connection,
}

/// Accepts until `stop`.
pub(super) fn accept(
    listener: TcpListener,
    connection_slots: Arc<ConnectionSlots>,
    live_settings: LiveSettings,
    cut: watch::Receiver<bool>,
    mut stop: watch::Receiver<bool>,
) -> mpsc::Receiver<Connection> {
    let (accepted, connections) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let got = tokio::select! {
                got = listener.accept() => got,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            let (stream, address) = match got {
                Ok(got) => got,
                Err(e) => {
                    tracing::warn!(error = %e, "accept failed on the gRPC socket");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let owner = sock_diag::owner(&stream, address).await;
            let Some(slot) = connection_slots.take(owner, metrics::Transport::Grpc) else {
                tokio::spawn(too_many(stream, no_place(&connection_slots.quota_usage(), owner)));
                continue;
            };
            let service = live_settings.service();
            let times = (service.handshake_timeout, service.peer_timeouts);
            let connection = Connection::new(stream, (address, owner), slot, times, cut.clone());
            if accepted.send(connection).await.is_err() {
                return;
            }
        }
    });
    connections
}

/// An empty SETTINGS frame, and GOAWAY with ENHANCE_YOUR_CALM: no call of this connection was looked at, so a client
/// may make all of them again elsewhere or later.
async fn too_many(mut stream: TcpStream, error: ErrorInfo) {
    count_refusal(AckLevel::Received, error.code, 1);
    let [high, low] = u16::try_from(8 + error.text.len()).unwrap_or(8).to_be_bytes();
    let mut frames = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
    frames.extend([0, high, low, 7, 0, 0, 0, 0, 0]);
    frames.extend([0, 0, 0, 0, 0, 0, 0, 0x0B]);
    frames.extend_from_slice(error.text.as_bytes());
    let send_refusal = async {
        stream.write_all(&frames).await?;
        stream.shutdown().await?;
        // Closed with unread bytes, the kernel would take the frames back.
        tokio::io::copy(&mut stream.take(REFUSAL.1), &mut tokio::io::sink()).await
    };
    let _ = tokio::time::timeout(REFUSAL.0, send_refusal).await;
}

impl Connection {
    pub(super) fn new(
        stream: TcpStream,
        (address, owner): (SocketAddr, Owner),
        slot: ConnectionSlot,
        (handshake_timeout, peer_timeouts): (Duration, PeerTimeouts),
        mut cut: watch::Receiver<bool>,
    ) -> Self {
        let _ = stream.set_nodelay(true);
        let room = Arc::new(Notify::new());
        let wake = room.clone();
        slot.slot_state().wake_by(move || wake.notify_one());
        Self {
            stream,
            caller: Caller {
                address,
                owner,
                slot_state: slot.slot_state().clone(),
                reads: Arc::new(Semaphore::new(MAX_READS_PER_CONNECTION)),
                has_read: Arc::default(),
            },
            cut: Some(Box::pin(async move {
                tokio::select! {
                    Ok(_) = cut.wait_for(|cut| *cut) => {}
                    () = room.notified() => {}
                }
            })),
            handshake: Some(Box::pin(tokio::time::sleep(handshake_timeout))),
            got: 0,
            over: None,
            peer_timeouts,
            taking: None,
            slot,
            _counted: metrics::Connection::open(metrics::Transport::Grpc),
        }
    }

    #[cfg(test)]
    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// A stream that never gives anything, and ends when this connection does.
    pub(super) fn closed_stream(&mut self) -> impl Stream<Item = io::Result<Self>> + use<> {
        // Of nothing, because a channel takes the memory of 32 items at its beginning.
        let (over, closed) = mpsc::channel(1);
        self.over = Some(over);
        ReceiverStream::new(closed).map(|never| match never {})
    }

    /// Checks that the connection is still open. Called on both ways: HTTP/2 does not read while it cannot write.
    fn check_open(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.cut.as_mut().is_none_or(|cut| cut.as_mut().poll(cx).is_ready()) {
            if self.cut.take().is_some() && self.slot.slot_state().is_leaving() {
                count_refusal(AckLevel::Received, makes_room().code, 1);
            }
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "clad is stopping, or others want the place"));
        }
        if self.handshake.as_mut().is_some_and(|handshake| handshake.as_mut().poll(cx).is_ready()) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no HTTP/2 preface in time"));
        }
        Ok(())
    }
}

impl Connection {
    /// Result of a write: an error where a peer takes nothing for too long.
    fn taken(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.taking = None;
            return written;
        }
        let write_timeout = self.peer_timeouts.of(self.caller.has_read.load(Ordering::Relaxed));
        let begin = || (tokio::time::Instant::now(), Box::pin(tokio::time::sleep(write_timeout)));
        let (since, taking) = self.taking.get_or_insert_with(begin);
        let until = *since + write_timeout;
        if taking.deadline() < until {
            taking.as_mut().reset(until); // it reads since
        }
        ready!(taking.as_mut().poll(cx));
        count_refusal(AckLevel::Received, ErrorCode::IdleTimeout, 1);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes nothing")))
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check_open(cx)?;
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.slot.slot_state().active(Instant::now());
        if self.handshake.is_some() {
            self.got += buf.filled().len() - before;
            if self.got >= PREFACE_BYTES {
                self.handshake = None;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check_open(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.taken(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_open(cx)?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.taken(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
