//! What retention removes, and who reads meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use clad_journal::clock::{Clock, SystemClock};
use clad_journal::io::OsStorage;
use clad_journal::{Event, Journal, JournalConfig, Level, Policy, ReadError, Retention};

use super::{TEST_TIMEOUT, append, config, open, payload, wait};

#[test]
fn a_reader_behind_retention_is_given_the_gap() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut c = config(Policy::GROUP_COMMIT);
    c.retention.max_bytes = 1;
    let (journal, events) = open(dir.path(), c);
    for i in 0..20_000u64 {
        let a = append(i, &payload(i), Level::Durable).submit(&journal).unwrap();
        if i % 1000 == 0 {
            wait(&journal, Level::Durable, a.first_offset + 1);
        }
    }
    wait(&journal, Level::Durable, 20_000);
    let began = Instant::now();
    while !events.lock().unwrap().iter().any(|e| matches!(e, Event::Removed { .. })) {
        assert!(began.elapsed() < TEST_TIMEOUT);
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut reader = journal.reader(0, Level::Durable);
    // Retention goes on meanwhile: the gap may be reported in several pieces, each where the last one ended.
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
    assert!(journal.close(TEST_TIMEOUT));
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
            append(sequence, b"one each", Level::Durable).submit(journal).unwrap();
            sequence += 1;
            journal.rotate().blocking_recv().unwrap().unwrap();
        }
    };
    seal();
    journal.set_retention(Retention { max_bytes: 1, ..Retention::default() });
    let began = Instant::now();
    while removed.load(Ordering::SeqCst) == 0 {
        assert!(began.elapsed() < TEST_TIMEOUT);
        std::thread::sleep(Duration::from_millis(5));
    }
    // Who removes goes on at once, or not at all: these seals take longer.
    seal();
    assert_eq!(removed.load(Ordering::SeqCst), 1);
    assert!(journal.close(TEST_TIMEOUT));
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
            append(i, &payload(i), Level::Durable).submit(&journal).unwrap();
        }
        wait(&journal, Level::Durable, from + 10);
        journal.rotate().blocking_recv().unwrap().unwrap();
    };
    let retain = |segments: usize| {
        journal.set_retention(Retention { max_bytes: 1, ..Retention::default() });
        let began = Instant::now();
        while journal.segments().iter().filter(|segment| segment.sealed).count() > segments {
            assert!(began.elapsed() < TEST_TIMEOUT);
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
    assert!(journal.close(TEST_TIMEOUT));
}

struct Synchronised(Arc<dyn Clock>);

impl Clock for Synchronised {
    fn real_ns(&self) -> i64 {
        self.0.real_ns()
    }
    fn boot_ns(&self) -> u64 {
        self.0.boot_ns()
    }
    fn boot_id(&self) -> [u8; 16] {
        self.0.boot_id()
    }
    fn is_synchronised(&self) -> bool {
        true
    }
}

/// By age as by size: a segment that nobody can read keeps none of the younger ones from going.
#[test]
fn retention_by_age_goes_on_behind_a_segment_that_cannot_be_read() {
    const SEGMENTS: u64 = 4;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (journal, _) = open(dir.path(), config(Policy::GROUP_COMMIT));
    for i in 0..SEGMENTS {
        append(i, &payload(i), Level::Durable).submit(&journal).unwrap();
        wait(&journal, Level::Durable, i + 1);
        journal.rotate().blocking_recv().unwrap().unwrap();
    }
    assert!(journal.close(TEST_TIMEOUT));
    let second = dir.path().join(clad_journal::format::segment_name(1));
    let mut bytes = std::fs::read(&second).unwrap();
    bytes[..4096].fill(0);
    std::fs::write(&second, bytes).unwrap();
    let mut by_age = config(Policy::GROUP_COMMIT);
    by_age.retention.max_age = Duration::from_millis(1);
    // On the clock of a host that something synchronises: this one may have none.
    let (events, storage) = (Arc::new(Mutex::new(Vec::new())), OsStorage::open(dir.path(), 4096, true).unwrap());
    let observed = events.clone();
    let observer = Arc::new(move |event: &Event| observed.lock().unwrap().push(event.clone()));
    let shown = dir.path().display().to_string();
    let clock = Arc::new(Synchronised(SystemClock::shared()));
    let journal = Journal::open(Arc::new(storage), &shown, clock, by_age, observer).unwrap();
    let began = Instant::now();
    // The newest stays.
    while journal.meta().lowest_offset < SEGMENTS - 1 {
        assert!(began.elapsed() < TEST_TIMEOUT, "stopped: {:?}", events.lock().unwrap());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(journal.close(TEST_TIMEOUT));
}

/// It may have much to remove: that is the next start's, and no end waits for it.
#[test]
fn an_end_leaves_the_rest_of_retention_to_the_next_start() {
    const SEGMENTS: u64 = 8;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // Whoever removes the first one waits there until the end has begun.
    let (first, removed) = std::sync::mpsc::sync_channel(SEGMENTS as usize);
    let (resume_tx, resume_rx) = std::sync::mpsc::sync_channel::<()>(1);
    let resume_rx = Mutex::new(resume_rx);
    let observer = move |event: &Event| {
        if matches!(event, Event::Removed { .. }) {
            first.send(()).expect("it is waited for");
            let _ = resume_rx.lock().unwrap().recv_timeout(TEST_TIMEOUT);
        }
    };
    let small = JournalConfig { segment_bytes: 256 << 10, max_append_bytes: 64 << 10, ..config(Policy::GROUP_COMMIT) };
    let journal = Journal::open_dir(dir.path(), JournalConfig { recycle: false, ..small }, Arc::new(observer)).unwrap();
    for i in 0..SEGMENTS {
        append(i, &payload(i), Level::Durable).submit(&journal).unwrap();
        wait(&journal, Level::Durable, i + 1);
        journal.rotate().blocking_recv().unwrap().unwrap();
    }
    journal.set_retention(Retention { max_bytes: 1, ..Retention::default() });
    removed.recv_timeout(TEST_TIMEOUT).expect("a segment goes");
    journal.begin_close();
    drop(resume_tx);
    assert!(journal.close(TEST_TIMEOUT));
    assert_eq!(removed.try_iter().count(), 0, "no further one went");
    let (journal, events) =
        open(dir.path(), JournalConfig { retention: Retention { max_bytes: 1, ..Retention::default() }, ..small });
    let gone = || events.lock().unwrap().iter().filter(|e| matches!(e, Event::Removed { .. })).count() as u64;
    let began = Instant::now();
    while gone() < SEGMENTS - 2 {
        assert!(began.elapsed() < TEST_TIMEOUT);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(journal.close(TEST_TIMEOUT));
}
