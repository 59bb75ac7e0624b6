//! What a log call costs beside the copy, counted: system calls of the writer, wake-ups of the daemon.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clad_client::AckLevel;
use clad_e2e::{Daemon, Setup, TEST_TIMEOUT};

use crate::{producer, runtime, submit};

/// Records of a flood.
const FLOOD_RECORDS: u64 = 50_000;
/// Records that are logged one after the other.
const SEQUENTIAL_RECORDS: u64 = 300;

/// Switches that a thread made by itself: each time it slept in a system call.
fn voluntary_switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("counted").trim().parse().expect("a number")
}

#[test]
fn a_flood_wakes_nobody_for_each_record_and_an_idle_daemon_sleeps() {
    let runtime = runtime();
    let daemon = Setup::new().with_fd_store().set("ingest.shm.ring_bytes", "64MiB").start();
    let producer = producer(&runtime, &daemon, "shm");
    let wakeups = || daemon.metric("clad_shm_wakeups_total");
    let (before, slept) = (wakeups(), voluntary_switches());
    for number in 0..FLOOD_RECORDS {
        drop(submit(&producer, AckLevel::Posted, format!("{number}")));
    }
    let (woken, slept) = (wakeups() - before, voluntary_switches() - slept);
    // Durable: until that is reported, too, a drain has something to wait for.
    runtime.block_on(producer.flush(AckLevel::Durable)).expect("durable");
    assert!(woken < FLOOD_RECORDS as f64 / 100.0, "{woken} wake-ups for {FLOOD_RECORDS} records");
    assert!(slept < FLOOD_RECORDS / 100, "the writer slept {slept} times in {FLOOD_RECORDS} calls");
    assert_eq!(daemon.metric("clad_appended_records_total{transport=\"shm\"}"), FLOOD_RECORDS as f64);
    // Asleep, the drain does not look: it is woken once, by the next record.
    let asleep = at_rest(Duration::from_millis(100), wakeups);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(wakeups(), asleep, "an idle daemon wakes");
    runtime.block_on(submit(&producer, AckLevel::Durable, "again".to_owned())).expect("durable");
    assert!(wakeups() > asleep, "it was asleep, and somebody woke it");
    daemon.wait_for_rings(1);
}

/// What is counted, once it has stood still for a while.
fn at_rest<T: PartialEq>(still: Duration, count: impl Fn() -> T) -> T {
    let began = Instant::now();
    let mut before = count();
    loop {
        std::thread::sleep(still);
        let now = count();
        if now == before {
            return now;
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "it never comes to rest");
        before = now;
    }
}

/// Times that each thread of a process slept by itself, of those whose name begins so.
fn sleeps(daemon: &Daemon, named: &str) -> BTreeMap<PathBuf, u64> {
    let mut all = BTreeMap::new();
    for thread in std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("its threads") {
        let folder = thread.expect("a thread").path();
        // A thread of the runtime's for blocking work may have gone meanwhile.
        let Ok(name) = std::fs::read_to_string(folder.join("comm")) else { continue };
        let Ok(status) = std::fs::read_to_string(folder.join("status")) else { continue };
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        if name.trim().starts_with(named) {
            all.insert(folder, line.and_then(|count| count.trim().parse().ok()).expect("counted"));
        }
    }
    all
}

/// Name of the threads that drain rings, and serve sockets.
const INGEST_THREADS: &str = "clad-ingest";

#[test]
fn an_idle_daemon_with_rings_sleeps() {
    let runtime = runtime();
    let daemon = Setup::new().with_fd_store().start();
    let producers: Vec<_> = (0..8).map(|_| producer(&runtime, &daemon, "shm")).collect();
    for producer in &producers {
        runtime.block_on(submit(producer, AckLevel::Durable, "once".to_owned())).expect("durable");
    }
    // Dozes are over, and what an idle log writes is written.
    let ingest = at_rest(Duration::from_millis(500), || sleeps(&daemon, INGEST_THREADS));
    let before = sleeps(&daemon, "");
    assert!(ingest.values().any(|count| *count > 0), "it has threads that drain");
    let rings = daemon.status().rings.expect("reported");
    assert_eq!((rings.count, rings.used_bytes, rings.waiting_appends), (8, 0, 0), "all is given back");
    assert_eq!(rings.data_bytes, 8 << 20);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(sleeps(&daemon, INGEST_THREADS), ingest, "the drain wakes though nothing comes");
    // A look a second at what was counted, and timers that are as rare. A thread that has come or gone meanwhile counts
    // for nothing.
    let after = sleeps(&daemon, "");
    let woken: u64 = before.iter().filter_map(|(thread, count)| Some(after.get(thread)? - count)).sum();
    assert!(woken < 60, "{woken} wake-ups in three seconds of rest");
}

#[test]
fn who_spins_for_durable_rings_once_for_each_record_and_does_not_sleep() {
    let runtime = runtime();
    let daemon = Setup::new().with_fd_store().start();
    let producer = producer(&runtime, &daemon, "shm");
    let wakeups = || daemon.metric("clad_shm_wakeups_total");
    let (before, slept) = (wakeups(), voluntary_switches());
    // Those for which the disk took so long that this thread may have stopped to spin.
    let mut late = 0;
    for number in 0..SEQUENTIAL_RECORDS {
        let began = Instant::now();
        let ticket = submit(&producer, AckLevel::Durable, format!("{number}"));
        let receipt = ticket.wait(TEST_TIMEOUT).expect("durable");
        assert_eq!(receipt.first_offset, Some(number));
        late += u64::from(began.elapsed() > Duration::from_millis(5));
    }
    // The answer is on the page for whoever looks: no client is woken on the way.
    let slept = voluntary_switches() - slept;
    let woken = wakeups() - before;
    assert!(
        slept < SEQUENTIAL_RECORDS / 10 + 2 * late,
        "the client slept {slept} times for {SEQUENTIAL_RECORDS} answers, {late} of them late"
    );
    assert!(woken <= SEQUENTIAL_RECORDS as f64, "{woken} wake-ups for {SEQUENTIAL_RECORDS} records");
}
