//! Appends beside each other: how they are grouped, what is known of their producers, and that somebody still writes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clad_journal::{AfterRefusal, Append, AppendError, Event, Item, Journal, JournalConfig, Level, Policy, Sender};

use super::{TEST_TIMEOUT, append, config, open, read_all, wait};

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
    append(0, b"before", Level::Durable).submit(&journal).unwrap();
    wait(&journal, Level::Durable, 1);
    journal.set_group_commit(Duration::from_millis(1), 4096, 4).unwrap();
    let payload = [7; 1000];
    let mut sequence = 1;
    // In the segment that is open for one write, and in one that is open for four.
    for _ in 0..2 {
        let before = batches(&events).len();
        for _ in 0..100 {
            append(sequence, &payload, Level::Durable).submit(&journal).unwrap();
            sequence += 1;
        }
        wait(&journal, Level::Durable, sequence);
        let sizes = batches(&events)[before..].to_vec();
        assert!(sizes.iter().all(|&records| records <= 4), "four of 1000 bytes fit 4096: {sizes:?}");
        assert_eq!(sizes.iter().sum::<u32>(), 100);
        journal.rotate().blocking_recv().unwrap().unwrap();
    }
    journal.set_group_commit(Duration::from_millis(1), 1 << 20, 1).unwrap();
    append(sequence, b"after", Level::Durable).submit(&journal).unwrap();
    wait(&journal, Level::Durable, sequence + 1);
    assert_eq!(read_all(&journal).len() as u64, sequence + 1);
    // More than a segment holds is taken for what it holds.
    sequence += 1;
    journal.set_group_commit(Duration::from_millis(50), 64 << 20, 1).unwrap();
    let (large, before) = (vec![7; 100 << 10], batches(&events).len());
    for _ in 0..30 {
        append(sequence, &large, Level::Durable).submit(&journal).unwrap();
        sequence += 1;
    }
    wait(&journal, Level::Durable, sequence);
    let sizes = batches(&events)[before..].to_vec();
    assert!(sizes.iter().all(|&records| records <= 10), "ten of 100 KiB fit 1 MiB: {sizes:?}");
    assert!(journal.close(TEST_TIMEOUT));
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
            assert!(began.elapsed() < TEST_TIMEOUT, "{what} never came");
            pause();
        }
    };
    for _ in 0..3 {
        journal.heartbeat().unwrap();
        pause();
    }
    append(0, b"its sync hangs", Level::Written).submit(&journal).unwrap();
    until("the sync", &|| inside.load(Ordering::SeqCst) == 1);
    let mut three = append(1, b"its write hangs", Level::Written);
    three.count = 3;
    three.submit(&journal).unwrap();
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
    two.submit(&journal).unwrap();
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
                let from = Sender {
                    producer: [producer; 16],
                    owner: 1000,
                    producer_epoch: 1,
                    peer_meta: b"v",
                    resend: None,
                    forward: None,
                };
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
                    let runs = [(&from, &items[..])];
                    let now = journal.now();
                    drop(
                        journal.append(runs, AfterRefusal::Judge, None, now, |a| offsets.push(a.unwrap().first_offset)),
                    );
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
    assert!(journal.close(TEST_TIMEOUT));
}

/// What is asked of the table of producers beside an append: whether the next one would be refused for its producer, and
/// whether a record is there.
#[test]
fn a_producers_state_is_returned_as_an_append_would_find_it() {
    let dir = tempfile::tempdir().unwrap();
    let config = JournalConfig { max_producers: 1, ..config(Policy::PerMessage) };
    let (journal, _) = open(dir.path(), config);
    let (id, other, owner) = ([7; 16], [8; 16], 1000);
    assert_eq!(journal.may_append(&id, owner, 1).unwrap(), None, "there is room for it");
    assert_eq!(journal.is_stored(&id, owner, 0), None, "there may have been more before it");
    for (sequence, gap) in [(0, false), (1, false), (5, true)] {
        Append { gap, ..append(sequence, b"x", Level::Written) }.submit(&journal).unwrap();
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
    assert_eq!(journal.is_stored(&other, owner, 3), None, "it may have been forgotten");
}

/// Where a policy leaves what is written for a later sync, its age is that of the record, from when it was taken; and the
/// disk, of which nothing has been asked, is not said to be busy.
#[test]
fn what_waits_for_a_later_sync_is_as_old_as_the_record_and_no_fault_of_the_disk() {
    for sync_interval in [Duration::ZERO, Duration::from_secs(3600)] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (journal, _) = open(dir.path(), config(Policy::FireAndForget { sync_interval }));
        assert_eq!(journal.status().oldest_undurable, None);
        // A silence before it is none of its age.
        std::thread::sleep(Duration::from_millis(50));
        let began = Instant::now();
        append(0, b"first", Level::Written).submit(&journal).unwrap();
        wait(&journal, Level::Written, 1);
        append(1, b"second", Level::Written).submit(&journal).unwrap();
        wait(&journal, Level::Written, 2);
        let status = journal.status();
        let age = status.oldest_undurable.expect("not synced");
        assert!(age <= began.elapsed(), "{age:?} of {:?}", began.elapsed());
        assert_eq!((status.disk_busy, status.watermarks.durable), (None, 0));
        let target = journal.request_sync();
        wait(&journal, Level::Durable, target);
        assert_eq!(journal.status().oldest_undurable, None);
        assert!(journal.close(TEST_TIMEOUT));
    }
}
