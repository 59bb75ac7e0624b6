//! The journal on a real file system: what goes in comes out, across restarts, under every policy.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clad_journal::io::EngineWish;
use clad_journal::{Append, Event, Item, Journal, JournalConfig, Level, Policy, ReadError, Sender};

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
        vouch: b"v",
        payload,
        payload_checksum: clad_journal::format::checksum::plain(payload),
        permit: None,
    }
}

fn wait(journal: &Journal, level: Level, offset: u64) {
    let began = Instant::now();
    while journal.marks().of(level) < offset {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?} never came to {offset}", journal.marks());
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
            assert_eq!(journal.marks().received, next, "{policy:?} {engine:?}");
            let n = if matches!(policy, Policy::PerMessage) { 300 } else { 4000 };
            for i in 0..n {
                let level = [Level::Received, Level::Written, Level::Durable][(i % 3) as usize];
                let accepted = journal.append(append(next, &payload(next), level)).unwrap();
                assert_eq!((accepted.first_offset, accepted.duplicate), (next, false));
                next += 1;
                if i == 100 {
                    assert_eq!(
                        journal.append(append(next - 1, &payload(next - 1), level)).unwrap().first_offset,
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
            assert!(journal.close(Duration::from_secs(10)), "{policy:?}");
        }
    }
}

/// What gathers while a write is under way may be more than a segment holds. Behind the end of a segment there is no
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
            journal.append(append(sequence, &payload, Level::Received)).unwrap();
        }
        wait(&journal, Level::Written, 200);
        assert!(journal.close(Duration::from_secs(10)), "{policy:?}");
        let segments = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap());
        let sizes: Vec<u64> = segments
            .filter(|entry| entry.path().extension().is_some_and(|ending| ending == "clog"))
            .map(|entry| entry.metadata().unwrap().len())
            .collect();
        assert!(sizes.len() >= 200 * 5000 / (64 << 10), "{policy:?}: {sizes:?}");
        assert!(sizes.iter().all(|size| *size <= 64 << 10), "{policy:?}: {sizes:?}");
    }
}

#[test]
fn a_reader_behind_retention_is_told_the_gap() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut c = config(Policy::GROUP_COMMIT);
    c.retention.max_bytes = 1;
    let (journal, events) = open(dir.path(), c);
    for i in 0..20_000u64 {
        let a = journal.append(append(i, &payload(i), Level::Durable)).unwrap();
        if i % 1000 == 0 {
            wait(&journal, Level::Durable, a.first_offset + 1);
        }
    }
    wait(&journal, Level::Durable, 20_000);
    let began = Instant::now();
    while !events.lock().unwrap().iter().any(|e| matches!(e, Event::Removed { .. })) {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut reader = journal.reader(0, Level::Durable);
    // Retention goes on meanwhile: the gap may be told in several pieces, each where the last one ended.
    let mut end = 0;
    let batch = loop {
        match reader.next_batch() {
            Err(ReadError::Gap { from, to, damaged: false }) => {
                assert_eq!(from, end);
                assert!(to > from);
                end = to;
            }
            other => break other.unwrap().unwrap(),
        }
    };
    assert!(end > 0);
    assert_eq!(batch.first_offset, end);
    assert!(journal.close(Duration::from_secs(10)));
}

/// A segment that is cut short, at whatever length, costs what it held and nothing else.
#[test]
fn a_truncated_segment_is_damage_by_offsets_and_the_rest_is_read() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (journal, _) = open(dir.path(), config(Policy::GROUP_COMMIT));
    for i in 0..300u64 {
        journal.append(append(i, &payload(i), Level::Durable)).unwrap();
        if i % 100 == 99 {
            wait(&journal, Level::Durable, i + 1);
            journal.rotate().blocking_recv().unwrap().unwrap();
        }
    }
    assert!(journal.close(Duration::from_secs(10)));
    let second = dir.path().join(clad_journal::format::segment_name(1));
    let whole = std::fs::read(&second).unwrap();
    for len in [0, 1, 100, 4096, 4097, 5000, whole.len() - 4096, whole.len() - 1] {
        std::fs::write(&second, &whole[..len]).unwrap();
        let report = clad_journal::verify(dir.path(), &mut |_, _| {}).unwrap();
        assert!(!report.problems.is_empty(), "cut to {len}");
        let (journal, _) = open(dir.path(), config(Policy::GROUP_COMMIT));
        let mut reader = journal.reader(0, Level::Durable);
        let (mut seen, mut lost) = (0, 0);
        loop {
            match reader.next_batch() {
                Ok(None) => break,
                Ok(Some(batch)) => seen += u64::from(batch.count),
                Err(ReadError::Gap { from, to, damaged: true }) => {
                    assert!(from >= 100 && to <= 200, "cut to {len}: lost {from} to {to}");
                    lost += to - from;
                }
                Err(e) => panic!("cut to {len}: {e}"),
            }
        }
        assert_eq!((seen + lost, seen >= 200), (300, true), "cut to {len}");
        assert!(journal.close(Duration::from_secs(10)));
    }
}

/// One burst is one taking of the lock: whoever appends beside it, its offsets are in a row.
#[test]
fn nobody_comes_between_the_appends_of_a_burst() {
    const BURSTS: u64 = 200;
    const APPENDS: u64 = 50;
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path(), JournalConfig { segment_bytes: 8 << 20, ..config(Policy::GROUP_COMMIT) });
    let start = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        for producer in 1..=3u8 {
            let (journal, start) = (&journal, &start);
            scope.spawn(move || {
                let from = Sender { producer: [producer; 16], owner: 1000, producer_epoch: 1, vouch: b"v" };
                let payload = [producer];
                start.wait();
                for burst in 0..BURSTS {
                    let item = |n| Item {
                        first_sequence: burst * APPENDS + n,
                        count: 1,
                        gap: false,
                        level: Level::Written,
                        min_time_ns: 1,
                        max_time_ns: 2,
                        payload: &payload,
                        payload_checksum: clad_journal::format::checksum::plain(&payload),
                        share: 0,
                    };
                    let items: Vec<_> = (0..APPENDS).map(item).collect();
                    let mut offsets = Vec::new();
                    journal.append_burst(&from, &items, None, journal.now(), |a| offsets.push(a.unwrap().first_offset));
                    let row: Vec<_> = (offsets[0]..offsets[0] + APPENDS).collect();
                    assert_eq!(offsets, row);
                }
            });
        }
    });
    let end = 3 * BURSTS * APPENDS;
    wait(&journal, Level::Durable, end);
    let all = read_all(&journal);
    assert!(all.iter().map(|(offset, _)| *offset).eq(0..end), "dense");
    assert!(journal.close(Duration::from_secs(20)));
}
