//! `kill -9` at the level of the library: a process appends and says what was acknowledged, another kills it after a
//! seeded number of acknowledgements, starts the next on the same folder, and reads everything back.
//!
//! The child is this test binary itself; an environment variable says what to do.

#![allow(clippy::print_stdout)] // it says its seed and what it did

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use clad_journal::format::segment::SegmentHeader;
use clad_journal::io::EngineWish;
use clad_journal::io::device::discover;
use clad_journal::{Append, Journal, JournalConfig, Level, OfflineLog, Policy, Retention, verify};

const CHILD: &str = "CLAD_JOURNAL_KILL_CHILD";
const ROUNDS: u64 = 20;

/// Under group_commit, with retention that leaves next to nothing, so that files are used again and again.
const RECYCLING: &str = "recycling";

/// `policy/engine`, as in the variable of the child.
fn config(how: &str) -> JournalConfig {
    let (name, engine) = how.split_once('/').unwrap();
    let io_engine = if engine == "uring" { EngineWish::Uring } else { EngineWish::Blocking };
    let policy = match name {
        "group_commit" | RECYCLING => Policy::GROUP_COMMIT,
        "per_message" => Policy::PerMessage,
        "sync_file_range" => {
            Policy::SyncFileRange { max_delay: Duration::from_millis(5), max_bytes: 1 << 20, in_flight: 2 }
        }
        _ => Policy::FireAndForget { sync_interval: Duration::from_millis(5) },
    };
    let recycling = name == RECYCLING;
    let (segment_bytes, max_append_bytes, max_bytes) =
        if recycling { (64 << 10, 16 << 10, 128 << 10) } else { (1 << 20, 128 << 10, 0) };
    JournalConfig {
        policy,
        io_engine,
        segment_bytes,
        max_append_bytes,
        retention: Retention { max_bytes, ..Retention::default() },
        // A kill leaves the page cache: it is all the same to it what the disk says of its cache.
        power_loss_protected: true,
        reserve_free: 0,
        ..JournalConfig::default()
    }
}

/// Every byte follows from the sequence, so that a reader can distinguish a record from its neighbour.
fn payload(sequence: u64) -> Vec<u8> {
    let len = (sequence.wrapping_mul(2_654_435_761) % 900) as usize;
    let mut p = sequence.to_le_bytes().to_vec();
    p.extend((0..len).map(|i| (sequence as usize + i) as u8));
    p
}

/// Appends for ever; prints "r|w|d SEQUENCE OFFSET" for each acknowledgement.
fn child(dir: &str, policy: &str) -> ! {
    let config = config(policy);
    let journal = Journal::open_dir(Path::new(dir), config, std::sync::Arc::new(|_| {})).unwrap();
    assert_eq!(
        journal.status().engine.engine.name(),
        policy.split_once('/').unwrap().1,
        "the engine that was asked for"
    );
    let mut out = std::io::stdout().lock();
    let resume = journal.producer(&[1; 16], 7).unwrap().and_then(|s| s.last);
    writeln!(out, "open {}", resume.map_or(-1, |l| l.0 as i64)).unwrap();
    let mut sequence = resume.map_or(0, |l| l.0 + 1);
    let mut pending: Vec<(u64, u64)> = Vec::new();
    let mut acked = (0, 0);
    loop {
        if pending.len() < 64 {
            let body = payload(sequence);
            let accepted = Append {
                producer: [1; 16],
                owner: 7,
                producer_epoch: 1,
                first_sequence: sequence,
                count: 1,
                gap: false,
                level: if sequence.is_multiple_of(3) { Level::Written } else { Level::Durable },
                min_time_ns: sequence as i64,
                max_time_ns: sequence as i64,
                peer_meta: &[],
                payload: &body,
                payload_checksum: clad_journal::format::checksum::plain(&body),
                permit: None,
            }
            .submit(&journal)
            .unwrap();
            pending.push((sequence, accepted.first_offset));
            sequence += 1;
            if sequence.is_multiple_of(5000) {
                drop(journal.rotate());
            }
        }
        let watermarks = journal.watermarks();
        for (s, o) in &pending {
            if *o < watermarks.written && *s >= acked.0 {
                writeln!(out, "w {s} {o}").unwrap();
                acked.0 = s + 1;
            }
            if *o < watermarks.durable && *s >= acked.1 {
                writeln!(out, "d {s} {o}").unwrap();
                acked.1 = s + 1;
            }
        }
        out.flush().unwrap();
        pending.retain(|(_, o)| *o >= watermarks.durable);
    }
}

fn seed() -> u64 {
    let given = std::env::var("CLAD_SEED").ok().and_then(|s| s.parse().ok());
    given.unwrap_or_else(|| {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64
    })
}

#[test]
fn every_acknowledged_record_is_found_once_after_kill_9() {
    if let Ok(what) = std::env::var(CHILD) {
        let (policy, dir) = what.split_once(' ').unwrap();
        child(dir, policy);
    }
    let seed = seed();
    println!("kill test: CLAD_SEED={seed}");
    let mut random = seed;
    let (mut total, mut kills, mut used_again) = (0, 0, BTreeSet::new());
    let policies = ["group_commit", "per_message", "fire_and_forget", "sync_file_range", RECYCLING];
    for policy in policies.iter().flat_map(|p| ["blocking", "uring"].map(|engine| format!("{p}/{engine}"))) {
        let policy = policy.as_str();
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        if policy.starts_with("sync_file_range")
            && let Err(refusal) = discover(dir.path()).range_sync(true)
        {
            println!("kill test: NOT RUN {policy}: {refusal}");
            continue;
        }
        let mut acked: BTreeMap<u64, u64> = BTreeMap::new();
        for round in 0..ROUNDS {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let kill_after = (random >> 33) % 1500;
            total += run_and_kill(dir.path(), policy, kill_after, &mut acked);
            check(dir.path(), policy, round, &acked, seed);
            kills += 1;
            used_again.extend(numbers_used_again(dir.path()));
        }
    }
    let again = used_again.len();
    println!("kill test: {kills} kills, {total} acknowledged records, {again} segments in a file used again, 0 lost");
    if discover(Path::new(env!("CARGO_TARGET_TMPDIR"))).zeroing_pays() {
        assert!(again > 3, "hardly a file was used again: the test shows nothing of that");
    }
    assert!(total > 100, "hardly anything was acknowledged: the test shows nothing");
}

fn run_and_kill(dir: &Path, policy: &str, kill_after: u64, acked: &mut BTreeMap<u64, u64>) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "every_acknowledged_record_is_found_once_after_kill_9", "--nocapture"])
        .env(CHILD, format!("{policy} {}", dir.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = 0;
    let mut killed = false;
    // After the kill, what is still in the pipe was acknowledged too.
    while let Some(Ok(line)) = lines.next() {
        let mut words = line.split(' ');
        let (Some("w" | "d"), Some(s), Some(o)) = (words.next(), words.next(), words.next()) else { continue };
        let (Ok(s), Ok(o)) = (s.parse::<u64>(), o.parse::<u64>()) else { continue };
        assert_eq!(*acked.entry(s).or_insert(o), o, "sequence {s} was acknowledged at two offsets");
        seen += 1;
        if seen >= kill_after && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    assert!(killed, "the child ended by itself");
    seen
}

/// Segments whose file was another one's before.
fn numbers_used_again(dir: &Path) -> Vec<u64> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let headers = files.filter_map(|path| SegmentHeader::decode(&std::fs::read(path).ok()?).ok());
    headers.filter(|header| header.former.is_some()).map(|header| header.number).collect()
}

fn check(dir: &Path, policy: &str, round: u64, acked: &BTreeMap<u64, u64>, seed: u64) {
    let context = format!("{policy}, round {round}, CLAD_SEED={seed}");
    // First as it lies there, then as the next start leaves it.
    for recovered in [false, true] {
        if recovered {
            drop(Journal::open_dir(dir, config(policy), std::sync::Arc::new(|_| {})).expect(&context));
        }
        let log = OfflineLog::open(dir).expect(&context);
        let mut found: BTreeMap<u64, u64> = BTreeMap::new();
        let first = log.first_offset();
        assert!(first == 0 || policy.starts_with(RECYCLING), "{context}: kept from {first}");
        let mut expected = first;
        let mut reader = log.read(first);
        while let Some(batch) = reader.next_batch().expect(&context) {
            for chunk in batch.chunks() {
                let (offset, chunk) = chunk.expect(&context);
                let sequence = chunk.header.first_sequence;
                assert_eq!(offset, expected, "{context}: offsets are dense");
                assert_eq!(chunk.payload, payload(sequence), "{context}: byte for byte");
                assert_eq!(found.insert(sequence, offset), None, "{context}: stored once");
                let in_order = found.len() == 1 || sequence == 0 || found.contains_key(&(sequence - 1));
                assert!(in_order, "{context}: in its producer's order");
                expected += 1;
            }
        }
        for (sequence, offset) in acked.iter().filter(|(_, offset)| **offset >= first) {
            assert_eq!(found.get(sequence), Some(offset), "{context}: acknowledged, recovered {recovered}");
        }
        let report = verify(dir, &mut |_, _| {}).expect(&context);
        assert_eq!(report.problems, [], "{context}");
    }
}
