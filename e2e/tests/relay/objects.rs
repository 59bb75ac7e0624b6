//! From a clad to object storage: a chain of Parquet files without gap or overlap, read by others.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use clad_e2e::{Daemon, TEST_TIMEOUT};

use super::bucket::{Act, Bucket};
use super::forward::{Numbers, small};
use super::{Backup, Relay, wait};

/// Objects are small, so that there are many.
pub(super) const SMALL: &str = "max_age = \"300ms\"\nobject_bytes = \"64KiB\"\n";

/// A relay from the beginning, with the lines of `[to.objects]` and more of `[from.clad]`.
pub(crate) fn relay(daemon: &Daemon, from: &str, to: impl FnOnce(&Relay) -> String) -> Relay {
    named("test", daemon, from, to)
}

/// The same, of a name.
pub(super) fn named(name: &str, daemon: &Daemon, from: &str, to: impl FnOnce(&Relay) -> String) -> Relay {
    let relay = Relay::new(daemon, "");
    let socket = daemon.socket();
    let text = format!(
        "name = \"{name}\"\n[from.clad]\nserver = \"unix://{}\"\nstart = \"beginning\"\n{from}\n{}",
        socket.display(),
        to(&relay)
    );
    fs::write(relay.file(), text).expect("written");
    relay
}

fn to_bucket<'a>(bucket: &'a Bucket, more: &'a str) -> impl FnOnce(&Relay) -> String + 'a {
    move |relay| bucket.lines(&relay.folder()) + more
}

pub(crate) fn end(daemon: &Daemon) -> u64 {
    daemon.status().offsets.expect("offsets").durable
}

/// Waits until the archive has everything below an offset, and its cursor says so.
pub(crate) fn wait_stored(relay: &mut Relay, end: u64) {
    wait("all in the archive", || {
        relay.keep();
        relay.say("status").contains(&format!("next offset  {end}\n"))
    });
}

/// Runs `verify`: what it says, and whether all is right.
pub(crate) fn verify(relay: &Relay, more: &[&str]) -> (String, bool) {
    let done = relay.command("verify").args(more).output().expect("it runs");
    (String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned(), done.status.success())
}

/// Bodies of the log by offset.
pub(crate) fn bodies(daemon: &Daemon) -> Vec<(u64, String)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let stored = runtime.block_on(clad_e2e::readback::served(&daemon.address("unix")));
    stored.iter().map(|record| (record.offset, String::from_utf8_lossy(&record.body).into_owned())).collect()
}

/// DuckDB, pyarrow and DataFusion find each offset of the log once, with its body.
fn assert_read(bucket: &Bucket, daemon: &Daemon) {
    assert_found(bucket.read(), &bodies(daemon));
}

pub(super) fn assert_found(found: Vec<serde_json::Value>, here: &[(u64, String)]) {
    let (first, last) = (here[0].0, here[here.len() - 1].0);
    assert_eq!(found.len(), 3);
    for by in found {
        let number = |key: &str| by[key].as_u64().expect(key);
        let reader = &by["reader"];
        assert_eq!(number("count"), here.len() as u64, "{reader}");
        assert_eq!(number("distinct"), number("count"), "{reader}: an offset is there twice");
        assert_eq!((number("min"), number("max")), (first, last), "{reader}");
        assert_eq!(number("max") - number("min") + 1, number("count"), "{reader}: an offset is missing");
        let there = by["bodies"].as_array().expect("bodies");
        let same = there.iter().zip(here).all(|(there, (_, here))| there.as_str() == Some(here));
        assert!(same && there.len() == here.len(), "{reader}: other bodies");
    }
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn every_record_is_in_a_folder_once_over_kills() {
    let kills = super::number("CLAD_RELAY_KILLS");
    let mut daemon = small().start();
    let mut relay = relay(&daemon, "", |relay| {
        let folder = relay.folder().display().to_string();
        format!("[to.objects]\nurl = \"file://{folder}\"\n{SMALL}")
    });
    relay.start();
    for kill in 0..kills {
        Numbers::new(&daemon).append(20, 100);
        if kill % 4 == 0 {
            let before = parquet_files(relay.folder()).len();
            wait("another object", || {
                relay.keep();
                parquet_files(relay.folder()).len() > before
            });
        }
        relay.or_daemon_is_killed(&mut daemon, kill);
    }
    let end = end(&daemon);
    wait_stored(&mut relay, end);
    let (said, is_right) = verify(&relay, &[]);
    assert!(is_right && said.contains(&format!(" {end} records")) && said.contains("nothing is wrong"), "{said}");
    // Each object is as the log has it.
    let objects: u64 =
        said.split(" objects, ").next().and_then(|text| text.lines().last()?.parse().ok()).expect("a number");
    assert!(objects > 1 && said.contains(&format!("{objects} objects are as the log has them")), "{said}");
    // One byte of one object is another: verify names it.
    let files = parquet_files(relay.folder());
    let file = &files[files.len() / 2];
    let mut bytes = fs::read(file).expect("there");
    bytes[40] ^= 1;
    fs::write(file, bytes).expect("written");
    let (said, is_right) = verify(&relay, &[]);
    let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(!is_right && said.contains("its data has sha256") && said.contains(name), "{said}");
    // One is gone: so is what it had, and nothing is built on it.
    fs::remove_file(file).expect("removed");
    let (said, is_right) = verify(&relay, &[]);
    assert!(!is_right && said.contains("are in no object"), "{said}");
    // So is the newest: the cursor knows what was stored.
    fs::remove_file(files.last().expect("files")).expect("removed");
    let (said, is_right) = verify(&relay, &[]);
    assert!(!is_right && said.contains(&format!(" to {} were stored, as the cursor says", end - 1)), "{said}");
    println!("kills: {kills}, {end} records in {objects} objects of a folder");
}

pub(super) fn parquet_files(folder: PathBuf) -> Vec<PathBuf> {
    let mut folders = vec![folder];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "parquet") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn every_record_is_in_a_bucket_once_over_kills_and_lost_answers() {
    let kills = super::number("CLAD_RELAY_KILLS");
    let mut daemon = small().start();
    let bucket = Bucket::start();
    let mut relay = relay(&daemon, "", to_bucket(&bucket, SMALL));
    let (requests, lost) = (AtomicU64::new(0), std::sync::Arc::new(AtomicU64::new(0)));
    let counted = lost.clone();
    bucket.acts(move |first| {
        let is_put = first.starts_with("PUT");
        match requests.fetch_add(1, Ordering::Relaxed) % 9 {
            2 | 5 if is_put => {
                counted.fetch_add(1, Ordering::Relaxed);
                Act::ForwardAndCut
            }
            4 => Act::Say(503),
            7 if is_put => Act::Say(409),
            8 => Act::Cut,
            _ => Act::Forward,
        }
    });
    relay.start();
    for kill in 0..kills {
        Numbers::new(&daemon).append(20, 100);
        if kill % 3 == 0 {
            // By how far it is, not by a time.
            let before = bucket.objects().len();
            wait("another object", || {
                relay.keep();
                bucket.objects().len() > before
            });
        }
        relay.or_daemon_is_killed(&mut daemon, kill);
    }
    let end = end(&daemon);
    wait_stored(&mut relay, end);
    bucket.acts(|_| Act::Forward);
    assert_read(&bucket, &daemon);
    let (said, is_right) = verify(&relay, &[]);
    assert!(is_right && said.contains(&format!(" {end} records")), "{said}");
    let lost = lost.load(Ordering::Relaxed);
    assert!(lost > 0, "no answer was lost");
    // Once it has been ended well, the next one goes on behind it.
    assert!(relay.term(), "{}", relay.said());
    relay.start();
    Numbers::new(&daemon).append(3, 0);
    let all = super::objects::end(&daemon);
    wait_stored(&mut relay, all);
    assert_read(&bucket, &daemon);
    println!("kills: {kills}, {end} records in {} objects, {lost} answers lost", bucket.objects().len());
}

#[expect(clippy::print_stdout, reason = "the figures of the case")]
#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn two_relays_at_one_prefix_make_one_chain() {
    let kills = super::number("CLAD_RELAY_KILLS");
    let daemon = small().start();
    let bucket = Bucket::start();
    let mut one = relay(&daemon, "", to_bucket(&bucket, SMALL));
    // The other one cuts elsewhere.
    let mut other = named("other", &daemon, "", to_bucket(&bucket, "max_age = \"170ms\"\nobject_bytes = \"64KiB\"\n"));
    one.start();
    other.start();
    let mut numbers = Numbers::new(&daemon);
    for kill in 0..kills {
        numbers.append(15, 50);
        std::thread::sleep(std::time::Duration::from_millis(90));
        match kill % 5 {
            1 => one.kill9(),
            3 => other.kill9(),
            _ => {}
        }
        one.keep();
        other.keep();
    }
    let end = end(&daemon);
    wait_stored(&mut one, end);
    wait_stored(&mut other, end);
    assert_read(&bucket, &daemon);
    let (said, is_right) = verify(&one, &[]);
    assert!(is_right, "{said}");
    let met = [&one, &other].map(|relay| relay.said().matches("another relay has stored").count());
    assert!(met.iter().sum::<usize>() > 0, "they never met");
    println!("kills: {kills}, {end} records in {} objects, {met:?} times the other was faster", bucket.objects().len());
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn an_object_that_is_not_ours_stops_it_with_both_numbers() {
    let daemon = small().start();
    let bucket = Bucket::start();
    let mut relay = relay(&daemon, "", to_bucket(&bucket, SMALL));
    let mut numbers = Numbers::new(&daemon);
    numbers.append(10, 0);
    relay.start();
    wait_stored(&mut relay, 19);
    let ours = bucket.objects();
    let next = ours[0].replace(&ours[0][ours[0].len() - 28..], "00000000000000000019.parquet");
    bucket.ask("PUT", &next, b"something");
    numbers.append(2, 0);
    assert!(!relay.wait(), "it goes on");
    let said = relay.said();
    assert!(said.contains("is not of an archive") && said.contains("offsets 19 to"), "{said}");
    assert_eq!(bucket.ask("GET", &next, b"").1, b"something", "it was overwritten");
    // It does not begin on it either.
    relay.start();
    assert!(!relay.wait(), "it goes on");
    let (said, is_right) = verify(&relay, &[]);
    assert!(!is_right && said.contains("it is no Parquet file"), "{said}");
    // One of our own, of other offsets.
    let copy = bucket.ask("GET", &ours[0], b"").1;
    bucket.ask("PUT", &next, &copy);
    relay.start();
    assert!(!relay.wait(), "it goes on");
    assert!(relay.said().contains("00000000000000000019.parquet says that it has offsets 0 to"), "{}", relay.said());
    bucket.remove(&next);
    relay.start();
    let all = end(&daemon);
    wait_stored(&mut relay, all);
    assert_read(&bucket, &daemon);
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn an_archive_of_a_log_that_was_restored_stops_it_until_a_person_begins_a_history() {
    let mut daemon = small().start();
    let bucket = Bucket::start();
    let mut relay = relay(&daemon, "", to_bucket(&bucket, SMALL));
    Numbers::new(&daemon).append(10, 0);
    let backup = Backup::of(&mut daemon);
    Numbers::new(&daemon).append(5, 0);
    relay.start();
    let all = end(&daemon);
    wait_stored(&mut relay, all);
    assert!(relay.term());
    backup.is_put_back(&mut daemon);
    Numbers::new(&daemon).append(20, 100);
    let before = bucket.keys();
    relay.start();
    assert!(!relay.wait(), "it goes on");
    let said = relay.said();
    assert!(said.contains("have parted") && said.contains("with CRC"), "{said}");
    assert_eq!(bucket.keys(), before, "something was stored");
    let said = relay.say("begin");
    assert!(said.contains("begins history"), "{said}");
    relay.start();
    let all = end(&daemon);
    wait_stored(&mut relay, all);
    assert_read(&bucket, &daemon);
    assert!(bucket.keys().iter().filter(|key| key.ends_with("_origin")).count() == 2, "{:?}", bucket.keys());
    let (said, is_right) = verify(&relay, &[]);
    assert!(is_right, "{said}");
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn what_retention_took_is_an_object_without_a_row() {
    let daemon = small().set("retention.max_bytes", "4MiB").start();
    let bucket = Bucket::start();
    let mut relay = relay(&daemon, "hold = false", to_bucket(&bucket, SMALL));
    let mut numbers = Numbers::new(&daemon);
    numbers.append(3, 0);
    relay.start();
    wait_stored(&mut relay, 6);
    relay.kill9();
    numbers.append(120, 40_000);
    let lowest = daemon.wait_until("retention has passed it", |status| status.lowest_offset > 20).lowest_offset;
    relay.start();
    let end = end(&daemon);
    wait_stored(&mut relay, end);
    let (said, is_right) = verify(&relay, &[]);
    assert!(is_right, "{said}");
    assert!(said.contains(&format!("gap: offsets 6 to {} were not in the log: retention", lowest - 1)), "{said}");
    for by in bucket.read() {
        assert_eq!(by["count"].as_u64(), Some(6 + end - lowest), "{}", by["reader"]);
        assert_eq!((by["min"].as_u64(), by["max"].as_u64()), (Some(0), Some(end - 1)));
    }
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn a_bucket_that_is_away_is_waited_for_and_nothing_is_missing() {
    let daemon = small().set("retention.max_bytes", "4MiB").set("retention.max_held_bytes", "64MiB").start();
    let bucket = Bucket::start();
    let mut relay = relay(&daemon, "", to_bucket(&bucket, SMALL));
    let mut numbers = Numbers::new(&daemon);
    numbers.append(3, 0);
    relay.start();
    wait_stored(&mut relay, 6);
    let objects = bucket.objects().len();
    for act in [Act::Say(503), Act::Say(403), Act::Say(404), Act::Say(500), Act::Say(429), Act::Cut] {
        let asked = std::sync::Arc::new(AtomicU64::new(0));
        let count = asked.clone();
        bucket.acts(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            act
        });
        numbers.append(40, 30_000);
        wait("two tries", || asked.load(Ordering::Relaxed) > 1);
        let rss = fs::read_to_string(format!("/proc/{}/status", relay.child.as_ref().expect("it runs").id()));
        let rss = rss.expect("it runs").lines().find_map(|line| line.strip_prefix("VmRSS:").map(str::to_owned));
        let kib: u64 = rss.and_then(|line| line.split_whitespace().next()?.parse().ok()).expect("a number");
        assert!(kib < 96 << 10, "{kib} KiB");
    }
    assert_eq!(bucket.objects().len(), objects);
    assert!(daemon.metric("clad_cursor_held_bytes") > 1e6);
    bucket.acts(|_| Act::Forward);
    let end = end(&daemon);
    wait_stored(&mut relay, end);
    // The log has not all of it any more.
    for by in bucket.read() {
        assert_eq!((by["count"].as_u64(), by["distinct"].as_u64()), (Some(end), Some(end)), "{}", by["reader"]);
        assert_eq!((by["min"].as_u64(), by["max"].as_u64()), (Some(0), Some(end - 1)));
        let bodies = by["bodies"].as_array().expect("bodies");
        assert!(bodies.iter().all(|body| body.as_str().is_some_and(|text| text.ends_with('x') || text.ends_with(' '))));
    }
    let (said, is_right) = verify(&relay, &[]);
    assert!(is_right && said.contains(" 0 gaps"), "{said}");
}

#[test]
#[ignore = "needs clad-relay: `cargo xtask ci relay`"]
fn an_archive_that_has_expired_stops_it_until_a_person_goes_on() {
    let daemon = small().start();
    let bucket = Bucket::start();
    let mut relay = relay(&daemon, "", to_bucket(&bucket, SMALL));
    let mut numbers = Numbers::new(&daemon);
    for end in [2, 5, 8] {
        numbers.append(2, 0);
        wait_stored_at_least(&mut relay, end);
    }
    // The oldest ones may go by a rule of the bucket.
    bucket.remove(&bucket.objects()[0]);
    assert!(relay.term());
    relay.start();
    numbers.append(2, 0);
    let all = end(&daemon);
    wait_stored(&mut relay, all);
    let (said, is_right) = verify(&relay, &[]);
    assert!(!is_right && said.contains("are gone"), "{said}");
    let (said, is_right) = verify(&relay, &["--expired"]);
    assert!(is_right && said.contains("expired: offsets 0 to"), "{said}");
    assert!(relay.term());
    for key in bucket.keys() {
        bucket.remove(&key);
    }
    relay.start();
    assert!(!relay.wait(), "it goes on");
    assert!(relay.said().contains(&format!("has stored records up to offset {all} there")), "{}", relay.said());
    assert!(bucket.keys().is_empty());
    let done = relay.command("begin").arg("--at-cursor").output().expect("it runs");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(said.contains(&format!("of the archive at offset {all}")), "{said}");
    numbers.append(2, 0);
    relay.start();
    let later = end(&daemon);
    wait_stored(&mut relay, later);
    for by in bucket.read() {
        assert_eq!((by["min"].as_u64(), by["max"].as_u64()), (Some(all), Some(later - 1)), "{}", by["reader"]);
    }
}

pub(crate) fn wait_stored_at_least(relay: &mut Relay, end: u64) {
    let until = std::time::Instant::now() + TEST_TIMEOUT;
    loop {
        relay.keep();
        let said = relay.say("status");
        let next = said.split("next offset  ").nth(1).and_then(|rest| rest.lines().next()?.parse::<u64>().ok());
        if next.is_some_and(|next| next >= end) {
            return;
        }
        assert!(std::time::Instant::now() < until, "{said}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
