//! A socket of either kind, each wait on it bounded.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::TEST_TIMEOUT;

/// A socket of either kind.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    pub(crate) fn unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a bound");
        stream.set_write_timeout(Some(TEST_TIMEOUT)).expect("a bound");
        Self::Unix(stream)
    }

    pub(crate) fn tcp(address: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&address, TEST_TIMEOUT).unwrap_or_else(|e| panic!("{address}: {e}"));
        stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a bound");
        stream.set_write_timeout(Some(TEST_TIMEOUT)).expect("a bound");
        stream.set_nodelay(true).expect("no delay");
        Self::Tcp(stream)
    }

    /// Writes what goes in within a time; 0 where nothing does.
    pub(crate) fn write_within(&mut self, bytes: &[u8], time: Duration) -> Result<usize> {
        self.bound_writes(time);
        let written = self.write(bytes);
        self.bound_writes(TEST_TIMEOUT);
        match written {
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(0),
            other => other,
        }
    }

    fn bound_writes(&self, time: Duration) {
        match self {
            Self::Unix(stream) => stream.set_write_timeout(Some(time)),
            Self::Tcp(stream) => stream.set_write_timeout(Some(time)),
        }
        .expect("a bound");
    }

    /// The sending side, for a thread of its own.
    pub(crate) fn sender(&self) -> Box<dyn Write + Send> {
        match self {
            Self::Unix(stream) => Box::new(stream.try_clone().expect("a descriptor")),
            Self::Tcp(stream) => Box::new(stream.try_clone().expect("a descriptor")),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buf),
            Self::Tcp(stream) => stream.read(buf),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(buf),
            Self::Tcp(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
