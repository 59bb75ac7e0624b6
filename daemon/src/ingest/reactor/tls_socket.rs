//! A session on a socket of the ingest threads, as two halves.
//!
//! Invariants:
//! - Both halves are used by one task: the socket has room for one that waits.
//! - **A write that is over is with the kernel**: nothing of it waits in the session for a later call. So a caller whose write
//!   is pending must offer the same bytes again, as those of frames do.
//! - What is read at once fits the caller's buffer, but for a record that the session had begun: a burst is one call of the
//!   system, and a connection keeps at most [`INPUT_BYTES_MIN`] of its own.
//! - The end of the peer's bytes is an end, with or without a word of TLS: frames say by themselves whether they are whole.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use rustls::ServerConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{GiveFds, Socket, TakeFds};

/// Bytes of a session that wait for the kernel, at most.
const OUTPUT_BYTES_MAX: usize = 128 << 10;

/// The most that is read at once.
const INPUT_BYTES_MAX: usize = 128 << 10;
/// The least: one piece as the session takes it.
const INPUT_BYTES_MIN: usize = 4 << 10;
/// A record that the session may have begun: its plaintext comes beside what is read.
const RECORD_BYTES_MAX: usize = 16 << 10;

thread_local! {
    /// Bytes that were read and are on their way into a session, within one call.
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// One half.
pub(crate) struct TlsSocket(Arc<Mutex<TlsState>>);

struct TlsState {
    socket: Socket,
    session: ServerConnection,
    /// Bytes that the caller's buffer had no room for.
    left: Vec<u8>,
    /// Bytes of a pending write that the session has taken.
    taken: usize,
    has_ended: bool,
    has_said_bye: bool,
}

/// The socket for the length of a call, as `std` has it.
struct Now<'a, 'b>(&'a mut Socket, &'a mut Context<'b>);

impl Write for Now<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match Pin::new(&mut *self.0).poll_write(self.1, bytes) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // nothing is buffered here
    }
}

impl TlsSocket {
    pub(crate) fn halves(socket: Socket, mut session: ServerConnection) -> (Self, Self) {
        session.set_buffer_limit(Some(OUTPUT_BYTES_MAX));
        let left = Vec::new();
        let state = TlsState { socket, session, left, taken: 0, has_ended: false, has_said_bye: false };
        let state = Arc::new(Mutex::new(state));
        (Self(state.clone()), Self(state))
    }

    fn state(&self) -> MutexGuard<'_, TlsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TlsState {
    /// Sends what the session has to send.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Now(&mut self.socket, cx)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once, and gives the caller what the session makes of it.
    fn poll_take(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.left.is_empty() {
            let left = std::mem::take(&mut self.left);
            return Poll::Ready(self.take(cx, &left, buf));
        }
        INPUT.with_borrow_mut(|input| {
            input.resize(INPUT_BYTES_MAX, 0);
            let fits = buf.remaining().saturating_sub(RECORD_BYTES_MAX).clamp(INPUT_BYTES_MIN, INPUT_BYTES_MAX);
            let mut read = ReadBuf::new(&mut input[..fits]);
            ready!(Pin::new(&mut self.socket).poll_read(cx, &mut read))?;
            self.has_ended = read.filled().is_empty();
            Poll::Ready(self.take(cx, read.filled(), buf))
        })
    }

    /// Takes bytes of the peer into the session, as far as the caller has room for what comes of them.
    fn take(&mut self, cx: &mut Context<'_>, mut bytes: &[u8], buf: &mut ReadBuf<'_>) -> io::Result<()> {
        // Behind the peer's word of its end nothing is taken.
        while !bytes.is_empty() && self.session.read_tls(&mut bytes)? > 0 {
            if let Err(error) = self.session.process_new_packets() {
                // The peer is answered why, if it listens.
                let _ = self.poll_send(cx);
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
            self.give(buf)?;
            if buf.remaining() == 0 {
                self.left.extend_from_slice(bytes);
                break;
            }
        }
        Ok(())
    }

    /// Gives the caller plaintext that there is; true at its end.
    fn give(&mut self, buf: &mut ReadBuf<'_>) -> io::Result<bool> {
        while buf.remaining() > 0 {
            match self.session.reader().read(buf.initialize_unfilled()) {
                Ok(0) => return Ok(true),
                Ok(read) => buf.advance(read),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

impl AsyncRead for TlsSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        let before = buf.filled().len();
        loop {
            let has_ended = state.give(buf)?;
            if has_ended || state.has_ended || buf.filled().len() > before || buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            // An answer of the session itself, as to new keys. It is not waited for: a peer that takes nothing may still send.
            if state.session.wants_write()
                && let Poll::Ready(Err(error)) = state.poll_send(cx)
            {
                return Poll::Ready(Err(error));
            }
            ready!(state.poll_take(cx, buf))?;
        }
    }
}

impl AsyncWrite for TlsSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        if state.taken == 0 {
            ready!(state.poll_send(cx))?;
            state.taken = state.session.writer().write(bytes)?;
        }
        ready!(state.poll_send(cx))?;
        Poll::Ready(Ok(std::mem::take(&mut state.taken)))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.state().poll_send(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        if !state.has_said_bye {
            state.has_said_bye = true;
            state.session.send_close_notify();
        }
        ready!(state.poll_send(cx))?;
        Pin::new(&mut state.socket).poll_shutdown(cx)
    }
}

impl TakeFds for TlsSocket {
    fn take_fds(&mut self) -> Vec<OwnedFd> {
        Vec::new()
    }
}

impl GiveFds for TlsSocket {
    async fn give(&self, _: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "no descriptor goes over a network"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustls::crypto::ring;
    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::ingest::reactor::Reactor;

    /// Both ends of a session whose handshake is over.
    fn sessions() -> (ClientConnection, ServerConnection) {
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
        let provider = Arc::new(ring::default_provider());
        let server =
            ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
        let server = server.with_no_client_auth().with_single_cert(vec![own.cert.der().clone()], key).unwrap();
        let mut trusted = RootCertStore::empty();
        trusted.add(own.cert.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let client = client.with_root_certificates(trusted).with_no_client_auth();
        let mut client = ClientConnection::new(Arc::new(client), "localhost".try_into().unwrap()).unwrap();
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        while client.is_handshaking() || server.is_handshaking() || server.wants_write() {
            let mut sent = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            let mut sent = sent.as_slice();
            while !sent.is_empty() {
                server.read_tls(&mut sent).unwrap();
                server.process_new_packets().unwrap();
            }
            let mut answered = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut answered).unwrap();
            }
            let mut answered = answered.as_slice();
            while !answered.is_empty() {
                client.read_tls(&mut answered).unwrap();
                client.process_new_packets().unwrap();
            }
        }
        (client, server)
    }

    /// Reads of this size that a burst takes, each a call of the system; all of it comes, and then the end.
    fn reads_of(size: usize) -> usize {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let reactor = Reactor::start(1, runtime.handle()).unwrap();
        let (mut client, server) = sessions();
        client.set_buffer_limit(None);
        let burst: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
        client.writer().write_all(&burst).unwrap();
        client.send_close_notify();
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut sent = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut sent).unwrap();
        }
        near.write_all(&sent).unwrap();
        let (socket, _) = reactor.adopt(far).unwrap();
        let (mut rd, _wr) = TlsSocket::halves(socket, server);
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        reactor.spawn(async move {
            let (mut all, mut reads, mut bytes) = (Vec::new(), 0, vec![0; size]);
            while let Ok(read @ 1..) = rd.read(&mut bytes).await {
                all.extend_from_slice(&bytes[..read]);
                reads += 1;
            }
            let _ = sender.send((all, reads));
        });
        let (all, reads) = receiver.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
        assert!(all == burst, "{size}: {} bytes", all.len());
        reads
    }

    #[test]
    fn a_burst_is_read_at_once_and_a_small_buffer_gets_all_of_it() {
        assert!(reads_of(128 << 10) <= 2, "{}", reads_of(128 << 10));
        for size in [1, 100, 5000, 16 << 10, 20 << 10, 40 << 10] {
            let reads = reads_of(size);
            assert!(reads >= 100_000 / size, "{size}: {reads}");
        }
    }
}
