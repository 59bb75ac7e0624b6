//! A whole log, damaged in every way that files can be, and then started.
//!
//! Invariants: a start ends, with a log or with an error that a program can distinguish; it never panics. What is
//! read after it is what was stored at that offset, byte for byte; what is not read any more is reported: by a gap of
//! the reader, by the report of the start, or by its refusal. A second start comes to the same records.
//!
//! Bounds: two logs of four segments (one ended cleanly, one killed), at most 64 changes to their files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clad_journal::format::META_NAME;
use clad_journal::format::checksum::plain;
use clad_journal::format::meta::SLOT;
use clad_journal::repair::{RepairReport, repair_storage};
use clad_journal::stepper::{Next, Stepper};
use clad_journal::{Append, JournalConfig, Level, OpenError, Policy, ReadError};
use clad_sim::{SimClock, SimDisk};

const SEGMENT_BYTES: u64 = 64 << 10;
const APPENDS: u64 = 48;
const CHANGES: usize = 64;

struct Log {
    files: BTreeMap<String, Vec<u8>>,
    /// Payload of the append that starts at each offset, and its count.
    appends: BTreeMap<u64, (u32, Vec<u8>)>,
    end: u64,
    clean: bool,
}

/// What a start came to.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// Offsets that were read, with what they hold.
    read: BTreeMap<u64, (u32, Vec<u8>)>,
    /// Offsets that the reader says are not there.
    gaps: Vec<(u64, u64)>,
    /// Where the log goes on.
    next_offset: u64,
}

/// The first byte picks the log; each further 8 are one change.
pub(crate) fn recovery(data: &[u8]) {
    let Some((first, script)) = data.split_first() else { return };
    let log = &logs()[usize::from(first & 1)];
    let mut files = log.files.clone();
    for change in script.chunks_exact(8).take(CHANGES) {
        apply(&mut files, change);
    }
    let segments_untouched =
        files.iter().filter(|f| f.0 != META_NAME).eq(log.files.iter().filter(|f| f.0 != META_NAME));
    let disk = SimDisk::new(u64::from(*first));
    for (name, bytes) in &files {
        disk.install(name, bytes);
    }
    let repaired = repair(&files, *first);
    // Segments that are all there, under whatever names and however often, are all a repair needs.
    let contents = |files: &BTreeMap<String, Vec<u8>>| -> BTreeSet<Vec<u8>> {
        files.iter().filter(|f| f.0 != META_NAME).map(|f| f.1.clone()).collect()
    };
    if log.clean && contents(&files) == contents(&log.files) {
        let repaired = repaired.as_ref().expect("whole segments can be repaired");
        assert!(*repaired == log.appends, "a repair of whole segments lost records");
    }
    let Some((outcome, reported)) = start(&disk) else { return };
    if let Some(repaired) = &repaired {
        for (offset, append) in &outcome.read {
            assert!(repaired.get(offset) == Some(append), "a repair lost offset {offset}, which a start finds");
        }
    }
    for (offset, append) in &outcome.read {
        let stored = log.appends.get(offset);
        assert!(stored == Some(append), "offset {offset} holds what was never stored there");
    }
    // What a kill left has no proof of its last records; below the next offset nothing may vanish there either. And a
    // slot of `clad.meta` that is lost costs no record at all.
    let below = if log.clean || segments_untouched { log.end } else { outcome.next_offset };
    if !reported {
        for (offset, (count, _)) in log.appends.range(..below) {
            let gone = outcome.gaps.iter().any(|(from, to)| from <= offset && offset + u64::from(*count) <= *to);
            assert!(gone || outcome.read.contains_key(offset), "offset {offset} of {} vanished in silence", log.end);
        }
    }
    // Again, as after a kill: the same log.
    let again = disk.reopen();
    disk.kill();
    match start(&again) {
        Some((second, _)) => assert_eq!(second.read, outcome.read, "the second start reads something else"),
        None => panic!("the second start is refused"),
    }
}

/// What is read after a repair and a start; nothing where there is no log that could be repaired.
fn repair(files: &BTreeMap<String, Vec<u8>>, seed: u8) -> Option<BTreeMap<u64, (u32, Vec<u8>)>> {
    let disk = SimDisk::new(u64::from(seed));
    for (name, bytes) in files {
        disk.install(name, bytes);
    }
    let clock = SimClock::new(disk.boot_id());
    let before = disk.digest();
    let planned = repair_storage(&disk, "fuzz", clock.as_ref(), true);
    assert_eq!(disk.digest(), before, "a dry run changed something");
    let done = match repair_storage(&disk, "fuzz", clock.as_ref(), false) {
        Ok(done) => done,
        Err(error) => {
            assert!(matches!(error, OpenError::MetaLost { .. } | OpenError::Newer(_)), "{error}");
            return None;
        }
    };
    let planned = planned.expect("what can be done can be planned");
    let kinds = |report: &RepairReport| report.actions.iter().map(std::mem::discriminant).collect::<Vec<_>>();
    assert_eq!(kinds(&planned), kinds(&done), "the dry run said {planned:?}, done was {done:?}");
    assert_eq!(planned.left, done.left);
    let again = disk.reopen();
    disk.kill();
    let second = repair_storage(&again, "fuzz", clock.as_ref(), false).expect("a second repair");
    assert!(second.actions.is_empty(), "a second repair found more to do: {second:?} after {done:?}");
    let disk = again.reopen();
    again.kill();
    match start(&disk) {
        Some((outcome, _)) => Some(outcome.read),
        None => panic!("a start is refused after {done:?}"),
    }
}

/// The log as a start makes it, and whether the start itself reported a loss; nothing where it refuses.
fn start(disk: &SimDisk) -> Option<(Outcome, bool)> {
    let disk_was_empty = !disk.names().iter().any(|name| name.ends_with(".clog"));
    let stepper = match Stepper::open(Arc::new(disk.clone()), SimClock::new(disk.boot_id()), config(), Arc::new(|_| {}))
    {
        Ok(stepper) => stepper,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(!matches!(error, OpenError::Config(_) | OpenError::Locked { .. }), "{error}");
            return None;
        }
    };
    let report = stepper.report();
    let reported = report.is_damaged() || report.fresh;
    // Nothing is left that says that there was a log: then there is a new one, with another id.
    assert!(!report.fresh || disk_was_empty, "a new log over the segments of an old one");
    assert!(!report.to_string().is_empty());
    let mut outcome = Outcome { read: BTreeMap::new(), gaps: Vec::new(), next_offset: report.next_offset };
    let mut reader = stepper.reader(0, Level::Durable);
    // Each step reads a batch or passes a gap; a log of this size has fewer of both.
    for _ in 0..10_000 {
        match reader.next_batch() {
            Ok(None) => return Some((outcome, reported)),
            Ok(Some(batch)) => {
                for chunk in batch.chunks() {
                    let (offset, chunk) = chunk.expect("a batch that a reader gives is whole");
                    outcome.read.insert(offset, (chunk.header.count, chunk.payload.to_vec()));
                }
            }
            Err(ReadError::Gap { from, to, .. }) => {
                assert!(from < to, "a gap of nothing at {from}");
                outcome.gaps.push((from, to));
            }
            Err(error @ ReadError::Io { .. }) => panic!("the simulated disk has no errors here: {error}"),
        }
    }
    panic!("the reader does not come to an end");
}

fn apply(files: &mut BTreeMap<String, Vec<u8>>, change: &[u8]) {
    let names: Vec<String> = files.keys().cloned().collect();
    let name = &names[usize::from(change[0]) % names.len()];
    let other = names[usize::from(change[6]) % names.len()].clone();
    let scale = u32::from_le_bytes([change[2], change[3], change[4], 0]) as usize;
    let bytes = files.get_mut(name).expect("one of its names");
    let at = if bytes.is_empty() { 0 } else { scale * bytes.len() / (1 << 24) };
    match change[1] % 13 {
        0..=2 if !bytes.is_empty() => bytes[at] ^= 1 << (change[5] % 8),
        3 if !bytes.is_empty() => bytes[at] = change[5],
        // The front and the end are where the meaning is.
        4 if bytes.len() > 128 => bytes[usize::from(change[5]) % 128] ^= change[7].max(1),
        5 if bytes.len() > 128 => {
            let from_end = bytes.len() - 1 - usize::from(change[5]) % 128;
            bytes[from_end] ^= change[7].max(1);
        }
        6 if name == META_NAME => {
            let slot = usize::from(change[5] & 1) * SLOT;
            bytes.iter_mut().skip(slot).take(512).for_each(|b| *b = 0);
        }
        6 => bytes[at..].iter_mut().take(512).for_each(|b| *b = 0),
        7 => bytes.truncate(at),
        8 => bytes.extend(std::iter::repeat_n(change[5], scale % 8192)),
        9 => {
            let copy = bytes.clone();
            files.insert(other, copy);
        }
        12 if *name != META_NAME && other != META_NAME => {
            let moved = files.remove(name).unwrap_or_default();
            if let Some(back) = files.insert(other, moved) {
                files.insert(name.clone(), back);
            }
        }
        10 if names.len() > 1 => {
            files.remove(name);
        }
        _ => {
            let end = (at + 4096).min(bytes.len());
            let moved: Vec<u8> = bytes[at..end].to_vec();
            let to = (usize::from(change[5]) << 9).min(bytes.len().saturating_sub(moved.len()));
            bytes[to..to + moved.len()].copy_from_slice(&moved);
        }
    }
}

fn config() -> JournalConfig {
    JournalConfig {
        policy: Policy::GroupCommit { max_delay: Duration::ZERO, max_bytes: 8 << 10, in_flight: 2 },
        segment_bytes: SEGMENT_BYTES,
        max_append_bytes: 16 << 10,
        reserve_free: 0,
        rotate_after: Duration::ZERO,
        max_producers: 8,
        window: 16,
        ..JournalConfig::default()
    }
}

fn logs() -> &'static [Log; 2] {
    static LOGS: OnceLock<[Log; 2]> = OnceLock::new();
    LOGS.get_or_init(|| [build(true), build(false)])
}

fn build(clean: bool) -> Log {
    let disk = SimDisk::new(1);
    let clock = SimClock::new(disk.boot_id());
    let stepper = Stepper::open(Arc::new(disk.clone()), clock.clone(), config(), Arc::new(|_| {})).expect("a new log");
    let mut appends = BTreeMap::new();
    let (mut sequence, mut end) = (0, 0);
    for i in 0..APPENDS {
        stepper.prepare();
        let payload: Vec<u8> = (0..500 + (i * 997) % 7000).map(|k| (k * 31 + i * 7) as u8 | 1).collect();
        let count = 1 + (i % 5) as u32;
        let accepted = stepper.append(Append {
            producer: [9; 16],
            owner: 0,
            producer_epoch: 0,
            first_sequence: sequence,
            count,
            gap: false,
            level: Level::Durable,
            min_time_ns: 1,
            max_time_ns: 2,
            peer_meta: b"",
            payload: &payload,
            payload_checksum: plain(&payload),
            permit: None,
        });
        assert_eq!(accepted.expect("room for it").first_offset, end);
        appends.insert(end, (count, payload));
        sequence += u64::from(count);
        end += u64::from(count);
        drive(&stepper, &clock);
    }
    assert_eq!(stepper.watermarks().durable, end);
    if clean {
        stepper.close();
        drive(&stepper, &clock);
    } else {
        disk.kill();
    }
    let names = disk.names().into_iter().filter(|n| n.ends_with(".clog") || n == "clad.meta");
    let files: BTreeMap<String, Vec<u8>> = names.map(|n| (n.clone(), disk.peek(&n).unwrap_or_default())).collect();
    assert!(files.len() > 4, "several segments are wanted: {:?}", files.keys());
    Log { files, appends, end, clean }
}

/// Lets the journal do all that it wants to do.
fn drive(stepper: &Stepper, clock: &SimClock) {
    loop {
        match stepper.begin() {
            Next::Job(job) => stepper.execute(job),
            Next::Wait(Some(_)) if stepper.watermarks().durable < stepper.watermarks().received => {
                clock.step(Duration::from_millis(10));
            }
            Next::Wait(_) | Next::Exit => return,
        }
    }
}
