//! A stream socket of the reactor's epoll.
//!
//! Invariants:
//! - **No readiness is lost.** Events come on edges. A reported event is cleared before the call that it allows, so
//!   that an event during the call stays. After a waiter was noted, the state is looked at once more.
//! - **No event without a waiter.** Room to write is asked for only while there is none: a socket that always reports
//!   it wakes a thread here each time the peer takes an answer.
//! - A read that did not fill its buffer has emptied the socket, unless descriptors came with it: later bytes are a
//!   new event. An end or an error was reported with the bytes before it, and is remembered until it was read.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, recv, send, shutdown, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::sources::{Sources, Watched};
use super::turn::operate;
use crate::fds;

/// There may be something to read.
const READ: u8 = 1;
/// There may be room to write.
const WRITE: u8 = 2;
/// The other side has closed, or there is an error to be read.
const ENDED: u8 = 4;
/// Room to write is asked for.
const ASKED: u8 = 8;

const INPUT: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

/// Socket on which descriptors can be sent along.
pub(crate) trait GiveFds {
    /// Sends bytes and descriptors, as much as can be sent now.
    fn give(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> impl Future<Output = io::Result<usize>> + Send;
}

/// Socket by which descriptors may come.
pub(crate) trait TakeFds {
    /// The descriptors that came with what was read, [`fds::RECEIVED_FDS_MAX`] at most.
    fn take_fds(&mut self) -> Vec<OwnedFd>;
}

pub(super) struct Source {
    fd: OwnedFd,
    key: u64,
    /// A peer on this host, which may send descriptors along.
    is_unix: bool,
    sources: Arc<Sources>,
    state: AtomicU8,
    waiting: Mutex<Option<Waker>>,
}

/// One half of a connection, and the descriptors that it has read. The socket is closed with the second.
pub(crate) struct Socket(Arc<Source>, Vec<OwnedFd>);

impl Source {
    pub(super) fn adopt(sources: &Arc<Sources>, fd: OwnedFd) -> io::Result<(Socket, Socket)> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let is_unix = sockopt::socket_domain(&fd)? == AddressFamily::UNIX;
        let (state, waiting) = (AtomicU8::new(WRITE), Mutex::default());
        let made = |key| Self { fd, key, is_unix, sources: sources.clone(), state, waiting };
        let source = sources.enter(made);
        sources.watch(&source.fd, source.key, INPUT)?;
        Ok((Socket(source.clone(), Vec::new()), Socket(source, Vec::new())))
    }

    /// Asks for these events from now on; those that are already there are reported at once.
    fn ask(&self, events: EventFlags) -> io::Result<()> {
        self.sources.ask(&self.fd, self.key, events)
    }

    /// Calls as soon as it may succeed. The call returns how much it did, and whether there may be more to do at once.
    fn poll<T>(
        &self,
        context: &Context<'_>,
        wanted: u8,
        mut call: impl FnMut() -> io::Result<(T, bool)>,
    ) -> Poll<io::Result<T>> {
        let sticky = if wanted == READ { ENDED } else { 0 };
        loop {
            if self.state.load(Ordering::Acquire) & (wanted | sticky) == 0 {
                self.wait(context);
                // Once: asked again, a lasting state (the other side has closed) would be reported and wake again.
                if wanted == WRITE && self.state.fetch_or(ASKED, Ordering::AcqRel) & ASKED == 0 {
                    self.ask(INPUT | EventFlags::OUT)?;
                }
                if self.state.load(Ordering::Acquire) & (wanted | sticky) == 0 {
                    return Poll::Pending;
                }
            }
            if !operate() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let before = self.state.fetch_and(!(wanted | sticky), Ordering::AcqRel);
            match call() {
                Ok((done, more)) => {
                    let more = if more { wanted } else { 0 };
                    self.state.fetch_or(more | (before & sticky), Ordering::AcqRel);
                    return Poll::Ready(Ok(done));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                    self.state.fetch_or(wanted | (before & sticky), Ordering::AcqRel);
                }
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }

    fn wait(&self, context: &Context<'_>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waiting = Some(context.waker().clone());
        }
    }

    fn poll_send<T>(
        &self,
        context: &Context<'_>,
        mut call: impl FnMut(&OwnedFd) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let sent = self.poll(context, WRITE, || Ok((call(&self.fd)?, true)));
        if sent.is_ready() && self.state.load(Ordering::Acquire) & ASKED != 0 {
            self.state.fetch_and(!ASKED, Ordering::AcqRel);
            self.ask(INPUT)?;
        }
        sent
    }
}

impl Socket {
    /// Makes it seem that the other side has closed: only bytes that came already are read, and its task is woken.
    pub(crate) fn ender(&self) -> impl Fn() + Send + Sync + use<> {
        let source = Arc::downgrade(&self.0);
        move || {
            if let Some(source) = source.upgrade() {
                let _ = shutdown(&source.fd, Shutdown::Read); // where it fails, it has ended
                source.happened(EventFlags::RDHUP);
            }
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        // The descriptor may live on in a process that was forked: then closing it would not take it out.
        self.sources.unwatch(&self.fd);
        self.sources.forget(self.key);
    }
}

impl Watched for Source {
    fn happened(&self, flags: EventFlags) {
        let mut state = 0;
        if flags.contains(EventFlags::IN) {
            state |= READ;
        }
        if flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            state |= READ | ENDED;
        }
        if flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR) {
            state |= WRITE;
        }
        self.state.fetch_or(state, Ordering::AcqRel);
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        waiting.inspect(Waker::wake_by_ref);
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self(source, fds) = self.get_mut();
        let read = source.poll(context, READ, || {
            let room = buf.initialize_unfilled();
            let all = room.len();
            let (read, is_cut) = match source.is_unix {
                true => fds::read(&source.fd, room, fds)?,
                false => (recv(&source.fd, room, RecvFlags::DONTWAIT)?.0, false),
            };
            Ok((read, read == all || is_cut))
        });
        read.map_ok(|read| buf.advance(read))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let flags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
        self.0.poll_send(context, |fd| Ok(send(fd, bytes, flags)?))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // nothing is buffered here
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match shutdown(&self.0.fd, Shutdown::Write) {
            // The peer was quicker.
            Ok(()) | Err(Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(e) => Poll::Ready(Err(e.into())),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

impl TakeFds for Socket {
    fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.1)
    }
}

impl GiveFds for Socket {
    async fn give(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        // Where the peer is not known no descriptor is sent: over a network the kernel refuses it.
        poll_fn(|context| self.0.poll_send(context, |fd| fds::send(fd, bytes, fds))).await
    }
}
