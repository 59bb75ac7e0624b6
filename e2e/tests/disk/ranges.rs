//! The policy `sync_file_range` and files that are used again, on file systems of their own: what is refused, what
//! reaches the device, and what it costs.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, Raw, Setup, TEST_TIMEOUT, web};
use clad_journal::format::segment::{self, SegmentHeader};
use clad_journal::format::segment_name;
use clad_journal::io::device::discover;
use clad_proto::AckLevel;
use nix::sys::stat::{major, minor};

use crate::{append, mount_point, records, small, stored};

fn ranges() -> Setup {
    small().set("journal.durability", "sync_file_range")
}

/// What the device below the mount has been asked for so far: bytes written, and flushes.
fn device() -> (u64, u64) {
    let dev = fs::metadata(mount_point()).expect("mounted").dev();
    let path = format!("/sys/dev/block/{}:{}/stat", major(dev), minor(dev));
    let stat = fs::read_to_string(path).expect("a device");
    let fields: Vec<u64> = stat.split_whitespace().map(|field| field.parse().expect("a number")).collect();
    (fields[6] * 512, fields[15])
}

/// Refused by the daemon and by `clad check`, with 78 and these words, and nothing was made.
fn refused(setup: &Setup, words: &[&str]) {
    let ended = setup.run_to_end();
    assert_eq!(ended.code, Some(78), "{}", ended.said);
    for word in words {
        assert!(ended.said.contains(word), "{word:?} is missing: {}", ended.said);
    }
    assert!(!setup.dir().join("clad.meta").exists(), "nothing was made");
}

fn refused_twice(setup: impl Fn() -> Setup, words: &[&str]) {
    refused(&setup(), words);
    let ended = setup().arguments(&["check"]).run_to_end();
    assert_eq!(ended.code, Some(78), "{}", ended.printed);
    for word in words {
        assert!(ended.printed.contains(word), "{word:?} is missing: {}", ended.printed);
    }
}

/// A file system that is none of the two.
#[test]
#[ignore = "cargo xtask ci disk"]
fn is_another_file_system() {
    refused_twice(ranges, &["ext4 and xfs alone", "this is btrfs"]);
    refused_twice(|| ranges().set("journal.power_loss_protected", "true"), &["ext4 and xfs alone", "this is btrfs"]);
}

/// ext4 that puts its data through its journal.
#[test]
#[ignore = "cargo xtask ci disk"]
fn journals_its_data() {
    refused_twice(|| ranges().set("journal.power_loss_protected", "true"), &["data=journal"]);
}

/// The loop device was set to report write through: it gets no flushes, so its file is never safe.
#[test]
#[ignore = "cargo xtask ci disk"]
fn says_write_through_over_the_page_cache() {
    for word in ["false", "true"] {
        refused_twice(|| ranges().set("journal.power_loss_protected", word), &["is a file in the page cache"]);
    }
}

/// Refused without the operator's word; with it, appends are durable with no flush, and everything says so.
#[test]
#[ignore = "cargo xtask ci disk"]
fn needs_the_word() {
    refused_twice(ranges, &["loop", "is a file on another file system", "journal.power_loss_protected = true"]);
    let mut daemon = ranges().set("journal.power_loss_protected", "true").start();
    daemon.wait_said("power_loss_protected is stated by the operator");
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    assert_eq!(welcome.highest_ack, AckLevel::Durable);
    append(&mut raw, AckLevel::Durable, 0..20);
    // Neither a rotation nor the preparing of a segment falls in here.
    let (_, before) = device();
    append(&mut raw, AckLevel::Durable, 20..520);
    let (_, after) = device();
    assert!(after - before < 50, "500 durable appends made {} flushes", after - before);

    let admin = format!("unix://{}", daemon.setup().admin_socket().display());
    let status = clad_e2e::json(&clactl_ends(0, &["status", "--admin", &admin, "-o", "json"], b"").stdout);
    assert_eq!(status["durability"], "sync_file_range", "{status}");
    assert_eq!(status["durability_reason"], "power_loss_protected is stated by the operator");
    assert_eq!(
        (&status["highest_ack"], &status["substrate"]["power_loss_protected"]),
        (&"durable".into(), &true.into())
    );
    let metrics = web::metrics(daemon.port("metrics"));
    assert_eq!(metrics["clad_power_loss_protected"], 1.0);
    assert_eq!(metrics["clad_io_info{engine=\"blocking\",durability=\"sync_file_range\"}"], 1.0);

    daemon.admin().rotate().expect("rotated");
    append(&mut raw, AckLevel::Written, 520..600);
    daemon.kill9();
    daemon.restart();
    assert_eq!(stored(&daemon), records(0..600));
    let (mut raw, _) = Raw::resume(&daemon.socket(), welcome.producer_id);
    append(&mut raw, AckLevel::Durable, 600..700);
    assert_eq!(daemon.term(), Some(0));
    clactl_ends(0, &["verify", &daemon.dir().display().to_string()], b"");

    // The same log under a policy that flushes does so: the figure above is not one that is always small.
    daemon.restart_with("journal.durability", "group_commit");
    let (mut raw, _) = Raw::resume(&daemon.socket(), welcome.producer_id);
    append(&mut raw, AckLevel::Durable, 700..720);
    let (_, before) = device();
    append(&mut raw, AckLevel::Durable, 720..820);
    let (_, after) = device();
    assert!(after - before >= 100, "100 durable appends made {} flushes", after - before);
    assert_eq!(stored(&daemon), records(0..820));
}

/// On a real disk, in a view of `/sys` in which every leaf says write through: no word is needed. The disk itself is
/// left as it is.
#[test]
#[ignore = "cargo xtask ci disk"]
fn is_reported_down_to_the_last() {
    let scratch = clad_e2e::Scratch::new();
    let said = scratch.data().join("said");
    fs::write(&said, "write through\n").expect("written");
    let mut script = String::from("set -e; ");
    for leaf in discover(&mount_point()).devices.iter().filter(|device| device.leaf) {
        let folder = format!("/sys/dev/block/{}:{}", leaf.number.0, leaf.number.1);
        for file in ["queue/write_cache", "cache_type"] {
            let file = fs::canonicalize(folder.clone()).expect("a device").join(file);
            if file.exists() {
                script.push_str(&format!("mount --bind {} {}; ", said.display(), file.display()));
            }
        }
    }
    script.push_str("exec \"$@\"");
    let setup = ranges().under(&["unshare", "--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
    let daemon = setup.start();
    daemon.wait_said("every device reports write through");
    let status = daemon.status();
    assert_eq!(status.policy_reason, "every device reports write through");
    let substrate = status.substrate.expect("substrate");
    assert!(!substrate.power_loss_protected && substrate.devices.iter().all(|d| d.cache == "write through"));
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    assert_eq!(welcome.highest_ack, AckLevel::Durable);
    append(&mut raw, AckLevel::Durable, 0..100);
    assert_eq!(stored(&daemon), records(0..100));
}

// ---- files that are used again ------------------------------------------------------------------------------------

/// Bytes of a record, and so many of them fill a segment of 1 MiB.
const BODY_BYTES: usize = 60_000;
const PER_SEGMENT: u64 = 15;

/// The next segment's file is there, with its header (not that of the segment whose file it was): a rotation finds it.
fn wait_prepared(daemon: &Daemon) {
    let began = Instant::now();
    loop {
        let segments = daemon.admin().segments().expect("segments");
        if let Some(next) = segments.iter().find(|s| !s.sealed).map(|active| active.number + 1) {
            let mut header = [0; segment::LEN];
            let file = File::open(daemon.dir().join(segment_name(next)));
            let read = file.and_then(|file| file.read_exact_at(&mut header, 0));
            if read.is_ok() && SegmentHeader::decode(&header).is_ok_and(|header| header.number == next) {
                return;
            }
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "no segment is prepared: {segments:?}\n{}", daemon.said());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

fn fill(daemon: &Daemon, raw: &mut Raw, from: u64) -> u64 {
    for sequence in from..from + PER_SEGMENT {
        raw.append_acked(sequence, AckLevel::Durable, &[&vec![sequence as u8; BODY_BYTES]]);
    }
    daemon.admin().rotate().expect("rotated");
    wait_prepared(daemon);
    from + PER_SEGMENT
}

/// Device bytes for each byte of the records, over several segments; and how many files were used again.
fn cost(recycle: &str, policy: &str) -> (f64, u64) {
    let setup = small().set("retention.max_bytes", "4MiB").set("journal.recycle", recycle);
    let mut daemon = setup.set("journal.durability", policy).set("journal.power_loss_protected", "true").start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    wait_prepared(&daemon);
    let mut next = 0;
    for _ in 0..8 {
        next = fill(&daemon, &mut raw, next);
    }
    let before = device().0;
    let from = next;
    for _ in 0..16 {
        next = fill(&daemon, &mut raw, next);
    }
    let bytes = device().0 - before;
    let metric = || web::metrics(daemon.port("metrics"))["clad_segments_recycled_total"];
    let status = daemon.wait_until("the same count", |status| status.segments_recycled as f64 == metric());
    let recycled = status.segments_recycled;
    assert_eq!(daemon.term(), Some(0));
    clactl_ends(0, &["verify", &daemon.dir().display().to_string()], b"");
    (bytes as f64 / ((next - from) * BODY_BYTES as u64) as f64, recycled)
}

#[expect(clippy::print_stdout, reason = "the figures are the result")]
#[test]
#[ignore = "cargo xtask ci disk"]
fn recycling_pays() {
    for policy in ["group_commit", "sync_file_range"] {
        let (mut with, again) = cost("true", policy);
        let (without, none) = cost("false", policy);
        // The device counts what the kernel writes for others, too: that only adds.
        for _ in 0..2 {
            if with >= 0.7 * without {
                with = with.min(cost("true", policy).0);
            }
        }
        println!("{policy}: device bytes a byte of records: {with:.2} with recycling, {without:.2} without");
        assert!(again >= 16 && none == 0, "{again} used again with it, {none} without");
        assert!(with < 0.7 * without, "{policy}: {with:.2} with recycling, {without:.2} without");
    }
}

/// A reader with an open descriptor, and a copy that shares its blocks: their bytes never change.
#[test]
#[ignore = "cargo xtask ci disk"]
fn readers_and_copies_keep_their_bytes() {
    let mut daemon = small().set("retention.max_bytes", "4MiB").start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    wait_prepared(&daemon);
    let mut next = fill(&daemon, &mut raw, 0);
    let path = |number: u64| daemon.dir().join(segment_name(number));
    let held = (File::open(path(0)).expect("sealed"), fs::read(path(0)).expect("sealed"));
    next = fill(&daemon, &mut raw, next);
    let copy = mount_point().join("copy");
    let shares = reflink(&path(1), &copy);
    let copied = fs::read(path(1)).expect("sealed");
    while daemon.status().segments_recycled < 4 {
        next = fill(&daemon, &mut raw, next);
        assert!(next < 100 * PER_SEGMENT, "hardly anything is used again: {}", daemon.said());
    }
    assert!(daemon.said().contains("somebody has it open"), "{}", daemon.said());
    let mut now = vec![0; held.1.len()];
    held.0.read_exact_at(&mut now, 0).expect("read");
    assert!(now == held.1, "segment 0 changed under its reader");
    if shares {
        assert!(daemon.said().contains("its blocks are not all its own"), "{}", daemon.said());
        assert!(fs::read(&copy).expect("copied") == copied, "the copy changed");
    }
    assert_eq!(daemon.term(), Some(0));
    clactl_ends(0, &["verify", &daemon.dir().display().to_string()], b"");
}

/// A copy that shares its blocks, where the file system can make one: xfs here.
fn reflink(from: &PathBuf, to: &PathBuf) -> bool {
    let output = Command::new("cp").arg("--reflink=always").arg(from).arg(to).output().expect("cp runs");
    let filesystem = discover(&mount_point()).filesystem;
    assert_eq!(output.status.success(), filesystem == "xfs", "{filesystem}: {output:?}");
    output.status.success()
}
