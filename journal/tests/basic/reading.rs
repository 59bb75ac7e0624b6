//! Readers of a range of time, and of files that are not whole.

use clad_journal::{Append, Found, JournalConfig, Level, Policy, ReadError};

use super::{TEST_TIMEOUT, append, config, open, payload, wait};

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
        timed(n, b"one of them").submit(&journal).unwrap();
        wait(&journal, Level::Durable, n + 1);
        assert!(journal.rotate().blocking_recv().unwrap().unwrap().is_some());
    }
    assert!(journal.close(TEST_TIMEOUT));
    // Nothing of them is in memory now.
    let (journal, _) = open(dir.path(), config(Policy::GROUP_COMMIT));
    timed(SEGMENTS, b"the newest").submit(&journal).unwrap();
    wait(&journal, Level::Durable, SEGMENTS + 1);
    for wanted in [0, 1, SEGMENTS / 2, SEGMENTS - 1, SEGMENTS] {
        let time = 10 * wanted as i64;
        let mut reader = journal.reader(0, Level::Durable).within(time, time);
        let batch = reader.next_batch().unwrap().unwrap();
        assert_eq!((batch.first_offset, batch.count), (wanted, 1));
        assert!(reader.next_batch().unwrap().is_none(), "behind {wanted}");
        assert_eq!(reader.position(), SEGMENTS + 1);
    }
    assert!(journal.close(TEST_TIMEOUT));
}

/// Who looks for a time range that nothing is of comes back again and again, each time a bounded way further.
#[test]
fn a_look_for_a_time_range_passes_over_so_much_at_a_time() {
    const BATCHES: u64 = 64;
    const BYTES: usize = 64 << 10;
    const READ_BUDGET_BYTES: usize = 4 * BYTES;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (journal, _) = open(dir.path(), JournalConfig { segment_bytes: 8 << 20, ..config(Policy::GROUP_COMMIT) });
    let body = vec![b't'; BYTES];
    for n in 0..BATCHES {
        append(n, &body, Level::Durable).submit(&journal).unwrap();
        wait(&journal, Level::Durable, n + 1);
    }
    let mut reader = journal.reader(0, Level::Durable).within(100, 200);
    let mut looks = 0;
    loop {
        let (before, mut left) = (reader.position(), READ_BUDGET_BYTES);
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
    let (mut reader, mut left) = (journal.reader(0, Level::Durable), READ_BUDGET_BYTES);
    let mut given = 0;
    while let Found::Batch(_) = reader.look(&mut left).unwrap() {
        given += 1;
    }
    assert_eq!(given, 4);
    assert!(journal.close(TEST_TIMEOUT));
}

/// A segment that is cut short, at whatever length, costs what it held and nothing else.
#[test]
fn a_truncated_segment_is_damage_by_offsets_and_the_rest_is_read() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (journal, _) = open(dir.path(), config(Policy::GROUP_COMMIT));
    for i in 0..300u64 {
        append(i, &payload(i), Level::Durable).submit(&journal).unwrap();
        if i % 100 == 99 {
            wait(&journal, Level::Durable, i + 1);
            journal.rotate().blocking_recv().unwrap().unwrap();
        }
    }
    assert!(journal.close(TEST_TIMEOUT));
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
        assert!(journal.close(TEST_TIMEOUT));
    }
}
