//! A disk that fills up: refused as retryable and certainly not written, nothing acknowledged is lost, and work resumes
//! by itself when there is space again.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use clad_client::Producer;
use clad_e2e::raw::Got;
use clad_e2e::tool::clactl_ends;
use clad_e2e::{Daemon, Raw, Rng, Setup, TEST_TIMEOUT, web};
use clad_journal::bulk;
use clad_proto::frame::Frame;
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};

use crate::{mount_point, small};

/// What somebody else has on the disk, until it is removed.
const BALLAST_BYTES: usize = 8 << 20;
/// Bytes of a record.
const BODY_BYTES: u64 = 60_000;

pub(crate) fn body(sequence: u64) -> Vec<u8> {
    let mut rng = Rng::new(sequence);
    let mut body = format!("{sequence}:").into_bytes();
    let length = BODY_BYTES / 2 + rng.below(BODY_BYTES / 2);
    body.extend((0..length).map(|_| rng.number() as u8));
    body
}

/// Somebody else's file, on the disk indeed.
fn ballast() -> PathBuf {
    let path = mount_point().join("ballast");
    let mut file = File::create(&path).expect("made");
    file.write_all(&vec![0xBB; BALLAST_BYTES]).expect("written");
    file.sync_all().expect("synced");
    path
}

/// Appends from a sequence on, each `durable`, until one is refused; the sequence that was refused, and why.
fn until_refused(raw: &mut Raw, mut sequence: u64) -> (u64, ErrorInfo) {
    loop {
        raw.append(sequence, AckLevel::Durable, &[&body(sequence)]);
        match raw.answer() {
            Frame::Accepted(answer) => raw.wait_watermark(AckLevel::Durable, answer.epoch, answer.first_offset),
            Frame::Refused(refused) => return (sequence, refused.error),
            other => panic!("{other:?}"),
        }
        sequence += 1;
        assert!(sequence < 10_000, "the disk never gets full");
    }
}

/// Fills what a large record found no room in with small ones; how many there were.
fn fill_up(daemon: &Daemon) -> u64 {
    let (mut raw, _) = Raw::producer(&daemon.socket());
    for sequence in 0..10_000 {
        raw.append(sequence, AckLevel::Durable, &[b"small"]);
        match raw.answer() {
            Frame::Accepted(answer) => raw.wait_watermark(AckLevel::Durable, answer.epoch, answer.first_offset),
            Frame::Refused(refused) => {
                certainly_not_written(&refused.error);
                return sequence;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("there is always room for small ones");
}

/// Sends the same append until it is taken; how often it was refused.
pub(crate) fn until_taken(raw: &mut Raw, sequence: u64) -> u64 {
    let began = Instant::now();
    for refused in 0.. {
        raw.append(sequence, AckLevel::Durable, &[&body(sequence)]);
        match raw.answer() {
            Frame::Accepted(answer) => {
                raw.wait_watermark(AckLevel::Durable, answer.epoch, answer.first_offset);
                return refused;
            }
            Frame::Refused(refused) => certainly_not_written(&refused.error),
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "it does not resume");
        thread::sleep(Duration::from_millis(50)); // as a client would wait: nothing notifies it
    }
    unreachable!()
}

pub(crate) fn certainly_not_written(error: &ErrorInfo) {
    assert_eq!((error.code, error.retryable, error.maybe_written), (ErrorCode::NoSpace, true, false), "{error}");
    assert!(error.retry_after_ms.is_some(), "{error}");
}

/// All inodes but so many; they are given back with the folder.
fn take_inodes(left: u64) -> PathBuf {
    let folder = mount_point().join("files");
    fs::create_dir(&folder).expect("made");
    let free = || rustix::fs::statvfs(mount_point()).expect("a file system").f_favail;
    for number in 0.. {
        if free() <= left {
            return folder;
        }
        File::create(folder.join(number.to_string())).expect("an inode");
    }
    unreachable!()
}

/// Bytes are free, files cannot be made: the error says so, and nothing gets an offset that no segment can hold.
#[test]
#[ignore = "cargo xtask ci disk"]
fn without_inodes_nothing_gets_an_offset_for_which_there_is_no_segment() {
    let mut daemon = small().start();
    daemon.wait_until("the prepared segment", |s| s.segments == 2);
    let files = take_inodes(0);
    let (mut raw, _) = Raw::producer(&daemon.socket());
    let (large, error) = until_refused(&mut raw, 0);
    certainly_not_written(&error);
    assert!(error.text.contains("no inode"), "{error}");
    daemon.wait_until("it says so", |status| status.not_ready_reason.contains("no inode"));
    // An order to rotate, which leaves what is left of the active one, and looks at the disk do not change that.
    let admin = format!("unix://{}", daemon.setup().admin_socket().display());
    clactl_ends(0, &["rotate", "--admin", &admin], b"");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        raw.append(large, AckLevel::Received, &[b"small"]);
        certainly_not_written(&raw.refused().error);
        thread::sleep(Duration::from_millis(20));
    }
    let offsets = daemon.status().offsets.expect("offsets");
    assert_eq!((offsets.received, offsets.durable), (large, large));

    fs::remove_dir_all(files).expect("given back");
    until_taken(&mut raw, large);
    intact(&daemon, large + 1, 0);
    assert_eq!(daemon.term(), Some(0));
}

/// Everything is there, dense, byte for byte: so many large records, and so many small ones.
fn intact(daemon: &Daemon, large: u64, small: u64) {
    let mut reader = Raw::unix(&daemon.socket());
    reader.greet(&clad_e2e::raw::hello_reader()).expect("WELCOME");
    let (got, _) = reader.read_from(0, AckLevel::Written).expect("a read");
    assert!(got.iter().zip(0..).all(|(got, offset)| got.offset == offset), "offsets are not dense");
    let (rest, got): (Vec<Got>, Vec<Got>) = got.into_iter().partition(|got| got.body.as_deref() == Some(b"small"));
    assert_eq!((got.len() as u64, rest.len() as u64), (large, small));
    for (sequence, got) in (0..).zip(got) {
        assert_eq!(got.sequence, sequence);
        assert!(got.body == Some(body(sequence)), "record {sequence} is not as it was sent");
    }
}

#[test]
#[ignore = "cargo xtask ci disk"]
fn fills_up_and_resumes() {
    let ballast = ballast();
    let mut daemon = small().start();
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    let (full, error) = until_refused(&mut raw, 0);
    assert!(full > 20, "only {full} records were taken");
    certainly_not_written(&error);
    // The active segment is used to its end: what is small enough still goes in, until nothing does.
    let mut small = fill_up(&daemon);
    // It says so, goes on serving readers, and stays up.
    let status = daemon.wait_until("not ready", |status| !status.ready);
    assert!(!status.failed && !status.not_ready_reason.is_empty(), "{status:?}");
    let pages = daemon.port("metrics");
    let (code, why) = web::page(pages, "/readyz");
    assert_eq!(code, 503, "{why}");
    let (code, health) = web::page(pages, "/healthz");
    assert!(code == 200 && health.starts_with("degraded"), "{code} {health}");
    assert!(web::metrics(pages)["clad_rejected_records_total{reason=\"no_space\"}"] >= 1.0);
    intact(&daemon, full, small);

    // A start on a full disk works, after a crash and after a clean end, and loses nothing.
    daemon.kill9();
    daemon.restart();
    intact(&daemon, full, small);
    let (mut raw, again) = Raw::resume(&daemon.socket(), welcome.producer_id);
    assert_eq!(again.expected_sequence(), full);
    // Recovery goes on in a new segment, so some of the reserve may have come free: what is taken is kept.
    let (still, error) = until_refused(&mut raw, full);
    certainly_not_written(&error);
    drop(raw);
    assert_eq!(daemon.term(), Some(0), "{}", daemon.said());
    daemon.restart();
    intact(&daemon, still, small);
    let (mut raw, _) = Raw::resume(&daemon.socket(), welcome.producer_id);
    let (still, error) = until_refused(&mut raw, still);
    certainly_not_written(&error);
    small += fill_up(&daemon);

    // A program that waits through it never hears of it: its append comes through once there is space.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let address = daemon.address("unix").parse().expect("an address");
    let waits = runtime.spawn(async move {
        let producer = Producer::builder(address).component("waits").connect().await.expect("connected");
        producer.append(&[clad_client::Record::text(0, 9, "patient")]).await
    });
    let before = web::metrics(pages_of(&daemon))["clad_rejected_records_total{reason=\"no_space\"}"];
    daemon.wait_until("its first try", |_| {
        web::metrics(pages_of(&daemon))["clad_rejected_records_total{reason=\"no_space\"}"] > before
    });
    fs::remove_file(ballast).expect("removed");
    until_taken(&mut raw, still);
    let receipt = runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, waits).await }).expect("in time");
    assert_eq!(receipt.expect("no panic").expect("taken").level, AckLevel::Durable);
    daemon.wait_until("ready", |status| status.ready);
    assert_eq!(web::page(pages_of(&daemon), "/readyz").0, 200);
    assert!(!daemon.status().failed);

    let dir = daemon.dir().display().to_string();
    assert_eq!(daemon.term(), Some(0));
    let report = clad_e2e::json(&clactl_ends(0, &["verify", &dir, "-o", "json"], b"").stdout);
    assert_eq!((&report["damaged"], &report["records"]), (&false.into(), &(still + small + 2).into()), "{report}");
}

fn pages_of(daemon: &Daemon) -> std::net::SocketAddr {
    daemon.port("metrics")
}

/// Somebody else takes the space while records come in: what was prepared is used to its end, then it is refused.
#[test]
#[ignore = "cargo xtask ci disk"]
fn is_filled_by_others() {
    let mut daemon = small().start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    for sequence in 0..30 {
        raw.append_acked(sequence, AckLevel::Durable, &[&body(sequence)]);
    }
    let hog = mount_point().join("hog");
    let mut file = File::create(&hog).expect("made");
    while file.write_all(&[0xEE; 64 << 10]).is_ok() {}
    let _ = file.sync_all();
    drop(file);
    let (full, error) = until_refused(&mut raw, 30);
    certainly_not_written(&error);
    intact(&daemon, full, 0);
    daemon.kill9();
    daemon.restart();
    intact(&daemon, full, 0);
    fs::remove_file(hog).expect("removed");
    let (mut raw, welcome) = Raw::producer(&daemon.socket());
    assert_eq!(welcome.received, full);
    let began = Instant::now();
    loop {
        raw.append(0, AckLevel::Durable, &[b"after it"]);
        match raw.answer() {
            Frame::Accepted(answer) => break raw.wait_watermark(AckLevel::Durable, answer.epoch, answer.first_offset),
            Frame::Refused(refused) => certainly_not_written(&refused.error),
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "it does not resume");
        thread::sleep(Duration::from_millis(50)); // as a client would wait
    }
    assert_eq!(daemon.term(), Some(0));
    clactl_ends(0, &["verify", &daemon.dir().display().to_string()], b"");
}

/// The file writer and the export meet a full disk: the error has the place, the file is good up to it, and work resumes.
#[test]
#[ignore = "needs a small disk of its own: cargo xtask ci disk"]
fn stops_an_export_which_resumes() {
    let elsewhere = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let daemon = Setup::in_folder(&elsewhere.path().join("log")).start();
    let server = daemon.address("unix");
    let lines: Vec<u8> = (0..10_000).flat_map(|line| format!("{line:01000}\n").into_bytes()).collect();
    clactl_ends(0, &["append", "--server", &server, "--ack", "durable"], &lines);

    // Somebody else takes all there is, by the same writer: it says how far it came, and that much is there.
    let ballast = mount_point().join("ballast");
    let mut writer = bulk::Options::new().create(&ballast).expect("a writer");
    let piece = |number: u64| Rng::new(number).number().to_le_bytes().repeat(8192);
    let mut number = 0;
    let error = loop {
        match writer.write_all(&piece(number)) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
        assert!(number < 10_000, "the disk never gets full");
    };
    let kept = writer.sync().expect_err("sticky");
    assert_eq!((kept.kind(), error.kind()), (ErrorKind::StorageFull, ErrorKind::StorageFull), "{kept}");
    drop(writer);
    let there = fs::read(&ballast).expect("the ballast");
    let expected: Vec<u8> = (0..=number).flat_map(piece).collect();
    assert!(kept.position > 0 && there.len() as u64 >= kept.position, "{kept}");
    assert!(there[..kept.position as usize] == expected[..kept.position as usize], "{kept}");

    // Some of it is given back: less than the export takes.
    let opened = File::options().write(true).open(&ballast).expect("the ballast");
    opened.set_len(there.len() as u64 - (4 << 20)).expect("cut");
    opened.sync_all().expect("synced");
    drop(opened);
    let file = mount_point().join("export");
    let name = file.display().to_string();
    let arguments = ["export", "--server", &server, "-o", "cat", "--sync-every", "1MiB", &name];
    let output = clactl_ends(1, &arguments, b"");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("No space left") && said.contains(&name), "{said}");
    fs::remove_file(&ballast).expect("removed");
    clactl_ends(0, &arguments, b"");
    assert!(fs::read(&file).expect("the export") == lines);
}

/// A loop device; detached when dropped.
struct Loop(String);

impl Loop {
    fn over(image: &Path) -> Self {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image).output().expect("losetup runs");
        assert!(output.status.success(), "{output:?}");
        Self(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// The kernel takes the writes and the device fails them later: only the sync can report it, and then everything does.
#[test]
#[ignore = "needs a small disk of its own: cargo xtask ci disk"]
fn fails_a_device_and_the_sync_reports_it() {
    // A device of 64 MiB that stands on less.
    let image = mount_point().join("image");
    File::create(&image).expect("made").set_len(64 << 20).expect("long");
    let device = Loop::over(&image);
    let mut ballast = File::create(mount_point().join("ballast")).expect("made");
    for piece in [1 << 20, 1024] {
        let piece = vec![0xBB; piece];
        while ballast.write_all(&piece).and_then(|()| ballast.sync_all()).is_ok() {}
    }
    // Where there is no room, nothing can be measured either.
    let output = clactl_ends(1, &["probe", &mount_point().display().to_string(), "--duration", "0.1"], b"");
    assert!(String::from_utf8_lossy(&output.stderr).contains("No space left"), "{output:?}");
    for engine in [bulk::Engine::Ring, bulk::Engine::Threads] {
        let mut writer = bulk::Options::new().engine(engine).open(&device.0).expect("a writer");
        writer.write_all(&vec![0xC1; 4 << 20]).expect("taken");
        writer.flush().expect("the page cache has it");
        let error = writer.sync().expect_err("the device has not");
        assert_eq!((error.op, error.position), (bulk::Op::Sync, 4 << 20), "{error}");
        // Once reported, the kernel forgets it; the writer does not.
        let again = writer.sync().expect_err("sticky");
        assert_eq!(again.to_string(), error.to_string());
        assert!(writer.write(b"x").is_err() && writer.stats().syncs == 1, "a sync is not tried again");
    }
}
