//! An end on a disk that hangs: it has a deadline, and the folder is nobody else's while a thread is at the disk.

use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use clad_journal::clock::SystemClock;
use clad_journal::io::{Access, EngineWish, Lock, Storage};
use clad_journal::{Closed, Event, Journal, Level, OpenError, Wants};

use super::TEST_TIMEOUT;
use super::breakable::Writes;
use super::journal::{World, config};
use super::open;
use super::waiting::{append, check, payload, until};

const ENGINES: [EngineWish; 2] = [EngineWish::Blocking, EngineWish::Uring];

/// Does what must not wait for a disk that hangs; if it does, the disk goes on and the test fails.
fn without_the_disk<T: Send>(hanging: &Writes, what: &str, act: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let (done, is_done) = mpsc::sync_channel(1);
        scope.spawn(move || done.send(act()));
        is_done.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| {
            hanging.release();
            panic!("{what}: it waits for the disk")
        })
    })
}

fn open_again(dir: &Path) -> Result<Journal, OpenError> {
    let storage = open(dir, EngineWish::Blocking, 4).0;
    Journal::open(storage, "test", SystemClock::shared(), config(), Arc::new(|_: &Event| {}))
}

fn is_locked(dir: &Path) -> bool {
    let lock = open(dir, EngineWish::Blocking, 4).0.open("clad.lock", Access::WriteCached).unwrap();
    !lock.try_lock(Lock::Exclusive).unwrap()
}

/// Waits until the folder is free, and opens it.
fn when_free(dir: &Path) -> Journal {
    let mut journal = None;
    until("a free folder", || match open_again(dir) {
        Ok(opened) => {
            journal = Some(opened);
            true
        }
        Err(OpenError::Locked { .. }) => false,
        Err(e) => panic!("{e}"),
    });
    journal.expect("it was opened")
}

/// Whether the watermarks do not move any more.
fn has_ended(journal: &Journal) -> bool {
    let mut watcher = journal.watcher();
    let never = pin!(watcher.reached(Wants { written: u64::MAX, durable: u64::MAX }));
    never.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(Err(Closed))
}

#[test]
fn a_segment_that_cannot_be_prepared_holds_up_no_end() {
    for wish in ENGINES {
        let world = World::new(wish);
        world.until("the next segment", |w| w.journal.status().prepared);
        world.zeroes.hold_one();
        let body = payload(0, 0);
        let first = append(0, 0, Level::Durable, &body).submit(&world.journal).unwrap().first_offset;
        world.until("durable", |w| w.journal.watermarks().durable == 1);
        world.journal.rotate().blocking_recv().unwrap().unwrap();
        world.until("zeroes at the disk", |w| w.zeroes.are_held() == 1);
        let World { journal, dir, zeroes, events, .. } = world;

        let reader = journal.reader(0, Level::Durable); // which has no part in who has the folder
        journal.begin_close();
        until("all else at its end", || has_ended(&journal));
        let clean = without_the_disk(&zeroes, "close", || journal.close(Duration::from_millis(100)));
        assert!(clean, "{wish:?}: all that counts came to its end");
        let left = |e: &Event| matches!(e, Event::SegmentFailed { reason } if reason.contains("does not answer"));
        assert_eq!(events.lock().unwrap().iter().filter(|e| left(e)).count(), 1, "{wish:?}: it is said");
        assert!(is_locked(dir.path()), "{wish:?}: a thread has yet to remove what it began");
        without_the_disk(&zeroes, "drop", || drop(journal));
        assert!(is_locked(dir.path()), "{wish:?}");

        zeroes.release();
        let journal = when_free(dir.path());
        assert!(journal.report().clean, "{wish:?}");
        check(&journal, 1, &[vec![first]]);
        assert!(journal.close(TEST_TIMEOUT), "{wish:?}");
        drop(reader);
    }
}

#[test]
fn an_abandoned_close_waits_for_no_write() {
    for wish in ENGINES {
        let world = World::new(wish);
        world.until("the next segment", |w| w.journal.status().prepared);
        world.writes.hold_one();
        let body = payload(0, 0);
        let first = append(0, 0, Level::Durable, &body).submit(&world.journal).unwrap().first_offset;
        world.until("a write at the disk", |w| w.writes.are_held() == 1);
        let World { journal, dir, writes, .. } = world;

        assert!(!without_the_disk(&writes, "close", || journal.close(Duration::from_millis(100))), "{wish:?}");
        without_the_disk(&writes, "drop", || drop(journal));
        assert!(is_locked(dir.path()), "{wish:?}: the write is under way");

        writes.release();
        let journal = when_free(dir.path());
        assert!(!journal.report().clean, "{wish:?}");
        // It was never acknowledged, and it reached the disk.
        check(&journal, 1, &[vec![first]]);
        assert!(journal.close(TEST_TIMEOUT), "{wish:?}");
    }
}
