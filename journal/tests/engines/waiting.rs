//! Threads that append, make the deferred write, and wait: the results that they get, and that the journal's own threads
//! keep the time. (Who writes: `deferred`.)

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clad_journal::io::uring::Ring;
use clad_journal::io::{EngineWish, Storage};
use clad_journal::{
    Accepted, AfterRefusal, Append, AppendError, DeferredWrite, Event, Journal, JournalConfig, Level, Wants,
    WriteBuffer,
};

use super::TEST_TIMEOUT;
use super::journal::{World, config};

/// Why an append that was waited for has not reached its level.
#[derive(Debug, PartialEq)]
pub(crate) enum NotReached {
    Refused(AppendError),
    Failed,
    Closed,
}

/// Appends, and leaves the write to the caller.
pub(crate) fn append_deferred(
    journal: &Journal,
    append: Append<'_>,
) -> (Result<Accepted, AppendError>, Option<DeferredWrite>) {
    let (from, item, permit) = append.split();
    let mut answer = None;
    let runs = [(&from, &[item][..])];
    let outcome = journal.append(runs, AfterRefusal::Judge, permit, journal.now(), |a| answer = Some(a));
    (answer.expect("an answer"), outcome.deferred_write)
}

/// Appends one thing after the other, as a thread of the daemon does: it makes the deferred write, and waits.
pub(crate) struct Waiting<'a> {
    journal: &'a Journal,
    buffer: WriteBuffer,
    runtime: tokio::runtime::Runtime,
}

impl<'a> Waiting<'a> {
    pub(crate) fn on(journal: &'a Journal) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Self { journal, buffer: WriteBuffer::default(), runtime }
    }

    pub(crate) fn append(&mut self, append: Append<'_>) -> Result<Accepted, NotReached> {
        let level = append.level;
        let (taken, mut deferred) = append_deferred(self.journal, append);
        let accepted = taken.map_err(NotReached::Refused)?;
        while let Some(due) = deferred {
            deferred = due.write(&mut self.buffer);
        }
        let end = accepted.first_offset + u64::from(accepted.count);
        let mut watcher = self.journal.watcher();
        loop {
            let watermarks = watcher.now();
            if watermarks.failures > accepted.failures {
                return Err(NotReached::Failed);
            }
            if watermarks.of(level) >= end {
                return Ok(accepted);
            }
            let (written, durable) = if level == Level::Written { (end, u64::MAX) } else { (u64::MAX, end) };
            let waited = self.runtime.block_on(watcher.reached(Wants { written, durable }));
            if waited.is_err() && watcher.now().of(level) < end {
                return Err(NotReached::Closed);
            }
        }
    }
}

const ENGINES: [EngineWish; 2] = [EngineWish::Blocking, EngineWish::Uring];

pub(crate) fn append<'a>(producer: u8, sequence: u64, level: Level, payload: &'a [u8]) -> Append<'a> {
    Append {
        producer: [producer; 16],
        owner: 1,
        producer_epoch: 1,
        first_sequence: sequence,
        count: 1,
        gap: false,
        level,
        min_time_ns: 1,
        max_time_ns: 1,
        peer_meta: &[],
        payload,
        payload_checksum: clad_journal::format::checksum::plain(payload),
        permit: None,
    }
}

pub(crate) fn payload(producer: u8, sequence: u64) -> Vec<u8> {
    let bytes = 20 + (sequence * 37 + u64::from(producer)) % 700;
    (0..bytes).map(|i| (i as u8).wrapping_mul(3) ^ producer ^ sequence as u8).collect()
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what} never came");
        thread::sleep(Duration::from_micros(500));
    }
}

/// Every append of every producer, once, in its order; with the offsets of its receipts.
pub(crate) fn check(journal: &Journal, producers: u8, offsets: &[Vec<u64>]) {
    let mut next = vec![0; usize::from(producers)];
    let mut reader = journal.reader(0, Level::Durable);
    while let Some(batch) = reader.next_batch().unwrap() {
        for chunk in batch.chunks() {
            let (offset, chunk) = chunk.unwrap();
            let (producer, sequence) = (chunk.header.producer[0], chunk.header.first_sequence);
            let expected = &offsets[usize::from(producer)];
            assert_eq!(sequence, next[usize::from(producer)], "producer {producer}");
            assert_eq!(expected[sequence as usize], offset, "append {sequence} of {producer}");
            assert!(chunk.payload == payload(producer, sequence), "append {sequence} of {producer}");
            next[usize::from(producer)] += 1;
        }
    }
    for (next, expected) in next.iter().zip(offsets) {
        assert_eq!(*next, expected.len() as u64);
    }
}

#[test]
fn many_threads_at_every_level_over_rotations() {
    const THREADS: u8 = 12;
    for wish in ENGINES {
        let world = World::new(wish);
        let rotate = |sequence: u64, producer: u8| {
            // By command as well, in the middle of everything.
            if sequence == 100 && producer < 3 {
                drop(world.journal.rotate());
            }
        };
        let offsets: Vec<Vec<u64>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|producer| {
                    let (journal, rotate) = (&world.journal, &rotate);
                    scope.spawn(move || {
                        let mut appender = Waiting::on(journal);
                        let levels = [Level::Durable, Level::Written, Level::Durable, Level::Received];
                        (0..300)
                            .map(|sequence| {
                                let (level, payload) = (levels[(sequence % 4) as usize], payload(producer, sequence));
                                let accepted = appender.append(append(producer, sequence, level, &payload)).unwrap();
                                assert!(journal.watermarks().of(level) > accepted.first_offset);
                                rotate(sequence, producer);
                                accepted.first_offset
                            })
                            .collect()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        world.until("durable", |w| w.journal.watermarks().durable == u64::from(THREADS) * 300);
        assert!(world.count(|e| matches!(e, Event::Sealed { .. })) > 0, "{wish:?}: nothing was rotated");
        check(&world.journal, THREADS, &offsets);
        // What is there already is answered with its place, at its level.
        let payload = payload(5, 298);
        let again = Waiting::on(&world.journal).append(append(5, 298, Level::Durable, &payload)).unwrap();
        assert!(again.duplicate && again.first_offset == offsets[5][298], "{wish:?}");
        assert!(world.journal.close(TEST_TIMEOUT), "{wish:?}");
    }
}

/// While one thread is in a slow write, the batch behind it is due for a write of its own after `max_delay`: somebody
/// has kept the time, though the one that is next to wake by itself would do so in an hour.
#[test]
fn a_slow_write_holds_up_nobody_else() {
    let rotate_after = Duration::from_secs(3600);
    let world = World::with(EngineWish::Blocking, JournalConfig { rotate_after, ..config() });
    let alone = payload(0, 0);
    world.until("the next segment", |w| w.journal.status().prepared);
    Waiting::on(&world.journal).append(append(0, 0, Level::Durable, &alone)).unwrap();
    wait_commit_marker(&world, 2);
    world.writes.hold_one();
    let written = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let slow = payload(0, 1);
            Waiting::on(&world.journal).append(append(0, 1, Level::Durable, &slow)).unwrap();
        });
        until("the slow write", || world.writes.are_held() == 1);
        let before = world.writes.by.lock().unwrap().len();
        scope.spawn(|| {
            let beside = payload(1, 0);
            let accepted = Waiting::on(&world.journal).append(append(1, 0, Level::Durable, &beside)).unwrap();
            written.store(accepted.first_offset, Ordering::SeqCst);
        });
        until("a write beside it", || world.writes.by.lock().unwrap().len() > before);
        assert_eq!(world.writes.are_held(), 1, "the slow one is still under way");
        // `durable` is in the order of offsets: it waits for the slow one.
        assert_eq!(written.load(Ordering::SeqCst), 0);
        world.writes.release();
    });
    assert_eq!(written.load(Ordering::SeqCst), 2);
    assert!(world.journal.close(TEST_TIMEOUT));
}

/// Waits until so many writes were made, the last of them a commit marker, by any thread.
fn wait_commit_marker(world: &World, writes: u64) {
    let by_ring = || world.storage.ring().map_or(0, Ring::begun);
    until("the commit marker", || world.writes.by.lock().unwrap().len() as u64 + by_ring() == writes);
}

/// An idle log gets a commit marker, though none of the journal's own threads has written, and all slept for good.
#[test]
fn an_idle_log_writes_a_commit_marker() {
    for wish in ENGINES {
        let world = World::new(wish);
        world.until("the next segment", |w| w.journal.status().prepared);
        for sequence in 0..6 {
            let payload = payload(0, sequence);
            Waiting::on(&world.journal).append(append(0, sequence, Level::Durable, &payload)).unwrap();
            wait_commit_marker(&world, 2 * sequence + 2);
        }
        assert!(world.journal.close(TEST_TIMEOUT), "{wish:?}");
    }
}

#[test]
fn a_failure_is_reported_as_maybe_stored_and_the_next_append_works() {
    for wish in ENGINES {
        let world = World::new(wish);
        let payloads: Vec<Vec<u8>> = (0..2).map(|sequence| payload(0, sequence)).collect();
        let mut appender = Waiting::on(&world.journal);
        world.until("the next segment", |w| w.journal.status().prepared);
        appender.append(append(0, 0, Level::Durable, &payloads[0])).unwrap();
        wait_commit_marker(&world, 2); // from here on nobody would wake by himself
        world.broken.store(true, Ordering::SeqCst);
        let failed = appender.append(append(0, 1, Level::Durable, &payloads[1]));
        assert_eq!(failed.unwrap_err(), NotReached::Failed, "{wish:?}");
        let refused = appender.append(append(0, 2, Level::Durable, b"x"));
        assert!(matches!(refused, Err(NotReached::Refused(AppendError::Failed { .. }))), "{wish:?}: {refused:?}");
        world.broken.store(false, Ordering::SeqCst);
        world.until("the recovery", |w| w.count(|e| matches!(e, Event::Recovered { .. })) == 1);
        // Whether it was stored or not: sent again, it is, once.
        let mut again = None;
        until("the same append again", || {
            again = appender.append(append(0, 1, Level::Durable, &payloads[1])).ok();
            again.is_some()
        });
        check(&world.journal, 1, &[vec![0, again.unwrap().first_offset]]);
        drop(appender);
        assert!(world.journal.close(TEST_TIMEOUT), "{wish:?}");
    }
}

#[test]
fn the_end_is_reported_to_who_waits_and_waits_for_who_writes() {
    for wish in ENGINES {
        let world = World::new(wish);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4u8)
                .map(|producer| {
                    let journal = &world.journal;
                    scope.spawn(move || {
                        let mut appender = Waiting::on(journal);
                        (0u64..)
                            .find_map(|sequence| {
                                let payload = payload(producer, sequence);
                                appender.append(append(producer, sequence, Level::Durable, &payload)).err()
                            })
                            .unwrap()
                    })
                })
                .collect();
            world.until("some appends", |w| w.journal.watermarks().durable > 200);
            assert!(world.journal.close(TEST_TIMEOUT), "{wish:?}: a clean end");
            for thread in threads {
                let why = thread.join().unwrap();
                assert!(matches!(why, NotReached::Refused(AppendError::Closing)), "{wish:?}: {why:?}");
            }
        });
        let watermarks = world.journal.watermarks();
        assert_eq!(
            (watermarks.durable, watermarks.written),
            (watermarks.received, watermarks.received),
            "{wish:?}: nothing was dropped"
        );
    }
}

/// An abandoned end is reported as well, though the disk never answered.
#[test]
fn an_abandoned_close_is_reported_to_who_waits() {
    let world = World::new(EngineWish::Blocking);
    world.until("the next segment", |w| w.journal.status().prepared);
    Waiting::on(&world.journal).append(append(0, 0, Level::Durable, &payload(0, 0))).unwrap();
    wait_commit_marker(&world, 2);
    world.writes.hold_one();
    thread::scope(|scope| {
        let held = scope.spawn(|| Waiting::on(&world.journal).append(append(0, 1, Level::Durable, &payload(0, 1))));
        until("the held write", || world.writes.are_held() == 1);
        let beside = scope.spawn(|| Waiting::on(&world.journal).append(append(1, 0, Level::Durable, &payload(1, 0))));
        until("one behind it", || world.journal.watermarks().received == 3);
        assert!(!world.journal.close(Duration::ZERO), "it cannot end cleanly");
        assert_eq!(beside.join().unwrap(), Err(NotReached::Closed));
        world.writes.release();
        assert_eq!(held.join().unwrap(), Err(NotReached::Closed));
    });
}
