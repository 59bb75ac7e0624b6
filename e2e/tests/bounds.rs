//! Bounds that users lean on: what a start reads, what the files take, what the daemon holds in memory.
#![expect(clippy::print_stdout, reason = "the figures are the result, and wanted with --nocapture")]

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use bytes::BytesMut;
use clad_e2e::raw::payload;
use clad_e2e::tool::resident;
use clad_e2e::{Daemon, Raw, Setup};
use clad_proto::frame::{AppendHead, Frame, encode_append};
use clad_proto::{AckLevel, Payload};
use rustix::fs::OFlags;

/// Keeps a window of appends in flight until so many were made, all of them `durable`.
fn append_all(raw: &mut Raw, first: u64, appends: u64, window: u64, payload: &Payload) {
    let records = u64::from(payload.count);
    let (mut sent, mut accepted, mut last, mut durable) = (0, 0, 0, 0);
    // Offsets of the appends that wait, oldest first.
    let mut waiting = std::collections::VecDeque::new();
    while accepted < appends || !waiting.is_empty() {
        let mut bytes = BytesMut::new();
        while sent < appends && sent - accepted + (waiting.len() as u64) < window {
            let first_seq = first + sent * records;
            let head = AppendHead {
                first_seq,
                count: payload.count,
                level: AckLevel::Durable,
                gap: false,
                payload_crc: payload.checksum(),
            };
            encode_append(&mut bytes, &head, &payload.bytes);
            sent += 1;
        }
        raw.send_bytes(&bytes).expect("sent");
        match raw.frame() {
            Some(Frame::Accepted(answer)) => {
                accepted += 1;
                last = answer.first_offset + records;
                waiting.push_back(last);
            }
            Some(Frame::Watermark(watermark)) if watermark.level == AckLevel::Durable => durable = watermark.offset,
            other => panic!("{other:?}"),
        }
        while waiting.front().is_some_and(|end| *end <= durable) {
            waiting.pop_front();
        }
    }
    assert!(durable >= last);
}

/// Bytes that a process has asked the kernel for, as the kernel counts them. Listing a folder is not among them, and no
/// counter of the daemon's own can leave anything out.
fn bytes_read(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).expect("the process is ours");
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: ")).expect("rchar");
    line.parse().expect("a number")
}

/// Ends the daemon, starts it again, and says what the start read.
fn read_at_start(daemon: &mut Daemon, kill: bool) -> u64 {
    match kill {
        true => daemon.kill9(),
        false => assert_eq!(daemon.term(), Some(0)),
    }
    daemon.restart();
    bytes_read(daemon.pid())
}

#[test]
fn a_start_does_not_read_more_with_the_log() {
    const SEGMENTS: usize = 1000;
    let small = || {
        Setup::new()
            .set("journal.segment_bytes", "64KiB")
            .set("limits.max_append_bytes", "32KiB")
            .set("journal.max_record_bytes", "32KiB")
            .start()
    };
    let body = vec![b's'; 28 << 10];
    let one = payload(&[&body]);
    let mut short = small();
    append_all(&mut Raw::producer(&short.socket()).0, 0, 1, 1, &one);
    assert!(short.admin().segments().expect("segments").iter().all(|segment| !segment.sealed));

    let mut long = small();
    // One append of 28 KiB and the footer of a thousand: a segment holds one, and is sealed by size.
    append_all(&mut Raw::producer(&long.socket()).0, 0, 2 * SEGMENTS as u64 + 20, 16, &one);
    let sealed = |daemon: &Daemon| {
        let segments = daemon.admin().segments().expect("segments");
        segments.iter().filter(|segment| segment.sealed).count()
    };
    assert!(sealed(&long) >= SEGMENTS, "only {} are sealed", sealed(&long));
    let records = long.status().offsets.expect("offsets").durable;
    // The first start of each comes after a crash, the second after a clean end.
    for kill in [true, false] {
        append_all(&mut Raw::producer(&short.socket()).0, 0, 1, 1, &one);
        append_all(&mut Raw::producer(&long.socket()).0, 0, 1, 1, &one);
        let (with_none, with_many) = (read_at_start(&mut short, kill), read_at_start(&mut long, kill));
        println!(
            "kill -9 before: {kill}: a start reads {with_none} bytes with none, {with_many} with {SEGMENTS} segments"
        );
        let more = with_many.saturating_sub(with_none);
        assert!(more <= 64 << 10, "kill -9: {kill}: {with_none} bytes read with none, {with_many} with a thousand");
    }
    assert_eq!(long.status().offsets.expect("offsets").durable, records + 2, "and all of it is there");
    assert!(sealed(&long) >= SEGMENTS);
}

/// Bytes on the disk for each byte of body, over sealed segments.
fn space(daemon: &Daemon, body: u64) -> f64 {
    daemon.admin().rotate().expect("rotated");
    let segments = daemon.admin().segments().expect("segments");
    let (mut bytes, mut records) = (0, 0);
    for segment in segments.iter().filter(|segment| segment.sealed) {
        let file = fs::metadata(daemon.dir().join(&segment.file)).expect("the file");
        assert_eq!(file.len(), segment.bytes, "{segment:?}");
        // Allocated blocks count, not only the length of the file.
        bytes += file.len().max(file.blocks() * 512);
        records += segment.records;
    }
    assert!(records > 0);
    let times = bytes as f64 / (records * body) as f64;
    println!("{records} records of {body} bytes take {bytes} bytes: {times:.3} times");
    times
}

#[test]
fn sealed_segments_take_little_more_than_what_was_sent() {
    let daemon = Daemon::start();
    let body = [b'b'; 200];
    let sixteen = payload(&[&body[..]; 16]);
    // Also where each of these batches is alone on its way.
    append_all(&mut Raw::producer(&daemon.socket()).0, 0, 3000, 1, &sixteen);
    let baseline = space(&daemon, 200);
    assert!(baseline <= 1.5, "16 records in an append, one in flight: {baseline:.3} times what was sent");
    append_all(&mut Raw::producer(&daemon.socket()).0, 0, 6000, 64, &sixteen);
    let together = space(&daemon, 200);
    assert!(together <= 1.5, "16 records in an append, 64 in flight: {together:.3} times what was sent");
}

#[test]
fn single_durable_appends_do_not_take_a_block_each() {
    for policy in ["group_commit", "per_message"] {
        let daemon = Setup::new().set("journal.durability", policy).start();
        append_all(&mut Raw::producer(&daemon.socket()).0, 0, 5000, 1, &payload(&[&[b'b'; 200]]));
        let single = space(&daemon, 200);
        assert!(single <= 2.5, "{policy}: {single:.3} times what was sent");
    }
}

/// Four clients with 256 appends in flight each, who stay: whatever grows then grows with the log.
#[test]
fn memory_is_bounded_and_does_not_grow_with_the_log() {
    const RESIDENT_BYTES_MAX: u64 = 64 << 20;
    const RESIDENT_GROWTH_BYTES_MAX: u64 = 3 << 20;
    const APPENDS: u64 = 10_000;
    const ROUNDS: u64 = 10;
    // Small segments: what is held for each of them shows sooner.
    let daemon = Setup::new()
        .set("journal.segment_bytes", "256KiB")
        .set("limits.max_append_bytes", "64KiB")
        .set("journal.max_record_bytes", "64KiB")
        .start();
    let mut clients: Vec<Raw> = (0..4).map(|_| Raw::producer(&daemon.socket()).0).collect();
    let body = payload(&[&[b'm'; 128]]);
    let mut round = |number: u64| {
        let (over, peak) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let body = &body;
            let load = |raw| scope.spawn(move || append_all(raw, number * APPENDS, APPENDS, 256, body));
            let loads: Vec<_> = clients.iter_mut().map(load).collect();
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let now = resident(daemon.pid());
                    peak.fetch_max(now.anonymous + now.shared, Ordering::Relaxed);
                    thread::sleep(std::time::Duration::from_millis(5)); // a sample, nothing waits for it
                }
            });
            for load in loads {
                load.join().expect("the client ends well");
            }
            over.store(true, Ordering::Relaxed);
        });
        peak.into_inner()
    };
    let warm = round(0).max(round(1));
    let segments = daemon.status().segments;
    let rest: Vec<_> = (2..ROUNDS).map(round).collect();
    let most = rest.iter().copied().max().unwrap_or(0);
    let now = daemon.status().segments;
    println!("peak memory {warm} bytes with {segments} segments, {rest:?} with {now}");
    assert!(warm.max(most) <= RESIDENT_BYTES_MAX, "{warm} bytes at first, {rest:?} then");
    assert!(now > 4 * segments, "the log did not grow: nothing was shown");
    assert!(
        most <= warm + RESIDENT_GROWTH_BYTES_MAX,
        "{warm} bytes with {segments} segments, then {rest:?} with {now}"
    );
}

/// How often threads of these names gave their processor up by themselves: once for each time that they waited.
fn waits(pid: u32, name: &str) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process is ours");
    let of = |task: fs::DirEntry| {
        let name_of = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let waits = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        waits.filter(|_| name_of.starts_with(name)).map_or(0, |waits| waits.trim().parse().expect("a number"))
    };
    tasks.flatten().map(of).sum()
}

/// How often this thread waits for so many synced writes over space that was written before.
fn waits_of_bare_writes(path: &Path, writes: u64) -> u64 {
    let block = [7; 4096];
    fs::write(path, block).expect("room for a block");
    fs::File::open(path).and_then(|file| file.sync_all()).expect("a sync");
    let synced = OFlags::DSYNC.bits() as i32;
    let file = fs::OpenOptions::new().write(true).custom_flags(synced).open(path).expect("it is there");
    let own = || {
        let status = fs::read_to_string("/proc/thread-self/status").expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("counted");
        line.trim().parse::<u64>().expect("a number")
    };
    let before = own();
    for _ in 0..writes {
        file.write_all_at(&block, 0).expect("written");
    }
    let waited = own() - before;
    fs::remove_file(path).expect("it is ours");
    waited
}

/// The thread that reads an append which goes alone writes it and answers it. Whoever else waits meanwhile keeps a time, a
/// few times a second: what is counted is for each append.
#[test]
fn an_inline_write_stays_in_one_thread() {
    const APPENDS: u64 = 400;
    let daemon = Daemon::start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    let body: &[u8] = &[b'x'; 128];
    for first in 0..10 {
        raw.append_acked(first, AckLevel::Durable, &[body]);
    }
    let count = || ["clad-ingest", "clad-write", "tokio-rt"].map(|name| waits(daemon.pid(), name));
    let inline = daemon.status().inline_batches;
    let (before, began) = (count(), std::time::Instant::now());
    for first in 10..10 + APPENDS {
        raw.append_acked(first, AckLevel::Durable, &[body]);
    }
    let (after, seconds) = (count(), began.elapsed().as_secs() + 1);
    let inline = daemon.status().inline_batches - inline;
    let [ingest, writers, runtime] = std::array::from_fn(|at| after[at] - before[at]);
    println!(
        "waits for {APPENDS} lone appends: ingest {ingest}, writers {writers}, runtime {runtime}, in {seconds} s; {inline} inline"
    );
    let bare = waits_of_bare_writes(&daemon.dir().with_file_name("bare"), APPENDS);
    assert!(ingest > APPENDS, "each waits for the disk at least");
    // One for the bytes, one for the next thread to look, and those of the write itself, of which a file system has two or
    // three and more where others write beside; eight in all before.
    assert!(ingest <= bare + 3 * APPENDS, "{ingest}, where bare writes wait {bare} times");
    assert!(inline >= APPENDS * 9 / 10, "{inline} of {APPENDS} were written by the thread that had read them");
    // Nobody else for an append: timers, the page of metrics, and the commit marker of a log that is idle, as it is between any two
    // appends where other programs use the processors.
    assert!(writers + runtime <= APPENDS + 100 * seconds, "{writers} + {runtime}");
}
