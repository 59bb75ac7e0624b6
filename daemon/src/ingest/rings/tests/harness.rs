//! A log, rings, and programs that push into them: the harness for the tests of the drain.

use super::*;

pub(super) fn payload(text: &str) -> Payload {
    let mut builder = PayloadBuilder::new(&Group::default()).expect("a group");
    builder.push(&Record::text(1, 9, text)).expect("a record");
    builder.finish()
}

/// A ring's client.
pub(super) struct Program {
    pub(super) id: RingId,
    pub(super) producer: ProducerId,
    pub(super) ring: Client,
    pub(super) memory: std::fs::File,
    pub(super) waker: OwnedFd,
}

impl Program {
    pub(super) fn push_bytes(&self, level: AckLevel, crc: u32, bytes: &[u8]) -> u64 {
        let trailer = RingAppendTrailer { level, payload_crc: crc }.encode();
        self.ring.push(&[bytes, &trailer], 1).expect("room")
    }

    pub(super) fn push(&self, level: AckLevel, text: &str) -> u64 {
        let payload = payload(text);
        self.push_bytes(level, payload.checksum(), &payload.bytes)
    }

    /// Reserves the next slot, as a writer does that stops before it commits.
    pub(super) fn reserve(&self) {
        const HEAD: u64 = 64; // `shm/src/layout/`
        let mut head = [0; 8];
        self.memory.read_exact_at(&mut head, HEAD).expect("a head");
        let reserved = u64::from_le_bytes(head) + (1 << 32 | 4);
        self.memory.write_all_at(&reserved.to_le_bytes(), HEAD).expect("writable");
    }

    /// An append that is refused for good.
    pub(super) fn push_bad(&self, level: AckLevel) -> u64 {
        let bytes = b"no records";
        self.push_bytes(level, checksum::plain(bytes), bytes)
    }

    /// Changes a byte of what was pushed, as a program that scribbles does.
    pub(super) fn scribble(&self, text: &str) {
        let mut bytes = Vec::new();
        (&self.memory).read_to_end(&mut bytes).expect("memory");
        let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).expect("it was pushed");
        self.memory.write_at(b"?", at as u64).expect("writable");
    }

    pub(super) fn code(&self, append: u64) -> Option<u32> {
        self.ring.answer(append).map(|answer| answer.code)
    }
}

pub(super) struct Harness {
    pub(super) dir: tempfile::TempDir,
    pub(super) journal: Arc<Journal>,
    pub(super) shared: Arc<Shared>,
    pub(super) drainage: Drainage,
}

impl Harness {
    pub(super) fn new(max_producers: usize) -> Self {
        Self::of(max_producers, 1 << 20)
    }

    /// Harness whose log takes appends of so many bytes.
    pub(super) fn of(max_producers: usize, max_append_bytes: u32) -> Self {
        Self::on(tempfile::tempdir().expect("a folder"), max_producers, max_append_bytes)
    }

    /// On the log of another one, which has ended.
    pub(super) fn on(dir: tempfile::TempDir, max_producers: usize, max_append_bytes: u32) -> Self {
        Self::with(Bells::for_test(), dir, max_producers, max_append_bytes)
    }

    /// Whose doorbells are heard by these threads.
    pub(super) fn of_reactor(reactor: &Reactor) -> Self {
        Self::with(reactor.bells(), tempfile::tempdir().expect("a folder"), 64, 1 << 20)
    }

    fn with(bells: Bells, dir: tempfile::TempDir, max_producers: usize, max_append_bytes: u32) -> Self {
        let config = JournalConfig {
            segment_bytes: 4 << 20,
            max_append_bytes,
            reserve_free: 0,
            max_producers,
            ..JournalConfig::default()
        };
        let journal = Journal::open_dir(dir.path(), config, Arc::new(|_| {}));
        let journal = Arc::new(journal.expect("a log"));
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
        let shared = Arc::new(Shared {
            settings: Settings { bytes: 1 << 20, max_rings: 16 },
            journal: journal.clone(),
            admission: std::sync::Mutex::new(Arc::new(admission)),
            fd_store: FdStore::for_test(64),
            registry: RingRegistry::default(),
            orders: std::sync::Mutex::new(Some(Vec::new())),
            ordered: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            bells: RingBells::new(bells),
            sign: std::sync::Mutex::default(),
            stalled: std::sync::Mutex::default(),
            retrying: std::sync::Mutex::default(),
        });
        let drainage = Drainage::new(shared.clone(), Vec::new());
        Self { dir, journal, shared, drainage }
    }

    /// Ends it, and leaves its log.
    pub(super) fn into_dir(self) -> tempfile::TempDir {
        self.dir
    }

    /// A program with a ring that is drained.
    pub(super) fn program(&mut self, name: u8) -> Program {
        self.program_of(UID, name)
    }

    pub(super) fn program_of(&mut self, uid: u32, name: u8) -> Program {
        let (program, ring) = self.ring_of(uid, name);
        self.add(ring);
        program
    }

    /// Gives a ring to the drain.
    pub(super) fn add(&mut self, ring: Ring) {
        let (done, _) = oneshot::channel();
        self.shared.order(Order::Add(Box::new(ring), done));
        self.drainage.turn();
    }

    /// A program and its ring.
    pub(super) fn ring(&self, name: u8) -> (Program, Ring) {
        self.ring_of(UID, name)
    }

    pub(super) fn ring_of(&self, uid: u32, name: u8) -> (Program, Ring) {
        let id = RingId::from_bytes([name; 16]);
        let producer = ProducerId::from_bytes([name; 16]);
        let note = Note { id, producer, uid, pid: std::process::id(), pid_start: 1, ..Note::default() };
        let log_id = self.journal.meta().log_id;
        let drain = Drain::create(shape(1 << 20).expect("a shape"), 0, log_id, self.journal.watermarks().epoch);
        let drain = drain.expect("a ring");
        let fds = drain.client_fds();
        let [ring, completion_page, waker]: [OwnedFd; 3] =
            [fds.ring, fds.completion_page, fds.waker].map(|fd| duplicate(fd).expect("a descriptor"));
        let client =
            Client::attach(&ring, &completion_page, waker.try_clone().expect("a descriptor")).expect("attached");
        let memory = ring.into();
        let registered = registered_ring(note, &drain).expect("memory");
        registered.set_stored();
        self.shared.registry.register_adopted(registered.clone());
        let session = Producer::begin(self.journal.clone(), producer, uid.into(), 0, Owner::Uid(uid)).expect("its own");
        let doorbell = self.shared.bells.doorbell(drain.waker()).expect("it can be watched");
        let ring = Ring::new(registered, drain, self.shared.admission(), peer_of(&note), session, (doorbell, None));
        (Program { id, producer, ring: client, memory, waker }, ring)
    }

    /// Another producer that appends, over a socket.
    pub(super) fn append(&self, producer: u8) {
        let payload = payload("by a socket");
        let append = Append {
            producer: [producer; 16],
            owner: UID.into(),
            producer_epoch: 0,
            first_sequence: 0,
            count: 1,
            gap: false,
            level: Level::Written,
            min_time_ns: 1,
            max_time_ns: 1,
            peer_meta: b"",
            payload: &payload.bytes,
            payload_checksum: payload.checksum(),
            permit: None,
        };
        append.submit(&self.journal).expect("taken");
    }

    /// Turns the drain until something is so.
    pub(super) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !done(self) {
            assert!(Instant::now() < end, "{what}: it never was so");
            self.drainage.turn();
            std::thread::yield_now();
        }
    }

    /// Asks as a connection does that has a FLUSH, and turns the drain until it is notified.
    pub(super) fn is_drained(&mut self, id: RingId) -> bool {
        let mut reply = self.asks(id);
        let mut answer = None;
        self.until("drained", |_| {
            answer = reply.try_recv().ok();
            answer.is_some()
        });
        answer.expect("it was answered").is_ok()
    }

    pub(super) fn asks(&self, id: RingId) -> oneshot::Receiver<Result<(), ErrorInfo>> {
        let (done, reply) = oneshot::channel();
        let upto = self.registered(id).map_or(0, |ring| ring.head());
        self.shared.order(Order::Reach(Reach { id, upto, done }));
        reply
    }

    pub(super) fn registered(&self, id: RingId) -> Option<Arc<RegisteredRing>> {
        self.shared.registry.all().into_iter().find(|ring| ring.note.id == id)
    }

    /// Returns true if something lies in the ring that was not handed over.
    pub(super) fn is_behind(&self, id: RingId) -> bool {
        self.registered(id).is_some_and(|ring| ring.is_behind())
    }

    /// The bodies of what is written, by producer, in the order of the log.
    pub(super) fn stored(&self, producer: ProducerId) -> Vec<String> {
        let all = self.log().into_iter().filter(|(of, _)| *of == producer);
        all.map(|(_, text)| text).collect()
    }

    /// The bodies of what is written, and their producers.
    pub(super) fn log(&self) -> Vec<(ProducerId, String)> {
        let mut reader = self.journal.reader(0, Level::Written);
        let mut all = Vec::new();
        while let Some(batch) = reader.next_batch().expect("readable") {
            for chunk in batch.chunks().map(|chunk| chunk.expect("whole").1) {
                let producer = ProducerId::from_bytes(chunk.header.producer);
                let view = PayloadView::parse(chunk.payload, chunk.header.count).expect("a payload");
                let texts = view.records().map(|r| r.body_bytes().expect("text").to_vec());
                all.extend(texts.map(|text| (producer, String::from_utf8(text).expect("text"))));
            }
        }
        all
    }

    pub(super) fn all_written(&mut self, program: &Program, append: u64) {
        self.until("written", |_| program.ring.watermarks().written > append);
    }
}
