//! Connections of faulty peers, with times and budgets that a test can wait for.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc as channel};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use clad_journal::{Append, Journal, JournalConfig, Level};
use clad_proto::frame::{
    AppendHead, Frame, FrameDecoder, Hello, Intent, Read, ReadFrom, RingWanted, encode_append, encode_ping, encode_pong,
};
use clad_proto::limits::MAX_VERSION;
use clad_proto::{AckLevel, DurabilityPolicy, ErrorCode, Group, PayloadBuilder, Record};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::buffers::{OUT_BYTES_MAX, OUT_UNSHARED_BYTES_MAX};
use super::{PeerTimeouts, Service, serve};
use crate::ingest::admission::Admission;
use crate::ingest::connection_slots::{ConnectionSlot, ConnectionSlots};
use crate::ingest::peer::Peer;
use crate::ingest::quota::{Owner, Quota};
use crate::ingest::reactor::Reactor;
use crate::ingest::rings::Rings;
use crate::ops::metrics;
use crate::read::Reads;

mod hand_back;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Short replacement for a minute.
const SHORT_TIMEOUT: Duration = Duration::from_millis(100);
const ME: u32 = 1000;
const ANOTHER: u32 = 1001;

fn service(journal: &Arc<Journal>, stop: watch::Receiver<bool>) -> Service {
    let admission = Admission {
        journal: journal.clone(),
        policy: DurabilityPolicy::GroupCommit,
        highest: AckLevel::Durable,
        flush_reach: AckLevel::Durable,
        max_append: 1 << 20,
        max_record: 1 << 20,
        max_connection_bytes: 1 << 20,
        window: 256,
        budget: Quota::new(64 << 20),
        access: crate::access::Access::open(),
    };
    Service {
        admission: Arc::new(admission),
        reads: Reads::new(journal.clone(), AckLevel::Durable),
        rings: Rings::default(),
        assembly: Quota::new(16 << 20),
        buffers: Quota::new(32 << 20),
        handshake_timeout: TEST_TIMEOUT,
        idle_timeout: Duration::ZERO,
        peer_timeouts: PeerTimeouts::default(),
        stop,
    }
}

fn journal(dir: &tempfile::TempDir) -> Arc<Journal> {
    let config = JournalConfig { reserve_free: 0, segment_bytes: 16 << 20, ..JournalConfig::default() };
    Arc::new(Journal::open_dir(dir.path(), config, Arc::new(|_| {})).expect("a log"))
}

struct Harness {
    reactor: Reactor,
    service: Service,
    connection_slots: Arc<ConnectionSlots>,
    stop: watch::Sender<bool>,
    _runtime: Runtime,
    _dir: tempfile::TempDir,
}

/// A peer, and the time at which the daemon is done with it.
struct Client {
    stream: UnixStream,
    buf: BytesMut,
    decoder: FrameDecoder,
    ended: channel::Receiver<()>,
}

impl Harness {
    fn new(connections_max: usize) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let (stop, stopped) = watch::channel(false);
        let service = service(&journal(&dir), stopped);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let reactor = Reactor::start(2, runtime.handle()).unwrap();
        Self {
            reactor,
            service,
            connection_slots: ConnectionSlots::new(connections_max),
            stop,
            _runtime: runtime,
            _dir: dir,
        }
    }

    /// Gives out rings from now on, with room for so many descriptors in the fd store.
    fn gives_rings(&mut self, room: Option<usize>) {
        let fd_store = room.map_or_else(crate::fdstore::FdStore::default, crate::fdstore::FdStore::for_test);
        let settings = crate::ingest::rings::Settings::for_test(1 << 20, 4);
        let admission = self.service.admission.clone();
        self.service.rings = Rings::start(&self.reactor, settings, admission, fd_store, Vec::new()).unwrap();
    }

    /// Writes these records, of 64 KiB each.
    fn fill(&self, records: std::ops::Range<u64>) {
        let (payload, end) = (vec![b'x'; 64 << 10], records.end);
        for first_sequence in records {
            let append = Append {
                producer: [7; 16],
                owner: 1,
                producer_epoch: 1,
                first_sequence,
                count: 1,
                gap: false,
                level: Level::Written,
                min_time_ns: 0,
                max_time_ns: 0,
                peer_meta: &[],
                payload: &payload,
                payload_checksum: 0,
                permit: None,
            };
            append.submit(&self.service.admission.journal).expect("taken");
        }
        let began = Instant::now();
        while self.service.admission.journal.watermarks().written < end {
            assert!(began.elapsed() < TEST_TIMEOUT);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn take_slot(&self, uid: u32) -> Option<ConnectionSlot> {
        self.connection_slots.take(Owner::Uid(uid), metrics::Transport::Unix)
    }

    /// Places of others, one each: whatever one user leaves free is taken.
    fn others(&self, count: u32) -> Vec<ConnectionSlot> {
        (1..=count).map(|uid| self.take_slot(uid).expect("it is free")).collect()
    }

    /// One that has been greeted.
    fn client(&self, uid: u32) -> Client {
        self.client_and_far(uid).0
    }

    /// The same, and the daemon's end of its socket.
    fn client_and_far(&self, uid: u32) -> (Client, OwnedFd) {
        let (mut client, far) = self.stranger_and_far(uid);
        let intent = Intent { append: true, read: true };
        client.send(|out| {
            Hello { min_version: 1, max_version: MAX_VERSION, intent, ..Hello::default() }.encode(out);
        });
        assert!(matches!(client.frame(), Some(Frame::Welcome(_))));
        (client, far)
    }

    /// One that has said nothing.
    fn stranger_and_far(&self, uid: u32) -> (Client, OwnedFd) {
        let slot = self.take_slot(uid).expect("a place");
        let (near, far) = UnixStream::pair().unwrap();
        near.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let again = far.try_clone().unwrap().into();
        let (rd, wr) = self.reactor.adopt(far).unwrap();
        slot.slot_state().wake_by(rd.ender());
        let (service, (ends, ended)) = (self.service.clone(), channel::sync_channel(1));
        self.reactor.spawn(async move {
            serve(service, Peer::unix(uid, uid, (None, None), true), slot.slot_state().clone(), rd, wr).await;
            drop(slot);
            let _ = ends.send(());
        });
        (Client { stream: near, buf: BytesMut::new(), decoder: FrameDecoder::default(), ended }, again)
    }
}

impl Client {
    fn send(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        let mut out = BytesMut::new();
        encode(&mut out);
        self.stream.write_all(&out).expect("sent");
    }

    /// The next frame; nothing at the end.
    fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.decoder.next(&mut self.buf).expect("a frame") {
                return Some(frame);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(read) => self.buf.extend_from_slice(&bytes[..read]),
                Err(e) => panic!("nothing comes, and no end: {e}"),
            }
        }
    }

    fn ping(&mut self, id: u32) {
        self.send(|out| encode_ping(out, id));
        assert!(matches!(self.frame(), Some(Frame::Pong(answered)) if answered == id));
    }

    /// Sends PINGs, and reads nothing, until the daemon takes no more.
    fn flood(&mut self) {
        let mut pings = BytesMut::new();
        (0..1000).for_each(|_| encode_ping(&mut pings, 1));
        self.stream.set_write_timeout(Some(SHORT_TIMEOUT)).unwrap();
        // A frame that was cut in the middle continues there.
        let mut at = 0;
        while let Ok(sent) = self.stream.write(&pings[at..]) {
            at = (at + sent) % pings.len();
        }
    }

    fn read_all(&mut self) {
        self.read(false);
    }

    fn read(&mut self, follow: bool) {
        let (from, min_level) = (ReadFrom::Offset(0), AckLevel::Written);
        let read = Read { request_id: 9, from, follow, limit: None, min_level, since: None, until: None, filter: None };
        self.send(|out| read.encode(out));
    }

    /// Takes all that its READ gives, to its end or until there is no more; returns the number of records.
    fn records(&mut self) -> u64 {
        let mut read = 0;
        loop {
            match self.frame().expect("not the end") {
                Frame::Records(records) => read += u64::from(records.head.count),
                Frame::ReadEnd(_) | Frame::CaughtUp(_) => return read,
                other => panic!("{other:?}"),
            }
        }
    }

    fn is_disconnected(&self) {
        self.ended.recv_timeout(TEST_TIMEOUT).expect("the daemon lets it go");
    }
}

/// It has handed over nothing. Its timeout for HELLO is longer than this test waits for an answer.
#[test]
fn a_stop_waits_for_nobody_who_has_not_said_hello() {
    let mut harness = Harness::new(2);
    harness.service.handshake_timeout = 2 * TEST_TIMEOUT;
    let (mut client, far) = harness.stranger_and_far(ME);
    drop(far);
    let _ = harness.stop.send(true);
    let Some(Frame::Error(answer)) = client.frame() else { panic!("no reason was sent") };
    assert_eq!(answer.error.code, ErrorCode::ShuttingDown);
    assert!(client.frame().is_none(), "and the connection ends");
    client.ended.recv_timeout(TEST_TIMEOUT).expect("the daemon is done with it");
}

#[test]
fn a_peer_that_takes_nothing_is_let_go_and_costs_nobody_else() {
    let mut harness = Harness::new(10);
    harness.service.peer_timeouts.write = SHORT_TIMEOUT;
    let mut bystander = harness.client(ME);
    let mut flood = harness.client(ME);
    flood.flood();
    flood.is_disconnected();
    // It may be silent for as long as it likes: nothing waits for it.
    bystander.ping(1);
    assert_eq!(harness.connection_slots.open(), 1);
}

#[test]
fn a_peer_that_has_closed_its_side_and_takes_nothing_is_disconnected() {
    let mut harness = Harness::new(10);
    harness.service.peer_timeouts.reader_write = SHORT_TIMEOUT;
    harness.fill(0..64);
    let mut half_closed = harness.client(ME);
    half_closed.read_all();
    half_closed.stream.shutdown(Shutdown::Write).unwrap();
    half_closed.is_disconnected();
    assert_eq!(harness.connection_slots.open(), 0);
}

/// A pager that no person looks at.
#[test]
fn a_reader_may_rest_for_longer() {
    const RECORDS: u64 = 64;
    let mut harness = Harness::new(10);
    harness.service.peer_timeouts.write = SHORT_TIMEOUT / 10;
    harness.fill(0..RECORDS);
    let mut reader = harness.client(ME);
    reader.read_all();
    assert!(reader.ended.recv_timeout(SHORT_TIMEOUT * 5).is_err(), "it is let go");
    assert_eq!(reader.records(), RECORDS);
}

/// All of its READ is given, which has ended, and the last of it waits in buffers: it may rest all the same, also when
/// it has closed its own side. Once it has taken everything it is a normal peer.
#[test]
fn a_reader_may_rest_before_it_takes_the_last_of_what_it_read() {
    // More than a socket holds, and less than waits behind it, the end included.
    const RECORDS: u64 = 5;
    let mut harness = Harness::new(10);
    harness.service.peer_timeouts.write = SHORT_TIMEOUT / 10;
    harness.fill(0..RECORDS);
    for half_closed in [false, true] {
        let mut reader = harness.client(ME);
        reader.read_all();
        if half_closed {
            reader.stream.shutdown(Shutdown::Write).unwrap();
        }
        assert!(reader.ended.recv_timeout(SHORT_TIMEOUT * 5).is_err(), "it is let go");
        assert_eq!(reader.records(), RECORDS);
        if !half_closed {
            reader.flood();
        }
        reader.is_disconnected();
    }
}

#[test]
fn who_makes_room_is_notified_and_answered_and_the_others_stay() {
    let harness = Harness::new(6);
    let (mut first, mut second, mut third) = (harness.client(ME), harness.client(ME), harness.client(ME));
    assert!(harness.take_slot(ME).is_none(), "my part is mine, and I want no part of mine");
    let _fill = harness.others(3);
    std::thread::sleep(Duration::from_millis(5));
    first.ping(1);
    third.ping(1);
    let mut other = harness.client(ANOTHER);
    let Some(Frame::Error(answer)) = second.frame() else { panic!("no error was sent") };
    assert_eq!(
        (answer.request_id, answer.error.code, answer.error.retryable),
        (0, ErrorCode::TooManyConnections, true)
    );
    assert!(second.frame().is_none());
    second.is_disconnected();
    for client in [&mut first, &mut third, &mut other] {
        client.ping(2);
    }
    assert_eq!(harness.connection_slots.open(), 6);
}

/// Its taken appends are answered to the last one, and nothing more is taken.
#[test]
fn who_makes_room_in_the_middle_of_its_appends_has_no_answers_due_at_the_end() {
    const APPENDS: u64 = 200;
    let harness = Harness::new(4);
    // No task of it runs: it cannot be asked.
    let _other_of_mine = harness.take_slot(ME).unwrap();
    let mut builder = PayloadBuilder::new(&Group::default()).unwrap();
    builder.push(&Record::text(1, 9, "one of many ".repeat(300))).unwrap();
    let payload = builder.finish();
    for _ in 0..20 {
        let mut busy = harness.client(ME);
        let _fill = harness.others(2);
        busy.send(|out| {
            for first_seq in 0..APPENDS {
                // The first is answered at once: by then the others are on their way to the disk.
                let level = if first_seq == 0 { AckLevel::Received } else { AckLevel::Durable };
                let (count, payload_crc) = (1, payload.checksum());
                encode_append(out, &AppendHead { first_seq, count, level, gap: false, payload_crc }, &payload.bytes);
            }
        });
        let Some(Frame::Accepted(first)) = busy.frame() else { panic!("it is taken") };
        // Not while it has a pending answer.
        let began = Instant::now();
        let _another = loop {
            if let Some(another) = harness.take_slot(ANOTHER) {
                break another;
            }
            assert!(began.elapsed() < TEST_TIMEOUT, "it never makes room");
            std::thread::yield_now();
        };
        let (mut accepted, mut end, mut durable) = (1, first.first_offset, 0);
        let error = loop {
            match busy.frame().expect("an answer") {
                Frame::Accepted(answer) => (accepted, end) = (accepted + 1, answer.first_offset + 1),
                Frame::Watermark(mark) if mark.level == AckLevel::Durable => durable = mark.offset,
                Frame::Watermark(_) => {}
                Frame::Error(answer) => break answer.error,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(error.code, ErrorCode::TooManyConnections);
        assert!(durable >= end, "{accepted} appends were taken, to offset {end}, and answered to {durable}");
        busy.is_disconnected();
    }
}

/// A peer that does not read its pending answers, and will not see why; also when it has closed its side.
#[test]
fn who_takes_nothing_makes_room_all_the_same() {
    let mut harness = Harness::new(4);
    harness.fill(0..64);
    harness.service.peer_timeouts.write = TEST_TIMEOUT * 10;
    for half_closed in [false, true] {
        let mut stuck = harness.client(ME);
        match half_closed {
            false => stuck.flood(),
            true => {
                stuck.read_all();
                stuck.stream.shutdown(Shutdown::Write).unwrap();
            }
        }
        std::thread::sleep(SHORT_TIMEOUT);
        let mut mine = harness.client(ME);
        mine.ping(1);
        let fill = harness.others(2);
        harness.client(ANOTHER).ping(1);
        stuck.is_disconnected();
        mine.ping(2);
        drop((mine, fill));
        let began = Instant::now();
        while harness.connection_slots.open() > 0 {
            assert!(began.elapsed() < TEST_TIMEOUT, "it is not over");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A peer that waits in the queue and reads nothing has no place in it, and no share that was granted to it.
#[test]
fn who_reads_no_answers_holds_no_room_for_appends() {
    let mut harness = Harness::new(10);
    // It has as much output as it may have without a part of what all share.
    harness.service.buffers = Quota::new(1);
    let budget = Quota::new(64 << 10);
    let admission = Admission { budget: budget.clone(), ..Admission::clone(&harness.service.admission) };
    harness.service.admission = Arc::new(admission);
    let all = budget.handle(Owner::Uid(0)).try_take(64 << 10).expect("nobody has any");
    let mut stuck = harness.client(ME);
    stuck.read(true);
    assert_eq!(stuck.records(), 0, "it follows an empty log");
    let mut builder = PayloadBuilder::new(&Group::default()).unwrap();
    builder.push(&Record::text(1, 9, "it waits for room")).unwrap();
    let payload = builder.finish();
    stuck.send(|out| {
        let (first_seq, count, payload_crc) = (0, 1, payload.checksum());
        let head = AppendHead { first_seq, count, level: AckLevel::Received, gap: false, payload_crc };
        encode_append(out, &head, &payload.bytes);
    });
    let began = Instant::now();
    while budget.waiting() == 0 {
        assert!(began.elapsed() < TEST_TIMEOUT, "it never waits for room");
        std::thread::sleep(Duration::from_millis(1));
    }
    harness.fill(0..64);
    while budget.waiting() > 0 {
        assert!(began.elapsed() < TEST_TIMEOUT, "it keeps its place in the queue");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(all);
    harness.client(ANOTHER).ping(1);
    assert_eq!(budget.in_use(), 0, "nothing is kept for it");
    // It reads at last, and is answered.
    loop {
        match stuck.frame().expect("not the end") {
            Frame::Records(_) | Frame::CaughtUp(_) => {}
            Frame::Accepted(accepted) => break assert_eq!(accepted.first_seq, 0),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_crowd_that_reads_nothing_holds_its_part_of_the_buffers_and_the_rest_is_served() {
    const CROWD: usize = 24;
    const BUDGET: usize = 4 * OUT_BYTES_MAX;
    let mut harness = Harness::new(4 * CROWD);
    harness.service.buffers = Quota::new(BUDGET);
    let mut crowd: Vec<_> = (0..CROWD).map(|_| harness.client(ME)).collect();
    crowd.iter_mut().for_each(Client::flood);
    let in_use = harness.service.buffers.in_use();
    assert!((OUT_UNSHARED_BYTES_MAX..=BUDGET / 2).contains(&in_use), "{in_use} bytes of {BUDGET}");
    let (mut mine, mut others) = (harness.client(ME), harness.client(ANOTHER));
    for id in 0..100 {
        mine.ping(id);
        others.ping(id);
    }
    // A peer that reads at last is answered, and continues.
    let slow = &mut crowd[0];
    for _ in 0..1000 {
        assert!(matches!(slow.frame(), Some(Frame::Pong(1))));
    }
    drop(crowd);
    let began = Instant::now();
    while harness.service.buffers.in_use() > 0 {
        assert!(began.elapsed() < TEST_TIMEOUT, "{} bytes are never given back", harness.service.buffers.in_use());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The memory that a stream took for large reads is given back when the stream rests, not when it continues.
#[test]
fn a_stream_that_rests_gives_its_buffer_back() {
    const PINGS: usize = 50_000;
    let harness = Harness::new(10);
    let mut client = harness.client(ME);
    let mut pings = BytesMut::new();
    (0..PINGS).for_each(|_| encode_ping(&mut pings, 1));
    let mut pong = BytesMut::new();
    encode_pong(&mut pong, 1);
    let mut left = PINGS * pong.len();
    let mut reads = client.stream.try_clone().unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while left > 0 {
            left = left.saturating_sub(reads.read(&mut bytes).expect("answers"));
        }
    });
    client.stream.write_all(&pings).unwrap();
    reader.join().unwrap();
    let began = Instant::now();
    while harness.service.buffers.in_use() > 0 {
        assert!(began.elapsed() < TEST_TIMEOUT, "it keeps {} bytes", harness.service.buffers.in_use());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The memory that a READ took while it caught up is given back when it follows and nothing comes, though it has not
/// ended. It continues, and so do its appends' sequences.
#[test]
fn a_reader_that_follows_and_rests_gives_its_room_back() {
    const RECORDS: u64 = 64;
    let harness = Harness::new(10);
    harness.fill(0..RECORDS);
    let mut follower = harness.client(ME);
    follower.read(true);
    // It takes nothing for as long as its output has no part of the budget.
    let began = Instant::now();
    while harness.service.buffers.in_use() < 2 * OUT_UNSHARED_BYTES_MAX {
        assert!(began.elapsed() < TEST_TIMEOUT, "it needs no more than its own");
        std::thread::sleep(Duration::from_millis(1));
    }
    for read in [RECORDS, 1] {
        assert_eq!(follower.records(), read);
        let began = Instant::now();
        while harness.service.buffers.in_use() > 0 {
            assert!(began.elapsed() < TEST_TIMEOUT, "it keeps {} bytes", harness.service.buffers.in_use());
            std::thread::sleep(Duration::from_millis(5));
        }
        if read == RECORDS {
            harness.fill(RECORDS..RECORDS + 1);
        }
    }
    follower.ping(1);
}

/// It asks for a ring and does not take it off the socket: only that ends its connection, and the ring with it.
#[test]
fn who_does_not_take_the_ring_that_was_given_loses_it() {
    let mut harness = Harness::new(10);
    harness.gives_rings(Some(64));
    harness.service.peer_timeouts =
        PeerTimeouts { write: TEST_TIMEOUT * 10, reader_write: TEST_TIMEOUT * 10, ring_handover: TEST_TIMEOUT * 10 };
    for takes in [true, false] {
        if !takes {
            harness.service.peer_timeouts.ring_handover = SHORT_TIMEOUT;
        }
        let (mut client, far) = harness.client_and_far(ME);
        if !takes {
            // Its socket is full before it asks, as that of a stopped reader.
            let far = UnixStream::from(far);
            while matches!(rustix::net::send(&far, &[0; 4096], rustix::net::SendFlags::DONTWAIT), Ok(1..)) {}
        }
        client.send(|out| RingWanted { request_id: 1, known: None, clock_ns: 1, bytes: 0 }.encode(out));
        if takes {
            assert!(matches!(client.frame(), Some(Frame::RingGiven(_))));
            assert_eq!(harness.service.rings.totals().0, 1);
            client.ping(1);
            drop(client);
        } else {
            client.is_disconnected();
        }
        let began = Instant::now();
        while harness.service.rings.totals().0 > 0 {
            assert!(began.elapsed() < TEST_TIMEOUT, "the ring is still there");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A producer has one way at a time. A connection that was greeted before another one was given the producer's ring takes
/// no append while there is that ring.
#[test]
fn an_append_by_a_socket_is_busy_while_its_producer_has_a_ring() {
    let mut harness = Harness::new(10);
    harness.gives_rings(Some(64));
    let intent = Intent { append: true, read: false };
    let producer_id = clad_proto::ProducerId::from_bytes([5; 16]);
    let hello = Hello { min_version: 1, max_version: MAX_VERSION, intent, producer_id, ..Hello::default() };
    let [mut socket, mut control] = [(), ()].map(|()| {
        let mut client = harness.stranger_and_far(ME).0;
        client.send(|out| hello.encode(out));
        assert!(matches!(client.frame(), Some(Frame::Welcome(_))));
        client
    });
    let mut builder = PayloadBuilder::new(&Group::default()).unwrap();
    builder.push(&Record::text(1, 9, "by the socket")).unwrap();
    let payload = builder.finish();
    let mut append = |first_seq| {
        let (count, payload_crc) = (1, payload.checksum());
        let head = AppendHead { first_seq, count, level: AckLevel::Received, gap: false, payload_crc };
        socket.send(|out| encode_append(out, &head, &payload.bytes));
        socket.frame().expect("not the end")
    };
    assert!(matches!(append(0), Frame::Accepted(_)));
    control.send(|out| RingWanted { request_id: 1, known: None, clock_ns: 0, bytes: 0 }.encode(out));
    assert!(matches!(control.frame(), Some(Frame::RingGiven(_))));
    let Frame::Refused(refused) = append(1) else { panic!("it has a ring") };
    assert_eq!(
        (refused.error.code, refused.error.retryable, refused.error.maybe_written),
        (ErrorCode::Busy, true, false)
    );
    drop(control);
    let began = Instant::now();
    while harness.service.rings.totals().0 > 0 {
        assert!(began.elapsed() < TEST_TIMEOUT, "the ring is still there");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(append(1), Frame::Accepted(_)));
}
