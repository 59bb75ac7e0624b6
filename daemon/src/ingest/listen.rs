//! Sockets and who may come in.
//!
//! What must hold: a socket's file has the mode that the design gives it whatever the umask; a socket that a dead
//! daemon left is replaced, one that a living daemon answers on is not, and no other file; a connection over the limit is told so and
//! costs the others nothing; an error of `accept` (no descriptors left) is waited out, never spun on.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use clad_proto::frame::{ErrorFrame, Transport};
use clad_proto::{ErrorCode, ErrorInfo};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use super::crew::{Crew, Socket};
use super::current::Current;
use super::door::count_refusal;
use super::framed::serve;
use super::peer::Peer;
use crate::access::Access;
use crate::metrics::{self, Label};

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How many connections there are, over all listeners, and how many there may be.
pub(crate) struct Listeners {
    open: AtomicUsize,
    max: AtomicUsize,
    by_transport: [AtomicU64; metrics::Transport::ALL.len()],
}

/// A connection's place among them, given back when it is dropped.
pub(crate) struct Place(Arc<Listeners>, metrics::Transport);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.by_transport[self.1.index()].fetch_sub(1, Ordering::Relaxed);
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Listeners {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { open: AtomicUsize::new(0), max: AtomicUsize::new(max), by_transport: Default::default() })
    }

    pub(crate) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// How many there are on one transport.
    pub(crate) fn open_on(&self, transport: metrics::Transport) -> usize {
        self.by_transport[transport.index()].load(Ordering::Relaxed) as usize
    }

    /// How many there are on each transport.
    pub(crate) fn by_transport(&self) -> HashMap<String, u64> {
        let open = |transport: &metrics::Transport| self.by_transport[transport.index()].load(Ordering::Relaxed);
        metrics::Transport::ALL.iter().map(|transport| (transport.as_str().to_owned(), open(transport))).collect()
    }

    /// A place for one more connection, while there is one.
    pub(crate) fn place(self: &Arc<Self>, transport: metrics::Transport) -> Option<Place> {
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.max.load(Ordering::Relaxed) {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        self.by_transport[transport.index()].fetch_add(1, Ordering::Relaxed);
        Some(Place(self.clone(), transport))
    }
}

/// Binds a Unix socket with a mode of its own.
pub(crate) fn bind_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process answers on this socket")),
        // So is who knocks on any other file.
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => match path.metadata()?.file_type().is_socket() {
            true => std::fs::remove_file(path)?,
            false => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is something that is no socket")),
        },
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

async fn too_many<W: tokio::io::AsyncWrite + Unpin>(mut wr: W) {
    let text = "as many connections as [limits] max_connections allows are open";
    let error = ErrorInfo::new(ErrorCode::TooManyConnections, text).retry_after_ms(1000);
    count_refusal(clad_proto::AckLevel::Received, error.code, 1);
    let mut out = BytesMut::new();
    ErrorFrame { request_id: 0, error }.encode(&mut out);
    let _ = tokio::time::timeout(Duration::from_secs(1), wr.write_all_buf(&mut out)).await;
}

/// Gives a stream to the threads that serve it.
fn adopted(crew: &Crew, stream: io::Result<impl Into<OwnedFd>>) -> Option<(Socket, Socket)> {
    match stream.and_then(|stream| crew.adopt(stream)) {
        Ok(halves) => Some(halves),
        Err(e) => {
            tracing::warn!(error = %e, "a connection could not be taken over");
            None
        }
    }
}

/// Accepts on a Unix socket until `stop`.
pub(crate) async fn unix(
    listener: UnixListener,
    crew: Crew,
    current: Current,
    listeners: Arc<Listeners>,
    access: Arc<Access>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(e) => {
                tracing::warn!(error = %e, "accept failed on the Unix socket");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = listeners.place(metrics::Transport::Unix) else {
            tokio::spawn(too_many(stream));
            continue;
        };
        let Ok(cred) = stream.peer_cred() else { continue };
        let Some((rd, wr)) = adopted(&crew, stream.into_std()) else { continue };
        let (service, access) = (current.service(), access.clone());
        crew.spawn(async move {
            let _place = place;
            let _counted = metrics::Connection::open(metrics::Transport::Unix);
            let pid = cred.pid().and_then(|p| u32::try_from(p).ok());
            let may_read = access.may_read(cred.uid(), cred.gid());
            let peer = Peer::unix(cred.uid(), cred.gid(), pid, may_read);
            serve(service, peer, rd, wr).await;
        });
    }
}

/// Accepts on a TCP socket until `stop`.
pub(crate) async fn tcp(
    listener: TcpListener,
    crew: Crew,
    current: Current,
    listeners: Arc<Listeners>,
    may_read: bool,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(e) => {
                tracing::warn!(error = %e, "accept failed on the TCP socket");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = listeners.place(metrics::Transport::Tcp) else {
            tokio::spawn(too_many(stream));
            continue;
        };
        let _ = stream.set_nodelay(true);
        let Some((rd, wr)) = adopted(&crew, stream.into_std()) else { continue };
        let service = current.service();
        crew.spawn(async move {
            let _place = place;
            let _counted = metrics::Connection::open(metrics::Transport::Tcp);
            let peer = Peer::network(Transport::Tcp, address.to_string(), may_read);
            serve(service, peer, rd, wr).await;
        });
    }
}
