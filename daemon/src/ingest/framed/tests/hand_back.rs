//! Rings that clients hand back, and descriptors that are none.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use clad_proto::frame::{RingAppendTrailer, RingId};
use clad_proto::{ErrorInfo, ProducerId};
use clad_shm::{Drain, Producer as Pusher, Shape};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};

use super::*;
use crate::fds;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

fn own(fd: BorrowedFd<'_>) -> OwnedFd {
    fd.try_clone_to_owned().expect("a descriptor")
}

/// A ring whose daemon has ended; `bytes` is its size.
fn ring(bytes: u32) -> (OwnedFd, Pusher) {
    let drain = Drain::create(Shape::new(bytes, 64).expect("a shape"), 0, [7; 16], 1).expect("a ring");
    let fds = drain.client_fds();
    let memory = own(fds.ring);
    let pusher = Pusher::attach(&memory, &own(fds.completion_page), own(fds.waker)).expect("attached");
    (memory, pusher)
}

fn push(pusher: &Pusher, level: AckLevel, text: &str) -> u64 {
    let mut builder = PayloadBuilder::new(&Group::default()).expect("a group");
    builder.push(&Record::text(1, 9, text)).expect("a record");
    let payload = builder.finish();
    let trailer = RingAppendTrailer { level, payload_crc: payload.checksum() }.encode();
    pusher.push(&[&payload.bytes, &trailer], 1).expect("room")
}

fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("a client's", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
    ftruncate(&file, bytes).expect("a size");
    fcntl_add_seals(&file, seals).expect("sealed");
    file
}

fn wanted(known: Option<u8>) -> RingWanted {
    RingWanted { request_id: 1, known: known.map(|id| RingId::from_bytes([id; 16])), clock_ns: 0, bytes: 0 }
}

/// Descriptors of this process that are this file: no other test has it.
fn held(file: &impl AsFd) -> usize {
    use std::os::unix::fs::MetadataExt;
    let of = fstat(file).expect("it is open");
    let is_same = |found: std::fs::Metadata| (found.dev(), found.ino()) == (of.st_dev, of.st_ino);
    let all = std::fs::read_dir("/proc/self/fd").expect("proc").flatten();
    all.filter(|entry| std::fs::metadata(entry.path()).is_ok_and(is_same)).count()
}

impl Harness {
    fn producer(&self, id: u8) -> Client {
        let intent = Intent { append: true, read: false };
        let producer_id = ProducerId::from_bytes([id; 16]);
        let mut client = self.stranger_and_far(ME).0;
        client.send(|out| {
            Hello { min_version: 1, max_version: MAX_VERSION, intent, producer_id, ..Hello::default() }.encode(out);
        });
        assert!(matches!(client.frame(), Some(Frame::Welcome(_))));
        client
    }

    fn written(&self, end: u64) {
        let began = Instant::now();
        while self.service.admission.journal.watermarks().written < end {
            assert!(began.elapsed() < TEST_TIMEOUT, "it is not written");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Client {
    fn hands(&mut self, bytes: &BytesMut, fds: &[BorrowedFd<'_>]) {
        assert_eq!(fds::send(&self.stream, bytes, fds).expect("sent"), bytes.len());
    }

    fn hands_back(&mut self, id: u8, fd: &impl AsFd) {
        let mut frame = BytesMut::new();
        wanted(Some(id)).encode(&mut frame);
        self.hands(&frame, &[fd.as_fd()]);
    }

    /// RING_GIVEN, and the descriptors that came with it.
    fn given(&mut self) -> (clad_proto::frame::RingGiven, Vec<OwnedFd>) {
        let mut bytes = [0; 4096];
        let (read, fds) = fds::receive(&self.stream, &mut bytes).expect("an answer");
        self.buf.extend_from_slice(&bytes[..read]);
        match self.frame() {
            Some(Frame::RingGiven(given)) => (given, fds),
            other => panic!("{other:?}"),
        }
    }

    fn refused(&mut self) -> ErrorInfo {
        match self.frame() {
            Some(Frame::Error(error)) => error.error,
            other => panic!("{other:?}"),
        }
    }
}

/// What was committed before, and what is pushed meanwhile, is written once; the doorbell is a new one.
#[test]
fn a_ring_that_is_handed_back_goes_on() {
    let mut harness = Harness::new(10);
    harness.gives_rings(Some(64));
    let (memory, pusher) = ring(1 << 16);
    push(&pusher, AckLevel::Written, "before");
    let mut client = harness.producer(1);
    client.hands_back(1, &memory);
    let (given, mut fds) = client.given();
    assert!(given.known && given.id == RingId::from_bytes([1; 16]) && fds.len() == 2);
    pusher.attach_waker(fds.pop().expect("a doorbell"));
    pusher.attach_completion_page(&fds[0], drop).expect("its page");
    harness.written(1);
    std::thread::sleep(Duration::from_millis(20)); // the drain sleeps
    push(&pusher, AckLevel::Written, "after");
    harness.written(2);
    drop((client, fds));
    let began = Instant::now();
    while harness.service.rings.totals().0 > 0 {
        assert!(began.elapsed() < TEST_TIMEOUT, "the ring ends with its connections");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(pusher.is_closed());
    // It is drained to its end: nothing is left that a daemon could take.
    let mut client = harness.producer(1);
    client.hands_back(1, &memory);
    assert_eq!(client.refused().code, ErrorCode::RingUnavailable);
    client.send(|out| wanted(None).encode(out));
    assert!(!client.given().0.known, "it gets another");
    assert_eq!(harness.service.admission.journal.watermarks().written, 2, "each once");
    let began = Instant::now();
    while held(&memory) > 1 {
        assert!(began.elapsed() < TEST_TIMEOUT, "{} descriptors are left", held(&memory) - 1);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The refusal costs that client its RING; its connection goes on, and nothing of it is left.
#[test]
fn a_descriptor_that_is_no_ring_is_refused() {
    let mut harness = Harness::new(10);
    harness.gives_rings(Some(64));
    let header = |file: &OwnedFd, magic: &[u8]| {
        rustix::io::pwrite(file, magic, 0).expect("written");
    };
    let (named, no_magic) = (memory(1 << 16, SealFlags::empty()), memory(1 << 16, SEALS));
    header(&no_magic, b"no magic");
    header(&named, b"CLADRING");
    let (pipe, _keeps) = io::pipe().expect("a pipe");
    let (sound, _pusher) = ring(1 << 16);
    let read_only: OwnedFd = {
        use std::os::fd::AsRawFd;
        std::fs::File::open(format!("/proc/self/fd/{}", sound.as_raw_fd())).expect("opened").into()
    };
    let drain = Drain::create(Shape::new(4096, 8).expect("a shape"), 0, [7; 16], 1).expect("a ring");
    let page = own(drain.client_fds().completion_page);
    let cases: Vec<(&str, OwnedFd)> = vec![
        ("a file", tempfile::tempfile().expect("a file").into()),
        ("a pipe", pipe.into()),
        ("a socket", UnixStream::pair().expect("sockets").0.into()),
        ("an unsealed ring", named),
        ("no ring", no_magic),
        ("too small", memory(64, SEALS)),
        ("a sparse giant", memory(1 << 40, SEALS)),
        ("sealed against writing", memory(1 << 16, SEALS.union(SealFlags::WRITE))),
        ("read-only", read_only),
        ("a completion page", page),
    ];
    for (name, fd) in cases {
        let before = held(&fd);
        let mut client = harness.producer(1);
        client.hands_back(1, &fd);
        let error = client.refused();
        assert!(matches!(error.code, ErrorCode::RingUnavailable | ErrorCode::Busy), "{name}: {error}");
        client.ping(5);
        assert_eq!(held(&fd), before, "{name}: it is closed");
        assert_eq!(harness.service.rings.totals().0, 0, "{name}");
    }
    // As root alone: of another user's making.
    if rustix::fs::fchown(&sound, Some(rustix::fs::Uid::from_raw(1)), None).is_ok() {
        let mut client = harness.producer(1);
        client.hands_back(1, &sound);
        assert_eq!(client.refused().code, ErrorCode::RingUnavailable);
    }
}

#[test]
fn a_ring_has_one_drain_whoever_hands_it_back() {
    let mut harness = Harness::new(40);
    harness.gives_rings(Some(64));
    let (memory, pusher) = ring(1 << 16);
    let mut client = harness.producer(1);
    client.hands_back(1, &memory);
    let (_, mut fds) = client.given();
    pusher.attach_waker(fds.pop().expect("a doorbell"));
    // Another's ring, under its name and another one; another ring under its name.
    let (other, _) = ring(1 << 16);
    for (id, fd) in [(1, &memory), (2, &memory), (1, &other)] {
        let mut thief = harness.producer(2);
        thief.hands_back(id, fd);
        assert_eq!(thief.refused().code, ErrorCode::RingUnavailable);
        thief.ping(3);
    }
    push(&pusher, AckLevel::Written, "its own");
    harness.written(1);
    // More than there may be of one user.
    let rings: Vec<_> = (3..9).map(|id| (id, ring(1 << 20).0)).collect();
    let mut clients: Vec<_> = rings
        .iter()
        .map(|(id, memory)| {
            let mut client = harness.producer(*id);
            client.hands_back(*id, memory);
            client
        })
        .collect();
    let busy = clients.iter_mut().filter_map(|client| client.frame()).filter(|f| matches!(f, Frame::Error(_))).count();
    assert!(busy >= 4, "{busy}: within the quota of its user");
}

#[test]
fn descriptors_that_no_ring_takes_end_their_connection() {
    let mut harness = Harness::new(10);
    harness.gives_rings(Some(64));
    let mut bystander = harness.client(ANOTHER);
    let (memory, _pusher) = ring(1 << 16);
    let before = held(&memory);
    let frame = |encode: &dyn Fn(&mut BytesMut)| {
        let mut out = BytesMut::new();
        encode(&mut out);
        out
    };
    let known = frame(&|out| wanted(Some(1)).encode(out));
    let cases = [
        ("with a PING", frame(&|out| encode_ping(out, 1)), 1),
        ("with a RING for a new one", frame(&|out| wanted(None).encode(out)), 1),
        ("two", known.clone(), 2),
        ("three", known.clone(), 3),
    ];
    for (name, bytes, count) in cases {
        let mut client = harness.producer(1);
        client.hands(&bytes, &vec![memory.as_fd(); count]);
        assert_eq!(client.refused().code, ErrorCode::MalformedFrame, "{name}");
        assert!(client.frame().is_none(), "{name}: its connection ends");
        client.is_disconnected();
        assert_eq!(held(&memory), before, "{name}: they are closed");
    }
    // Before WELCOME.
    let mut stranger = harness.stranger_and_far(ME).0;
    stranger.hands(
        &frame(&|out| Hello { min_version: 1, max_version: MAX_VERSION, ..Hello::default() }.encode(out)),
        &[memory.as_fd()],
    );
    assert_eq!(stranger.refused().code, ErrorCode::MalformedFrame);
    stranger.is_disconnected();
    // A flood, each with the first bytes of a frame that never ends.
    let mut flood = harness.producer(1);
    let append = frame(&|out| {
        let head = AppendHead { first_seq: 0, count: 1, level: AckLevel::Received, gap: false, payload_crc: 0 };
        encode_append(out, &head, &[0; 4096]);
    });
    for byte in append.chunks(16) {
        if fds::send(&flood.stream, byte, &[memory.as_fd(); 3]).is_err() {
            break;
        }
        assert!(held(&memory) <= before + 2 + 3, "two at a time at most");
    }
    assert_eq!(flood.refused().code, ErrorCode::MalformedFrame);
    flood.is_disconnected();
    bystander.ping(9);
    assert_eq!((held(&memory), harness.service.rings.totals().0), (before, 0));
}

/// A ring is given out where no store takes it, and says so; `posted` is answered there, and stored all the same.
#[test]
fn a_ring_says_whether_it_is_stored() {
    for (room, stored) in [(Some(64), true), (Some(0), false), (None, false)] {
        let mut harness = Harness::new(10);
        harness.gives_rings(room);
        let (memory, pusher) = ring(1 << 16);
        push(&pusher, AckLevel::Posted, "by an earlier daemon's word");
        let mut client = harness.producer(1);
        client.hands_back(1, &memory);
        let (given, mut fds) = client.given();
        assert_eq!(given.stored, stored, "{room:?}: handed back");
        pusher.attach_waker(fds.pop().expect("a doorbell"));
        assert_eq!(harness.service.rings.unstored(), (usize::from(!stored), room.is_some()), "{room:?}");
        pusher.attach_completion_page(&fds[0], drop).expect("its page");
        let codes = [AckLevel::Posted, AckLevel::None, AckLevel::Written].map(|level| push(&pusher, level, "now"));
        harness.written(4);
        let began = Instant::now();
        while pusher.watermarks().written < 4 {
            assert!(began.elapsed() < TEST_TIMEOUT, "no watermark is published");
            std::thread::sleep(Duration::from_millis(1));
        }
        let codes = codes.map(|append| pusher.answer(append).map(|answer| answer.code));
        let unreachable = Some(u32::from(ErrorCode::LevelUnreachable.number()));
        assert_eq!(codes[0] == unreachable, !stored, "{room:?}: {codes:?}");
        assert!(codes[1] != unreachable && codes[2] == Some(0), "{room:?}: {codes:?}");
        assert_ne!(pusher.answer(0).map(|answer| answer.code), unreachable, "{room:?}: it was offered then");
        drop(client);
        let mut client = harness.producer(2);
        client.send(|out| wanted(None).encode(out));
        assert_eq!(client.given().0.stored, stored, "{room:?}: a new one");
    }
}
