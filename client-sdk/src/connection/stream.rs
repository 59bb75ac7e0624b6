//! A stream socket of either kind, used without splitting it.

use crate::{Address, address::HostPort};
use bytes::BytesMut;
use std::io::{self, IoSlice};
use tokio::{
    io::{AsyncWriteExt, Interest, Ready},
    net::{TcpStream, UnixStream},
};

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub(super) async fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Unix(path) => UnixStream::connect(path).await.map(Self::Unix),
            Address::Tcp(HostPort { host, port }) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?; // an append must not wait for the answer to the one before
                Ok(Self::Tcp(stream))
            }
            #[cfg(feature = "grpc")]
            Address::Grpc(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "gRPC is not framed")),
        }
    }

    pub(super) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Self::Tcp(stream) => stream.ready(interest).await,
            Self::Unix(stream) => stream.ready(interest).await,
        }
    }

    pub(super) fn try_read_buf(&self, buf: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(buf),
            Self::Unix(stream) => stream.try_read_buf(buf),
        }
    }

    pub(super) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write_vectored(slices),
            Self::Unix(stream) => stream.try_write_vectored(slices),
        }
    }

    pub(super) async fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown().await,
            Self::Unix(stream) => stream.shutdown().await,
        }
    }
}
