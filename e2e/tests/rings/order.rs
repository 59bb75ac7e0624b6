//! Order over several ways in: A logs, has its receipt at `received`, and notifies B, and B logs. A's record has the lower
//! offset, always. (Of what is only `posted` nothing is promised beside others.)

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use clad_client::{AckLevel, Producer};
use clad_e2e::{Daemon, Setup, readback};

use crate::{producer, runtime, submit};

/// How often the word goes to and fro.
const ROUND_TRIPS: u64 = 1500;
/// Rings that are busy beside.
const NOISE: u64 = 3;

#[test]
fn a_record_by_a_ring_is_before_what_it_caused_by_another_ring() {
    to_and_fro("shm");
}

#[test]
fn a_record_by_a_ring_is_before_what_it_caused_by_a_socket() {
    to_and_fro("unix");
}

#[test]
fn a_record_by_a_ring_is_before_what_it_caused_by_grpc() {
    to_and_fro("grpc");
}

/// A logs by a ring and B by another way in, in turns: each hears of the other's record, which is `received`, before it
/// logs its own.
fn to_and_fro(transport: &str) {
    let runtime = runtime();
    let daemon = Setup::new().with_fd_store().start();
    let (a, b) = (producer(&runtime, &daemon, "shm"), producer(&runtime, &daemon, transport));
    let noise: Vec<Producer> = (0..NOISE).map(|_| producer(&runtime, &daemon, "shm")).collect();
    let (mut to_b, mut to_a) = UnixStream::pair().expect("a pair");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for producer in &noise {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    drop(submit(producer, AckLevel::Posted, "noise".to_owned()));
                    std::thread::yield_now();
                }
            });
        }
        let answering = scope.spawn(|| {
            for round in 0..ROUND_TRIPS {
                to_a.read_exact(&mut [0]).expect("A's word");
                let ticket = submit(&b, AckLevel::Received, format!("{}", 2 * round + 1));
                runtime.block_on(ticket).expect("logged");
                to_a.write_all(&[0]).expect("notified");
            }
        });
        for round in 0..ROUND_TRIPS {
            runtime.block_on(submit(&a, AckLevel::Received, format!("{}", 2 * round))).expect("logged");
            to_b.write_all(&[0]).expect("notified");
            to_b.read_exact(&mut [0]).expect("B's word");
        }
        answering.join().expect("B ends");
        over.store(true, Ordering::Relaxed);
    });
    runtime.block_on(async {
        for (which, producer) in [a, b].into_iter().chain(noise).enumerate() {
            producer.flush(AckLevel::Written).await.expect("written");
            producer.close().await.unwrap_or_else(|e| panic!("producer {which}: {e}"));
        }
    });
    in_turns(&daemon, &runtime);
}

fn in_turns(daemon: &Daemon, runtime: &tokio::runtime::Runtime) {
    let all = runtime.block_on(readback::served(&daemon.address("unix")));
    let turns: Vec<u64> =
        all.iter().filter_map(|stored| std::str::from_utf8(&stored.body).ok()?.parse().ok()).collect();
    let missing: Vec<u64> = (0..2 * ROUND_TRIPS).filter(|turn| !turns.contains(turn)).collect();
    assert_eq!((turns.len() as u64, &*missing), (2 * ROUND_TRIPS, &[][..]), "each is there once");
    let wrong = turns.iter().zip(0..).find(|(turn, place)| **turn != *place);
    assert_eq!(wrong, None, "a record stands before one that it was caused by");
}
