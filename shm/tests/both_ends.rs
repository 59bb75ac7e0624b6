//! Both ends in one process: what goes in comes out, once, in order; space, levels, sleeping, closing.

use std::os::fd::OwnedFd;

use clad_shm::{Answer, Corrupt, Drain, Entry, Level, Peek, Producer, PushError, Shape, Stored, WaitError, clock};

const LOG: [u8; 16] = *b"the log's own id";

fn pair(data: u32, slots: u32) -> (Drain, Producer) {
    let drain = Drain::create(Shape::new(data, slots).expect("a shape"), 1, LOG, 7).expect("a ring");
    let producer = attach(&drain);
    (drain, producer)
}

fn attach(drain: &Drain) -> Producer {
    let fds = drain.client_fds();
    let own = |fd: std::os::fd::BorrowedFd<'_>| -> OwnedFd { fd.try_clone_to_owned().expect("a descriptor") };
    Producer::attach(&own(fds.ring), &own(fds.completion_page), own(fds.waker)).expect("attached")
}

/// Takes everything that is older than now.
fn take_all(drain: &mut Drain) -> Vec<(Entry, Vec<u8>)> {
    let before = clock::now();
    let mut all = Vec::new();
    while let Peek::Ready = drain.peek(before).expect("a sound ring") {
        let mut payload = Vec::new();
        let entry = drain.take(&mut payload).expect("a sound ring").expect("what was seen");
        all.push((entry, payload));
    }
    all
}

#[test]
fn what_goes_in_comes_out_over_many_laps() {
    let (mut drain, producer) = pair(4096, 16);
    let mut sequence = 1;
    for round in 0..500_u64 {
        let payload: Vec<u8> = (0..(round * 37) % 900 + 1).map(|i| (i + round) as u8).collect();
        let (a, b) = payload.split_at(payload.len() / 3);
        assert_eq!(producer.push(&[a, b], 3), Ok(round));
        let taken = take_all(&mut drain);
        assert_eq!(taken.len(), 1);
        let (entry, bytes) = &taken[0];
        assert_eq!((entry.append, entry.sequence, entry.records), (round, sequence, 3));
        assert_eq!(*bytes, payload);
        sequence += 3;
        drain.release(drain.next());
    }
}

/// What was taken comes again from any append on, as it was, also where it goes around the end; what is before it stays
/// taken, and can be given back.
#[test]
fn a_drain_restarts_at_any_append() {
    let (mut drain, producer) = pair(4096, 16);
    let mut given_back = 0;
    for round in 0..40_u64 {
        let pushed: Vec<u64> =
            (1..=7).map(|n| producer.push(&[&[round as u8; 300][..(n * 40)]], n as u32).expect("room")).collect();
        let first = take_all(&mut drain);
        assert_eq!(first.len(), 7);
        for from in (0..=7).rev().chain([3, 0]) {
            drain.rewind_to(pushed[0] + from);
            assert_eq!(drain.next(), pushed[0] + from);
            let again = take_all(&mut drain);
            let key = |(entry, bytes): &(Entry, Vec<u8>)| (entry.append, entry.sequence, entry.records, bytes.clone());
            let (again, first) = (again.iter().map(key), first[from as usize..].iter().map(key));
            assert!(again.eq(first), "round {round}, from {from}");
        }
        drain.release(pushed[3]);
        assert_eq!(drain.released(), pushed[3]);
        drain.rewind_to(given_back); // behind the tail: at the tail
        assert_eq!((drain.next(), take_all(&mut drain).len()), (pushed[3], 4));
        drain.release(drain.next());
        given_back = drain.released();
    }
}

#[test]
fn a_full_ring_refuses_and_space_comes_back_on_release() {
    let (mut drain, producer) = pair(4096, 64);
    let payload = [7; 500];
    let mut pushed = 0;
    while producer.push(&[&payload], 1).is_ok() {
        pushed += 1;
    }
    assert_eq!(pushed, 7, "524 bytes are 528 in the ring");
    assert_eq!(producer.push(&[&payload], 1), Err(PushError::Full));
    let soon = clock::now() + 10_000_000;
    assert_eq!(producer.wait_space(500, soon), Err(WaitError::Deadline));
    assert_eq!(take_all(&mut drain).len(), 7);
    assert_eq!(producer.push(&[&payload], 1), Err(PushError::Full), "taken is not written");
    drain.release(1);
    assert_eq!(producer.wait_space(500, soon + 1_000_000_000), Ok(()));
    assert_eq!(producer.push(&[&payload], 1), Ok(7));
    assert_eq!(producer.push(&[&payload], 1), Err(PushError::Full));
}

#[test]
fn sizes_have_bounds() {
    let (mut drain, producer) = pair(4096, 8);
    let max = producer.max_payload();
    assert_eq!(producer.push(&[], 1), Err(PushError::Size { len: 0, max }));
    assert_eq!(producer.push(&[&vec![0; max + 1]], 1), Err(PushError::Size { len: max + 1, max }));
    assert_eq!(producer.push(&[&vec![0; max]], 1), Ok(0));
    assert_eq!(take_all(&mut drain)[0].1, vec![0; max]);
}

#[test]
fn levels_and_answers() {
    let (mut drain, producer) = pair(4096, 16);
    assert_eq!(producer.push(&[b"x"], 1), Ok(0));
    assert_eq!(producer.answer(0), None);
    take_all(&mut drain);
    let answer = Answer { first_offset: 41, epoch: 7, code: 0, detail: 0 };
    drain.answer(0, answer);
    drain.raise(Level::Received, 1);
    drain.announce();
    let now = clock::now();
    assert_eq!(producer.wait_level(0, Level::Received, now), Ok(()));
    assert_eq!(producer.answer(0), Some(answer));
    assert_eq!(producer.wait_level(0, Level::Durable, now + 5_000_000), Err(WaitError::Deadline));
    std::thread::scope(|threads| {
        let waits = threads.spawn(|| producer.wait_level(0, Level::Durable, now + 20_000_000_000));
        std::thread::sleep(std::time::Duration::from_millis(20));
        drain.raise(Level::Written, 1);
        drain.raise(Level::Durable, 1);
        drain.announce();
        assert_eq!(waits.join().expect("no panic"), Ok(()));
    });
    assert_eq!(producer.log(), (LOG, 7));
}

#[test]
fn why_a_ring_waits_is_on_the_completion_page_of_the_drain_that_says_it() {
    let (mut drain, producer) = pair(4096, 16);
    assert_eq!(producer.waits(), None);
    drain.set_waits(17);
    assert_eq!(producer.waits(), Some(17));
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
    let next =
        Drain::adopt(own(drain.client_fds().ring), own(drain.client_fds().waker), LOG, 8).expect("the same ring");
    producer.attach_completion_page(&own(next.client_fds().completion_page), drop).expect("the new page");
    assert_eq!(producer.waits(), None, "another daemon");
    producer.attach_completion_page(&own(drain.client_fds().completion_page), drop).expect("the old page");
    drain.set_waits(0);
    assert_eq!(producer.waits(), None);
}

#[test]
fn a_later_drain_finds_what_was_not_given_back() {
    let (mut drain, producer) = pair(4096, 16);
    for n in 0..10_u8 {
        assert_eq!(producer.push(&[&[n + 1]], 2), Ok(u64::from(n)));
    }
    let first = take_all(&mut drain);
    drain.release(4);
    let (ring, waker) = (
        drain.client_fds().ring.try_clone_to_owned().expect("a descriptor"),
        drain.client_fds().waker.try_clone_to_owned().expect("a descriptor"),
    );
    drop(drain);
    assert_eq!(producer.push(&[b"between two lives"], 1), Ok(10));
    let mut drain = Drain::adopt(ring, waker, LOG, 8).expect("the same ring");
    assert_eq!(producer.push(&[b"in the second"], 1), Ok(11));
    let again = take_all(&mut drain);
    let known: Vec<_> = again.iter().take(6).map(|(e, p)| (e.append, e.sequence, p.clone())).collect();
    let before: Vec<_> = first[4..].iter().map(|(e, p)| (e.append, e.sequence, p.clone())).collect();
    assert_eq!(known, before);
    assert_eq!(again[6].1, b"between two lives");
    assert_eq!(again[7].0.sequence, 22);
    assert_eq!(producer.watermarks().received, 0, "still the old page");
    let completion_page = drain.client_fds().completion_page.try_clone_to_owned().expect("a descriptor");
    let mut attached_log = None;
    producer.attach_completion_page(&completion_page, |log| attached_log = Some(log)).expect("the new page");
    assert_eq!((attached_log, producer.look().log(), producer.look().first()), (Some((LOG, 8)), (LOG, 8), 4));
    assert_eq!((producer.watermarks().received, producer.log().1, producer.epoch()), (4, 8, 8));
    drain.set_epoch(9);
    assert_eq!((producer.log().1, producer.epoch()), (9, 9));
}

/// Each drain finds where lies what was given back before it, until it gives back something of its own log.
#[test]
fn a_ring_says_which_log_has_what_it_gave_back() {
    const OTHER: [u8; 16] = *b"of another log's";
    let (mut drain, producer) = pair(4096, 16);
    let adopted = |drain: &Drain, log: [u8; 16], epoch| {
        let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
        Drain::adopt(own(drain.client_fds().ring), own(drain.client_fds().waker), log, epoch).expect("a sound ring")
    };
    for n in 0..4_u8 {
        assert_eq!(producer.push(&[&[n + 1]], 1), Ok(u64::from(n)));
    }
    assert_eq!(take_all(&mut drain).len(), 4);
    drain.stored_below(40);
    assert_eq!(adopted(&drain, LOG, 8).stored(), None, "nothing was given back");
    drain.release(2);
    let before = Some(Stored { log_id: LOG, epoch: 7, end: 40 });
    let mut next = adopted(&drain, OTHER, 1);
    assert_eq!((next.released(), next.stored()), (2, before));
    assert_eq!(take_all(&mut next).len(), 2);
    next.release(3); // it was refused: no log has it
    assert_eq!((adopted(&next, OTHER, 1).released(), adopted(&next, OTHER, 1).stored()), (3, before));
    next.set_epoch(2);
    next.stored_below(5);
    next.release(4);
    assert_eq!(adopted(&next, LOG, 9).stored(), Some(Stored { log_id: OTHER, epoch: 2, end: 5 }));
    for lost in [true, false] {
        next.set_lost(lost);
        assert_eq!((next.has_lost(), adopted(&next, LOG, 9).has_lost()), (lost, lost));
    }
}

/// What was summed before is in the ring as if it had not been, at every length; a sum that is wrong is nonsense.
#[test]
fn what_was_summed_before_is_the_same_entry() {
    let (mut drain, producer) = pair(1 << 16, 1024);
    let bytes: Vec<u8> = (0..300_u32).map(|n| (n * 7) as u8).collect();
    let trailer = *b"trailers";
    for len in 0..300 {
        let (bytes, sum) = (&bytes[..len], crc_fast::crc32_iscsi(&bytes[..len]));
        producer.push_summed(bytes, sum, trailer, 1).expect("room");
        producer.push(&[bytes, &trailer], 1).expect("room");
        let taken = take_all(&mut drain);
        assert_eq!(taken.len(), 2);
        for (entry, payload) in taken {
            assert_eq!((entry.sum, payload), (sum, [bytes, &trailer[..]].concat()), "{len}");
        }
        drain.release(drain.next());
    }
    producer.push_summed(b"bytes", crc_fast::crc32_iscsi(b"other"), trailer, 1).expect("room");
    assert!(matches!(drain.peek(clock::now() + 1), Ok(Peek::Ready)));
    assert!(matches!(drain.take(&mut Vec::new()), Err(Corrupt::Checksum(600))));
}

#[test]
fn a_closed_ring_takes_no_more_and_gives_what_it_has() {
    let (mut drain, producer) = pair(4096, 16);
    assert_eq!(producer.push(&[b"x"], 1), Ok(0));
    drain.cut_off(12);
    assert_eq!(producer.push(&[b"y"], 1), Err(PushError::Closed));
    assert_eq!(producer.cut_off(), Some(12));
    assert_eq!(take_all(&mut drain).len(), 1);
    assert_eq!(drain.peek(clock::now()), Ok(Peek::Empty));
}

#[test]
fn only_a_sleeping_drain_is_woken_and_once() {
    let (mut drain, producer) = pair(4096, 16);
    let wakes = |drain: &Drain| {
        let mut count = [0; 8];
        rustix::io::read(drain.waker(), &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    };
    assert_eq!(producer.push(&[b"awake"], 1), Ok(0));
    assert_eq!(wakes(&drain), 0);
    assert!(!drain.sleep(), "something is there");
    drain.awake();
    take_all(&mut drain);
    assert!(drain.sleep());
    assert_eq!(producer.push(&[b"a"], 1), Ok(1));
    assert_eq!(producer.push(&[b"b"], 1), Ok(2));
    assert_eq!(wakes(&drain), 1);
    drain.awake();
    assert_eq!(producer.push(&[b"c"], 1), Ok(3));
    assert_eq!(wakes(&drain), 0);
    assert_eq!(take_all(&mut drain).len(), 3);
}
