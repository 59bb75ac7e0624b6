//! A client that writes nonsense into its ring is cut off, and nobody else is.

use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use bytes::BytesMut;
use clad_client::AckLevel;
use clad_e2e::{Setup, readback};
use clad_proto::ProducerId;
use clad_proto::frame::{Frame, FrameDecoder, Hello, Intent, RingGiven, RingWanted};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::{producer, runtime, submit};

/// A client that knows the protocol and means ill.
struct Hostile {
    _control: UnixStream,
    ring: File,
    given: RingGiven,
}

impl Hostile {
    fn at(socket: &std::path::Path) -> Self {
        let mut control = UnixStream::connect(socket).expect("connected");
        let mut out = BytesMut::new();
        Hello {
            min_version: 1,
            max_version: 1,
            producer_id: ProducerId::default(),
            producer_epoch: 0,
            intent: Intent { append: true, read: false },
            name: "hostile".to_owned(),
            secret: Vec::new(),
        }
        .encode(&mut out);
        control.write_all(&out).expect("sent");
        let mut input = BytesMut::new();
        let decoder = FrameDecoder::default();
        let welcome = loop {
            if let Some(frame) = decoder.next(&mut input).expect("a frame") {
                break frame;
            }
            let mut bytes = [0; 4096];
            let n = control.read(&mut bytes).expect("read");
            input.extend_from_slice(&bytes[..n]);
        };
        assert!(matches!(welcome, Frame::Welcome(_)), "{welcome:?}");
        let mut out = BytesMut::new();
        // A clock that is not the daemon's.
        RingWanted { request_id: 1, known: None, clock_ns: 1, bytes: 0 }.encode(&mut out);
        control.write_all(&out).expect("sent");
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let got = recvmsg(&control, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC).expect("received");
        let rights = |message| match message {
            RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<OwnedFd>>(),
            _ => Vec::new(),
        };
        let mut fds: Vec<OwnedFd> = ancillary.drain().flat_map(rights).collect();
        input.extend_from_slice(&bytes[..got.bytes]);
        let Ok(Some(Frame::RingGiven(given))) = decoder.next(&mut input) else { panic!("no ring: {input:?}") };
        assert_eq!(fds.len(), 3, "board, ring, doorbell");
        assert!(given.other_clock, "its clock is none");
        let (ring, board) = (File::from(fds.remove(1)), File::from(fds.remove(0)));
        // What it must not do, it cannot.
        assert!(ring.set_len(0).is_err() && ring.set_len(1 << 30).is_err(), "the ring can be cut or made to grow");
        assert!(board.write_at(b"mine", 128).is_err() && board.set_len(0).is_err(), "the board can be written");
        Self { _control: control, ring, given }
    }

    fn scribble(&self, with: impl Fn(u64) -> u8) {
        let size = self.ring.metadata().expect("a file").len();
        let bytes: Vec<u8> = (0..size).map(with).collect();
        self.ring.write_all_at(&bytes, 0).expect("written");
    }
}

#[test]
fn who_scribbles_is_cut_off_and_nobody_else() {
    let runtime = runtime();
    let daemon = Setup::new().start();
    let good = producer(&runtime, &daemon, "shm");
    let cut_off = || daemon.metric("clad_shm_rings_cut_off_total");
    for (round, with) in
        [|_: u64| 0xFF, |at: u64| ((at * 2_654_435_761) >> 7) as u8, |at: u64| at as u8].iter().enumerate()
    {
        let hostile = Hostile::at(&daemon.socket());
        assert!(hostile.given.bytes > 0);
        runtime.block_on(submit(&good, AckLevel::Durable, format!("{round} before"))).expect("durable");
        hostile.scribble(with);
        // It takes no notice of what the others log meanwhile.
        for number in 0..200 {
            runtime.block_on(submit(&good, AckLevel::Written, format!("{round} {number}"))).expect("written");
        }
        let until = std::time::Instant::now() + clad_e2e::PATIENCE;
        while cut_off() < (round + 1) as f64 {
            assert!(std::time::Instant::now() < until, "the ring was not cut off");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        drop(hostile);
    }
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    assert_eq!(all.len(), 3 * 201, "all of the good one's, and nothing else");
    daemon.wait_for_rings(1);
}

/// Where as many are given out as may be, the next producer logs over the socket, and says so.
#[test]
fn without_a_ring_it_goes_over_the_socket() {
    let runtime = runtime();
    let daemon = Setup::new().set("ingest.shm.max_rings", "1").start();
    let first = producer(&runtime, &daemon, "shm");
    let address = daemon.address("shm").parse().expect("an address");
    let second = runtime.block_on(clad_client::Producer::builder(address).connect()).expect("connected");
    assert!(!second.has_ring());
    let why = second.why_no_ring().expect("it says why");
    assert!(why.text.contains("max_rings"), "{why}");
    let receipt = runtime.block_on(submit(&second, AckLevel::Durable, "by the socket".to_owned())).expect("durable");
    assert_eq!(receipt.first_offset, Some(0));
    let posted = runtime.block_on(submit(&second, AckLevel::Posted, "no".to_owned()));
    assert!(posted.is_err_and(|e| e.code() == Some(clad_proto::ErrorCode::LevelUnreachable)), "no ring, no such level");
    let receipt = runtime.block_on(submit(&first, AckLevel::Durable, "by the ring".to_owned())).expect("durable");
    assert_eq!(receipt.first_offset, Some(1));
}
