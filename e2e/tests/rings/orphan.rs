//! A ring whose connection has ended and whose process lives on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clad_client::AckLevel;
use clad_e2e::{Setup, readback};
use clad_proto::frame::{Hello, RingAppendTrailer};
use clad_shm::PushError;

use crate::{producer, runtime, submit};
use clad_e2e::by_hand::ByHand;

/// Threads of the process.
const THREADS: usize = 3;

fn push(ring: &clad_shm::Producer, body: &str) -> Result<u64, PushError> {
    let payload = clad_e2e::raw::payload(&[body.as_bytes()]);
    let trailer = RingAppendTrailer { level: AckLevel::Posted, payload_crc: payload.checksum() }.encode();
    ring.push(&[&payload.bytes, &trailer], payload.count)
}

/// It is in the middle of its pushes when the connection ends. Each that ended well is stored, once and in order; the others
/// see that the ring is closed.
#[test]
fn what_a_process_pushed_before_its_ring_was_closed_is_stored() {
    let runtime = runtime();
    let mut daemon = Setup::new().with_fd_store().start();
    for round in 0..3 {
        let by_hand = ByHand::at(&daemon.socket(), &Hello { name: "orphan".to_owned(), ..clad_e2e::raw::hello() });
        let ring = by_hand.attach();
        let ended = AtomicBool::new(false);
        let posted: Vec<usize> = std::thread::scope(|scope| {
            let (ring, ended) = (&ring, &ended);
            let pushes = move |thread: usize| {
                let mut posted = 0;
                loop {
                    match push(ring, &format!("{round}:{thread}:{posted}")) {
                        Ok(_) if posted % 64 == 63 => {
                            posted += 1;
                            std::thread::sleep(Duration::from_micros(200)); // it is not about a flood
                        }
                        Ok(_) => posted += 1,
                        Err(PushError::Full | PushError::Abandoned) => std::thread::yield_now(),
                        Err(PushError::Closed) => break posted,
                        Err(other) => panic!("{other}"),
                    }
                    assert!(posted < 10_000_000 || !ended.load(Ordering::Relaxed), "it is never closed");
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || pushes(thread))).collect();
            while daemon.metric("clad_shm_rings") < 1.0 {
                std::thread::yield_now();
            }
            drop(by_hand);
            ended.store(true, Ordering::Relaxed);
            threads.into_iter().map(|thread| thread.join().expect("it ends")).collect()
        });
        daemon.wait_for_rings(0);
        let last = producer(&runtime, &daemon, "unix");
        runtime.block_on(submit(&last, AckLevel::Written, "last".to_owned())).expect("written");
        let all = runtime.block_on(readback::served(&daemon.address("unix")));
        for (thread, posted) in posted.into_iter().enumerate() {
            let prefix = format!("{round}:{thread}:");
            let bodies = all.iter().filter_map(|stored| std::str::from_utf8(&stored.body).ok()?.strip_prefix(&prefix));
            let found: Vec<usize> = bodies.map(|number| number.parse().expect("a number")).collect();
            assert_eq!(found, (0..posted).collect::<Vec<_>>(), "round {round}, thread {thread}");
        }
    }
    assert_eq!(daemon.term(), Some(0));
}
