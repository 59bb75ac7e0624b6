//! Connections, before HTTP sees them.
//!
//! Invariants: a connection has its slot for as long as its socket is open; one over the limit is notified in the words
//! of the HTTP that it speaks. One that does not begin to speak in time is closed. An error of `accept` is waited out, never spun
//! on. Once [`Connection`]s are cut, their sockets close whatever calls are open. A peer that takes no output for as
//! long as [`PeerTimeouts`] allows is closed: longer where it has read.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderValue, header};
use clad_proto::frame::Transport;
use clad_proto::limits::MAX_READS_PER_CONNECTION;
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Sleep;

use super::stream::Stream;
use crate::access::Access;
use crate::ingest::quota::Owner;
use crate::ingest::slots::{PendingAnswer, SlotState};
use crate::ingest::{
    ConnectionSlot, ConnectionSlots, LiveSettings, Peer, PeerTimeouts, Shown, count_refusal, leaves, no_place,
    sock_diag, start_time_of_peer,
};
use crate::ops::metrics;
use crate::tls::{Established, Tls};

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Bytes that every HTTP/2 client sends first; a request of HTTP/1 is longer.
const PREFACE_BYTES: usize = 24;
/// The first of them.
const PREFACE_BEGIN: &[u8] = b"PRI ";
/// Before a token (RFC 6750, 2.1).
const BEARER: &[u8] = b"Bearer ";
/// Time and bytes that a connection over the limit gets to read why.
const REFUSAL: (Duration, u64) = (Duration::from_secs(1), 64 * 1024);

/// A listening socket of each kind.
pub(crate) enum Listener {
    Tcp(TcpListener),
    /// With the key of the configuration that says so.
    Tls(TcpListener, Tls, &'static str),
    Unix(UnixListener),
}

/// Identity of a peer, as the kernel reports it, or its certificate.
#[derive(Clone, Debug)]
pub(super) enum Identity {
    Network(SocketAddr),
    /// Within TLS, with the name in its certificate.
    OverTls(SocketAddr, Option<Arc<str>>),
    Local {
        uid: u32,
        gid: u32,
        pid: Option<u32>,
        pid_start: Option<u64>,
    },
}

/// The caller; every request has it in its extensions.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    identity: Identity,
    /// Owner whose share of the quotas it uses.
    pub(crate) owner: Owner,
    slot_state: Arc<SlotState>,
    /// One permit for each read that may be open on this connection.
    reads: Arc<Semaphore>,
    /// There was a read. Its output may wait for the peer after its end: as blocks, in buffers of HTTP/2 or the socket.
    has_read: Arc<AtomicBool>,
}

impl Listener {
    async fn accept(&self) -> io::Result<(Stream, Identity, Owner)> {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, ..) => {
                let (stream, address) = listener.accept().await?;
                let owner = sock_diag::owner(&stream, address).await;
                let _ = stream.set_nodelay(true);
                Ok((Stream::Tcp(stream), Identity::Network(address), owner))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let cred = stream.peer_cred()?;
                let (uid, gid) = (cred.uid(), cred.gid());
                let pid = cred.pid().and_then(|pid| u32::try_from(pid).ok());
                let pid_start = pid.and_then(|pid| start_time_of_peer(&stream, pid));
                Ok((Stream::Unix(stream), Identity::Local { uid, gid, pid, pid_start }, Owner::Uid(uid)))
            }
        }
    }
}

impl Caller {
    /// The peer that makes a request, with its rights: its token is in the headers.
    ///
    /// # Errors
    /// The token is none.
    pub(crate) fn peer(
        &self,
        (transport, may_read): (Transport, bool),
        headers: &HeaderMap,
        access: &Access,
    ) -> Result<Peer, ErrorInfo> {
        let peer = match &self.identity {
            Identity::Network(address) => Peer::network(transport, Some(*address), self.owner, may_read),
            Identity::OverTls(address, name) => Peer::over_tls(transport, *address, self.owner, may_read, name.clone()),
            Identity::Local { uid, gid, pid, pid_start } => Peer::local(transport, *uid, *gid, *pid, *pid_start),
        };
        let shown = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let token = shown.and_then(|shown| shown.split_at_checked(BEARER.len()));
        let token =
            token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(BEARER)).map(|(_, token)| token.trim_ascii());
        // Another scheme is between the peer and whoever stands before clad.
        peer.judged(access, token.map_or(Shown::Nothing, Shown::Token))
    }

    /// Notes a peer of it that has a call open for long: the connection ends when that has other rights.
    pub(crate) fn serves(&self, peer: &Arc<Peer>, access: &Access) {
        self.slot_state.serves(peer, access);
    }

    /// For a call that says whether it has a pending answer.
    pub(crate) fn pending_answer(&self) -> PendingAnswer {
        self.slot_state.pending_answer()
    }

    /// A place for one more read.
    pub(crate) fn begin_read(&self) -> Option<OwnedSemaphorePermit> {
        let slot = self.reads.clone().try_acquire_owned().ok()?;
        self.has_read.store(true, Ordering::Relaxed);
        Some(slot)
    }
}

/// A socket with its place.
pub(super) struct Connection {
    stream: Stream,
    caller: Caller,
    /// Nothing any more once it is cut.
    cut: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// There until the preface has come.
    handshake: Option<Pin<Box<Sleep>>>,
    got: usize,
    peer_timeouts: PeerTimeouts,
    /// Set while it waits for the peer to take something, with the time since when.
    taking: Option<(tokio::time::Instant, Pin<Box<Sleep>>)>,
    slot: ConnectionSlot,
    _counted: metrics::Connection,
}

/// Accepts until `stop`.
pub(super) fn accept(
    listener: Listener,
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
            let (stream, identity, owner) = match got {
                Ok(got) => got,
                Err(e) => {
                    tracing::warn!(error = %e, "accept failed on a socket for HTTP");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(slot) = connection_slots.take(owner, metrics::Transport::Grpc) else {
                let error = no_place(&connection_slots.quota_usage(), owner);
                match listener {
                    // Words in the clear are none to a peer that speaks TLS.
                    Listener::Tls(..) => count_refusal(AckLevel::Received, error.code, 1),
                    _ => drop(tokio::spawn(too_many(stream, error))),
                }
                continue;
            };
            let service = live_settings.service();
            let times = (service.handshake_timeout, service.peer_timeouts);
            match (&listener, stream, identity) {
                (Listener::Tls(_, tls, key), Stream::Tcp(stream), Identity::Network(address)) => {
                    let (tls, at, accepted, cut) = (tls.clone(), (*key, address), accepted.clone(), cut.clone());
                    let mut stop = stop.clone();
                    tokio::spawn(async move {
                        let established = tokio::select! {
                            established = tls.http(stream, at, times.0, speaks_tls) => established,
                            _ = stop.wait_for(|stop| *stop) => return,
                        };
                        let Some(Established { stream, name }) = established else { return };
                        let identity = Identity::OverTls(address, name);
                        let stream = Stream::Tls(Box::new(stream));
                        let _ = accepted.send(Connection::new(stream, (identity, owner), slot, times, cut)).await;
                    });
                }
                (_, stream, identity) => {
                    let connection = Connection::new(stream, (identity, owner), slot, times, cut.clone());
                    if accepted.send(connection).await.is_err() {
                        return;
                    }
                }
            }
        }
    });
    connections
}

/// Refuses a connection in the words of its HTTP, which its first bytes name; for one that says nothing, in
/// those of HTTP/2.
async fn too_many(mut stream: Stream, error: ErrorInfo) {
    count_refusal(AckLevel::Received, error.code, 1);
    let send_refusal = async {
        let mut first = [0; PREFACE_BEGIN.len()];
        let is_http1 = match tokio::time::timeout(REFUSAL.0 / 5, stream.read_exact(&mut first)).await {
            Ok(read) => read.map(|_| first != PREFACE_BEGIN)?,
            Err(_) => false,
        };
        stream.write_all(&if is_http1 { unavailable(&error.text) } else { goaway(&error.text) }).await?;
        stream.shutdown().await?;
        // Closed with unread bytes, the kernel would take the answer back.
        tokio::io::copy(&mut stream.take(REFUSAL.1), &mut tokio::io::sink()).await
    };
    let _ = tokio::time::timeout(REFUSAL.0, send_refusal).await;
}

/// For a peer that speaks HTTP without TLS.
fn speaks_tls(first: &[u8]) -> Vec<u8> {
    let text = "this listener speaks TLS alone: use https://, or grpcs:// in clad's own clients";
    match PREFACE_BEGIN.starts_with(first) {
        true => goaway(text),
        false => refused("400 Bad Request", text, ""),
    }
}

/// An empty SETTINGS frame, and GOAWAY with ENHANCE_YOUR_CALM: no call of this connection was looked at, so a client
/// may make all of them again elsewhere or later.
fn goaway(text: &str) -> Vec<u8> {
    let [high, low] = u16::try_from(8 + text.len()).unwrap_or(8).to_be_bytes();
    let mut frames = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
    frames.extend([0, high, low, 7, 0, 0, 0, 0, 0]);
    frames.extend([0, 0, 0, 0, 0, 0, 0, 0x0B]);
    frames.extend_from_slice(text.as_bytes());
    frames
}

/// The same for HTTP/1.
fn unavailable(text: &str) -> Vec<u8> {
    refused("503 Service Unavailable", text, "retry-after: 1\r\n")
}

fn refused(status: &str, text: &str, headers: &str) -> Vec<u8> {
    let length = text.len();
    let head = format!("HTTP/1.1 {status}\r\n{headers}connection: close\r\ncontent-type: text/plain");
    format!("{head}\r\ncontent-length: {length}\r\n\r\n{text}").into_bytes()
}

impl Connection {
    pub(super) fn new(
        stream: Stream,
        (identity, owner): (Identity, Owner),
        slot: ConnectionSlot,
        (handshake_timeout, peer_timeouts): (Duration, PeerTimeouts),
        mut cut: watch::Receiver<bool>,
    ) -> Self {
        let room = Arc::new(Notify::new());
        let wake = room.clone();
        slot.slot_state().wake_by(move || wake.notify_one());
        Self {
            stream,
            caller: Caller {
                identity,
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
            peer_timeouts,
            taking: None,
            slot,
            _counted: metrics::Connection::open(metrics::Transport::Grpc),
        }
    }

    #[cfg(test)]
    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// For the extensions of its requests.
    pub(super) fn caller(&self) -> Caller {
        self.caller.clone()
    }

    /// Checks that the connection is still open. Called on both ways: HTTP/2 does not read while it cannot write.
    fn check_open(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.cut.as_mut().is_none_or(|cut| cut.as_mut().poll(cx).is_ready()) {
            if self.cut.take().is_some() && self.slot.slot_state().is_leaving() {
                count_refusal(AckLevel::Received, leaves(self.slot.slot_state()).code, 1);
            }
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "clad is stopping, or others want the place"));
        }
        if self.handshake.as_mut().is_some_and(|handshake| handshake.as_mut().poll(cx).is_ready()) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "nothing was said in time"));
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
