//! Files that were damaged while nobody ran: what a start, `verify` and `repair` make of them, and say.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clad_journal::repair::{Action, repair};
use clad_journal::{Append, Journal, JournalConfig, Level, Policy, ReadError, VerifyReport, verify};

/// Only what hangs takes longer.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const RECORDS: u64 = 6;

fn config() -> JournalConfig {
    JournalConfig {
        policy: Policy::PerMessage,
        segment_bytes: 256 << 10,
        max_append_bytes: 64 << 10,
        reserve_free: 0,
        ..JournalConfig::default()
    }
}

fn open(dir: &Path) -> Journal {
    Journal::open_dir(dir, config(), Arc::new(|_| {})).unwrap()
}

fn close(journal: Journal) {
    assert!(journal.close(TEST_TIMEOUT));
}

/// Appends until there are so many, all durable.
fn fill(journal: &Journal, upto: u64) {
    for sequence in journal.watermarks().received..upto {
        let payload = format!("record {sequence}").into_bytes();
        Append {
            producer: [7; 16],
            owner: 1000,
            producer_epoch: 1,
            first_sequence: sequence,
            count: 1,
            gap: true, // what was lost is not sent again
            level: Level::Durable,
            min_time_ns: 1,
            max_time_ns: 2,
            peer_meta: b"v",
            payload: &payload,
            payload_checksum: clad_journal::format::checksum::plain(&payload),
            permit: None,
        }
        .submit(journal)
        .unwrap();
        let began = Instant::now();
        while journal.watermarks().durable <= sequence {
            assert!(began.elapsed() < TEST_TIMEOUT, "{:?}", journal.watermarks());
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn rotate(journal: &Journal) {
    assert!(journal.rotate().blocking_recv().unwrap().unwrap().is_some());
}

/// Three segments of [`RECORDS`] records each, the last one in use.
fn three(dir: &Path) -> Journal {
    let journal = open(dir);
    for n in 1..=3 {
        fill(&journal, n * RECORDS);
        if n < 3 {
            rotate(&journal);
        }
    }
    journal
}

/// The files as they are now, as `kill -9` would leave them.
fn killed(journal: &Journal, dir: &Path) -> tempfile::TempDir {
    let began = Instant::now();
    // Nothing is being made ready while this copies.
    while !journal.status().prepared {
        assert!(began.elapsed() < TEST_TIMEOUT);
        std::thread::sleep(Duration::from_millis(1));
    }
    copy(dir)
}

fn copy(dir: &Path) -> tempfile::TempDir {
    let to = folder();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap).filter(|e| e.file_type().unwrap().is_file()) {
        fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn segment(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.clog"))
}

fn flip(file: &Path, places: &[u64]) {
    let file = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    for at in places {
        let mut byte = [0];
        file.read_exact_at(&mut byte, *at).unwrap();
        file.write_all_at(&[byte[0] ^ 0xFF], *at).unwrap();
    }
}

fn readable(journal: &Journal) -> Vec<u64> {
    let (all, gaps) = readable_around(journal);
    assert!(gaps.is_empty(), "{gaps:?}");
    all
}

/// What is there, and where nothing is any more.
fn readable_around(journal: &Journal) -> (Vec<u64>, Vec<(u64, u64)>) {
    let mut reader = journal.reader(0, Level::Durable);
    let (mut all, mut gaps) = (Vec::new(), Vec::new());
    loop {
        match reader.next_batch() {
            Ok(Some(batch)) => all.extend(batch.chunks().map(|chunk| chunk.unwrap().0)),
            Ok(None) => return (all, gaps),
            Err(ReadError::Gap { from, to, damaged: true }) => gaps.push((from, to)),
            Err(e) => panic!("{e}"),
        }
    }
}

fn quarantine(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir.join("quarantine")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// One wrong byte costs nothing, in the segment in use as in the newest that is sealed.
#[test]
fn a_start_puts_one_wrong_byte_of_a_header_right() {
    let dir = folder();
    let journal = three(dir.path());
    let killed = killed(&journal, dir.path());
    close(journal);
    for (dir, byte) in [(killed.path(), 80), (dir.path(), 3)] {
        flip(&segment(dir, 2), &[byte]);
        let journal = open(dir);
        let report = journal.report();
        assert_eq!(report.corrected, [(2, byte as usize)], "{report}");
        assert!(
            !report.is_damaged() && report.is_remarkable() && report.to_string().contains("wrong byte"),
            "{report}"
        );
        assert_eq!(readable(&journal), (0..3 * RECORDS).collect::<Vec<_>>());
        assert!(quarantine(dir).iter().any(|name| name.ends_with(".header")), "{:?}", quarantine(dir));
        close(journal);
        let journal = open(dir);
        assert!(journal.report().corrected.is_empty() && journal.report().clean, "{}", journal.report());
        close(journal);
    }
}

/// An older `clad.meta`, put back, does not know the newest segment; and of that one the header is lost, or the first batch.
#[test]
fn what_clad_meta_does_not_know_and_is_not_empty_is_never_removed() {
    for wrong in [vec![80, 90], vec![4096 + 20, 4096 + 21]] {
        let dir = folder();
        let journal = open(dir.path());
        fill(&journal, RECORDS);
        rotate(&journal);
        fill(&journal, 2 * RECORDS);
        let old = fs::read(dir.path().join("clad.meta")).unwrap();
        rotate(&journal);
        fill(&journal, 3 * RECORDS);
        let killed = killed(&journal, dir.path());
        close(journal);
        let newest = segment(killed.path(), 2);
        flip(&newest, &wrong);
        fs::write(killed.path().join("clad.meta"), old).unwrap();
        let bytes = fs::read(&newest).unwrap();

        let journal = open(killed.path());
        let quarantined = format!("{:020}.clog.0", 2);
        assert_eq!(quarantine(killed.path()), [quarantined.as_str()], "{}", journal.report());
        assert!(fs::read(killed.path().join("quarantine").join(&quarantined)).unwrap() == bytes, "another content");
        assert_eq!(journal.report().unknown, [format!("quarantine/{quarantined}")]);
        assert!(
            journal.report().to_string().contains("a segment that is not in clad.meta, and not empty"),
            "{}",
            journal.report()
        );
        assert_eq!(readable(&journal), (0..2 * RECORDS).collect::<Vec<_>>());
        close(journal);
    }
}

/// What was only made ready goes, as ever.
#[test]
fn a_prepared_segment_that_does_not_fit_any_more_is_removed() {
    let dir = folder();
    let journal = three(dir.path());
    let killed = killed(&journal, dir.path());
    close(journal);
    let config = JournalConfig { segment_bytes: 512 << 10, ..config() };
    let journal = Journal::open_dir(killed.path(), config, Arc::new(|_| {})).unwrap();
    assert!(journal.report().unknown.is_empty() && quarantine(killed.path()).is_empty(), "{}", journal.report());
    assert_eq!(readable(&journal), (0..3 * RECORDS).collect::<Vec<_>>());
    close(journal);
}

fn checked(dir: &Path) -> VerifyReport {
    verify(dir, &mut |_, _| {}).unwrap()
}

/// The redundancy of `clad.meta` is gone, and a report says so before the other half is.
#[test]
fn a_slot_of_clad_meta_that_does_not_hold_is_reported_and_rewritten() {
    let dir = folder();
    let journal = three(dir.path());
    close(journal);
    let word = |report: &VerifyReport| report.notes.iter().any(|note| note.contains("copies in clad.meta"));
    assert!(!word(&checked(dir.path())));
    let whole = fs::read(dir.path().join("clad.meta")).unwrap();
    for slot in [0, 1] {
        let damaged = copy(dir.path());
        flip(&damaged.path().join("clad.meta"), &[slot * 32768 + 30]);
        let report = checked(damaged.path());
        assert!(word(&report) && report.problems.is_empty(), "{report:?}");
        let started = copy(damaged.path());

        assert_eq!(repair(damaged.path(), true).unwrap().actions, [Action::RewroteSlot]);
        assert!(word(&checked(damaged.path())), "a dry run has changed it");
        assert_eq!(repair(damaged.path(), false).unwrap().actions, [Action::RewroteSlot]);
        assert!(!word(&checked(damaged.path())));
        assert!(repair(damaged.path(), false).unwrap().actions.is_empty());

        let journal = open(started.path());
        let report = journal.report();
        assert!(report.meta_slot && report.is_remarkable() && report.to_string().contains("copies"), "{report}");
        assert_eq!(readable(&journal), (0..3 * RECORDS).collect::<Vec<_>>());
        close(journal);
        assert!(!word(&checked(started.path())));
    }
    // A new log has written one slot alone, and that is no damage.
    let new = folder();
    close(open(new.path()));
    assert!(!word(&checked(new.path())));
    // Cut in the second slot.
    fs::write(dir.path().join("clad.meta"), &whole[..32_800]).unwrap();
    assert!(word(&checked(dir.path())));
}

/// Six segments of one log beside a `clad.meta` of another: it is that which is wrong here.
#[test]
fn a_clad_meta_of_another_log_is_the_stranger() {
    let (dir, other) = (folder(), folder());
    close(three(dir.path()));
    close(three(other.path()));
    fs::copy(other.path().join("clad.meta"), dir.path().join("clad.meta")).unwrap();
    let report = repair(dir.path(), true).unwrap();
    assert!(
        matches!(report.actions[..], [Action::QuarantinedOtherMeta { .. }, Action::RebuiltMeta { .. }]),
        "{report:?}"
    );
    assert!(report.left.is_empty());
    assert_eq!(repair(dir.path(), false).unwrap().actions, report.actions);
    assert_eq!(quarantine(dir.path()), ["clad.meta.0"]);
    let journal = open(dir.path());
    assert_eq!(readable(&journal), (0..3 * RECORDS).collect::<Vec<_>>());
    close(journal);
    // One of the other log beside its own clad.meta is still the stranger itself.
    fs::copy(segment(other.path(), 1), segment(dir.path(), 1)).unwrap();
    let report = repair(dir.path(), true).unwrap();
    assert!(matches!(report.actions[..], [Action::QuarantinedOtherLog { segment: 1, .. }]), "{report:?}");
}

/// What a start had to give up as a whole is named for as long as nobody has seen to it.
#[test]
fn a_segment_that_was_given_up_is_named_by_verify_until_it_is_moved_away() {
    let dir = folder();
    let journal = three(dir.path());
    let killed = killed(&journal, dir.path());
    close(journal);
    flip(&segment(killed.path(), 2), &[80, 90]);
    let journal = open(killed.path());
    assert_eq!(journal.report().unreadable, [2], "{}", journal.report());
    close(journal);
    for _ in 0..2 {
        let problems = checked(killed.path()).problems;
        assert!(problems.iter().any(|p| p.segment == Some(2) && p.text.contains("header was lost")), "{problems:?}");
        close(open(killed.path()));
    }
    fs::remove_dir_all(killed.path().join("quarantine")).unwrap();
    assert!(checked(killed.path()).problems.is_empty());
}

/// One damage is one: what the repair of it changed is none.
#[test]
fn a_cut_segment_that_was_sealed_again_is_one_damage() {
    let dir = folder();
    close(three(dir.path()));
    let cut = segment(dir.path(), 1);
    let len = fs::metadata(&cut).unwrap().len();
    assert!(len > 8192);
    fs::OpenOptions::new().write(true).open(&cut).unwrap().set_len(4096 + 400).unwrap();
    let report = repair(dir.path(), false).unwrap();
    assert!(matches!(report.actions[..], [Action::Resealed { segments: (1, 1), .. }]), "{report:?}");
    let report = checked(dir.path());
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert!(report.problems[0].offsets.is_some_and(|(from, to)| from > RECORDS && to == 2 * RECORDS), "{report:?}");
}

/// Nothing but `clad.meta` shows that there was more than is left of the newest segment, and no offset of it is given out again.
#[test]
fn what_the_newest_segment_has_lost_since_a_clean_end_is_reported() {
    let dir = folder();
    close(three(dir.path()));
    let end = 3 * RECORDS;
    let len = fs::metadata(segment(dir.path(), 2)).unwrap().len();
    let half = |path: &Path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096 + 400).unwrap();
    let all = |path: &Path| fs::remove_file(path).unwrap();
    let footer = |path: &Path| flip(path, &[len - 4]);
    for (how, hit) in [("half", &half as &dyn Fn(&Path)), ("all", &all), ("its footer", &footer)] {
        let damaged = copy(dir.path());
        hit(&segment(damaged.path(), 2));
        let before = checked(damaged.path());
        // Damage at the end lies below the last watermark, so it is no torn tail.
        let tail = before.notes.iter().any(|note| note.contains(&format!("of the damage before offset {end}")));
        assert_eq!(
            (tail, before.notes.iter().any(|note| note.contains("torn tail"))),
            (how == "half", false),
            "{how}: {before:?}"
        );
        let journal = open(damaged.path());
        let report = journal.report();
        let (left, gaps) = readable_around(&journal);
        assert!(left.starts_with(&(0..2 * RECORDS).collect::<Vec<_>>()), "{how}: {left:?}");
        match how {
            "half" => assert!((2 * RECORDS + 1..end).contains(&(left.len() as u64)), "{how}: {left:?}"),
            "all" => assert_eq!(left.len() as u64, 2 * RECORDS, "{how}"),
            _ => assert_eq!(left.len() as u64, end, "{how}"),
        }
        let lost: u64 = report.damage.iter().map(|lost| lost.to - lost.from).sum();
        assert_eq!((lost, report.next_offset, report.clean), (end - left.len() as u64, end, false), "{how}: {report}");
        assert_eq!(gaps, if lost > 0 { vec![(left.len() as u64, end)] } else { Vec::new() }, "{how}");
        // A segment that is not there counts as that: its file may be put back.
        let expected = if how == "all" { [0, 1, 0, 0] } else { [lost, 0, 0, u64::from(how != "all")] };
        assert_eq!(losses(&journal), expected, "{how}");
        fill(&journal, end + 1);
        let (again, _) = readable_around(&journal);
        assert_eq!((again.len(), again.last()), (left.len() + 1, Some(&end)), "{how}");
        close(journal);
        // It is reported for as long as it is so, and what the clean end behind it says is of that one.
        let journal = open(damaged.path());
        assert_eq!((journal.report().clean, journal.report().next_offset), (how != "all", end + 1), "{how}");
        assert_eq!(losses(&journal)[..2], expected[..2], "{how}");
        close(journal);
        let problems = checked(damaged.path()).problems;
        let named: u64 = problems.iter().filter_map(|p| p.offsets).map(|(from, to)| to - from).sum();
        assert_eq!((named, problems.is_empty()), (lost, lost == 0), "{how}: {problems:?}");
    }
}

fn losses(journal: &Journal) -> [u64; 4] {
    let losses = journal.losses();
    assert_eq!(losses.are_there(), losses != clad_journal::Losses::default());
    assert!(losses.are_there() || !journal.report().is_damaged(), "{}", journal.report());
    [losses.records, losses.missing, losses.unreadable, losses.missing_footer]
}

/// Each start reports what is lost, until that is over; not only by the one that found it.
#[test]
fn losses_stay_over_restarts_until_they_are_over() {
    let dir = folder();
    let journal = three(dir.path());
    assert_eq!(losses(&journal), [0, 0, 0, 0]);
    let [first, second] = [killed(&journal, dir.path()), killed(&journal, dir.path())];
    close(journal);

    // A record of the newest segment, which others behind it prove; and a segment that is away, before it or long before it.
    let bytes = fs::read(segment(first.path(), 2)).unwrap();
    let body = format!("record {}", 2 * RECORDS + 2).into_bytes();
    let at = bytes.windows(body.len()).position(|window| window == body).unwrap();
    flip(&segment(first.path(), 2), &[at as u64]);
    for missing in [0, 1] {
        let dir = copy(first.path());
        let elsewhere = folder();
        let away = elsewhere.path().join("segment");
        fs::rename(segment(dir.path(), missing), &away).unwrap();
        for is_new in [true, false] {
            let journal = open(dir.path());
            assert_eq!(!journal.report().damage.is_empty(), is_new, "{}", journal.report());
            assert_eq!(losses(&journal), [1, 1, 0, 0]);
            close(journal);
        }
        fs::rename(&away, segment(dir.path(), missing)).unwrap();
        let journal = open(dir.path());
        assert_eq!(losses(&journal), [1, 0, 0, 0], "the segment is back");
        close(journal);
    }

    // The header of a segment that is in use: nobody knows what it held.
    flip(&segment(second.path(), 2), &[80, 90]);
    for found in [1, 0] {
        let journal = open(second.path());
        assert_eq!(journal.report().unreadable.len(), found, "{}", journal.report());
        assert_eq!(losses(&journal)[1..], [0, 1, 0]);
        close(journal);
    }
    fs::remove_dir_all(second.path().join("quarantine")).unwrap();
    let journal = open(second.path());
    assert_eq!(losses(&journal)[1..], [0, 0, 0], "an operator has seen to it");
    close(journal);
}
