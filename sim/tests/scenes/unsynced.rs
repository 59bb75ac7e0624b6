//! What is written and not synced yet, when its sync fails: batches under `fire_and_forget`, and a commit marker under any policy.

use clad_journal::clock::Clock;

use super::*;

/// The first one was of the start before.
const SECOND: &str = "00000000000000000001.clog";

/// A write repeats the bytes of the block it begins in, which were synced long ago, and its sync fails: the block may be
/// gone. What was in it is written again elsewhere.
pub(crate) fn repeated_block() {
    let mut stage = Stage::new();
    stage.config.policy = Policy::FireAndForget { sync_interval: Duration::from_secs(1) };
    stage.start();
    let acknowledged = stage.append_for(Level::Written, 200, None);
    stage.run();
    stage.clock.step(Duration::from_secs(2));
    stage.run();
    assert_eq!(stage.journal().watermarks().durable, 1);
    stage.append_for(Level::Written, 200, None);
    stage.run();
    assert_eq!((stage.journal().watermarks().written, stage.journal().watermarks().durable), (2, 1));
    stage.disk.fail_next(OpKind::SyncData, ".clog", DiskFault::Io);
    stage.clock.step(Duration::from_secs(2));
    stage.run();
    assert_eq!(stage.journal().watermarks().failures, 1);
    stage.disk.spoil(SECOND, BATCHES); // the device could not finish the sector
    stage.disk.evict(); // and what the failed sync marked clean was not kept
    stage.clock.step(Duration::from_secs(2));
    stage.run();
    stage.rest();
    assert_eq!(stage.journal().watermarks().durable, 2);
    stage.cut_power(Survival::None);
    stage.start();
    assert_eq!(stage.read(acknowledged), Some(vec![1; 200]), "{}", stage.journal().report());
}

/// The last durable batch is proven by no batch behind it. The failed segment gets its footer, and nothing in it is
/// written again in place: the superseding segment proves it, and the device fails.
pub(crate) fn ended_by_a_footer_alone() {
    // One of these lengths ends on a block: only that batch is proven by none behind it in the segment.
    for len in (2000..2000 + 4096).step_by(64) {
        let mut stage = Stage::new();
        (stage.config.policy, stage.config.recent_bytes) = (Policy::GROUP_COMMIT, 256);
        stage.start();
        for _ in 0..3 {
            stage.append(len, None);
            stage.run();
        }
        stage.disk.fail_next(OpKind::SyncedWrite, ".clog", DiskFault::Io);
        stage.append(len, None);
        stage.run();
        assert_eq!((stage.journal().watermarks().durable, stage.journal().watermarks().failures), (3, 1));
        let written = stage.disk.counters_of(SECOND).writes;
        stage.clock.step(Duration::from_secs(2));
        stage.run();
        assert_eq!(stage.journal().watermarks().durable, 4);
        assert_eq!(stage.disk.counters_of(SECOND).writes, written + 1, "its footer, at {len}");
        stage.cut_power(Survival::None);
        stage.start();
        for offset in 0..4 {
            let right = Some(vec![offset as u8 + 1; len]);
            assert_eq!(stage.read(offset), right, "{len}: {}", stage.journal().report());
        }
    }
}

/// What has the journal look at its segment again after a commit marker.
#[derive(Clone, Copy, Debug)]
enum After {
    Rotation,
    Close,
    Append,
}

/// A commit marker repeats the bytes of the block it goes into, which were synced with their batches, and is not synced itself. Where it
/// goes through the page cache, the kernel writes it back at leisure; that fails, and the device has lost what it held
/// there. Whatever comes next gets the error, and what was in the block is written again from memory, be it that the last batch in
/// it has driven the one before it out of what is kept for readers.
pub(crate) fn commit_marker_block() {
    let range = Policy::SyncFileRange { max_delay: Duration::ZERO, max_bytes: 64 << 10, in_flight: 2 };
    let policies = [range, Policy::GROUP_COMMIT, Policy::PerMessage];
    let afters = [After::Rotation, After::Close, After::Append];
    // The last of these leaves one block behind the commit marker: a footer there ends the file, and would hold.
    let logs = [&[5000, 200][..], &[14_000, 14_000, 14_000, 12_000]];
    let cases = policies.iter().flat_map(|p| afters.map(|after| (*p, after)));
    for ((policy, after), lens) in cases.flat_map(|case| logs.map(|lens| (case, lens))) {
        let options = Options { direct: false, volatile_cache: false, ..Options::default() };
        let mut stage = Stage::on(SimDisk::with_options(1, options));
        (stage.config.policy, stage.config.recent_bytes) = (policy, 256);
        stage.start();
        for len in lens {
            stage.append(*len, None);
            stage.run();
        }
        let what = format!("{policy:?}, {after:?}, {lens:?}");
        assert_eq!(stage.journal().watermarks().durable, lens.len() as u64, "{what}");
        let writes = stage.disk.counters().writes;
        stage.rest();
        assert_eq!(stage.disk.counters().writes, writes + 1, "it writes a commit marker: {what}");
        assert!(stage.disk.destroy_in_writeback(SECOND), "the commit marker is synced: {what}");
        match after {
            After::Rotation => stage.journal().request_rotate(),
            After::Close => stage.journal().close(),
            After::Append => assert_eq!(stage.append(300, None), lens.len() as u64),
        }
        stage.run();
        assert_eq!(stage.journal().watermarks().failures, 1, "{what}");
        stage.clock.step(Duration::from_secs(2));
        stage.run();
        if !matches!(after, After::Close) {
            let there: Vec<_> = (0..lens.len() as u64).map(|offset| stage.read(offset).is_some()).collect();
            assert!(there.iter().all(|is| *is), "{what}: {there:?}");
        }
        stage.cut_power(Survival::None);
        stage.start();
        for (offset, len) in (0..).zip(lens) {
            let found = stage.read(offset);
            assert_eq!(
                found,
                Some(vec![offset as u8 + 1; *len]),
                "offset {offset}, {what}: {}",
                stage.journal().report()
            );
        }
    }
}

/// A rotation fails, and the recovery in the process that writes everything elsewhere is killed at any one of its operations. Then
/// the new segment loses its footer, which said what it repeats, and a record in the old one may be hit: of what is left there,
/// behind what the old one's footer was written over or that record, nothing is preferred to what is whole in the new one.
pub(crate) fn repeated_segment() {
    const THIRD: &str = "00000000000000000002.clog";
    const RECORDS: u64 = 6;
    let failed = || {
        let mut stage = Stage::new();
        stage.config.policy = Policy::FireAndForget { sync_interval: Duration::from_secs(3600) };
        stage.start();
        for _ in 0..RECORDS {
            stage.append_for(Level::Written, 5000, None);
            stage.run();
        }
        stage.disk.fail_next(OpKind::SetLen, ".clog", DiskFault::Io);
        stage.journal().request_rotate();
        stage.run();
        assert_eq!((stage.journal().watermarks().failures, stage.journal().watermarks().durable), (1, 0));
        stage.clock.step(Duration::from_secs(2));
        stage
    };
    let well = failed();
    let from = well.disk.ops();
    well.run();
    let (to, mut written_over) = (well.disk.ops(), 0);
    // Where the footer of the rotation is left, it proves all; else nothing does.
    let hits = [(None, true), (None, false), (Some(2), true), (Some(2), false)];
    for (at, (hit, proven)) in (from..to).flat_map(|at| hits.map(|hits| (at, hits))) {
        let mut stage = failed();
        stage.disk.fail_at(at, DiskFault::Kill);
        stage.run();
        stage.die();
        let find = |bytes: &[u8], record: u8| bytes.windows(5000).position(|w| w == [record + 1; 5000]);
        let Some(new) = stage.disk.peek(THIRD).filter(|new| find(new, 0).is_some()) else { continue };
        let old = stage.disk.peek(SECOND).expect("it is there");
        written_over += u64::from(find(&old, 0).is_none() && find(&old, 2).is_some());
        if let Some(at) = hit.and_then(|record| find(&old, record)) {
            stage.disk.flip(SECOND, at as u64, 1);
        }
        if let Some(at) = find(&old, 5).filter(|_| !proven) {
            stage.disk.flip(SECOND, (at as u64 + 5000).next_multiple_of(4096), 1);
        }
        stage.disk.flip(THIRD, new.len() as u64 - 1, 1);
        stage.start();
        let there = (0..RECORDS).map(|offset| stage.read(offset) == Some(vec![offset as u8 + 1; 5000]));
        let (there, report) = (there.collect::<Vec<_>>(), stage.journal().report());
        let what = format!("operation {at}, of {from} to {to}, {hit:?} is hit, {proven}: {there:?}, {report}");
        assert!(there.iter().all(|is| *is) && report.damage.is_empty(), "{what}");
    }
    assert!(written_over > 0, "never is it killed when it has written the footer and not made the file shorter");
}

/// A commit marker is unsynced until its block is written again and that is synced: a failure later than that concerns nothing that was
/// durable, and recovery makes no segment for it.
pub(crate) fn written_over() {
    for policy in [Policy::GROUP_COMMIT, Policy::PerMessage] {
        let options = Options { direct: false, ..Options::default() };
        let mut stage = Stage::on(SimDisk::with_options(1, options));
        stage.config.policy = policy;
        stage.start();
        stage.append(200, None);
        stage.rest();
        stage.append(5000, None);
        stage.run();
        assert_eq!(stage.journal().watermarks().durable, 2);
        stage.disk.fail_next(OpKind::SyncedWrite, ".clog", DiskFault::Io);
        stage.journal().request_rotate();
        stage.run();
        assert_eq!((stage.journal().watermarks().failures, stage.journal().meta().highest_segment), (1, 1));
        // The first attempt may get the same error, through another open file.
        for _ in 0..2 {
            stage.clock.step(Duration::from_secs(3));
            stage.run();
        }
        assert_eq!(stage.append(200, None), 2);
        stage.run();
        assert_eq!(stage.journal().meta().highest_segment, 2, "{policy:?}: durable records are written again");
    }
}

/// Nobody waits for a commit marker: what is written an hour after it is not an hour old.
pub(crate) fn age() {
    let mut stage = Stage::new();
    stage.config.policy = Policy::FireAndForget { sync_interval: Duration::from_secs(1) };
    stage.start();
    stage.append_for(Level::Written, 200, None);
    stage.clock.step(Duration::from_secs(2));
    stage.rest();
    assert_eq!((stage.journal().watermarks().durable, stage.journal().oldest_undurable_boot_ns()), (1, None));
    stage.rest();
    stage.clock.step(Duration::from_secs(3600));
    let now = stage.clock.boot_ns();
    stage.append_for(Level::Written, 200, None);
    let Next::Job(write) = stage.journal().begin() else { panic!("nothing to write") };
    stage.journal().execute(write);
    assert_eq!((stage.journal().watermarks().written, stage.journal().watermarks().durable), (2, 1));
    assert_eq!(stage.journal().oldest_undurable_boot_ns(), Some(now));
}
