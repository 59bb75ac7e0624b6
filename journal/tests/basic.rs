//! The journal on a real file system: what goes in comes out, across restarts, under every policy.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use clad_journal::io::EngineWish;
use clad_journal::{
    Append, AppendError, Event, Found, Item, Journal, JournalConfig, Level, Policy, ReadError, Retention, Sender,
};

/// Only what hangs takes longer.
const PATIENCE: Duration = Duration::from_secs(60);
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
        assert!(began.elapsed() < PATIENCE, "{:?} never came to {offset}", journal.marks());
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
            assert!(journal.close(PATIENCE), "{policy:?}");
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
        journal.append(append(i, &payload(i), Level::Durable)).unwrap();
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
        assert!(journal.close(PATIENCE), "{policy:?}");
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
        assert!(began.elapsed() < PATIENCE);
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
    assert!(journal.close(PATIENCE));
}

/// Segments that hold nothing of the asked time are passed over, however many: none of them counts as damaged.
#[test]
fn a_time_range_is_found_behind_many_segments_that_hold_nothing_of_it() {
    const SEGMENTS: u64 = 12;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let timed = |n: u64, payload| Append {
        min_time_ns: 10 * n as i64,
        max_time_ns: 10 * n as i64,
        ..append(n, payload, Level::Durable)
    };
    let (journal, _) = open(dir.path(), config(Policy::GROUP_COMMIT));
    for n in 0..SEGMENTS {
        journal.append(timed(n, b"one of them")).unwrap();
        wait(&journal, Level::Durable, n + 1);
        assert!(journal.rotate().blocking_recv().unwrap().unwrap().is_some());
    }
    assert!(journal.close(PATIENCE));
    // Nothing of them is in memory now.
    let (journal, _) = open(dir.path(), config(Policy::GROUP_COMMIT));
    journal.append(timed(SEGMENTS, b"the newest")).unwrap();
    wait(&journal, Level::Durable, SEGMENTS + 1);
    for wanted in [0, 1, SEGMENTS / 2, SEGMENTS - 1, SEGMENTS] {
        let time = 10 * wanted as i64;
        let mut reader = journal.reader(0, Level::Durable).within(time, time);
        let batch = reader.next_batch().unwrap().unwrap();
        assert_eq!((batch.first_offset, batch.count), (wanted, 1));
        assert!(reader.next_batch().unwrap().is_none(), "behind {wanted}");
        assert_eq!(reader.position(), SEGMENTS + 1);
    }
    assert!(journal.close(PATIENCE));
}

/// Who looks for a time range that nothing is of comes back again and again, each time a bounded way further.
#[test]
fn a_look_for_a_time_range_passes_over_so_much_at_a_time() {
    const BATCHES: u64 = 64;
    const BYTES: usize = 64 << 10;
    const LOOK: usize = 4 * BYTES;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (journal, _) = open(dir.path(), JournalConfig { segment_bytes: 8 << 20, ..config(Policy::GROUP_COMMIT) });
    let body = vec![b't'; BYTES];
    for n in 0..BATCHES {
        journal.append(append(n, &body, Level::Durable)).unwrap();
        wait(&journal, Level::Durable, n + 1);
    }
    let mut reader = journal.reader(0, Level::Durable).within(100, 200);
    let mut looks = 0;
    loop {
        let (before, mut left) = (reader.position(), LOOK);
        match reader.look(&mut left).unwrap() {
            Found::NotYet => {
                let passed = reader.position() - before;
                assert!((1..=4).contains(&passed) && left == 0, "{passed} batches in one look, {left} left");
            }
            Found::CaughtUp => break,
            Found::Batch(batch) => panic!("{batch:?} is of another time"),
        }
        looks += 1;
    }
    assert_eq!(reader.position(), BATCHES);
    assert!(looks >= BATCHES / 4, "{looks} looks");
    // What is given is counted as well.
    let (mut reader, mut left) = (journal.reader(0, Level::Durable), LOOK);
    let mut given = 0;
    while let Found::Batch(_) = reader.look(&mut left).unwrap() {
        given += 1;
    }
    assert_eq!(given, 4);
    assert!(journal.close(Duration::from_secs(10)));
}

/// The operator's word against the rule holds from then on: of many segments that were to go, no further one goes.
#[test]
fn retention_that_is_withdrawn_stops_where_it_is() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let journal = Arc::new(OnceLock::<Journal>::new());
    let removed = Arc::new(AtomicUsize::new(0));
    let (withdraws, count) = (journal.clone(), removed.clone());
    let observer = Arc::new(move |event: &Event| {
        if matches!(event, Event::Removed { .. }) {
            count.fetch_add(1, Ordering::SeqCst);
            withdraws.get().unwrap().set_retention(Retention::default());
        }
    });
    let opened = Journal::open_dir(dir.path(), config(Policy::GROUP_COMMIT), observer).unwrap();
    assert!(journal.set(opened).is_ok());
    let journal = journal.get().unwrap();
    let mut sequence = 0;
    let mut seal = || {
        for _ in 0..8 {
            journal.append(append(sequence, b"one each", Level::Durable)).unwrap();
            sequence += 1;
            journal.rotate().blocking_recv().unwrap().unwrap();
        }
    };
    seal();
    journal.set_retention(Retention { max_bytes: 1, ..Retention::default() });
    let began = Instant::now();
    while removed.load(Ordering::SeqCst) == 0 {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    // Who removes goes on at once, or not at all: these seals take longer.
    seal();
    assert_eq!(removed.load(Ordering::SeqCst), 1);
    assert!(journal.close(PATIENCE));
}

/// Who reads the files beside a daemon is overtaken by its retention, and by its rotation: what is gone is a gap by that
/// rule, and nothing is called missing or damaged.
#[test]
fn files_that_retention_takes_from_under_a_reader_are_a_gap() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let small = JournalConfig { segment_bytes: 256 << 10, max_append_bytes: 64 << 10, ..config(Policy::GROUP_COMMIT) };
    let (journal, _) = open(dir.path(), JournalConfig { recycle: false, ..small });
    let seal = |from: u64| {
        for i in from..from + 10 {
            journal.append(append(i, &payload(i), Level::Durable)).unwrap();
        }
        wait(&journal, Level::Durable, from + 10);
        journal.rotate().blocking_recv().unwrap().unwrap();
    };
    let retain = |segments: usize| {
        journal.set_retention(Retention { max_bytes: 1, ..Retention::default() });
        let began = Instant::now();
        while journal.segments().iter().filter(|segment| segment.sealed).count() > segments {
            assert!(began.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(5));
        }
        journal.set_retention(Retention::default());
    };
    (0..4).for_each(|i| seal(i * 10));
    let log = clad_journal::OfflineLog::open(dir.path()).unwrap();
    let mut reader = log.read(0);
    let mut seen = vec![reader.next_batch().unwrap().unwrap().end_offset()];
    // The first is open and is read on; of the others all but the newest sealed one go.
    retain(1);
    let gap = loop {
        match reader.next_batch() {
            Ok(Some(batch)) => seen.push(batch.end_offset()),
            Ok(None) => panic!("no gap: {seen:?}"),
            Err(ReadError::Gap { from, to, damaged }) => break (from, to, damaged),
            Err(e) => panic!("{e}"),
        }
    };
    assert_eq!((seen.last(), gap), (Some(&10), (10, 30, false)));
    assert_eq!(reader.next_batch().unwrap().unwrap().first_offset, 30);

    // A check that is overtaken says what it could not read, and is no less sound for it.
    (4..7).for_each(|i| seal(i * 10));
    let mut overtaken = false;
    let report = clad_journal::verify(dir.path(), &mut |_, _| {
        if !std::mem::replace(&mut overtaken, true) {
            retain(1);
        }
    });
    let report = report.unwrap();
    assert_eq!(report.problems, []);
    let passed = report.notes.iter().filter(|note| note.contains("removed by retention meanwhile")).count();
    assert_eq!((passed, report.records), (2, 20), "{:?}", report.notes);

    // Opened again and again while segments come and go.
    journal.set_retention(Retention { max_bytes: 512 << 10, ..Retention::default() });
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (7..60).for_each(|i| seal(i * 10)));
        while !writer.is_finished() {
            let log = clad_journal::OfflineLog::open(dir.path()).unwrap();
            assert!(log.faults().is_empty() && log.damage().is_empty(), "{:?} {:?}", log.faults(), log.damage());
        }
    });
    assert!(journal.close(PATIENCE));
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
    assert!(journal.close(PATIENCE));
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
        assert!(journal.close(PATIENCE));
    }
}

/// By age as by size: a segment that nobody can read keeps none of the younger ones from going.
#[test]
fn retention_by_age_goes_on_behind_a_segment_that_cannot_be_read() {
    const SEGMENTS: u64 = 4;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (journal, _) = open(dir.path(), config(Policy::GROUP_COMMIT));
    for i in 0..SEGMENTS {
        journal.append(append(i, &payload(i), Level::Durable)).unwrap();
        wait(&journal, Level::Durable, i + 1);
        journal.rotate().blocking_recv().unwrap().unwrap();
    }
    assert!(journal.close(PATIENCE));
    let second = dir.path().join(clad_journal::format::segment_name(1));
    let mut bytes = std::fs::read(&second).unwrap();
    bytes[..4096].fill(0);
    std::fs::write(&second, bytes).unwrap();
    let mut by_age = config(Policy::GROUP_COMMIT);
    by_age.retention.max_age = Duration::from_millis(1);
    let (journal, events) = open(dir.path(), by_age);
    let began = Instant::now();
    // The newest stays.
    while journal.meta().lowest_offset < SEGMENTS - 1 {
        assert!(began.elapsed() < PATIENCE, "stopped: {:?}", events.lock().unwrap());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(journal.close(PATIENCE));
}

/// Records of the batches so far.
fn batches(events: &Mutex<Vec<Event>>) -> Vec<u32> {
    let seen = events.lock().unwrap();
    seen.iter().filter_map(|e| if let Event::Batch { records, .. } = e { Some(*records) } else { None }).collect()
}

#[test]
fn group_commit_changes_while_it_runs() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let policy = Policy::GroupCommit { max_delay: Duration::from_millis(5), max_bytes: 1 << 20, in_flight: 1 };
    let (journal, events) = open(folder.path(), config(policy));
    journal.append(append(0, b"before", Level::Durable)).unwrap();
    wait(&journal, Level::Durable, 1);
    journal.set_group_commit(Duration::from_millis(1), 4096, 4).unwrap();
    let payload = [7; 1000];
    let mut sequence = 1;
    // In the segment that is open for one write, and in one that is open for four.
    for _ in 0..2 {
        let before = batches(&events).len();
        for _ in 0..100 {
            journal.append(append(sequence, &payload, Level::Durable)).unwrap();
            sequence += 1;
        }
        wait(&journal, Level::Durable, sequence);
        let sizes = batches(&events)[before..].to_vec();
        assert!(sizes.iter().all(|&records| records <= 4), "four of 1000 bytes fit 4096: {sizes:?}");
        assert_eq!(sizes.iter().sum::<u32>(), 100);
        journal.rotate().blocking_recv().unwrap().unwrap();
    }
    journal.set_group_commit(Duration::from_millis(1), 1 << 20, 1).unwrap();
    journal.append(append(sequence, b"after", Level::Durable)).unwrap();
    wait(&journal, Level::Durable, sequence + 1);
    assert_eq!(read_all(&journal).len() as u64, sequence + 1);
    // More than a segment holds is taken for what it holds.
    sequence += 1;
    journal.set_group_commit(Duration::from_millis(50), 64 << 20, 1).unwrap();
    let (large, before) = (vec![7; 100 << 10], batches(&events).len());
    for _ in 0..30 {
        journal.append(append(sequence, &large, Level::Durable)).unwrap();
        sequence += 1;
    }
    wait(&journal, Level::Durable, sequence);
    let sizes = batches(&events)[before..].to_vec();
    assert!(sizes.iter().all(|&records| records <= 10), "ten of 100 KiB fit 1 MiB: {sizes:?}");
    assert!(journal.close(PATIENCE));
}

#[test]
fn a_heartbeat_is_there_while_every_thread_waits_for_the_disk_and_gone_with_a_thread() {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use clad_journal::Stalled;

    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // One write at a time, and two threads: one for the write, one for the sync behind the write before. An observer that
    // waits is what a device that hangs looks like from outside: the thread is inside its call.
    let policy = Policy::GroupCommit { max_delay: Duration::from_millis(5), max_bytes: 1 << 20, in_flight: 1 };
    let (synced, written) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (first_sync, inside) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let (sync_hangs, write_hangs, counted) = (synced.clone(), written.clone(), inside.clone());
    let observer = Arc::new(move |e: &Event| match e {
        Event::Synced { .. } if first_sync.fetch_add(1, Ordering::Relaxed) == 0 => {
            counted.fetch_add(1, Ordering::SeqCst);
            sync_hangs.wait();
        }
        Event::Batch { records: 3, .. } => {
            counted.fetch_add(1, Ordering::SeqCst);
            write_hangs.wait();
        }
        Event::Batch { records: 2, .. } => panic!("a bug"),
        _ => {}
    });
    let journal = Journal::open_dir(folder.path(), config(policy), observer).unwrap();
    let pause = || std::thread::sleep(Duration::from_millis(50));
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < PATIENCE, "{what} never came");
            pause();
        }
    };
    for _ in 0..3 {
        journal.heartbeat().unwrap();
        pause();
    }
    journal.append(append(0, b"its sync hangs", Level::Written)).unwrap();
    until("the sync", &|| inside.load(Ordering::SeqCst) == 1);
    let mut three = append(1, b"its write hangs", Level::Written);
    three.count = 3;
    journal.append(three).unwrap();
    until("the write", &|| inside.load(Ordering::SeqCst) == 2);
    let beats: Vec<_> = (0..5).map(|_| journal.heartbeat()).inspect(|_| pause()).collect();
    // Judged when nobody hangs any more: a test that fails ends, too.
    synced.wait();
    written.wait();
    assert_eq!(beats, vec![Ok(()); 5]);
    wait(&journal, Level::Durable, 4);
    // A thread that falls over leaves its write undone for ever: that is no slow disk.
    let mut two = append(4, b"two", Level::Durable);
    two.count = 2;
    journal.append(two).unwrap();
    until("the thread's end", &|| journal.heartbeat().is_err());
    assert_eq!(journal.heartbeat(), Err(Stalled::Ended));
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
    assert!(journal.close(PATIENCE));
}

/// What is asked of the table of producers beside an append: whether the next one would be refused for its producer, and
/// whether a record is there.
#[test]
fn a_producers_place_is_told_as_an_append_would_find_it() {
    let dir = tempfile::tempdir().unwrap();
    let config = JournalConfig { max_producers: 1, ..config(Policy::PerMessage) };
    let (journal, _) = open(dir.path(), config);
    let (id, other, owner) = ([7; 16], [8; 16], 1000);
    assert_eq!(journal.may_append(&id, owner, 1).unwrap(), None, "there is room for it");
    assert_eq!(journal.is_stored(&id, owner, 0), Some(false));
    for (sequence, gap) in [(0, false), (1, false), (5, true)] {
        journal.append(Append { gap, ..append(sequence, b"x", Level::Written) }).unwrap();
    }
    assert_eq!(journal.may_append(&id, owner, 1).unwrap().unwrap().last.unwrap().0, 5);
    assert_eq!(journal.may_append(&id, owner, 0), Err(AppendError::Fenced { current: 1 }));
    assert_eq!(journal.may_append(&id, owner + 1, 1), Err(AppendError::NotOwner));
    assert_eq!(journal.may_append(&other, owner, 1), Err(AppendError::TooManyProducers));
    let stored = |sequence| journal.is_stored(&id, owner, sequence);
    let all: Vec<_> = (0..7).map(stored).collect();
    let (yes, no) = (Some(true), Some(false));
    assert_eq!(all, [yes, yes, no, no, no, yes, no], "what was jumped over is not there, nor what comes next");
    assert_eq!(journal.is_stored(&id, owner + 1, 0), None);
    assert_eq!(journal.is_stored(&other, owner, 3), None, "the table is full: it may have been forgotten");
}
