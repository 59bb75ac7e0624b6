//! A session on a socket of the ingest threads, as two halves.
//!
//! Invariants:
//! - Both halves are used by one task: the socket has room for one that waits.
//! - **A write that is over is with the kernel**: nothing of it waits in the session for a later call. So a caller whose write
//!   is pending must offer the same bytes again, as those of frames do.
//! - The end of the peer's bytes is an end, with or without a word of TLS: frames say by themselves whether they are whole.

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

/// One half.
pub(crate) struct TlsSocket(Arc<Mutex<TlsState>>);

struct TlsState {
    socket: Socket,
    session: ServerConnection,
    /// Bytes of a pending write that the session has taken.
    taken: usize,
    has_ended: bool,
    has_said_bye: bool,
}

/// The socket for the length of a call, as `std` has it.
struct Now<'a, 'b>(&'a mut Socket, &'a mut Context<'b>);

impl Read for Now<'_, '_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut buf = ReadBuf::new(bytes);
        match Pin::new(&mut *self.0).poll_read(self.1, &mut buf) {
            Poll::Ready(read) => read.map(|()| buf.filled().len()),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

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
        let state = Arc::new(Mutex::new(TlsState { socket, session, taken: 0, has_ended: false, has_said_bye: false }));
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

    /// Takes bytes of the peer into the session.
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.session.read_tls(&mut Now(&mut self.socket, cx)) {
            Ok(0) => self.has_ended = true,
            Ok(_) => {
                if let Err(error) = self.session.process_new_packets() {
                    // The peer is answered why, if it listens.
                    let _ = self.poll_send(cx);
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            Err(error) => return Poll::Ready(Err(error)),
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for TlsSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        loop {
            match state.session.reader().read(buf.initialize_unfilled()) {
                Ok(read) => {
                    buf.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Poll::Ready(Ok(())),
                Err(error) => return Poll::Ready(Err(error)),
            }
            if state.has_ended {
                return Poll::Ready(Ok(()));
            }
            // An answer of the session itself, as to new keys. It is not waited for: a peer that takes nothing may still send.
            if state.session.wants_write()
                && let Poll::Ready(Err(error)) = state.poll_send(cx)
            {
                return Poll::Ready(Err(error));
            }
            ready!(state.poll_take(cx))?;
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
