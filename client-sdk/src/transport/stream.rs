//! A stream socket of either kind, used without splitting it.

#[cfg(feature = "tls")]
use super::tls::Session;
use crate::{Address, transport::address::HostPort};
use bytes::BytesMut;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};
use tokio::{
    io::{AsyncWriteExt, Interest, Ready},
    net::{TcpStream, UnixStream},
};

/// Descriptors in one message at most.
const MAX_FDS: usize = 3;
/// Frames with descriptors are short.
const FRAME_BYTES: usize = 4096;

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<Session>),
}

impl Stream {
    pub(super) async fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Unix(path) | Address::Shm(path) => UnixStream::connect(path).await.map(Self::Unix),
            Address::Tcp(HostPort { host, port }) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?; // an append must not wait for the answer to the one before
                Ok(Self::Tcp(stream))
            }
            #[cfg(feature = "tls")]
            Address::TcpTls(host) => {
                let stream = TcpStream::connect((host.at.host.as_str(), host.at.port)).await?;
                stream.set_nodelay(true)?;
                Ok(Self::Tls(Box::new(Session::begin(stream, &host.with_environment()).await?)))
            }
            #[cfg(all(feature = "grpc", feature = "tls"))]
            Address::Grpcs(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "gRPC is not framed")),
            #[cfg(feature = "grpc")]
            Address::Grpc(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "gRPC is not framed")),
        }
    }

    pub(super) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Self::Tcp(stream) => stream.ready(interest).await,
            Self::Unix(stream) => stream.ready(interest).await,
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.tcp().ready(interest).await,
        }
    }

    /// True while bytes that were written wait for the socket.
    pub(super) fn wants_write(&self) -> bool {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.wants_write(),
            _ => false,
        }
    }

    /// Sends what waits.
    pub(super) fn try_flush(&mut self) -> io::Result<()> {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.try_flush(),
            _ => Ok(()),
        }
    }

    pub(super) fn try_read_buf(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(buf),
            Self::Unix(stream) => stream.try_read_buf(buf),
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.try_read_buf(buf),
        }
    }

    /// As [`Self::try_read_buf`], with the descriptors that come along.
    pub(super) fn try_read_fds(&mut self, buf: &mut BytesMut, fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.try_io(Interest::READABLE, || receive(&*stream, buf, fds)),
            _ => self.try_read_buf(buf),
        }
    }

    pub(super) fn try_write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write_vectored(slices),
            Self::Unix(stream) => stream.try_write_vectored(slices),
            #[cfg(feature = "tls")]
            Self::Tls(session) => session.try_write_vectored(slices),
        }
    }

    /// Writes bytes, and a descriptor with the first of them.
    pub(super) fn try_write_with_fd(&self, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.try_io(Interest::WRITABLE, || send(stream, bytes, fd)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "no descriptor goes over TCP")),
        }
    }

    pub(super) async fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown().await,
            Self::Unix(stream) => stream.shutdown().await,
            #[cfg(feature = "tls")]
            Self::Tls(session) => {
                session.say_end();
                while session.wants_write() {
                    session.tcp().writable().await?;
                    match session.try_flush() {
                        Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                        _ => {}
                    }
                }
                session.tcp_mut().shutdown().await
            }
        }
    }
}

fn send(socket: impl AsFd, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

fn receive(socket: impl AsFd, buf: &mut BytesMut, fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut bytes = [0; FRAME_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights.take(MAX_FDS.saturating_sub(fds.len())));
        }
    }
    buf.extend_from_slice(bytes.get(..got.bytes).unwrap_or_default());
    Ok(got.bytes)
}
