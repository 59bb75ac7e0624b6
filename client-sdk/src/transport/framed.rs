//! The framed protocol over a Unix socket or TCP.

use super::{answer::Answer, out_buffer::OutBuffer, stream::Stream, token::with_token};
use crate::{Address, ConnectError, session::Out};
use bytes::{Bytes, BytesMut};
use clad_proto::frame::{self, ErrorFrame, Flush, Frame, FrameDecoder, Hello, Welcome};
use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};
use tokio::io::Interest;

/// The least number of bytes to read at once.
const READ_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Framed {
    address: Address,
    stream: Stream,
    decoder: FrameDecoder,
    input: BytesMut,
    out: OutBuffer,
    /// Descriptors are expected, and those that came.
    fds: Option<Vec<OwnedFd>>,
    /// Said once everything that came before it was given.
    failed: Option<ConnectError>,
}

impl Framed {
    /// Connects and greets.
    pub(crate) async fn connect(address: &Address, hello: &Hello) -> Result<(Self, Welcome), ConnectError> {
        let hello = with_token(address, hello)?;
        let stream = Stream::connect(address).await.map_err(|error| io_error(address, error))?;
        let mut framed = Self {
            address: address.clone(),
            stream,
            // A record in the log was taken under the limit of its day, which WELCOME does not report.
            decoder: FrameDecoder::default(),
            input: BytesMut::with_capacity(READ_BYTES),
            out: OutBuffer::default(),
            fds: None,
            failed: None,
        };
        framed.out.write(|buf| hello.encode(buf));
        let welcome = match framed.next_frame().await? {
            Frame::Welcome(welcome) => welcome,
            other => return Err(framed.protocol(format!("{:?} where WELCOME belongs", other.kind()))),
        };
        if !(hello.min_version..=hello.max_version).contains(&welcome.version) {
            return Err(framed.protocol(format!("it chose version {}, which was not offered", welcome.version)));
        }
        Ok((framed, welcome))
    }

    pub(crate) fn protocol(&self, what: impl Into<String>) -> ConnectError {
        ConnectError::Protocol { address: self.address.clone(), what: what.into() }
    }

    pub(crate) const fn queued_bytes(&self) -> usize {
        self.out.len()
    }

    /// Puts a frame in line to be sent.
    pub(crate) fn write(&mut self, writer: impl FnOnce(&mut BytesMut)) {
        self.out.write(writer);
    }

    /// Puts bytes of any length in line.
    pub(crate) fn push(&mut self, bytes: Bytes) {
        self.out.push(bytes);
    }

    pub(super) fn queue(&mut self, out: Out) {
        match out {
            Out::Append { head, payload, .. } => {
                // Bounded by the daemon's max_append_bytes before it is sent.
                let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
                self.out.write(|buf| buf.extend_from_slice(&frame::append_prefix(&head, len)));
                self.out.push(payload);
            }
            Out::Flush { id, level } => self.out.write(|buf| Flush { request_id: id, level }.encode(buf)),
        }
    }

    /// Sends a frame with a descriptor, which comes with its first byte, behind all that is in line.
    pub(crate) async fn send_with_fd(
        &mut self,
        writer: impl FnOnce(&mut BytesMut),
        fd: BorrowedFd<'_>,
    ) -> Result<(), ConnectError> {
        self.send_all().await?;
        let mut frame = BytesMut::new();
        writer(&mut frame);
        let sent = loop {
            self.stream.ready(Interest::WRITABLE).await.map_err(|error| io_error(&self.address, error))?;
            match self.stream.try_write_with_fd(&frame, fd) {
                Ok(sent) => break sent,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(io_error(&self.address, error)),
            }
        };
        self.out.push(frame.split_off(sent).freeze());
        Ok(())
    }

    /// From now on, received descriptors are stored.
    pub(crate) fn expect_fds(&mut self) {
        self.fds.get_or_insert_default();
    }

    /// The descriptors that came; no more are expected.
    pub(crate) fn take_fds(&mut self) -> Vec<OwnedFd> {
        self.fds.take().unwrap_or_default()
    }

    pub(crate) fn ping(&mut self) {
        self.out.write(|buf| frame::encode_ping(buf, 1));
    }

    /// Sends what is in line.
    pub(crate) async fn send_all(&mut self) -> Result<(), ConnectError> {
        while !self.out.is_empty() || self.stream.wants_write() {
            self.exchange().await?;
        }
        Ok(())
    }

    /// The next frame. Sends what is in line meanwhile. Cancel safe.
    ///
    /// # Errors
    /// An ERROR for the connection, as what it is; the end of the connection; bytes that are not frames.
    pub(crate) async fn next_frame(&mut self) -> Result<Frame, ConnectError> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(frame);
            }
            self.exchange().await?;
        }
    }

    /// A frame that is here already.
    fn take_frame(&mut self) -> Result<Option<Frame>, ConnectError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let frame = match self.decoder.next(&mut self.input) {
            Ok(Some(Frame::Error(ErrorFrame { request_id: 0, error }))) => Err(self.refused(error)),
            Ok(frame) => Ok(frame),
            Err(error) => Err(self.protocol(error.to_string())),
        };
        frame.inspect_err(|error| self.failed = Some(error.clone()))
    }

    /// The daemon does not want what was asked.
    pub(crate) fn refused(&self, error: clad_proto::ErrorInfo) -> ConnectError {
        ConnectError::Refused { address: self.address.clone(), error: Box::new(error) }
    }

    /// Waits until bytes can be read or written, and does it.
    async fn exchange(&mut self) -> Result<(), ConnectError> {
        let is_sent = self.out.is_empty() && !self.stream.wants_write();
        let interest = if is_sent { Interest::READABLE } else { Interest::READABLE | Interest::WRITABLE };
        let ready = self.stream.ready(interest).await.map_err(|error| io_error(&self.address, error))?;
        if ready.is_writable()
            && let Err(error) = self.write_now()
        {
            // Why it was closed may be in what is still to be read.
            return self.read_now().and_then(|any| if any { Ok(()) } else { Err(io_error(&self.address, error)) });
        }
        if ready.is_readable() {
            self.read_now()?;
        }
        Ok(())
    }

    fn write_now(&mut self) -> io::Result<()> {
        match self.stream.try_flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            flushed => flushed?,
        }
        while !self.out.is_empty() {
            match self.stream.try_write_vectored(&self.out.slices()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.out.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// False when there was nothing to read.
    fn read_now(&mut self) -> Result<bool, ConnectError> {
        self.input.reserve(READ_BYTES);
        let read = match &mut self.fds {
            None => self.stream.try_read_buf(&mut self.input),
            Some(fds) => self.stream.try_read_fds(&mut self.input, fds),
        };
        match read {
            Ok(0) => Err(ConnectError::Closed { address: self.address.clone() }),
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(false),
            Err(error) => Err(io_error(&self.address, error)),
        }
    }

    pub(super) async fn drive(&mut self, answers: &mut Vec<Answer>) -> Result<(), ConnectError> {
        loop {
            let before = answers.len();
            loop {
                match self.take_frame() {
                    Ok(Some(frame)) => answers.push(self.answer(frame)?),
                    Ok(None) => break,
                    Err(error) if answers.len() == before => return Err(error),
                    Err(_) => return Ok(()), // stored for the next call
                }
            }
            if answers.len() > before {
                return Ok(());
            }
            let queued = self.out.len();
            self.exchange().await?;
            if self.out.len() < queued && self.input.is_empty() {
                return Ok(());
            }
        }
    }

    fn answer(&self, frame: Frame) -> Result<Answer, ConnectError> {
        Ok(match frame {
            Frame::Accepted(answer) => Answer::Accepted(answer),
            Frame::Watermark(watermark) => Answer::Watermark(watermark),
            Frame::Refused(answer) => Answer::Refused(answer),
            Frame::Error(ErrorFrame { request_id, error }) => Answer::FlushRefused { id: request_id, error },
            Frame::Pong(_) => Answer::Pong,
            other => return Err(self.protocol(format!("{:?} where an answer to an append belongs", other.kind()))),
        })
    }

    pub(super) async fn end(mut self, bye: bool) {
        if bye {
            self.out.write(frame::encode_bye);
        }
        // Closed with bytes unread, TCP would throw away what the daemon has not read either.
        if self.send_all().await.is_ok() && self.stream.shutdown().await.is_ok() {
            while self.exchange().await.is_ok() {
                self.input.clear();
            }
        }
    }
}

fn io_error(address: &Address, error: io::Error) -> ConnectError {
    ConnectError::Io { address: address.clone(), error: Arc::new(error) }
}
