//! Deferred writes: who makes them, and that no append is forgotten.

use std::sync::atomic::Ordering;
use std::thread;

use clad_journal::io::EngineWish;
use clad_journal::{Accepted, DeferredWrite, Level, WriteBuffer};

use super::TEST_TIMEOUT;
use super::journal::World;
use super::waiting::{append, append_deferred, check, payload, until};

const ENGINES: [EngineWish; 2] = [EngineWish::Blocking, EngineWish::Uring];

fn deferring(world: &World, producer: u8, sequence: u64, payload: &[u8]) -> (Accepted, Option<DeferredWrite>) {
    let (taken, deferred) = append_deferred(&world.journal, append(producer, sequence, Level::Durable, payload));
    (taken.unwrap(), deferred)
}

fn durable(world: &World) -> u64 {
    world.journal.watermarks().durable
}

#[test]
fn who_holds_a_deferred_write_makes_it() {
    for wish in ENGINES {
        let world = World::new(wish);
        world.until("the next segment", |w| w.journal.status().prepared);
        let begun = || world.writes.by.lock().unwrap().clone();
        let (mut buffer, mut first, mut second) = (WriteBuffer::default(), Vec::new(), Vec::new());
        // A thread of the journal that is awake for something else may come first, now and then; one writes a commit marker
        // if the log was idle while this thread was not run, perhaps. Those rows are not counted.
        let (mut here, mut sequence) = (0, 0);
        while here < 10 {
            assert!(sequence < 200, "{wish:?}: {here} of {sequence} were written here alone");
            let before = begun().len();
            let (accepted, deferred) = deferring(&world, 0, sequence, &payload(0, sequence));
            let seen = durable(&world);
            let (behind, more) = deferring(&world, 1, sequence, &payload(1, sequence));
            if begun().len() == before {
                assert_eq!(seen, 2 * sequence, "{wish:?}: not before it is written");
                // What comes meanwhile goes along, and nobody is wanted for it: it was called for already.
                assert!(more.is_none(), "{wish:?}");
            }
            first.push(accepted.first_offset);
            second.push(behind.first_offset);
            for deferred in deferred.into_iter().chain(more) {
                drop(deferred.write(&mut buffer));
            }
            world.until("it is durable", |w| durable(w) == w.journal.watermarks().received);
            here += usize::from(begun()[before..] == [thread::current().id()]);
            sequence += 1;
        }
        assert!(world.journal.status().inline_batches >= here as u64, "{wish:?}");
        check(&world.journal, 2, &[first, second]);
        assert!(world.journal.close(TEST_TIMEOUT), "{wish:?}");
    }
}

#[test]
fn a_dropped_deferred_write_is_made_by_the_journals_threads() {
    for wish in ENGINES {
        let world = World::new(wish);
        world.until("the next segment", |w| w.journal.status().prepared);
        for sequence in 0..20 {
            drop(deferring(&world, 0, sequence, &payload(0, sequence)).1);
            world.until("it is durable", |w| durable(w) == sequence + 1);
        }
        let by = world.writes.by.lock().unwrap().clone();
        assert!(by.iter().all(|thread| *thread != thread::current().id()), "{wish:?}");
        assert!(world.journal.close(TEST_TIMEOUT), "{wish:?}");
    }
}

#[test]
fn a_write_that_is_worth_a_thread_is_not_deferred() {
    let world = World::new(EngineWish::Blocking);
    let large = vec![7; 40 << 10];
    let (_, deferred) = deferring(&world, 0, 0, &large);
    assert!(deferred.is_none());
    world.until("it is durable", |w| durable(w) == 1);
    assert!(world.journal.close(TEST_TIMEOUT));
}

/// While one thread is in a slow write, the batch behind it is deferred to nobody, and written beside it all the same.
#[test]
fn a_slow_deferred_write_holds_up_nobody_else() {
    let world = World::new(EngineWish::Blocking);
    world.until("the next segment", |w| w.journal.status().prepared);
    world.writes.hold_one();
    thread::scope(|scope| {
        let (_, deferred) = deferring(&world, 0, 0, &payload(0, 0));
        scope.spawn(move || assert!(deferred.unwrap().write(&mut WriteBuffer::default()).is_none()));
        until("the slow write", || world.writes.are_held() == 1);
        let before = world.writes.by.lock().unwrap().len();
        assert!(deferring(&world, 1, 0, &payload(1, 0)).1.is_none(), "something is under way");
        until("a write beside it", || world.writes.by.lock().unwrap().len() > before);
        assert_eq!((world.writes.are_held(), durable(&world)), (1, 0), "the slow one is still under way");
        world.writes.release();
    });
    world.until("both", |w| durable(w) == 2);
    assert!(world.journal.close(TEST_TIMEOUT));
}

/// The batch that grew during the write is deferred again, one job at a time.
#[test]
fn what_came_meanwhile_is_deferred_again() {
    let world = World::new(EngineWish::Blocking);
    world.until("the next segment", |w| w.journal.status().prepared);
    world.writes.hold_one();
    thread::scope(|scope| {
        let (_, deferred) = deferring(&world, 0, 0, &payload(0, 0));
        let writer = scope.spawn(move || {
            let mut buffer = WriteBuffer::default();
            let mut deferred = deferred;
            let mut writes = 0;
            while let Some(due) = deferred {
                deferred = due.write(&mut buffer);
                writes += 1;
            }
            writes
        });
        until("the slow write", || world.writes.are_held() == 1);
        assert!(deferring(&world, 1, 0, &payload(1, 0)).1.is_none());
        world.writes.release();
        assert!((1..=2).contains(&writer.join().unwrap()), "the second may have been due before, and made by another");
    });
    world.until("both", |w| durable(w) == 2);
    assert!(world.journal.close(TEST_TIMEOUT));
}

#[test]
fn a_deferred_write_that_fails_latches_and_is_recovered() {
    let world = World::new(EngineWish::Blocking);
    world.until("the next segment", |w| w.journal.status().prepared);
    let (accepted, deferred) = deferring(&world, 0, 0, &payload(0, 0));
    world.broken.store(true, Ordering::SeqCst);
    assert!(deferred.unwrap().write(&mut WriteBuffer::default()).is_none());
    world.until("the failure is published", |w| w.journal.watermarks().failures > accepted.failures);
    world.broken.store(false, Ordering::SeqCst);
    world.until("it recovers", |w| w.journal.watermarks().accepting == clad_journal::Accepting::Yes);
    assert!(world.journal.close(TEST_TIMEOUT));
}
