//! `clactl export`: the same file in one go and in many, whatever stops it, and nothing that is not durable.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use clad_e2e::tool::{OutputStream, Running, clactl, clactl_ends};
use clad_e2e::{Daemon, Raw, Rng, Scratch, Setup, TEST_TIMEOUT, not_run, readback, seed};
use clad_proto::frame::{Frame, FrameDecoder};
use clad_proto::{AckLevel, PayloadView};
use nix::sys::signal::Signal;

use crate::{append_numbers, numbers, ok};

/// Times that one export is killed at most.
const KILLS: usize = 12;

/// Records of all lengths, some of them in appends of their own.
fn filled(rng: &mut Rng) -> Daemon {
    let daemon = Daemon::start();
    for _ in 0..3 {
        let mut lines = Vec::new();
        for number in 0..5_000 {
            let length = if rng.chance(1, 200) { rng.below(20_000) } else { rng.below(300) };
            lines.extend_from_slice(format!("{number} ").as_bytes());
            lines.extend((0..length).map(|at| b'a' + (at % 26) as u8));
            lines.push(b'\n');
        }
        let server = daemon.address("unix");
        clactl_ends(0, &["append", "--server", &server, "--ack", "durable"], &lines);
        ok(&daemon, &["rotate"]);
    }
    daemon
}

fn state(file: &Path) -> Option<clad_e2e::Json> {
    let mut name = file.as_os_str().to_owned();
    name.push(".export");
    fs::read(PathBuf::from(name)).ok().map(|text| clad_e2e::json(&text))
}

fn synced(file: &Path) -> u64 {
    state(file).and_then(|state| state["bytes"].as_u64()).unwrap_or(0)
}

/// Where nothing can be durable nothing is exported as if it were; files that were copied there may be, and that is said.
#[test]
fn what_is_only_in_memory_is_not_called_durable() {
    let memory = Path::new("/dev/shm");
    if clad_journal::io::device::discover(memory).filesystem != "tmpfs" {
        return not_run("an export out of memory", "/dev/shm is no memory file system");
    }
    let scratch = tempfile::tempdir_in(memory).expect("a folder");
    let daemon = Setup::in_folder(&scratch.path().join("log")).start();
    let server = daemon.address("unix");
    clactl_ends(0, &["append", "--server", &server], &numbers(0..3));
    ok(&daemon, &["rotate"]);
    let file = scratch.path().join("out.json");
    let file = file.to_str().expect("UTF-8");
    let output = clactl_ends(1, &["export", "--server", &server, file], b"");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("level_unreachable") && said.contains("`clactl query -o json`"), "{said}");
    assert!(!Path::new(file).exists(), "something was exported");
    assert_eq!(ok(&daemon, &["query", "-o", "cat"]), numbers(0..3));
    let dir = daemon.dir().to_str().expect("UTF-8").to_owned();
    let output = clactl_ends(0, &["export", "--dir", &dir, "-o", "cat", "-"], b"");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("is durable (written, because tmpfs keeps its files in memory)"), "{said}");
}

/// Starts an export and kills it once its file has grown so far; whether it was there in time.
fn killed_at(arguments: &[&str], file: &Path, length: u64) -> bool {
    let running = Running::start(&mut clactl(arguments));
    let until = Instant::now() + TEST_TIMEOUT;
    while running.is_running() && fs::metadata(file).map_or(0, |found| found.len()) < length {
        assert!(Instant::now() < until, "it does not get on: {}", running.said());
        std::thread::sleep(Duration::from_micros(200));
    }
    running.kill();
    running.signal() == Some(Signal::SIGKILL as i32)
}

/// What a crash may leave behind the synced end: less, other bytes, or more.
fn tear(file: &Path, rng: &mut Rng) {
    let (durable, length) = (synced(file), fs::metadata(file).map_or(0, |found| found.len()));
    let opened = OpenOptions::new().write(true).open(file).expect("the file");
    match rng.below(4) {
        0 => opened.set_len(durable + rng.below(length - durable + 1)).expect("cut"),
        1 => opened.write_all_at(&[0xA5; 5000], durable).expect("scribbled"),
        2 => opened.write_all_at(b"torn", length + 4096).expect("scribbled"),
        _ => {}
    }
}

#[test]
fn killed_anywhere_and_started_again_it_is_the_export_of_one_go() {
    let mut rng = Rng::new(seed());
    let mut daemon = filled(&mut rng);
    let scratch = Scratch::new();
    let place = |name: &str| scratch.data().join(name);
    let (server, dir) = (daemon.address("unix"), daemon.dir().display().to_string());
    let (mut killed, mut went_on) = (0, 0);
    for form in ["json", "raw", "cat"] {
        let once = place(&format!("once.{form}"));
        clactl_ends(0, &["export", "--server", &server, "-o", form, &once.display().to_string()], b"");
        let once = fs::read(once).expect("the export");
        for (source, at) in [("--server", &server), ("--dir", &dir)] {
            let file = place(&format!("often{source}.{form}"));
            let name = file.display().to_string();
            let arguments = ["export", source, at, "-o", form, "--sync-every", "64KiB", &name];
            for _ in 0..KILLS {
                let target = synced(&file) + rng.below(once.len() as u64 / 4);
                if !killed_at(&arguments, &file, target) {
                    break;
                }
                killed += 1;
                went_on += usize::from(synced(&file) > 0);
                if file.exists() {
                    assert!(synced(&file) <= fs::metadata(&file).expect("the file").len(), "the state runs ahead");
                    tear(&file, &mut rng);
                }
            }
            clactl_ends(0, &arguments, b"");
            assert!(fs::read(&file).expect("the export") == once, "{name} is not the export of one go");
            let state = state(&file).expect("a state");
            assert_eq!((&state["records"], &state["next"]), (&15_000.into(), &15_000.into()), "{state}");
        }
    }
    assert!(killed >= 12 && went_on >= 6, "{killed} kills, {went_on} of them behind a synced place: too few");
    // And there is more when there is more: only that is added.
    let file = place("often--server.cat");
    let before = fs::read(&file).expect("the export");
    append_numbers(&daemon, 0..20);
    let name = file.display().to_string();
    clactl_ends(0, &["export", "--server", &server, "-o", "cat", "--sync-every", "1MiB", &name], b"");
    assert!(fs::read(&file).expect("the export") == [before, numbers(0..20)].concat());
    assert_eq!(daemon.term(), Some(0));
}

/// Stopped when the file and its state were there, and nothing of the export was durable: it begins with its head.
#[test]
fn stopped_before_anything_was_durable_it_has_its_head() {
    let daemon = Daemon::start();
    append_numbers(&daemon, 0..20);
    let scratch = Scratch::new();
    for form in ["json", "raw", "cat"] {
        let file = scratch.data().join(form);
        let name = file.display().to_string();
        let arguments = ["export", "--server", &daemon.address("unix"), "-o", form, &name];
        clactl_ends(0, &arguments, b"");
        let once = fs::read(&file).expect("the export");
        let mut first = state(&file).expect("a state");
        for (key, value) in
            [("cursor", None), ("next", Some(0)), ("bytes", Some(0)), ("tail_crc32c", Some(0)), ("records", Some(0))]
        {
            first[key] = value.into();
        }
        fs::write(&file, b"").expect("emptied");
        fs::write(format!("{name}.export"), first.to_string()).expect("the first state");
        clactl_ends(0, &arguments, b"");
        assert!(fs::read(&file).expect("the export") == once, "{form}: it is not the export of one go");
    }
}

#[test]
fn an_interrupt_keeps_what_was_done() {
    let mut rng = Rng::new(seed());
    let daemon = filled(&mut rng);
    let scratch = Scratch::new();
    let file = scratch.data().join("export.json");
    let name = file.display().to_string();
    let server = daemon.address("unix");
    let arguments = ["export", "--server", &server, "--sync-every", "16KiB", &name];
    let running = Running::start(&mut clactl(&arguments));
    while running.is_running() && synced(&file) == 0 {
        std::thread::sleep(Duration::from_micros(200));
    }
    running.send(Signal::SIGINT);
    running.wait_end(TEST_TIMEOUT).expect("it ends");
    assert_eq!(running.code(), Some(1), "it was far from its end: {}", running.said());
    assert!(
        running.wait_for(OutputStream::Stdout, "the same call continues it", TEST_TIMEOUT),
        "{}",
        running.printed()
    );
    assert_eq!(synced(&file), fs::metadata(&file).expect("the file").len(), "nothing is left behind");
    clactl_ends(0, &arguments, b"");
    assert_eq!(fs::read(&file).expect("the export"), ok(&daemon, &["export"]));
}

/// The daemon dies under an export: what came is kept, and the next life of the log, in another epoch, goes on with it.
#[test]
fn a_daemon_that_dies_is_no_loss() {
    let mut rng = Rng::new(seed());
    let mut daemon = filled(&mut rng);
    let scratch = Scratch::new();
    let file = scratch.data().join("export.json");
    let name = file.display().to_string();
    let server = daemon.address("unix");
    let arguments = ["export", "--server", &server, "--sync-every", "16KiB", &name];
    let running = Running::start(&mut clactl(&arguments));
    while running.is_running() && synced(&file) == 0 {
        std::thread::sleep(Duration::from_micros(200));
    }
    daemon.kill9();
    running.wait_end(TEST_TIMEOUT).expect("it ends");
    assert_eq!(running.code(), Some(1), "it was far from its end: {}", running.said());
    assert!(!running.said().is_empty(), "it says nothing");
    assert_eq!(synced(&file), fs::metadata(&file).expect("the file").len(), "nothing is left behind");
    daemon.restart();
    append_numbers(&daemon, 0..10);
    clactl_ends(0, &arguments, b"");
    assert_eq!(fs::read(&file).expect("the export"), ok(&daemon, &["export"]));
    assert_eq!(daemon.status().epoch, 2);
}

#[test]
fn what_is_not_durable_is_left_out() {
    let daemon = Setup::new()
        .set("journal.durability", "fire_and_forget")
        .set("journal.fire_and_forget.sync_interval", "0")
        .start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Written, &[b"not", b"yet"]);
    assert_eq!(ok(&daemon, &["query", "-o", "cat"]), b"not\nyet\n");
    let scratch = Scratch::new();
    let file = scratch.data().join("export").display().to_string();
    let (server, dir) = (daemon.address("unix"), daemon.dir().display().to_string());
    for (source, at) in [("--server", &server), ("--dir", &dir)] {
        let output = clactl_ends(0, &["export", source, at, "-o", "cat"], b"");
        assert!(output.stdout.is_empty(), "{source}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(source == "--dir" || said.contains("left out: 2 records"), "{said}");
    }
    ok(&daemon, &["export", "-o", "cat", &file]);
    ok(&daemon, &["sync"]);
    ok(&daemon, &["export", "-o", "cat", &file]);
    assert_eq!(fs::read(&file).expect("the export"), b"not\nyet\n");
}

/// What retention removed before it was exported is said, and the export goes on behind it.
#[test]
fn retention_leaves_a_gap_and_no_failure() {
    let mut daemon = Setup::new().set("retention.min_free", "8000TiB").start();
    append_numbers(&daemon, 0..5);
    let scratch = Scratch::new();
    let file = scratch.data().join("export").display().to_string();
    ok(&daemon, &["export", "-o", "cat", &file]);
    append_numbers(&daemon, 5..10);
    ok(&daemon, &["rotate"]);
    append_numbers(&daemon, 10..15);
    ok(&daemon, &["rotate"]);
    append_numbers(&daemon, 15..20);
    daemon.wait_until("removed", |status| status.lowest_offset == 10);
    // What it still has in memory it gives.
    assert_eq!(daemon.term(), Some(0));
    daemon.restart();
    let output = clactl_ends(0, &["export", "--server", &daemon.address("unix"), "-o", "cat", &file], b"");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // Retention goes on meanwhile: by segment, never the newest sealed one.
    let gap = |last: u64| said.contains(&format!("records 5 to {last} removed by retention"));
    let lowest = [10, 15].into_iter().find(|lowest| gap(lowest - 1)).unwrap_or_else(|| panic!("{said}"));
    assert_eq!(fs::read(&file).expect("the export"), [numbers(0..5), numbers(lowest..20)].concat());
}

/// No daemon starts on a folder with a foreign file in it.
#[test]
fn none_is_made_in_a_data_folder() {
    let mut daemon = Daemon::start();
    append_numbers(&daemon, 0..10);
    let server = daemon.address("unix");
    let scratch = Scratch::new();
    let link = scratch.data().join("link");
    std::os::unix::fs::symlink(daemon.dir(), &link).expect("a link");
    for folder in [daemon.dir(), &link] {
        let file = folder.join("dump.json");
        let output = clactl_ends(2, &["export", "--server", &server, &file.display().to_string()], b"");
        assert!(String::from_utf8_lossy(&output.stderr).contains("data folder"), "{output:?}");
        assert!(!file.exists());
    }
    let inside =
        clactl(&["export", "--server", &server, "dump.json"]).current_dir(daemon.dir()).output().expect("clactl");
    assert_eq!(inside.status.code(), Some(2));
    daemon.kill9();
    daemon.restart();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("the folder").flatten() {
        if entry.file_type().expect("a type").is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
        }
    }
}

/// A log that was set back to a backup gives offsets again: what was exported of them is not what it holds.
#[test]
fn an_abandoned_history_is_refused() {
    let mut daemon = Daemon::start();
    append_numbers(&daemon, 0..10);
    daemon.kill9();
    let scratch = Scratch::new();
    let backup = scratch.data().join("backup");
    copy(daemon.dir(), &backup);
    daemon.restart();
    append_numbers(&daemon, 10..20);
    let file = scratch.data().join("export").display().to_string();
    ok(&daemon, &["export", "-o", "cat", &file]);
    assert_eq!(fs::read(&file).expect("the export"), numbers(0..20));
    daemon.kill9();
    fs::remove_dir_all(daemon.dir()).expect("gone");
    copy(&backup, daemon.dir());
    daemon.restart();
    daemon.kill9();
    daemon.restart();
    append_numbers(&daemon, 100..120);
    let server = daemon.address("unix");
    let dir = daemon.dir().display().to_string();
    for (source, at) in [("--server", &server), ("--dir", &dir)] {
        let output = clactl_ends(1, &["export", source, at, "-o", "cat", &file], b"");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("abandoned") && said.contains("cannot continue"), "{source}: {said}");
        assert_eq!(fs::read(&file).expect("the export"), numbers(0..20), "it is kept");
    }
    // Another log is another matter.
    let other = Daemon::start();
    append_numbers(&other, 0..30);
    let output = clactl_ends(1, &["export", "--server", &other.address("unix"), "-o", "cat", &file], b"");
    assert!(String::from_utf8_lossy(&output.stderr).contains("export of log"), "{output:?}");
}

#[test]
fn a_file_that_is_something_else_is_not_touched() {
    let daemon = Daemon::start();
    append_numbers(&daemon, 0..10);
    let scratch = Scratch::new();
    let file = scratch.data().join("file");
    let name = file.display().to_string();
    let server = daemon.address("unix");
    let refused = |arguments: &[&str], word: &str| {
        let output = clactl_ends(1, &[&["export", "--server", &server, &name], arguments].concat(), b"");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(word), "{said}");
    };
    fs::write(&file, "a letter").expect("written");
    refused(&[], "--fresh");
    assert_eq!(fs::read(&file).expect("the file"), b"a letter");
    ok(&daemon, &["export", "--fresh", "-o", "cat", "--mode", "0640", "--from", "3", "--to", "7", &name]);
    assert_eq!(fs::read(&file).expect("the export"), numbers(3..7));
    // Another request is another export; a file that was changed is none.
    refused(&["-o", "json", "--from", "3", "--to", "7"], "something else");
    fs::write(&file, [numbers(3..6), b"number 9\n".to_vec()].concat()).expect("written");
    refused(&["-o", "cat", "--from", "3", "--to", "7"], "was changed");
    fs::remove_file(&file).expect("removed");
    refused(&["-o", "cat", "--from", "3", "--to", "7"], "does not exist");
    assert!(!file.exists());
    ok(&daemon, &["export", "--fresh", "-o", "cat", "--from", "3", "--to", "7", &name]);
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).expect("the file").permissions());
    assert_eq!(mode & 0o777, 0o600);
    // Two at a time in one file would be one too many.
    let held = fs::File::options().write(true).open(&file).expect("the export");
    held.try_lock().expect("locked");
    refused(&["-o", "cat", "--from", "3", "--to", "7"], "by another export");
    drop(held);
    ok(&daemon, &["export", "-o", "cat", "--from", "3", "--to", "7", &name]);
    clactl_ends(2, &["export", "--server", &server, "/dev/full"], b"");
    clactl_ends(2, &["export", "--server", &server, "--fresh"], b"");
}

#[test]
fn raw_gives_back_what_clients_made() {
    let mut daemon = Daemon::start();
    let (mut raw, _) = Raw::producer(&daemon.socket());
    raw.append_acked(0, AckLevel::Durable, &[b"a", b"b", b"c", b"d"]);
    raw.append_acked(4, AckLevel::Durable, &[b"e"]);
    append_numbers(&daemon, 0..50);
    let whole = ok(&daemon, &["export", "-o", "raw"]);
    let part = ok(&daemon, &["export", "-o", "raw", "--from", "1", "--to", "3"]);
    let found = ok(&daemon, &["export", "-o", "raw", "-g", "^[bd]$"]);
    assert_eq!(daemon.term(), Some(0));
    let stored: Vec<_> = readback::files(daemon.dir()).into_iter().map(|one| (one.offset, one.body)).collect();
    assert_eq!(unpacked(&whole), stored);
    assert_eq!(unpacked(&part), stored[1..3]);
    assert_eq!(unpacked(&found), stored[1..4], "from the first to the last that is wanted");
    assert_eq!(ok_dir(&daemon, "raw"), whole, "the same from the files");
}

fn ok_dir(daemon: &Daemon, form: &str) -> Vec<u8> {
    clactl_ends(0, &["export", "--dir", &daemon.dir().display().to_string(), "-o", form], b"").stdout
}

/// The records of a raw export, by what FORMAT.md says of it.
fn unpacked(raw: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let (head, frames) = raw.split_at(32);
    assert_eq!(&head[..12], b"CLADRAW\0\x02\0\0\0");
    assert_eq!(clad_proto::payload_checksum(&head[..28]).to_le_bytes(), head[28..]);
    let decoder = FrameDecoder::new(clad_proto::limits::MAX_APPEND_BYTES);
    let mut rest = BytesMut::from(frames);
    let mut all = Vec::new();
    while let Some(frame) = decoder.next(&mut rest).expect("a frame") {
        let Frame::Records(records) = frame else { panic!("{frame:?}") };
        assert!(records.checksum_holds());
        let (head, payload) = (records.head, &records.payload);
        let view = PayloadView::parse(payload, head.count).expect("a payload");
        let wanted = (head.first_offset..).zip(view.records()).skip(head.skip as usize).take(head.take as usize);
        all.extend(wanted.map(|(offset, record)| (offset, record.body_bytes().unwrap_or_default().to_vec())));
    }
    assert!(rest.is_empty());
    all
}

#[test]
fn damage_is_said_and_ends_in_1_also_after_a_stop() {
    let mut daemon = Daemon::start();
    append_numbers(&daemon, 0..100);
    ok(&daemon, &["rotate"]);
    append_numbers(&daemon, 100..110);
    assert_eq!(daemon.term(), Some(0));
    let segment = daemon.dir().join(format!("{:020}.clog", 0));
    let bytes = fs::read(&segment).expect("the segment");
    let at = bytes.windows(9).position(|window| window == b"number 42").expect("the record");
    let opened = OpenOptions::new().write(true).open(&segment).expect("the segment");
    opened.write_all_at(b"N", at as u64).expect("flipped");
    let dir = daemon.dir().display().to_string();
    let scratch = Scratch::new();
    let file = scratch.data().join("export").display().to_string();
    for _ in 0..2 {
        // The second finds nothing new, and the file holds no more than before.
        let output = clactl_ends(1, &["export", "--dir", &dir, "-o", "cat", &file], b"");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("(to the end, without what is damaged)"), "{said}");
        let exported = fs::read(&file).expect("the export");
        assert!(exported.starts_with(&numbers(0..40)) && exported.ends_with(&numbers(45..110)), "{output:?}");
        assert!(!exported.windows(9).any(|window| window == b"number 42" || window == b"Number 42"));
    }
    let raw = clactl_ends(1, &["export", "--dir", &dir, "-o", "raw"], b"").stdout;
    let decoder = FrameDecoder::new(clad_proto::limits::MAX_APPEND_BYTES);
    let mut rest = BytesMut::from(&raw[32..]);
    let frames = std::iter::from_fn(|| decoder.next(&mut rest).expect("a frame"));
    let gaps: Vec<_> = frames.filter_map(|frame| if let Frame::Gap(gap) = frame { Some(gap) } else { None }).collect();
    assert!(gaps.len() == 1 && (gaps[0].from..gaps[0].to).contains(&42), "{gaps:?}");

    // In two goes, with a crash of the daemon and so another epoch in between, it is what it is in one.
    let [two, one] = ["two", "one"].map(|name| scratch.data().join(name).display().to_string());
    clactl_ends(1, &["export", "--dir", &dir, "-o", "raw", &two], b"");
    daemon.restart();
    daemon.kill9();
    daemon.restart();
    append_numbers(&daemon, 110..120);
    assert_eq!(daemon.term(), Some(0));
    for file in [&two, &one] {
        clactl_ends(1, &["export", "--dir", &dir, "-o", "raw", file], b"");
    }
    let [two, one] = [two, one].map(|file| fs::read(file).expect("the export"));
    assert!(two.len() > raw.len() && two == one, "{} and {} bytes", two.len(), one.len());
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(clactl_ends(0, &["completions", shell], b"").stdout).expect("text");
        assert!(script.contains("export") && script.contains("sync-every"), "{shell}");
    }
    clactl_ends(2, &["completions", "nosuchshell"], b"");
}
