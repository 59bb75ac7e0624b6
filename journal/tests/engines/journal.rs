//! The journal over both engines: the same log, also when a write fails and the journal recovers in the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clad_journal::clock::SystemClock;
use clad_journal::format::meta::{Meta, SLOT};
use clad_journal::io::uring::Ring;
use clad_journal::io::{EngineWish, OsStorage, Storage};
use clad_journal::{Accepting, Append, AppendError, Event, Journal, JournalConfig, Level, Policy};

use super::breakable::{Breakable, Writes};
use super::{TEST_TIMEOUT, folder, open};

pub(crate) struct World {
    pub(crate) journal: Journal,
    pub(crate) events: Arc<Mutex<Vec<Event>>>,
    pub(crate) broken: Arc<AtomicBool>,
    full: Arc<AtomicBool>,
    pub(crate) writes: Arc<Writes>,
    /// Zeroes of a segment that is prepared.
    pub(crate) zeroes: Arc<Writes>,
    pub(crate) storage: Arc<OsStorage>,
    /// Held, the thread that reports a failure waits.
    observer_gate: Arc<Mutex<()>>,
    next: u64,
    pub(crate) dir: tempfile::TempDir,
}

pub(crate) fn config() -> JournalConfig {
    let policy = Policy::GroupCommit { max_delay: Duration::from_millis(1), max_bytes: 128 << 10, in_flight: 4 };
    JournalConfig {
        policy,
        segment_bytes: 4 << 20,
        max_append_bytes: 128 << 10,
        reserve_free: 0,
        ..JournalConfig::default()
    }
}

impl World {
    pub(crate) fn new(wish: EngineWish) -> Self {
        Self::with(wish, config())
    }

    /// With other settings; `config` has the usual ones.
    pub(crate) fn with(wish: EngineWish, config: JournalConfig) -> Self {
        let dir = folder();
        let (storage, _) = open(dir.path(), wish, 4);
        let broken = Arc::new(AtomicBool::new(false));
        let full = Arc::new(AtomicBool::new(false));
        let writes = Arc::new(Writes::default());
        let zeroes = Arc::new(Writes::default());
        let breakable = Breakable {
            inner: storage.clone(),
            broken: broken.clone(),
            full: full.clone(),
            writes: writes.clone(),
            zeroes: zeroes.clone(),
        };
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = events.clone();
        let observer_gate = Arc::new(Mutex::new(()));
        let gate = observer_gate.clone();
        let observer = Arc::new(move |e: &Event| {
            seen.lock().unwrap().push(e.clone());
            if matches!(e, Event::Failed { .. }) {
                drop(gate.lock().unwrap());
            }
        });
        let clock = SystemClock::shared();
        let journal = Journal::open(Arc::new(breakable), "test", clock, config, observer).unwrap();
        Self { journal, events, broken, full, writes, zeroes, storage, observer_gate, next: 0, dir }
    }

    /// One append; `false` where the journal does not take any.
    fn append(&mut self, bytes: usize) -> bool {
        let payload = payload(self.next, bytes);
        let append = Append {
            producer: [9; 16],
            owner: 1,
            producer_epoch: 1,
            first_sequence: self.next,
            count: 1,
            gap: false,
            level: Level::Durable,
            min_time_ns: 1,
            max_time_ns: 1,
            peer_meta: &[],
            payload: &payload,
            payload_checksum: clad_journal::format::checksum::plain(&payload),
            permit: None,
        };
        match append.submit(&self.journal) {
            Ok(_) => {
                self.next += 1;
                true
            }
            Err(AppendError::Failed { .. } | AppendError::NoSpace | AppendError::NoSegment { .. }) => false,
            Err(e) => panic!("{e}"),
        }
    }

    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < TEST_TIMEOUT, "{what} never came: {:?}", self.journal.status());
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    fn until_durable(&self) {
        self.until("durable", |w| w.journal.watermarks().durable >= w.journal.watermarks().received);
    }

    /// So much at once that several writes are worth being in flight.
    fn busy_appends(&mut self) {
        for _ in 0..60 {
            if !self.append(20_000) {
                break;
            }
        }
    }

    pub(crate) fn count(&self, which: impl Fn(&Event) -> bool) -> usize {
        self.events.lock().unwrap().iter().filter(|e| which(e)).count()
    }

    /// Every payload that was taken, once, in order.
    fn check(&self) {
        let mut reader = self.journal.reader(0, Level::Durable);
        let mut sequence = 0;
        while let Some(batch) = reader.next_batch().unwrap() {
            for chunk in batch.chunks() {
                let (offset, chunk) = chunk.unwrap();
                assert_eq!((offset, chunk.header.first_sequence), (sequence, sequence));
                assert!(chunk.payload == payload(sequence, chunk.payload.len()), "record {sequence}");
                sequence += 1;
            }
        }
        assert_eq!(sequence, self.next);
    }
}

fn payload(sequence: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i as u64 * 7 + sequence) as u8).collect()
}

#[test]
fn a_single_append_is_written_inline_and_many_are_written_concurrently() {
    for wish in [EngineWish::Blocking, EngineWish::Uring] {
        let mut world = World::new(wish);
        // A log that is idle for 100 ms gets a commit marker; a thread that is not run for as long finds it under way.
        let counts = |w: &World| (w.journal.status().inline_batches, w.storage.ring().map_or(0, Ring::begun));
        let row = |world: &mut World| {
            let (before, mut longest, mut looked) = (counts(world), Duration::ZERO, Instant::now());
            let mut look = || longest = longest.max(std::mem::replace(&mut looked, Instant::now()).elapsed());
            for _ in 0..10 {
                assert!(world.append(100));
                world.until("durable", |w| {
                    look();
                    w.journal.watermarks().durable >= w.journal.watermarks().received
                });
            }
            look();
            let after = counts(world);
            (longest, after.0 - before.0, after.1 - before.1)
        };
        let mut rows = (0..50).map(|_| row(&mut world));
        let found = rows.find(|(longest, ..)| *longest < Duration::from_millis(50));
        let (_, inline, begun) = found.expect("ten appends, one behind the other");
        assert_eq!(inline, 10, "{wish:?}: each was alone");
        assert_eq!(begun, 0, "{wish:?}: nothing of it went to the ring");
        // A disk may be quicker than what fills it; not always.
        for round in 0..100 {
            world.busy_appends();
            world.until_durable();
            let several = world.storage.ring().is_none_or(|ring| ring.most_in_flight() >= 2);
            if round >= 4 && several && world.count(|e| matches!(e, Event::Batch { inline: false, .. })) > 0 {
                break;
            }
        }
        // An idle log gets a commit marker meanwhile, perhaps.
        let inline = |w: &World| w.count(|e| matches!(e, Event::Batch { inline: true, .. }));
        world.until("the status has all that was counted", |w| w.journal.status().inline_batches == inline(w) as u64);
        let batches = world.count(|e| matches!(e, Event::Batch { .. }));
        let inline = inline(&world);
        assert!(inline < batches, "{wish:?}: {inline} of {batches} inline");
        if let Some(ring) = world.storage.ring() {
            assert!(ring.begun() >= (batches - inline) as u64, "what was not inline went through the ring");
            assert!(ring.most_in_flight() >= 2, "several in flight");
        }
        world.check();
        assert!(world.journal.close(TEST_TIMEOUT), "{wish:?}");
    }
}

/// What the file system says of its room is not believed while it refuses files: nothing gets an offset that no segment can
/// hold, however often it is tried and whatever is ordered.
#[test]
fn what_has_an_offset_has_a_segment_where_the_disk_only_says_that_it_has_room() {
    for ordered in [false, true] {
        let mut world = World::with(EngineWish::Blocking, JournalConfig { segment_bytes: 1 << 20, ..config() });
        world.busy_appends();
        world.until_durable();
        world.full.store(true, Ordering::SeqCst);
        let (began, mut taken) = (Instant::now(), 0);
        // Until the segments that are there are full, and a further one was refused.
        while world.append(100_000) || world.journal.status().unopened.is_none() {
            taken += 1;
            if ordered && taken == 3 {
                drop(world.journal.rotate());
            }
            assert!(began.elapsed() < TEST_TIMEOUT, "{:?}", world.journal.status());
            std::thread::sleep(Duration::from_millis(5));
        }
        // For some looks at the disk, which come each 200 ms.
        let refused = Instant::now();
        while refused.elapsed() < Duration::from_secs(1) {
            assert!(!world.append(100_000), "there is no room");
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = world.journal.status();
        assert!(status.unopened.as_ref().is_some_and(|why| why.contains("quota")), "{:?}", status.unopened);
        world.until_durable();
        world.full.store(false, Ordering::SeqCst);
        world.until("room", |w| w.journal.status().unopened.is_none());
        assert!(world.append(100_000));
        world.until_durable();
        world.check();
        assert!(world.journal.close(TEST_TIMEOUT));
    }
}

/// A bad place in what the file system gives for the next segment each time: the log goes on in one without zeroes.
#[test]
fn a_segment_whose_zeroes_cannot_be_written_is_one_all_the_same() {
    let mut world = World::with(EngineWish::Blocking, JournalConfig { segment_bytes: 1 << 20, ..config() });
    world.zeroes.fail.store(true, Ordering::SeqCst);
    for _ in 0..40 {
        world.until("room", |w| w.journal.watermarks().accepting == Accepting::Yes);
        assert!(world.append(100_000), "{:?}", world.journal.status());
        world.until_durable();
    }
    assert!(world.count(|e| matches!(e, Event::Sealed { .. })) >= 3, "four segments were filled");
    assert!(!world.zeroes.by.lock().unwrap().is_empty(), "it was tried with zeroes");
    world.check();
    assert!(world.journal.close(TEST_TIMEOUT));
}

/// The thread that met the failure may be slower than the one that recovers: it does not say again what is over.
#[test]
fn a_failure_that_is_over_is_not_latched_any_more() {
    let mut world = World::new(EngineWish::Blocking);
    let observer_gate = world.observer_gate.clone();
    let held = observer_gate.lock().unwrap();
    world.broken.store(true, Ordering::SeqCst);
    world.append(100);
    world.until("the failure", |w| w.count(|e| matches!(e, Event::Failed { .. })) == 1);
    world.broken.store(false, Ordering::SeqCst);
    world.until("the recovery", |w| w.count(|e| matches!(e, Event::Recovered { .. })) == 1);
    world.until("health", |w| w.journal.status().failure.is_none());
    drop(held);
    assert!(world.journal.close(TEST_TIMEOUT));
    let World { journal, dir, .. } = world;
    drop(journal); // and its threads
    let bytes = std::fs::read(dir.path().join("clad.meta")).unwrap();
    for slot in bytes.chunks(SLOT) {
        let meta = Meta::decode(slot).expect("both slots hold");
        assert!(!meta.latched, "{meta:?}");
    }
}

#[test]
fn a_failed_write_latches_and_the_journal_recovers_in_the_process() {
    for wish in [EngineWish::Blocking, EngineWish::Uring] {
        for alone in [true, false] {
            let mut world = World::new(wish);
            world.busy_appends();
            world.until_durable();
            world.broken.store(true, Ordering::SeqCst);
            let before = world.journal.watermarks();
            let ring_before = world.storage.ring().map_or(0, Ring::begun);
            if alone {
                world.append(100);
            } else {
                // Worth a write of its own at once: the ring's, where there is one.
                world.append(100_000);
            }
            world.until("the failure", |w| w.count(|e| matches!(e, Event::Failed { .. })) == 1);
            assert!(world.journal.status().failure.is_some());
            assert_eq!(world.journal.watermarks().durable, before.durable, "{wish:?}: nothing is released");
            if let (Some(ring), false) = (world.storage.ring(), alone) {
                assert!(ring.begun() > ring_before, "the failure went through the ring");
            }
            world.broken.store(false, Ordering::SeqCst);
            world.until("the recovery", |w| w.count(|e| matches!(e, Event::Recovered { .. })) == 1);
            world.until("health", |w| w.journal.status().failure.is_none());
            world.until("an append", |w| w.journal.watermarks().accepting == Accepting::Yes);
            world.busy_appends();
            world.until_durable();
            world.check();
            assert!(world.journal.close(TEST_TIMEOUT), "{wish:?}");
        }
    }
}

#[test]
fn both_engines_rotate_and_close_under_load() {
    for wish in [EngineWish::Blocking, EngineWish::Uring] {
        let mut world = World::new(wish);
        for _ in 0..12 {
            world.busy_appends();
            let answer = world.journal.rotate();
            world.busy_appends();
            answer.blocking_recv().unwrap().unwrap();
        }
        world.until_durable();
        // A rotation is answered when the next segment is in use; the one before may still be about to be sealed.
        world.until("every seal", |w| w.count(|e| matches!(e, Event::Sealed { .. })) >= 12);
        world.check();
        world.busy_appends();
        assert!(world.journal.close(TEST_TIMEOUT), "{wish:?}: what was taken is drained");
        assert_eq!(world.journal.watermarks().durable, world.next, "{wish:?}");
    }
}
