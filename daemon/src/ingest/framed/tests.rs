//! Connections that do not do their part, with times and budgets that a test can wait for.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc as channel;

use clad_journal::{Append, Journal, JournalConfig, Level};
use clad_proto::frame::{Frame, FrameDecoder, Hello, Intent, Read, ReadFrom, encode_ping, encode_pong};
use clad_proto::limits::MAX_VERSION;
use clad_proto::{AckLevel, DurabilityPolicy};
use tokio::runtime::Runtime;

use super::buffers::{OUT_LIMIT, OUT_OWN};
use super::*;
use crate::ingest::budget::Budget;
use crate::ingest::crew::Crew;
use crate::ingest::places::{Listeners, Place};
use crate::metrics;

const PATIENCE: Duration = Duration::from_secs(60);
/// What stands for a minute here.
const SHORT: Duration = Duration::from_millis(100);
const ME: u32 = 1000;
const ANOTHER: u32 = 1001;

fn service(journal: &Arc<Journal>, stop: watch::Receiver<bool>) -> Service {
    let door = Door {
        journal: journal.clone(),
        policy: DurabilityPolicy::GroupCommit,
        highest: AckLevel::Durable,
        flush_reach: AckLevel::Durable,
        max_append: 1 << 20,
        max_record: 1 << 20,
        max_connection_bytes: 1 << 20,
        window: 256,
        budget: Budget::new(64 << 20),
    };
    Service {
        door: Arc::new(door),
        reads: Reads::new(journal.clone(), AckLevel::Durable),
        rings: Rings::default(),
        assembly: Parts::new(16 << 20),
        buffers: Parts::new(32 << 20),
        handshake_timeout: PATIENCE,
        idle_timeout: Duration::ZERO,
        patience: Patience::default(),
        stop,
    }
}

fn journal(dir: &tempfile::TempDir) -> Arc<Journal> {
    let config = JournalConfig { reserve_free: 0, segment_bytes: 16 << 20, ..JournalConfig::default() };
    Arc::new(Journal::open_dir(dir.path(), config, Arc::new(|_| {})).expect("a log"))
}

struct World {
    crew: Crew,
    service: Service,
    listeners: Arc<Listeners>,
    _stop: watch::Sender<bool>,
    _runtime: Runtime,
    _dir: tempfile::TempDir,
}

/// A peer, and when the daemon is done with it.
struct Client {
    stream: UnixStream,
    buf: BytesMut,
    decoder: FrameDecoder,
    ended: channel::Receiver<()>,
}

impl World {
    fn new(places: usize) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let (stop, stopped) = watch::channel(false);
        let service = service(&journal(&dir), stopped);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let crew = Crew::start(2, runtime.handle()).unwrap();
        Self { crew, service, listeners: Listeners::new(places), _stop: stop, _runtime: runtime, _dir: dir }
    }

    /// Writes so many records of 64 KiB.
    fn fill(&self, records: u64) {
        let payload = vec![b'x'; 64 << 10];
        for first_sequence in 0..records {
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
                vouch: &[],
                payload: &payload,
                payload_checksum: 0,
                permit: None,
            };
            self.service.door.journal.append(append).expect("taken");
        }
        let began = Instant::now();
        while self.service.door.journal.marks().written < records {
            assert!(began.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn place(&self, uid: u32) -> Option<Place> {
        self.listeners.place(parts::Owner::Uid(uid), metrics::Transport::Unix)
    }

    /// One that has been greeted.
    fn client(&self, uid: u32) -> Client {
        let place = self.place(uid).expect("a place");
        let (near, far) = UnixStream::pair().unwrap();
        near.set_read_timeout(Some(PATIENCE)).unwrap();
        let (rd, wr) = self.crew.adopt(far).unwrap();
        place.seat().wake_by(rd.ender());
        let (service, (ends, ended)) = (self.service.clone(), channel::sync_channel(1));
        self.crew.spawn(async move {
            serve(service, Peer::unix(uid, uid, None, true), place.seat().clone(), rd, wr).await;
            drop(place);
            let _ = ends.send(());
        });
        let mut client = Client { stream: near, buf: BytesMut::new(), decoder: FrameDecoder::default(), ended };
        let intent = Intent { append: true, read: true };
        client.send(|out| {
            Hello { min_version: 1, max_version: MAX_VERSION, intent, ..Hello::default() }.encode(out);
        });
        assert!(matches!(client.frame(), Some(Frame::Welcome(_))));
        client
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
        self.stream.set_write_timeout(Some(SHORT)).unwrap();
        // What was cut in the middle goes on there.
        let mut at = 0;
        while let Ok(sent) = self.stream.write(&pings[at..]) {
            at = (at + sent) % pings.len();
        }
    }

    fn read_all(&mut self) {
        let (from, min_level) = (ReadFrom::Offset(0), AckLevel::Written);
        let read = Read { request_id: 9, from, follow: false, limit: None, min_level, since: None, until: None };
        self.send(|out| read.encode(out));
    }

    fn is_let_go(&self) {
        self.ended.recv_timeout(PATIENCE).expect("the daemon lets it go");
    }
}

#[test]
fn a_peer_that_takes_nothing_is_let_go_and_costs_nobody_else() {
    let mut world = World::new(10);
    world.service.patience.taking = SHORT;
    let mut bystander = world.client(ME);
    let mut flood = world.client(ME);
    flood.flood();
    flood.is_let_go();
    // It may be silent for as long as it likes: nothing waits for it.
    bystander.ping(1);
    assert_eq!(world.listeners.open(), 1);
}

#[test]
fn a_peer_that_has_closed_its_side_and_takes_nothing_is_let_go() {
    let mut world = World::new(10);
    world.service.patience.reading = SHORT;
    world.fill(64);
    let mut half_closed = world.client(ME);
    half_closed.read_all();
    half_closed.stream.shutdown(Shutdown::Write).unwrap();
    half_closed.is_let_go();
    assert_eq!(world.listeners.open(), 0);
}

/// A pager at which nobody looks.
#[test]
fn a_reader_may_rest_for_longer() {
    const RECORDS: u64 = 64;
    let mut world = World::new(10);
    world.service.patience.taking = SHORT / 10;
    world.fill(RECORDS);
    let mut reader = world.client(ME);
    reader.read_all();
    assert!(reader.ended.recv_timeout(SHORT * 5).is_err(), "it is let go");
    let mut read = 0;
    loop {
        match reader.frame().expect("not the end") {
            Frame::Records(records) => read += u64::from(records.head.count),
            Frame::ReadEnd(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(read, RECORDS);
}

#[test]
fn who_makes_room_is_told_and_answered_and_the_others_stay() {
    let world = World::new(3);
    let (mut first, mut second, mut third) = (world.client(ME), world.client(ME), world.client(ME));
    assert!(world.place(ME).is_none(), "all are mine, and I want no part of mine");
    std::thread::sleep(Duration::from_millis(5));
    first.ping(1);
    third.ping(1);
    let mut other = world.client(ANOTHER);
    let Some(Frame::Error(told)) = second.frame() else { panic!("it is told") };
    assert_eq!((told.request_id, told.error.code, told.error.retryable), (0, ErrorCode::TooManyConnections, true));
    assert!(second.frame().is_none());
    second.is_let_go();
    for client in [&mut first, &mut third, &mut other] {
        client.ping(2);
    }
    assert_eq!(world.listeners.open(), 3);
}

/// Though it reads nothing of what it is owed, and will not see why; also when it has closed its side.
#[test]
fn who_takes_nothing_makes_room_all_the_same() {
    let mut world = World::new(2);
    world.fill(64);
    world.service.patience.taking = PATIENCE * 10;
    for half_closed in [false, true] {
        let mut stuck = world.client(ME);
        match half_closed {
            false => stuck.flood(),
            true => {
                stuck.read_all();
                stuck.stream.shutdown(Shutdown::Write).unwrap();
            }
        }
        std::thread::sleep(SHORT);
        let mut mine = world.client(ME);
        mine.ping(1);
        world.client(ANOTHER).ping(1);
        stuck.is_let_go();
        mine.ping(2);
        drop(mine);
        let began = Instant::now();
        while world.listeners.open() > 0 {
            assert!(began.elapsed() < PATIENCE, "it is not over");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_crowd_that_reads_nothing_holds_its_part_of_the_buffers_and_the_rest_is_served() {
    const CROWD: usize = 24;
    const BUDGET: usize = 4 * OUT_LIMIT;
    let mut world = World::new(2 * CROWD);
    world.service.buffers = Parts::new(BUDGET);
    let mut crowd: Vec<_> = (0..CROWD).map(|_| world.client(ME)).collect();
    crowd.iter_mut().for_each(Client::flood);
    let held = world.service.buffers.in_use();
    assert!((OUT_OWN..=BUDGET / 2).contains(&held), "{held} bytes of {BUDGET}");
    let (mut mine, mut others) = (world.client(ME), world.client(ANOTHER));
    for id in 0..100 {
        mine.ping(id);
        others.ping(id);
    }
    // Who reads at last is answered, and goes on.
    let slow = &mut crowd[0];
    for _ in 0..1000 {
        assert!(matches!(slow.frame(), Some(Frame::Pong(1))));
    }
    drop(crowd);
    let began = Instant::now();
    while world.service.buffers.in_use() > 0 {
        assert!(began.elapsed() < PATIENCE, "{} bytes are never given back", world.service.buffers.in_use());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a stream took for large reads is given back when it rests, not when it goes on.
#[test]
fn a_stream_that_rests_gives_its_buffer_back() {
    const PINGS: usize = 50_000;
    let world = World::new(10);
    let mut client = world.client(ME);
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
    while world.service.buffers.in_use() > 0 {
        assert!(began.elapsed() < PATIENCE, "it keeps {} bytes", world.service.buffers.in_use());
        std::thread::sleep(Duration::from_millis(5));
    }
}
