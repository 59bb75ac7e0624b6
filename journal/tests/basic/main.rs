//! The journal on a real file system: what goes in comes out, across restarts, under every policy.

mod appending;
mod producers;
mod reading;
mod retention;
mod versions;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clad_journal::io::EngineWish;
use clad_journal::{Append, Event, Journal, JournalConfig, Level, Policy};

/// Only what hangs takes longer.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn config(policy: Policy) -> JournalConfig {
    JournalConfig {
        policy,
        segment_bytes: 1 << 20,
        max_append_bytes: 256 << 10,
        reserve_free: 0,
        ..JournalConfig::default()
    }
}

fn open(dir: &Path, config: JournalConfig) -> (Journal, Arc<Mutex<Vec<Event>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = events.clone();
    let observer = Arc::new(move |e: &Event| seen.lock().unwrap().push(e.clone()));
    (Journal::open_dir(dir, config, observer).unwrap(), events)
}

fn append(sequence: u64, payload: &[u8], level: Level) -> Append<'_> {
    Append {
        producer: [7; 16],
        owner: 1000,
        producer_epoch: 1,
        first_sequence: sequence,
        count: 1,
        gap: false,
        level,
        min_time_ns: 1,
        max_time_ns: 2,
        peer_meta: b"v",
        payload,
        payload_checksum: clad_journal::format::checksum::plain(payload),
        permit: None,
    }
}

fn wait(journal: &Journal, level: Level, offset: u64) {
    let began = Instant::now();
    while journal.watermarks().of(level) < offset {
        assert!(began.elapsed() < TEST_TIMEOUT, "{:?} never came to {offset}", journal.watermarks());
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn read_all(journal: &Journal) -> Vec<(u64, Vec<u8>)> {
    let mut reader = journal.reader(0, Level::Written);
    let mut all = Vec::new();
    loop {
        match reader.next_batch() {
            Ok(None) => return all,
            Ok(Some(batch)) => all.extend(batch.chunks().map(|c| c.unwrap()).map(|(o, c)| (o, c.payload.to_vec()))),
            Err(e) => panic!("{e}"),
        }
    }
}

fn payload(i: u64) -> Vec<u8> {
    format!("record {i} ").repeat((i % 40) as usize).into_bytes()
}

const POLICIES: [Policy; 3] =
    [Policy::GROUP_COMMIT, Policy::PerMessage, Policy::FireAndForget { sync_interval: Duration::from_millis(20) }];
const ENGINES: [EngineWish; 2] = [EngineWish::Blocking, EngineWish::Uring];

#[test]
fn what_goes_in_comes_out_across_restarts_and_rotations_under_every_policy_and_engine() {
    for (policy, engine) in POLICIES.into_iter().flat_map(|p| ENGINES.map(|e| (p, e))) {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut next = 0;
        for round in 0..3 {
            let (journal, events) = open(dir.path(), JournalConfig { io_engine: engine, ..config(policy) });
            assert_eq!(journal.watermarks().received, next, "{policy:?} {engine:?}");
            let n = if matches!(policy, Policy::PerMessage) { 300 } else { 4000 };
            for i in 0..n {
                let level = [Level::Received, Level::Written, Level::Durable][(i % 3) as usize];
                let accepted = append(next, &payload(next), level).submit(&journal).unwrap();
                assert_eq!((accepted.first_offset, accepted.duplicate), (next, false));
                next += 1;
                if i == 100 {
                    assert_eq!(
                        append(next - 1, &payload(next - 1), level).submit(&journal).unwrap().first_offset,
                        next - 1
                    );
                }
                if i == n / 2 {
                    wait(&journal, Level::Written, next);
                    assert!(journal.rotate().blocking_recv().unwrap().unwrap().is_some());
                }
            }
            let target = journal.request_sync();
            wait(&journal, Level::Durable, target);
            let all = read_all(&journal);
            assert_eq!(all.len() as u64, next, "{policy:?} round {round}");
            for (i, (offset, body)) in all.into_iter().enumerate() {
                assert_eq!((offset, body), (i as u64, payload(i as u64)));
            }
            assert!(events.lock().unwrap().iter().any(|e| matches!(e, Event::Sealed { .. })));
            if round == 1 {
                // No close: the next start finds an unclean end, and everything all the same.
                std::thread::spawn(move || drop(journal)).join().unwrap();
                continue;
            }
            assert!(journal.close(TEST_TIMEOUT), "{policy:?}");
        }
    }
}

/// Bytes that this thread has handed to the kernel; nothing where it does not count them.
fn handed_over() -> Option<u64> {
    let counted = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    counted.lines().find_map(|line| line.strip_prefix("wchar: "))?.parse().ok()
}

/// Also what is no change to the log: a trial of what works, say.
#[test]
fn who_only_looks_writes_nothing() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (journal, _) = open(dir.path(), config(Policy::GROUP_COMMIT));
    for i in 0..10 {
        append(i, &payload(i), Level::Durable).submit(&journal).unwrap();
    }
    wait(&journal, Level::Durable, 10);
    let Some(before) = handed_over() else {
        eprintln!("NOT RUN who only looks writes nothing: /proc/thread-self/io is not there");
        return;
    };
    assert!(clad_journal::look(dir.path()).unwrap().is_some());
    let log = clad_journal::OfflineLog::open(dir.path()).unwrap();
    let mut reader = log.read(0);
    let mut records = 0;
    while let Some(batch) = reader.next_batch().unwrap() {
        records += batch.count;
    }
    assert_eq!((records, handed_over()), (10, Some(before)));
    // It does count.
    std::fs::write(dir.path().join("x"), "four").unwrap();
    assert_eq!(handed_over(), Some(before + 4));
}

/// The open batch may be more than a segment holds, after a write. Behind the end of a segment there is no
/// space that was prepared, so that a range sync would keep nothing there.
#[test]
fn no_segment_grows_beyond_its_size() {
    let background = Policy::FireAndForget { sync_interval: Duration::ZERO };
    for policy in [Policy::GROUP_COMMIT, background] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let config = JournalConfig { segment_bytes: 64 << 10, max_append_bytes: 32 << 10, ..config(policy) };
        let (journal, _) = open(dir.path(), config);
        let payload = vec![b'x'; 5000];
        for sequence in 0..200 {
            append(sequence, &payload, Level::Received).submit(&journal).unwrap();
        }
        wait(&journal, Level::Written, 200);
        assert!(journal.close(TEST_TIMEOUT), "{policy:?}");
        let segments = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap());
        let sizes: Vec<u64> = segments
            .filter(|entry| entry.path().extension().is_some_and(|ending| ending == "clog"))
            .map(|entry| entry.metadata().unwrap().len())
            .collect();
        assert!(sizes.len() >= 200 * 5000 / (64 << 10), "{policy:?}: {sizes:?}");
        assert!(sizes.iter().all(|size| *size <= 64 << 10), "{policy:?}: {sizes:?}");
    }
}
