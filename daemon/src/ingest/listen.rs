//! Sockets and access to them.
//!
//! Invariants: a socket's file has the mode that the design gives it whatever the umask. A socket that a dead daemon
//! left is replaced; one that a living daemon answers on is not, and no other file is. A connection over the limit is
//! notified and costs the others nothing. An error of `accept` (no descriptors left) is waited out, never spun on.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use clad_proto::frame::{ErrorFrame, Transport};
use clad_proto::{ErrorCode, ErrorInfo};
use rustix::fs::Mode;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;

use super::admission::count_refusal;
use super::connection_slots::{ConnectionSlot, ConnectionSlots, no_place};
use super::framed::{Service, serve};
use super::live_settings::LiveSettings;
use super::peer::{Peer, start_time_of_peer};
use super::quota::Owner;
use super::reactor::{GiveFds, Reactor, Socket, TakeFds, TlsSocket};
use super::sock_diag;
use crate::ops::metrics;
use crate::tls::Tls;

/// Connections of a Unix socket that wait to be accepted; at most `net.core.somaxconn` in any case. As in systemd.
const BACKLOG: i32 = 4096;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Keepalive of TCP, so that a vanished peer does not keep its slot: time of silence before the first probe, time
/// between probes, number of probes. As for gRPC, which probes by itself.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 2);

/// Binds a Unix socket with a mode of its own.
pub(crate) fn bind_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    make_way(path, |path| std::os::unix::net::UnixStream::connect(path).map(drop))?;
    let socket = bound(path, mode, SocketType::STREAM)?;
    net::listen(&socket, BACKLOG)?;
    UnixListener::from_std(socket.into())
}

/// The same for datagrams.
pub(crate) fn bind_unix_datagram(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    make_way(path, |path| std::os::unix::net::UnixDatagram::unbound()?.connect(path))?;
    bound(path, mode, SocketType::DGRAM)
}

/// Removes the socket of a dead daemon.
fn make_way(path: &Path, connect: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match connect(path) {
        Ok(()) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process answers on this socket")),
        // Connecting to any other file is refused too.
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => match path.metadata()?.file_type().is_socket() {
            true => std::fs::remove_file(path),
            false => Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is something that is no socket")),
        },
        Err(_) => Ok(()),
    }
}

/// The file is made with the socket's own mode, so that at no moment more peers may connect than are meant to.
fn bound(path: &Path, mode: u32, kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // What the umask has taken off.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(socket)
}

async fn too_many<W: AsyncWrite + Unpin>(mut wr: W, error: ErrorInfo) {
    count_refusal(clad_proto::AckLevel::Received, error.code, 1);
    let mut out = BytesMut::new();
    ErrorFrame { request_id: 0, error }.encode(&mut out);
    let _ = tokio::time::timeout(Duration::from_secs(1), wr.write_all_buf(&mut out)).await;
}

/// Makes the kernel probe a silent peer.
pub(super) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let (after, again, times) = KEEPALIVE;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, after)?;
    sockopt::set_tcp_keepintvl(stream, again)?;
    Ok(sockopt::set_tcp_keepcnt(stream, times)?)
}

/// Gives a stream to the threads that serve it; the connection can be notified to make room.
fn adopted(
    reactor: &Reactor,
    stream: io::Result<impl Into<OwnedFd>>,
    slot: &ConnectionSlot,
) -> Option<(Socket, Socket)> {
    match stream.and_then(|stream| reactor.adopt(stream)) {
        Ok(halves) => {
            slot.slot_state().wake_by(halves.0.ender());
            Some(halves)
        }
        Err(e) => {
            tracing::warn!(error = %e, "a connection could not be taken over");
            None
        }
    }
}

/// Accepts on a Unix socket until `stop`.
pub(crate) async fn unix(
    listener: UnixListener,
    reactor: Reactor,
    live_settings: LiveSettings,
    connection_slots: Arc<ConnectionSlots>,
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
        let Ok(cred) = stream.peer_cred() else { continue };
        let Some(slot) = connection_slots.take(Owner::Uid(cred.uid()), metrics::Transport::Unix) else {
            tokio::spawn(too_many(stream, no_place(&connection_slots.quota_usage(), Owner::Uid(cred.uid()))));
            continue;
        };
        let pid = cred.pid().and_then(|p| u32::try_from(p).ok());
        let process = (pid, pid.and_then(|pid| start_time_of_peer(&stream, pid)));
        let Some((rd, wr)) = adopted(&reactor, stream.into_std(), &slot) else { continue };
        let service = live_settings.service();
        let access = service.admission.access.clone();
        reactor.spawn(async move {
            let _counted = metrics::Connection::open(metrics::Transport::Unix);
            let may_read = access.read_group().may_read(cred.uid(), cred.gid()).await;
            let peer = Peer::unix(cred.uid(), cred.gid(), process, may_read);
            serve(service, peer, slot.slot_state().clone(), rd, wr).await;
            drop(slot);
        });
    }
}

/// Accepts on a TCP socket until `stop`; with `tls` a connection begins with a handshake, on the runtime.
pub(crate) async fn tcp(
    listener: TcpListener,
    reactor: Reactor,
    live_settings: LiveSettings,
    connection_slots: Arc<ConnectionSlots>,
    (may_read, tls): (bool, Option<Tls>),
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
        let owner = sock_diag::owner(&stream, address).await;
        let Some(slot) = connection_slots.take(owner, metrics::Transport::Tcp) else {
            let error = no_place(&connection_slots.quota_usage(), owner);
            match &tls {
                // Words in the clear are none to a peer that speaks TLS.
                Some(_) => count_refusal(clad_proto::AckLevel::Received, error.code, 1),
                None => drop(tokio::spawn(too_many(stream, error))),
            }
            continue;
        };
        let _ = stream.set_nodelay(true);
        if let Err(e) = keep_alive(&stream) {
            tracing::warn!(error = %e, "a peer that vanishes will not be noticed");
        }
        let service = live_settings.service();
        if let Some(tls) = &tls {
            let (tls, reactor, mut stop) = (tls.clone(), reactor.clone(), stop.clone());
            tokio::spawn(async move {
                let at = ("ingest.tcp.tls", address);
                let established = tokio::select! {
                    established = tls.framed(stream, at, service.handshake_timeout, speaks_tls) => established,
                    // It has handed over nothing: no stop waits for it.
                    _ = stop.wait_for(|stop| *stop) => return,
                };
                let Some(established) = established else { return };
                let Ok((stream, session, identity)) = established.into_parts() else { return };
                // One half is enough: the session stands before both.
                let Some((socket, _)) = adopted(&reactor, Ok(stream), &slot) else { return };
                let (rd, wr) = TlsSocket::halves(socket, session);
                let peer = Peer::over_tls(Transport::Tcp, address, owner, may_read, identity);
                reactor.spawn(serve_tcp(service, peer, slot, rd, wr));
            });
            continue;
        }
        let Some((rd, wr)) = adopted(&reactor, stream.into_std(), &slot) else { continue };
        let peer = Peer::network(Transport::Tcp, Some(address), owner, may_read);
        reactor.spawn(serve_tcp(service, peer, slot, rd, wr));
    }
}

async fn serve_tcp<R, W>(service: Service, peer: Peer, slot: ConnectionSlot, rd: R, wr: W)
where
    R: AsyncRead + TakeFds + Unpin + Send,
    W: AsyncWrite + GiveFds + Unpin + Send,
{
    let _counted = metrics::Connection::open(metrics::Transport::Tcp);
    serve(service, peer, slot.slot_state().clone(), rd, wr).await;
    drop(slot);
}

/// For a peer that speaks frames without TLS.
fn speaks_tls(_: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    let text = "this listener speaks TLS alone: connect to it as tcp+tls://HOST:PORT";
    ErrorFrame { request_id: 0, error: ErrorInfo::new(ErrorCode::MalformedFrame, text) }.encode(&mut out);
    out.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds until a vanished peer releases its slot.
    #[tokio::test]
    async fn a_peer_that_says_nothing_is_asked_by_the_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        assert_eq!(sockopt::socket_keepalive(&stream), Ok(false), "unless it is asked for");
        keep_alive(&stream).unwrap();
        assert_eq!(sockopt::socket_keepalive(&stream), Ok(true));
        let asked = (sockopt::tcp_keepidle(&stream), sockopt::tcp_keepintvl(&stream), sockopt::tcp_keepcnt(&stream));
        let (after, again, times) = asked;
        let given_up = after.unwrap() + again.unwrap() * times.unwrap();
        assert_eq!(given_up, Duration::from_secs(50), "docs/ARCHITECTURE.md");
    }
}
