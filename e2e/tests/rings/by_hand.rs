//! A client with a ring that speaks the protocol by hand.

use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use bytes::BytesMut;
use clad_client::AckLevel;
use clad_proto::ErrorInfo;
use clad_proto::frame::{
    ErrorFrame, Flush, Frame, FrameDecoder, Hello, RingAppendTrailer, RingGiven, RingWanted, Watermark,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// The connection, and what came with the ring: board, ring, doorbell.
pub(crate) struct ByHand {
    control: UnixStream,
    input: BytesMut,
    pub(crate) given: RingGiven,
    pub(crate) fds: Vec<OwnedFd>,
}

impl ByHand {
    /// Greets the daemon and has a ring.
    pub(crate) fn at(socket: &Path, hello: &Hello, clock_ns: u64) -> Self {
        let mut control = UnixStream::connect(socket).expect("connected");
        control.set_read_timeout(Some(clad_e2e::PATIENCE)).expect("a socket");
        let mut input = BytesMut::new();
        send(&mut control, |out| hello.encode(out));
        let welcome = next(&mut control, &mut input);
        assert!(matches!(welcome, Frame::Welcome(_)), "{welcome:?}");
        send(&mut control, |out| RingWanted { request_id: 1, known: None, clock_ns, bytes: 0 }.encode(out));
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
        let Frame::RingGiven(given) = next(&mut control, &mut input) else { panic!("no ring") };
        assert_eq!(fds.len(), 3, "board, ring, doorbell");
        Self { control, input, given, fds }
    }

    /// Its own end of the ring.
    pub(crate) fn attach(&self) -> clad_shm::Producer {
        let waker = self.fds[2].try_clone().expect("a descriptor");
        clad_shm::Producer::attach(&self.fds[1], &self.fds[0], waker).expect("a ring")
    }

    /// Asks that all before has a level.
    pub(crate) fn flush(&mut self, level: AckLevel) -> Result<Watermark, ErrorInfo> {
        send(&mut self.control, |out| Flush { request_id: 7, level }.encode(out));
        loop {
            match next(&mut self.control, &mut self.input) {
                Frame::Watermark(mark) if mark.request_id == 7 => return Ok(mark),
                Frame::Error(ErrorFrame { request_id: 7, error }) => return Err(error),
                Frame::Watermark(_) => {}
                other => panic!("{other:?} where a FLUSH is answered"),
            }
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
pub(crate) fn push(ring: &clad_shm::Producer, level: AckLevel, body: &str) -> u64 {
    let payload = clad_e2e::raw::payload(&[body.as_bytes()]);
    let trailer = RingAppendTrailer { level, payload_crc: payload.checksum() }.encode();
    ring.push(&[&payload.bytes, &trailer], payload.count).expect("room")
}
