//! A lean connection: whole frames in, bytes out, no runtime.
//!
//! Invariants: sending never blocks while answers wait to be read, so that two full sockets cannot hold each other
//! up; a daemon that says nothing for [`ANSWER_TIMEOUT`] ends the run rather than hang it.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::BytesMut;
use clad_client::Address;
use clad_proto::frame::{Frame, Hello, Intent, KnownHeader, RawFrame, Welcome, peek_known};
use clad_proto::limits::{MAX_APPEND_BYTES, MAX_VERSION, MIN_VERSION};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Longest silence of a daemon before an answer.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that one read asks for.
const READ_BYTES: usize = 64 * 1024;

/// A greeted connection.
#[derive(Debug)]
pub(super) struct Wire {
    socket: Socket,
    /// Bytes that wait to be sent.
    pub(super) out: Vec<u8>,
    sent: usize,
    incoming: Vec<u8>,
    /// Received and not looked at yet: from here to `end`.
    start: usize,
    end: usize,
    known: KnownHeader,
}

#[derive(Debug)]
enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(socket) => socket.as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
        }
    }
}

impl Socket {
    fn connect(address: &Address) -> anyhow::Result<Self> {
        // The timeout is the socket's own: a wait for an answer is one call to the system.
        Ok(match address {
            // The socket that gives out rings answers who reads.
            Address::Unix(path) | Address::Shm(path) => {
                let socket = UnixStream::connect(path)?;
                socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
                Self::Unix(socket)
            }
            Address::Tcp(at) => {
                let socket = TcpStream::connect((at.host.as_str(), at.port))?;
                socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
                socket.set_nodelay(true)?;
                Self::Tcp(socket)
            }
            _ => bail!("bench speaks the framed protocol: unix:// or tcp:// is wanted"),
        })
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Wire {
    /// Connects and says hello.
    pub(super) fn connect(address: &Address, intent: Intent) -> anyhow::Result<(Self, Welcome)> {
        let socket = Socket::connect(address).with_context(|| format!("cannot reach {address}"))?;
        let hello = Hello {
            min_version: MIN_VERSION,
            max_version: MAX_VERSION,
            intent,
            name: "clactl bench".to_owned(),
            ..Hello::default()
        };
        let mut bytes = BytesMut::new();
        hello.encode(&mut bytes);
        let mut wire = Self {
            socket,
            out: bytes.to_vec(),
            sent: 0,
            incoming: Vec::new(),
            start: 0,
            end: 0,
            known: KnownHeader::default(),
        };
        let welcome = wire.greeted().with_context(|| format!("{address} does not greet us"))?;
        Ok((wire, welcome))
    }

    fn greeted(&mut self) -> anyhow::Result<Welcome> {
        loop {
            self.exchange()?;
            if let Some(raw) = self.next()? {
                return match raw.decode()? {
                    Frame::Welcome(welcome) => Ok(welcome),
                    Frame::Error(error) => Err(error.error.into()),
                    other => Err(anyhow!("a {:?} frame in place of a greeting", other.kind())),
                };
            }
        }
    }

    /// Queues a frame.
    pub(super) fn queue(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        let mut bytes = BytesMut::new();
        encode(&mut bytes);
        self.out.extend_from_slice(&bytes);
    }

    /// Sends what can be sent now, then waits until something has come. With room in the socket that is two calls.
    pub(super) fn exchange(&mut self) -> anyhow::Result<()> {
        loop {
            if self.send_now()? {
                return self.receive();
            }
            if self.readable_or_writable()? {
                return self.receive();
            }
        }
    }

    /// Sends what can be sent now; says whether that was all.
    pub(super) fn send_now(&mut self) -> anyhow::Result<bool> {
        self.send()?;
        let all = self.sent >= self.out.len();
        if all {
            self.out.clear();
            self.sent = 0;
        }
        Ok(all)
    }

    fn send(&mut self) -> anyhow::Result<()> {
        while let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match send(&self.socket, rest, SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL)) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                // What the daemon had to say before it closed is still to be read.
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    self.sent = self.out.len();
                    return Ok(());
                }
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        Ok(())
    }

    /// Waits for either; says whether there is something to read.
    fn readable_or_writable(&self) -> anyhow::Result<bool> {
        let timeout = Timespec { tv_sec: ANSWER_TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN | PollFlags::OUT)];
        loop {
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => bail!("the daemon sent nothing for {ANSWER_TIMEOUT:?}"),
                // A socket that was hung up gives what is left, then its end.
                Ok(_) => return Ok(fds[0].revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Takes what has come; waits for it if nothing has.
    pub(super) fn receive(&mut self) -> anyhow::Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.incoming.len() - self.end < READ_BYTES {
            self.incoming.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let len = (self.end + READ_BYTES).max(2 * self.end).max(self.incoming.len());
            self.incoming.resize(len, 0);
        }
        loop {
            let room = self.incoming.get_mut(self.end..).unwrap_or_default();
            match recv(&self.socket, room, RecvFlags::empty()).map(|(read, _)| read) {
                Ok(0) => bail!("the daemon closed the connection"),
                Ok(read) => {
                    self.end += read;
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => bail!("the daemon sent nothing for {ANSWER_TIMEOUT:?}"),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// The next whole frame of what was received.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<RawFrame<'_>>> {
        let bytes = self.incoming.get(self.start..self.end).unwrap_or_default();
        let raw = peek_known(bytes, MAX_APPEND_BYTES, &mut self.known)?;
        if let Some(raw) = &raw {
            self.start += raw.total_len();
        }
        Ok(raw)
    }
}
