//! Many threads of one program and an impatient drain, in earnest: nothing lost, nothing twice, each thread's own order,
//! and all space back at the end.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use clad_shm::{Drain, Level, Peek, Producer, PushError, Shape, clock};

const THREADS: u64 = 4;
const EACH: u64 = 4000;

fn pair(data: u32, slots: u32) -> (Drain, Producer) {
    let drain = Drain::create(Shape::new(data, slots).expect("a shape"), 1, [0; 16], 1).expect("a ring");
    let fds = drain.client_fds();
    let own = |fd: BorrowedFd<'_>| -> OwnedFd { fd.try_clone_to_owned().expect("a descriptor") };
    let producer = Producer::attach(&own(fds.ring), &own(fds.completion_page), own(fds.waker)).expect("attached");
    (drain, producer)
}

/// Thread and number, then as many bytes as these say.
fn payload(thread: u64, n: u64) -> Vec<u8> {
    let len = 16 + (n * 31 + thread * 7) % 300;
    let head = [thread.to_le_bytes(), n.to_le_bytes()].concat();
    head.into_iter().chain((16..len).map(|i| (i + n + thread) as u8)).collect()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Pushes through everything that can come in between; says how often it was given up.
fn push(producer: &Producer, bytes: &[u8], abandoned: &AtomicU64) -> u64 {
    // In many small parts, so that it takes long and is caught in the middle.
    let parts: Vec<&[u8]> = bytes.chunks(2).collect();
    loop {
        match producer.push(&parts, 1) {
            Ok(append) => return append,
            Err(PushError::Full) => {
                let soon = clock::now() + 20_000_000_000;
                producer.wait_space(bytes.len(), soon).expect("space comes back");
            }
            Err(PushError::Abandoned) => {
                abandoned.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn nothing_is_lost_between_threads_and_a_drain_that_gives_up_at_once() {
    let (mut drain, producer) = pair(16 << 10, 64);
    drain.set_commit_timeout_ns(0);
    let abandoned = AtomicU64::new(0);
    let mut next = [0; THREADS as usize];
    let mut appends = 0;
    std::thread::scope(|threads| {
        for thread in 0..THREADS {
            let (producer, abandoned) = (&producer, &abandoned);
            threads.spawn(move || {
                for n in 0..EACH {
                    push(producer, &payload(thread, n), abandoned);
                }
            });
        }
        let mut bytes = Vec::new();
        while appends < THREADS * EACH {
            let before = clock::now();
            let mut last = None;
            while let Peek::Ready = drain.peek(before).expect("an honest ring is never corrupt") {
                bytes.clear();
                let entry = drain.take(&mut bytes).expect("an honest ring is never corrupt").expect("seen");
                let (thread, n) = (word(&bytes, 0), word(&bytes, 8));
                assert_eq!(bytes, payload(thread, n));
                assert_eq!(next[thread as usize], n, "thread {thread}");
                assert!(last.replace(entry.append).is_none_or(|last| last < entry.append));
                assert_eq!(entry.sequence, 1 + appends);
                next[thread as usize] += 1;
                appends += 1;
            }
            drain.release(drain.next());
            std::thread::yield_now();
        }
    });
    assert_eq!(next, [EACH; THREADS as usize]);
    assert_eq!(drain.peek(clock::now()), Ok(Peek::Empty));
    // Whoever was given up has left: the whole ring can be filled again.
    let mut fit = 0;
    while producer.push(&[&[0; 1000]], 1).is_ok() {
        fit += 1;
        assert!(fit < 100);
    }
    assert!(fit >= 14, "only {fit} appends of 1024 bytes fit a ring of 16 KiB: space is lost");
}

#[test]
fn every_thread_gets_the_receipt_of_its_own_append() {
    // As many slots as appends: a receipt stays until it is read, however late its thread wakes up.
    let (mut drain, producer) = pair(16 << 10, 2048);
    let abandoned = AtomicU64::new(0);
    std::thread::scope(|threads| {
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (producer, abandoned) = (&producer, &abandoned);
                threads.spawn(move || {
                    for n in 0..EACH / 10 {
                        let append = push(producer, &payload(thread, n), abandoned);
                        let soon = clock::now() + 20_000_000_000;
                        producer.wait_level(append, Level::Written, soon).expect("it is written");
                        let answer = producer.answer(append).expect("it was answered");
                        assert_eq!((answer.first_offset, answer.detail), (append * 10, thread << 32 | n));
                    }
                })
            })
            .collect();
        let mut bytes = Vec::new();
        while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let before = clock::now();
            while let Peek::Ready = drain.peek(before).expect("an honest ring is never corrupt") {
                bytes.clear();
                let entry = drain.take(&mut bytes).expect("an honest ring is never corrupt").expect("seen");
                let detail = word(&bytes, 0) << 32 | word(&bytes, 8);
                drain.answer(
                    entry.append,
                    clad_shm::Answer { first_offset: entry.append * 10, epoch: 1, code: 0, detail },
                );
            }
            drain.raise(Level::Received, drain.next());
            drain.raise(Level::Written, drain.next());
            drain.announce();
            drain.release(drain.next());
            std::thread::yield_now();
        }
    });
}
