//! A client with a ring that speaks the protocol by hand.
//!
//! Invariants: every wait has a bound; what is not expected fails the test with what came instead.

use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use bytes::BytesMut;
use clad_proto::frame::{
    ErrorFrame, Flush, Frame, FrameDecoder, Hello, RingAppendTrailer, RingGiven, RingWanted, Watermark, Welcome,
    encode_bye,
};
use clad_proto::{AckLevel, ErrorInfo};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// The connection, and what came with the ring: completion page, ring, doorbell.
#[derive(Debug)]
pub struct ByHand {
    control: UnixStream,
    input: BytesMut,
    /// The answer to HELLO.
    pub welcome: Welcome,
    /// The answer to RING.
    pub given: RingGiven,
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

impl ByHand {
    /// Greets the daemon and has a ring.
    ///
    /// # Panics
    /// When it gets none.
    #[must_use]
    pub fn at(socket: &Path, hello: &Hello) -> Self {
        Self::ask(socket, hello).unwrap_or_else(|error| panic!("no ring: {error}"))
    }

    /// Greets the daemon and has a ring, or the reason why not.
    ///
    /// # Errors
    /// What the daemon says instead of WELCOME or RING_GIVEN.
    ///
    /// # Panics
    /// When it says neither.
    pub fn ask(socket: &Path, hello: &Hello) -> Result<Self, ErrorInfo> {
        let mut control = UnixStream::connect(socket).expect("connected");
        control.set_read_timeout(Some(crate::TEST_TIMEOUT)).expect("a socket");
        let mut input = BytesMut::new();
        let mut bytes = BytesMut::new();
        hello.encode(&mut bytes);
        // A daemon that has no place says so unasked, and takes nothing.
        let _ = control.write_all(&bytes);
        let welcome = match next(&mut control, &mut input) {
            Frame::Welcome(welcome) => welcome,
            Frame::Error(error) => return Err(error.error),
            other => panic!("neither WELCOME nor ERROR: {other:?}"),
        };
        send(&mut control, |out| RingWanted { request_id: 1, known: None, clock_ns: 0, bytes: 0 }.encode(out));
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let got = recvmsg(&control, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC).expect("received");
        let rights = |message| match message {
            RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<OwnedFd>>(),
            _ => Vec::new(),
        };
        let fds: Vec<OwnedFd> = ancillary.drain().flat_map(rights).collect();
        input.extend_from_slice(&bytes[..got.bytes]);
        let given = match next(&mut control, &mut input) {
            Frame::RingGiven(given) => given,
            Frame::Error(error) => return Err(error.error),
            other => panic!("neither RING_GIVEN nor ERROR: {other:?}"),
        };
        assert_eq!(fds.len(), 3, "completion page, ring, doorbell");
        Ok(Self { control, input, welcome, given, fds })
    }

    /// Its own end of the ring.
    ///
    /// # Panics
    /// When that is no ring.
    #[must_use]
    pub fn attach(&self) -> clad_shm::Producer {
        let waker = self.fds[2].try_clone().expect("a descriptor");
        clad_shm::Producer::attach(&self.fds[1], &self.fds[0], waker).expect("a ring")
    }

    /// Asks that all before has a level.
    ///
    /// # Errors
    /// What the daemon says instead.
    ///
    /// # Panics
    /// When it says something else.
    pub fn flush(&mut self, level: AckLevel) -> Result<Watermark, ErrorInfo> {
        send(&mut self.control, |out| Flush { request_id: 7, level }.encode(out));
        loop {
            match next(&mut self.control, &mut self.input) {
                Frame::Watermark(watermark) if watermark.request_id == 7 => return Ok(watermark),
                Frame::Error(ErrorFrame { request_id: 7, error }) => return Err(error),
                Frame::Watermark(_) => {}
                other => panic!("{other:?} where a FLUSH is answered"),
            }
        }
    }

    /// Says BYE and waits for the end, which comes when the ring is drained.
    ///
    /// # Panics
    /// When it does not come.
    pub fn bye(mut self) {
        send(&mut self.control, encode_bye);
        let mut rest = Vec::new();
        match self.control.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
            Err(e) => panic!("no end: {e}"),
        }
    }
}

fn send(control: &mut UnixStream, encode: impl FnOnce(&mut BytesMut)) {
    let mut out = BytesMut::new();
    encode(&mut out);
    control.write_all(&out).expect("sent");
}

fn next(control: &mut UnixStream, input: &mut BytesMut) -> Frame {
    loop {
        if let Some(frame) = FrameDecoder::default().next(input).expect("a frame") {
            return frame;
        }
        let mut bytes = [0; 4096];
        let n = control.read(&mut bytes).expect("read");
        assert!(n > 0, "the daemon hung up");
        input.extend_from_slice(&bytes[..n]);
    }
}

/// Puts a record into a ring, as an append of its own.
///
/// # Panics
/// When it has no room.
pub fn push(ring: &clad_shm::Producer, level: AckLevel, body: &str) -> u64 {
    let payload = crate::raw::payload(&[body.as_bytes()]);
    let trailer = RingAppendTrailer { level, payload_crc: payload.checksum() }.encode();
    ring.push(&[&payload.bytes, &trailer], payload.count).expect("room")
}
