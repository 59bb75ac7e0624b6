//! Files of segments that are used again, on a real file system: when, when not, and what their readers see.
//!
//! Only where zeroes would be written ahead (ext4, xfs); elsewhere nothing is used again, which is what is tested then.

#![allow(clippy::print_stdout)] // it says what this file system cannot show

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clad_journal::format::segment::SegmentHeader;
use clad_journal::format::segment_name;
use clad_journal::io::device::discover;
use clad_journal::io::{Access, OsStorage, Storage};
use clad_journal::{Append, Event, Journal, JournalConfig, Level, Policy, Retention, verify};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

struct Log {
    dir: tempfile::TempDir,
    journal: Journal,
    events: Arc<Mutex<Vec<Event>>>,
    sequence: u64,
}

/// All but the newest sealed segment goes.
fn config() -> JournalConfig {
    JournalConfig {
        segment_bytes: 64 << 10,
        max_append_bytes: 16 << 10,
        reserve_free: 0,
        retention: Retention { max_bytes: 1, ..Retention::default() },
        ..JournalConfig::default()
    }
}

impl Log {
    /// Retention begins with [`Log::retain`].
    fn open(config: JournalConfig) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let seen = events.clone();
        let observer = Arc::new(move |event: &Event| seen.lock().unwrap().push(event.clone()));
        let off = JournalConfig { retention: Retention::default(), ..config };
        let journal = Journal::open_dir(dir.path(), off, observer).unwrap();
        Self { dir, journal, events, sequence: 0 }
    }

    fn retain(&self) {
        self.journal.set_retention(config().retention);
    }

    /// One segment's worth, each record in a batch of its own, and sealed.
    fn fill(&mut self) {
        self.append(30);
        self.journal.rotate().blocking_recv().unwrap().unwrap();
    }

    fn append(&mut self, records: u32) {
        for _ in 0..records {
            let body = [self.sequence as u8; 1500];
            let append = Append {
                producer: [1; 16],
                owner: 7,
                producer_epoch: 1,
                first_sequence: self.sequence,
                count: 1,
                gap: false,
                level: Level::Durable,
                min_time_ns: 0,
                max_time_ns: 0,
                peer_meta: &[],
                payload: &body,
                payload_checksum: clad_journal::format::checksum::plain(&body),
                permit: None,
            };
            let accepted = append.submit(&self.journal).unwrap();
            self.wait(|log| log.journal.watermarks().written > accepted.first_offset);
            self.sequence += 1;
        }
    }

    fn wait(&self, done: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !done(self) {
            assert!(began.elapsed() < TEST_TIMEOUT, "{:?}", self.events.lock().unwrap());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn events_of(&self, of: impl Fn(&Event) -> bool) -> Vec<Event> {
        self.events.lock().unwrap().iter().filter(|event| of(event)).cloned().collect()
    }

    fn is_removed(&self, number: u64) -> bool {
        !self.events_of(|e| matches!(e, Event::Removed { segment, .. } if *segment == number)).is_empty()
    }

    /// What became of a segment's file: the number of the segment that it is now, or why it is none.
    fn fate(&self, number: u64) -> Result<u64, String> {
        let of = |e: &Event| matches!(e, Event::Recycled { segment, .. } | Event::NotRecycled { segment, .. } if *segment == number);
        self.wait(|log| !log.events_of(of).is_empty());
        match self.events_of(of).remove(0) {
            Event::Recycled { as_segment, .. } => Ok(as_segment),
            Event::NotRecycled { reason, .. } => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    fn path(&self, number: u64) -> std::path::PathBuf {
        self.dir.path().join(segment_name(number))
    }

    /// Everything that is kept is there and right.
    fn close(self) -> tempfile::TempDir {
        assert!(self.journal.close(TEST_TIMEOUT));
        let report = verify(self.dir.path(), &mut |_, _| {}).unwrap();
        assert_eq!((report.problems, report.end_offset), (vec![], self.sequence));
        self.dir
    }
}

fn is_shown(dir: &Path) -> bool {
    let pays = discover(dir).zeroing_pays();
    if !pays {
        println!("NOT RUN: no zeroes are written ahead on this file system, so nothing is used again");
    }
    pays
}

#[test]
fn the_file_of_a_removed_segment_becomes_the_next_one() {
    let mut log = Log::open(config());
    if !is_shown(log.dir.path()) {
        return;
    }
    log.fill();
    log.retain();
    // The next one must be wanted when retention looks, so it is a matter of time which rotation it is.
    let began = Instant::now();
    while log.events_of(|e| matches!(e, Event::Recycled { .. })).is_empty() {
        assert!(began.elapsed() < TEST_TIMEOUT, "{:?}", log.events.lock().unwrap());
        log.fill();
    }
    for _ in 0..6 {
        log.fill();
    }
    let again = log.events_of(|e| matches!(e, Event::Recycled { .. }));
    assert_eq!(log.journal.status().recycled, again.len() as u64);
    println!("{} of {} removed", again.len(), log.events_of(|e| matches!(e, Event::Removed { .. })).len());
    let names: Vec<_> = std::fs::read_dir(log.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    let segments = names.iter().filter(|name| name.to_string_lossy().ends_with(".clog")).count();
    assert!(segments <= 4, "no file is kept for later: {names:?}");
    let dir = log.close();
    // What it was stands in its header, and it opens as any log.
    let header = |path: std::path::PathBuf| SegmentHeader::decode(&std::fs::read(path).ok()?).ok();
    let formers = std::fs::read_dir(dir.path()).unwrap().filter_map(|e| header(e.unwrap().path())?.former).count();
    assert!(formers > 0);
    drop(Journal::open_dir(dir.path(), config(), Arc::new(|_| {})).unwrap());
}

/// All of its space is written, and what it held before is no tail that a crash leaves.
#[test]
fn a_file_that_is_used_again_is_as_good_as_a_new_one() {
    let mut log = Log::open(config());
    if !is_shown(log.dir.path()) {
        return;
    }
    log.retain();
    let began = Instant::now();
    let active_is_old = |log: &Log| {
        let active = log.journal.active_segment();
        log.events_of(|e| matches!(e, Event::Recycled { as_segment, .. } if Some(*as_segment) == active)).len() == 1
    };
    while !active_is_old(&log) {
        assert!(began.elapsed() < TEST_TIMEOUT, "{:?}", log.events.lock().unwrap());
        log.fill();
    }
    let active = segment_name(log.journal.active_segment().unwrap());
    log.append(3);
    let storage = OsStorage::open(log.dir.path(), 4096, true).unwrap();
    let file = storage.open(&active, Access::ReadCached).unwrap();
    assert!(file.overwrites_in_place(config().segment_bytes).unwrap());
    drop(file);
    let Log { journal, dir, sequence, .. } = log;
    drop(journal); // an unclean end
    let journal = Journal::open_dir(dir.path(), config(), Arc::new(|_| {})).unwrap();
    let report = journal.report();
    assert!(!report.clean && report.scanned > 0 && !report.is_damaged(), "{report}");
    assert_eq!(report.next_offset, sequence);
    assert!(report.quarantined_bytes < 4096, "more than the rest of one old batch is called a tail: {report}");
}

/// A reader that has the file open, in whatever process, goes on to read what it was.
#[test]
fn who_has_it_open_keeps_it_from_that_and_reads_on() {
    let mut log = Log::open(config());
    if !is_shown(log.dir.path()) {
        return;
    }
    // All of the first ten: whichever retention meets while the next one is wanted, it has a reader or a second name.
    for _ in 0..10 {
        log.fill();
    }
    let held: Vec<(u64, File, Vec<u8>)> = (0..10)
        .map(|number| (number, File::open(log.path(number)).unwrap(), std::fs::read(log.path(number)).unwrap()))
        .collect();
    log.retain();
    let began = Instant::now();
    let refused = |log: &Log| log.events_of(|e| matches!(e, Event::NotRecycled { .. }));
    while refused(&log).is_empty() || !log.is_removed(9) {
        assert!(began.elapsed() < TEST_TIMEOUT, "{:?}", log.events.lock().unwrap());
        log.fill();
    }
    assert!(log.events_of(|e| matches!(e, Event::Recycled { segment, .. } if *segment < 10)).is_empty());
    let Event::NotRecycled { segment, .. } = refused(&log)[0] else { unreachable!() };
    assert_eq!(log.fate(segment), Err("somebody has it open".to_owned()));
    for (number, file, before) in &held {
        let mut now = vec![0; before.len()];
        file.read_exact_at(&mut now, 0).unwrap();
        assert!(now == *before, "segment {number} changed under its reader");
        assert!(!log.path(*number).exists(), "its name is gone all the same");
    }
    log.close();
}

#[test]
fn a_second_name_keeps_it_from_that() {
    let mut log = Log::open(config());
    if !is_shown(log.dir.path()) {
        return;
    }
    let elsewhere = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for number in 0..10 {
        log.fill();
        std::fs::hard_link(log.path(number), elsewhere.path().join(number.to_string())).unwrap();
    }
    let copies: Vec<Vec<u8>> = (0..10).map(|number| std::fs::read(log.path(number)).unwrap()).collect();
    log.retain();
    let began = Instant::now();
    while log.events_of(|e| matches!(e, Event::NotRecycled { .. })).is_empty() || !log.is_removed(9) {
        assert!(began.elapsed() < TEST_TIMEOUT, "{:?}", log.events.lock().unwrap());
        log.fill();
    }
    let refused = log.events_of(|e| matches!(e, Event::NotRecycled { segment, .. } if *segment < 10));
    assert!(matches!(&refused[0], Event::NotRecycled { reason, .. } if reason == "it has another link"), "{refused:?}");
    for (number, copy) in copies.iter().enumerate() {
        assert!(std::fs::read(elsewhere.path().join(number.to_string())).unwrap() == *copy, "{number} changed");
    }
    log.close();
}

#[test]
fn switched_off_or_pointless_it_is_not_done() {
    let fire = Policy::FireAndForget { sync_interval: Duration::ZERO };
    for config in [JournalConfig { recycle: false, ..config() }, JournalConfig { policy: fire, ..config() }] {
        let mut log = Log::open(config);
        log.fill();
        log.retain();
        for _ in 0..5 {
            log.fill();
        }
        log.wait(|log| log.is_removed(2));
        assert_eq!(log.events_of(|e| matches!(e, Event::Recycled { .. } | Event::NotRecycled { .. })), []);
        log.close();
    }
}
